"""Memory: what is held at once fits into the room of its resource."""

from __future__ import annotations

import pytest

from ppopt.problem.instance import ABSENT
from ppopt.solver.cp_sat.no_overlap import Operations
from ppopt.solver.cp_sat.parts import Held, Memory, Precedence
from ppopt.solver.cp_sat.variables import Task, TaskMode
from tests.solver.cp_sat.models import feasible, solved, task, variables

MOST = 8
TAKERS = [task(1, 1, most=MOST), task(2, 1, most=MOST)]
GIVERS = [task(3, 3, most=MOST), task(4, 3, most=MOST)]
TASKS = [*TAKERS, *GIVERS]
FLOW = Precedence([(1, 3, 0), (2, 4, 0)])
BOTH = [Held(0, 1, 3, 2), Held(0, 2, 4, 2)]
"""Each holds 2 from its start to the end of its giver, for 4 ticks or more."""


@pytest.mark.parametrize(
    ("room", "most", "fits"), [(4, 4, True), (3, 8, True), (3, 7, False), (1, 8, False)]
)
def test_what_does_not_fit_at_once_is_held_in_turn(room: int, most: int, fits: bool) -> None:
    tasks = [one._replace(latest=most - one.modes[0].duration) for one in TASKS]
    assert feasible(tasks, [Operations(tasks), FLOW, Memory(BOTH, {0: room})], most) is fits


def test_room_is_that_of_one_resource() -> None:
    held = [BOTH[0], BOTH[1]._replace(resource=1)]
    tasks = [one._replace(latest=4 - one.modes[0].duration) for one in TASKS]
    assert feasible(tasks, [Operations(tasks), FLOW, Memory(held, {0: 2, 1: 2})], 4)


@pytest.mark.parametrize(("taker", "giver"), [(ABSENT, 3), (1, ABSENT)])
@pytest.mark.parametrize(("room", "fits"), [(4, True), (3, False)])
def test_what_is_held_from_the_beginning_or_until_the_end(
    taker: int, giver: int, room: int, fits: bool
) -> None:
    """The other one is held all the time."""
    held = [Held(0, ABSENT, ABSENT, 2), Held(0, taker, giver, 2)]
    parts = [Operations(TASKS), FLOW, Memory(held, {0: room})]
    assert feasible(TASKS, parts, MOST) is fits


@pytest.mark.parametrize(("first", "fits"), [(True, True), (False, False)])
def test_what_is_held_depends_on_the_mode(first: bool, fits: bool) -> None:
    """The first modes hold 1, the second ones 3, beside 2 all the time."""
    tasks = [Task(1, 0, 0, 4, (TaskMode(1, 2), TaskMode(2, 4)), 7)]
    made = variables(tasks, 8)
    made.cp.add(made.choices[7] == first)
    held = [Held(0, 1, 1, 1, (7, True)), Held(0, 1, 1, 3, (7, False)), Held(0, ABSENT, ABSENT, 2)]
    found = solved(made, [Operations(tasks), Memory(held, {0: 3})])
    assert (found is not None) is fits
