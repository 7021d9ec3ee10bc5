"""Hand strategies beside a plan: each fits, is as good as said, and no better than the bound."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

import ppopt
from ppopt import Model, Status
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.exact import plain
from ppopt.problem.objective import Objective
from ppopt.report.plan_objects import of_plan
from ppopt.report.plan_words import (
    gain_words,
    late_words,
    least_memory_words,
    limit_words,
    more_memory_words,
    outside_words,
    slowdown,
    space_words,
    within_words,
)
from ppopt.solver.deadline import NO_DEADLINE, Deadline
from ppopt.solver.parameters import PlanParams
from ppopt.studies.plan_baselines import KNOWN, PlanBaselines
from ppopt.studies.plan_result import PlanBaseline
from tests.clock import SHORT, work_clock
from tests.tiers import slow

LAYERS = Model([{"forward": 2, "activation": 1, "static": 1, "count": 5}, {"forward": 5}])
BUNDLED = ("llama-3.1-8b", "llama-3.1-70b", "internvl2-26b", "llama-3.1-8b-128k", "deepseek-v3")
GIVEN = {"devices": 2, "batches": 4, "mem_limit": 12, "recompute": "none"}


def planned(**changes: object) -> ppopt.Plan:
    return ppopt.plan(LAYERS, workers=1, time_limit=600, **{**GIVEN, **changes})  # type: ignore[arg-type]


def test_every_hand_strategy_keeps_the_limit_and_none_within_beats_the_proof() -> None:
    plan = planned()
    assert plan.status is Status.OPTIMAL and plan.value is not None
    names = [hand.strategy for hand in plan.baselines]
    assert {"1f1b", "interleaved", "zb-h1"} <= set(names) and len(set(names)) == len(names)
    assert [hand.value for hand in plan.baselines] == sorted(hand.value for hand in plan.baselines)
    for hand in plan.baselines:
        made = hand.schedule
        assert ppopt.verify(made) == [] and made.fits_limits
        assert hand.value == made.pipeline.ticks.time(made.metrics.makespan_ticks)
        assert not hand.in_space or hand.value >= plan.value
        assert hand.in_space == (made.pipeline.routes == 1 and made.pipeline.num_chunks <= 2)


@pytest.mark.slow
def test_where_the_plan_chooses_recompute_so_do_hand_strategies() -> None:
    """8 equal layers, 4 on each device: device 0 of 1F1B holds two microbatches, 8, beside 4 that
    are static, 2 above the limit. One layer that recomputes is enough."""
    layers = Model([{"forward": 2, "activation": 1, "static": 1, "count": 8}])
    plan = ppopt.plan(
        layers, devices=2, batches=6, mem_limit=10, recompute=("none", "full", "search"),
        chunks=1, placement="linear", workers=1, time_limit=20,
    )  # fmt: skip
    one = next(hand for hand in plan.baselines if hand.strategy == "1f1b")
    asked = layers.pipeline(
        devices=2, batches=6, mem_limit=10, recompute="search", partition="search"
    )
    alone = ppopt.best_choice(asked, "1f1b")
    assert one.recompute == "search" and one.schedule.fits_limits and one.in_space
    assert one.value == alone.value and alone.proved
    asked = replace(asked, partition=one.schedule.pipeline.counts)
    full = ppopt.evaluate(replace(asked, recompute="full"), "1f1b")
    assert one.value < full.pipeline.ticks.time(full.metrics.makespan_ticks)


def test_a_strategy_stands_on_a_partition_from_which_no_layer_moves() -> None:
    """Balanced is 3,3 here; the head is as long as two and a half layers."""
    one = next(hand for hand in planned().baselines if hand.strategy == "1f1b")
    balanced = ppopt.evaluate(LAYERS.pipeline(devices=2, batches=4), "1f1b")
    assert one.value <= balanced.metrics.makespan_ticks
    low, high = one.schedule.pipeline.counts
    for counts in ((low - 1, high + 1), (low + 1, high - 1)):
        if min(counts) >= 1:
            other = LAYERS.pipeline(devices=2, batches=4, partition=counts, mem_limit=12)
            made = ppopt.evaluate(other, "1f1b")
            assert not made.fits_limits or made.metrics.makespan_ticks >= one.value


def evaluated(plan: ppopt.Plan, kind: BackwardKind, deadline: Deadline) -> ppopt.Plan:
    """A plan beside the strategies that are evaluated by a deadline."""
    found = PlanBaselines(plan.space, Objective.MAKESPAN, kind)
    found.search(4, deadline)
    return found.add_to(plan)


def test_nothing_is_begun_after_the_deadline() -> None:
    plan = planned()
    assert evaluated(plan, BackwardKind.MIXED, Deadline.after(0)).baselines == ()
    whole = evaluated(plan, BackwardKind.WHOLE, NO_DEADLINE)
    assert whole.baselines and whole.late_baselines == ()
    assert not {hand.strategy for hand in whole.baselines} & {"zb-h1", "zbv", "zb-2p"}


def test_strategies_without_time_are_named_the_best_known_first() -> None:
    plan = planned()
    late = evaluated(plan, BackwardKind.MIXED, Deadline.after(0)).late_baselines
    assert {hand.strategy for hand in plan.baselines} <= set(late) and len(set(late)) == len(late)
    assert late[:2] == ("1f1b", "interleaved")
    assert plan.late_baselines == () and of_plan(plan)["late_hands"] == []
    assert late_words(shown(late_hands=[])) == ""
    assert late_words(shown(late_hands=["zbv", "v-min"])) == (
        "no time was left to compare zbv, v-min: raise --time-limit"
    )
    assert "a, b, c, d, e and 2 more:" in late_words(shown(late_hands=list("abcdefg")))


def test_megatron_is_compared_with_what_it_runs() -> None:
    """Its two strategies are configurations of the plan: the gain is that of the table."""
    plan = planned(runtime="megatron", recompute=("none", "full"))
    best = {
        name: min(
            row.value for row in plan.rows if row.configuration.strategy == name and row.value
        )
        for name in ("1f1b", "interleaved")
    }
    assert {hand.strategy: hand.value for hand in plan.baselines} == best
    assert plan.value == min(best.values())


def evaluation(plan: ppopt.Plan, hand: PlanBaseline, seconds: float) -> ppopt.StrategyChoice:
    """What `ppopt eval` finds for the strategy of a gain, with the plan's choices of recompute."""
    made = hand.schedule.pipeline
    asked = plan.space.model.pipeline(
        devices=plan.space.devices,
        batches=made.batches,
        chunks=made.num_chunks if made.num_chunks > 1 else None,
        partition="search",
        recompute="search" if "search" in plan.space.recompute else hand.recompute,
        **plan.space.fields,
    )
    return ppopt.best_choice(asked, hand.strategy, time_limit=seconds)


def check_named(plan: ppopt.Plan, seconds: float, known_seconds: float) -> None:
    """The strategies whose gain is told: the best of the space, and those of `KNOWN`.

    On its partition each takes as long as is told, and no evaluation of so many seconds finds one
    that is faster by more than 0.5 %.
    """
    within = [one for one in plan.baselines if one.in_space]
    assert within
    for hand in (*within[:1], *(one for one in within if one.strategy in KNOWN)):
        again = ppopt.evaluate(hand.schedule.pipeline, hand.strategy)
        assert again.pipeline.ticks.time(again.metrics.makespan_ticks) == hand.value
        limit = seconds if hand is within[0] else known_seconds
        assert evaluation(plan, hand, limit).value >= hand.value * Fraction(995, 1000)


@pytest.mark.parametrize("limit", [None, 14, slow(9)])
def test_the_gain_is_that_of_an_evaluation(limit: int | None) -> None:
    layers = [{"forward": 1 + place % 3, "activation": 2, "static": 1} for place in range(7)]
    with work_clock(SHORT):
        plan = ppopt.plan(
            Model(layers), devices=2, batches=4, mem_limit=limit, workers=1, time_limit=6
        )
        check_named(plan, 0.5, 0.5)
    told = {one["strategy"]: one for one in of_plan(plan)["hands"]}
    for hand in plan.baselines:
        assert not hand.in_space or hand.value >= plan.value
        assert told[hand.strategy]["speedup"] == plain(hand.value / plan.value)
        assert told[hand.strategy]["partition"] == list(hand.schedule.pipeline.counts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "limit", "seconds"),
    [
        *((name, None, 20) for name in BUNDLED[:3]),
        *((name, "60GiB", 20) for name in BUNDLED if name.startswith("llama-3.1-8b")),
        ("internvl2-26b", "60GiB", 40),
        ("deepseek-v3", "80GiB", 60),
    ],
)
def test_the_gain_over_a_bundled_model_is_that_of_an_evaluation(
    name: str, limit: str | None, seconds: float
) -> None:
    """In the time that a plan of so many seconds has for its strategies.

    Within a limit, a round on many layers or devices takes seconds, which a short plan lacks.
    """
    pipeline = ppopt.read_pipeline(name)
    links = {"p2p": pipeline.p2p} if pipeline.link is None else {"link": pipeline.link}
    params = PlanParams()
    with work_clock(SHORT):
        plan = ppopt.plan(
            pipeline.model, devices=pipeline.num_devices, batches=pipeline.batches,
            mem_limit=limit, workers=1, time_limit=0.5, **links,
        )  # fmt: skip
        begin = Deadline.after(min(params.beginning * seconds, params.beginning_seconds))
        found = PlanBaselines(plan.space, Objective.MAKESPAN, BackwardKind.MIXED)
        found.search(pipeline.batches, begin)
        found.refine(pipeline.batches, Deadline.after(params.refining * seconds))
        check_named(found.add_to(plan), 2, 0.5)


def shown(**changes: object) -> dict[str, object]:
    hand = {"placement": "linear", "routes": 1, "recompute": "none", "within": True}
    return {
        "strategy": "optimal",
        "value": 100,
        "value_per_microbatch": 10.0,
        "space": {"strategies": ["optimal"]},
        "memory_unit": "GiB",
        "time_unit": "ms",
        "hands": [
            {**hand, "strategy": "dualpipe", "chunks": 1, "speedup": 0.8, "routes": 2,
             "within": False},
            {**hand, "strategy": "interleaved", "chunks": 2, "speedup": 1.035},
            {**hand, "strategy": "gpipe", "chunks": 1, "speedup": 1.1},
            {**hand, "strategy": "1f1b", "chunks": 1, "speedup": 1.162},
        ],
        **changes,
    }  # fmt: skip


def test_the_gain_is_told_over_the_best_and_the_best_known_strategies() -> None:
    assert gain_words(shown()) == (
        "gain: 3.5 % more throughput than interleaved/2, 16.2 % more throughput than 1f1b, "
        "each on its own best partition found"
    )
    assert "interleaved" not in gain_words(shown(strategy="interleaved"))
    assert gain_words(shown(hands=[])) == ""


def test_a_plan_worse_than_a_strategy_is_no_gain() -> None:
    hands = [{**hand, "speedup": 0.8} for hand in shown()["hands"]]
    assert gain_words(shown(hands=hands)) == (
        "no gain: interleaved/2 has 25 % more throughput; raise --time-limit"
    )


def test_a_better_strategy_outside_of_the_space_is_told() -> None:
    assert outside_words(shown()) == (
        "outside this space: dualpipe (placement linear, two routes, weights held twice) has "
        "25 % more throughput"
    )


def test_down_to_which_memory_it_is_as_fast_is_told_with_its_proof() -> None:
    proved = shown(least_memory={"value": 49.5, "lower_bound": 49.5})
    assert least_memory_words(proved) == (
        "as fast with 49.5 GiB each, slower with less: proved for this configuration"
    )
    least = shown(least_memory={"value": 49.5, "lower_bound": 30})
    assert least_memory_words(least) == (
        "as fast with 49.5 GiB each, perhaps with less; slower below 30 GiB: proved for this "
        "configuration"
    )
    assert least_memory_words(shown(least_memory=None)) == ""


def test_the_least_memory_within_a_share_in_words() -> None:
    found = {
        "batches": 4,
        "placement": "v",
        "chunks": 2,
        "recompute": "full",
        "strategy": "optimal",
    }
    found |= {"value": 102, "memory": 7, "lower_bound": 7}
    given = {"value_per_microbatch": 25, "memory_unit": "MiB", "time_unit": "ms"}
    words = "least memory: 7 MiB each, 2 % slower (102 ms, v/2, recompute full); "
    assert within_words(shown(within=found, **given)) == f"{words}proved"
    below = within_words(shown(within=found | {"lower_bound": 5}, **given))
    assert below == f"{words}not with less than 5 MiB, proved"
    unknown = within_words(shown(within=found | {"lower_bound": None}, **given))
    assert unknown == f"{words}perhaps less memory is enough"
    assert within_words(shown(within=None)) == ""


def test_what_a_plan_searched_is_told_apart_from_what_it_kept_as_given() -> None:
    """A dimension is searched if rows have several of its values: chunks 2 go with no row here."""
    row = {"placement": "linear", "chunks": 1, "strategy": "optimal", "batches": 16}
    space = {
        "placement": ["linear"],
        "chunks": [1, 2],
        "recompute": ["none", "full"],
        "strategies": ["optimal"],
        "batches": [16],
        "partition": "search",
        "routes": 1,
        "p2p_time": 0.1,
    }
    rows = [row | {"recompute": "full"}, row | {"recompute": "none"}]
    kept = "Fixed: one route; placement linear; chunks 1"
    assert space_words(shown(space=space, rows=rows)) == (
        f"Searched: partition; recompute none, full. {kept}; microbatches 16; p2p time 0.1 ms"
    )
    given = space | {"partition": [2, 2], "p2p_time": None, "strategies": ["1f1b"]}
    one = [row | {"recompute": "none", "strategy": "1f1b"}]
    assert space_words(shown(space=given, rows=one)) == (
        f"{kept}; recompute none; schedules 1f1b; microbatches 16"
    )
    chosen = space | {"recompute": ["search"], "p2p_time": None}
    assert space_words(shown(space=chosen, rows=[row | {"recompute": "search"}])) == (
        f"Searched: partition; recompute search. {kept}; microbatches 16"
    )


def test_a_bound_of_strategies_says_nothing_of_more_memory() -> None:
    more = {"mem_limit": [88, 88], "value": 100, "lower_bound": 80}
    assert "at most 20 % faster" in more_memory_words(shown(more_memory=more))
    of_strategies = shown(more_memory=more, space={"strategies": ["1f1b"]})
    assert more_memory_words(of_strategies).endswith("nothing better found")


def test_a_row_that_was_given_up_says_between_what_it_is() -> None:
    row = {
        "status": "pruned",
        "given_up": True,
        "bound_per_microbatch": 10.4,
        "value_per_microbatch": 11.2,
    }
    assert slowdown(row, shown()) == "4 % to 12 % slower; not searched further"


def test_the_proof_of_one_configuration_is_in_the_singular() -> None:
    plan = planned(placement="linear", chunks=1, strategies="1f1b")
    assert plan.proof.startswith("over the 1 configuration: 1 was searched")
    assert of_plan(plan)["space"]["p2p_time"] == 0


def test_the_limit_that_nothing_keeps_is_said() -> None:
    given = {"status": "infeasible", "mem_limit": [60, 60], "memory_unit": "MiB"}
    words = "memory limit: 60 MiB each; `ppopt frontier` finds the least that works"
    assert limit_words(shown(**given)) == words
    assert limit_words(shown(**given | {"status": "optimal"})) == ""
