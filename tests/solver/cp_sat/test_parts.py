"""Parts of models: precedence, microbatches, memory, one task at a time, order literals, hints."""

from __future__ import annotations

from typing import Any

import pytest

import ppopt
from ppopt import Objective, Pipeline
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import ABSENT
from ppopt.problem.problem import Problem
from ppopt.solver.cp_sat.device_scope import DeviceScope
from ppopt.solver.cp_sat.model import build_model, hint
from ppopt.solver.cp_sat.no_overlap import NoOverlap, OperationIntervals, Pairs
from ppopt.solver.cp_sat.order_literals import OrderLiterals
from ppopt.solver.cp_sat.parts import Memory, MemoryInterval, MicrobatchOrder, Precedence
from ppopt.solver.cp_sat.variables import Task, TaskMode, Variables
from ppopt.solver.relaxation.pairs import Pair
from tests.solver.cp_sat.models import alone, feasible, solved, task, variables

CHOICE = 7


@pytest.mark.parametrize(("horizon", "fits"), [(9, True), (8, False)])
def test_an_operation_starts_after_the_end_and_the_lag(horizon: int, fits: bool) -> None:
    tasks = [task(1, 3, horizon=horizon), task(2, 4, resource=1, horizon=horizon)]
    assert feasible(tasks, [*alone(tasks), Precedence([(1, 2, 2)])], horizon) is fits


@pytest.mark.parametrize(("first", "fits"), [(False, True), (True, False)])
@pytest.mark.parametrize("if_there", [False, True])
def test_an_operation_that_is_there_waits(first: bool, fits: bool, if_there: bool) -> None:
    """It takes 1 tick from 3 on, past the end of the model; its instant takes none."""
    tasks = [task(1, 3, horizon=3), maybe(2, latest=3)]
    built = variables(tasks, 3)
    built.cp.add(built.choices[CHOICE] == first)
    assert (
        solved(built, [OperationIntervals(tasks), Precedence([(1, 2, 0)], if_there)]) is not None
    ) is fits


@pytest.mark.parametrize(("if_there", "fits"), [(True, True), (False, False)])
def test_the_instant_of_what_is_absent_waits_unless_told(if_there: bool, fits: bool) -> None:
    """It would be one tick past the end of the model."""
    tasks = [task(1, 3, horizon=3), maybe(2, latest=3)]
    built = variables(tasks, 3)
    built.cp.add(built.choices[CHOICE] == 0)
    assert (
        solved(built, [OperationIntervals(tasks), Precedence([(1, 2, 1)], if_there)]) is not None
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
    tasks = [task(1, 3), maybe(2, latest=20), task(3, 3)]
    built = variables(tasks)
    built.cp.add(built.choices[CHOICE] == 0)
    built.cp.add(built.start[1] == 5)
    built.cp.add(built.start[which] == start)
    orders = [MicrobatchOrder(None, 1), MicrobatchOrder(1, 2), MicrobatchOrder(2, 3)]
    assert (solved(built, [OperationIntervals(tasks), *orders]) is not None) is fits


@pytest.mark.parametrize(("start", "fits"), [(0, True), (1, False)])
def test_what_is_absent_and_first_is_at_the_beginning(start: int, fits: bool) -> None:
    tasks = [maybe(1, latest=20)]
    built = variables(tasks)
    built.cp.add(built.choices[CHOICE] == 0)
    built.cp.add(built.start[1] == start)
    assert (
        solved(built, [OperationIntervals(tasks), MicrobatchOrder(None, 1)]) is not None
    ) is fits


def maybe(code: int, latest: int) -> Task:
    """A task of 1 tick, or none."""
    return Task(code, 0, 0, latest, (TaskMode(code, 1), TaskMode(ABSENT, 0)), CHOICE)


# Memory: what is held at once fits into the room of its resource.


HORIZON = 8
TAKERS = [task(1, 1, horizon=HORIZON), task(2, 1, horizon=HORIZON)]
GIVERS = [task(3, 3, horizon=HORIZON), task(4, 3, horizon=HORIZON)]
TASKS = [*TAKERS, *GIVERS]
FLOW = Precedence([(1, 3, 0), (2, 4, 0)])
BOTH = [MemoryInterval(0, 1, 3, 2), MemoryInterval(0, 2, 4, 2)]
"""Each holds 2 from its start to the end of its giver, for 4 ticks or more."""


@pytest.mark.parametrize(
    ("headroom", "horizon", "fits"), [(4, 4, True), (3, 8, True), (3, 7, False), (1, 8, False)]
)
def test_what_does_not_fit_at_once_is_held_in_turn(headroom: int, horizon: int, fits: bool) -> None:
    tasks = [task._replace(latest=horizon - task.modes[0].duration) for task in TASKS]
    assert (
        feasible(tasks, [OperationIntervals(tasks), FLOW, Memory(BOTH, {0: headroom})], horizon)
        is fits
    )


def test_room_is_that_of_one_resource() -> None:
    intervals = [BOTH[0], BOTH[1]._replace(resource=1)]
    tasks = [task._replace(latest=4 - task.modes[0].duration) for task in TASKS]
    assert feasible(tasks, [OperationIntervals(tasks), FLOW, Memory(intervals, {0: 2, 1: 2})], 4)


@pytest.mark.parametrize(("taker", "giver"), [(ABSENT, 3), (1, ABSENT)])
@pytest.mark.parametrize(("headroom", "fits"), [(4, True), (3, False)])
def test_what_is_held_from_the_beginning_or_until_the_end(
    taker: int, giver: int, headroom: int, fits: bool
) -> None:
    """The other one is held all the time."""
    intervals = [MemoryInterval(0, ABSENT, ABSENT, 2), MemoryInterval(0, taker, giver, 2)]
    parts = [OperationIntervals(TASKS), FLOW, Memory(intervals, {0: headroom})]
    assert feasible(TASKS, parts, HORIZON) is fits


@pytest.mark.parametrize(("first", "fits"), [(True, True), (False, False)])
def test_what_is_held_depends_on_the_mode(first: bool, fits: bool) -> None:
    """The first modes allocate 1, the second ones 3; 2 are always live."""
    tasks = [Task(1, 0, 0, 4, (TaskMode(1, 2), TaskMode(2, 4)), 7)]
    built = variables(tasks, 8)
    built.cp.add(built.choices[7] == first)
    intervals = [
        MemoryInterval(0, 1, 1, 1, (7, True)),
        MemoryInterval(0, 1, 1, 3, (7, False)),
        MemoryInterval(0, ABSENT, ABSENT, 2),
    ]
    solver = solved(built, [OperationIntervals(tasks), Memory(intervals, {0: 3})])
    assert (solver is not None) is fits


# No overlap: a resource runs one operation, or one pair, at a time.


@pytest.mark.parametrize(("horizon", "fits"), [(7, True), (6, False)])
def test_a_resource_runs_one_task_at_a_time(horizon: int, fits: bool) -> None:
    tasks = [task(1, 3, horizon=horizon), task(2, 4, horizon=horizon)]
    assert feasible(tasks, alone(tasks), horizon) is fits


def test_resources_do_not_wait_for_each_other() -> None:
    tasks = [task(1, 3, horizon=4), task(2, 4, resource=1, horizon=4)]
    assert feasible(tasks, alone(tasks), 4)


@pytest.mark.parametrize(("horizon", "fits"), [(5, True), (4, False)])
def test_a_pair_runs_as_one(horizon: int, fits: bool) -> None:
    """3 and 4 ticks alone, 5 as one."""
    tasks = [task(1, 3, horizon=horizon), task(2, 4, horizon=horizon)]
    assert feasible(tasks, [Pairs([Pair(1, 2, 5)]), *alone(tasks)], horizon) is fits


@pytest.mark.parametrize(
    ("forward", "horizon", "fits"), [(3, 9, True), (3, 8, False), (5, 8, False)]
)
def test_an_operation_is_in_one_pair_at_most(forward: int, horizon: int, fits: bool) -> None:
    """One of two backwards is alone; with both paired with the F, 5 ticks would do."""
    tasks = [
        task(1, forward, horizon=horizon),
        task(2, 4, horizon=horizon),
        task(3, 4, horizon=horizon),
    ]
    pairs = Pairs([Pair(1, 2, 5), Pair(1, 3, 5)])
    assert feasible(tasks, [pairs, *alone(tasks)], horizon) is fits


# The part of order literals: the memory limit of a device by the order of its operations alone.


ENOUGH = 30


@pytest.mark.parametrize("kind", BackwardKind)
@pytest.mark.parametrize(("headroom", "fits"), [(2, True), (1, False)])
def test_two_forwards_need_room_for_both(kind: BackwardKind, headroom: int, fits: bool) -> None:
    """All backwards come after both forwards, by a constraint of the test."""
    fields: dict[str, Any] = {"backward_input": 1, "weight": 1, "backward": 1, "memory_b": 0}
    problem = Problem(Pipeline(stages=1, batches=2, **fields), Objective.MAKESPAN, kind)
    scope = DeviceScope(problem, frozenset({0}), ENOUGH)
    forwards = [task.code for task in scope.tasks if "F" in task.name]
    backwards = [task.code for task in scope.tasks if "F" not in task.name]
    parts = [
        OperationIntervals(scope.tasks),
        NoOverlap(0),
        Precedence([(forward, backward, 0) for forward in forwards for backward in backwards]),
        OrderLiterals(problem.instance, {0: headroom}, ENOUGH),
    ]
    built = Variables.create(scope.tasks, ENOUGH, (0, ENOUGH))
    assert (solved(built, parts) is not None) is fits


# Hints: a schedule as values of all variables of a model.


@pytest.mark.parametrize("batches", [4, 6])
def test_pairs_of_a_schedule_are_hinted_and_no_others(batches: int) -> None:
    """1F1B with every steady F paired with a BW, which saves time."""
    pipeline = Pipeline(stages=2, batches=batches, forward=2, backward=4, overlap=5)
    schedule = ppopt.evaluate(pipeline, "1f1b-overlap")
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.WHOLE)
    built = build_model(problem, horizon=schedule.metrics.makespan_ticks, bound=0)
    hint(built, schedule)
    hints = built.cp.proto.solution_hint
    value = dict(zip(hints.vars, hints.values, strict=True))
    pairs = built.variables.pairs
    together = {pair[:2] for pair, chosen in pairs.items() if value[chosen.index]}
    rows = [row for row in schedule.rows() if row.pair >= 0]
    codes = {}
    for row in rows:
        code = pipeline.code(row.op.kind, row.op.stage, row.op.microbatch)
        codes.setdefault(row.pair, []).append(code)
    assert len(codes) >= 2
    assert together == {tuple(sorted(pair)) for pair in codes.values()}
