"""Modes: tasks of one choice run all in their first modes or all in their second ones."""

from __future__ import annotations

import pytest

from ppopt.problem.instance import ABSENT
from ppopt.solver.cp_sat.no_overlap import NoOverlap, OperationIntervals
from ppopt.solver.cp_sat.variables import Task, TaskMode
from tests.solver.cp_sat.models import alone, feasible, solved, task, variables

CHOICE = 7


def backward(horizon: int) -> list[Task]:
    """B of 2 ticks with W of 3, or BW of 4."""
    return [
        Task(1, 0, 0, horizon - 2, (TaskMode(1, 2), TaskMode(3, 4)), CHOICE),
        Task(2, 0, 0, horizon, (TaskMode(2, 3), TaskMode(ABSENT, 0)), CHOICE),
    ]


@pytest.mark.parametrize(("horizon", "fits"), [(4, True), (3, False)])
def test_the_shorter_modes_are_chosen_together(horizon: int, fits: bool) -> None:
    """BW alone fits into 4 ticks; B without its W would fit into 2."""
    tasks = backward(horizon)
    assert feasible(tasks, alone(tasks), horizon) is fits


@pytest.mark.parametrize(("first", "length"), [(True, 5), (False, 4)])
def test_ends_and_operations_are_those_of_the_mode(first: bool, length: int) -> None:
    tasks = backward(20)
    built = variables(tasks)
    built.cp.add(built.choices[CHOICE] == first)
    solver = solved(built, alone(tasks))
    assert solver is not None
    present = {code for code, literal in built.present.items() if solver.boolean_value(literal)}
    assert present == ({1, 2} if first else {3})
    lengths = (solver.value(built.end[code] - built.start[code]) for code in (1, 2))
    assert sum(lengths) == length


def test_tasks_of_one_mode_have_no_literals() -> None:
    tasks = [task(1, 2), task(2, 3)]
    built = variables(tasks)
    for part in (OperationIntervals(tasks), NoOverlap(0)):
        part.build(built)
    assert built.present == {1: None, 2: None}
    assert len(built.cp.proto.variables) == 3
