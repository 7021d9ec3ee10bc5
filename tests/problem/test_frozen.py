"""Frozen layers and stages: what they cost, what they wait for, and that files keep them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppopt import Layer, Model, Pipeline, evaluate, solve, verify
from ppopt.errors import ConflictError, InputError
from ppopt.formats.schedule_json import read_schedule
from ppopt.problem.operation import OpKind, TransferKind
from ppopt.problem.partition_table import PartitionTable
from ppopt.strategies import names
from tests.factories.tables import transfers_of
from tests.oracles.configurations import partitions
from tests.tiers import examples, slow

ENCODER = Layer(
    forward=2,
    backward_input=3,
    weight=1,
    activation=5,
    memory_b=-1,
    static=1,
    workspace={"F": 2, "B": 3, "W": 4, "BW": 6},
    recompute={"time": 2, "activation": 1},
    gradient_sync=7,
    optimizer=1,
    unshard=2,
    unshard_memory=1,
    frozen=True,
)
"""Trained, it would have B 3, W 1, BW 4, and recompute 2 more."""
BLOCK = Layer(forward=1, backward_input=2, weight=1, activation=2, workspace=1, optimizer=1)
MODEL = Model([ENCODER, ENCODER, BLOCK, replace(ENCODER, count=2), BLOCK])
"""Two layers that run no backward, and two frozen ones that hand a gradient on."""


def test_layers_that_run_no_backward_cost_f_alone() -> None:
    """F holds both activations of 5, and a workspace of 2, while it runs."""
    pipeline = MODEL.pipeline(devices=3, batches=4, partition=(2, 2, 2))
    ticks = pipeline.ticks
    assert [ticks.durations[kind][0] for kind in OpKind] == [4, 0, 0, 0]
    assert (ticks.allocates[OpKind.F][0], ticks.frees[OpKind.F][0]) == (12, 12)
    rest = (OpKind.B, OpKind.W, OpKind.BW)
    assert [(ticks.allocates[kind][0], ticks.frees[kind][0]) for kind in rest] == [(0, 0)] * 3
    assert (ticks.costs.gradient_sync[0], ticks.costs.optimizer[0]) == (0, 0)
    assert (ticks.costs.unshard[0], ticks.costs.unshard_memory[0], ticks.static[0]) == (4, 2, 2)
    assert pipeline.frozen_stages == (True, False, False)
    assert [row[0] for row in pipeline.has_operations] == [True, False, False, False]
    assert pipeline.recomputed == (0, 1, 1)


def test_other_frozen_layers_have_b_and_no_w() -> None:
    """B of 3 and recompute of 2; it takes what F did not keep, and gives all back."""
    ticks = MODEL.pipeline(devices=4, batches=4, partition=(2, 1, 2, 1)).ticks
    assert [ticks.durations[kind][2] for kind in OpKind] == [4, 10, 0, 10]
    assert (ticks.allocates[OpKind.F][2], ticks.frees[OpKind.F][2]) == (2 + 2, 2)
    assert (ticks.allocates[OpKind.B][2], ticks.frees[OpKind.B][2]) == (8 + 3, 10 + 3)
    assert (ticks.allocates[OpKind.BW][2], ticks.frees[OpKind.BW][2]) == (4 + 3, 2 + 4 + 3)
    assert (ticks.allocates[OpKind.W][2], ticks.frees[OpKind.W][2]) == (0, 0)
    assert (ticks.costs.gradient_sync[2], ticks.costs.optimizer[2]) == (0, 0)


def test_a_stage_of_both_is_not_frozen() -> None:
    """The activation of a frozen layer goes at the end of F, that of a trained one is kept."""
    ticks = MODEL.pipeline(devices=2, batches=4, partition=(3, 3)).ticks
    assert [ticks.durations[kind][0] for kind in OpKind] == [5, 2, 1, 3]
    assert (ticks.allocates[OpKind.F][0], ticks.frees[OpKind.F][0]) == (2 + 10 + 2, 10 + 2)
    assert MODEL.pipeline(devices=2, batches=4, partition=(3, 3)).has_all_operations


def test_phases_of_frozen_layers_have_no_w_and_none_back_where_there_is_no_backward() -> None:
    """Pairs with the first stage take F of 3 alone; BW of a frozen stage takes what B does."""
    phases = {
        "F": [{"on": "compute", "time": 2}, {"on": "link", "time": 1}],
        "B": [{"on": "link", "time": 1}, {"on": "compute", "time": 2, "weight": 2}],
    }
    model = Model([Layer(phases=phases, frozen=True), Layer(phases=phases)])
    ticks = model.pipeline(devices=2, batches=2, partition=(1, 1)).ticks
    assert [ticks.durations[kind] for kind in OpKind] == [(3, 3), (0, 3), (0, 2), (0, 5)]
    frozen_behind = Model([Layer(forward=1), Layer(phases=phases, frozen=True)])
    pipeline = frozen_behind.pipeline(devices=2, batches=2, partition=(1, 1))
    assert [pipeline.ticks.durations[kind][1] for kind in OpKind] == [3, 3, 0, 3]
    assert pipeline.costs.overlap[1][1] == pipeline.costs.overlap_input[1][1]
    empty = model.pipeline(devices=2, batches=2, partition=(1, 1)).costs.overlap
    assert [row[0] for row in empty] == [3, 3]


def test_the_balanced_partition_counts_what_runs() -> None:
    """Six frozen layers of F 2 are as much work as four trained ones of F 1 and BW 2."""
    layers = [Layer(forward=2, frozen=True, count=6), Layer(forward=1, count=4)]
    assert Model(layers).pipeline(devices=2, batches=2).counts == (6, 4)


def test_stages_by_hand_cost_what_layers_do() -> None:
    layered = MODEL.pipeline(devices=4, batches=4, partition=(2, 1, 2, 1))
    fields: dict[str, Any] = {
        cost: [getattr(layer, cost) * count for layer, count in _stages()]
        for cost in ("forward", "backward_input", "weight", "activation", "memory_b", "static")
    }
    fields |= {
        cost: [getattr(layer, cost) for layer, _ in _stages()]
        for cost in ("forward_workspace", "input_workspace", "weight_workspace")
    }
    fields["backward_workspace"] = [layer.backward_workspace for layer, _ in _stages()]
    fields["recompute_time"] = [2 * count * layer.frozen for layer, count in _stages()]
    fields["recompute_memory"] = [4 * layer.frozen for layer, _ in _stages()]
    fields["kept"] = [(1 if layer.frozen else 2) * count for layer, count in _stages()]
    for cost in ("unshard", "unshard_memory", "gradient_sync", "optimizer"):
        fields[cost] = [getattr(layer, cost) * count for layer, count in _stages()]
    frozen = [layer.frozen for layer, _ in _stages()]
    by_hand = Pipeline(stages=4, batches=4, placement=[0, 1, 2, 3], frozen=frozen, **fields)
    assert by_hand.costs == layered.costs == layered.without_model().costs
    assert by_hand.frozen_stages == layered.frozen_stages == layered.without_model().frozen


def _stages() -> list[tuple[Layer, int]]:
    return [(ENCODER, 2), (BLOCK, 1), (ENCODER, 2), (BLOCK, 1)]


def test_nothing_comes_back_over_a_link_before_which_all_is_frozen() -> None:
    down, up = Pipeline(
        stages=4, batches=2, frozen=[True, True, False, True], p2p=2, backward_p2p=3
    ).links
    assert down == ((2, 2, 2),)
    assert up == ((0, 0, 3),)


@pytest.mark.parametrize("link_mode", ["streams", "exclusive"])
def test_no_gradient_is_sent_to_a_stage_without_backward(link_mode: str) -> None:
    pipeline = Pipeline(stages=3, batches=2, frozen=[True, True, False], p2p=1, link_mode=link_mode)
    schedule = evaluate(pipeline, "1f1b")
    assert verify(schedule) == []
    assert transfers_of(schedule).kind.tolist() == [TransferKind.SEND_F] * 2 * 2


@pytest.mark.parametrize("strategy", ["gpipe", "1f1b", "zb-h1", "zb-2p"])
def test_a_stage_without_backward_runs_its_f_one_after_the_other(strategy: str) -> None:
    """Eight F of 1, and nothing that it waits for: its device is done at 8."""
    schedule = evaluate(Pipeline(stages=4, batches=8, frozen=[True] + [False] * 3), strategy)
    ends = schedule.end[schedule.device == 0]
    assert max(ends.tolist()) == 8 * schedule.pipeline.ticks.per_unit
    assert schedule.metrics.peak_memory_ticks[0] == schedule.pipeline.ticks.memory_per_unit


@pytest.mark.parametrize("frozen", [3, slow(1), slow(8)])
@pytest.mark.parametrize("strategy", names())
def test_every_strategy_runs_a_frozen_encoder(strategy: str, frozen: int) -> None:
    layers = [Layer(forward=2, activation=1, frozen=index < frozen) for index in range(8)]
    schedule = evaluate(Model(layers).pipeline(devices=2, batches=4, p2p=1), strategy)
    assert verify(schedule) == []


def test_a_span_does_not_wait_for_stages_without_backward() -> None:
    """Least is the work of the last device: F of 1.5 and BW of 3 at speed 2; no way back counts."""
    pipeline = Pipeline(
        stages=3,
        batches=1,
        forward=[1, 2, 3],
        overlap=[[1, 1, 1], [1, 1, 1], [1, 1, 2]],
        p2p=[[0, 2, 0], [0, 0, 3], [0, 0, 0]],
        device_speed=[1, 1, 2],
        frozen=[True, True, False],
    )
    result = solve(pipeline, objective="device-span", backward_kind="whole", workers=1)
    assert (result.status, result.value) == ("optimal", Fraction(9, 2))


def test_a_schedule_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Empty backwards of one instant stand in the same order before and after."""
    pipeline = Pipeline(stages=4, batches=1, placement=[2, 2, 0, 1], frozen=[True] * 3 + [False])
    schedule = solve(pipeline, backward_kind="whole", workers=1).schedule
    assert schedule is not None
    schedule.to_json(tmp_path / "made.json")
    assert read_schedule(tmp_path / "made.json")[0] == schedule


def test_files_keep_it(tmp_path: Path) -> None:
    by_hand = Pipeline(stages=3, batches=2, frozen=[True, False, True], workspace=1)
    layered = MODEL.pipeline(devices=3, batches=2)
    for index, pipeline in enumerate((by_hand, layered)):
        path = tmp_path / f"{index}.json"
        schedule = evaluate(pipeline, "1f1b")
        schedule.to_json(path)
        read, _ = read_schedule(path)
        assert read.pipeline == schedule.pipeline
        assert read.pipeline.frozen_stages == pipeline.frozen_stages


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"frozen": [True]}, "frozen: has 1 entries for 3 stages"),
        ({"frozen": [True, 0, False]}, "frozen: stage 1: 0 is not true or false"),
        ({"frozen": "yes"}, "frozen: stage 0: 'yes' is not true or false"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Pipeline(stages=3, batches=2, **fields)


def test_chunks_of_frozen_shares_are_refused() -> None:
    with pytest.raises(ConflictError, match="frozen: chunks cut the share of a device"):
        Pipeline(stages=2, batches=2, chunks=2, frozen=[True, False])
    assert Pipeline(stages=2, batches=2, chunks=2, frozen=False).frozen is None


def test_layers_say_it_themselves() -> None:
    with pytest.raises(InputError, match="frozen: the layers say which of them are frozen"):
        MODEL.pipeline(devices=2, batches=2, frozen=True)
    with pytest.raises(InputError, match="frozen: 1 is not true or false"):
        Layer(forward=1, frozen=1)


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Four or five layers, at least one of them frozen; some recompute."""
    size = draw(st.integers(4, 5))
    frozen = [draw(st.booleans()) for _ in range(size)]
    first = draw(st.integers(1, 3))
    return Model(
        [
            Layer(
                forward=draw(st.integers(1, 3)),
                backward_input=draw(st.integers(1, 3)),
                weight=draw(st.integers(1, 2)),
                activation=draw(st.integers(1, 3)),
                workspace=draw(st.integers(0, 2)),
                output=draw(st.integers(0, 2)),
                recompute=draw(st.booleans()),
                frozen=index < first or is_frozen,
            )
            for index, is_frozen in enumerate(frozen)
        ]
    )


@given(models(), st.booleans())
@examples(20)
def test_costs_of_all_partitions_at_once_are_those_of_each(model: Model, by_size: bool) -> None:
    links = {"link": {"latency": 1, "bandwidth": 2}} if by_size and model.has_output else {"p2p": 1}
    base = model.pipeline(devices=3, batches=2, **links)
    every = list(partitions(len(model), 3))
    costs = PartitionTable(base)
    table = costs.table(np.array(every))
    for column, counts in enumerate(every):
        ticks = replace(base, partition=counts).ticks
        times = [time for row in ticks.durations for time in row]
        assert table.durations[:, column].tolist() == times
        assert table.links[1:, column].tolist() == [*ticks.down[0], 0, *ticks.up[0], 0]
        live = [ticks.amounts(kind)[stage][1] for kind in OpKind for stage in range(3)]
        assert table.allocates[:, column].tolist() == live


FROZEN_B = [
    {"forward": 1, "activation": 4, "workspace": {"B": 3}},
    {"forward": 1, "activation": 4, "workspace": {"B": 3}, "frozen": True},
]
"""The second layer has a B alone, with a workspace."""


def test_stages_by_hand_have_the_memory_of_their_layers() -> None:
    """Also where the last of two frozen layers needs no workspace, and the first is freed late."""
    last = [*FROZEN_B, {"forward": 1, "activation": 3, "frozen": True}]
    for model, cut in ((FROZEN_B, [1, 1]), (last, [1, 2])):
        layered = Pipeline(stages=2, batches=1, model=model, partition=cut)
        by_hand = layered.without_model()
        assert (by_hand.ticks.allocates, by_hand.ticks.frees) == (
            layered.ticks.allocates,
            layered.ticks.frees,
        )


def test_a_choice_of_recompute_holds_no_workspace_twice() -> None:
    """Nothing recomputes within 8 and 9: F, F, B of 1, BW of 2, as without a choice."""
    pipeline = Pipeline(stages=2, batches=1, model=FROZEN_B, partition=[1, 1], mem_limit=[8, 9])
    values = [
        solve(replace(pipeline, recompute=choice), backward_kind="whole", workers=1).value
        for choice in ("none", "search")
    ]
    assert values == [5, 5]


def test_a_file_of_frozen_layers_with_workspace_is_read_back(tmp_path: Path) -> None:
    model = [*FROZEN_B, {"forward": 1, "activation": 3, "frozen": True}]
    schedule = evaluate(Pipeline(stages=2, batches=1, model=model, partition=[1, 2]), "1f1b")
    schedule.to_json(tmp_path / "made.json")
    assert read_schedule(tmp_path / "made.json")[0] == schedule
