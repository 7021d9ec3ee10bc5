"""Baselines of a plan: each fits, is as good as said, and no better than the bound."""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import pytest

import ppopt
from ppopt import Model, Status
from ppopt.cancellation import over, seconds_left, within
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.exact import plain
from ppopt.problem.objective import Objective
from ppopt.report.plan_objects import plan_object
from ppopt.report.plan_text import (
    describe_better_outside,
    describe_gain,
    describe_late,
    describe_least_memory,
    describe_limit,
    describe_more_memory,
    describe_no_limit,
    describe_space,
    describe_use,
    describe_within,
)
from ppopt.studies.plan_baselines import KNOWN, PlanBaselines
from ppopt.studies.plan_reports import PlanReports
from ppopt.studies.plan_result import (
    LeastMemory,
    MoreMemory,
    PlanBaseline,
    WithinShare,
)
from ppopt.studies.plan_search import PlanSearch
from ppopt.studies.plan_space import PlanConfiguration, PlanSpace
from tests.clock import SHORT, work_clock
from tests.tiers import slow

LAYERS = Model([{"forward": 2, "activation": 1, "static": 1, "count": 5}, {"forward": 5}])
OPTIONS = {"devices": 2, "batches": 4, "mem_limit": 12, "recompute": "none"}


def planned(**changes: object) -> ppopt.Plan:
    options: dict[str, Any] = {"workers": 1, "time_limit": 600, **OPTIONS, **changes}
    return ppopt.plan(LAYERS, **options)


@cache
def usual() -> ppopt.Plan:
    return planned()


def test_every_hand_strategy_keeps_the_limit_and_none_within_beats_the_proof() -> None:
    plan = usual()
    assert plan.status is Status.OPTIMAL and plan.value is not None
    names = [baseline.strategy for baseline in plan.baselines]
    assert {"1f1b", "interleaved", "zb-h1"} <= set(names) and len(set(names)) == len(names)
    assert [baseline.value for baseline in plan.baselines] == sorted(
        baseline.value for baseline in plan.baselines
    )
    for baseline in plan.baselines:
        schedule = baseline.schedule
        assert ppopt.verify(schedule) == [] and schedule.fits_limits
        assert baseline.value == schedule.pipeline.ticks.time(schedule.metrics.makespan_ticks)
        assert not baseline.in_space or baseline.value >= plan.value
        assert baseline.in_space == (
            schedule.pipeline.routes == 1 and schedule.pipeline.num_chunks <= 2
        )


@pytest.mark.slow
def test_where_the_plan_chooses_recompute_so_do_hand_strategies() -> None:
    """8 equal layers, 4 on each device: device 0 of 1F1B holds two microbatches, 8, and 4 that
    are static, 2 above the limit. One layer that recomputes is enough."""
    layers = Model([{"forward": 2, "activation": 1, "static": 1, "count": 8}])
    plan = ppopt.plan(
        layers, devices=2, batches=6, mem_limit=10, recompute=("none", "full", "search"),
        chunks=1, placement="linear", workers=1, time_limit=600,
    )  # fmt: skip
    searched = next(baseline for baseline in plan.baselines if baseline.strategy == "1f1b")
    asked = layers.pipeline(
        devices=2, batches=6, mem_limit=10, recompute="search", partition="search"
    )
    alone = ppopt.best_choice(asked, "1f1b")
    assert searched.recompute == "search" and searched.schedule.fits_limits and searched.in_space
    assert searched.value == alone.value and alone.proved
    asked = replace(asked, partition=searched.schedule.pipeline.counts)
    full = ppopt.evaluate(replace(asked, recompute="full"), "1f1b")
    assert searched.value < full.pipeline.ticks.time(full.metrics.makespan_ticks)


def test_a_strategy_stands_on_a_partition_from_which_no_layer_moves() -> None:
    """Balanced is 3,3 here; the head is as long as two and a half layers."""
    of_1f1b = next(baseline for baseline in usual().baselines if baseline.strategy == "1f1b")
    balanced = ppopt.evaluate(LAYERS.pipeline(devices=2, batches=4), "1f1b")
    assert of_1f1b.value <= balanced.metrics.makespan_ticks
    low, high = of_1f1b.schedule.pipeline.counts
    for counts in ((low - 1, high + 1), (low + 1, high - 1)):
        if min(counts) >= 1:
            pipeline = LAYERS.pipeline(devices=2, batches=4, partition=counts, mem_limit=12)
            schedule = ppopt.evaluate(pipeline, "1f1b")
            assert not schedule.fits_limits or schedule.metrics.makespan_ticks >= of_1f1b.value


def evaluated(plan: ppopt.Plan, kind: BackwardKind, seconds: float) -> ppopt.Plan:
    """A plan and the strategies that are evaluated in so many seconds."""
    baselines = PlanBaselines(plan.space, Objective.MAKESPAN, kind)
    with within(seconds):
        assert all(schedule.fits_limits for schedule in baselines.search())
    return baselines.add_to(plan)


def test_nothing_is_begun_after_the_deadline() -> None:
    plan = usual()
    assert evaluated(plan, BackwardKind.MIXED, 0).baselines == ()
    whole = evaluated(plan, BackwardKind.WHOLE, inf)
    assert whole.baselines and whole.late_baselines == ()
    assert not {baseline.strategy for baseline in whole.baselines} & {"zb-h1", "zbv", "zb-2p"}


def test_a_search_that_takes_all_of_its_time_leaves_some_for_strategies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock stands still except during the search."""
    now, left = [100.0], list[float]()

    def search(_: PlanSearch) -> None:
        while not over():
            now[0] += 1

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(PlanSearch, "start_from_baselines", PlanSearch.evaluate_first)
    monkeypatch.setattr(PlanSearch, "run", search)
    monkeypatch.setattr(
        PlanSearch, "start_from_late_baselines", lambda _: left.append(seconds_left())
    )
    monkeypatch.setattr(PlanReports, "plan", lambda reports: reports.search.plan())
    assert planned(time_limit=1000).value is not None
    assert left[0] > 30


def test_strategies_without_time_are_named_the_best_known_first() -> None:
    plan = usual()
    late = evaluated(plan, BackwardKind.MIXED, 0).late_baselines
    assert {baseline.strategy for baseline in plan.baselines} <= set(late) and len(
        set(late)
    ) == len(late)
    assert late[:2] == ("1f1b", "interleaved")
    assert plan.late_baselines == () and plan_object(plan)["late_baselines"] == []
    assert describe_late([]) == ""
    assert describe_late(["zbv", "v-min"]) == ("skipped zbv, v-min: time limit reached")
    assert "a, b, c, d, e and 2 more:" in describe_late(list("abcdefg"))


def test_megatron_is_compared_with_what_it_runs() -> None:
    """Its two strategies are configurations of the plan: the gain is that of the table."""
    plan = planned(runtime="megatron", recompute=("none", "full"))
    best = {
        name: min(
            row.value for row in plan.rows if row.configuration.strategy == name and row.value
        )
        for name in ("1f1b", "interleaved")
    }
    assert {baseline.strategy: baseline.value for baseline in plan.baselines} == best
    assert plan.value == min(best.values())


def evaluation(plan: ppopt.Plan, baseline: PlanBaseline, seconds: float) -> ppopt.StrategyChoice:
    """What `ppopt eval` finds for the strategy of a gain, with the plan's choices of recompute."""
    pipeline = baseline.schedule.pipeline
    asked = plan.space.model.pipeline(
        devices=plan.space.devices,
        batches=pipeline.batches,
        chunks=pipeline.num_chunks if pipeline.num_chunks > 1 else None,
        partition="search",
        recompute="search" if "search" in plan.space.recompute else baseline.recompute,
        **plan.space.fields,
    )
    return ppopt.best_choice(asked, baseline.strategy, time_limit=seconds)


def check_named(plan: ppopt.Plan, seconds: float, known_seconds: float) -> None:
    """The strategies whose gain is told: the best of the space, and those of `KNOWN`.

    On its partition each takes as long as is told, and no evaluation of so many seconds finds one
    that is faster by more than 0.5 %.
    """
    within = [baseline for baseline in plan.baselines if baseline.in_space]
    assert within
    for baseline in (
        *within[:1],
        *(candidate for candidate in within if candidate.strategy in KNOWN),
    ):
        schedule = ppopt.evaluate(baseline.schedule.pipeline, baseline.strategy)
        assert schedule.pipeline.ticks.time(schedule.metrics.makespan_ticks) == baseline.value
        limit = seconds if baseline is within[0] else known_seconds
        assert evaluation(plan, baseline, limit).value >= baseline.value * Fraction(995, 1000)


@pytest.mark.parametrize("limit", [slow(None), 10, slow(7)])
def test_the_gain_is_that_of_an_evaluation(limit: int | None) -> None:
    layers = [{"forward": 1 + index % 3, "activation": 2, "static": 1} for index in range(5)]
    with work_clock(SHORT):
        plan = ppopt.plan(
            Model(layers), devices=2, batches=4, mem_limit=limit, workers=1, time_limit=6
        )
        check_named(plan, 0.5, 0.5)
    rows = {row["strategy"]: row for row in plan_object(plan)["baselines"]}
    for baseline in plan.baselines:
        assert not baseline.in_space or baseline.value >= plan.value
        assert rows[baseline.strategy]["speedup"] == plain(baseline.value / plan.value)
        assert rows[baseline.strategy]["partition"] == list(baseline.schedule.pipeline.counts)


def baseline(strategy: str, speedup: float, *, in_space: bool = True) -> PlanBaseline:
    """A baseline over which a plan of value 100 has this speedup."""
    schedule = ppopt.evaluate(ppopt.Pipeline(stages=2, batches=4), strategy)
    return PlanBaseline(strategy, schedule, 100 * Fraction(str(speedup)), "none", in_space)


@cache
def plan_with_baselines() -> ppopt.Plan:
    """A plan of ten microbatches in GiB and ms, whose best schedule takes 100."""
    layers = [{"forward": 1, "activation": 1, "count": 2}]
    plan = ppopt.plan(
        Model(layers, time_unit="ms", memory_unit="GiB"), devices=2, batches=10, mem_limit=9,
        placement="linear", chunks=1, recompute="none", p2p=Fraction(1, 10), workers=1,
        time_limit=600,
    )  # fmt: skip
    (best,) = plan.rows
    best = replace(best, result=replace(best.result, value_ticks=100 * best.pipeline.grid.time))
    return replace(
        plan,
        value_ticks=100 * plan.per_unit,
        rows=(best,),
        baselines=(
            baseline("dualpipe", 0.8, in_space=False),
            baseline("interleaved", 1.035),
            baseline("gpipe", 1.1),
            baseline("1f1b", 1.162),
        ),
    )


def with_strategies(plan: ppopt.Plan, *strategies: str) -> ppopt.Plan:
    """The plan, as if these were the schedules to try."""
    return replace(plan, space=replace(plan.space, strategies=strategies))


def test_the_gain_is_told_over_the_best_and_the_best_known_strategies() -> None:
    plan = plan_with_baselines()
    assert describe_gain(plan) == (
        "gain: 3.5 % more throughput than interleaved/2, 16.2 % more throughput than 1f1b, "
        "each with the best partition found for it"
    )
    (best,) = plan.rows
    own = best.configuration._replace(strategy="interleaved")
    assert "interleaved" not in describe_gain(
        replace(plan, rows=(replace(best, configuration=own),))
    )
    assert describe_gain(replace(plan, baselines=())) == ""


def test_a_plan_worse_than_a_strategy_is_no_gain() -> None:
    slower = tuple(
        baseline._replace(value=Fraction(80)) for baseline in plan_with_baselines().baselines
    )
    assert describe_gain(replace(plan_with_baselines(), baselines=slower)) == (
        "loss: 20 % less throughput than interleaved/2; raise --time-limit"
    )


def test_a_better_strategy_outside_of_the_space_is_told() -> None:
    assert describe_better_outside(plan_with_baselines()) == (
        "not searched, but faster: dualpipe (placement linear, two routes, weights allocated "
        "twice), 25 % more throughput; try `--routes 2 --partition balanced`"
    )


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({"strategies": ("1f1b",)}, "--strategies dualpipe --routes 2 --partition balanced"),
        (
            {"placements": ("v",), "chunks": (2,)},
            "--placement linear --chunks 1 --routes 2 --partition balanced",
        ),
        ({"runtime": "torch"}, None),
    ],
)
def test_the_flags_add_the_strategy_to_the_space(
    changes: dict[str, object], flags: str | None
) -> None:
    plan = plan_with_baselines()
    changed = replace(plan, space=replace(plan.space, **changes))
    text = describe_better_outside(changed)
    assert text.endswith("more throughput" if flags is None else f"; try `{flags}`")


def test_a_plan_without_a_limit_names_the_flag() -> None:
    plan = plan_with_baselines()
    assert describe_no_limit(plan) == ""
    (best,) = plan.rows
    open_pipeline = replace(best.result.pipeline, mem_limit=None)
    unlimited = replace(best, result=replace(best.result, pipeline=open_pipeline))
    text = describe_no_limit(replace(plan, rows=(unlimited,)))
    assert text == "no memory limit: add one, such as --mem-limit 80GiB"


def test_the_files_that_were_written_are_named() -> None:
    plan = plan_with_baselines()
    assert describe_use(plan)[0] == "to use the plan, add -o best.json, then:"
    page = Path("plan.html")
    assert describe_use(plan, [page])[0] == (
        "plan.html written; to use the plan, add -o best.json, then:"
    )
    assert describe_use(plan, [page, Path("a.json")])[0] == "to use a.json:"


def test_down_to_which_memory_it_is_as_fast_is_told_with_its_proof() -> None:
    proved = LeastMemory(Fraction("49.5"), Fraction("49.5"))
    assert describe_least_memory(proved, "GiB") == (
        "runs at this speed in 49.5 GiB per device; less is proved impossible for this "
        "configuration"
    )
    assert describe_least_memory(proved._replace(lower_bound=Fraction(30)), "GiB") == (
        "runs at this speed in 49.5 GiB per device; below 30 GiB is proved impossible for this "
        "configuration"
    )
    assert describe_least_memory(None, "GiB") == ""


def test_the_least_memory_within_a_share_in_words() -> None:
    """102 of 10 microbatches is 2 % above 100 of 10."""
    configuration = PlanConfiguration(10, "v", 2, "full")
    share = WithinShare(configuration, Fraction(102), Fraction(7), Fraction(7))
    text = (
        "minimum memory within the slowdown: 7 GiB per device, 2 % less throughput (102 ms, v/2, "
        "recompute full); "
    )

    def within(share: WithinShare | None) -> str:
        return describe_within(replace(plan_with_baselines(), within=share))

    assert within(share) == f"{text}proved"
    below = within(share._replace(lower_bound=Fraction(5)))
    assert below == f"{text}below 5 GiB it is proved impossible"
    assert within(share._replace(lower_bound=None)) == f"{text}less memory may be enough"
    assert within(None) == ""


def test_what_a_plan_searched_is_told_apart_from_what_it_kept_as_given() -> None:
    """A dimension is searched if rows have several of its values: chunks 2 go with no row here."""
    plan = plan_with_baselines()
    (best,) = plan.rows
    space = replace(plan.space, chunks=(1, 2), recompute=("none", "full"))

    def searched(space: PlanSpace, **changes: str) -> str:
        values = [{}] if changes else [{"recompute": "full"}, {"recompute": "none"}]
        rows = tuple(
            replace(best, configuration=best.configuration._replace(**{**changes, **value}))
            for value in values
        )
        return describe_space(replace(plan, space=space, rows=rows))

    fixed = "fixed: one route; placement linear; chunks 1"
    assert searched(space) == (
        f"searched: partition; recompute none, full; {fixed}; microbatches 10; p2p time 0.1 ms"
    )
    narrow = replace(space, partition=(1, 1), strategies=("1f1b",))
    assert searched(narrow, strategy="1f1b") == (
        f"{fixed}; recompute none; schedules 1f1b; microbatches 10; p2p time 0.1 ms"
    )
    chosen = replace(space, recompute=("search",))
    assert searched(chosen, recompute="search") == (
        f"searched: partition; recompute search; {fixed}; microbatches 10; p2p time 0.1 ms"
    )


def test_a_bound_of_strategies_says_nothing_of_more_memory() -> None:
    more = MoreMemory((Fraction(88), Fraction(88)), 100, 80, 1)
    plan = replace(plan_with_baselines(), more_memory=more)
    assert "up to 25 % more throughput" in describe_more_memory(plan)
    of_strategies = with_strategies(plan, "1f1b")
    assert describe_more_memory(of_strategies).endswith("no faster schedule found")


@pytest.mark.usefixtures("search_alone")
def test_the_proof_of_one_configuration_is_in_the_singular() -> None:
    plan = planned(placement="linear", chunks=1, strategies="1f1b")
    assert plan.proof.startswith("over the 1 configuration: 1 was searched")
    assert plan_object(plan)["space"]["p2p_time"] == 0


def test_the_limit_that_nothing_keeps_is_said() -> None:
    """A limit that is enough is named with its schedule, which is verified within that limit."""
    plan = planned(mem_limit=3)
    row = plan.least_memory_row
    assert plan.status is Status.INFEASIBLE and row is not None
    enough = plain(row.peak)
    text = f"memory limit: 3 each; {enough} per device is enough: "
    assert describe_limit(plan).startswith(text)
    assert plan_object(plan)["sufficient_memory"]["memory"] == enough
    assert planned(mem_limit=enough, stop=ppopt.stop.FirstSchedule()).value is not None
    assert describe_limit(usual()) == "" and plan_object(usual())["sufficient_memory"] is None
