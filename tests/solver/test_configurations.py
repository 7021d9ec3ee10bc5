"""Searches over partitions and choices of recompute, against every one of them in tiny models.

Value and status are those of the best configuration, each searched exhaustively; the re-checker
confirms them, and refutes one tick more. So are, in part, bounds over all configurations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from ppopt import Objective, Pipeline
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from tests.factories.models import with_ends
from tests.oracles.configurations import least_value
from tests.oracles.rechecked import assert_solved
from tests.solver.partitions import test_over_partitions as both
from tests.solver.partitions.over_partitions import over_partitions
from tests.solver.partitions.test_partition_search import LINKS, pipeline, small_space
from tests.solver.recompute import test_recompute_search as recompute
from tests.tiers import slow

Drawn = tuple[Pipeline, bool | None, bool]
"""A pipeline that leaves something open; whether its backwards are whole (None: either), and
whether it is searched for the device span."""
SPEEDS = (1, 2, "0.5", "1.5", 3)


def of_partitions(rng: Random) -> Drawn:
    space, links = small_space(rng), rng.choice(LINKS)
    return pipeline(space, "search", **links), space.whole, space.span


def of_recompute(rng: Random) -> Drawn:
    drawn, whole = recompute.draw(rng)
    with_roles = rng.random() < 0.4
    return with_ends(drawn, rng) if with_roles else drawn, whole, rng.random() < 0.2


def of_both(rng: Random) -> Drawn:
    drawn, whole = both.draw(rng)
    return with_ends(drawn, rng) if rng.random() < 0.2 else drawn, whole, False


def at_speeds(rng: Random) -> Drawn:
    """On devices that differ; the bound over all partitions is none above the best."""
    drawn, whole = both.draw(rng)
    speeds = [rng.choice(SPEEDS) for _ in range(drawn.num_devices)]
    recomputes = rng.choice(("none", "none", "none", "search"))
    return replace(drawn, device_speed=speeds, recompute=recomputes), whole, rng.random() < 0.3


def in_tight_memory(rng: Random) -> Drawn:
    """Up to five layers with workspace and recompute, on one to three stages, in tight memory."""
    whole = rng.choice((False, True, True, None, None))
    stages = rng.choice((1, 2, 2, 2, 3))
    count = stages + rng.randint(1, 2 if whole is None or stages == 3 else 3)
    layers = []
    for _ in range(count):
        activation = rng.randint(1, 5)
        layers.append(
            {
                "forward": rng.randint(1, 2),
                "backward": 2 * rng.randint(1, 2),
                "activation": activation,
                "workspace": {
                    "F": rng.choice((0, 0, 1)), "B": rng.choice((0, 1, 2)),
                    "W": rng.choice((0, 0, 1)), "BW": rng.choice((0, 1, 3)),
                },
                "recompute": rng.random() < 0.7,
                "recompute_time": rng.randint(0, 2),
                "kept": rng.randint(0, min(2, activation)),
                "frozen": rng.random() < 0.1,
            }
        )  # fmt: skip
    max_batches = 9 // (stages * (2 if whole else 3))
    mean = sum(layer["activation"] for layer in layers) / stages  # type: ignore[misc]
    cut = sorted(rng.sample(range(1, count), stages - 1))
    counts = [high - low for low, high in zip([0, *cut], [*cut, count], strict=True)]
    pipeline = Pipeline(
        stages=stages, batches=rng.randint(1, max(1, max_batches)), model=layers,
        partition=rng.choice(("search", counts, counts)), p2p=rng.choice((0, 1)),
        mem_limit=int(mean * rng.uniform(0.7, 1.8)) + 1,
        recompute=rng.choice((None, "full", "search", "search")),
        recompute_unit=rng.choice(("layer", "layer", "layer", "stage")),
    )  # fmt: skip
    return pipeline, whole, False


DRAWERS = {
    of_partitions: (8, 20),
    of_recompute: (8, 20),
    in_tight_memory: (12, 50),
    of_both: (5, 12),
    at_speeds: (4, 12),
}
"""How many are drawn in the fast tier, and in the whole."""


@pytest.mark.parametrize(
    ("drawn", "seeds"),
    [
        *((drawn, range(fast)) for drawn, (fast, _) in DRAWERS.items()),
        *(slow(drawn, range(fast, whole)) for drawn, (fast, whole) in DRAWERS.items()),
    ],
)
def test_value_status_and_proof_are_those_of_every_configuration(
    drawn: Callable[[Random], Drawn], seeds: range
) -> None:
    kinds = set()
    for seed in seeds:
        pipeline, whole, span = drawn(Random(seed))
        objective = Objective.DEVICE_SPAN if span else Objective.MAKESPAN
        optimum = least_value(pipeline, fused=whole, objective=objective.value)
        assert_solved(pipeline, optimum, whole=whole, span=span)
        kinds.add(optimum is None)
        if drawn is at_speeds and optimum is not None:
            problem = Problem(pipeline, objective, BackwardKind.uniform(fused=bool(whole)))
            bound = over_partitions(problem).bound
            assert bound is not None and bound <= optimum
    assert False in kinds and (drawn is of_recompute or True in kinds)
