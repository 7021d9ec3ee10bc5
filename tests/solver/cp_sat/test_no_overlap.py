"""No overlap: a resource runs one operation, or one pair, at a time."""

from __future__ import annotations

import pytest

from ppopt.solver.cp_sat.no_overlap import Pairs
from ppopt.solver.relaxation.pairs import Pair
from tests.solver.cp_sat.models import alone, feasible, task


@pytest.mark.parametrize(("most", "fits"), [(7, True), (6, False)])
def test_a_resource_runs_one_task_at_a_time(most: int, fits: bool) -> None:
    tasks = [task(1, 3, most=most), task(2, 4, most=most)]
    assert feasible(tasks, alone(tasks), most) is fits


def test_resources_do_not_wait_for_each_other() -> None:
    tasks = [task(1, 3, most=4), task(2, 4, resource=1, most=4)]
    assert feasible(tasks, alone(tasks), 4)


@pytest.mark.parametrize(("most", "fits"), [(5, True), (4, False)])
def test_a_pair_runs_as_one(most: int, fits: bool) -> None:
    """3 and 4 ticks alone, 5 as one."""
    tasks = [task(1, 3, most=most), task(2, 4, most=most)]
    assert feasible(tasks, [Pairs([Pair(1, 2, 5)]), *alone(tasks)], most) is fits


@pytest.mark.parametrize(("forward", "most", "fits"), [(3, 9, True), (3, 8, False), (5, 8, False)])
def test_an_operation_is_in_one_pair_at_most(forward: int, most: int, fits: bool) -> None:
    """One of two backwards is alone; with both beside the F, 5 ticks would do."""
    tasks = [task(1, forward, most=most), task(2, 4, most=most), task(3, 4, most=most)]
    pairs = Pairs([Pair(1, 2, 5), Pair(1, 3, 5)])
    assert feasible(tasks, [pairs, *alone(tasks)], most) is fits
