"""Partitions for devices of different speeds, beside the exact optimum of every partition."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest

import ppopt
from ppopt import Objective, Pipeline, Status, Verdict
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.rechecker import check
from tests.oracles import exhaustive
from tests.solver.partitions.over_partitions import over_partitions
from tests.solver.partitions.test_over_partitions import draw, every_choice, least
from tests.tiers import slow

SPEEDS = (1, 2, "0.5", "1.5", 3)


def drawn(seed: int, recompute: str) -> tuple[Pipeline, bool]:
    """A tiny pipeline with a speed for every device."""
    rng = Random(seed)
    pipeline, whole = draw(rng)
    speeds = [rng.choice(SPEEDS) for _ in range(pipeline.num_devices)]
    return replace(pipeline, device_speed=speeds, recompute=recompute), whole


def best_of(pipeline: Pipeline, whole: bool, objective: exhaustive.Goal) -> Fraction | None:
    """The least value of all partitions, and of all choices where recompute is searched."""
    if pipeline.recompute is not None:
        return least(pipeline, whole, objective)
    made = {
        one.partition: replace(pipeline, partition=one.partition) for one in every_choice(pipeline)
    }
    values = (
        (one, exhaustive.best(one, fused=whole, objective=objective)) for one in made.values()
    )
    found = (Fraction(value, one.ticks.per_unit) for one, value in values if value is not None)
    return min(found, default=None)


@pytest.mark.parametrize(("seed", "recompute"), [
    *((seed, "none") for seed in range(200, 206)), *((seed, "search") for seed in range(300, 302)),
    *(slow(seed, "none") for seed in range(206, 216)),
    *(slow(seed, "search") for seed in range(302, 308)),
])  # fmt: skip
def test_value_status_and_proof_are_those_of_every_partition(seed: int, recompute: str) -> None:
    """Confirmed by the re-checker, and one tick more is wrong."""
    pipeline, whole = drawn(seed, recompute)
    objective: exhaustive.Goal = "makespan" if seed % 3 else "device-span"
    best = best_of(pipeline, whole, objective)
    problem = Problem(pipeline, Objective(objective), BackwardKind.uniform(fused=whole))
    bound = over_partitions(problem).bound
    found = ppopt.solve(
        pipeline, backward_kind=BackwardKind.uniform(fused=whole), objective=objective, workers=1
    )
    assert ppopt.recheck(found, workers=1).verdict is Verdict.CONFIRMED
    if best is None:
        assert found.status is Status.INFEASIBLE
        return
    assert bound is not None and bound <= best
    assert found.status is Status.OPTIMAL and found.value == best
    claim = found.claim
    assert claim is not None and claim.bound_time is not None
    tick = Fraction(1, found.pipeline.ticks.per_unit)
    more = claim._replace(bound_time=claim.bound_time + tick)
    assert check(more, 30.0, 1, 1, lambda _: None).verdict is Verdict.WRONG


def test_a_device_of_three_times_the_speed_takes_three_times_the_layers() -> None:
    """Eight equal layers (F 1, B 1, W 1) on devices of speeds 3 and 1: six and two layers.

    Both then work 6 a microbatch; device 1 begins after 2: 2 + 20 x 6.
    """
    model = [{"forward": 1, "backward": 2, "count": 8}]
    given = Pipeline(stages=2, batches=20, model=model, partition="search", device_speed=[3, 1])
    found = ppopt.solve(given, workers=1)
    assert found.status is Status.OPTIMAL and found.pipeline.counts == (6, 2)
    assert found.value == 122
