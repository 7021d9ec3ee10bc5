"""Plans over tiny spaces, against the exact optimum of every partition of every configuration."""

from __future__ import annotations

import signal
from bisect import bisect_left
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import pytest

import ppopt
from ppopt import Model, Pipeline, PlanSpace, RowStatus, Status, stop
from ppopt.formats import schedule_json
from ppopt.formats.config import model_of
from ppopt.formats.megatron_schedule import runs_order
from ppopt.formats.models import read_settings
from ppopt.formats.trainer_partition import megatron_arguments
from ppopt.report.plan_objects import plan_object
from ppopt.report.plan_text import describe_space
from ppopt.solver.choices.configuration import Configuration
from ppopt.solver.choices.search import ConfigurationSearch
from ppopt.studies.plan_baselines import PlanBaselines
from ppopt.studies.plan_search import PlanSearch
from ppopt.studies.plan_space import PlanConfiguration, check_megatron
from tests.clock import late, work_clock
from tests.oracles.configurations import configurations, least_value, partitions
from tests.tiers import first

ALONE = pytest.mark.usefixtures("search_alone")

UNEVEN = Model([{"forward": time} for time in (3, 1, 2, 1, 4, 1, 2, 3, 1, 2, 5, 1)])
SIZES = (((1, 2), (1,)), ((1,), (1, 2)), ((1,), (2, 1)))
"""Chunks and microbatches: at most 12 operations, few enough for exhaustive search."""
HEAD = {"forward": 3, "backward": 7, "weight": 3, "activation": 1}
OPEN: dict[str, Any] = {
    "model": Model([{"forward": 1, "activation": 1, "count": 9}, HEAD]),
    "devices": 3,
    "batches": 12,
    "mem_limit": 7,
    "workers": 1,
    "time_limit": 600,
}
"""A plan that is not proved in a moment: memory for fewer microbatches than devices."""


def draw(rng: Random) -> dict[str, Any]:
    """A model of 4 or 5 layers on 2 devices, few microbatches, with limits that matter."""
    layers = [
        {
            "forward": rng.randint(1, 4),
            "backward": rng.randint(1, 6),
            "weight": 0,
            "activation": rng.randint(1, 4),
            "static": rng.randint(0, 2),
            "recompute": {"time": rng.randint(0, 2), "activation": rng.randint(0, 1)},
        }
        for _ in range(rng.randint(4, 5))
    ]
    chunks, batches = rng.choice(SIZES)
    whole = sum(layer["activation"] + layer["static"] for layer in layers)  # type: ignore[misc, operator]
    return {
        "model": Model(layers),
        "chunks": chunks,
        "batches": batches,
        "mem_limit": rng.choice((None, rng.randint(whole // 3, whole))),
        "p2p": rng.choice((0, 1)),
        "objective": rng.choice(("makespan", "makespan", "device-span")),
    }


def minimum(
    space: PlanSpace, configuration: PlanConfiguration, objective: Any, *, whole: bool = True
) -> Fraction | None:
    """The optimum of a configuration over all partitions, in the user's unit."""
    pipeline = space.model.pipeline(
        devices=space.devices, batches=configuration.batches, placement=configuration.placement,
        chunks=configuration.chunks, partition="search", recompute=configuration.recompute,
        **space.fields,
    )  # fmt: skip
    return least_value(pipeline, fused=whole, objective=objective)


@ALONE
@pytest.mark.parametrize("seed", first(3, range(8)))
def test_no_configuration_partition_or_schedule_is_better(seed: int) -> None:
    """All of a tiny space, enumerated: same best, and no bound above any value."""
    fields = draw(Random(seed))
    model, objective, whole = fields.pop("model"), fields["objective"], seed % 2 == 0
    plan = ppopt.plan(
        model,
        devices=2,
        recompute=("none", "full"),
        backward_kind="whole" if whole else "split",
        workers=1,
        time_limit=600,
        **fields,
    )
    values = {
        configuration: minimum(plan.space, configuration, objective, whole=whole)
        for configuration in plan.space
    }
    each = [
        value / configuration.batches
        for configuration, value in values.items()
        if value is not None
    ]
    assert len(plan.rows) == len(values)
    for row in plan.rows:
        value = values[row.configuration]
        if value is None:
            assert row.status in (RowStatus.INFEASIBLE, RowStatus.PRUNED, RowStatus.UNKNOWN)
        else:
            assert row.status is not RowStatus.INFEASIBLE
            assert row.lower_bound is not None and row.lower_bound <= value
            assert row.value is None or row.value >= value
    if not each:
        assert plan.status is Status.INFEASIBLE and plan.lower_bound is None
        return
    assert plan.status is Status.OPTIMAL and plan.gap == 0
    assert plan.best is not None and plan.best.per_microbatch == min(each)
    assert plan.schedule is not None and ppopt.verify(plan.schedule) == []


@ALONE
@pytest.mark.parametrize("units", [{}, {"time_unit": "ms"}, {"memory_unit": "GiB"}])
def test_megatron_takes_models_with_units(units: dict[str, str]) -> None:
    """Closed forms of equal stages: interleaved m (F + BW) + (p - 1)(F + BW) / v, and 1F1B v = 1.

    Here p = m = 4, v = 2, and F + BW of two layers is 2 (1.5 + 3) = 9.
    """
    model = Model([{"forward": 1.5, "count": 8}], **units)
    plan = ppopt.plan(model, devices=4, batches=4, runtime="megatron", workers=1)
    values = {row.configuration.strategy: row.value for row in plan.rows}
    assert plan.status is Status.OPTIMAL
    assert values == {"interleaved": 4 * 9 + Fraction(3 * 9, 2), "1f1b": 4 * 9 + 3 * 9}


def accepts(pipeline: Pipeline) -> bool:
    """Whether Megatron-LM takes a partition."""
    with suppress(ppopt.NotApplicableError):
        megatron_arguments(pipeline)
        return True
    return False


def test_a_model_that_megatron_takes_in_no_partition_is_not_infeasible() -> None:
    """Every partition of small models against what is said before any search."""
    rng, refused, count = Random(5), 0, 0
    while count < 60:
        roles = ["decoder"] * rng.randint(0, 2) + ["embedding"] * rng.randint(0, 1)
        roles += ["decoder"] * rng.randint(1, 3) + ["mtp"] * rng.randint(0, 3)
        roles += ["head"] * rng.randint(0, 2)
        if rng.random() < 0.1:
            rng.shuffle(roles)
        devices, chunks = rng.choice(((1, 1), (2, 1), (3, 1), (1, 2), (2, 2)))
        if len(roles) < devices * chunks:
            continue
        count += 1
        pipeline = Model([{"forward": 1, "role": role} for role in roles]).pipeline(
            devices=devices, batches=2, chunks=chunks, partition="search"
        )
        if any(map(accepts, configurations(pipeline))):
            check_megatron(pipeline)
            continue
        refused += 1
        with pytest.raises(ppopt.NotApplicableError):
            check_megatron(pipeline)
    assert 5 < refused < 55


@pytest.mark.parametrize("batches", [4.5, "4", [4, "9"], [True]])
def test_batches_are_whole_numbers(batches: Any) -> None:
    with pytest.raises(ppopt.InputError, match=r"batches: .* is not a whole number"):
        ppopt.plan(Model([{"forward": 1, "count": 4}]), devices=2, batches=batches, time_limit=1)


@pytest.mark.parametrize("fields", [{}, {"mem_limit": 100}])
@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([{"role": "decoder", "count": 6}, {"role": "head", "count": 2}], "the head is one layer"),
        ([{"count": 2, "recompute": True}, {"count": 6}], "layers recompute"),
        ([{"count": 2}, {"role": "mtp", "count": 2}], "MTP layers are in stages 2, 3"),
        ([{"count": 3}, {"role": "embedding"}, {"count": 2}], "4 stages need 7 layers; .* has 6"),
    ],
)
def test_what_megatron_does_not_take_is_named(
    layers: list[dict[str, Any]], message: str, fields: dict[str, int]
) -> None:
    """A plan said "proved infeasible", as if memory did not suffice."""
    model = Model([{"forward": 1, "activation": 1, **layer} for layer in layers])
    with pytest.raises(ppopt.InputError, match=message):
        ppopt.plan(
            model, devices=4, batches=4, runtime="megatron", time_limit=2, workers=1, **fields
        )


@ALONE
def test_a_strategy_that_cannot_run_is_skipped_and_not_infeasible() -> None:
    """DualPipe-V on 2 devices needs 4 microbatches."""
    model = Model([{"forward": 1, "count": 8}])
    plan = ppopt.plan(
        model, devices=2, batches=(3, 4), strategies="dualpipe-v", chunks=2, workers=1
    )
    assert [row.configuration.batches for row in plan.rows] == [4]
    assert [reason for _, reason in plan.skipped] == [
        "batches: 3 do not fill strategy dualpipe-v on 2 devices; give at least 4"
    ]


@ALONE
def test_megatron_runs_its_two_strategies_on_partitions_that_it_takes() -> None:
    """It wants MTP layers in one stage, and the last of its rank."""
    mtp = {"forward": 1, "activation": 1, "role": "mtp"}
    model = Model([{"forward": 1, "activation": 1, "count": 4}, {**mtp, "count": 2}])
    plan = ppopt.plan(model, devices=2, batches=4, runtime="megatron", workers=1)
    assert {row.configuration.strategy for row in plan.rows} == {"1f1b", "interleaved"}
    assert plan.status is Status.OPTIMAL
    for row in plan.rows:
        if row.schedule is not None:
            roles = [
                [layer.role for layer in stage] for stage in model.stage_layers(row.pipeline.counts)
            ]
            assert sum("mtp" in stage for stage in roles) == 1
    with pytest.raises(ppopt.InputError, match="Megatron-LM runs 1f1b and interleaved only"):
        ppopt.plan(model, devices=2, batches=4, runtime="megatron", strategies="zbv")


@ALONE
def test_megatron_runs_an_encoder_in_the_first_stage() -> None:
    """Its layers are longer than half of the model; a balanced partition has 3 there."""
    layers = [{"forward": 2, "count": 4}, {"role": "embedding"}, {"count": 3}, {"role": "head"}]
    model = Model([{"forward": 1, **layer} for layer in layers])
    assert model.pipeline(devices=2, batches=2).counts == (3, 6)
    plan = ppopt.plan(
        model, devices=2, batches=2, placement="linear", runtime="megatron", workers=1
    )
    assert plan.best.pipeline.counts == (5, 4) and plan.status is Status.OPTIMAL


@ALONE
def test_megatron_is_not_planned_for_a_model_of_which_it_takes_no_partition() -> None:
    """Its full recompute leaves out the head, and it has one. That proves nothing infeasible."""
    head = {"forward": 1, "activation": 1, "role": "head", "recompute": True}
    model = Model([{"forward": 1, "activation": 1, "count": 4}, head])
    for recompute in (None, "full"):
        with pytest.raises(ppopt.InputError, match="runtime: Megatron-LM: the head recomputes"):
            ppopt.plan(model, devices=2, batches=4, runtime="megatron", recompute=recompute)
    two = Model([{"forward": 1, "count": 4}, {"forward": 1, "role": "head", "count": 2}])
    with pytest.raises(ppopt.InputError, match="the head is one layer, the last"):
        ppopt.plan(two, devices=2, batches=4, runtime="megatron")
    plan = ppopt.plan(
        model, devices=2, batches=4, runtime="megatron", recompute="none", mem_limit=9, workers=1
    )
    assert plan.status is Status.OPTIMAL


@ALONE
@pytest.mark.parametrize(
    ("devices", "batches", "group", "left"),
    [
        (4, 2, None, {"1f1b"}),
        (1, 4, None, {"1f1b"}),
        (4, 4, None, {"1f1b", "interleaved"}),
        (4, 6, None, {"1f1b", "interleaved"}),
        (4, 8, 16, {"1f1b"}),
        (4, 8, 8, {"1f1b", "interleaved"}),
    ],
)
def test_a_plan_for_megatron_interleaves_only_what_megatron_runs(
    devices: int, batches: int, group: int | None, left: set[str]
) -> None:
    """Its rules are in `ppopt.formats.megatron_schedule`, and tested there against Megatron-LM."""
    model = Model([{"forward": 1, "activation": 1, "count": 8}])
    plan = ppopt.plan(
        model, devices=devices, batches=batches, runtime="megatron", workers=1, chunks=(1, 2),
        options=ppopt.Options(group_size=group),
    )  # fmt: skip
    assert {row.configuration.strategy for row in plan.rows} == left
    assert all("megatron: " in reason for _, reason in plan.skipped)
    for row in plan.rows:
        if row.schedule is not None:
            assert runs_order(row.schedule)
    assert plan_object(plan)["use"]["megatron_arguments"] is not None


@ALONE
def test_the_group_size_of_a_plan_is_in_its_arguments() -> None:
    model = Model([{"forward": 1, "activation": 1, "count": 8}])
    plan = ppopt.plan(
        model, devices=4, batches=6, runtime="megatron", placement="interleaved", workers=1
    )
    assert "-virtual-pipeline-stage 6" in plan_object(plan)["use"]["megatron_arguments"]


@ALONE
def test_torch_runs_one_route() -> None:
    model = Model([{"forward": 1, "activation": 1, "count": 4}])
    plan = ppopt.plan(
        model, devices=2, batches=4, runtime="torch", strategies=("1f1b", "chimera"), workers=1
    )
    assert [row.configuration.strategy for row in plan.rows] == ["1f1b"]
    assert "routes" in plan.skipped[0][1]


def test_what_more_memory_brings() -> None:
    """Two layers of activation 10 on two devices: a limit of 20 holds two microbatches, 19 one."""
    model = Model([{"forward": 1, "activation": 10, "count": 2}])
    options: dict[str, Any] = {"devices": 2, "batches": 4, "placement": "linear", "workers": 1}
    tight = ppopt.plan(model, **options, mem_limit=19, recompute="none")
    wide = ppopt.plan(model, **options, mem_limit=20, recompute="none")
    more = tight.more_memory
    assert more is not None and more.limits == (Fraction(209, 10),) * 2
    assert more.value == wide.value and more.lower_bound <= more.value < tight.value  # type: ignore[operator]
    assert ppopt.plan(model, **options).more_memory is None


@pytest.mark.parametrize("seed", first(1, [0, 3]))
def test_no_schedule_within_more_memory_is_below_its_bound(seed: int) -> None:
    """Limits that matter; every partition of every configuration by exhaustive search."""
    fields = draw(Random(seed)) | {"mem_limit": 12}
    model, objective = fields.pop("model"), fields["objective"]
    plan = ppopt.plan(
        model,
        devices=2,
        recompute=("none", "full"),
        backward_kind="whole",
        workers=1,
        time_limit=600,
        **fields,
    )
    more = plan.more_memory
    wide = replace(plan.space, fields={**plan.space.fields, "mem_limit": list(more.limits)})
    minima = [
        (configuration.batches, minimum(wide, configuration, objective)) for configuration in wide
    ]
    best = min(value / batches for batches, value in minima if value is not None)
    best *= plan.best.configuration.batches
    assert more.lower_bound <= best <= more.value


def least_peak(
    space: PlanSpace, configuration: PlanConfiguration, objective: Any, value: Fraction
) -> int:
    """The least limit of both devices at which a configuration has a schedule of this value."""

    def reached(limit: int) -> bool:
        own = space.fields.get("mem_limit", limit)
        lower = replace(space, fields={**space.fields, "mem_limit": min(own, limit)})
        reached_value = minimum(lower, configuration, objective)
        return reached_value is not None and reached_value <= value

    return bisect_left(range(100), True, key=reached)


@pytest.mark.parametrize("seed", first(1, (1, 0, 2)))
def test_no_schedule_as_fast_needs_less_memory_than_is_said(seed: int) -> None:
    """The best configuration under every limit, by exhaustive search of all partitions."""
    fields = draw(Random(seed))
    model, objective = fields.pop("model"), fields["objective"]
    plan = ppopt.plan(
        model,
        devices=2,
        recompute=("none", "full"),
        backward_kind="whole",
        workers=1,
        time_limit=600,
        **fields,
    )
    assert plan.best is not None and plan.value is not None and plan.least_memory is not None
    memory, bound = plan.least_memory
    assert plan.schedule is not None and ppopt.verify(plan.schedule) == []
    assert max(plan.schedule.peak_memory) == memory
    true = least_peak(plan.space, plan.best.configuration, objective, plan.value)
    assert bound <= true == memory
    assert plan.schedule.pipeline.mem_limit == plan.rows[0].result.pipeline.mem_limit
    peaks = [row.peak for row in plan.rows if row.per_microbatch == plan.best.per_microbatch]
    assert min(peaks) == memory  # type: ignore[type-var]


@pytest.mark.parametrize("seed", first(1, (1, 0, 2)))
def test_the_least_memory_that_is_almost_as_fast(seed: int) -> None:
    """Every configuration under every limit, by exhaustive search of all partitions."""
    fields = draw(Random(seed))
    model, objective = fields.pop("model"), fields["objective"]
    plan = ppopt.plan(
        model, devices=2, recompute=("none", "full"), backward_kind="whole", workers=1,
        time_limit=600, within=Fraction(1, 5), **fields,
    )  # fmt: skip
    assert plan.best is not None and plan.within is not None and plan.least_memory is not None
    slowest = plan.best.per_microbatch * Fraction(6, 5)  # type: ignore[operator]
    configuration, value, memory, bound = plan.within
    assert value <= slowest * configuration.batches
    own = least_peak(plan.space, configuration, objective, value)
    every = (row.configuration for row in plan.rows)
    least_of_all = min(
        least_peak(plan.space, configuration, objective, slowest * configuration.batches)
        for configuration in every
    )
    assert least_of_all <= memory <= plan.least_memory.memory
    assert own <= memory
    assert bound is None or bound <= least_of_all
    assert memory == least_of_all or bound is None


def test_a_share_below_zero_is_refused() -> None:
    with pytest.raises(ppopt.InputError, match="within: -1 is below 0; give a share"):
        ppopt.plan(UNEVEN, devices=2, batches=2, within=-1)


def test_a_strategy_has_the_partition_of_least_memory_among_the_fastest() -> None:
    """The balanced partition 2,4 takes as long as 3,3."""
    sizes = ((3, 1), (3, 3), (3, 4), (2, 3), (1, 5), (2, 6))
    layers = [{"forward": time, "activation": memory} for time, memory in sizes]
    options: dict[str, Any] = {"devices": 2, "batches": 4}
    plan = ppopt.plan(Model(layers), strategies="1f1b", chunks=1, workers=1, **options)
    schedules = [
        ppopt.evaluate(Model(layers).pipeline(partition=counts, **options), "1f1b")
        for counts in partitions(6, 2)
    ]
    fastest = min(schedule.makespan for schedule in schedules)
    peaks = [max(schedule.peak_memory) for schedule in schedules if schedule.makespan == fastest]
    assert plan.schedule is not None and plan.least_memory is not None
    assert plan.schedule.origin.strategy == "1f1b" and plan.value == fastest
    assert len(set(peaks)) > 1 and plan.least_memory == (min(peaks), min(peaks))


def test_ctrl_c_in_the_search_for_less_memory_keeps_what_is_proved() -> None:
    def press(state: ppopt.Progress) -> None:
        if "limit" in state.phase and not pressed:
            pressed.append(state)
            signal.raise_signal(signal.SIGINT)

    pressed: list[ppopt.Progress] = []
    model = Model([{"forward": 1, "activation": 1, "count": 6}])
    plan = ppopt.plan(model, devices=2, batches=6, workers=1, progress=press)
    assert pressed and plan.interrupted and plan.status is Status.OPTIMAL
    assert plan.least_memory is not None and plan.schedule is not None
    assert max(plan.schedule.metrics.peak_memory_ticks) == plan.least_memory.memory
    assert plan.least_memory.lower_bound <= plan.least_memory.memory


@ALONE
def test_the_bound_of_every_configuration_is_confirmed_by_the_rechecker() -> None:
    fields = draw(Random(2))
    plan = ppopt.plan(
        fields["model"], devices=2, batches=2, mem_limit=9, backward_kind="whole", workers=1
    )
    stated = [row for row in plan.rows if row.result.claim is not None]
    assert len(stated) > 2
    for row in stated:
        assert ppopt.recheck(row.result, workers=1).verdict is ppopt.Verdict.CONFIRMED, row


def test_a_bound_alone_rules_a_configuration_out() -> None:
    """Recompute of every layer adds its F to every backward: 4/3 of the work, and no less."""
    model = Model([{"forward": 1, "activation": 1, "count": 4}])
    plan = ppopt.plan(
        model, devices=2, batches=8, placement="linear", recompute=("full", "none"), workers=1,
        time_limit=600,
    )  # fmt: skip
    best, second = plan.rows
    assert best.configuration.recompute == "none" and best.status is RowStatus.OPTIMAL
    assert second.status is RowStatus.PRUNED
    assert second.lower_bound is not None and best.value is not None
    assert second.lower_bound >= 8 * 2 * 4 > best.value >= 8 * 2 * 3


@ALONE
def test_several_batch_counts_compare_by_time_per_microbatch() -> None:
    """More microbatches share the same warm-up."""
    model = Model([{"forward": 1, "activation": 1, "count": 4}])
    plan = ppopt.plan(model, devices=2, batches=(2, 8, 4), placement="linear", workers=1)
    assert plan.best is not None and plan.best.configuration.batches == 8
    assert plan.status is Status.OPTIMAL and plan.lower_bound == plan.value
    bounds = {row.configuration.batches: row.bound_per_microbatch for row in plan.rows}
    assert bounds[8] < bounds[4] < bounds[2]  # type: ignore[operator]


@ALONE
def test_no_configuration_fits() -> None:
    """One microbatch takes 10 on three devices."""
    plan = ppopt.plan(**{**OPEN, "mem_limit": 3}, recompute="none")
    assert plan.status is Status.INFEASIBLE
    assert plan.best is None and plan.value is None and plan.lower_bound is None
    assert {row.status for row in plan.rows} == {RowStatus.INFEASIBLE}
    assert "infeasible" in repr(plan)


@ALONE
@pytest.mark.slow
def test_one_worker_repeats_itself() -> None:
    model = Model([{"forward": 1, "activation": 1, "count": 5}, HEAD])
    options: dict[str, Any] = {"devices": 2, "batches": 4, "mem_limit": 12, "workers": 1}
    first, second = (ppopt.plan(model, time_limit=600, **options) for _ in range(2))
    assert first.status is Status.OPTIMAL
    assert first.schedule is not None and second.schedule is not None
    assert schedule_json.dumps(first.schedule) == schedule_json.dumps(second.schedule)
    assert [row.lower_bound for row in first.rows] == [row.lower_bound for row in second.rows]
    assert [row.searches for row in first.rows] == [row.searches for row in second.rows]


def test_a_tiny_time_limit_still_gives_a_plan() -> None:
    plan = ppopt.plan(**{**OPEN, "time_limit": 0.01})
    assert plan.status is Status.FEASIBLE
    assert plan.schedule is not None and ppopt.verify(plan.schedule) == []
    assert plan.value is not None and plan.lower_bound is not None
    assert 0 < plan.lower_bound < plan.value


@ALONE
@pytest.mark.slow
def test_stop_and_progress_are_of_the_whole_plan() -> None:
    seen: list[ppopt.Progress] = []
    plan = ppopt.plan(
        **OPEN, stop=stop.GapBelow(0.06),
        progress=seen.append,
    )  # fmt: skip
    values = [state.value for state in seen if state.value is not None]
    bounds = [state.lower_bound for state in seen]
    assert values == sorted(values, reverse=True) and bounds == sorted(bounds)
    assert plan.gap is not None and plan.gap <= Fraction(6, 100)
    assert any(state.phase.startswith("v/2, recompute search") for state in seen)


def test_ctrl_c_keeps_the_best_with_its_bound() -> None:
    def press(state: ppopt.Progress) -> None:
        if state.value is not None and not pressed:
            pressed.append(state)
            signal.raise_signal(signal.SIGINT)

    pressed: list[ppopt.Progress] = []
    plan = ppopt.plan(**OPEN, progress=press)
    assert plan.interrupted and plan.status is Status.FEASIBLE
    assert plan.schedule is not None and ppopt.verify(plan.schedule) == []
    assert plan.value is not None and plan.lower_bound is not None
    assert plan.lower_bound <= plan.value


@ALONE
def test_a_given_partition_is_kept() -> None:
    model = Model([{"forward": 1, "activation": 1, "count": 8}])
    plan = ppopt.plan(model, devices=2, batches=4, partition="even", workers=1)
    assert {row.pipeline.counts for row in plan.rows} == {(4, 4), (2, 2, 2, 2)}
    assert plan.status is Status.OPTIMAL


@ALONE
def test_two_routes_go_with_a_partition_by_rule() -> None:
    """What the message for `--routes 2` says to type."""
    model = Model([{"forward": 1, "activation": 1, "count": 8}])
    plan = ppopt.plan(model, devices=2, batches=4, routes=2, partition="balanced", workers=1)
    assert plan.best is not None and plan.best.pipeline.routes == 2


def test_chosen_recompute_is_never_shown_worse_than_none_or_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if there were no time for strategies and the search of chosen recompute."""
    enter = ConfigurationSearch._enter

    def late(
        self: ConfigurationSearch, configuration: Configuration, level: int, **more: Any
    ) -> bool:
        return "recompute search" not in self.choice.describe(configuration.key) and enter(
            self, configuration, level, **more
        )

    monkeypatch.setattr(ConfigurationSearch, "_enter", late)
    monkeypatch.setattr(PlanBaselines, "search", lambda *_, **__: iter(()))
    monkeypatch.setattr(PlanSearch, "evaluate_first", lambda _, **__: None)
    monkeypatch.setattr("ppopt.studies.plan.usual_schedules", lambda *_, **__: [])
    layers = Model([{"forward": 2, "activation": 1, "count": 4}])
    plan = ppopt.plan(
        layers, devices=2, batches=4, mem_limit=3, recompute=("none", "full", "search"),
        chunks=1, placement="linear", workers=1, time_limit=2,
    )  # fmt: skip
    rows = {row.configuration.recompute: row for row in plan.rows}
    references = [rows[name].value for name in ("none", "full")]
    values = [value for value in references if value is not None]
    assert values and rows["search"].value == min(values)
    assert rows["search"].schedule is not None and ppopt.verify(rows["search"].schedule) == []
    assert plan.rows[0].configuration.recompute != "search"
    assert plan.lower_bound is not None and plan.lower_bound <= min(values)


@pytest.mark.slow
def test_megatron_is_planned_as_well_as_its_strategy_is_evaluated() -> None:
    """The same strategy over the same partitions."""
    model, shared = UNEVEN, {"placement": "interleaved", "chunks": 2}
    plan = ppopt.plan(
        model, devices=3, batches=6, strategies="interleaved", recompute="none", workers=1,
        time_limit=600, **shared,
    )  # fmt: skip
    asked = model.pipeline(devices=3, batches=6, partition="search", **shared)
    chosen = ppopt.best_choice(asked, "interleaved", time_limit=600)
    assert plan.value is not None and plan.value <= chosen.value


@ALONE
def test_what_cannot_be_set_up_is_skipped_with_the_reason() -> None:
    model = Model([{"forward": 1, "activation": 1, "count": 3}])
    plan = ppopt.plan(model, devices=2, batches=4, workers=1)
    assert [row.configuration.placement for row in plan.rows] == ["linear"]
    assert [name for name, _ in plan.skipped] == [
        "interleaved/2, recompute none, 4 microbatches",
        "v/2, recompute none, 4 microbatches",
    ]
    assert all("3 layers for 4 stages" in reason for _, reason in plan.skipped)


def test_what_cannot_be_set_up_when_time_is_up_is_skipped_with_the_reason() -> None:
    """Only full recompute fits; no time is left for the strategy, which splits the backward."""
    layer = {"forward": 1, "activation": 4, "recompute": {"time": 1, "activation": 1}}
    plan = ppopt.plan(
        Model([layer] * 4), devices=2, batches=2, chunks=1, recompute=("none", "full"),
        strategies=("searched", "zb-1p"), backward_kind="whole", mem_limit=5,
        time_limit=1e-9, workers=1,
    )  # fmt: skip
    assert plan.best is not None and plan.best.configuration.recompute == "full"
    assert plan.skipped == (
        ("zb-1p, linear, recompute none, 2 microbatches", "time limit reached"),
        ("zb-1p, linear, recompute full, 2 microbatches", "time limit reached"),
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"placement": "diagonal"}, "placement: 'diagonal' is unknown"),
        ({"placement": [0, 0, 1, 1]}, "placement: 0,0,1,1 has no name; a plan chooses from linear"),
        ({"placement": [0, -1]}, "placement: stage 1: -1 is not a device number"),
        ({"recompute": ("none", "half")}, "recompute: 'half' is unknown"),
        ({"chunks": 1, "placement": "v"}, "chunks: linear has 1 per device"),
        ({"batches": ()}, "batches: the list is empty"),
        ({"devices": 9}, "8 layers for 9 stages"),
        ({"routes": 2}, "takes a partition by rule: --routes 2 --partition balanced"),
        ({"strategies": "1f2b"}, "strategy: '1f2b' is unknown"),
        ({"strategies": "zbv", "chunks": 1}, "strategies: zbv have other placements"),
        ({"runtime": "jax"}, "runtime: 'jax' is unknown"),
        ({"time_limit": 0}, "time_limit: 0 is not above 0"),
    ],
)
def test_misuse(fields: dict[str, Any], message: str) -> None:
    model = Model([{"forward": 1, "activation": 1, "count": 8}])
    with pytest.raises(ppopt.InputError, match=message):
        ppopt.plan(model, **{"devices": 2, "batches": 4, **fields})


@pytest.mark.slow
def test_many_partitions_without_a_program_leave_the_time_limit_as_it_is() -> None:
    """Five chunks: 820 partitions, bounded in the time that the plan has."""
    model = ppopt.Model(
        [ppopt.Layer(forward=23, backward_input=24, weight=25, activation=1) for _ in range(42)]
    )
    with work_clock():
        plan = ppopt.plan(
            model, devices=8, batches=32, chunks=5, placement="interleaved", time_limit=1,
            strategies="interleaved", workers=1,
        )  # fmt: skip
    assert plan.schedule is not None
    assert not late(plan.solve_seconds, 1)


@pytest.mark.slow
def test_a_plan_ends_where_nothing_is_left_to_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve stages: partitions have no order, and none that differs by a layer is better."""
    rounds: list[int] = []
    search = ConfigurationSearch._round

    def counted(self: ConfigurationSearch, max_level: float) -> None:
        rounds.append(self._level)
        search(self, max_level)

    monkeypatch.setattr(ConfigurationSearch, "_round", counted)
    model = ppopt.Model(
        [ppopt.Layer(forward=23, backward_input=24, weight=25, activation=1) for _ in range(42)]
    )
    plan = ppopt.plan(
        model, devices=4, batches=8, chunks=3, placement="interleaved", strategies="interleaved",
        workers=1, time_limit=6,
    )  # fmt: skip
    assert plan.status is Status.FEASIBLE and not plan.interrupted
    assert len(rounds) < 10


def test_there_is_a_plan_at_any_time_limit() -> None:
    """1F1B of device 0 holds 4 of 8 activations at once, 32 in all: more than 20, but not with
    full recompute, which comes later."""
    model = Model([{"forward": 1, "activation": 2, "kept": "0.1", "count": 16}])
    for runtime in ("any", "megatron"):
        plan = ppopt.plan(
            model, devices=4, batches=8, mem_limit=20, runtime=runtime, time_limit=1e-6, workers=1
        )
        assert plan.schedule is not None
        assert ppopt.verify(plan.schedule) == []


@pytest.mark.slow
def test_setting_up_configurations_is_within_the_time_limit() -> None:
    """Those of more memory are not set up where there is no time for it: a second, as the limit."""
    model = read_settings("llama-3.1-70b")
    with work_clock() as clock:
        plan = ppopt.plan(
            model_of(model), devices=16, batches=32, mem_limit="80GiB", time_limit=1, workers=1
        )
        seconds = clock.monotonic()
    assert plan.schedule is not None
    assert plan.more_memory is None
    assert not late(seconds, 1)


@ALONE
def test_a_pipeline_brings_its_devices_limit_and_links() -> None:
    """As `ppopt plan --config` of the file that it was read from."""
    layers = [{"forward": 2, "activation": 1, "output": 4} for _ in range(6)]
    link = {"latency": 1, "bandwidth": 4}
    pipeline = Model(layers).pipeline(devices=2, batches=2, mem_limit=9, link=link)
    plan = ppopt.plan(pipeline, workers=1, time_limit=600)
    same = ppopt.plan(
        pipeline.model, devices=2, batches=2, mem_limit=9, link=link, workers=1, time_limit=600
    )
    assert plan.value == same.value and plan.lower_bound == same.lower_bound
    assert plan.space.fields == {"link": pipeline.link, "mem_limit": pipeline.mem_limit}
    more = ppopt.plan(
        pipeline, batches=[3, 4], mem_limit=20, placement="linear, v", workers=1, time_limit=1e-6
    )
    assert more.space.batches == (3, 4) and more.space.placements == ("linear", "v")
    assert more.space.fields["mem_limit"] == 20
    with pytest.raises(ppopt.InputError, match=r"^layers: "):
        ppopt.plan(Pipeline(stages=2, batches=3))
    with pytest.raises(ppopt.InputError, match=r"^batches: missing"):
        ppopt.plan(Model(layers), devices=2)


@ALONE
@pytest.mark.parametrize(("hosts", "name"), [([0, 1, 0, 1], "interleaved"), ([0, 1, 1, 0], "v")])
def test_a_list_of_devices_is_the_placement_that_it_equals(hosts: list[int], name: str) -> None:
    model = ppopt.Model([ppopt.Layer(forward=1)] * 4)
    plan = ppopt.plan(model, devices=2, batches=2, placement=hosts, workers=1)
    assert {(row.configuration.placement, row.configuration.chunks) for row in plan.rows} == {
        (name, 2)
    }


@ALONE
def test_a_plan_keeps_the_optimizer_barrier() -> None:
    """Both devices step their optimizer after the sync of device 1."""
    model = Model([{"forward": 1, "gradient_sync": sync, "optimizer": 1} for sync in (0, 9)])
    pipeline = replace(model.pipeline(devices=2, batches=2), optimizer_barrier=True)
    plan = ppopt.plan(pipeline, devices=2, batches=2, placement="linear", chunks=1, workers=1)
    assert plan.schedule is not None
    assert plan.schedule.pipeline.optimizer_barrier
    assert plan.value == ppopt.solve(pipeline, workers=1).value


def test_split_backwards_take_no_baseline_that_runs_some_of_them_whole() -> None:
    layers = [
        {"forward": 4, "backward": 6, "activation": 1},
        {"forward": 2, "backward": 4, "activation": 1},
        {"forward": 3, "backward": 3, "activation": 1},
    ]
    choices = {"placement": ["linear", "v"], "chunks": [1, 2], "recompute": ["none"]}
    plan = ppopt.plan(
        Model(layers), devices=1, batches=[1, 2], p2p=1, backward_kind="split",
        strategies=["searched"], workers=1, time_limit=600, **choices,
    )  # fmt: skip
    assert all(
        ppopt.OpKind.BW not in row.result.schedule.kind
        for row in plan.rows
        if row.result is not None and row.result.schedule is not None
    )


MICROBATCHES: dict[str, Any] = {
    "devices": 2,
    "batches": 4,
    "partition": "even",
    "microbatch_times": [1, 4, 1, 2],
    "microbatch_memory": 1,
    "workers": 1,
}


@ALONE
def test_order_of_microbatches_is_one_more_choice() -> None:
    """74: device 1 works 6 x 3 / 2 x 8 = 72 behind the F of stage 0 of a microbatch of factor 1."""
    model = ppopt.Model([ppopt.Layer(forward=1, count=6, activation=1)])
    plan = ppopt.plan(model, order="search", time_limit=600, **MICROBATCHES)
    assert (plan.status, plan.value) == (Status.OPTIMAL, 74)
    assert sorted(plan.schedule.pipeline.order) == [0, 1, 2, 3]
    listed = ppopt.plan(model, time_limit=1, **MICROBATCHES)
    assert listed.value > 74
    text = plan_object(plan)["space"]
    assert text["order"] == "search"
    assert "order of microbatches" in describe_space(plan).partition("fixed: ")[0]
    assert "order of microbatches" in describe_space(listed).partition("fixed: ")[2]


@ALONE
def test_local_search_over_orders_proves_nothing_of_a_strategy() -> None:
    model = ppopt.Model([ppopt.Layer(forward=1, count=6, activation=1)])
    plan = ppopt.plan(
        model, order="search", strategies="1f1b,interleaved", time_limit=1, **MICROBATCHES
    )
    assert plan.status is Status.FEASIBLE
    assert plan.lower_bound < plan.value


@ALONE
def test_partition_of_microbatches_that_differ_is_searched() -> None:
    model = ppopt.Model([ppopt.Layer(forward=1, count=4, activation=1)])
    searched = {"partition": "search", "placement": "linear", "chunks": 1}
    fields = MICROBATCHES | searched
    plan = ppopt.plan(model, time_limit=600, **fields)
    rows = [
        ppopt.plan(model, time_limit=600, **fields | {"partition": counts}).value
        for counts in ((1, 3), (2, 2), (3, 1))
    ]
    assert plan.value == min(rows)


@ALONE
def test_partition_and_order_are_searched_together() -> None:
    """It is the best of every partition by itself, in its best order."""
    layers = [{"forward": time, "activation": 1} for time in (3, 1, 1, 2)]
    searched = {"order": "search", "placement": "linear", "chunks": 1, "batches": 3}
    fields = MICROBATCHES | searched | {"microbatch_times": [1, 4, 2]}
    plan = ppopt.plan(ppopt.Model(layers), time_limit=600, **fields | {"partition": "search"})
    values = [
        ppopt.plan(ppopt.Model(layers), time_limit=600, **fields | {"partition": counts}).value
        for counts in ((1, 3), (2, 2), (3, 1))
    ]
    assert (plan.status, plan.value) == (Status.OPTIMAL, min(values))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"recompute": "search", "microbatch_memory": 2},
            "recompute: search knows no microbatches that differ in memory if a layer needs",
        ),
        ({"batches": [4, 8]}, "microbatch_times: has 4 entries for 8 microbatches"),
    ],
)
def test_what_a_plan_of_microbatches_that_differ_refuses(
    fields: dict[str, Any], message: str
) -> None:
    model = ppopt.Model([ppopt.Layer(forward=1, count=6, activation=1, workspace=1)])
    with pytest.raises(ppopt.InputError, match=message):
        ppopt.plan(model, **MICROBATCHES | {"mem_limit": 20, "time_limit": 5} | fields)
