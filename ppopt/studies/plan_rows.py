"""The rows of a plan: how every configuration ended, and in which order they stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from ppopt.problem.partition import SEARCH
from ppopt.studies.plan_candidate import PlanCandidate
from ppopt.studies.plan_result import PlanRow, RowStatus
from ppopt.studies.plan_space import OPTIMAL, PlanConfiguration


def row_of(one: PlanCandidate, best: Fraction | None) -> PlanRow:
    """What is known of a configuration; `best` is the least time per microbatch of any."""
    result, bound = one.result or one.bounded(), None
    if not one.impossible:
        bound = one.bound if one.value is None else min(one.bound, one.value)
        if one.configuration.strategy == OPTIMAL:
            result = replace(result, lower_bound=bound)
    if one.impossible:
        status = RowStatus.INFEASIBLE
    elif one.value is not None and one.bound >= one.value:
        status = RowStatus.OPTIMAL
    elif best is not None and one.per_microbatch(one.bound) >= best:
        status = RowStatus.PRUNED
    else:
        status = RowStatus.UNKNOWN if one.value is None else RowStatus.FEASIBLE
    alone = best is not None and one.per_microbatch(one.bound_alone) >= best
    ruled_out = status is RowStatus.PRUNED and alone
    return PlanRow(one.configuration, status, result, bound, one.searches, ruled_out)


def counted(rows: Sequence[PlanRow]) -> str:
    """How many configurations were ruled out or searched, in words."""
    alone = sum(row.ruled_out_by_bounds for row in rows)
    impossible = sum(row.status is RowStatus.INFEASIBLE for row in rows)
    searched = len(rows) - impossible - alone
    counts = {
        "cannot keep the memory limit": ("", impossible),
        "ruled out by bounds alone": ("is " if alone == 1 else "are ", alone),
        "searched": ("was " if searched == 1 else "were ", searched),
    }
    words = ", ".join(f"{number} {verb}{what}" for what, (verb, number) in counts.items() if number)
    every = "the 1 configuration" if len(rows) == 1 else f"all {len(rows)} configurations"
    return f"over {every}: {words}"


def order_of(
    row: PlanRow,
) -> tuple[bool, Fraction, Fraction, bool, bool, Fraction, PlanConfiguration]:
    """Where a row stands: by time per microbatch, then by memory, then by bound.

    A configuration of chosen recompute comes after the one whose schedule it has taken over.
    """
    return (
        row.value is None,
        row.per_microbatch or Fraction(0),
        row.peak or Fraction(0),
        row.configuration.recompute == SEARCH,
        row.lower_bound is None,
        row.bound_per_microbatch or Fraction(0),
        row.configuration,
    )
