"""The frontier over several placements, against the optimum of every placement at every limit."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from random import Random
from typing import Any

import pytest

import ppopt
from ppopt import Pipeline, Status
from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver.bound import Bound
from ppopt.solver.options import SolveOptions
from ppopt.solver.warm_start import WarmStart
from ppopt.studies import frontier_problem
from ppopt.studies.frontier import Frontier, FrontierPoint, frontier
from ppopt.studies.frontier_curve import Proved
from ppopt.studies.frontier_problem import FrontierProblem, placement_name
from tests.tiers import first

PLACED = {
    "linear": Pipeline(stages=2, batches=2),
    "v/2": Pipeline(stages=2, batches=2, placement="v"),
}
"""Two devices and two microbatches, in two placements."""


@cache
def parts() -> tuple[Frontier, ...]:
    return tuple(frontier(pipeline, workers=1, time_limit=600) for pipeline in PLACED.values())


def optimum(limit: Fraction) -> Fraction:
    """The best value of any placement within a limit."""
    results = (ppopt.solve(pipeline, mem_limit=limit, workers=1) for pipeline in PLACED.values())
    return min(result.value for result in results if result.value is not None)


def of_all(*pipelines: Pipeline) -> Frontier:
    """The frontier over placements."""
    return frontier(pipelines[0], also=pipelines[1:], workers=1, time_limit=600)


def test_every_point_is_the_optimum_over_all_placements() -> None:
    together = of_all(*PLACED.values())
    assert together.status is Status.OPTIMAL
    assert together.placements == tuple(PLACED)
    limits = sorted({point.limit for part in parts() for point in part.points})
    for limit in limits:
        assert together.at(limit).result.value == optimum(limit)
    for point in together.points:
        assert point.result.status is Status.OPTIMAL and point.limit_proved
        assert point.result.lower_bound == point.result.value
    values = [point.result.value for point in together.points]
    assert values == sorted(set(values), reverse=True)


@pytest.mark.parametrize("weak", PLACED)
def test_a_bound_holds_for_all_placements(weak: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A placement that is bounded only by 1 proves nothing of the other's points."""
    search = frontier_problem.search_from

    def unproved(start: WarmStart, problem: Problem, options: SolveOptions) -> Any:
        result = search(start, problem, options)
        if placement_name(problem.pipeline) != weak or result.lower_bound is None:
            return result
        return replace(
            result,
            status=Status.UNKNOWN,
            bound_ticks=result.pipeline.grid.time,
            value_ticks=None,
            schedule=None,
        )

    monkeypatch.setattr(frontier_problem, "search_from", unproved)
    monkeypatch.setattr(FrontierProblem, "_initial_bound", bounded_by_1)
    together = frontier(
        PLACED["linear"], also=[PLACED["v/2"]], workers=1, time_limit=600, progress=ended(20)
    )
    assert together.status is Status.FEASIBLE
    assert [bound for _, bound in together.bounds] == [1]
    for point in together.points:
        assert point.result.lower_bound == 1 == point.result.schedule.origin.lower_bound
        assert point.result.status is Status.FEASIBLE
        assert point.limit_proved is (point is together.points[0])


def bounded_by_1(space: FrontierProblem) -> Proved:
    """A simple bound instead of that of one device."""
    per_unit = space.problem.pipeline.grid.time
    return Proved(space.limits[-1], Bound(per_unit, "", Certificate(Argument.SEARCH)))


def ended(steps: int) -> Callable[[ppopt.Progress], None]:
    """Progress that presses Ctrl-C at the step of this number."""
    left = iter(range(steps))

    def tell(_: ppopt.Progress) -> None:
        if next(left, None) is None:
            signal.raise_signal(signal.SIGINT)

    return tell


def test_a_placement_without_a_schedule_leaves_the_points_proved() -> None:
    """V puts the first and the last layer, of static memory 3 each, on device 0."""
    layers = [{"forward": 1, "activation": 1, "static": static} for static in (3, 0, 0, 3)]
    model, costs = ppopt.Model(layers), {"devices": 2, "batches": 2, "mem_limit": 5}
    linear, v = model.pipeline(**costs), model.pipeline(**costs, placement="v", chunks=2)
    assert frontier(v, workers=1).status is Status.INFEASIBLE
    together, alone = of_all(linear, v), frontier(linear, workers=1)
    assert together.status is Status.OPTIMAL
    assert list(map(_figures, together.points)) == list(map(_figures, alone.points))


def test_placements_whose_ticks_differ_have_one_grid() -> None:
    """Two chunks of 1 are halves: V needs twice as many ticks as linear stages."""
    linear, v = PLACED.values()
    assert (linear.grid, v.grid) == ((1, 1), (2, 2))
    for order in ((linear, v), (v, linear)):
        together = of_all(*order)
        assert {point.result.pipeline.grid for point in together.points} == {(2, 2)}
        assert list(map(_figures, together.points)) == list(map(_figures, of_all(v, linear).points))


def test_a_baseline_is_compared_with_the_best_of_all_placements() -> None:
    together = of_all(*PLACED.values())
    for baseline in together.baselines:
        best = together.at(baseline.memory).result.value
        assert baseline.ratio is None or baseline.ratio == float(baseline.value / best) >= 1
    strategies = [baseline.schedule.origin.strategy for baseline in together.baselines]
    assert {"1f1b", "zbv"} <= set(strategies)
    assert len(strategies) == len(set(strategies))


@pytest.mark.parametrize("seed", first(1, range(8)))
def test_placements_that_know_each_other_have_the_points_of_each_alone(seed: int) -> None:
    """A limit that another placement closes needs no proof of its own optimum."""
    rng = Random(seed)
    ranges = {"forward": (1, 4), "weight": (1, 3), "backward": (4, 8)}
    fields: dict[str, Any] = {
        name: [rng.randint(*ends) for _ in range(2)] for name, ends in ranges.items()
    }
    pipelines = [
        Pipeline(stages=2, batches=2, placement=placement, p2p=rng.randint(0, 1), **fields)
        for placement in ("linear", "v", "interleaved")
    ]
    alone = [frontier(pipeline, workers=1, time_limit=600) for pipeline in pipelines]
    together = of_all(*pipelines)
    assert together.status is Status.OPTIMAL
    points = sorted((point.limit, point.result.value) for part in alone for point in part.points)
    values = [min(value for known, value in points if known <= limit) for limit, _ in points]
    best = {pair for pair, value in zip(points, values, strict=True) if pair[1] == value}
    undominated = [pair for pair in sorted(best) if not any(
        limit < pair[0] and value <= pair[1] for limit, value in best)]  # fmt: skip
    assert [(point.limit, point.result.value) for point in together.points] == undominated
    for point in together.points:
        assert point.limit_proved and point.result.lower_bound == point.result.value


def _figures(point: FrontierPoint) -> tuple[Any, ...]:
    result = point.result
    return point.limit, result.value, result.lower_bound, result.status, point.limit_proved


def test_a_search_ends_at_the_value_of_another_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bound then reaches that value, and it need not find its own optimum."""
    cutoffs: list[float] = []
    search = FrontierProblem.search

    def recorded(*arguments: Any, cutoff: float, **fields: Any) -> Any:
        cutoffs.append(cutoff)
        schedule = search(*arguments, cutoff=cutoff, **fields)
        values.append(None if schedule is None else schedule.metrics.makespan_ticks)
        return schedule

    values: list[int | None] = []
    monkeypatch.setattr(FrontierProblem, "search", recorded)
    monkeypatch.setattr(FrontierProblem, "_initial_bound", bounded_by_1)
    of_all(*PLACED.values())
    assert cutoffs[1] == values[0] <= cutoffs[0]
