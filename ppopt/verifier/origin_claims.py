"""What a schedule's origin claims: value, bound, gap and status must agree with the operations."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import isclose

from ppopt.problem import exact
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.schedule.origin import Origin
from ppopt.verifier.measure import ROUNDING, Figures, claim
from ppopt.verifier.rows import Rows
from ppopt.verifier.violation import Violation

CLOSE = 1e-9
"""Relative difference allowed between gaps, which are rounded twice."""
WITH_SCHEDULE = ("optimal", "feasible")
"""Statuses of a search that found a schedule."""


def wrong_origin(rows: Rows, figures: Figures, origin: Origin) -> Iterator[Violation]:
    """Every statement of an origin that contradicts the operations or another statement.

    A bound itself cannot be checked without a search. What is checked: it is not above the value,
    its kind of backward is that of the operations, and the status is `optimal` only if value and
    bound are equal.
    """
    objective = origin.objective or Objective.MAKESPAN
    ticks = figures.device_span if objective is Objective.DEVICE_SPAN else figures.makespan
    per_unit = rows.pipeline.ticks.per_unit
    value = rows.pipeline.time_text(ticks)
    if origin.value is not None and exact.in_ticks(origin.value, per_unit) != ticks:
        yield _wrong("value", origin.value, f"the {objective} is {value}")
    bound = None
    if origin.lower_bound is not None:
        bound = exact.in_ticks(origin.lower_bound, per_unit)
        if bound > ticks:
            yield _wrong("lower_bound", origin.lower_bound, f"above the value {value}")
        yield from _wrong_kind(rows, origin.backward_kind or BackwardKind.SPLIT)
    if origin.status is not None and origin.status not in WITH_SCHEDULE:
        reason = f"with a schedule it is {' or '.join(WITH_SCHEDULE)}"
        yield claim("origin status", origin.status, reason)
    if origin.status == "optimal" and bound != ticks:
        yield claim("origin status", "optimal", f"the bound is not the value {value}")
    if origin.gap is not None and bound is not None and ticks:
        right = float(1 - bound / ticks)
        if not isclose(origin.gap, right, rel_tol=CLOSE, abs_tol=ROUNDING):
            yield claim("origin gap", origin.gap, f"value and bound make it {right:.9g}")


def _wrong_kind(rows: Rows, stated: BackwardKind) -> Iterator[Violation]:
    """Check that the bound's kind of backward covers the backwards of the schedule."""
    whole = rows.sane.kind == OpKind.BW
    split = (rows.sane.kind == OpKind.B) | (rows.sane.kind == OpKind.W)
    if stated is BackwardKind.WHOLE and split.any():
        yield claim("origin backward_kind", stated.value, "some backwards are split (B and W)")
    if stated is BackwardKind.SPLIT and whole.any():
        yield claim("origin backward_kind", stated.value, "some backwards are one operation (BW)")


def _wrong(key: str, stated: Fraction, why: str) -> Violation:
    return claim(f"origin {key}", exact.plain(stated), why)
