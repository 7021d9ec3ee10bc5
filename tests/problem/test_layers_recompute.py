"""Workspace and recompute of layers, and the costs of stages that follow."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from operator import add
from pathlib import Path
from typing import Any

import pytest

from ppopt import InputError, Layer, Model, Pipeline, evaluate, read_schedule
from ppopt.problem.layer_settings import LETTERS

LAYERS = [
    {"forward": 1, "activation": 4, "workspace": 3, "role": "embedding"},
    {"forward": 2, "activation": 10, "count": 3, "recompute": {"time": "0.5", "activation": 1}},
    {"forward": 1, "activation": 6, "workspace": {"F": 1, "W": 2, "BW": 5}, "role": "head"},
]


def pipeline(**more: Any) -> Pipeline:
    return Pipeline(stages=2, batches=2, model=LAYERS, partition=[2, 3], **more)


def test_stages_keep_what_their_layers_keep_and_are_longer_by_what_these_recompute() -> None:
    """Stage 0: embedding and one layer; stage 1: two layers and the head.

    BW of stage 0 recomputes 9, no workspace; that of stage 1 runs the head in 5, then recomputes 9
    where 6 of the head are free.
    """
    costs = pipeline().costs
    assert costs.activation == (14, 26)
    assert costs.kept == (4 + 1, 1 + 1 + 6)
    assert costs.recompute_time == (Fraction(1, 2), 1)
    assert costs.forward_workspace == (3, 1)
    assert costs.input_workspace == (3, 0)
    assert costs.weight_workspace == (0, 2)
    assert list(map(add, costs.recompute_memory, costs.backward_workspace)) == [9, 5]
    assert pipeline().recomputed == (1, 2)


def test_none_and_full() -> None:
    """Full recompute leaves out the embedding and the head, which do not ask for it."""
    none, full = pipeline(recompute="none"), pipeline(recompute="full")
    assert none.recomputed == (0, 0)
    assert none.costs.kept == none.costs.activation
    assert not any(none.costs.recompute_time)
    assert full.recomputed == (1, 2)
    assert full.costs.kept == (4 + 1, 1 + 1 + 6)
    assert full.costs.recompute_time == (Fraction(1, 2), 1)
    assert replace(full, recompute="none") == none


@pytest.mark.parametrize(
    ("stated", "rules", "recomputed", "offloaded"),
    [
        ({"offload": {"time": 1}}, {"recompute": "full", "offload": "none"}, 1, 0),
        ({"offload": {"time": 1}}, {"recompute": "full"}, 0, 1),
        (
            {"recompute": True, "offload_time": 1, "offload_memory": 2},
            {"recompute": "none", "offload": "all"}, 0, 1,
        ),
    ],
)  # fmt: skip
def test_a_layer_that_one_rule_frees_follows_the_other_rule(
    stated: dict[str, Any], rules: dict[str, str], recomputed: int, offloaded: int
) -> None:
    pipe = Model([Layer(forward=1, activation=4, **stated)]).pipeline(devices=1, batches=1, **rules)
    assert (pipe.recomputed, pipe.offloaded) == ((recomputed,), (offloaded,))


def test_without_figures_of_its_own_a_layer_recomputes_its_f_and_keeps_nothing() -> None:
    pipeline = Pipeline(
        stages=1, batches=1, model=[{"forward": 3, "activation": 2}], recompute="full"
    )
    assert (pipeline.costs.recompute_time, pipeline.costs.kept) == ((3,), (0,))


SILENT: dict[str, dict[str, Any]] = {
    "nothing": {},
    "false": {"recompute": False},
    "figures": {"recompute_time": 1, "kept": 1},
}


@pytest.mark.parametrize("role", LETTERS)
@pytest.mark.parametrize("silent", SILENT)
def test_full_is_for_decoder_and_mtp_layers_unless_an_end_says_so(role: str, silent: str) -> None:
    """Figures alone (`kept`) do not say that a layer recomputes."""
    trainers = role in ("decoder", "mtp")
    fields = {"forward": 2, "activation": 3, "role": role}
    assert Layer(**fields, recompute=True).recomputable
    assert Layer(**fields, recompute={"time": 1}).recomputable
    layer = Layer(**fields, **SILENT[silent])
    assert layer.recomputable is trainers
    assert layer.saved == (layer.activation - layer.kept if trainers else 0)
    pipeline = Pipeline(stages=1, batches=1, model=[layer], recompute="full")
    assert pipeline.recomputed == (int(trainers),)


@pytest.mark.parametrize("role", ["embedding", "head"])
def test_an_end_that_says_so_recomputes_in_full_also_after_none_and_from_a_file(
    role: str, tmp_path: Path
) -> None:
    layers = [{"forward": 1, "activation": 1, "role": role, "recompute": True}]
    none = Pipeline(stages=1, batches=1, model=layers, recompute="none")
    assert none.recomputed == (0,)
    evaluate(none, "1f1b").to_json(tmp_path / "none.json")
    read, _ = read_schedule(tmp_path / "none.json")
    assert read.pipeline.model == none.model
    for pipe in (none, read.pipeline):
        assert replace(pipe, recompute="full").recomputed == (1,)


EMBEDDING = {
    "forward": "0.6", "backward": "0.9", "weight": "0.9", "activation": "0.06", "static": 6,
    "role": "embedding",
}  # fmt: skip
BLOCK = {
    "forward": 5, "backward": "10.4", "weight": "4.6", "activation": "1.3", "kept": "0.065",
    "static": 7, "count": 32,
}  # fmt: skip
HEAD = {"forward": "9.5", "backward": 19, "weight": 9, "static": 6, "role": "head"}


@pytest.mark.parametrize(
    ("strategy", "head", "step", "of_last_device"),
    [
        ("1f1b", "2.1", "3735.7", "29.295"),
        ("interleaved", "8", "3461.2", "36.105"),
        ("looped-bfs", "8", "3813.1", "289.24"),
    ],
)
def test_full_recompute_is_that_of_megatron(
    strategy: str, head: str, step: str, of_last_device: str
) -> None:
    """Eight devices and 32 microbatches: the sums of stages in which the blocks alone recompute.

    A block then takes 5 ms more in its backward, and F keeps 0.065 of its 1.3 GiB. The last device
    of 1F1B has one microbatch of 3 blocks and the head, which is no smaller than the 1.235 that a
    block recomputes once the head is free; of looped BFS all 32 of a block and the head, and one of
    2 blocks that its last backward, of its first stage, computes again one at a time.
    """
    model = Model([EMBEDDING, BLOCK, HEAD | {"activation": head}])  # type: ignore[arg-type]
    more = {} if strategy == "1f1b" else {"placement": "interleaved", "chunks": 2}
    schedule = evaluate(
        model.pipeline(devices=8, batches=32, p2p="0.2", recompute="full", **more), strategy
    )
    counts = list(schedule.pipeline.counts)
    blocks = [counts[0] - 1, *counts[1:-1], counts[-1] - 1]
    ends = [(EMBEDDING, 0), (HEAD | {"activation": head}, len(counts) - 1)]

    def sums(key: str, of_block: str) -> list[Fraction]:
        costs = [count * Fraction(of_block) for count in blocks]
        for end, stage in ends:
            costs[stage] += Fraction(str(end[key]))
        return costs

    spelled_out = Pipeline(
        stages=len(counts),
        placement=list(range(8)) * (len(counts) // 8),
        batches=32,
        p2p="0.2",
        forward=sums("forward", "5"),
        backward=sums("backward", "15.4"),
        weight=sums("weight", "4.6"),
        activation=sums("activation", "1.3"),
        kept=sums("activation", "0.065"),
        recompute_memory=[
            0 if stage == len(counts) - 1 else Fraction("1.235") for stage in range(len(counts))
        ],
        static=sums("static", "7"),
    )
    by_stages = evaluate(spelled_out, strategy)
    assert schedule.metrics.makespan_ticks == by_stages.metrics.makespan_ticks
    assert schedule.metrics.peak_memory_ticks == by_stages.metrics.peak_memory_ticks
    assert schedule.pipeline.ticks.time(schedule.metrics.makespan_ticks) == Fraction(step)
    last = schedule.pipeline.ticks.memory(schedule.metrics.peak_memory_ticks[-1])
    assert last == Fraction(of_last_device)


def test_true_and_a_mapping_of_the_defaults_are_the_same() -> None:
    fields: dict[str, Any] = {"forward": 2, "activation": 3}
    assert Layer(**fields, recompute=True) == Layer(
        **fields, recompute={"time": 2, "activation": 0}
    )
    assert Layer(**fields, workspace=2) == Layer(**fields, workspace={"F": 2, "B": 2, "BW": 2})


def test_a_partition_balances_recompute_too() -> None:
    recomputing = {"forward": 1, "recompute": {"time": 6}}
    model = Model([recomputing, {"forward": 1, "count": 3}])  # type: ignore[arg-type]
    assert Pipeline(stages=2, batches=1, model=model).counts == (1, 3)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"workspace": {"X": 1}}, "workspace: 'X' is unknown; use F, B, W, BW"),
        ({"workspace": -1}, "forward_workspace: -1 is negative"),
        ({"recompute": {"memory": 1}}, "recompute: 'memory' is unknown; use time, activation"),
        ({"recompute": "yes"}, "recompute: 'yes' is neither true, false nor a mapping"),
        ({"recompute": {"activation": 2}, "activation": 1}, "activation 2 is more than"),
    ],
)
def test_what_is_no_layer_is_refused(layer: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Layer(forward=1, **layer)


def test_recompute_needs_layers() -> None:
    with pytest.raises(InputError, match="recompute: needs a model in layers"):
        Pipeline(stages=2, batches=2, recompute="full")
    with pytest.raises(InputError, match="recompute: 'some' is unknown"):
        pipeline(recompute="some")


def test_a_schedule_file_restores_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for pipe in (pipeline(), pipeline(recompute="full", mem_limit=60)):
        schedule = evaluate(pipe, "1f1b")
        schedule.to_json(path)
        read, _ = read_schedule(path)
        assert read.pipeline == schedule.pipeline
        assert read.metrics == schedule.metrics
