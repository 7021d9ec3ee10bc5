"""A plan improves its best schedules in their own partitions."""

from __future__ import annotations

import signal
from dataclasses import replace
from fractions import Fraction
from math import inf
from random import Random

import pytest

import ppopt
from ppopt import Objective, interrupts, verify
from ppopt.cancellation import seconds_left, within
from ppopt.problem.backward_kind import BackwardKind
from ppopt.schedule.list_scheduling import one_at_a_time
from ppopt.schedule.timing import schedule
from ppopt.solver.choice_of_decisions import choice_of
from ppopt.solver.choices.configuration import Configuration
from ppopt.solver.choices.result import known_result
from ppopt.solver.choices.search import ConfigurationSearch
from ppopt.solver.options import SolveOptions, checked_options
from ppopt.solver.result import Progress, Result
from ppopt.studies.plan_search import PlanSearch
from ppopt.studies.plan_space import PlanSpace


@pytest.fixture
def short_polishing() -> None:
    """As long as for users."""


def test_polishing_betters_the_schedule_of_one_partition() -> None:
    """From one microbatch at a time; the partition stays, and no bound changes."""
    random = Random(0)
    layers = [
        {"forward": random.randint(2, 5), "activation": random.randint(1, 3)} for _ in range(8)
    ]
    space = PlanSpace(
        model=ppopt.Model(layers), devices=4, batches=(6,), placements=("linear",), chunks=(1,),
        recompute=("none",), fields={"mem_limit": 24},
    )  # fmt: skip
    halves: list[Fraction] = []

    def is_halved(state: Progress) -> bool:
        return state.value is not None and any(state.value < half for half in halves)

    options = checked_options(600, 1, stop=is_halved)
    search = PlanSearch(space, Objective.MAKESPAN, BackwardKind.SPLIT, options)
    (candidate,) = search._orders
    pipeline = space.model.pipeline(devices=4, batches=6, partition=[2, 2, 2, 2], mem_limit=24)
    sequential = schedule(pipeline, one_at_a_time(candidate.problem.instance))
    known = known_result(candidate.problem, sequential, checked_options(20, 1))
    inner = search._search
    inner._driver.keep_best(inner._at((0, 2, 2, 2, 2)), known)
    bound, before = candidate.open_bound, candidate.result.value
    halves.append(before / 2)
    with within(600):
        inner.improve()
    assert candidate.open_bound == bound
    assert candidate.result.value < before / 2
    assert candidate.schedule.pipeline.counts == (2, 2, 2, 2)
    assert verify(candidate.schedule) == []


def test_a_plan_depends_on_the_clock_if_its_largest_configuration_is_too_large() -> None:
    """Two chunks have twice the operations of one: 3 x 4 x 16 and 3 x 8 x 16."""
    model = ppopt.Model([{"forward": 1, "activation": 1}] * 8)
    wide = PlanSpace(model=model, devices=4, batches=(16,), recompute=("none",))
    linear = replace(wide, placements=("linear",), chunks=(1,))
    searches = (
        PlanSearch(space, Objective.MAKESPAN, BackwardKind.MIXED, checked_options(60, 1))
        for space in (wide, linear)
    )
    assert [search.by_clock for search in searches] == [True, False]


@pytest.mark.parametrize(("seconds", "share"), [(2, 0.9), (8, 0.5), (80, 0.3)])
def test_the_first_improvement_has_four_seconds_if_possible(
    seconds: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine tenths of the time left in a short plan, three tenths in a long one."""
    model = ppopt.Model([{"forward": 1, "activation": 1}] * 8)
    space = PlanSpace(model=model, devices=4, batches=(32,), recompute=("none",))
    options = checked_options(60, 1)
    search = PlanSearch(space, Objective.MAKESPAN, BackwardKind.MIXED, options)._search
    shares: list[float] = []
    monkeypatch.setattr(search, "improve", lambda: shares.append(seconds_left() / seconds))
    with within(seconds):
        search._improve_before(0)
    assert shares == [pytest.approx(share, abs=0.05)]


def test_the_first_round_of_a_small_plan_leaves_time_for_the_improvement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tenth of the time, if the improvement may have all of it."""
    model = ppopt.Model([{"forward": 1, "activation": 1}] * 8)
    space = PlanSpace(model=model, devices=4, batches=(4,), recompute=("none",))
    search = PlanSearch(space, Objective.MAKESPAN, BackwardKind.MIXED, checked_options(1000, 1))
    inner, lefts = search._search, list[float]()
    inner._params = inner._params._replace(min_improving=1000)

    def end(*_: int, **__: bool) -> int:
        lefts.append(seconds_left())
        return 1

    monkeypatch.setattr(inner, "_search_round", end)
    with within(1000):
        for _ in range(2):
            inner._round(inf)
    assert 0 < lefts[0] <= 100 < lefts[1]


@pytest.mark.parametrize(("workers", "times"), [(1, 1), (2, 4)])
def test_a_small_search_improves_schedules_if_it_may_depend_on_the_clock(
    workers: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one worker a plan does after its first round, and a search of one pipeline never.

    It takes no longer than the search before.
    """
    model = ppopt.Model([{"forward": 1, "activation": 1}] * 8)
    space = PlanSpace(model=model, devices=4, batches=(4,), recompute=("none",))
    options = checked_options(1000, workers)
    of_plan = PlanSearch(space, Objective.MAKESPAN, BackwardKind.MIXED, options)
    problem, lefts = of_plan.set_up.problem, list[float]()
    choice = choice_of(problem)
    assert choice is not None
    alone = ConfigurationSearch(choice, problem, options)
    monkeypatch.setattr(ConfigurationSearch, "improve", lambda _: lefts.append(seconds_left()))
    monkeypatch.setattr(SolveOptions, "spent", 10.0)
    for search in (of_plan._search, alone):
        for level in (0, 1):
            with within(1000):
                search._improve_before(level)
    assert len(lefts) == times
    assert max(lefts) == pytest.approx(10, abs=0.5)


def test_ctrl_c_keeps_what_the_search_of_one_partition_has_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pressed just after a better schedule is found, while one partition is improved."""
    random = Random(1)
    layers = [{"forward": random.randint(20, 60), "activation": 1} for _ in range(14)]
    space = PlanSpace(
        model=ppopt.Model(layers), devices=4, batches=(12,), placements=("v",), recompute=("none",),
        fields={"mem_limit": 16, "p2p": 3},
    )  # fmt: skip
    search = PlanSearch(space, Objective.MAKESPAN, BackwardKind.MIXED, checked_options(20, 1))
    search._search.begin()
    driver, values = search._search._driver, []
    take = driver.keep_best

    def pressed(configuration: Configuration, result: Result) -> None:
        take(configuration, result)
        values.append(result.value)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(driver, "keep_best", pressed)
    with interrupts.recorded():
        with within(5):
            search._search.improve()
        plan = search.plan()
        assert interrupts.pressed()
    assert plan.value == min(values)


@pytest.mark.parametrize(("spent", "seconds"), [(0.5, 4), (30, 30)])
def test_a_small_plan_improves_at_most_as_long_as_it_took_before_or_for_four_seconds(
    spent: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise most of the time limit would pass before the round that proves the optimum."""
    model = ppopt.Model([{"forward": 1, "activation": 1}] * 8)
    space = PlanSpace(model=model, devices=4, batches=(4,), recompute=("none",))
    search = PlanSearch(space, Objective.MAKESPAN, BackwardKind.MIXED, checked_options(1000, 1))
    inner, lefts = search._search, list[float]()
    monkeypatch.setattr(inner, "improve", lambda: lefts.append(seconds_left()))
    monkeypatch.setattr(SolveOptions, "spent", spent)
    for level in (1, 2):
        with within(1000):
            inner._improve_before(level)
    assert lefts == [pytest.approx(seconds, abs=0.5)] * 2
