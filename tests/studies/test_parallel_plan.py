"""Plans over the parallelism, against planning every combination by itself."""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import pytest

import ppopt
from ppopt import InputError, Objective, Status
from ppopt.derivation.config_json import architecture_of
from ppopt.derivation.gpus import gpu_named
from ppopt.problem.backward_kind import BackwardKind
from ppopt.solver.options import checked_options
from ppopt.studies.parallel_plan import CLOSE, PlanArguments, plan_parallelism, work_bound
from ppopt.studies.parallel_result import ParallelPlan
from ppopt.studies.parallel_space import Parallelism, ParallelSpace
from ppopt.studies.plan_search import PlanSearch
from tests.factories.configs import CONFIGS, SMALL

LINEAR = PlanArguments(
    placements=("linear",), chunks=(1,), strategies=("1f1b",), recompute=("none",)
)


def space(**more: Any) -> ParallelSpace:
    lists = {"tensor": (1, 2), "microbatch": (1, 2), "data": (1, 2)}
    return ParallelSpace(architecture_of(SMALL), gpu_named("h100"), 8, 16, **(lists | more))


@cache
def found() -> ParallelPlan:
    return plan_parallelism(space(efficiency=(0.4, 0.2)), LINEAR, workers=1, time_limit=600)


@cache
def enumerated() -> dict[Parallelism, Fraction]:
    """The best step of every combination, each planned by itself to its proof."""
    values = {}
    for one, model in space(efficiency=(0.4, 0.2)).models()[0].items():
        plan = ppopt.plan(
            model.pipeline,
            placement="linear",
            chunks=1,
            strategies="1f1b",
            recompute="none",
            workers=1,
            time_limit=600,
        )
        assert plan.value is not None and plan.status is Status.OPTIMAL
        values[one] = plan.value
    return values


@pytest.mark.slow
def test_the_best_is_that_of_enumeration() -> None:
    least = min(enumerated().values())
    assert len(enumerated()) == 8
    assert found().value is not None
    assert least <= found().value <= least / (1 - CLOSE)
    assert found().best is not None and found().best.parallelism in enumerated()


@pytest.mark.slow
def test_no_bound_is_above_what_there_is() -> None:
    for row in found().rows:
        assert row.lower_bound <= enumerated()[row.parallelism]
        assert row.value is None or row.value >= enumerated()[row.parallelism]
    assert found().lower_bound is not None
    assert found().lower_bound <= min(enumerated().values())


def test_combinations_that_cannot_be_the_best_are_not_planned() -> None:
    assert any(row.plan is None for row in found().rows)
    assert [row.value is None for row in found().rows] == sorted(
        row.value is None for row in found().rows
    )


def test_tokens_per_second_and_gpu() -> None:
    """16 sequences of 4096 tokens in a step of 8 ms, on 8 GPUs: 1,024,000."""
    assert found().tokens_per_second(Fraction(8)) == 16 * 4096 / 0.008 / 8
    assert found().tokens_per_second(None) is None


def test_every_combination_trains_the_same_batch_on_the_same_gpus() -> None:
    models, skipped = space(data=(1, 2, 3)).models()
    for one, model in models.items():
        training = model.training
        assert training.gpus == 8
        assert training.batches * one.microbatch * one.data == 16
    assert {one.data for one in skipped} >= {3}
    assert all("no multiple of" in skipped[one] for one in skipped if one.data == 3)


def test_more_devices_than_layers_are_skipped() -> None:
    """Six layers and two ends are at most eight stages; sixteen GPUs in a row are too many."""
    _, skipped = ParallelSpace(architecture_of(SMALL), gpu_named("h100"), 16, 16).models()
    assert "layers" in skipped[Parallelism(1, 1, 1)]


def test_a_space_of_all_sizes() -> None:
    """Six layers and two ends, eight heads: pipelines of up to 8 devices on 16 GPUs. What has no
    pipeline is no news."""
    all_sizes = ParallelSpace.of_all_sizes(architecture_of(SMALL), gpu_named("h100"), 16, 16)
    models, skipped = all_sizes.models()
    assert {(one.tensor, one.data) for one in models} == {
        (tensor, data)
        for tensor in (1, 2, 4, 8)
        for data in (1, 2, 4, 8, 16)
        if 2 <= tensor * data <= 16
    }
    assert not skipped
    none = ParallelSpace.of_all_sizes(architecture_of(SMALL), gpu_named("h100"), 17, 16)
    assert none.models()[0] == {} and none.models()[1]


def test_experts_of_all_sizes_are_spread_over_as_many_ranks_as_can_share_them() -> None:
    """Eight experts on 12 data parallel ranks: 4 ranks with two of them each."""
    config = CONFIGS["mistralai/Mixtral-8x7B-v0.1"]
    all_sizes = ParallelSpace.of_all_sizes(architecture_of(config), gpu_named("h100"), 24, 48)
    experts = {one.data: model.training.expert for one, model in all_sizes.models()[0].items()}
    assert experts == {1: 1, 2: 2, 3: 1, 4: 4, 6: 2, 8: 8, 12: 4, 24: 8}
    given = ParallelSpace.of_all_sizes(
        architecture_of(config), gpu_named("h100"), 24, 48, training={"expert": 2}
    )
    assert {model.training.expert for model in given.models()[0].values()} == {2}


def test_an_efficiency_for_each_of_tensor() -> None:
    models, _ = space(efficiency=(0.4, 0.2)).models()
    assert {one.tensor: model.efficiency for one, model in models.items()} == {1: 0.4, 2: 0.2}


def test_work_over_devices_by_hand() -> None:
    """Two layers of F 1 and BW 2, three microbatches, two devices: 3 x 6 / 2."""
    model = ppopt.Model([ppopt.Layer(forward=1), ppopt.Layer(forward=1)])
    pipeline = model.pipeline(devices=2, batches=3)
    assert work_bound(pipeline, pipeline.model) == 9


def test_nothing_fits() -> None:
    one = space(tensor=(2,), microbatch=(1,), data=(2,))
    plan = plan_parallelism(one, replace(LINEAR, mem_limit=1), workers=1, time_limit=20)
    assert (plan.status, plan.best, plan.lower_bound) == (Status.INFEASIBLE, None, None)
    assert repr(plan).startswith("ParallelPlan(infeasible")


def test_a_plan_beside_a_known_value_ends_when_its_time_is_up() -> None:
    """Without one it searches a configuration at any time left. The value is above the bounds, so
    that every configuration stays open."""
    model = space().model(Parallelism(1, 1, 1))
    search = PlanSearch(
        LINEAR.space(model),
        Objective.MAKESPAN,
        BackwardKind.MIXED,
        checked_options(1, 1, began=time.monotonic() - 2),
    )
    assert not search._over
    search.set_known_value(2 * work_bound(model.pipeline, model.model), None)
    assert search._over


def test_combinations_that_megatron_does_not_run_are_skipped() -> None:
    """Of 16 sequences on 2 copies of 4 ranks, 8 microbatches are interleaved and 2 are not."""
    interleaved = PlanArguments(
        placements=("interleaved",), strategies=("interleaved",), runtime="megatron"
    )
    sizes = {"tensor": (1,), "data": (2,)}
    plan = plan_parallelism(space(**sizes, microbatch=(1, 4)), interleaved, workers=1, time_limit=3)
    assert [row.parallelism.microbatch for row in plan.rows] == [1]
    ((skipped, reason),) = plan.skipped.items()
    assert skipped.microbatch == 4
    assert "as many microbatches as ranks, and there are 2 for 4" in reason
    with pytest.raises(InputError, match="no parallelism is left: megatron: interleaved 1F1B"):
        plan_parallelism(space(**sizes, microbatch=(4,)), interleaved, workers=1, time_limit=3)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"tensor": ()}, "tensor: the list is empty"),
        ({"data": (0,)}, "data: 0 is below 1"),
        (
            {"efficiency": (0.4, 0.3, 0.2)},
            "efficiency: 3 values; give one, or one for each of the 2",
        ),
        ({"efficiency": (1.5,)}, "1.5 is not within"),
        ({"training": {"precision": "int4"}}, "neither bf16 nor fp8"),
        ({"data": (3,)}, "no parallelism is left: gpus: 8 is no multiple"),
    ],
)
def test_refused(more: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        plan_parallelism(space(**more), LINEAR, workers=1, time_limit=5)
