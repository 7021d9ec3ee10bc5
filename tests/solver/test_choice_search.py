"""The search over configurations: how long each is searched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf
from typing import Any

import pytest

from ppopt import Model, Pipeline, VerificationError
from ppopt.cancellation import scope
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import SEARCH
from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.solver.choice_of_decisions import choice_of
from ppopt.solver.choices import search_tasks
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.configuration import Configuration, SearchedConfigurations
from ppopt.solver.choices.enumeration import Complete, Enumeration, Key, Partial
from ppopt.solver.choices.search import ConfigurationSearch
from ppopt.solver.options import SolveOptions, checked_options
from ppopt.solver.parameters import ConfigurationParams
from ppopt.solver.result import Result, Status
from ppopt.solver.search import search_from
from ppopt.solver.solve import solve


class Forwards(Choice):
    """Pipelines that differ in the time of F."""

    name = "forward"

    def pipeline(self, key: Key) -> Pipeline:
        return Pipeline(stages=2, batches=2, forward=key[0])

    def key(self, pipeline: Pipeline) -> Key:
        return (int(pipeline.costs.forward[0]),)

    def configurations(self, keys: Sequence[Key]) -> Iterable[Configuration]:
        return [Configuration(key, 0) for key in keys]

    def first(self) -> Iterable[Key]:
        return self.listed().members

    def listed(self) -> Enumeration[Key]:
        return Complete([(5,), (4,), (3,)])

    def moves(self, key: Key) -> Iterator[Key]:  # noqa: ARG002
        return iter(())

    def proof(self, search: ConfigurationSearch) -> str:  # noqa: ARG002
        return "tried"


class ManyForwards(Forwards):
    """So many that not all are searched; the slowest is one that the search must keep up with."""

    def listed(self) -> Enumeration[Key]:
        return Partial()

    def first(self) -> Iterable[Key]:
        return [(time,) for time in range(10, 19)]

    def required_candidates(self) -> Sequence[Key]:
        return [(19,)]


def test_an_anchor_is_searched_at_every_level(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though it has the largest value, and only the best few others are searched longer."""
    searched: list[tuple[int, int]] = []

    def watched(start: Any, problem: Problem, options: SolveOptions) -> Result:
        searched.append(
            (int(problem.pipeline.costs.forward[0]), options.params.rounds.max_rounds or 0)
        )
        result = search_from(start, problem, options)
        value = 3 * (result.value_ticks or 0)  # far above all bounds, so that none is ruled out
        return replace(result, status=Status.FEASIBLE, bound_ticks=0, value_ticks=value)

    problem = Problem(Pipeline(stages=2, batches=2), Objective.MAKESPAN, BackwardKind.SPLIT)
    monkeypatch.setattr(search_tasks, "search_from", watched)
    options = checked_options(
        1000, 1, stop=lambda _: max(level for _, level in searched or [(0, 0)]) > 3
    )
    search = ConfigurationSearch(ManyForwards(), problem, options)
    search.search()
    assert searched[0] == (19, 0)
    assert [level for forward, level in searched if forward == 19] == [0, 1, 2, 3]
    assert [level for forward, level in searched if forward == 18] == [0]


def test_a_slow_configuration_leaves_time_for_the_next_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of the first has a quarter of what is left: one that is slow ends, and others follow."""
    limits: list[float] = []

    def watched(start: Any, problem: Problem, options: SolveOptions) -> Result:
        limits.append(options.seconds)
        return search_from(start, problem, options)

    problem = Problem(Pipeline(stages=2, batches=2), Objective.MAKESPAN, BackwardKind.SPLIT)
    monkeypatch.setattr(search_tasks, "search_from", watched)
    result = ConfigurationSearch(Forwards(), problem, checked_options(1000, 1)).run()
    assert result.pipeline.costs.forward == (3, 3)
    assert len(limits) >= 3
    assert all(limit <= 251 for limit in limits[:3])


def test_a_run_ends_with_its_effort_and_the_next_one_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of three configurations one before all rounds, then two more in the first round; bounds by
    subsets wait for the first level."""
    tried: list[tuple[Fraction, int | None]] = []

    def watched(start: Any, problem: Problem, options: SolveOptions) -> Result:
        tried.append((problem.pipeline.costs.forward[0], options.params.rounds.max_rounds))
        return search_from(start, problem, options)

    problem = Problem(Pipeline(stages=2, batches=2), Objective.MAKESPAN, BackwardKind.SPLIT)
    monkeypatch.setattr(search_tasks, "search_from", watched)
    params = ConfigurationParams(first=0)
    search = ConfigurationSearch(Forwards(), problem, checked_options(1000, 1), params=params)
    search.begin()
    assert search.result().pipeline.costs.forward == (5, 5)
    assert tried == [(5, 0)]
    assert search.run(0).pipeline.costs.forward == (3, 3)
    assert [forward for forward, _ in tried] == [5, 4, 3]
    assert search.run().status is Status.OPTIMAL


def test_no_result_is_infeasible_without_a_memory_limit() -> None:
    """One microbatch at a time always runs: whatever says so is a mistake of ours."""
    limited = solve(Pipeline(stages=2, batches=2, mem_limit=Fraction(1, 2)), workers=1)
    assert limited.status is Status.INFEASIBLE
    with pytest.raises(VerificationError, match="without a memory limit: please report it"):
        replace(limited, pipeline=replace(limited.pipeline, mem_limit=None))


def test_a_schedule_from_elsewhere_is_where_its_configuration_begins() -> None:
    """The optimum of one configuration, handed in before any search: the first value found."""
    best = solve(Pipeline(stages=2, batches=2, forward=4), workers=1)
    assert best.schedule is not None
    problem = Problem(Pipeline(stages=2, batches=2), Objective.MAKESPAN, BackwardKind.SPLIT)
    params = ConfigurationParams(first=0)
    search = ConfigurationSearch(Forwards(), problem, checked_options(1000, 1), params=params)
    search.hint(best.schedule)
    search.begin()
    result = search.result()
    assert result.pipeline.costs.forward == (4, 4) and result.value == best.value


def test_an_improvement_searches_the_configurations_of_known_schedules_alone() -> None:
    """4 is not the best of the three; the bounds are those from before."""
    known = solve(Pipeline(stages=2, batches=2, forward=4), workers=1).schedule
    assert known is not None
    problem = Problem(Pipeline(stages=2, batches=2), Objective.MAKESPAN, BackwardKind.SPLIT)
    search = ConfigurationSearch(Forwards(), problem, checked_options(1000, 1), lower_bound=7)
    search.hint(known)
    result = search.run(-1)
    assert result.pipeline.costs.forward == (4, 4) and result.value == known.makespan
    assert (result.status, result.bound_ticks) == (Status.FEASIBLE, 7)


@pytest.mark.parametrize("limit", [None, 30])
@pytest.mark.parametrize(
    "decisions",
    [
        {"partition": SEARCH},
        {"partition": SEARCH, "recompute": SEARCH},
        {"recompute": SEARCH, "offload": SEARCH},
        {"partition": SEARCH, "placement": SEARCH, "recompute": SEARCH},
        {
            "partition": SEARCH,
            "order": SEARCH,
            "microbatch_times": [1, 2, 1, 3],
            "microbatch_memory": 1,
        },
    ],
)
def test_a_late_request_has_a_choice_and_its_proof(
    decisions: dict[str, Any], limit: int | None
) -> None:
    """Neither has a checkpoint: both are there after the end of the scope."""
    layer: dict[str, Any] = {"forward": 1, "activation": 2, "kept": 1}
    layer |= {"offload": {"time": 1}} if "offload" in decisions else {}
    pipeline = Model([layer] * 9).pipeline(devices=3, batches=4, mem_limit=limit, **decisions)
    proof = None
    with scope(-inf) as late:
        choice = choice_of(Problem(pipeline, Objective.MAKESPAN, BackwardKind.MIXED))
        assert choice is not None
        proof = choice.proof(SearchedConfigurations(0))
    assert proof and not late.ended


@pytest.mark.parametrize("limit", [8, 20])
def test_a_search_without_time_has_the_bound_of_its_configurations(limit: int) -> None:
    """Without a round, too: the smaller limit allows no schedule."""
    layer = {"forward": 3, "activation": 4, "static": 1, "recompute": {"time": 1, "activation": 1}}
    pipeline = Pipeline(
        stages=4, batches=6, model=[layer] * 16, mem_limit=limit, partition="balanced",
        recompute=SEARCH,
    )  # fmt: skip
    result = solve(pipeline, time_limit=0.001, workers=1)
    if limit == 8:
        assert result.status is Status.INFEASIBLE
    else:
        assert result.lower_bound is not None
        assert result.lower_bound >= 252


def test_a_cutoff_without_a_schedule_proves_no_infeasibility() -> None:
    """Both configurations are useless below the cutoff; a larger one makes them useful."""
    state = SearchedConfigurations(0, lambda *_: Complete())
    for key in ((3,), (5,)):
        state.add(Configuration(key, key[0]))
    state.cutoff = 2
    state.raise_bound()
    assert (state.finished, state.infeasible, state.lower_bound) == (True, False, 2)
    state.cutoff = 4
    state.raise_bound()
    assert (state.finished, state.infeasible, state.lower_bound) == (False, False, 3)
    for configuration in state.every:
        configuration.impossible = True
    state.raise_bound()
    assert state.infeasible
