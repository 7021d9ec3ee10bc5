"""Timing of orders, and the same constraints handed to CP-SAT."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from ortools.sat.python import cp_model

from ppopt.errors import DeadlockError, InputError
from ppopt.problem.instance import Instance
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule import timing
from ppopt.schedule.metrics import metrics
from ppopt.schedule.orders import Orders, codes, split_of
from ppopt.schedule.schedule import Schedule
from ppopt.strategies import Options, names, resolve
from ppopt.verifier import verify
from tests.factories.schedules import build, duration_of, durations, pipelines, schedules
from tests.tiers import examples, slow


def cp_sat_value(pipeline: Pipeline, orders: Orders, objective: Objective) -> int:
    """Least value under the same constraints, by CP-SAT instead of longest paths."""
    cp = cp_model.CpModel()
    duration = np.array(durations(pipeline))
    start = {
        int(code): cp.new_int_var(0, 10**7, "")
        for code in codes(np.concatenate(list(orders))).tolist()
    }
    split = split_of(pipeline, orders)
    for order in orders:
        for before, after in pairwise(order.tolist()):
            if after < 0:
                cp.add(start[before] == start[~after])
                both = [pipeline.op(before), pipeline.op(~after)]
                duration[[before, ~after]] = duration_of(pipeline, both)
    flow = Instance.with_backwards(pipeline, split).chosen_flow(split)
    for before, after, lag in zip(*(column.tolist() for column in flow), strict=True):
        cp.add(start[after] >= start[before] + int(duration[before]) + lag)
    value = cp.new_int_var(0, 10**7, "")
    for order in orders:
        listed = codes(order)
        for before, after in zip(listed, order[1:], strict=False):
            if after >= 0:
                cp.add(start[int(after)] >= start[int(before)] + int(duration[before]))
        first = start[int(order[0])] if objective is Objective.DEVICE_SPAN else 0
        cp.add(value >= start[int(listed[-1])] + int(duration[listed[-1]]) - first)
    cp.minimize(value)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(cp) == cp_model.OPTIMAL
    return round(solver.objective_value)


UNEQUAL = {
    "forward": [3, 5, 4, 3],
    "backward": [8, 9, 7, 8],
    "weight": [2, 4, 3, 3],
    "overlap": [9, 13, 10, 10],
    "p2p": [[0, 1, 2, 1], [3, 0, 1, 2], [2, 4, 0, 1], [1, 1, 2, 0]],
}


@pytest.mark.parametrize("objective", [Objective.MAKESPAN, slow(Objective.DEVICE_SPAN)])
@pytest.mark.parametrize("name", names())
def test_cp_sat_times_every_strategy_alike(name: str, objective: Objective) -> None:
    strategy = resolve(name)
    pipeline = strategy.apply(Pipeline(stages=4, batches=8, **UNEQUAL), Options())
    orders = strategy.build(pipeline, Options())
    schedule = timing.schedule(pipeline, orders, objective)
    assert metrics(schedule).value_ticks(objective) == cp_sat_value(pipeline, orders, objective)


@given(schedules(pipelines(different=(False, True))))
def test_earliest_starts_of_any_order_are_valid_and_no_later(drawn: Schedule) -> None:
    schedule = timing.schedule(drawn.pipeline, drawn.orders)
    assert verify(schedule, enforce_limit=False) == []
    assert metrics(schedule).makespan_ticks <= metrics(drawn).makespan_ticks
    for own_order, theirs in zip(schedule.orders, drawn.orders, strict=True):
        assert np.array_equal(own_order, theirs)


@examples(15)
@given(schedules())
def test_least_span_starts_are_valid_and_proved_least(drawn: Schedule) -> None:
    schedule = timing.schedule(drawn.pipeline, drawn.orders, Objective.DEVICE_SPAN)
    assert verify(schedule, enforce_limit=False) == []
    assert schedule.start.min() == 0
    minimum = cp_sat_value(drawn.pipeline, drawn.orders, Objective.DEVICE_SPAN)
    assert metrics(schedule).device_span_ticks == minimum


def test_starts_worked_out_by_hand() -> None:
    """1F1B on two devices, F = 2, BW = 3, link 1: drawn on paper.

    device 0: F0 0-2, F1 2-4, BW0 after BW0 on device 1 (3-5 F0, 5-8 BW0) + 1 = 9-12, ...
    """
    pipe = Pipeline(stages=2, batches=2, forward=2, backward=3, p2p=1)
    strategy = resolve("1f1b")
    schedule = timing.schedule(pipe, strategy.build(strategy.apply(pipe, Options()), Options()))
    assert [(str(row.op), row.start, row.end) for row in schedule.rows()] == [
        ("0F0", 0, 4),
        ("0F1", 4, 8),
        ("0BW0", 18, 24),
        ("0BW1", 28, 34),
        ("1F0", 6, 10),
        ("1BW0", 10, 16),
        ("1F1", 16, 20),
        ("1BW1", 20, 26),
    ]  # ticks are halves: W = 1.5


def test_a_deadlock_names_its_cycle() -> None:
    pipe = Pipeline(stages=2, batches=2)
    code = pipe.code
    forward, full = OpKind.F, OpKind.BW
    orders = [
        np.array([code(forward, 0, 0), code(full, 0, 0), code(forward, 0, 1), code(full, 0, 1)]),
        np.array([code(forward, 1, 0), code(forward, 1, 1), code(full, 1, 0), code(full, 1, 1)]),
    ]
    with pytest.raises(DeadlockError) as caught:
        timing.schedule(pipe, orders)
    assert_is_cycle(pipe, orders, caught.value)


def assert_is_cycle(pipe: Pipeline, orders: Orders, error: DeadlockError) -> None:
    """Every step of the cycle is a constraint of the data flow or of a device's order."""
    split = split_of(pipe, orders)
    flow = Instance.with_backwards(pipe, split).chosen_flow(split)
    steps = set(zip(flow.before.tolist(), flow.after.tolist(), strict=True))
    for order in orders:
        steps |= set(product_of_later(order.tolist()))
    cycle = [pipe.code(*op) for op in error.cycle]
    assert len(set(cycle)) == len(cycle) >= 2
    for before, after in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        assert (before, after) in steps


def product_of_later(order: list[int]) -> list[tuple[int, int]]:
    return [(a, b) for i, a in enumerate(order) for b in order[i + 1 :]]


def test_shuffled_orders_run_or_name_a_cycle() -> None:
    rng = Random(7)
    deadlocks = 0
    for _ in range(60):
        pipe = Pipeline(stages=rng.choice([2, 3]), batches=3, chunks=rng.choice([1, 2]))
        orders = [order.copy() for order in build(pipe, rng, paired=False).orders]
        for _ in range(rng.randint(1, 6)):
            order = rng.choice(orders)
            position = rng.randrange(len(order) - 1)
            order[[position, position + 1]] = order[[position + 1, position]]
        try:
            assert verify(timing.schedule(pipe, orders)) == []
        except DeadlockError as error:
            deadlocks += 1
            assert_is_cycle(pipe, orders, error)
    assert 10 < deadlocks < 50


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda orders: [orders[0][1:], orders[1]], "stage 0 microbatch 0: the orders hold 0 F"),
        (lambda orders: [np.append(orders[0], orders[0][0]), orders[1]], "stage 0 microbatch 0"),
        (lambda orders: [orders[1], orders[0]], "device 0: 1F0 is in its order"),
        (lambda orders: orders[:1], "1 orders for 2 devices"),
    ],
)
def test_incomplete_orders_are_refused(change, message: str) -> None:
    pipe = Pipeline(stages=2, batches=2)
    strategy = resolve("1f1b")
    orders = strategy.build(strategy.apply(pipe, Options()), Options())
    with pytest.raises(InputError, match=message):
        timing.schedule(pipe, change(orders))


def test_many_microbatches_do_not_recurse() -> None:
    pipe = Pipeline(stages=64, batches=64)
    strategy = resolve("gpipe")
    schedule = timing.schedule(pipe, strategy.build(replace(pipe, chunks=1), Options()))
    assert metrics(schedule).makespan_ticks == (64 + 64 - 1) * 3
