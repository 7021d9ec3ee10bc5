"""The frontier over several placements, against the optimum of every placement at every limit."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache

import ppopt
from ppopt import Pipeline, Status
from ppopt.studies.frontier import Frontier, frontier
from ppopt.studies.frontier_placements import frontier_of_placements, merge

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
        assert baseline.ratio is None or baseline.ratio == baseline.value / best >= 1
    strategies = [baseline.schedule.origin.strategy for baseline in merged.baselines]
    assert {"1f1b", "zbv"} <= set(strategies)
    assert len(strategies) == len(set(strategies))
