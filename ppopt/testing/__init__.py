"""Assertions on schedules, for tests of projects that use them.

`ppopt.testing.plugin` adds the fixture that keeps reference schedules in a folder.
"""

from __future__ import annotations

from ppopt.problem import exact
from ppopt.schedule.schedule import Schedule
from ppopt.studies.references import first_difference
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
        schedule.pipeline.ticks.time(schedule.metrics.value(objective))
        for schedule in (actual, reference)
    )
    assert mine <= theirs * (1 + exact.read(tolerance, "tolerance").value), (
        f"the {objective} is {exact.plain(mine)}, worse than {exact.plain(theirs)} of the reference"
    )


def _assert_same_problem(actual: Schedule, expected: Schedule) -> None:
    """Assert equal placement, microbatches and costs, however they are given; not the limits."""
    mine, theirs = actual.pipeline, expected.pipeline
    for what in ("hosts", "num_slices", "batches", "costs"):
        new, old = getattr(mine, what), getattr(theirs, what)
        assert new == old, (
            f"the pipelines differ in {what}: {_short(old)} is expected, not {_short(new)}"
        )
    links = [(pipeline.links.down, pipeline.links.up) for pipeline in (mine, theirs)]
    assert links[0] == links[1], "the pipelines differ in p2p"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
