"""Layers that recompute one at a time, beside every schedule of every choice of tiny models."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest

import ppopt
from ppopt import Pipeline, Status
from ppopt.problem.backward_kind import BackwardKind
from tests.oracles import exhaustive
from tests.oracles.configurations import configurations
from tests.oracles.rechecked import assert_proved
from tests.tiers import first

SPLIT, WHOLE, MIXED = BackwardKind.SPLIT, BackwardKind.WHOLE, BackwardKind.MIXED


def draw(rng: Random) -> tuple[Pipeline, BackwardKind]:
    """Up to five layers with workspace and recompute, on one to three stages, in tight memory."""
    kind = rng.choice((SPLIT, WHOLE, WHOLE, MIXED, MIXED))
    stages = rng.choice((1, 2, 2, 2, 3))
    count = stages + rng.randint(1, 2 if kind is MIXED or stages == 3 else 3)
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
            }
        )  # fmt: skip
    most = 9 // (stages * (2 if kind is WHOLE else 3))
    mean = sum(layer["activation"] for layer in layers) / stages  # type: ignore[misc]
    cut = sorted(rng.sample(range(1, count), stages - 1))
    counts = [high - low for low, high in zip([0, *cut], [*cut, count], strict=True)]
    pipeline = Pipeline(
        stages=stages, batches=rng.randint(1, max(1, most)), model=layers,
        partition=rng.choice(("search", counts, counts)), p2p=rng.choice((0, 1)),
        mem_limit=int(mean * rng.uniform(0.7, 1.8)) + 1,
        recompute=rng.choice((None, "full", "search", "search")),
        recompute_unit=rng.choice(("layer", "layer", "layer", "stage")),
    )  # fmt: skip
    return pipeline, kind


def optimum(pipeline: Pipeline, kind: BackwardKind) -> Fraction | None:
    """The least makespan over every configuration and schedule; None: there is none."""
    values = []
    for chosen in configurations(pipeline):
        value = (
            exhaustive.best_mixed(chosen, objective="makespan")
            if kind is MIXED
            else exhaustive.best(chosen, fused=kind is WHOLE, objective="makespan")
        )
        if value is not None:
            values.append(chosen.ticks.time(value))
    return min(values, default=None)


@pytest.mark.parametrize("seed", first(25, range(300)))
def test_value_and_status_are_those_of_every_schedule(seed: int) -> None:
    """The re-checker confirms them, and refutes one tick more."""
    pipeline, kind = draw(Random(seed))
    best = optimum(pipeline, kind)
    found = ppopt.solve(pipeline, backward_kind=kind, workers=1)
    assert found.status is (Status.INFEASIBLE if best is None else Status.OPTIMAL)
    assert found.value == best
    if found.schedule is not None:
        assert ppopt.verify(found.schedule) == []
    assert_proved(found)


def test_the_draw_has_every_kind_of_case() -> None:
    """Feasible and infeasible ones, each with every kind of backward."""
    seen = {(kind, optimum(pipe, kind) is None) for pipe, kind in map(draw, map(Random, range(25)))}
    assert len(seen) == 6
