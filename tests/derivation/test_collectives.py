"""Times of collectives, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ppopt import derive_model
from ppopt.derivation.collectives import Collective, Group, Pattern
from ppopt.derivation.explanation import explain
from ppopt.derivation.gpus import gpu_named
from ppopt.report.derivation import explanation_tables
from tests.factories.configs import CONFIGS, LLAMA_8B

GPU = replace(
    gpu_named("h100"),
    node_bandwidth=400e9,
    network_bandwidth=50e9,
    network_efficiency=0.8,
    network_p2p_efficiency=0.9,
    all_gather={2: 0.25, 4: 0.5, 8: 0.75},
    all_reduce={2: 0.5, 8: 0.8},
    all_to_all={8: 0.7},
    collective_fixed=20e-6,
    collective_step=5e-6,
)
"""40 GB/s of network for collectives."""
NODE = 8
S = 280e6


@pytest.mark.parametrize(
    ("pattern", "group", "seconds"),
    [
        # alpha + 7/8 S / (400 GB/s x 0.75)
        (Pattern.ALL_GATHER, Group(8), 55e-6 + 7 / 8 * S / 300e9),
        (Pattern.REDUCE_SCATTER, Group(8), 55e-6 + 7 / 8 * S / 300e9),
        (Pattern.ALL_REDUCE, Group(8), 55e-6 + 2 * 7 / 8 * S / 320e9),
        (Pattern.ALL_TO_ALL, Group(8), 55e-6 + 7 / 8 * S / 280e9),
        (Pattern.RING_STEP, Group(4), 25e-6 + S / 200e9),
        # The step from one node to the next passes a single adapter
        (Pattern.RING_STEP, Group(16), 25e-6 + S / 45e9),
        # Two GPUs of each of two nodes: both adapters, and less than NVLink among two
        (Pattern.ALL_GATHER, Group(4, stride=4), 35e-6 + 3 / 4 * S / 80e9),
        # One GPU a node
        (Pattern.ALL_REDUCE, Group(4, stride=8), 35e-6 + 2 * 3 / 4 * S / 40e9),
        # 8 of 16 ranks are elsewhere: 8/16 S over the adapter, 7/16 S inside beside it
        (Pattern.ALL_TO_ALL, Group(16), 95e-6 + 8 / 16 * S / 40e9),
        # Three ranks: the bandwidth of two
        (Pattern.ALL_GATHER, Group(3), 30e-6 + 2 / 3 * S / 100e9),
        (Pattern.ALL_GATHER, Group(1), 0),
    ],
)
def test_time(pattern: Pattern, group: Group, seconds: float) -> None:
    assert Collective("x", pattern, S, group).seconds(GPU, NODE) == pytest.approx(seconds)


def test_repeated_and_hidden() -> None:
    """Three steps of 25 us + 1 ms; 0.6 ms of each run while a kernel runs."""
    steps = Collective("ring", Pattern.RING_STEP, 100e6, Group(2), 3, hidden=0.6e-3)
    assert steps.seconds(GPU, NODE) == pytest.approx(3 * 1.025e-3)
    assert steps.exposed(GPU, NODE) == pytest.approx(3 * 0.425e-3)
    assert steps._replace(hidden=2e-3).exposed(GPU, NODE) == 0
    scaled = steps.exposed(GPU, NODE, communication=2, compute=1.5)
    assert scaled == pytest.approx(3 * (2 * 1.025e-3 - 1.5 * 0.6e-3))


@pytest.mark.parametrize(
    ("group", "in_node", "nodes"),
    [
        (Group(8), 8, 1),
        (Group(16), 8, 2),
        (Group(4, stride=2), 4, 1),
        (Group(8, stride=2), 4, 2),
        (Group(2, stride=8), 1, 2),
    ],
)
def test_ranks_fill_nodes_from_the_inside_out(group: Group, in_node: int, nodes: int) -> None:
    assert (group.in_node(NODE), group.nodes(NODE)) == (in_node, nodes)


# What derived times consist of.


MODELS = {
    "tensor and context": derive_model(
        LLAMA_8B, gpu="h100", tensor=2, context=4, context_type="all-gather"
    ),
    "eager": derive_model(LLAMA_8B, gpu="h100", framework="torch", sequence=512),
    "DeepSpeed": derive_model(LLAMA_8B, gpu="a100", framework="deepspeed"),
    "FSDP": derive_model(LLAMA_8B, gpu="a100", devices=1, data=16, zero=3, sequence=1024),
    "overlap": derive_model(
        CONFIGS["Qwen/Qwen3-30B-A3B"],
        gpu="h100",
        tensor=2,
        data=16,
        expert=16,
        overlap=("tp", "dispatch"),
    ),
    "experts": derive_model(CONFIGS["Qwen/Qwen3-30B-A3B"], gpu="h200", data=16, expert=16),
}


@pytest.mark.parametrize("name", MODELS)
def test_items_add_up_to_the_times_of_a_layer(name: str) -> None:
    model = MODELS[name]
    items = explain(model)
    for layer in model.layers:
        own = [item for item in items if item.layer == layer.name]
        for kind, time in (("F", layer.forward), ("B", layer.input), ("W", layer.weight)):
            total = sum(item.milliseconds for item in own if item.kind == kind)
            assert total == pytest.approx(time, abs=1e-3)
        kernels = model.costing.computing(layer.parts).backward
        besides = [item for item in own if item.kind == "BW"]
        total = kernels + sum(item.milliseconds for item in besides)
        assert total == pytest.approx(layer.backward, abs=1e-3)
        exchanged = sum(item.milliseconds for item in besides if item.bound != "launches")
        assert exchanged == pytest.approx(layer.communication.backward, abs=1e-3)
        assert {item.layers for item in own} == {layer.count}


@pytest.mark.parametrize(("hidden", "exposed"), [(0, 1), (0.5, 0.5), (0.9, 0.25), (9, 0.25)])
def test_a_quarter_of_an_exchange_is_visible(hidden: float, exposed: float) -> None:
    """Whatever hides it: max(a quarter, exchange - compute)."""
    gpu = gpu_named("h100")
    whole = Collective("x", Pattern.ALL_GATHER, 1e9, Group(8), repeats=2)
    once = whole.seconds(gpu, NODE) / 2
    partly = whole._replace(hidden=hidden * once, visible=0.25)
    assert partly.exposed(gpu, NODE) == pytest.approx(exposed * 2 * once)


def test_tensor_parallel_exchanges_overlap_with_their_products() -> None:
    """Eight ranks: of every exchange max(a quarter, exchange - product) is exposed, in F and BW."""
    models = [
        derive_model(LLAMA_8B, gpu="h100", tensor=8, overlap=names, cuda_graphs=True)
        for names in ((), ("tp",))
    ]
    alone, beside = (
        [item for item in explain(model) if item.layer == "block" and item.kind == "F"]
        for model in models
    )
    products = {item.name: item.milliseconds for item in alone if item.bound == "product"}
    gathers = [item for item in alone if item.megabytes and " of 8" in item.bound]
    hidden = [item for item in beside if item.megabytes and " of 8" in item.bound]
    # In order: the input of queries, keys and values, the output, and both of the feed-forward
    names = ("query + key + value", "output", "gate + up", "down")
    for before, after, name in zip(gathers, hidden, names, strict=True):
        time = before.milliseconds
        assert after.milliseconds == pytest.approx(max(time / 4, time - products[name]))
    before, after = (model.layers[1] for model in models)
    assert after.backward < before.backward and after.communication.weight > 0


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
    layers = [title.split(" x ")[0] for title in titles if not title.startswith("modules of ")]
    assert layers == [layer.name for layer in model.layers]
    assert titles.count("modules of block") == 1
    assert "communication" in titles[1]
