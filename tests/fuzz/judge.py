"""What may be said against a schedule or a result, by the rules in plain Python alone."""

from __future__ import annotations

from collections.abc import Iterator, Set
from fractions import Fraction

from ppopt import Pipeline, Result, Rule, Schedule, Status, verify
from tests.factories.schedules import peaks
from tests.fuzz.category import Finding
from tests.verifier import verify_naive


def ticks(pipeline: Pipeline, value: Fraction) -> Fraction:
    """A time of the user's in ticks."""
    return value * pipeline.ticks.per_unit


def broken(
    schedule: Schedule, *, limit: bool = True, further: Set[Rule] = frozenset()
) -> Iterator[Finding]:
    """Say which rules a schedule breaks; `limit`: the memory limit among them.

    `further`: what oracles of further rules have found.
    """
    allowed = set() if limit else {Rule.MEMORY}
    naive = {finding[0] for finding in verify_naive.findings(schedule)} - allowed | further
    if naive:
        yield Finding("invalid-schedule", f"it breaks {', '.join(sorted(naive))}")
    found = {violation.rule for violation in verify(schedule)} - allowed
    if found != naive:
        yield Finding("verifier-differs", f"the verifier finds {sorted(found)}, the oracle {naive}")
    busy, makespan, span = verify_naive.busy_and_span(schedule)
    figures = schedule.metrics
    spans = figures.makespan_ticks, figures.device_span_ticks
    told = (list(figures.busy_ticks), *spans, list(figures.peak_memory_ticks))
    right = (busy, makespan, span, peaks(schedule))
    if told != right:
        yield Finding("wrong-figures", f"its figures are {told}, by the oracle {right}")


def result(found: Result, expected: Fraction | int | None, *, proof: bool) -> Iterator[Finding]:
    """Compare a result with the least value in ticks (None: infeasible).

    `proof` says whether the time used should have sufficed for a proof.
    """
    if found.schedule is not None:
        yield from broken(found.schedule)
    yield from values(found, expected)
    if proof and found.status not in (Status.OPTIMAL, Status.INFEASIBLE):
        yield Finding("no-proof", f"{found.status} after {found.solve_seconds:.1f} s")


def values(found: Result, expected: Fraction | int | None) -> Iterator[Finding]:
    """Compare status, value and bound with the least value in ticks (None: infeasible)."""
    if expected is None:
        if found.schedule is not None or found.status in (Status.OPTIMAL, Status.FEASIBLE):
            yield Finding("schedule-of-nothing", f"{found.status}, where nothing keeps the limit")
    elif found.status is Status.INFEASIBLE:
        yield Finding("wrong-infeasible", f"infeasible, where {expected} ticks are possible")
    else:
        yield from _values(found, expected)


def _values(found: Result, expected: Fraction | int) -> Iterator[Finding]:
    pipeline = found.pipeline
    bound = None if found.lower_bound is None else ticks(pipeline, found.lower_bound)
    value = None if found.value is None else ticks(pipeline, found.value)
    if bound is not None and bound > expected:
        yield Finding("wrong-bound", f"the bound is {bound} ticks, the optimum {expected}")
    if value is not None and value < expected:
        yield Finding("below-optimum", f"the value is {value} ticks, the optimum {expected}")
    if found.status is Status.OPTIMAL and value != expected:
        yield Finding("wrong-optimum", f"optimal at {value} ticks, the optimum is {expected}")
    if found.schedule is not None:
        metrics = found.schedule.metrics
        own = metrics.makespan_ticks if found.objective == "makespan" else metrics.device_span_ticks
        if own != value:
            yield Finding("wrong-value", f"the value is {value}, that of the schedule {own}")
