"""Windows over orders and modes of operations: valid, within limits, complete if they say so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from ppopt import Objective, Pipeline, Schedule, evaluate, solve, verify
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.operation import OpKind
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.solver.budget import SolverLimits
from ppopt.solver.heuristics.operation_network import OperationNetwork
from ppopt.solver.heuristics.window import SemiActiveSchedule, Window
from ppopt.solver.parameters import RoundParams, SolveParams
from tests.factories.instances import mixed_cases
from tests.factories.schedules import build
from tests.oracles import exhaustive

LIMITS = SolverLimits(60, 1, 0)


def mixed(pipeline: Pipeline) -> Problem:
    return Problem(pipeline, Objective.MAKESPAN, BackwardKind.MIXED)


def schedules(seed: int, count: int, ops: int) -> Iterator[Schedule]:
    """Random mixed schedules of tiny pipelines without operations of no length, within limits."""
    rng = Random(seed)
    for drawn in mixed_cases(seed, count, ops=ops):
        longer = {
            field: [max(drawn.num_chunks, time) for time in getattr(drawn, field)]
            for field in ("forward", "backward_input", "weight", "backward")
        }
        schedule = build(replace(drawn, **longer), rng, "mixed", paired=False)
        if schedule.fits_limits:
            yield schedule


def settled(schedule: Schedule) -> SemiActiveSchedule:
    """A schedule at its earliest starts."""
    network = OperationNetwork(mixed(schedule.pipeline))
    return SemiActiveSchedule.of(network, network.starts(schedule))


def timed(schedule: SemiActiveSchedule) -> Schedule:
    """The schedule, as the search submits it."""
    return schedule.network.schedule(schedule.start)


def reordered(window: Window) -> SemiActiveSchedule | None:
    """The schedule with what a window finds, if it finds any."""
    outcome = window.reoptimise(LIMITS)
    if outcome.order is None:
        return None
    order = list(window.schedule.order)
    order[window.first : window.after] = outcome.order
    return window.schedule.changed(order, outcome.flips)


def test_a_network_keeps_the_schedule() -> None:
    """Same kinds of backwards, same value at earliest starts, and flips there and back.

    Times are the earliest for the orders, and the starts of what is there say all.
    """
    both = 0
    for schedule in schedules(81, 60, 24):
        current = settled(schedule)
        retimed = timed(current)
        kinds = [sorted(timed_schedule.kind.tolist()) for timed_schedule in (schedule, retimed)]
        assert kinds[0] == kinds[1]
        assert verify(retimed) == []
        assert current.value == retimed.metrics.makespan_ticks <= schedule.metrics.makespan_ticks
        both += {OpKind.B, OpKind.BW} <= set(kinds[0])
        orders = timing.schedule(retimed.pipeline, retimed.orders, Objective.MAKESPAN)
        assert orders == retimed
        present = current.network.without_absent(current.start)
        network = OperationNetwork(mixed(retimed.pipeline))
        assert SemiActiveSchedule.of(network, present).start == current.start
        flipped = current.changed(current.order, range(current.network.choices))
        assert flipped.changed(flipped.order, range(current.network.choices)).value == current.value
    assert both > 4


def test_a_window_over_all_operations_is_the_whole_problem() -> None:
    """The optimum over all orders and all choices; a second window finds nothing below it."""
    improved = 0
    for schedule in schedules(82, 30, 12):
        best = exhaustive.best_mixed(schedule.pipeline, objective="makespan")
        current = settled(schedule)
        order = reordered(Window(current, 0, current.network.size))
        if order is None:
            assert current.value == best
            continue
        improved += 1
        assert order.value == best
        assert reordered(Window(order, 0, order.network.size)) is None
    assert improved > 4


@pytest.mark.parametrize(("slot", "value"), [(1, 9), (0, None)])
def test_a_window_of_one_backward_splits_it_where_that_is_shorter(
    slot: int, value: int | None
) -> None:
    """F, F, BW of 6 and BW of 6 take 14 ticks; with B of 1 at stage 1, BW of stage 0 ends at 9.

    Splitting BW of stage 0 alone gains nothing.
    """
    pipeline = Pipeline(stages=2, batches=1, forward=1, backward_input=1, weight=5, backward=6)
    current = settled(evaluate(pipeline, "1f1b"))
    backward, weight = (row * current.network.choices + slot for row in (1, 2))
    first = current.position[backward]
    assert current.position[weight] == first + 1
    order = reordered(Window(current, first, first + 2))
    assert (order and order.value) == value
    assert order is None or timed(order).metrics.makespan_ticks == value


def test_what_windows_find_is_valid_within_limits_and_better() -> None:
    rng, improved, flips = Random(83), 0, 0
    for schedule in schedules(83, 50, 40):
        current = settled(schedule)
        size = current.network.size
        first, after = rng.randrange(size // 2), size - rng.randrange(size // 2)
        window = Window(current, first, after)
        order = reordered(window)
        if order is None:
            continue
        improved += 1
        flips += int((order.network.modes != current.network.modes).any())
        reordered_schedule = timed(order)
        assert verify(reordered_schedule) == []
        assert reordered_schedule.fits_limits
        assert reordered_schedule.metrics.makespan_ticks == order.value < current.value
    assert improved > 5
    assert flips > 2


@pytest.mark.slow
def test_the_search_is_better_than_either_kind_alone() -> None:
    """In so many rounds of all heuristics."""
    pipeline = Pipeline(
        stages=4,
        batches=8,
        forward=(9, 12, 8, 10),
        backward_input=(12, 9, 13, 8),
        weight=(6, 11, 7, 10),
        backward=(14, 16, 16, 14),
        activation=4,
        memory_b=1,
        mem_limit="1f1b",
    )
    params = SolveParams(without=frozenset({"full model"}), rounds=RoundParams(max_rounds=3))
    mixed, split, whole = (
        solve(pipeline, backward_kind=kind, workers=1, time_limit=120, params=params).value
        for kind in ("mixed", "split", "whole")
    )
    assert split is not None
    assert whole is not None
    assert mixed < min(split, whole)
