"""Rules between the operations of a claim hold in every schedule in the order of microbatches."""

from __future__ import annotations

import numpy as np
import pytest

from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.required import Required
from ppopt.schedule.schedule import Schedule
from ppopt.solver.options import checked_options
from ppopt.solver.search import search_from
from ppopt.solver.warm_start import WarmStart
from ppopt.verifier import verify
from tests.factories.instances import Case, middle_cases

COLUMNS = ("kind", "stage", "slice", "route", "microbatch")


def quick_schedule(case: Case) -> Schedule | None:
    """A schedule of heuristics within the limits, its microbatches in order; None: none is."""
    problem = Problem(case.pipeline, Objective.MAKESPAN, case.backward_kind)
    return search_from(WarmStart(), problem, checked_options(600, 1).with_max_rounds(0)).schedule


@pytest.mark.parametrize("seed", [60, 61])
def test_rules_hold_in_schedules(seed: int) -> None:
    """Those of memory, too, where a stage holds less after its B than after its F."""
    schedules = 0
    for case in middle_cases(seed, 25, ops=40):
        schedule = quick_schedule(case)
        if schedule is None:
            continue
        schedules += 1
        assert verify(schedule) == []
        required = Required.of_claim(Claim(case.pipeline, False, case.backward_kind, 0))
        rows, timed = required.rows, schedule.operations
        numbers = {
            place: number
            for number, place in enumerate(
                zip(*(getattr(rows, name).tolist() for name in COLUMNS), strict=True)
            )
        }
        places = zip(*(getattr(timed, name).tolist() for name in COLUMNS), strict=True)
        order = [numbers[place] for place in places]
        start, end = np.empty((2, len(rows)), dtype=np.int64)
        start[order], end[order] = timed.start, timed.end
        for earlier, later, lag in required.edges:
            assert end[earlier] + lag <= start[later], (case, rows.name(earlier), rows.name(later))
    assert schedules > 10
