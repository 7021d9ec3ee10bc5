"""Bounds of a problem without a schedule of it: never above the optimum, and often above others."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.solver.bounds import device_bounds
from ppopt.solver.parameters import SubsetParams
from ppopt.solver.subset_bounding import SubsetBounding
from tests.factories.instances import mixed_cases, tiny_cases
from tests.oracles import exhaustive

TIGHT = Pipeline(stages=4, batches=8, mem_limit=3)
"""Devices of tight memory delay each other, which none shows alone."""


def followed(
    problem: Problem, value: int, first: tuple[tuple[int, ...], ...] = ()
) -> SubsetBounding:
    """The bounding of a problem towards a value, until nothing is left to do."""
    bounding = SubsetBounding(problem, SubsetParams(), first)
    while not bounding.exhausted and bounding.bound < value:
        bounding.run(value, 1.0, lambda: False)
    return bounding


def test_bounds_are_never_above_the_optimum() -> None:
    """Split, whole and mixed backwards, all placements, with and without limits."""
    reached = 0
    for pipeline, fused in tiny_cases(8, 20):
        best = exhaustive.best(pipeline, fused=fused, objective=Objective.MAKESPAN)
        if best is not None:
            problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.uniform(fused=fused))
            bound = followed(problem, best + 5).bound
            assert bound <= best, pipeline
            reached += bound == best
    assert reached > 6
    for pipeline in mixed_cases(8, 8):
        best = exhaustive.best_mixed(pipeline, objective=Objective.MAKESPAN)
        if best is not None:
            problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.MIXED)
            assert followed(problem.reduced, best + 5).bound <= best, pipeline


def test_several_devices_of_tight_memory_need_longer_than_any_alone() -> None:
    problem = Problem(TIGHT, Objective.MAKESPAN, BackwardKind.SPLIT)
    alone = device_bounds.known_bound(problem).value
    ceiling = ceil(2 * alone)
    together = followed(problem, ceiling)
    assert together.bound > alone
    assert len(together.base) > 1


@pytest.mark.parametrize("kind", [BackwardKind.SPLIT, BackwardKind.WHOLE])
def test_the_value_may_fall_between_runs(kind: BackwardKind) -> None:
    """To that of another configuration: bounds of this one reach it, and no more is asked."""
    problem = Problem(replace(TIGHT, mem_limit=2), Objective.MAKESPAN, kind)
    value = device_bounds.known_bound(problem).value + 1
    bounding = SubsetBounding(problem, SubsetParams(), ())
    bounding.run(1000, 1e-9, lambda: False)
    while not bounding.exhausted and bounding.bound < value:
        bounding.run(value, 1.0, lambda: False)
    assert bounding.bound == value


@pytest.mark.parametrize("kind", [BackwardKind.SPLIT, BackwardKind.MIXED])
def test_work_is_counted(kind: BackwardKind) -> None:
    """Also that of a relaxation, which mixed backwards are bounded by."""
    shorter = replace(TIGHT, forward=2, backward=3, backward_input=2, weight=2)
    problem = Problem(shorter, Objective.MAKESPAN, kind)
    bounding = SubsetBounding(problem.reduced, SubsetParams(), ())
    assert bounding.run(10_000, 0.01, lambda: False) > 0


def test_a_subset_that_did_well_before_is_tried_first() -> None:
    problem = Problem(TIGHT, Objective.MAKESPAN, BackwardKind.SPLIT)
    known = followed(problem, 1000)
    second = SubsetBounding(problem, SubsetParams(), [known.base])
    second.run(1000, 1.0, lambda: False)
    assert second.bound >= known.bound
