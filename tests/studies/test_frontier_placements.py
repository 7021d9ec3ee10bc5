"""The frontier over several placements, against the optimum of every placement at every limit."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from random import Random
from typing import Any

import pytest

import ppopt
from ppopt import Pipeline, Status
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.solver.options import checked_options
from ppopt.strategies import Options
from ppopt.studies.frontier import Frontier, FrontierPoint, FrontierSearch, frontier
from ppopt.studies.frontier_placements import frontier_of_placements, merge
from ppopt.studies.frontier_problem import FixedPipelineProblem
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


def test_every_point_is_the_optimum_over_all_placements() -> None:
    merged = frontier_of_placements(list(PLACED.values()), workers=1, time_limit=600)
    assert merged.status is Status.OPTIMAL
    assert merged.placements == tuple(PLACED)
    limits = sorted({point.limit for part in parts() for point in part.points})
    for limit in limits:
        assert merged.at(limit).result.value == optimum(limit)
    for point in merged.points:
        assert point.result.status is Status.OPTIMAL and point.limit_proved
        assert point.result.lower_bound == point.result.value
    values = [point.result.value for point in merged.points]
    assert values == sorted(set(values), reverse=True)


def test_a_bound_holds_for_all_placements() -> None:
    """A placement that is bounded only by 1 proves nothing of the other's points."""
    linear, v = parts()
    largest = v.bounds[-1][0]
    unproved = replace(
        v, status=Status.FEASIBLE, points=(), baselines=(), bounds=((largest, Fraction(1)),)
    )
    merged = merge([linear, unproved])
    assert merged.status is Status.FEASIBLE
    assert [bound for _, bound in merged.bounds] == [1]
    for point, own in zip(merged.points, linear.points, strict=True):
        assert (point.result.value, point.result.lower_bound) == (own.result.value, 1)
        assert point.result.status is Status.FEASIBLE and not point.limit_proved
        assert point.result.schedule.origin.lower_bound == 1


def test_a_placement_without_a_schedule_leaves_the_points_proved() -> None:
    linear, v = parts()
    infeasible = replace(v, status=Status.INFEASIBLE, points=(), baselines=(), bounds=())
    merged = merge([linear, infeasible])
    assert merged.status is Status.OPTIMAL
    assert [point.result.status for point in merged.points] == [Status.OPTIMAL] * len(linear.points)


def test_a_baseline_is_compared_with_the_best_of_all_placements() -> None:
    merged = merge(parts())
    for baseline in merged.baselines:
        best = merged.at(baseline.memory).result.value
        assert baseline.ratio is None or baseline.ratio == float(baseline.value / best) >= 1
    strategies = [baseline.schedule.origin.strategy for baseline in merged.baselines]
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
    apart = merge([frontier(pipeline, workers=1, time_limit=600) for pipeline in pipelines])
    merged = frontier_of_placements(pipelines, workers=1, time_limit=600)
    assert apart.status is merged.status is Status.OPTIMAL
    assert list(map(_figures, merged.points)) == list(map(_figures, apart.points))


def _figures(point: FrontierPoint) -> tuple[Any, ...]:
    result = point.result
    return point.limit, result.value, result.lower_bound, result.status, point.limit_proved


def test_a_search_ends_at_the_value_of_another_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bound then reaches that value, and it need not find its own optimum."""
    problem = Problem(PLACED["linear"], Objective.MAKESPAN, BackwardKind.MIXED)
    alone = FrontierSearch(problem, checked_options(600, 1), Options())
    alone.set_rivals([(Fraction(0), Fraction(1))])
    searched: list[Fraction | float] = []
    search = FixedPipelineProblem.search

    def recorded(*arguments: Any, **fields: Any) -> Any:
        searched.append(arguments[-1])
        return search(*arguments, **fields)

    monkeypatch.setattr(FixedPipelineProblem, "search", recorded)
    alone.run()
    assert searched == [1]
    assert not alone.is_open
