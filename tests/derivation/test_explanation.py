"""What derived times consist of."""

from __future__ import annotations

import pytest

from ppopt import derive_model
from ppopt.derivation.explanation import explain
from ppopt.report.derivation import explanation_tables
from tests.factories.configs import CONFIGS, LLAMA_8B

MODELS = {
    "tensor and context": derive_model(
        LLAMA_8B, gpu="h100", tensor=2, context=4, context_type="all-gather"
    ),
    "eager": derive_model(LLAMA_8B, gpu="h100", framework="torch", sequence=512),
    "experts": derive_model(CONFIGS["Qwen/Qwen3-30B-A3B"], gpu="h200", data=16, expert=16),
}


@pytest.mark.parametrize("name", MODELS)
def test_items_add_up_to_the_times_of_a_layer(name: str) -> None:
    model = MODELS[name]
    items = explain(model)
    for layer in model.layers:
        own = [item for item in items if item.layer == layer.name]
        for kind, time in (("F", layer.forward), ("B", layer.input), ("W", layer.weight)):
            found = sum(item.milliseconds for item in own if item.kind == kind)
            assert found == pytest.approx(time, abs=1e-3)
        exchanged = sum(item.milliseconds for item in own if item.kind == "BW")
        assert exchanged == pytest.approx(layer.communication.backward, abs=1e-3)
        assert {item.layers for item in own} == {layer.count}


def test_the_flops_are_those_of_the_model() -> None:
    """Of a layer of Llama 3.1 8B: 2 x 218,103,808 parameters x 4096 tokens, and attention."""
    items = explain(derive_model(LLAMA_8B, gpu="h100"))
    flops = sum(item.gflop for item in items if item.layer == "block" and item.kind == "F")
    scores = 0.5 * 4096 * 2 * 4096 * 32 * 256
    assert flops == pytest.approx((2 * 218_103_808 * 4096 + scores) / 1e9)


def test_a_group_over_nodes_is_named() -> None:
    bounds = {item.bound for item in explain(MODELS["experts"])}
    assert "all-to-all of 16 in 2 nodes" in bounds
    assert "launches" in {item.bound for item in explain(MODELS["eager"])}


def test_a_table_for_every_layer() -> None:
    model = MODELS["tensor and context"]
    titles = [title for title, _ in explanation_tables(model)]
    assert [title.split(" x ")[0] for title in titles] == [layer.name for layer in model.layers]
    assert "communication" in titles[1]
