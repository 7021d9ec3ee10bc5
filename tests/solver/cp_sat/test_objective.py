"""What bounds the objective: cuts for makespan and spans, releases, the origin and work."""

from __future__ import annotations

import pytest

from ppopt.problem.instance import ABSENT
from ppopt.solver.cp_sat.no_overlap import OperationIntervals
from ppopt.solver.cp_sat.parts import ObjectiveCuts, Origin, Precedence, Releases, Work
from ppopt.solver.cp_sat.variables import ModelPart, Task, TaskMode
from ppopt.solver.relaxation.device_relaxation import ObjectiveCut
from tests.solver.cp_sat.models import feasible, solved, task, variables

TASKS = [task(1, 3), task(2, 4)]
IN_TURN = Precedence([(1, 2, 2)])
"""The first ends at 3 or later, the second starts 2 ticks later and ends at 9 or later."""


@pytest.mark.parametrize(
    ("part", "value"),
    [
        (ObjectiveCuts([ObjectiveCut(None, 2, 0)]), 9),
        (ObjectiveCuts([ObjectiveCut(None, 2, 5)]), 14),
        (ObjectiveCuts([ObjectiveCut(1, 2, 1)]), 10),
        (ObjectiveCuts([ObjectiveCut(None, 1, 0), ObjectiveCut(None, 2, 0)]), 9),
        (Work(4, TASKS), 11),
    ],
)
def test_the_least_objective(part: ModelPart, value: int) -> None:
    built = variables(TASKS)
    solver = solved(built, [OperationIntervals(TASKS), IN_TURN, part])
    assert solver.value(built.objective) == value


@pytest.mark.parametrize(("horizon", "fits"), [(14, True), (13, False)])
def test_a_cut_bounds_the_objective_of_the_model(horizon: int, fits: bool) -> None:
    parts = [OperationIntervals(TASKS), IN_TURN, ObjectiveCuts([ObjectiveCut(None, 2, 5)])]
    assert feasible(TASKS, parts, horizon) is fits


@pytest.mark.parametrize(("earliest", "fits"), [(11, True), (12, False)])
def test_a_release_is_the_earliest_start(earliest: int, fits: bool) -> None:
    """9 ticks from the start of the first to the end of the second, 20 in all."""
    assert feasible(TASKS, [OperationIntervals(TASKS), IN_TURN, Releases([(1, earliest)])]) is fits


@pytest.mark.parametrize(("firsts", "fits"), [([1, 2], True), ([2], False)])
def test_time_counts_from_the_first_of_some_operations(firsts: list[int], fits: bool) -> None:
    """The second one cannot start at 0, the first one can."""
    assert feasible(TASKS, [OperationIntervals(TASKS), IN_TURN, Origin(firsts)]) is fits


@pytest.mark.parametrize(("first", "work"), [(True, 5), (False, 4)])
def test_work_is_that_of_the_modes(first: bool, work: int) -> None:
    """B of 2 ticks with W of 3, or BW of 4; and 1 tick before."""
    tasks = [
        Task(1, 0, 0, 9, (TaskMode(1, 2), TaskMode(3, 4)), 7),
        Task(2, 0, 0, 9, (TaskMode(2, 3), TaskMode(ABSENT, 0)), 7),
    ]
    built = variables(tasks)
    built.cp.add(built.choices[7] == first)
    solver = solved(built, [Work(1, tasks)])
    assert solver.value(built.objective) == 1 + work
