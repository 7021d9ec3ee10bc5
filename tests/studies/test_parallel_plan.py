"""Plans over the parallelism, against planning every combination by itself."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import pytest

import ppopt
from ppopt import InputError, Objective, Status
from ppopt.cancellation import within
from ppopt.derivation.config_json import architecture_of
from ppopt.derivation.gpus import gpu_named
from ppopt.formats.megatron_schedule import runs_order
from ppopt.formats.trainer_partition import megatron_arguments
from ppopt.problem.backward_kind import BackwardKind
from ppopt.solver.options import checked_options
from ppopt.studies.parallel_plan import CLOSING_SHARE, plan_parallelism
from ppopt.studies.parallel_result import ParallelPlan
from ppopt.studies.parallel_set_up import PlanArguments
from ppopt.studies.parallel_space import Parallelism, ParallelSpace
from ppopt.studies.plan_search import PlanSearch
from ppopt.studies.quick_bound import quick_bound
from ppopt.studies.step_breakdown import step_breakdown
from tests.factories.configs import CONFIGS, SMALL
from tests.packages import needed
from tests.studies.derived_models import models_of

LINEAR = PlanArguments(
    placements=("linear",), chunks=(1,), strategies=("1f1b",), recompute=("none",)
)


def space(**more: Any) -> ParallelSpace:
    lists = {"tensor": (1, 2), "microbatch": (1, 2), "data": (1, 2), "context": (1,)}
    gpus = more.pop("gpus", 8)
    return ParallelSpace(architecture_of(SMALL), gpu_named("h100"), gpus, 16, **(lists | more))


@cache
def plan_of_all() -> ParallelPlan:
    return plan_parallelism(space(efficiency=(0.4, 0.2)), LINEAR, workers=1, time_limit=600)


@cache
def enumerated() -> dict[Parallelism, Fraction]:
    """The best step of every combination, each planned by itself to its proof."""
    values = {}
    for combination, model in models_of(space(efficiency=(0.4, 0.2)))[0].items():
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
        values[combination] = plan.value
    return values


@pytest.mark.slow
def test_the_best_is_that_of_enumeration() -> None:
    minimum = min(enumerated().values())
    assert len(enumerated()) == 8
    assert plan_of_all().value is not None
    assert minimum <= plan_of_all().value <= minimum / (1 - CLOSING_SHARE)
    assert plan_of_all().best is not None and plan_of_all().best.parallelism in enumerated()


@pytest.mark.slow
def test_no_bound_is_above_what_there_is() -> None:
    for row in plan_of_all().rows:
        assert row.lower_bound <= enumerated()[row.parallelism]
        assert row.value is None or row.value >= enumerated()[row.parallelism]
    assert plan_of_all().lower_bound is not None
    assert plan_of_all().lower_bound <= min(enumerated().values())


def test_combinations_that_cannot_be_the_best_are_not_planned() -> None:
    assert any(row.plan is None for row in plan_of_all().rows)
    assert [row.value is None for row in plan_of_all().rows] == sorted(
        row.value is None for row in plan_of_all().rows
    )


def test_tokens_per_second_and_gpu() -> None:
    """16 sequences of 4096 tokens in a step of 8 ms, on 8 GPUs: 1,024,000."""
    assert plan_of_all().tokens_per_second(Fraction(8)) == 16 * 4096 / 0.008 / 8
    assert plan_of_all().tokens_per_second(None) is None


def test_a_frame_has_a_row_per_combination() -> None:
    """The parts of a step add up to its value where there is one."""
    needed("pandas")
    frame = plan_of_all().to_frame()
    assert list(frame.columns) == list(plan_of_all().row_object(plan_of_all().rows[0]))
    assert list(frame.tensor) == [row.parallelism.tensor for row in plan_of_all().rows]
    planned = frame[frame.value.notna()]
    parts = planned[["compute", "communication", "bubble", "gradient_sync", "optimizer"]]
    assert parts.sum(axis=1).tolist() == pytest.approx(planned.value.tolist())
    assert len(planned) > 0


def test_every_combination_trains_the_same_batch_on_the_same_gpus() -> None:
    models, skipped = models_of(space(data=(1, 2, 3)))
    for combination, model in models.items():
        training = model.training
        assert training.gpus == 8
        assert training.batches * combination.microbatch * combination.data == 16
    assert {combination.data for combination in skipped} >= {3}
    assert all(
        "no multiple of" in skipped[combination] for combination in skipped if combination.data == 3
    )


def test_more_devices_than_layers_are_skipped() -> None:
    """Six layers and two ends are at most eight stages; sixteen GPUs in a row are too many."""
    sizes = {"tensor": (1,), "data": (1,), "microbatch": (1,)}
    long = ParallelSpace(architecture_of(SMALL), gpu_named("h100"), 16, 16, **sizes)
    _, skipped = models_of(long)
    assert "layers" in skipped[Parallelism(1, 1, 1)]


def test_all_sizes_by_default() -> None:
    """16 GPUs and 16 sequences of 4096 tokens: all tensor sizes of a node of 8, every data size
    that divides what is left, microbatches of up to 4 sequences. Pipelines of more than 8 devices
    are skipped."""
    all_sizes = ParallelSpace(architecture_of(SMALL), gpu_named("h100"), 16, 16)
    models, skipped = models_of(all_sizes)
    sizes = {
        Parallelism(tensor, microbatch, data)
        for tensor in (1, 2, 4, 8)
        for data in (1, 2, 4, 8, 16)
        for microbatch in (1, 2, 4)
        if tensor * data <= 16 and data * microbatch <= 16
    }
    assert models.keys() | skipped.keys() == sizes
    assert skipped.keys() == {each for each in sizes if each.tensor * each.data == 1}
    assert all("8 layers for 16 stages" in reason for reason in skipped.values())


def test_long_sequences_are_divided_by_default() -> None:
    """32768 tokens: up to 8 ranks of 4096, within a node of 8 together with tensor."""
    long = space(tensor=None, context=None, training={"sequence": 2**15})
    sizes = {(each.tensor, each.context) for each in models_of(long)[0]}
    assert sizes == {
        (tensor, context)
        for tensor in (1, 2, 4, 8)
        for context in (1, 2, 4, 8)
        if tensor * context <= 8
    }
    short = space(tensor=(1,), context=None, training={"sequence": 2**13})
    assert {each.context for each in models_of(short)[0]} == {1, 2}


def test_groups_of_ranks_are_within_a_node_by_default() -> None:
    """Of 24 GPUs in nodes of 8, three ranks may be of two nodes; of 6 in one node they are not."""
    for gpus, tensors in ((24, {1, 2, 4, 8}), (6, {1, 2, 3, 6})):
        sizes = ParallelSpace(architecture_of(SMALL), gpu_named("h100"), gpus, 24)
        assert {each.tensor for each in sizes.combinations()} == tensors


def test_experts_are_shared_by_all_their_divisors_by_default() -> None:
    """Eight experts on 12 data parallel ranks: 1, 2 or 4 ranks share them."""
    config = CONFIGS["mistralai/Mixtral-8x7B-v0.1"]
    sizes = {"tensor": (1,), "context": (1,), "microbatch": (1,)}
    all_sizes = ParallelSpace(architecture_of(config), gpu_named("h100"), 24, 48, **sizes)
    models, _ = models_of(all_sizes)
    assert {each.expert for each in models if each.data == 12} == {1, 2, 4}
    assert {each.expert for each in models if each.data == 3} == {1}
    assert all(model.training.expert == each.expert for each, model in models.items())


def test_experts_that_are_not_divided_by_tensor_have_more_ranks() -> None:
    """Of tensor 4 x data 2 ranks all eight share the experts if their tensor size is 1."""
    config = CONFIGS["mistralai/Mixtral-8x7B-v0.1"]
    sizes = ParallelSpace(
        architecture_of(config), gpu_named("h100"), 8, 48, tensor=(4,), data=(2,), context=(1,),
        microbatch=(1,), training={"expert_tensor": 1},
    )  # fmt: skip
    models, skipped = models_of(sizes)
    assert {each.expert for each in models} == {1, 2, 4, 8} and not skipped


@cache
def plan_with_overlap() -> ParallelPlan:
    """Four layers of Qwen3-30B-A3B on 16 H100, whose 16 ranks of experts are on two nodes."""
    config = CONFIGS["Qwen/Qwen3-30B-A3B"] | {"num_hidden_layers": 4}
    lists = {"tensor": (1,), "context": (1,), "data": (16,), "microbatch": (1,)}
    training = {"overlap": ("grads", "dispatch", "wgrad"), "cuda_graphs": True}
    return plan_parallelism(
        ParallelSpace(
            architecture_of(config), gpu_named("h100"), 16, 64, **lists, expert=(1, 16),
            training=training,
        ),
        PlanArguments(strategies=("1f1b", "1f1b-overlap"), recompute=("none",)),
        workers=1,
        time_limit=600,
    )  # fmt: skip


def test_overlap_of_exchanges_with_experts_is_chosen() -> None:
    """Without ranks of experts there is no exchange, and with them none to three ways to run it."""
    rows = {
        (row.parallelism.expert, row.parallelism.overlap): row for row in plan_with_overlap().rows
    }
    overlaps = ("none", "dispatch", "dispatch,wgrad")
    assert set(rows) == {(1, "none"), *((16, overlap) for overlap in overlaps)}
    for (_, overlap), row in rows.items():
        own = () if overlap == "none" else tuple(overlap.split(","))
        assert row.model.training.overlap == ("grads", *own)
    combined = rows[16, "dispatch"]
    assert combined.strategy == "1f1b-overlap" and combined.value is not None
    alone = ppopt.evaluate(rows[16, "none"].model.pipeline, "1f1b").makespan
    assert combined.value < alone
    assert rows[16, "dispatch"].schedule is not None
    assert ppopt.verify(rows[16, "dispatch"].schedule) == []


def test_parts_of_a_step_with_pairs_add_up() -> None:
    """What pairs save is no exposed communication."""
    for row in plan_with_overlap().rows:
        if row.breakdown is not None and row.parallelism.overlap != "none":
            assert sum(row.breakdown) == row.value
            assert row.breakdown.communication > 0
            hidden = replace(row.model.training, overlap=("grads",))
            alone = ppopt.evaluate(replace(row.model, training=hidden).pipeline, "1f1b")
            assert row.breakdown.communication < step_breakdown(alone, row.model.layers)[1]


def test_quick_bounds_with_pairs_count_compute() -> None:
    """Of one device: its phases on compute, with every microbatch, and the optimizer."""
    for row in plan_with_overlap().rows:
        pipeline = row.model.pipeline
        bound = quick_bound(PlanArguments(recompute=("none",)).space(row.model), None)
        layers = [
            layer.phases.on_compute.times() if layer.phases else vars(layer)
            for layer in pipeline.model.layers
        ]
        work = sum(pipeline.batches * (each["forward"] + each["backward"]) for each in layers)
        assert bound is not None and bound <= work + sum(
            layer.optimizer for layer in pipeline.model.layers
        )
        assert row.value is None or 0 < bound <= row.value
        if row.parallelism.overlap == "dispatch":
            assert bound == work + sum(layer.optimizer for layer in pipeline.model.layers)


@pytest.mark.parametrize(("devices", "strategy"), [(1, "1f1b-overlap"), (2, "interleaved-overlap")])
def test_megatron_runs_combined_1f1b_where_exchanges_overlap(devices: int, strategy: str) -> None:
    config = CONFIGS["Qwen/Qwen3-30B-A3B"] | {"num_hidden_layers": 6}
    lists = {"tensor": (1,), "context": (1,), "data": (16,), "microbatch": (1,), "expert": (16,)}
    plan = plan_parallelism(
        ParallelSpace(
            architecture_of(config), gpu_named("h100"), 16 * devices, 64, **lists,
            training={"overlap": ("dispatch",), "cuda_graphs": True},
        ),
        PlanArguments(runtime="megatron", recompute=("none", "full")),
        workers=1,
        time_limit=600,
    )  # fmt: skip
    best = plan.best
    assert best is not None and best.schedule is not None
    assert (best.parallelism.overlap, best.strategy) == ("dispatch", strategy)
    assert runs_order(best.schedule)
    arguments = megatron_arguments(best.schedule.pipeline).splitlines()
    assert "--overlap-moe-expert-parallel-comm" in arguments
    assert "--recompute-granularity full" not in arguments


def test_names_of_overlaps_are_checked() -> None:
    with pytest.raises(InputError, match="wgrad delays W behind the exchanges of dispatch"):
        space(training={"overlap": ("wgrad",)})


def test_invalid_combinations_are_counted_by_reason() -> None:
    """Neither 3 nor 6 ranks can share eight heads; 12 devices are more than eight layers."""
    lists = {"tensor": (2, 3, 6), "data": (1, 4), "microbatch": (1,)}
    plan = plan_parallelism(
        space(gpus=24, training={"sequence": 4608}, **lists), LINEAR, workers=1, time_limit=600
    )
    assert [row.parallelism for row in plan.rows] == [Parallelism(2, 1, 4)]
    counts = plan.skipped_by_reason
    assert list(counts.values()) == [2, 2, 1]
    for reason, text in zip(counts, ("3 ranks", "6 ranks", "12 stages"), strict=True):
        assert text in reason


def test_what_defaults_leave_out_is_named() -> None:
    assert space().not_searched == ()
    left_out = space(tensor=None, microbatch=None).not_searched
    assert ["--tensor" in left_out[0], "--microbatch" in left_out[1]] == [True, True]


def test_too_many_combinations_are_refused() -> None:
    numbers = tuple(range(1, 70))
    with pytest.raises(InputError, match="more than 4096 combinations; give shorter lists"):
        space(tensor=numbers, data=numbers)


def test_an_efficiency_for_each_of_tensor() -> None:
    models, _ = models_of(space(efficiency=(0.4, 0.2)))
    assert {combination.tensor: model.efficiency for combination, model in models.items()} == {
        1: 0.4,
        2: 0.2,
    }


def test_nothing_fits() -> None:
    small_space = space(tensor=(2,), microbatch=(1,), data=(2,))
    plan = plan_parallelism(small_space, replace(LINEAR, mem_limit=1), workers=1, time_limit=600)
    assert (plan.status, plan.best, plan.lower_bound) == (Status.INFEASIBLE, None, None)
    assert repr(plan).startswith("ParallelPlan(infeasible")


def test_a_plan_beside_a_known_value_ends_when_its_time_is_up() -> None:
    """Without one it searches a configuration at any time left. The value is above the bounds, so
    that every configuration stays open."""
    model = space().model(Parallelism(1, 1, 1))
    with within(-1):
        search = PlanSearch(
            LINEAR.space(model), Objective.MAKESPAN, BackwardKind.MIXED, checked_options(1, 1)
        )
        assert not search._search.over
        bound = quick_bound(LINEAR.space(model), None)
        assert bound is not None
        search.state.cutoff = 2 * bound
        assert search._search.over


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


def test_lengths_of_documents() -> None:
    """Eight microbatches of one sequence: two ranks of four, and a mean of 2,560 tokens each."""
    lengths = ((4096,), (1024, 1024), (2048,), (2048,)) * 2
    choices = replace(LINEAR, order="search", strategies=None)
    asked = space(tensor=(2,), data=(1, 2), microbatch=(1, 2), microbatch_tokens=lengths)
    plan = plan_parallelism(asked, choices, workers=1, time_limit=1)
    (row,) = plan.rows
    assert (row.parallelism.data, row.parallelism.microbatch) == (2, 1)
    reasons = set(plan.skipped.values())
    assert any("microbatch_tokens: has 8 entries for 16 microbatches" in each for each in reasons)
    assert any("every entry of microbatch_tokens is a microbatch of 1" in each for each in reasons)
    best = row.plan.schedule.pipeline
    assert sorted(best.order) == list(range(8))
    assert best.tokens_per_microbatch == 2560
    assert plan.tokens_per_second(Fraction(1000)) == 16 * 2560 / 8
    assert row.lower_bound is not None and 0 < row.lower_bound <= row.plan.value


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tensor": ()}, "tensor: the list is empty"),
        ({"data": (0,)}, "data: 0 is below 1"),
        (
            {"efficiency": (0.4, 0.3, 0.2)},
            "efficiency: 3 values; give one, or one for each of the 2",
        ),
        ({"efficiency": (1.5,)}, "1.5 is not within"),
        ({"training": {"precision": "int4"}}, "precision: .*int4.* is unknown"),
        ({"data": (3,)}, "no parallelism is left: gpus: 8 is no multiple"),
    ],
)
def test_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan_parallelism(space(**more), LINEAR, workers=1, time_limit=5)
