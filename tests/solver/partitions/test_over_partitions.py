"""The bound over all partitions and choices of recompute, against every one of tiny models."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from ppopt import Objective, Pipeline
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import Decisions
from ppopt.problem.problem import Problem
from ppopt.solver.partitions.option_bounds import Tradeoff, merged, undominated
from tests.oracles import exhaustive
from tests.oracles.configurations import least_value
from tests.solver.partitions.over_partitions import over_partitions
from tests.tiers import first

OPERATIONS = 12
"""Most operations for exhaustive search."""
PLACEMENTS = ((0, 1), (0, 1), (0, 1, 2), (0, 1, 1, 0), (0, 1, 0, 1))


def draw(rng: Random) -> tuple[Pipeline, bool]:
    """A model of one layer more than stages, with limits at which recompute matters."""
    hosts = rng.choice(PLACEMENTS)
    count, whole = len(hosts) + 1, rng.random() < 0.4
    max_batches = OPERATIONS // (len(hosts) * (2 if whole else 3))
    layers = [
        {
            "forward": rng.randint(1, 3),
            "backward": 2 * rng.randint(1, 2),
            "activation": rng.randint(1, 4),
            "memory_b": rng.choice((0, 0, 1, -1)),
            "workspace": rng.choice((0, 0, 1)),
            "recompute": {"time": rng.randint(0, 2), "activation": rng.randint(0, 1)},
        }
        for _ in range(count)
    ]
    mean = sum(layer["activation"] for layer in layers) / len(set(hosts))  # type: ignore[misc]
    pipeline = Pipeline(
        stages=len(hosts), batches=rng.randint(1, max_batches), placement=hosts, model=layers,
        partition="search", p2p=rng.choice((0, 1)), mem_limit=int(mean * rng.uniform(1, 2.2)),
        recompute="search",
    )  # fmt: skip
    return pipeline, whole


SMALL, LARGE = (1, 2, 3, 4, 7, 8), (0, 5, 6, 9, 10, 11, 12)
"""Seeds of models whose exhaustive search is short, and of larger ones."""


@pytest.mark.parametrize("seed", first(len(SMALL), (*SMALL, *LARGE)))
def test_no_bound_is_above_the_optimum(seed: int) -> None:
    pipeline, whole = draw(Random(seed))
    objective: exhaustive.Goal = "makespan" if seed % 3 else "device-span"
    best = least_value(pipeline, fused=whole, objective=objective)
    problem = Problem(pipeline, Objective(objective), BackwardKind.uniform(fused=whole))
    bounded = over_partitions(problem)
    assert bounded.certificate.decisions == Decisions.PARTITION | Decisions.RECOMPUTE
    if best is None:
        return
    assert bounded.bound is not None and bounded.bound <= best
    mixed = over_partitions(replace(problem, backward_kind=BackwardKind.MIXED))
    assert mixed.bound is not None and mixed.bound <= best
    assert all(bounded.bound <= candidate.bound for candidate in bounded.candidates)


def test_recompute_lowers_the_bound_where_memory_is_what_holds_it_up() -> None:
    """Two layers on two devices, room for one activation: without recompute device 0 takes turns.

    Its F of microbatch 1 waits for the end of W of microbatch 0: F 1, round trip 1 + 1, B and W 2
    are 5 a microbatch, so 20 for four of them, and the last way 1 + 1 + 1 + 1 + 1 is within.
    With recompute (half a unit) it holds nothing but in its backward.
    """
    layer = {"forward": 1, "backward": 2, "activation": 1, "recompute": {"time": "0.5"}}
    pipeline = Pipeline(stages=2, batches=4, model=[layer, layer], partition="search", mem_limit=1)
    bounds = [
        over_partitions(
            Problem(replace(pipeline, recompute=mode), Objective.MAKESPAN, BackwardKind.SPLIT)
        ).bound
        for mode in ("none", "search")
    ]
    assert bounds[0] == 20 and bounds[1] is not None and bounds[1] < 17


def test_nothing_recomputes_without_a_limit() -> None:
    model = [{"forward": 1, "activation": 1, "count": 9}]
    pipeline = Pipeline(stages=3, batches=6, model=model, partition="search")
    none, chosen = (
        over_partitions(
            Problem(replace(pipeline, recompute=mode), Objective.MAKESPAN, BackwardKind.MIXED)
        )
        for mode in ("none", "search")
    )
    assert none.bound == chosen.bound and none.candidates == chosen.candidates


def test_no_partition_fits() -> None:
    """Four layers that keep 1 each, and 3 of static memory, on two devices of 7."""
    model = [
        {"forward": 1, "activation": 4, "static": 3, "count": 4, "recompute": {"activation": 1}}
    ]
    open_pipeline = Pipeline(
        stages=2, batches=2, model=model, partition="search", recompute="search"
    )
    for limit, fits in ((7, False), (20, True)):
        pipeline = replace(open_pipeline, mem_limit=limit)
        bounded = over_partitions(Problem(pipeline, Objective.MAKESPAN, BackwardKind.MIXED))
        assert (bounded.bound is not None) == fits


def test_points_that_are_merged_take_no_longer_and_save_no_less() -> None:
    rng = Random(3)
    points = undominated([Tradeoff(rng.randint(0, 99), rng.randint(0, 99)) for _ in range(200)])
    bounded_points = merged(points, 4)
    assert len(points) > 4 == len(bounded_points) and bounded_points[0] == points[0]
    for point in points:
        assert any(
            merged.time <= point.time and merged.saved >= point.saved for merged in bounded_points
        )
