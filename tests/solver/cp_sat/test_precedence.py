"""Precedence and the order of microbatches, also of what is absent."""

from __future__ import annotations

import pytest

from ppopt.problem.instance import ABSENT
from ppopt.solver.cp_sat.no_overlap import Operations
from ppopt.solver.cp_sat.parts import MicrobatchOrder, Precedence
from ppopt.solver.cp_sat.variables import Task, TaskMode
from tests.solver.cp_sat.models import alone, feasible, solved, task, variables

CHOICE = 7


@pytest.mark.parametrize(("most", "fits"), [(9, True), (8, False)])
def test_an_operation_starts_after_the_end_and_the_lag(most: int, fits: bool) -> None:
    tasks = [task(1, 3, most=most), task(2, 4, resource=1, most=most)]
    assert feasible(tasks, [*alone(tasks), Precedence([(1, 2, 2)])], most) is fits


@pytest.mark.parametrize(("first", "fits"), [(False, True), (True, False)])
@pytest.mark.parametrize("if_there", [False, True])
def test_an_operation_that_is_there_waits(first: bool, fits: bool, if_there: bool) -> None:
    """It takes 1 tick from 3 on, past the end of the model; its instant takes none."""
    tasks = [task(1, 3, most=3), maybe(2, most=3)]
    made = variables(tasks, 3)
    made.cp.add(made.choices[CHOICE] == first)
    assert (
        solved(made, [Operations(tasks), Precedence([(1, 2, 0)], if_there)]) is not None
    ) is fits


@pytest.mark.parametrize(("if_there", "fits"), [(True, True), (False, False)])
def test_the_instant_of_what_is_absent_waits_unless_told(if_there: bool, fits: bool) -> None:
    """It would be one tick past the end of the model."""
    tasks = [task(1, 3, most=3), maybe(2, most=3)]
    made = variables(tasks, 3)
    made.cp.add(made.choices[CHOICE] == 0)
    assert (
        solved(made, [Operations(tasks), Precedence([(1, 2, 1)], if_there)]) is not None
    ) is fits


@pytest.mark.parametrize(("first", "fits"), [(1, True), (2, False)])
def test_microbatches_are_in_order(first: int, fits: bool) -> None:
    tasks = [task(1, 3), task(2, 3)]
    order = MicrobatchOrder(1, 2)
    begins = Precedence([(first, 3 - first, 0)])
    assert feasible(tasks, [*alone(tasks), order, begins]) is fits


@pytest.mark.parametrize(
    ("which", "start", "fits"),
    [(2, 8, True), (2, 7, False), (2, 9, False), (3, 8, True), (3, 7, False), (3, 9, True)],
)
def test_what_is_absent_takes_the_end_of_the_last_one_there(
    which: int, start: int, fits: bool
) -> None:
    """The first ends at 8; the third waits for it over the absent second one."""
    tasks = [task(1, 3), maybe(2, most=20), task(3, 3)]
    made = variables(tasks)
    made.cp.add(made.choices[CHOICE] == 0)
    made.cp.add(made.start[1] == 5)
    made.cp.add(made.start[which] == start)
    orders = [MicrobatchOrder(None, 1), MicrobatchOrder(1, 2), MicrobatchOrder(2, 3)]
    assert (solved(made, [Operations(tasks), *orders]) is not None) is fits


@pytest.mark.parametrize(("start", "fits"), [(0, True), (1, False)])
def test_what_is_absent_and_first_is_at_the_beginning(start: int, fits: bool) -> None:
    tasks = [maybe(1, most=20)]
    made = variables(tasks)
    made.cp.add(made.choices[CHOICE] == 0)
    made.cp.add(made.start[1] == start)
    assert (solved(made, [Operations(tasks), MicrobatchOrder(None, 1)]) is not None) is fits


def maybe(code: int, most: int) -> Task:
    """A task of 1 tick, or none."""
    return Task(code, 0, 0, most, (TaskMode(code, 1), TaskMode(ABSENT, 0)), CHOICE)
