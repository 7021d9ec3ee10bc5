"""The table of all partitions, against plain sums of the layers and pipelines that are read.

Every partition of drawn small models: recompute and offload on and off, both recompute units,
frozen layers, empty stages, uneven links, slices, and devices of different speeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations_with_replacement, pairwise
from operator import add
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppopt import ConflictError, Model, Pipeline
from ppopt.problem.backward_memory import RecomputeUnit
from ppopt.problem.cost_table import LAYER_COSTS, OverLayers
from ppopt.problem.layer import Layer
from ppopt.problem.operation import OpKind
from ppopt.verifier.whole_backward import allocated_by_whole_backward
from tests.tiers import examples

ENDS = 3
"""Stages of the drawn pipelines."""


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    activation = draw(st.integers(0, 6))
    chosen = draw(st.sampled_from(("recompute", "offload", None)))
    offloads = draw(st.booleans()) and activation > 0
    return Layer(
        forward=f"{draw(st.integers(1, 30)) / 10}",
        backward_input=draw(st.integers(0, 3)),
        weight=draw(st.integers(0, 3)),
        activation=activation,
        memory_b=draw(st.integers(-activation, 2)),
        static=f"{draw(st.integers(0, 30)) / 4}",
        output=draw(st.integers(0, 3)),
        workspace={kind: draw(st.integers(0, 4)) for kind in ("F", "B", "W", "BW")},
        recompute_time=f"{draw(st.integers(0, 9)) / 10}",
        kept=draw(st.integers(0, activation)),
        offload_time=int(offloads),
        offload_memory=draw(st.integers(1, activation)) if offloads else 0,
        recompute=chosen == "recompute",
        offload=chosen == "offload" and offloads,
        unshard=draw(st.integers(0, 1)),
        optimizer=draw(st.integers(0, 1)),
        frozen=draw(st.integers(0, 4)) == 0,
    )


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """Pipelines of three stages, on some partition."""
    unit = draw(st.sampled_from(RecomputeUnit))
    model = Model(draw(st.lists(layers(), min_size=3, max_size=5)), recompute_unit=unit)
    delays: list[dict[str, Any]] = [{"p2p": "0.3"}, {"p2p": [1, "0.25"], "backward_p2p": 2}]
    if model.has_output:
        delays.append({"link": {"latency": 1, "bandwidth": 3}})
        delays.append({"link": {"bandwidth": 3, "backward": {"bandwidth": 7}}})
    hosts = draw(st.sampled_from(((0, 1, 2), (0, 1, 0), (0, 0, 1))))
    return model.pipeline(
        devices=max(hosts) + 1, batches=2, placement=hosts,
        **draw(st.sampled_from(delays)),
        slices=draw(st.sampled_from((None, 2, 3))),
        device_speed=draw(st.sampled_from((1, 3, [1, 2, "0.5"][: max(hosts) + 1]))),
        first_backward=draw(st.sampled_from(("split", "weight"))),
        mem_limit=draw(st.sampled_from((None, "1f1b", "99.5"))) if model.has_activation else None,
    )  # fmt: skip


def partitions(count: int) -> Iterator[tuple[int, ...]]:
    """Partitions into three stages, of which the second may be empty."""
    for cuts in combinations_with_replacement(range(1, count), ENDS - 1):
        yield tuple(end - start for start, end in pairwise((0, *cuts, count)))


def stages_of(pipeline: Pipeline, counts: Sequence[int]) -> list[tuple[Layer, ...]]:
    """Layers of every stage, with their actual costs."""
    ends = np.cumsum([0, *counts]).tolist()
    return [pipeline.model.costed[start:end] for start, end in pairwise(ends)]


def added(pipeline: Pipeline, field: str, stage: Sequence[Layer]) -> Fraction:
    """Sum of a cost over the layers of a stage that have it."""
    if field == "kept":
        return sum((x.kept if x.recompute else x.activation for x in stage), Fraction(0))
    flag = {"recompute_time": "recompute", "offload_time": "offload", "offload_memory": "offload"}
    owners = [x for x in stage if field not in flag or getattr(x, flag[field])]
    return sum((getattr(layer, field) for layer in owners), Fraction(0))


@given(pipelines())
@examples(25)
def test_costs_of_every_partition_are_plain_sums_of_its_layers(pipeline: Pipeline) -> None:
    base = replace(pipeline, first_backward="split")
    for counts in partitions(len(base.model)):
        row = base.with_partition(counts)
        stages, slices = stages_of(base, counts), base.num_slices
        for cost in LAYER_COSTS:
            part = slices if cost.per_microbatch else 1
            if cost.over_layers is OverLayers.SUM:
                sums = [added(base, cost.field, stage) / part for stage in stages]
                assert list(row.costs[cost.field]) == sums, cost.field
        front = base.model.num_forward_only_layers
        first = 0
        for stage, own in enumerate(stages):
            last = first + len(own)
            passing = sum(x.activation for x in base.model.layers[first : min(front, last)])
            for field in ("input_workspace", "weight_workspace"):
                largest = max((getattr(layer, field) for layer in own), default=0)
                assert row.costs[field][stage] * slices == largest
            largest = max((layer.forward_workspace for layer in own), default=0)
            assert row.costs.forward_workspace[stage] * slices == largest + passing
            first = last
        unit = row.ticks.memory_per_unit
        allocated = [
            (recomputed + workspace) * unit
            for recomputed, workspace in zip(
                row.costs.recompute_memory, row.costs.backward_workspace, strict=True
            )
        ]
        assert allocated == allocated_by_whole_backward(row, Fraction(1))


@given(pipelines(), st.data())
@examples(15)
def test_a_row_is_the_pipeline_that_is_read(pipeline: Pipeline, data: st.DataObject) -> None:
    """With another choice of the layers that recompute, too."""
    count = len(pipeline.model)
    recompute = data.draw(st.sets(st.integers(0, count - 1)))
    able = {index for index, layer in enumerate(pipeline.model.layers) if layer.recomputable}
    offload = {index for index, layer in enumerate(pipeline.model.layers) if layer.offload}
    chosen = pipeline.model.with_choice(
        dict.fromkeys((recompute & able) - offload, True), dict.fromkeys(offload, True)
    )
    limited = replace(pipeline, mem_limit=pipeline.limits)
    for counts in partitions(count):
        for model in (None, chosen):
            row = pipeline.with_partition(counts, model)
            read = replace(limited, model=model or pipeline.model, partition=counts)
            assert row == read
            assert (row.costs, row.ticks, row.links) == (read.costs, read.ticks, read.links)
            assert (row.limits, row.stated_costs) == (read.limits, read.stated_costs)
            assert (row.traits, row.has_operations) == (read.traits, read.has_operations)


@given(pipelines())
@examples(15)
def test_columns_of_the_table_are_the_pipelines(pipeline: Pipeline) -> None:
    base = replace(pipeline, first_backward="split", model=pipeline.model.with_offload("none"))
    table, every = base.partitions, [c for c in partitions(len(base.model)) if min(c)]
    columns = table.table(np.array(every))
    for column, counts in enumerate(every):
        ticks = base.with_partition(counts).ticks
        times = [duration for row in ticks.durations for duration in row]
        assert columns.durations[:, column].tolist() == times
        delays = [delay for way in (ticks.down, ticks.up) for delay in (*way[0], 0)]
        assert columns.links[1:, column].tolist() == delays
        allocated = [ticks.amounts(kind)[stage][1] for kind in OpKind for stage in range(ENDS)]
        assert columns.allocates[:, column].tolist() == allocated
        assert columns.static[:, column].tolist() == list(ticks.static)


def test_a_row_whose_sums_are_too_large_is_refused() -> None:
    """2000 microbatches need 3 workspaces of 10^12 in one stage, 6 in two: below and above 2^53."""
    small, large = ({"forward": 1, "activation": 1, "workspace": size} for size in (0, 10**12))
    base = Model([small, large, large]).pipeline(devices=2, batches=2000, partition=[1, 2])
    with pytest.raises(ConflictError, match="memory: too large or too finely divided"):
        base.with_partition((2, 1))


def test_large_memory_times_factors_of_many_digits_is_exact() -> None:
    """Ticks times the numerator of a factor would exceed 64 bits."""
    core = {"name": "core_attn", "time": 1, "memory": "10.195527"}
    layer = {
        "forward": 2,
        "activation": "330.251303",
        "modules": [core],
        "recompute": [core["name"]],
    }
    pipeline = Model([layer] * 8).pipeline(
        devices=4, batches=2, mem_limit=3000, microbatch_memory=["1.420036", "0.09071"]
    )
    for factor in pipeline.microbatch_memory:
        costs = pipeline.costs_at(Fraction(1), factor)
        allocated = list(map(add, costs.recompute_memory, costs.backward_workspace))
        assert allocated == allocated_by_whole_backward(pipeline, factor)
