"""Long runs from the repeated middle of short ones."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from ppopt import Objective, Pipeline, Status, evaluate, solve, verify
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.schedule.list_scheduling import ListScheduler, PriorityRule
from ppopt.schedule.schedule import Schedule
from ppopt.solver import search as solving
from ppopt.solver.budget import Budget
from ppopt.solver.heuristics import steady_state
from ppopt.solver.heuristics.construction import ListScheduling
from ppopt.solver.heuristics.pool import Pool
from ppopt.solver.heuristics.priority_rules import priority_rules
from ppopt.solver.heuristics.steady_state import (
    Section,
    ShortRun,
    ShortRunUnrolling,
    SteadyStatePattern,
)
from ppopt.solver.method import applies
from ppopt.solver.parameters import PoolParams, RoundParams, SolveParams, SteadyStateParams
from ppopt.solver.relaxation.route_times import RouteTimes
from ppopt.solver.result import Result
from ppopt.solver.warm_start import WarmStart
from tests.factories import schedules
from tests.factories.instances import tiny_cases
from tests.factories.searches import Begun, waiting

UNIT = Pipeline(stages=4, batches=16)
SHORT = SteadyStateParams(per_device=(4, 4))
"""Four microbatches per device are a short run: in these tests all is small."""


def problem(pipeline: Pipeline, *, fused: bool = False) -> Problem:
    return Problem(pipeline, Objective.MAKESPAN, BackwardKind.uniform(fused=fused))


def search_of(pipeline: Pipeline) -> Begun:
    """A search that has not begun."""
    return waiting(problem(pipeline), seconds=60)


def searched_once(short: Problem, _: float) -> Result:
    """What a round of all methods finds: open, and of a search with two workers."""
    params = SolveParams(rounds=RoundParams(max_rounds=1))
    result = solve(short.pipeline, workers=1, time_limit=600, params=params)
    return replace(result, provenance=replace(result.provenance, workers=2))


def offer(
    search: Begun,
    solved: Callable[[Problem, float], Result],
    rule: PriorityRule | None = None,
) -> Pool:
    """Repeat the middle of what is solved; return the pool of the search."""
    pool = Pool(search.incumbent.problem, PoolParams())
    short = ShortRunUnrolling(
        pool, lambda problem, seconds: ShortRun(solved(problem, seconds), rule), SHORT
    )
    short.run(search.incumbent, search.budget())
    return pool


@pytest.mark.parametrize(
    "section", [Section(6, 1, 1, 3), Section(5, 2, 3, 6), Section(4, 4, 2, 12)]
)
def test_a_steady_schedule_is_unrolled_without_loss(section: Section) -> None:
    """ZB-H1 at unit costs: the last device waits 3 and works 3 m; 4 activations are enough."""
    short = evaluate(UNIT, "zb-h1")
    assert short.metrics.makespan_ticks == 3 + 3 * 16
    longer = replace(UNIT, batches=301, mem_limit=4)
    schedule = SteadyStatePattern(short, problem(UNIT)).unroll(longer, section)
    assert schedule.metrics.makespan_ticks == 3 + 3 * 301
    assert verify(schedule) == []


def test_whatever_is_repeated_nothing_waits_in_a_circle() -> None:
    """Any schedule, any section, any period, means of several included."""
    rng = Random(61)
    averaged = 0
    for seed, case in enumerate(tiny_cases(61, 40, ops=24, mem_limit=None)):
        batches = case.pipeline.batches
        schedule = schedules.build(case.pipeline, Random(seed), "fused" if case.fused else "split")
        first = rng.randrange(batches)
        size = rng.randint(1, batches - first)
        repeats = rng.randint(1, (batches - first) // size)
        averaged += repeats > 1
        section = Section(first, size, repeats, rng.choice((0, 0.5, 1, 7, 40)))
        longer = replace(case.pipeline, batches=batches + rng.randint(1, 9))
        steady = SteadyStatePattern(schedule, problem(case.pipeline, fused=case.fused))
        timed = timing.schedule(longer, steady.orders(longer, section))
        assert verify(timed) == [], case
    assert averaged > 3


def test_sections_are_judged_by_the_rate_that_they_lead_to() -> None:
    """1 F, 1 B and 1 W per microbatch on every device: no rate is below 3."""
    rated = SteadyStatePattern(evaluate(UNIT, "zb-h1"), problem(UNIT)).ranked(lambda: False)
    assert rated[0][:2] == (False, 3)
    assert rated == sorted(rated)


def test_sections_that_break_the_limit_come_last_and_are_followed() -> None:
    """In ZB-H1 device 0 holds 4: with room for 3 its middle cannot be repeated as it is."""
    tight = replace(UNIT, mem_limit=3)
    short = replace(evaluate(UNIT, "zb-h1"), pipeline=tight)
    assert all(
        section.over for section in SteadyStatePattern(short, problem(tight)).ranked(lambda: False)
    )
    search = search_of(replace(tight, batches=64))
    offered = replace(solve(UNIT, time_limit=2400), schedule=short)
    offer(search, lambda *_: offered)
    assert max(search.incumbent.best.metrics.peak_memory_ticks) == 3


@pytest.mark.parametrize(
    ("fields", "batches"),
    [
        ({"stages": 4, "batches": 4 * 8 * 3}, 32),
        ({"stages": 4, "batches": 4 * 8 * 3 - 1}, None),
        # 24 000 operations are 125 microbatches on 64 devices, which is below 4 per device.
        ({"stages": 64, "batches": 1024}, 256),
        # 3 x 2 x 16 operations per microbatch.
        ({"stages": 16, "batches": 2000, "chunks": 2}, 128),
        ({"stages": 32, "batches": 2000, "chunks": 2}, 128),
    ],
)
def test_how_short_a_short_run_is(fields: dict[str, int], batches: int | None) -> None:
    short = steady_state.short_problem(problem(Pipeline(**fields)))
    assert (None if short is None else short.pipeline.batches) == batches


@pytest.mark.parametrize(
    ("fields", "is_unrolled"),
    [({}, True), ({"routes": 2}, False), ({"slices": 2}, False), ({"overlap": 2}, False)],
)
def test_only_long_runs_of_one_route_without_slices_and_pairs_are_unrolled(
    fields: dict[str, int], is_unrolled: bool
) -> None:
    long = problem(Pipeline(stages=2, batches=2000, **fields))
    pool = Pool(long, PoolParams())
    assert applies(ShortRunUnrolling(pool, lambda _, __: None), long) is is_unrolled


def test_below_the_limit_of_a_steady_state_it_is_verified_and_never_worse() -> None:
    """Room for 3 of 4 activations: construction alone leaves much."""
    pipeline = replace(UNIT, batches=64, mem_limit=3)
    search = search_of(pipeline)
    rules = ListScheduling(Pool(problem(pipeline), PoolParams()))
    while not rules.run(search.incumbent, search.budget()).exhausted:
        pass
    constructed = search.incumbent.value
    offer(search, searched_once)
    assert search.incumbent.value <= constructed
    assert search.incumbent.best.pipeline == pipeline
    assert search.incumbent.best.fits_limits
    assert verify(search.incumbent.best) == []


def test_repeated_alone_it_gives_a_schedule() -> None:
    pipeline = replace(UNIT, batches=64, mem_limit=4)
    search = search_of(pipeline)
    offer(search, lambda short, _: solve(short.pipeline))
    assert search.incumbent.value == 3 + 3 * 64
    assert search.incumbent.closed


def first_rule(pipeline: Pipeline) -> PriorityRule:
    return next(iter(priority_rules(problem(pipeline).instance)))


def test_the_best_rule_of_the_short_run_is_followed() -> None:
    """Its schedule of the long run is there before any rule of the long run is tried."""
    pipeline = replace(UNIT, batches=64, mem_limit=3)
    rule = first_rule(pipeline)
    built = ListScheduler(problem(pipeline).instance).build(rule)
    assert built is not None
    value = built.value(Objective.MAKESPAN)
    search = search_of(pipeline)
    pool = offer(search, searched_once, rule)
    assert pool.rules == [(value, rule)]
    assert search.incumbent.value is not None and search.incumbent.value <= value


def test_a_rule_that_was_followed_is_not_tried_again() -> None:
    pipeline = replace(UNIT, batches=64, mem_limit=3)
    search, pool = search_of(pipeline), Pool(problem(pipeline), PoolParams())
    rule = first_rule(pipeline)
    pool.build(rule, search.incumbent)
    rules = ListScheduling(pool)
    while not rules.run(search.incumbent, search.budget()).exhausted:
        pass
    assert [known for _, known in pool.rules].count(rule) == 1 < len(pool.rules)


def test_sections_of_a_worse_rate_are_not_unrolled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The long run has its optimum already: no section leads to a lower value."""
    pipeline = replace(UNIT, batches=64)
    search = search_of(pipeline)
    search.incumbent.submit(evaluate(pipeline, "zb-h1"))
    assert search.incumbent.closed
    unrolled: list[int] = []
    unroll, short = SteadyStatePattern.unroll, solve(UNIT)

    def counted(self: SteadyStatePattern, longer: Pipeline, section: Section) -> Schedule:
        unrolled.append(longer.batches)
        return unroll(self, longer, section)

    monkeypatch.setattr(SteadyStatePattern, "unroll", counted)
    monkeypatch.setattr(Budget, "search_over", False)
    offer(search, lambda *_: short)
    assert unrolled and 64 not in unrolled


def test_one_worker_repeats_only_what_is_proved() -> None:
    """What a search has found when its time is up differs from run to run. One microbatch at a
    time, 4 F + 4 B + W each, is what there is otherwise."""
    pipeline = replace(UNIT, batches=64, mem_limit=4)

    def solved(status: Status, workers: int) -> int | None:
        def short_run(short: Problem, _: float) -> Result:
            result = solve(short.pipeline)
            provenance = replace(result.provenance, workers=workers)
            return replace(result, status=status, provenance=provenance)

        search = search_of(pipeline)
        offer(search, short_run)
        return search.incumbent.value

    assert solved(Status.FEASIBLE, 1) == 64 * 9
    assert solved(Status.OPTIMAL, 1) == solved(Status.FEASIBLE, 2) == 195


def test_ctrl_c_in_the_short_run_ends_the_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    run_search = solving.run_search
    calls = []

    def interrupted(search: solving.Search, start: WarmStart) -> Result:
        if search.problem.pipeline.batches < 64:
            calls.append(search)
            signal.raise_signal(signal.SIGINT)
        return run_search(search, start)

    monkeypatch.setattr(solving, "run_search", interrupted)
    tight = Pipeline(stages=4, batches=64, forward=10, backward=20, weight=9, p2p=1, mem_limit=3)
    result = solve(tight, time_limit=600, params=SolveParams(steady_state=SHORT))
    assert len(calls) == 1
    assert result.interrupted
    assert result.schedule is not None
    assert verify(result.schedule) == []


# How many microbatches may be between their F and their backward on a stage.


@pytest.mark.parametrize(("limit", "expected"), [(1, 0), (2, 0), (3, 1), (4, 2), (5, 3)])
def test_the_first_backward_starts_beside_all_of_them(limit: int, expected: int) -> None:
    """F keeps 1, and B takes 2: n microbatches and a B that starts need n + 2."""
    pipeline = Pipeline(stages=1, batches=4, activation=1, memory_b=2, mem_limit=limit)
    times = RouteTimes(Instance(pipeline, BackwardKind.SPLIT))
    assert times.max_until_b == [expected]
