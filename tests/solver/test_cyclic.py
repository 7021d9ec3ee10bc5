"""Cyclic schedules: unrolled to any length they are valid and within memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ppopt import Objective, Pipeline, verify
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.solver.budget import SolverLimits
from ppopt.solver.heuristics.cyclic import cycle, cycles, least_period
from ppopt.solver.heuristics.operation_network import OperationNetwork
from tests.factories.instances import tiny_cases
from tests.factories.searches import waiting
from tests.solver.test_window_lns import feasible

LIMITS = SolverLimits(60, 1, 0)
ONE_DEVICE = Pipeline(stages=2, batches=4, placement=(0, 0), backward=2, weight=1, mem_limit=2)
"""Two stages of 1/1/1; room for two activations."""


def test_random_cycles_unrolled_are_valid_and_within_memory() -> None:
    """Periods from the busiest device's work to one microbatch at a time, which always does."""
    tight = 0
    for network in feasible(tiny_cases(81, 80, routes=1, overlap=None)):
        problem = network.problem
        least, most = least_period(problem), 3 * sum(map(sum, problem.pipeline.ticks.durations))
        assert cycle(problem, most, LIMITS)[0] is not None
        for period in (least, (3 * least + most) // 4):
            found, _ = cycle(problem, period, LIMITS)
            if found is None:
                continue
            tight += bool(network.tight)
            for batches in (1, problem.pipeline.batches, 7):
                longer = replace(problem, pipeline=replace(problem.pipeline, batches=batches))
                run = OperationNetwork(longer)
                made = run.schedule(found.unroll(run))
                assert verify(made) == []
                assert made.fits_limits
    assert tight > 20


def test_what_an_operation_gives_back_at_its_end_is_held_at_its_start() -> None:
    """Device 0 keeps 1 of a microbatch, and BW takes 6 more; there is room for 8."""
    pipeline = Pipeline(
        stages=2,
        batches=3,
        forward=(10, 4),
        backward=(9, 7),
        weight=0,
        p2p=1,
        activation=(7, 5),
        kept=1,
        static=(6, 3),
        mem_limit=14,
    )
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.WHOLE)
    network = OperationNetwork(problem)
    for period in range(least_period(problem), 60, 4):
        found, _ = cycle(problem, period, LIMITS)
        start = found.unroll(network)
        assert network.keeps_limits(start)
        assert verify(network.schedule(start)) == []


@pytest.mark.parametrize(("limit", "period"), [(2, 6), (1, None), (3, 6)])
def test_one_device_has_a_cycle_of_its_work(limit: int, period: int | None) -> None:
    """F0 F1 B1 W1 B0 W0 takes 6, and room for two activations; for one there is no way at all."""
    problem = Problem(replace(ONE_DEVICE, mem_limit=limit), Objective.MAKESPAN, BackwardKind.SPLIT)
    for tried in (6, 7, 30):
        found, _ = cycle(problem, tried, LIMITS)
        assert (found is None) == (period is None)


def test_the_least_period_in_memory_for_one_microbatch_is_its_whole_way() -> None:
    """Two devices of 1/1/1, a stage each, room for one activation: F F B B and the W of device 0.

    From F to the end of W device 0 holds it for 1 + 1 + 1 + 1 + 1 = 5, so that the next F comes 5
    later; a run of m takes 5 m.
    """
    pipeline = Pipeline(stages=2, batches=6, backward=2, weight=1, mem_limit=1)
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT)
    assert cycle(problem, 4, LIMITS)[0] is None
    found, _ = cycle(problem, 5, LIMITS)
    network = OperationNetwork(problem)
    assert network.value(found.unroll(network)) == 5 * 6


def test_bisection_ends_at_the_least_period_and_repeats_itself() -> None:
    """The period above, where 3 of work is the least thinkable."""
    pipeline = Pipeline(stages=2, batches=6, backward=2, weight=1, mem_limit=1)
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT)
    assert least_period(problem) == 3

    def run() -> list[int]:
        found = cycles(problem, 40, waiting(problem).budget(10.0), lambda: 5)
        return [item.period for item in found]

    periods = run()
    assert periods == sorted(periods, reverse=True)
    assert periods[-1] == 5
    assert run() == periods
