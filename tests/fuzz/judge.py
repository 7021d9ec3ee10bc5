"""What may be said against a schedule or a result, by the rules in plain Python alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from math import ceil

import ppopt
from ppopt import Pipeline, Result, Rule, Schedule, Status, Verdict, verify
from tests.factories.schedules import peaks
from tests.fuzz.category import Finding
from tests.oracles.transfer_rules import broken_rules
from tests.verifier import verify_naive


def ticks(pipeline: Pipeline, value: Fraction) -> Fraction:
    """A time of the user's in ticks."""
    return value * pipeline.ticks.per_unit


def broken(schedule: Schedule, *, limit: bool = True) -> Iterator[Finding]:
    """Say which rules a schedule breaks; `limit`: the memory limit among them."""
    allowed = set() if limit else {Rule.MEMORY}
    naive = {finding[0] for finding in verify_naive.findings(schedule)} - allowed
    if schedule.pipeline.link_mode.has_links:
        naive |= broken_rules(schedule)
    if naive:
        yield Finding("invalid-schedule", f"it breaks {', '.join(sorted(naive))}")
    rules = {violation.rule for violation in verify(schedule)} - allowed
    if rules != naive:
        yield Finding("verifier-differs", f"the verifier finds {sorted(rules)}, the oracle {naive}")
    busy, makespan, span = verify_naive.busy_and_span(schedule)
    figures = schedule.metrics
    spans = figures.makespan_ticks, figures.device_span_ticks
    stated = (list(figures.busy_ticks), *spans, list(figures.peak_memory_ticks))
    right = (busy, makespan, span, peaks(schedule))
    if stated != right:
        yield Finding("wrong-figures", f"its figures are {stated}, by the oracle {right}")


def result(result: Result, expected: Fraction | int | None, *, proof: bool) -> Iterator[Finding]:
    """Compare a result with the least value in ticks (None: infeasible).

    `proof` says whether the time used should have sufficed for a proof.
    """
    if result.schedule is not None:
        yield from broken(result.schedule)
    per_unit = result.pipeline.ticks.per_unit
    best = None if expected is None else Fraction(expected, per_unit)
    yield from claimed(result.status, result.value, result.lower_bound, best)
    if result.schedule is not None:
        own = result.schedule.metrics.value_ticks(result.objective)
        if result.value != Fraction(own, per_unit):
            yield Finding("wrong-value", f"the value is {result.value}, that of the schedule {own}")
    if proof and result.status not in (Status.OPTIMAL, Status.INFEASIBLE):
        yield Finding("no-proof", f"{result.status} after {result.solve_seconds:.1f} s")


def claimed(
    status: str, value: Fraction | None, bound: Fraction | None, best: Fraction | None
) -> Iterator[Finding]:
    """Compare status, value and bound with the least value (None: nothing keeps the limits)."""
    if best is None:
        if value is not None or status in (Status.OPTIMAL, Status.FEASIBLE):
            yield Finding("value-of-nothing", f"{status}, {value}, where nothing keeps the limits")
        return
    if status == Status.INFEASIBLE:
        yield Finding("wrong-infeasible", f"infeasible, where {best} is possible")
    if bound is not None and bound > best:
        yield Finding("wrong-bound", f"the bound is {bound}, where {best} is possible")
    if value is not None and value < best:
        yield Finding("below-optimum", f"the value is {value}, the least is {best}")
    if status == Status.OPTIMAL and value != best:
        yield Finding("wrong-optimum", f"optimal at {value}, where {best} is possible")


def rechecked(
    result: Result, above: Fraction | None, *, seconds: float, decided: bool = True
) -> Iterator[Finding]:
    """The re-checker does not refute the bound, nor confirm one above the least value.

    `decided`: there is time enough to refute that one.
    """
    if ppopt.recheck(result, time_limit=seconds, workers=1).verdict is Verdict.WRONG:
        yield Finding("true-bound-refuted", f"the bound {result.lower_bound} is refuted")
    if above is None:
        return
    ticks = ceil(above * result.pipeline.grid.time)
    verdict = ppopt.recheck(replace(result, bound_ticks=ticks), time_limit=seconds, workers=1)
    if verdict.verdict is Verdict.CONFIRMED or (decided and verdict.verdict is not Verdict.WRONG):
        yield Finding(f"inflated-bound-{verdict.verdict}", f"the bound {above}: {verdict.reason}")
    elif verdict.counterexample is not None:
        yield from broken(verdict.counterexample)
