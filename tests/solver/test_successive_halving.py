"""Successive halving: equal rounds, the better half goes on, the last one to the end."""

from __future__ import annotations

import sys
from math import inf

import pytest

import ppopt
from ppopt import Objective
from ppopt.cancellation import within
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.schedule.list_scheduling import one_at_a_time
from ppopt.schedule.timing import schedule
from ppopt.solver import portfolio
from ppopt.solver.choices import search_tasks
from ppopt.solver.choices.configuration import Configuration, SearchedConfigurations
from ppopt.solver.choices.result import known_result
from ppopt.solver.choices.search import ConfigurationSearch
from ppopt.solver.choices.single import ONLY, SinglePipeline
from ppopt.solver.choices.successive_halving import Contenders, SuccessiveHalving
from ppopt.solver.options import SolveOptions, checked_options
from ppopt.solver.parameters import ConfigurationParams
from ppopt.solver.partitions.partition_choice import PartitionChoice
from ppopt.solver.result import Progress, Result
from ppopt.solver.warm_start import WarmStart


def contenders(*values: int) -> list[Configuration]:
    return [Configuration((index,), 0, value=value) for index, value in enumerate(values)]


def improve(running: list[Configuration]) -> None:
    for each in running:
        assert each.value is not None
        each.value -= 1


def test_rounds_are_equally_long_and_keep_the_better_half() -> None:
    race = SuccessiveHalving(contenders(50, 10, 40, 20, 30), 48.0, min_slice=1.0)
    rounds = []
    for _ in range(4):
        rounds.append(([each.value for each in race.running], race.slice))
        improve(race.running)
        race.halve()
    assert rounds == [
        ([50, 10, 40, 20, 30], 2.4),
        ([9, 19, 29], 4.0),
        ([8, 18], 6.0),
        ([7], inf),
    ]


def test_what_a_round_did_not_improve_ends_unless_nothing_improved() -> None:
    race = SuccessiveHalving(contenders(10, 20, 30, 40, 50), 48.0, min_slice=1.0)
    improve(race.running[2:])
    race.halve()
    assert [each.value for each in race.running] == [29, 39, 49]
    improve(race.running[1:])
    race.halve()
    assert [each.value for each in race.running] == [38, 48]
    race.halve()
    assert [each.value for each in race.running] == [38]


def test_rounds_are_as_long_if_several_are_improved_at_once() -> None:
    race = SuccessiveHalving(contenders(1, 2, 3, 4, 5), 24.0, at_once=2, min_slice=1.0)
    slices = []
    for _ in range(4):
        slices.append((len(race.running), race.slice))
        improve(race.running)
        race.halve()
    assert slices == [(5, 2.0), (3, 3.0), (2, 6.0), (1, inf)]
    assert len(SuccessiveHalving(contenders(1, 2, 3), 4.0, at_once=2, min_slice=1.0).running) == 2


@pytest.mark.parametrize(
    ("seconds", "count"), [(40.0, 5), (20.0, 5), (19.0, 4), (8.0, 2), (1.0, 1)]
)
def test_fewer_run_if_there_is_no_time_for_all(seconds: float, count: int) -> None:
    race = SuccessiveHalving(contenders(1, 2, 3, 4, 5), seconds, min_slice=1.0)
    assert [each.value for each in race.running] == [1, 2, 3, 4, 5][:count]
    assert race.slice == (inf if count == 1 else pytest.approx(max(1.0, seconds / (4 * count))))


def test_the_last_contender_ends_after_a_round_in_vain() -> None:
    assert SuccessiveHalving(contenders(1, 2), 40.0, min_slice=1.0).patience == inf
    assert SuccessiveHalving(contenders(1), 40.0, min_slice=1.0).patience == 10


def test_a_search_alone_ends_once_its_patience_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a better schedule at 2 s and at 4 s, and no better one until 6 s."""
    problem = Problem(ppopt.Pipeline(stages=2, batches=2), Objective.MAKESPAN, BackwardKind.SPLIT)
    options, asked = checked_options(600, 1), list[bool]()

    def watched(start: WarmStart, problem: Problem, options: SolveOptions) -> Result:
        assert options.stop is not None
        for seconds, value in enumerate((None, 99, 99, 98, 98, 98), 1):
            asked.append(options.stop(Progress(seconds, "", value, 0, 1)))
        return known_result(
            problem, schedule(problem.pipeline, orders, Objective.MAKESPAN), options
        )

    orders = one_at_a_time(problem.instance)
    monkeypatch.setattr(search_tasks, "search_from", watched)
    choice = SinglePipeline(problem)
    search = ConfigurationSearch(choice, problem, options)
    task = search._tasks.improvement(search._at(ONLY), inf, patience=1.5)
    search._driver.run(iter([(search._at(ONLY), task)]))
    assert asked == [False, False, False, False, False, True]


def test_no_contender_no_round() -> None:
    assert not SuccessiveHalving([], 10.0, min_slice=1.0).running


def searched(*figures: tuple[int, int]) -> SearchedConfigurations:
    """Configurations with these values and bounds."""
    state = SearchedConfigurations(0)
    for index, (value, bound) in enumerate(figures):
        state.known[(index,)] = Configuration((index,), bound, value=value, level=0)
    state.best = min(state.known.values(), key=lambda each: each.value)
    return state


def numbers(contenders: list[Configuration]) -> list[int]:
    return [each.key[0] for each in contenders]


def test_contenders_are_the_best_and_those_near_by_the_mean_of_value_and_bound() -> None:
    """Means 995, 980, 985, 1100 and, the same pipeline in another group, 980."""
    state = searched((1000, 990), (1060, 900), (1020, 950), (1200, 1000), (1060, 900))
    contenders = Contenders(state, ConfigurationParams())
    assert numbers(contenders.among(state.known.values())) == [1, 0, 2]
    few = Contenders(state, ConfigurationParams(contenders=2))
    assert numbers(few.among(state.known.values())) == [1, 0]
    none_near = Contenders(state, ConfigurationParams(contender_margin=0))
    assert numbers(none_near.among(state.known.values())) == [1, 0]


def test_the_best_has_its_turn_if_another_contender_ends_in_vain() -> None:
    """The bound of the best leaves 1 % to gain, so the next one comes first."""
    state = searched((1000, 990), (1060, 900))
    best, second = state.known.values()
    contenders = Contenders(state, ConfigurationParams(contenders=1))
    assert contenders.among(state.known.values()) == [second]
    contenders.note([second], ended=True)
    assert not contenders.stalled
    assert contenders.among(state.known.values()) == [best]
    contenders.note([best], ended=True)
    assert contenders.stalled and not contenders.among(state.known.values())


def test_only_what_is_new_is_improved_again_and_the_best_until_it_stalls() -> None:
    state = searched((1000, 990), (1010, 980))
    best, second = state.known.values()
    contenders = Contenders(state, ConfigurationParams())
    contenders.note([best, second], ended=False)
    assert not contenders.stalled
    assert numbers(contenders.among(state.known.values())) == [0]
    contenders.note([best], ended=True)
    assert contenders.stalled and not contenders.among(state.known.values())
    state.known[(2,)] = Configuration((2,), 980, value=1005, level=0)
    assert numbers(contenders.among(state.known.values())) == [2]
    best.value = 999
    assert not contenders.stalled


@pytest.mark.parametrize("seconds", [1.0, 4.0])
def test_a_partition_with_a_poor_first_schedule_may_end_as_the_best(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The even one is scheduled one microbatch at a time, the uneven one by its best order.

    An improvement of a second does not import its methods, which takes half a second.
    """
    model = ppopt.Model([{"forward": 2, "activation": 1} for _ in range(4)])
    problem = Problem(
        model.pipeline(devices=2, batches=4, partition=[2, 2]),
        Objective.MAKESPAN,
        BackwardKind.SPLIT,
    )
    choice = PartitionChoice(problem)
    search = ConfigurationSearch(choice, problem, checked_options(600, 1))
    keep(search, ppopt.solve(choice.pipeline((1, 3)), backward_kind="split", workers=1).schedule)
    even = choice.pipeline((2, 2))
    orders = one_at_a_time(Problem(even, Objective.MAKESPAN, BackwardKind.SPLIT).instance)
    keep(search, schedule(even, orders, Objective.MAKESPAN))
    uneven = search.state.value
    assert search.state.best.key == (1, 3)
    monkeypatch.delitem(sys.modules, portfolio.__name__)
    with within(seconds):
        search.improve()
    improves = seconds > 1
    assert (search.state.best.key == (2, 2)) == (search.state.value < uneven) == improves


def keep(search: ConfigurationSearch, known: ppopt.Schedule) -> None:
    """Add a schedule as the result of the search of its partition."""
    options: SolveOptions = checked_options(600, 1)
    problem = Problem(known.pipeline, Objective.MAKESPAN, BackwardKind.SPLIT)
    configuration = search._at(known.pipeline.counts)
    search._driver.keep_best(configuration, known_result(problem, known, options))
