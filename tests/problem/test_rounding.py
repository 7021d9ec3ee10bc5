"""Input that is too fine is rounded as it is read; from there on it is exact."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import pytest

import ppopt
from ppopt import ConflictError, Model, Pipeline
from ppopt.formats import schedule_json
from ppopt.problem import rounding
from ppopt.problem.costs import MAX_TICKS
from ppopt.problem.features import compute_alone
from ppopt.problem.grid import Grid
from ppopt.studies.plan_space import PlanSpace, fields_of, rounded_once
from ppopt.verifier import verify

SPEEDS = ("0.912347", "1.012349", "0.998877", "1.103021")
"""Speeds whose numerators have no common factor, so that ticks of all devices are fine."""


def drawn_stages(rng: Random) -> dict[str, Any]:
    """Fields of a pipeline of stages that needs more than 2^53 ticks of time."""
    fields: dict[str, Any] = {
        "stages": 4, "batches": 8, "device_speed": SPEEDS,
        "forward": [f"{rng.randint(1, 10**8)}e-6" for _ in range(4)],
        "backward": [f"{rng.randint(10**8, 10**9)}e-6" for _ in range(4)],
        "p2p": f"{rng.randint(1, 10**6)}e-6",
        "microbatch_times": [f"{rng.randint(5 * 10**5, 2 * 10**6)}e-6" for _ in range(8)],
    }  # fmt: skip
    if rng.random() < 0.5:
        fields |= {"slices": 2, "slice_times": [1, f"{rng.randint(10, 30)}e-1"]}
    if rng.random() < 0.5:
        fields |= {
            "activation": [f"{rng.randint(1, 10**12)}e-6" for _ in range(4)],
            "microbatch_memory": [f"{rng.randint(5 * 10**5, 2 * 10**6)}e-6" for _ in range(8)],
            "mem_limit": 10**8,
        }
    return fields


def drawn_layers(rng: Random) -> Pipeline:
    """A model whose links, speeds and factors need more than 2^53 ticks of time."""
    layers = [
        {
            "forward": f"{rng.randint(1, 10**7)}e-6",
            "backward": f"{rng.randint(10**7, 10**8)}e-6",
            "activation": f"{rng.randint(1, 10**7)}e-6",
            "output": f"{rng.randint(1, 10**7)}e-6",
        }
        for _ in range(8)
    ]
    link = {"latency": f"{rng.randint(1, 10**4)}e-6", "bandwidth": f"{rng.randint(1, 10**7)}e-4"}
    return Model(layers).pipeline(devices=4, batches=8, link=link, device_speed=SPEEDS)


def drawn(seed: int) -> Pipeline:
    rng = Random(seed)
    return drawn_layers(rng) if seed % 2 else Pipeline(**drawn_stages(rng))


@pytest.mark.parametrize("seed", range(12))
def test_rounded_input_is_exact(seed: int) -> None:
    """Its sums are below 2^53 ticks, its schedules are verified, and files keep every number."""
    pipeline = drawn(seed)
    assert pipeline.rounded_by
    schedule = ppopt.evaluate(pipeline, "seq-1f1b" if pipeline.slices else "1f1b")
    assert verify(schedule) == []
    assert schedule.makespan < MAX_TICKS
    text = schedule_json.dumps(schedule)
    restored, _ = schedule_json.loads(text, "x")
    assert restored.pipeline == schedule.pipeline
    assert schedule_json.dumps(restored) == text
    assert schedule.pipeline.rounded_by == pipeline.rounded_by


@pytest.mark.parametrize("seed", range(1, 12, 2))
def test_other_partitions_of_rounded_layers_are_exact(seed: int) -> None:
    pipeline = drawn(seed)
    pipeline.partitions.refuse_inexact_sums(pipeline.batches)
    for counts in ((1, 1, 1, 5), (5, 1, 1, 1)):
        assert pipeline.with_partition(counts).grid == pipeline.grid


def test_rounded_microbatches_that_offload_have_a_relaxation() -> None:
    """Without moves, factors are relative to the smallest: the finest ticks of all."""
    offload = {"time": "0.300007", "memory": "2.000003"}
    model = Model([{"forward": "1.234567", "activation": "3.300007", "offload": offload}] * 8)
    factors = ["1.000003", "0.999983", "1.1", "0.723457"]
    pipeline = model.pipeline(
        devices=4, batches=4, device_speed=SPEEDS, mem_limit=40,
        microbatch_memory=factors, microbatch_times=factors,
    )  # fmt: skip
    assert pipeline.rounded_by
    assert not compute_alone(pipeline).has_offload


@pytest.mark.parametrize("seed", range(12))
def test_rounding_twice_changes_nothing(seed: int) -> None:
    pipeline = drawn(seed)
    stated = replace(pipeline, rounded_by=(), grid=None)
    assert stated.rounded_by == ()
    assert replace(stated, rounded_by=pipeline.rounded_by, grid=pipeline.grid) == pipeline
    assert [spare % own for spare, own in zip(pipeline.grid, stated.grid, strict=True)] == [0, 0]


@pytest.mark.parametrize("seed", range(0, 24, 2))
def test_the_largest_change_bounds_every_change_of_a_stage(seed: int) -> None:
    """Against the numbers as they are stated; 0.5 % of the largest number at most."""
    fields = drawn_stages(Random(seed))
    pipeline = Pipeline(**fields)
    bounds = dict(pipeline.rounded_by)
    for field in ("forward", "backward", "device_speed", "microbatch_times", "activation"):
        stated = [Fraction(number) for number in fields.get(field, ())]
        changes = [
            abs(Fraction(a) - b) for a, b in zip(stated, getattr(pipeline, field), strict=False)
        ]
        bound = bounds.get(field, Fraction(0))
        assert max(changes, default=0) <= bound <= max(stated, default=0) / 200
    assert pipeline.weight == tuple(time / 2 for time in pipeline.backward) or bounds["weight"]


@pytest.mark.parametrize("seed", range(1, 24, 2))
def test_the_largest_change_bounds_every_change_of_a_layer(seed: int, monkeypatch: Any) -> None:
    """Against the model and the link as they are read; delays follow from the rounded ones."""
    pipeline = drawn(seed)
    monkeypatch.setattr(rounding, "ATTEMPTS", ())
    with pytest.raises(ConflictError):
        drawn(seed)
    bounds = dict(pipeline.rounded_by)
    rng = Random(seed)
    monkeypatch.undo()
    for layer in pipeline.model.layers:
        stated = [rng.randint(1, 10**7), rng.randint(10**7, 10**8)]
        stated += [rng.randint(1, 10**7), rng.randint(1, 10**7)]
        for field, number in zip(
            ("forward", "backward", "activation", "output"), stated, strict=True
        ):
            change = abs(getattr(layer, field) - Fraction(number, 10**6))
            assert change <= bounds.get(field, 0)
    latency, bandwidth = (
        Fraction(rng.randint(1, 10**4), 10**6),
        Fraction(rng.randint(1, 10**7), 10**4),
    )
    assert abs(pipeline.link.latency - latency) <= bounds.get("link.latency", 0)
    assert abs(pipeline.link.bandwidth - bandwidth) <= bounds.get("link.bandwidth", 0)
    sizes = [layer.output for layer in pipeline.model.layers]
    ends = [sum(pipeline.counts[: stage + 1]) - 1 for stage in range(3)]
    delays = [pipeline.link.latency + sizes[end] / pipeline.link.bandwidth for end in ends]
    assert [*pipeline.p2p] == delays


def test_only_what_is_too_fine_is_rounded() -> None:
    """Memory is exact if times alone are too fine; equal speeds and factors stay."""
    fields = {**drawn_stages(Random(0)), "activation": "0.123457", "microbatch_memory": None}
    pipeline = Pipeline(**fields | {"mem_limit": None})
    assert {field for field, _ in pipeline.rounded_by}.isdisjoint({"activation", "mem_limit"})
    assert pipeline.activation == (Fraction("0.123457"),) * 4
    slower = Pipeline(**drawn_stages(Random(0)) | {"device_speed": ["0.5", 1, 1, 2]})
    assert slower.device_speed == (Fraction(1, 2), 1, 1, 2)


def test_a_backward_that_is_the_sum_of_its_parts_stays_the_sum() -> None:
    """Otherwise rounding would make splitting a backward lose time."""
    fields = drawn_stages(Random(2)) | {"backward": None}
    for pipeline in (Pipeline(**fields), drawn(3)):
        costs = pipeline.costs
        sums = [b + w for b, w in zip(costs.backward_input, costs.weight, strict=True)]
        assert [*costs.backward] == sums


def test_small_numbers_stay_above_0_and_limits_do_not_grow() -> None:
    pipeline = Pipeline(
        stages=2, batches=2, forward=["1e-6", 10**9], backward=["1e-6", 10**9],
        activation=["1e-6", 10**11], mem_limit="999999999999.999999",
        microbatch_memory=["1.000003", "0.999983"], device_speed=SPEEDS[:2],
    )  # fmt: skip
    assert {"forward", "activation", "mem_limit"} <= {field for field, _ in pipeline.rounded_by}
    assert min(pipeline.forward) > 0 < min(pipeline.activation)
    assert 10**12 - 1 <= pipeline.mem_limit < Fraction("999999999999.999999")


def test_sums_of_two_digits_that_are_too_large_are_refused() -> None:
    with pytest.raises(ConflictError, match=r"times: too large .* at most 2\^53"):
        Pipeline(stages=4, batches=10**5, forward="999999999999.999999")


def test_a_pipeline_with_a_grid_is_not_rounded() -> None:
    """It is that of a file, or one that is derived from another pipeline."""
    with pytest.raises(ConflictError, match="times: too large"):
        Pipeline(**drawn_stages(Random(0)), grid=Grid(1, 1))
    pipeline = drawn(0)
    derived = replace(pipeline, batches=4, microbatch_times=1, microbatch_memory=1)
    assert (derived.rounded_by, derived.grid) == (pipeline.rounded_by, pipeline.grid)


def test_phases_and_modules_are_rounded() -> None:
    layers = [
        {
            "phases": {
                "F": [{"on": "compute", "time": "1.234567"}, {"on": "link", "time": "0.765433"}],
                "B": [{"on": "compute", "time": "3.000007"}],
            },
            "activation": "4.000003",
            "modules": [{"name": "core_attn", "time": "0.300007", "memory": "1.000007"}],
        }
    ] * 4
    factors = {
        field: ["1.000003", "0.999983"] for field in ("microbatch_times", "microbatch_memory")
    }
    fields: dict[str, Any] = {"devices": 2, "batches": 2, "device_speed": SPEEDS[:2]}
    pipeline = Model(layers).pipeline(**fields, **factors, mem_limit=10**12)
    assert {"phases", "modules"} <= {field for field, _ in pipeline.rounded_by}
    layer = pipeline.model.layers[0]
    assert layer.forward == sum(phase.time for phase in layer.phases.forward)
    schedule = ppopt.evaluate(pipeline, "1f1b")
    restored, _ = schedule_json.loads(schedule_json.dumps(schedule), "x")
    assert restored.pipeline == schedule.pipeline


def test_a_plan_is_rounded_once() -> None:
    """All configurations have the same layers, speeds and ticks."""
    rng = Random(1)
    layers = [{"forward": f"{rng.randint(1, 10**8)}e-6"} for _ in range(8)]
    stated = {"device_speed": SPEEDS, "link": None, "p2p": "0.123457"}
    factors = {"microbatch_times": [f"{rng.randint(5 * 10**5, 10**6)}e-6" for _ in range(8)]}
    model, fields = rounded_once(Model(layers), 4, 8, stated | factors)
    assert fields["rounded_by"]
    space = PlanSpace(model, 4, (8,), chunks=(1, 2), partition="even", fields=fields)
    pipelines = [space.pipeline(configuration) for configuration in space]
    assert len(pipelines) >= 3
    assert {pipeline.grid for pipeline in pipelines} == {fields["grid"]}
    assert {pipeline.device_speed for pipeline in pipelines} == {fields["device_speed"]}
    assert all(pipeline.model.layers == model.layers for pipeline in pipelines)
    assert fields_of(pipelines[0])["rounded_by"] == fields["rounded_by"]
    assert rounded_once(Model([{"forward": 1}] * 8), 4, 8, {}) == (Model([{"forward": 1}] * 8), {})


def test_a_plan_of_other_names_is_rounded() -> None:
    """`p2p_time` and `p2p` are one setting."""
    layers = [{"forward": "1.234567"}, {"forward": "2.345679"}]
    factors = ["1.000003", "0.999983", "1.1", "0.723457"]
    speeds = {"device_speed": SPEEDS[:2], "microbatch_times": factors}
    _, fields = rounded_once(Model(layers), 2, 4, {"p2p_time": "0.123457", **speeds})
    assert fields["rounded_by"]
    assert fields == rounded_once(Model(layers), 2, 4, {"p2p": "0.123457", **speeds})[1]
