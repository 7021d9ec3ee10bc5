"""Partitions for devices of different speeds, beside the exact optimum of every partition."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

import ppopt
from ppopt import Objective, Pipeline, Status
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from tests.oracles import exhaustive
from tests.oracles.configurations import least_value
from tests.oracles.rechecked import assert_proved
from tests.solver.partitions.over_partitions import over_partitions
from tests.solver.partitions.test_over_partitions import draw
from tests.tiers import slow

SPEEDS = (1, 2, "0.5", "1.5", 3)


def drawn(seed: int, recompute: str) -> tuple[Pipeline, bool]:
    """A tiny pipeline with a speed for every device."""
    rng = Random(seed)
    pipeline, whole = draw(rng)
    speeds = [rng.choice(SPEEDS) for _ in range(pipeline.num_devices)]
    return replace(pipeline, device_speed=speeds, recompute=recompute), whole


@pytest.mark.parametrize(("seed", "recompute"), [
    *((seed, "none") for seed in range(200, 206)), *((seed, "search") for seed in range(300, 302)),
    *(slow(seed, "none") for seed in range(206, 216)),
    *(slow(seed, "search") for seed in range(302, 308)),
])  # fmt: skip
def test_value_status_and_proof_are_those_of_every_partition(seed: int, recompute: str) -> None:
    """Confirmed by the re-checker, and one tick more is wrong."""
    pipeline, whole = drawn(seed, recompute)
    objective: exhaustive.Goal = "makespan" if seed % 3 else "device-span"
    best = least_value(pipeline, fused=whole, objective=objective)
    problem = Problem(pipeline, Objective(objective), BackwardKind.uniform(fused=whole))
    bound = over_partitions(problem).bound
    found = ppopt.solve(
        pipeline, backward_kind=BackwardKind.uniform(fused=whole), objective=objective, workers=1
    )
    assert_proved(found)
    if best is None:
        assert found.status is Status.INFEASIBLE
        return
    assert bound is not None and bound <= best
    assert found.status is Status.OPTIMAL and found.value == best


def test_a_device_of_three_times_the_speed_takes_three_times_the_layers() -> None:
    """Eight equal layers (F 1, B 1, W 1) on devices of speeds 3 and 1: six and two layers.

    Both then work 6 a microbatch; device 1 begins after 2: 2 + 20 x 6.
    """
    model = [{"forward": 1, "backward": 2, "count": 8}]
    given = Pipeline(stages=2, batches=20, model=model, partition="search", device_speed=[3, 1])
    found = ppopt.solve(given, workers=1)
    assert found.status is Status.OPTIMAL and found.pipeline.counts == (6, 2)
    assert found.value == 122
