"""Cyclic schedules: unrolled to any length they are valid and within memory."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from ppopt import Objective, Pipeline, verify
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.schedule.schedule import Schedule
from ppopt.solver.budget import SolverLimits
from ppopt.solver.heuristics.cyclic_schedules import Cycle, CyclicSchedules, min_period, search
from ppopt.solver.heuristics.pool import Pool
from ppopt.solver.heuristics.window_lns import WindowLNS
from ppopt.solver.parameters import CyclicParams, PoolParams, WindowParams
from tests.clock import SHORT, work_clock
from tests.factories.instances import tiny_cases
from tests.factories.searches import begun
from tests.solver.test_window_lns import feasible

LIMITS = SolverLimits(60, 1, 0)
PARAMS = CyclicParams()
ONE_DEVICE = Pipeline(stages=2, batches=4, placement=(0, 0), backward=2, weight=1, mem_limit=2)
"""Two stages of 1/1/1; memory for two activations."""
ONE_LIVE = Pipeline(stages=2, batches=6, backward=2, weight=1, mem_limit=1)
"""Two devices of 1/1/1; memory for one activation."""
LONG_W = Pipeline(
    stages=8, batches=32, forward=10, backward_input=10, weight=14, p2p=2, mem_limit=6
)


def instance_of(pipeline: Pipeline) -> Instance:
    return Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT).instance


def unrolled(cycle: Cycle, problem: Problem, batches: int) -> Schedule:
    pipeline = replace(problem.pipeline, batches=batches)
    longer = replace(problem, pipeline=pipeline)
    return timing.schedule(pipeline, cycle.orders(longer.instance), problem.objective)


def test_random_cycles_unrolled_are_valid_and_within_memory() -> None:
    """Also with fewer microbatches than a cycle has, and with part of a cycle at the end."""
    tight = 0
    for network in feasible(tiny_cases(81, 20, routes=1, overlap=None)):
        problem = network.problem
        low = min_period(problem.instance)
        high = 3 * sum(map(sum, problem.pipeline.ticks.durations))
        assert search(problem.instance, 1, high, LIMITS, PARAMS)[0] is not None
        for size, ticks in ((1, low), (2, low), (2, (3 * low + high) / 4)):
            cycle, *_ = search(problem.instance, size, ticks, LIMITS, PARAMS)
            if cycle is None:
                continue
            tight += bool(network.tight)
            for batches in (1, problem.pipeline.batches, 7):
                schedule = unrolled(cycle, problem, batches)
                assert verify(schedule) == []
                assert schedule.fits_limits
    assert tight > 6


@pytest.mark.parametrize("frozen", [(True, True, False, False), (False, True, False, True)])
@pytest.mark.parametrize("kind", [BackwardKind.SPLIT, BackwardKind.WHOLE])
def test_frozen_stages_have_no_operation_of_weights(
    frozen: tuple[bool, ...], kind: BackwardKind
) -> None:
    pipeline = Pipeline(
        stages=4, batches=20, forward=3, backward=6, weight=3, p2p=1, mem_limit=3, frozen=frozen
    )
    problem = Problem(pipeline, Objective.MAKESPAN, kind)
    cycle, *_ = search(problem.instance, 2, 2 * min_period(problem.instance), LIMITS, PARAMS)
    assert cycle is not None
    schedule = unrolled(cycle, problem, 20)
    assert verify(schedule) == []
    assert schedule.fits_limits


def test_a_cycle_takes_its_period() -> None:
    """The makespan grows by at most a period per cycle, however many there are."""
    problem = Problem(LONG_W, Objective.MAKESPAN, BackwardKind.SPLIT)
    cycle, *_ = search(problem.instance, 2, 36, LIMITS, PARAMS)
    assert cycle is not None and cycle.period == 72
    makespans = [unrolled(cycle, problem, batches).makespan for batches in (40, 42, 60)]
    assert makespans[1] - makespans[0] == 72
    assert makespans[2] - makespans[1] == 9 * 72


def has_cycle_of_one(stages: list[tuple[int, int, int]], p2p: int, limit: int, period: int) -> bool:
    """Whether stages of (F, B, W), memory freed at W, have a cycle of one microbatch.

    From the last stage up: B ends as early after the start of F as its device permits, because a
    delay is always possible. On the circle of a period B starts after F, and W is between F and B
    or after B.
    """
    below = 0
    for index, (forward, backward, weight) in enumerate(reversed(stages)):
        earliest = below + forward + backward + (2 * p2p if index else 0)
        ways = (
            (forward, period - backward - weight, 0),
            (forward + weight, period - backward, period),
        )
        ends = []
        for first, last, later in ways:
            for turn in range(earliest // period + 2):
                start = max(first + turn * period, earliest - backward)
                if start <= last + turn * period:
                    freed = start + backward + weight
                    if later:
                        freed = (turn + 1) * period + forward + weight
                    if freed <= limit * period:
                        ends.append(start + backward)
        if not ends:
            return False
        below = min(ends)
    return True


def test_cycles_of_one_microbatch_exist_where_a_device_after_the_other_finds_them() -> None:
    rng, existing = Random(5), 0
    for _ in range(14):
        stages = [tuple(rng.randint(1, 6) for _ in range(3)) for _ in range(rng.randint(2, 4))]
        p2p, limit = rng.randint(0, 2), rng.randint(1, len(stages))
        forward, backward, weight = (list(times) for times in zip(*stages, strict=True))
        pipeline = Pipeline(
            stages=len(stages),
            batches=4,
            forward=forward,
            backward_input=backward,
            weight=weight,
            p2p=p2p,
            mem_limit=limit,
        )
        instance = instance_of(pipeline)
        for period in range(min_period(instance), min_period(instance) + 12):
            cycle, *_ = search(instance, 1, period, LIMITS, PARAMS)
            assert (cycle is not None) == has_cycle_of_one(stages, p2p, limit, period)
            existing += cycle is not None
    assert 35 < existing < 140


def test_two_microbatches_per_period_need_less_time_each() -> None:
    """One per period needs 44 ticks, two 36 each."""
    instance = instance_of(LONG_W)
    assert search(instance, 1, 43, LIMITS, PARAMS)[0] is None
    assert search(instance, 2, 36, LIMITS, PARAMS)[0] is not None
    assert not has_cycle_of_one([(10, 10, 14)] * 8, 2, 6, 43)
    assert has_cycle_of_one([(10, 10, 14)] * 8, 2, 6, 44)


def test_short_turns_end_with_the_cycle_of_a_long_one() -> None:
    pipeline = Pipeline(
        stages=4, batches=16, forward=10, backward_input=10, weight=14, p2p=2, mem_limit=3
    )
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT)

    def value(amount: float) -> int | None:
        started = begun(problem)
        method = CyclicSchedules(Pool(problem, PoolParams()), Random(3), PARAMS)
        assert method.supports(problem)
        while not method.run(started.incumbent, started.budget(amount)).exhausted:
            pass
        return started.incumbent.value

    assert value(1000.0) == value(0.1)


def test_window_lns_improves_a_worse_alternative_too() -> None:
    """The alternative runs one microbatch after the other, the best schedule is a cyclic one."""
    problem = Problem(LONG_W, Objective.MAKESPAN, BackwardKind.SPLIT)
    pool, started = Pool(problem, PoolParams()), begun(problem)
    assert started.incumbent.best is not None
    assert started.incumbent.value is not None
    slow = started.incumbent.value, pool.network.starts(started.incumbent.best)
    CyclicSchedules(pool, Random(3), PARAMS).run(started.incumbent, started.budget())
    assert pool.alternative is None
    pool.alternative = slow
    with work_clock(SHORT):
        WindowLNS(pool, Random(3), WindowParams()).run(started.incumbent, started.budget(0.3))
    assert pool.alternative is not None
    assert started.incumbent.value < pool.alternative[0] < slow[0]


@pytest.mark.parametrize(("limit", "exists"), [(2, True), (1, False), (3, True)])
def test_one_device_has_a_cycle_of_its_work(limit: int, exists: bool) -> None:
    """F0 F1 B1 W1 B0 W0 takes 6 with memory for two activations; with less nothing is feasible."""
    instance = instance_of(replace(ONE_DEVICE, mem_limit=limit))
    assert min_period(instance) == 6
    for ticks in (6, 7, 30):
        assert (search(instance, 1, ticks, LIMITS, PARAMS)[0] is not None) == exists


def test_with_memory_for_one_microbatch_the_period_is_its_latency() -> None:
    """F F B B and the W of device 0: the next F starts 5 later, and a run of 6 takes 30."""
    problem = Problem(ONE_LIVE, Objective.MAKESPAN, BackwardKind.SPLIT)
    for size in (1, 2):
        assert search(problem.instance, size, 4, LIMITS, PARAMS)[0] is None
        cycle, *_ = search(problem.instance, size, 5, LIMITS, PARAMS)
        assert cycle is not None
        assert unrolled(cycle, problem, 6).makespan == 30


def test_memory_that_a_backward_frees_is_live_at_its_start() -> None:
    """Device 0 retains 1 of a microbatch, and BW allocates 6 more; the limit leaves 8."""
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
    for ticks in range(min_period(problem.instance), 60, 4):
        cycle, *_ = search(problem.instance, 1, ticks, LIMITS, PARAMS)
        if cycle is not None:
            schedule = unrolled(cycle, problem, 3)
            assert verify(schedule) == []
            assert schedule.fits_limits
    assert cycle is not None
