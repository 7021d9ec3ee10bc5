"""Long loops of the search check their deadline: passes over operations, layers of states."""

from __future__ import annotations

from typing import Any

import pytest

import ppopt
from ppopt import Objective, Pipeline
from ppopt.cancellation import within
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.schedule.list_scheduling import one_at_a_time
from ppopt.schedule.timing import schedule
from ppopt.solver.dynamic_programming import states
from ppopt.solver.dynamic_programming.classes import Classes
from ppopt.solver.dynamic_programming.layered import LayeredDP
from ppopt.solver.heuristics.operation_network import PLACED, OperationNetwork
from ppopt.solver.relaxation.device_relaxation import DeviceSubset
from ppopt.solver.relaxation.route_times import RouteTimes
from ppopt.studies.evaluate import objective_value
from tests.clock import stepping_clock
from tests.factories.searches import ended


def split(pipeline: Pipeline) -> Problem:
    return Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT)


@pytest.mark.parametrize("readings", [1, 2, 3])
def test_a_pass_over_operations_ends_at_the_deadline(
    readings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two passes over 6144 operations: four readings of the clock."""
    pipeline = Pipeline(stages=4, batches=512, mem_limit=4)
    problem = split(pipeline)
    orders = one_at_a_time(problem.instance)
    assert orders is not None
    network = OperationNetwork(problem)
    assert PLACED < network.size < 2 * PLACED
    start = network.starts(schedule(pipeline, orders, Objective.MAKESPAN))
    stepping_clock(monkeypatch, 1.0, readings)
    with within(1.0) as scope:
        network.double_justified(start)
    assert scope.ended
    monkeypatch.undo()
    clock = stepping_clock(monkeypatch, 1.0, 100)
    limited = within(1.0)
    before = clock.readings
    with limited:
        justified = network.double_justified(start)
    assert clock.readings == before + 4
    assert justified == network.double_justified(start)


@pytest.mark.parametrize("readings", [1, 5, 20])
def test_a_layer_that_is_not_ended_in_time_is_computed_later(
    readings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has changed nothing: the program has the same optimum."""
    problem = split(
        Pipeline(stages=3, batches=3, forward=(2, 1, 3), backward=4, weight=2, mem_limit=3)
    )
    every = frozenset(range(3))
    subset = DeviceSubset(RouteTimes(problem.instance), every)
    monkeypatch.setattr(states, "WIDE", 1)
    program, cut = LayeredDP(Classes(subset), 100), 0
    while not program.ended:
        layers, width = program.remaining_layers, program.width
        stepping_clock(monkeypatch, 1.0, readings)
        with within(1.0) as scope:
            program.advance()
        if scope.ended:
            cut += 1
            assert (program.remaining_layers, program.width) == (layers, width)
            program.advance()
    assert cut > 0
    assert program.lower_bound == ended(problem, tuple(every), 100).lower_bound


@pytest.mark.parametrize(
    ("fields", "strategy"),
    [
        ({}, "1f1b"),
        ({"mem_limit": "1f1b"}, "1f1b"),
        ({"placement": "interleaved", "chunks": 2}, "interleaved"),
        ({"p2p_time": 1}, "1f1b"),
    ],
)
def test_without_time_the_schedule_is_that_of_the_usual_strategy(
    fields: dict[str, Any], strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1F1B is far better than one microbatch at a time, and takes no longer to build."""
    pipeline = Pipeline(stages=4, batches=64, **fields)
    known = objective_value(ppopt.evaluate(pipeline, strategy), Objective.MAKESPAN)
    stepping_clock(monkeypatch, 1.0, 1)
    result = ppopt.solve(pipeline, time_limit=1.0, workers=1)
    assert result.value is not None and result.value <= known
