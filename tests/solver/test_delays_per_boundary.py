"""Searches where every boundary between stages has delays of its own, each way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ppopt import Objective, Pipeline, Status, Verdict, evaluate, solve, verify
from ppopt.rechecker import check
from ppopt.rechecker.claim import Claim
from tests.factories.instances import tiny_cases
from tests.oracles import bounds, exhaustive


@pytest.mark.parametrize(("objective", "count"), [("makespan", 60), ("device-span", 15)])
def test_the_search_finds_the_least_value_and_proves_it(
    objective: exhaustive.Goal, count: int
) -> None:
    for case in tiny_cases(41, count, ops=14, boundaries=True):
        expected = exhaustive.best(case.pipeline, fused=case.fused, objective=objective)
        found = solve(
            case.pipeline,
            objective=objective,
            backward_kind=case.backward_kind,
            time_limit=600,
        )
        if expected is None:
            assert found.status is Status.INFEASIBLE, case
            continue
        assert found.status is Status.OPTIMAL, case
        assert found.value == case.pipeline.ticks.time(expected), case


def test_no_bound_is_above_the_optimum() -> None:
    for case in tiny_cases(42, 12, ops=bounds.EXHAUSTIVE, boundaries=True):
        best = bounds.optimum(case, Objective.MAKESPAN)
        for sample in bounds.samples(case, Objective.MAKESPAN, best):
            assert sample.sound, sample


def test_the_rechecker_confirms_what_is_least_and_refutes_one_tick_more() -> None:
    for case in tiny_cases(43, 30, boundaries=True, mem_limit=None):
        least = exhaustive.best(case.pipeline, fused=case.fused, objective="makespan")
        claim = Claim(case.pipeline, False, case.backward_kind, least)
        assert check(claim, 20, 1, 1, print).verdict is Verdict.CONFIRMED, case
        more = claim._replace(bound=least + 1)
        assert check(more, 20, 1, 1, print).verdict is Verdict.WRONG, case


def test_one_number_a_list_of_it_and_a_matrix_are_the_same() -> None:
    one = Pipeline(stages=3, batches=4, p2p=2, backward_p2p=1)
    listed = replace(one, p2p=[2, 2], backward_p2p=[1, 1])
    square = replace(one, p2p=[[0, 2, 2], [2, 0, 2], [2, 2, 0]])
    made = [evaluate(pipe, "1f1b") for pipe in (one, listed, square)]
    assert made[0].pipeline.ticks == made[1].pipeline.ticks == made[2].pipeline.ticks
    assert made[0].metrics == made[1].metrics == made[2].metrics
    assert all(verify(each) == [] for each in made)


def test_both_routes_cross_the_boundaries_of_their_stages() -> None:
    """One microbatch a route, three stages of 1 + 2: 9 of work, 5 + 1 down, 5 + 1 up. Device 1
    runs stage 1 of both: F of the second waits 1, and its BW, that much later, 1 more."""
    pipe = Pipeline(stages=3, batches=2, routes=2, p2p=[5, 1])
    assert pipe.ticks.down == pipe.ticks.up == ((5, 1), (5, 1))
    found = solve(pipe, backward_kind="whole", time_limit=600)
    assert found.value == 9 + 12 + 2
