"""Factors of microbatches: what is read, what they multiply, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

import ppopt
from ppopt import InputError, Layer, Model, Pipeline, evaluate
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.operation import Op, OpKind
from ppopt.problem.relaxations import largest_microbatches, smallest_microbatches
from ppopt.problem.traits import Trait
from tests.oracles.whole_backward import bw_allocates_of_layers

THREE: dict[str, Any] = {"stages": 2, "batches": 3}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"microbatch_times": [1, 2]}, "microbatch_times: has 2 entries for 3 microbatches"),
        ({"microbatch_times": [1, 2, 0]}, "microbatch 2: 0 is not above 0"),
        ({"microbatch_memory": [1, -1, 2]}, "microbatch_memory: -1 is negative"),
        ({"microbatch_memory": [1, 2, 1], "frozen": [True, False]}, "frozen layers in front"),
        ({"microbatch_times": [1, 2, 1], "mem_limit": 4}, "a memory limit needs microbatch_memory"),
    ],
)
def test_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Pipeline(**THREE, **fields)


def test_one_number_is_for_all() -> None:
    assert Pipeline(**THREE, microbatch_times=2).microbatch_times == (2, 2, 2)


def test_every_time_of_a_stage_is_multiplied_but_no_transfer() -> None:
    pipeline = Pipeline(**THREE, microbatch_times=[1, "2.5", 1], p2p=1, recompute_time=1)
    schedule = evaluate(pipeline, "gpipe")
    lasts = {(row.kind.name, row.microbatch): row.end - row.start for row in schedule.rows()}
    unit = schedule.pipeline.ticks.per_unit
    assert lasts["F", 1] == 2.5 * lasts["F", 0] == 2.5 * unit
    assert lasts["BW", 1] == 2.5 * lasts["BW", 2] == 2.5 * 3 * unit


def test_a_pair_overlaps_as_much_as_with_the_smaller_factor() -> None:
    pipeline = Pipeline(**THREE, overlap=2, microbatch_times=[1, 3, 2])
    instance = Instance.of(pipeline, BackwardKind.WHOLE)
    forward, backward = (pipeline.code(*op[:3]) for op in (Op(OpKind.F, 0, 1), Op(OpKind.BW, 0, 0)))
    # F + BW of 1 and 2 as one in 2 save 1; F takes 3 and BW 2
    assert instance.pair_time(forward, backward) == 3 + 2 - 1


@pytest.mark.parametrize("slices", [1, 2])
def test_memory_of_a_backward_that_recomputes_layer_by_layer(slices: int) -> None:
    layers = [
        Layer(forward=1, activation=6, workspace=4, recompute={"activation": 1}, count=2),
        Layer(forward=1, activation=2, workspace=9),
    ]
    factors = (Fraction(1, 2), Fraction(1), Fraction(3))
    pipeline = Pipeline(
        stages=1, batches=3, model=Model(layers), microbatch_memory=factors, slices=slices
    )
    instance = Instance.of(pipeline, BackwardKind.WHOLE)
    every = pipeline.model.layers
    expected = [bw_allocates_of_layers(every, factor=factor) / slices for factor in factors]
    per_unit = pipeline.ticks.memory_per_unit
    backward = instance.class_id(OpKind.BW, 0)
    assert list(instance.allocated(backward)) == [amount * per_unit for amount in expected]


def test_the_limit_of_1f1b_is_its_own_peak() -> None:
    fields: dict[str, Any] = {"activation": 3, "workspace": 1, "kept": 1}
    pipeline = Pipeline(stages=3, batches=6, microbatch_memory=[1, 2, 4, 1, 3, 1], **fields)
    peak = max(evaluate(pipeline, "1f1b").peak_memory)
    limits = replace(pipeline, mem_limit="1f1b").limits
    assert limits == (peak,) * 3


def test_the_limit_of_1f1b_counts_the_last_backwards() -> None:
    fields: dict[str, Any] = {"activation": [4, 0], "kept": [3, 0], "static": [0, 1]}
    pipeline = Pipeline(stages=2, batches=2, microbatch_memory=["0.5", 3], **fields)
    peak = max(evaluate(pipeline, "1f1b").peak_memory)
    assert replace(pipeline, mem_limit="1f1b").limits == (peak,) * 2


def test_relaxations_have_equal_microbatches() -> None:
    pipeline = Pipeline(**THREE, microbatch_times=[2, 3, 4], microbatch_memory=[3, 1, 2])
    instance = Instance.of(pipeline, BackwardKind.SPLIT)
    smallest, largest = smallest_microbatches(instance), largest_microbatches(instance, 0)
    assert smallest.has_uniform_classes
    assert Trait.MICROBATCHES not in smallest.traits
    assert (smallest.times(0), smallest.allocated(0)) == ((2, 2, 2), (1, 1, 1))
    assert (largest.times(0), largest.allocated(0)) == ((4, 4, 4), (3, 3, 3))
    assert ppopt.Pipeline(**THREE).factors == ((1, 1),) * 3


def test_costs_of_stages_need_no_finer_grid() -> None:
    """BW of a stage allocates no more than its layers do."""
    factors = ("1.1234", "0.9871", "1.0003")
    layers = [
        Layer(
            forward=1, activation="3.123456", workspace={"BW": bw}, recompute={"activation": "0.5"}
        )
        for bw in (0, 1, "2.7")
    ]
    fields: dict[str, Any] = {"microbatch_times": factors, "microbatch_memory": factors}
    pipeline = Model(layers).pipeline(devices=1, batches=3, **fields)
    stages = pipeline.without_model()
    assert stages.grid == pipeline.grid
    assert stages.microbatch_memory == pipeline.microbatch_memory
    each = (Instance.of(own, BackwardKind.WHOLE).allocated(1) for own in (stages, pipeline))
    for of_stage, of_layers in zip(*each, strict=True):
        assert 0 < of_stage <= of_layers
