"""Models in layers: exact sums over stages, and what is refused."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ppopt
from ppopt.errors import InputError
from ppopt.problem.cost_table import LAYER_COSTS
from ppopt.problem.layer import Layer, runs_of
from ppopt.problem.layer_settings import LAYER_SETTINGS
from ppopt.problem.pipeline import Model, Pipeline
from tests.factories.models import TINY, models


def test_defaults_of_a_layer_are_those_of_stages() -> None:
    """DESIGN rule 6: BW = 2 F, W = BW / 2, B = BW - W; the rest 0 in this form."""
    layer = Layer(forward=3)
    assert (layer.backward, layer.weight, layer.backward_input) == (6, 3, 3)
    assert (layer.activation, layer.memory_b, layer.static, layer.role) == (0, 0, 0, "decoder")


def test_times_of_the_backward_follow_from_each_other() -> None:
    assert Layer(forward=3, input=4).backward == 7
    assert Layer(forward=3, backward=5, input=4).weight == 1
    assert Layer(forward=3, weight="0.5", input=4).backward == Fraction(9, 2)


def test_counts_are_expanded_and_joined_again() -> None:
    block = Layer(forward=2, activation=1, count=3, name="block")
    model = Model((Layer(1, role="embedding"), block, Layer(2, role="head")))
    assert len(model) == 5
    assert {layer.count for layer in model.layers} == {1}
    assert runs_of(model.layers) == [model.layers[0], block, model.layers[-1]]


def test_a_model_prints_in_a_line() -> None:
    assert repr(TINY) == "Model(tiny: 6 layers: 1 embedding, 4 block, 1 head)"


def test_every_setting_of_a_layer_is_a_field() -> None:
    derived = {"rounded", "time_unit", "memory_unit", "recompute_given"}
    fields = set(Layer.__dataclass_fields__) - derived
    assert {setting.field for setting in LAYER_SETTINGS} == fields


def test_a_frozen_layer_has_costs_of_0_as_the_documents_say() -> None:
    """docs/concepts/model.md: no W, and no B where all layers before it are frozen too."""
    frozen = {"forward": 1, "backward": 0, "weight": 0}
    model = Model([frozen, frozen, {"forward": 1, "backward": 1, "weight": 0}])  # type: ignore[arg-type]
    costs = model.pipeline(devices=2, batches=1, partition=[2, 1]).costs
    values = [costs[field] for field in ("backward", "weight", "backward_input")]
    assert values == [(0, 1), (0, 0), (0, 1)]


@settings(deadline=None)
@given(models(), st.data())
def test_costs_of_stages_are_exact_sums(model: Model, data: st.DataObject) -> None:
    cuts = sorted(
        data.draw(st.sets(st.integers(1, len(model) - 1)) if len(model) > 1 else st.just(set()))
    )
    ends = [0, *cuts, len(model)]
    counts = [end - start for start, end in itertools.pairwise(ends)]
    costs = model.pipeline(devices=len(counts), batches=1, partition=counts).costs
    for cost in LAYER_COSTS:
        if cost.optional:
            continue
        row = costs[cost.field]
        for stage, (start, end) in enumerate(itertools.pairwise(ends)):
            layers = model.layers[start:end]
            assert row[stage] == sum(getattr(layer, cost.field) for layer in layers)


def test_stages_of_a_pipeline_hold_the_layers_of_its_partition() -> None:
    """Embedding 1, four blocks of 2 and a head of 4, cut 2 + 2 + 2."""
    pipe = TINY.pipeline(devices=3, batches=4, partition=[2, 2, 2])
    assert pipe.costs.forward == (3, 4, 6)
    assert pipe.costs.static == (7, 4, 6)
    assert pipe.counts == (2, 2, 2)


def test_chunks_are_cut_where_the_layers_are() -> None:
    pipe = TINY.pipeline(devices=3, batches=4, placement="v", partition=[1] * 6)
    assert pipe.hosts == ((0, 1, 2, 2, 1, 0),)
    assert pipe.costs.forward == (1, 2, 2, 2, 2, 4)


def test_counts_say_how_many_chunks_there_are() -> None:
    pipe = TINY.pipeline(devices=3, batches=4, partition=[1] * 6)
    assert (pipe.num_chunks, pipe.resolved_placement) == (2, "interleaved")


def test_a_placement_list_has_as_many_stages_as_entries() -> None:
    pipe = TINY.pipeline(devices=2, batches=4, placement=[0, 1, 1, 0], partition=[2, 1, 1, 2])
    assert (pipe.num_devices, pipe.costs.forward) == (2, (3, 2, 2, 6))


def test_a_pipeline_without_its_model_is_the_same_problem() -> None:
    pipe = TINY.pipeline(devices=2, batches=4, placement="v", mem_limit="1f1b", p2p="0.5")
    plain = pipe.without_model()
    assert plain.model is None
    assert (plain.ticks, plain.hosts, plain.limits) == (pipe.ticks, pipe.hosts, pipe.limits)


def test_limit_of_1f1b_counts_the_layers_of_each_device() -> None:
    """Stages of 3, 2 and 1 blocks of activation 10, static 1: device 0 holds 3 microbatches."""
    model = Model((Layer(1, activation=10, static=1, count=6),))
    pipe = model.pipeline(devices=3, batches=8, partition=[3, 2, 1], mem_limit="1f1b")
    assert pipe.limits == (3 + 3 * 30,) * 3


@pytest.mark.parametrize("strategy", ppopt.strategies())
def test_every_strategy_runs_on_layers_as_on_stages(strategy: str) -> None:
    """Equal layers, shared equally: the pipeline given by stages, stage for stage."""
    layer = Layer(forward=2, backward=5, weight=2, activation=4, memory_b=-1, static=3, count=48)
    by_layers = Model((layer,)).pipeline(devices=2, batches=4, p2p="0.25", partition="even")
    costs = {"forward": 48, "backward": 120, "weight": 48, "activation": 96, "memory_b": -24}
    by_stages = Pipeline(stages=2, batches=4, p2p="0.25", static=72, **costs)
    timed, same = (ppopt.evaluate(pipe, strategy) for pipe in (by_layers, by_stages))
    assert [timed.pipeline.ticks.time(time) for time in timed.end.tolist()] == [
        same.pipeline.ticks.time(time) for time in same.end.tolist()
    ]
    assert timed.pipeline.costs == same.pipeline.costs


REFUSED: dict[str, Any] = {
    "forward: missing": {"layers": [{"activation": 3}]},
    "layers: layer 1 (head): forward: 0 is not above 0": {
        "layers": [Layer(1), {"forward": 0, "name": "head"}]
    },
    "did you mean": {"layers": [{"forward": 1, "activations": 3}]},
    "activation: -1 is negative": {"layers": [{"forward": 1, "activation": -1}]},
    "frees more than the activation 2": {
        "layers": [{"forward": 1, "activation": 2, "memory_b": -3}]
    },
    "weight: 3 is above the full backward time 2": {"layers": [{"forward": 1, "weight": 3}]},
    "role: 'encoder' is unknown; use embedding, decoder, mtp, head": {
        "layers": [{"forward": 1, "role": "encoder"}]
    },
    "count: 0 is not within 1 .. 4096": {"layers": [{"forward": 1, "count": 0}]},
    "more than 4096 layers": {"layers": [{"forward": 1, "count": 4096}] * 2},
    "layers: the list is empty": {"layers": []},
    "is not a list of layers": {"layers": 7},
    "layers: layer 0: 3 is no layer": {"layers": [3]},
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused_layers(message: str) -> None:
    with pytest.raises(InputError) as error:
        Model(REFUSED[message]["layers"])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


REFUSED_PIPELINES: dict[str, Any] = {
    "mem_limit: no layer gives its activation": {
        "model": [{"forward": 1, "count": 4}],
        "mem_limit": 3,
    },
    "forward_times: the layers give the costs; leave it out": {"model": TINY, "forward_times": 3},
    "overlap_times: the layers give the costs": {"model": TINY, "overlap": [9, 9]},
    "partition: needs a model in layers": {"partition": "even"},
    "partition: 6 layers for 8 stages; every stage needs one": {"model": TINY, "stages": 8},
    "partition: even: 4 decoder layers for 5 stages": {
        "model": TINY,
        "stages": 5,
        "partition": "even",
    },
    "partition: the counts add up to 5; count all layers, 6, or the decoder layers alone, 4": {
        "model": TINY,
        "partition": [2, 3],
    },
    "partition: the counts add up to 3; count all layers, 4": {
        "model": Model((Layer(1, count=4),)),
        "partition": [2, 1],
    },
    "partition: has 3 stages, the placement 2": {"model": TINY, "partition": [2, 2, 2]},
    "partition: stage 1 of 2 is empty; only stages between": {"model": TINY, "partition": [6, 0]},
    "partition: stage 0: -1 layers is below 0": {"model": TINY, "partition": [-1, 7]},
    "partition: stage 0: '3' is not a whole number": {"model": TINY, "partition": ["3", "3"]},
    "partition: 7 is unknown": {"model": TINY, "partition": 7},
    "partition: layout: stage 0 of 2 is empty": {"model": TINY, "partition": "|EttttL"},
}


@pytest.mark.parametrize("message", REFUSED_PIPELINES)
def test_refused_pipelines(message: str) -> None:
    with pytest.raises(InputError) as error:
        Pipeline(**{"stages": 2, "batches": 4, **REFUSED_PIPELINES[message]})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_placement_list_of_other_devices_is_refused() -> None:
    with pytest.raises(InputError, match="the list has 2 devices; stages says 3"):
        TINY.pipeline(devices=3, batches=4, placement=[0, 1, 1])
