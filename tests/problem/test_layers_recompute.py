"""Workspace and recompute of layers, and the costs of stages that follow."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from ppopt import InputError, Layer, Model, Pipeline, evaluate, read_schedule

LAYERS = [
    {"forward": 1, "activation": 4, "workspace": 3, "role": "embedding"},
    {"forward": 2, "activation": 10, "count": 3, "recompute": {"time": "0.5", "activation": 1}},
    {"forward": 1, "activation": 6, "workspace": {"F": 1, "W": 2, "BW": 5}, "role": "head"},
]


def pipeline(**more: Any) -> Pipeline:
    return Pipeline(stages=2, batches=2, model=LAYERS, partition=[2, 3], **more)


def test_stages_keep_what_their_layers_keep_and_are_longer_by_what_these_recompute() -> None:
    """Stage 0: embedding and one layer; stage 1: two layers and the head."""
    costs = pipeline().costs
    assert costs.activation == (14, 26)
    assert costs.kept == (4 + 1, 1 + 1 + 6)
    assert costs.recompute_time == (Fraction(1, 2), 1)
    assert costs.forward_workspace == (3, 1)
    assert costs.input_workspace == (3, 0)
    assert costs.weight_workspace == (0, 2)
    assert costs.backward_workspace == (3, 5)
    assert pipeline().recomputed == (1, 2)


def test_none_and_full() -> None:
    """Without times of their own, layers recompute their F and keep nothing."""
    none, full = pipeline(recompute="none"), pipeline(recompute="full")
    assert none.recomputed == (0, 0)
    assert none.costs.kept == none.costs.activation
    assert not any(none.costs.recompute_time)
    assert full.recomputed == (2, 3)
    assert full.costs.kept == (1, 2)
    assert full.costs.recompute_time == (1 + Fraction(1, 2), 1 + 1)
    assert replace(full, recompute="none") == none


def test_true_and_a_mapping_of_the_defaults_are_the_same() -> None:
    given: dict[str, Any] = {"forward": 2, "activation": 3}
    assert Layer(**given, recompute=True) == Layer(**given, recompute={"time": 2, "activation": 0})
    assert Layer(**given, workspace=2) == Layer(**given, workspace={"F": 2, "B": 2, "BW": 2})


def test_a_partition_balances_recompute_too() -> None:
    again = {"forward": 1, "recompute": {"time": 6}}
    model = Model([again, {"forward": 1, "count": 3}])  # type: ignore[arg-type]
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
    for made in (pipeline(), pipeline(recompute="full", mem_limit=60)):
        schedule = evaluate(made, "1f1b")
        schedule.to_json(path)
        read, _ = read_schedule(path)
        assert read.pipeline == schedule.pipeline
        assert read.metrics == schedule.metrics
