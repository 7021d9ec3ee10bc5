"""The whole backward in W of the first stage, as PyTorch runs it, for models in layers."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from ppopt import Layer, Model, Pipeline, evaluate, plan, recheck, solve, verify
from ppopt.errors import InputError
from ppopt.formats.schedule_json import read_schedule
from ppopt.problem.operation import OpKind

MODEL = Model(
    layers=[
        Layer(
            forward=1,
            backward=5,
            weight=2,
            activation=3,
            memory_b=1,
            workspace=4,
            recompute={"activation": 1, "time": 2},
            count=2,
        ),
        Layer(forward=2, backward=4, weight=1, activation=2),
        Layer(forward=1, backward=3, weight=1, activation=1),
    ]
)


def pipeline_of(**fields: object) -> Pipeline:
    defaults = {"devices": 2, "batches": 4, "partition": (2, 2), "recompute": "none"}
    return MODEL.pipeline(**(defaults | {"first_backward": "weight"} | fields))


def test_costs_of_the_first_stage_alone_change() -> None:
    """Two layers of F 1, B 3, W 2, BW 5: B takes nothing, W the 10 of both BW."""
    plain, whole = pipeline_of(first_backward="split"), pipeline_of()
    kinds = (OpKind.F, OpKind.B, OpKind.W, OpKind.BW)
    assert [plain.ticks.durations[kind] for kind in kinds] == [(2, 3), (6, 5), (4, 2), (10, 7)]
    assert [whole.ticks.durations[kind] for kind in kinds] == [(2, 3), (0, 5), (10, 2), (10, 7)]
    assert (plain.costs.memory_b, whole.costs.memory_b) == ((2, 0), (0, 0))
    assert [whole.ticks.workspace[kind][0] for kind in kinds] == [4, 0, 4, 4]
    assert whole.costs.static == plain.costs.static
    assert whole.costs.activation == plain.costs.activation


def test_recompute_is_part_of_w() -> None:
    """Recompute of 2 for each of two layers."""
    whole = pipeline_of(recompute="full", partition=(2, 2))
    assert whole.ticks.durations[OpKind.W][0] == 10 + 4
    assert whole.ticks.durations[OpKind.BW][0] == 10 + 4
    assert whole.ticks.durations[OpKind.B][0] == 0


def test_it_is_that_of_stages_with_these_costs(tmp_path: Path) -> None:
    result = solve(pipeline_of(mem_limit=12), workers=1, time_limit=600)
    stages = result.pipeline.without_model()
    assert stages.costs == result.pipeline.costs
    same = solve(stages, workers=1, time_limit=600)
    assert (result.status, result.value) == (same.status, same.value)
    assert verify(result.schedule) == []
    assert recheck(result).verdict == "confirmed"
    path = tmp_path / "best.json"
    result.schedule.to_json(path)
    read, _ = read_schedule(path)
    assert read.pipeline == result.pipeline
    assert read.pipeline.first_backward == "weight"


def test_placements_are_searched_with_it() -> None:
    fields = {"devices": 2, "chunks": 2, "partition": (1, 1, 1, 1)}
    every = [hosts for hosts in product((0, 1), repeat=4) if hosts[0] == 0 and 1 in hosts]
    listed = {"devices": 2, "partition": (1, 1, 1, 1)}
    minimum = min(
        solve(pipeline_of(**listed, placement=hosts), workers=1, time_limit=600).value
        for hosts in every
    )
    assert (
        solve(pipeline_of(**fields, placement="search"), workers=1, time_limit=600).value == minimum
    )


def test_hand_strategies_take_it() -> None:
    """One microbatch: the split backward of the first stage takes its whole one, after the F."""
    schedule = evaluate(pipeline_of(batches=1), "zb-h1")
    assert schedule.metrics.makespan_ticks == (2 + 3) + 5 + 10
    assert verify(schedule) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"first_backward": "none"}, "first_backward: 'none' is unknown; use split or weight"),
        ({"partition": "search"}, "first_backward: a search of partition does not know it"),
        ({"recompute": "search"}, "first_backward: a search of recompute does not know it"),
        ({"routes": 2}, "first_backward: it is PyTorch's, which has no two routes"),
    ],
)
def test_what_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        pipeline_of(**fields)


def test_stages_and_plans_refuse_it() -> None:
    with pytest.raises(InputError, match="first_backward: goes with a model in layers"):
        Pipeline(stages=2, batches=2, first_backward="weight")
    with pytest.raises(InputError, match="first_backward: a search of partition"):
        plan(MODEL, devices=2, batches=2, first_backward="weight", time_limit=1)
    assert (
        replace(pipeline_of(), first_backward="split").costs
        == pipeline_of(first_backward="split").costs
    )
