"""Assertions on schedules, for tests of projects that use them.

`ppopt.testing.plugin` adds the fixture that keeps reference schedules in a folder.
"""

from __future__ import annotations

from typing import Any

from ppopt.problem import exact
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
    _assert_same_problem(actual, expected)
    found = first_difference(expected, actual)
    assert found is None, f"the schedules differ: {found}"
    assert actual == expected, "the pipelines differ, in fields without effect"


def assert_not_worse_than(actual: Schedule, reference: Schedule, *, tolerance: float = 0.0) -> None:
    """Assert that a schedule is valid and no longer than a reference of the same problem.

    Compares by the reference's objective; `tolerance` is a share of its value. Enforces the limits
    of the schedule's own pipeline.
    """
    found = verify(actual)
    assert not found, f"not a schedule of its pipeline:\n{explain(actual, found)}"
    _assert_same_problem(actual, reference)
    objective = reference.objective
    mine, theirs = (
        schedule.pipeline.ticks.time(schedule.metrics.value_ticks(objective))
        for schedule in (actual, reference)
    )
    assert mine <= theirs * (1 + exact.read(tolerance, "tolerance").value), (
        f"the {objective} is {exact.plain(mine)}, worse than {exact.plain(theirs)} of the reference"
    )


def _assert_same_problem(actual: Schedule, expected: Schedule) -> None:
    """Assert equal placement, microbatches and costs, however they are given; not the limits.

    If the order of microbatches was chosen, any order of the same ones will do.
    """
    mine, theirs = actual.pipeline, expected.pipeline
    for what in ("hosts", "num_slices", "batches"):
        new, old = getattr(mine, what), getattr(theirs, what)
        assert new == old, (
            f"the pipelines differ in {what}: {_short(old)} is expected, not {_short(new)}"
        )
    costs = [cost for cost in STAGE_COSTS if _differing(cost, theirs, mine)]
    words = "; ".join(_in_cost(cost, theirs, mine) for cost in costs)
    assert not costs, f"the pipelines differ in {words}"
    links = [(pipeline.links.down, pipeline.links.up) for pipeline in (mine, theirs)]
    assert links[0] == links[1], "the pipelines differ in p2p"
    chosen = all(isinstance(pipeline.order, tuple) for pipeline in (mine, theirs))
    factors = [list(pipeline.factors) for pipeline in (mine, theirs)]
    new, old = map(sorted, factors) if chosen else factors
    assert new == old, "the pipelines differ in the factors of their microbatches"


def _differing(cost: Cost, expected: Pipeline, actual: Pipeline) -> list[int]:
    """The stages that differ in a cost."""
    pairs = zip(*(_rows(cost, pipeline) for pipeline in (expected, actual)), strict=True)
    return [stage for stage, (old, new) in enumerate(pairs) if old != new]


def _rows(cost: Cost, pipeline: Pipeline) -> tuple[Any, ...]:
    """A cost of every stage; empty rows if it is not stated."""
    return pipeline.costs[cost.field] or ((),) * pipeline.num_stages


def _in_cost(cost: Cost, expected: Pipeline, actual: Pipeline) -> str:
    """Where two pipelines differ in a cost, and how."""
    stages = _differing(cost, expected, actual)
    old, new = (
        [exact.plain(number) for number in flat(_rows(cost, pipeline)[stages[0]])]
        for pipeline in (expected, actual)
    )
    more = f" (and {len(stages) - 1} more)" if len(stages) > 1 else ""
    shown = [str(row[0]) if len(row) == 1 else _short(row) for row in (old, new)]
    return f"{cost.name} of stage {stages[0]}{more}: {shown[0]} is expected, not {shown[1]}"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
