"""One grid per input: every pipeline derived from it has whole ticks of the same size."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import pytest

import ppopt
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.grid import Grid
from ppopt.problem.instance import Instance
from ppopt.problem.pipeline import Pipeline
from ppopt.studies.plan_space import PlanSpace

LAYERS = [
    {"forward": 1.5, "backward": 2.25, "activation": 3, "recompute": {"activation": 1}},
    *[{"forward": "0.7", "backward": 2, "activation": 2, "output": "0.3"}] * 6,
    {"forward": 1, "backward": 1.1, "activation": 1},
]
FIELDS: list[dict[str, Any]] = [
    {},
    {"device_speed": [1, 1.5, 0.7, 1], "p2p": "0.13"},
    {"microbatch_times": [1, "0.3", 1, 1.7], "batches": 4},
    {"link": {"latency": "0.01", "bandwidth": 7}},
    {"slices": 3},
]


@pytest.mark.parametrize("fields", FIELDS)
def test_every_configuration_of_a_plan_has_one_grid(fields: dict[str, Any]) -> None:
    """Placements, chunks, recompute and strategies do not change it."""
    rest = {name: value for name, value in fields.items() if name != "batches"}
    space = PlanSpace(
        model=ppopt.Model(LAYERS), devices=4, batches=(fields.get("batches", 6), 4)[-1:],
        recompute=("none", "full"), chunks=(1, 2), partition="balanced", fields=rest,
    )  # fmt: skip
    pipelines = [space.pipeline(configuration) for configuration in space]
    assert len(pipelines) > 5
    assert len({pipeline.grid for pipeline in pipelines}) == 1
    for pipeline in pipelines:
        counts = [1] * pipeline.num_stages
        counts[0] += len(pipeline.model) - pipeline.num_stages
        for cut in (pipeline.with_partition(counts), replace(pipeline, partition="even")):
            ticks = cut.ticks.per_unit, cut.ticks.memory_per_unit
            assert (cut.grid, ticks) == (pipeline.grid, pipeline.grid)


def test_costs_of_stages_lose_nothing() -> None:
    """Against the costs in the user's unit, with speeds, chunks, slices and microbatches."""
    rng = Random(5)
    for _ in range(50):
        devices, slices = rng.randint(1, 3), rng.randint(1, 3)
        costs = {"forward": Fraction(rng.randint(1, 999), 1000), "activation": "0.7"}
        pipeline = Pipeline(
            stages=devices, batches=4, chunks=rng.randint(1, 3), slices=slices,
            device_speed=[Fraction(rng.randint(1, 9), rng.randint(1, 9)) for _ in range(devices)],
            microbatch_times=[rng.choice(("0.3", 1, "1.7")) for _ in range(4)],
            **costs,
        )  # fmt: skip
        parts = slices * pipeline.num_chunks
        for stage, device in enumerate(pipeline.hosts[0]):
            expected = costs["forward"] / parts / pipeline.device_speed[device]
            assert pipeline.ticks.time(pipeline.ticks.durations[0][stage]) == expected
            assert pipeline.ticks.memory(pipeline.ticks.allocates[0][stage]) * parts == Fraction(
                7, 10
            )
        times = Instance.of(pipeline, BackwardKind.WHOLE).times(0)
        alone = pipeline.ticks.durations[0][0]
        assert [*times] == [alone * factor for factor in pipeline.microbatch_times]


def test_limits_are_whole_ticks() -> None:
    pipeline = Pipeline(stages=2, batches=2, mem_limit=["2.5", 2])
    assert (pipeline.grid.memory, pipeline.ticks.limits) == (2, (5, 4))


def test_a_finer_grid_stays() -> None:
    """Times on it are no whole ticks of the coarser one, so the pipelines differ."""
    pipeline = Pipeline(stages=2, batches=2, forward="0.5")
    finer = replace(pipeline, grid=Grid(6, 7))
    assert (pipeline.grid, finer.grid) == (Grid(2, 1), Grid(6, 7))
    assert replace(finer, batches=4).grid == finer.grid
    assert finer != pipeline
    assert finer.spelled_out() != pipeline.spelled_out()
    assert finer.ticks.durations[0] == (3, 3)
