"""Assertions on schedules, for tests of projects that use them.

`ppopt.testing.plugin` adds the fixture that keeps reference schedules in a folder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from ppopt.problem import exact, microbatches
from ppopt.problem.cost_table import STAGE_COSTS, Cost
from ppopt.problem.costs import flat
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule
from ppopt.studies.reference_check import first_difference
from ppopt.verifier import explain, verify


def assert_schedule_equal(actual: Schedule, expected: Schedule) -> None:
    """Assert that two schedules run the same operations at the same times on equal pipelines.

    The AssertionError names the first difference.
    """
    __tracebackhide__ = True
    _assert_same_problem(actual, expected)
    difference = first_difference(expected, actual)
    _require(difference is None, f"the schedules differ: {difference}")
    names = [field.name for field in dataclasses.fields(Pipeline) if field.compare]
    _require(actual == expected, _differing_fields(names, expected.pipeline, actual.pipeline))


def assert_not_worse_than(actual: Schedule, reference: Schedule, *, tolerance: float = 0.0) -> None:
    """Assert that a schedule is valid and no longer than a reference of the same problem.

    Compares by the reference's objective; `tolerance` is a share of its value. Enforces the limits
    of the schedule's own pipeline.
    """
    __tracebackhide__ = True
    violations = verify(actual)
    faults = explain(actual, violations) if violations else ""
    _require(not violations, f"not a schedule of its pipeline:\n{faults}")
    _assert_same_problem(actual, reference)
    objective = reference.objective
    actual_value, reference_value = (
        schedule.pipeline.ticks.time(schedule.metrics.value_ticks(objective))
        for schedule in (actual, reference)
    )
    _require(
        actual_value <= reference_value * (1 + exact.read(tolerance, "tolerance").value),
        f"the {objective} is {exact.plain(actual_value)}, worse than "
        f"{exact.plain(reference_value)} of the reference",
    )


def _require(holds: bool, message: str) -> None:
    """Raise AssertionError with this message alone: pytest adds its values to an `assert`."""
    __tracebackhide__ = True
    if not holds:
        raise AssertionError(message)


def _assert_same_problem(actual: Schedule, expected: Schedule) -> None:
    """Assert equal placement, microbatches and costs, in any form of input; limits may differ.

    If the order of microbatches was searched, any order of the same microbatches is equal.
    """
    __tracebackhide__ = True
    new_pipeline, old_pipeline = actual.pipeline, expected.pipeline
    for what in ("hosts", "num_slices", "batches"):
        new, old = getattr(new_pipeline, what), getattr(old_pipeline, what)
        _require(
            new == old,
            f"the pipelines differ in {what}: {_short(old)} is expected, not {_short(new)}",
        )
    costs = [cost for cost in STAGE_COSTS if _differing(cost, old_pipeline, new_pipeline)]
    text = "; ".join(_in_cost(cost, old_pipeline, new_pipeline) for cost in costs)
    _require(not costs, f"the pipelines differ in {text}")
    links = [pipeline.links for pipeline in (new_pipeline, old_pipeline)]
    delays = ("p2p", "backward_p2p")
    _require(links[0] == links[1], _differing_fields(delays, old_pipeline, new_pipeline))
    chosen = all(isinstance(pipeline.order, tuple) for pipeline in (new_pipeline, old_pipeline))
    factors = [list(pipeline.factors) for pipeline in (new_pipeline, old_pipeline)]
    new, old = map(sorted, factors) if chosen else factors
    fields = (microbatches.TIMES, microbatches.MEMORY)
    _require(new == old, _differing_fields(fields, old_pipeline, new_pipeline))


def _differing(cost: Cost, expected: Pipeline, actual: Pipeline) -> list[int]:
    """The stages that differ in a cost."""
    pairs = zip(*(_rows(cost, pipeline) for pipeline in (expected, actual)), strict=True)
    return [stage for stage, (old, new) in enumerate(pairs) if old != new]


def _rows(cost: Cost, pipeline: Pipeline) -> tuple[Any, ...]:
    """A cost of every stage; empty rows if it is not stated."""
    return pipeline.costs[cost.field] or ((),) * pipeline.num_stages


def _in_cost(cost: Cost, expected: Pipeline, actual: Pipeline) -> str:
    """Text that says where and how two pipelines differ in a cost."""
    stages = _differing(cost, expected, actual)
    old, new = (
        [exact.plain(value) for value in flat(_rows(cost, pipeline)[stages[0]])]
        for pipeline in (expected, actual)
    )
    suffix = f" (and {len(stages) - 1} more)" if len(stages) > 1 else ""
    texts = [str(row[0]) if len(row) == 1 else _short(row) for row in (old, new)]
    return f"{cost.name} of stage {stages[0]}{suffix}: {texts[0]} is expected, not {texts[1]}"


def _differing_fields(names: Sequence[str], expected: Pipeline, actual: Pipeline) -> str:
    """Text that says in which of these fields two pipelines differ."""
    pairs = [(name, getattr(expected, name), getattr(actual, name)) for name in names]
    texts = (
        f"{name}: {_short(_plain(old))} is expected, not {_short(_plain(new))}"
        for name, old, new in pairs
        if old != new
    )
    return f"the pipelines differ in {'; '.join(texts)}"


def _plain(value: object) -> object:
    """A value of a field as its user writes it."""
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return exact.plain(value) if isinstance(value, Fraction) else value


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
