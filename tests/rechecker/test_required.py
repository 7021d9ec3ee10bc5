"""Rules between the operations of a claim hold in every schedule in the order of microbatches."""

from __future__ import annotations

import numpy as np
import pytest

from ppopt.problem.arrays import Ints
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.required import Required
from ppopt.schedule.schedule import Schedule
from ppopt.solver.options import checked_options
from ppopt.solver.search import search_from
from ppopt.solver.warm_start import WarmStart
from ppopt.verifier import figures, verify
from tests.factories.instances import middle_cases

COLUMNS = ("kind", "stage", "slice", "route", "microbatch")


def quick_schedule(pipeline: Pipeline, kind: BackwardKind) -> Schedule | None:
    """A schedule of heuristics within the limits, its microbatches in order; None: none is."""
    problem = Problem(pipeline, Objective.MAKESPAN, kind)
    return search_from(WarmStart(), problem, checked_options(600, 1).with_max_rounds(0)).schedule


def times_of(required: Required, schedule: Schedule) -> tuple[Ints, Ints]:
    """Start and end of every row in a schedule; -1 if it does not run."""
    rows, timed = required.rows, schedule.operations
    numbers = {
        place: number
        for number, place in enumerate(
            zip(*(getattr(rows, name).tolist() for name in COLUMNS), strict=True)
        )
    }
    places = zip(*(getattr(timed, name).tolist() for name in COLUMNS), strict=True)
    order = [numbers[place] for place in places]
    start, end = np.full((2, len(rows)), -1)
    start[order], end[order] = timed.start, timed.end
    return start, end


def assert_rules(required: Required, start: Ints, end: Ints) -> None:
    """Every rule between two operations holds; both modes of a backward have one number."""
    begins, ends = ({} for _ in range(2))
    for number, first, last in zip(required.number.tolist(), start, end, strict=True):
        if first >= 0:
            begins[number], ends[number] = first, last
    for earlier, later, lag in required.edges:
        if earlier in ends and later in begins:
            assert ends[earlier] + lag <= begins[later], (earlier, later)


def assert_peaks(required: Required, schedule: Schedule, start: Ints, end: Ints) -> None:
    """Live memory is what the verifier measures."""
    ticks = schedule.pipeline.ticks
    live_parts = [each for each in required.live() if start[each[0]] >= 0 and start[each[1]] >= 0]
    for device, static in enumerate(ticks.static):
        own = [each for each in live_parts if required.rows.device[each[0]] == device]
        peaks = [
            sum(amount for first, last, amount in own if start[first] <= time < end[last])
            for time in start[start >= 0]
        ]
        assert static + max(peaks) == figures(schedule).peak_memory[device]


@pytest.mark.parametrize("seed", [60, 61])
@pytest.mark.parametrize("mixed", [False, True])
def test_rules_hold_in_schedules(seed: int, mixed: bool) -> None:
    """Those of memory, too, where a stage holds less after its B than after its F."""
    schedules = 0
    for case in middle_cases(seed, 25, ops=40, heavy=mixed):
        kind = BackwardKind.MIXED if mixed else case.backward_kind
        schedule = quick_schedule(case.pipeline, kind)
        if schedule is None:
            continue
        schedules += 1
        assert verify(schedule) == []
        required = Required.of_claim(Claim(case.pipeline, False, kind, 0))
        start, end = times_of(required, schedule)
        assert_rules(required, start, end)
        if (start != end)[start >= 0].all():
            assert_peaks(required, schedule, start, end)
    assert schedules > 10
