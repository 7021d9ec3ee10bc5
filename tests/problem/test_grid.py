"""One grid per input: every pipeline derived from it has whole ticks, and times in order."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import pytest

import ppopt
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.strategies import names
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
    """Placements, chunks, recompute and strategies change the ticks, and not the grid."""
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
            assert (cut.grid, cut.grid % cut.ticks.per_unit) == (pipeline.grid, 0)


def test_stages_by_hand_have_one_grid_under_every_strategy() -> None:
    pipeline = Pipeline(stages=4, batches=8, forward="1.3", backward=["2.1", 3, 2, 1], weight=1)
    grids = set()
    for name in names():
        try:
            grids.add(ppopt.evaluate(pipeline, name).pipeline.grid)
        except ppopt.NotApplicableError:
            continue
    assert grids == {pipeline.grid}


def test_times_on_the_grid_are_those_in_the_unit() -> None:
    rng = Random(5)
    for _ in range(100):
        costs = {"forward": Fraction(rng.randint(1, 999), 1000), "backward": rng.randint(1, 9)}
        pipeline = Pipeline(stages=2, batches=2, device_speed=rng.randint(1, 7), **costs)
        schedule = ppopt.evaluate(pipeline, "1f1b")
        ticks = schedule.metrics.value_ticks(Objective.MAKESPAN)
        time = pipeline.on_grid(ticks)
        assert Fraction(time, pipeline.grid) == pipeline.ticks.time(ticks)
        assert [pipeline.off_grid(time + more) for more in (0, 1)] == [ticks, ticks + 1]


def test_a_configuration_on_another_grid_is_equal() -> None:
    """The grid is no content of a pipeline."""
    pipeline = Pipeline(stages=2, batches=2)
    assert replace(pipeline, grid=7 * pipeline.grid) == pipeline
    assert "grid" not in replace(pipeline, grid=7 * pipeline.grid).spelled_out()
