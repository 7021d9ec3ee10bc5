"""Rows of a plan: status and bounds of its search and of its strategies."""

from __future__ import annotations

from fractions import Fraction
from math import inf
from random import Random

import pytest

import ppopt
from ppopt import Objective, RowStatus, Status
from ppopt.cancellation import seconds_left, within
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.report.plan_objects import plan_object
from ppopt.schedule import timing
from ppopt.schedule.list_scheduling import one_at_a_time
from ppopt.solver.choices.enumeration import NONE_LEFT, Unlisted
from ppopt.solver.options import checked_options
from ppopt.studies.evaluate import objective_value, peak_memory
from ppopt.studies.plan_reports import PlanReports
from ppopt.studies.plan_search import PlanSearch
from ppopt.studies.plan_space import PlanSpace
from tests.oracles.configurations import partitions
from tests.tiers import first

ALONE = pytest.mark.usefixtures("search_alone")


@pytest.mark.parametrize(
    ("value", "bound", "status"),
    [
        (None, None, RowStatus.INFEASIBLE),
        (7, 7, RowStatus.OPTIMAL),
        (7, 6, RowStatus.PRUNED),
        (7, 5, RowStatus.PRUNED),
        (None, 5, RowStatus.PRUNED),
        (7, 4, RowStatus.FEASIBLE),
        (5, 4, RowStatus.FEASIBLE),
        (None, 4, RowStatus.UNKNOWN),
    ],
)
def test_status_of_a_row_beside_a_best_of_5(
    value: int | None, bound: int | None, status: RowStatus
) -> None:
    """A configuration whose bound is 5 is no better, whether it has a schedule or none."""
    numbers = (None if number is None else Fraction(number) for number in (value, bound, 5))
    assert RowStatus.of(*numbers) is status


@ALONE
def test_rows_of_equal_time_per_microbatch_share_one_best() -> None:
    """One device without a bubble: 3 per microbatch, of one or of two; the bound is that of the
    row that comes first."""
    plan = ppopt.plan(
        ppopt.Model([{"forward": 1, "activation": 1}]), devices=1, batches=(2, 1),
        placement="linear", chunks=1, recompute="none", workers=1, time_limit=600,
    )  # fmt: skip
    assert plan.best is not None and plan.value == 3 * plan.best.configuration.batches
    assert plan.lower_bound == plan.value and plan.gap == 0


@ALONE
def test_a_configuration_without_memory_is_infeasible_also_above_the_best() -> None:
    """Three of forward on device 0 hold 6 of 5; interleaved stages hold 4, and are better."""
    layers = [{"forward": size, "activation": size} for size in (3, 3, 1, 1)]
    plan = ppopt.plan(
        ppopt.Model(layers), devices=2, batches=2, mem_limit=5, recompute="none",
        partition="even", workers=1, time_limit=600,
    )  # fmt: skip
    status = {row.configuration.placement: row.status for row in plan.rows}
    assert status["linear"] is RowStatus.INFEASIBLE
    assert plan.status is Status.OPTIMAL and "1 does not fit the memory limit" in plan.proof


@ALONE
@pytest.mark.parametrize("seed", first(2, range(6)))
def test_rows_of_a_given_partition_say_what_is_proved_of_them(seed: int) -> None:
    """Status and bound of the result, and of the schedule's origin, are those of the row."""
    random = Random(seed)
    layers = [{"forward": random.randint(1, 4), "activation": random.randint(1, 3)} for _ in "1234"]
    plan = ppopt.plan(
        ppopt.Model(layers), devices=2, batches=3, mem_limit=7, recompute="none",
        partition="even", workers=1, time_limit=600,
    )  # fmt: skip
    for row in plan.rows:
        if row.schedule is not None:
            origin = row.schedule.origin
            assert row.result.lower_bound == row.lower_bound == origin.lower_bound
            optimal = row.status is RowStatus.OPTIMAL
            assert (row.result.status is Status.OPTIMAL) == optimal == (origin.status == "optimal")


@ALONE
def test_hand_strategies_have_the_bounds_of_all_orders() -> None:
    """1F1B is proved to need at least what the best order of its configuration needs."""
    layers = ppopt.Model([{"forward": size, "activation": 1} for size in (1, 2, 2, 1)])
    plan = ppopt.plan(
        layers, devices=2, batches=4, placement="linear", chunks=1, recompute="none",
        strategies=("searched", "1f1b"), workers=1, time_limit=600,
    )  # fmt: skip
    rows = {row.configuration.strategy: row for row in plan.rows}
    assert rows["searched"].status is RowStatus.OPTIMAL
    assert rows["1f1b"].lower_bound >= rows["searched"].value


@pytest.mark.parametrize("strategy", ["looped-bfs", "interleaved"])
def test_a_plan_names_the_placement_that_was_asked_for(strategy: str) -> None:
    """One stage per device: interleaved strategies have the layout of linear ones."""
    space = PlanSpace(
        model=ppopt.Model([{"forward": 1, "activation": 1}] * 4), devices=2, batches=(2,),
        placements=("linear",), chunks=(1,), recompute=("none",),
    )  # fmt: skip
    search = PlanSearch(space, Objective.MAKESPAN, BackwardKind.MIXED, checked_options(20, 1))
    pipeline = space.model.pipeline(devices=2, batches=2, partition=[2, 2], chunks=1)
    schedule_of_strategy = ppopt.evaluate(pipeline, strategy)
    (candidate,) = search._orders
    assert candidate.contains(schedule_of_strategy)
    search.start_from([schedule_of_strategy])
    output = plan_object(search.plan())
    assert (output["placement"], output["chunks"]) == ("linear", 1)
    assert {row["placement"] for row in output["rows"]} == {"linear"}


def test_the_least_memory_of_strategies_within_a_slowdown_is_that_of_all_partitions() -> None:
    """The balanced partition puts the three heavy layers on device 0."""
    layers = [
        {"forward": forward, "activation": 1, "static": static}
        for forward, static in ((1, 9), (1, 9), (1, 9), (2, 1), (2, 1), (2, 1), (3, 1))
    ]
    model, share = ppopt.Model(layers), Fraction(1, 4)
    plan = ppopt.plan(
        model, devices=2, batches=4, runtime="megatron", recompute="none", within=share,
        workers=1, time_limit=600,
    )  # fmt: skip
    values = []
    for row in plan.rows:
        chunks = row.configuration.chunks
        for counts in partitions(len(layers), 2 * chunks):
            pipeline = model.pipeline(
                devices=2, batches=4, placement=row.configuration.placement, chunks=chunks,
                partition=list(counts),
            )  # fmt: skip
            schedule = ppopt.evaluate(pipeline, row.configuration.strategy)
            values.append((objective_value(schedule, Objective.MAKESPAN), peak_memory(schedule)))
    assert plan.within is not None and plan.value == min(values)[0]
    minimum = min(peak for value, peak in values if value <= plan.value * (1 + share))
    assert plan.within.memory == minimum < plan.best.peak


def test_the_least_memory_of_a_slowdown_is_not_proved_if_a_fast_configuration_is_missing() -> None:
    """A configuration that no time was left for may need less memory."""
    space = PlanSpace(
        model=ppopt.Model([{"forward": 1, "activation": 1}] * 4), devices=2, batches=(2,),
        placements=("linear",), chunks=(1,), recompute=("none",),
    )  # fmt: skip
    for late in (NONE_LEFT, Unlisted(0)):
        options = checked_options(600, 1)
        search = PlanSearch(space, Objective.MAKESPAN, BackwardKind.MIXED, options)
        search.set_up.late = late
        with options.scope():
            search.run()
            within = PlanReports(search, Fraction(1))._memory_within()
        assert within is not None and (within.lower_bound is None) == (late is not NONE_LEFT)


def test_every_first_schedule_is_followed() -> None:
    """Also if a later schedule, of another partition, is better."""
    space = PlanSpace(
        model=ppopt.Model([{"forward": 2, "backward": 2, "weight": 2}] * 8), devices=2,
        batches=(3,), placements=("linear",), chunks=(1,), recompute=("none",), fields={},
    )  # fmt: skip
    search = PlanSearch(space, Objective.MAKESPAN, BackwardKind.SPLIT, checked_options(600, 1))
    for counts, strategy in (((3, 5), "zb-h1"), ((5, 3), "zb-h1")):
        pipeline = space.model.pipeline(devices=2, batches=3, partition=counts)
        search.start_from([ppopt.evaluate(pipeline, strategy)])
    search._search.follow_hints()
    assert {(0, 5, 3), (0, 3, 5)} <= {each.key for each in search._search.state.every}


def test_the_first_schedule_of_every_placement_is_followed_before_further_ones() -> None:
    """Both schedules of the linear placement are faster than that of V."""
    space = PlanSpace(
        model=ppopt.Model([{"forward": 2, "backward": 2, "weight": 2}] * 8), devices=2,
        batches=(3,), placements=("linear", "v"), chunks=(1, 2), recompute=("none",), fields={},
    )  # fmt: skip
    search = PlanSearch(space, Objective.MAKESPAN, BackwardKind.SPLIT, checked_options(600, 1))
    linear = [
        space.model.pipeline(devices=2, batches=3, chunks=1, partition=counts)
        for counts in ((3, 5), (4, 4))
    ]
    v = space.model.pipeline(devices=2, batches=3, placement="v", chunks=2, partition=(1, 3, 3, 1))
    orders = one_at_a_time(Problem(v, Objective.MAKESPAN, BackwardKind.SPLIT).instance)
    starts = [timing.schedule(v, orders), *(ppopt.evaluate(each, "zb-h1") for each in linear)]
    values = [objective_value(start, Objective.MAKESPAN) for start in starts]
    assert values == sorted(values, reverse=True)
    for start in starts:
        search.start_from([start])
    followed = [each.key[1:] for each in search._search._hinted_configurations(inf)]
    assert followed == [(4, 4), (1, 3, 3, 1), (3, 5)]


def test_the_first_search_has_the_time_left_and_its_grace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No configuration has a schedule: all first ones are searched."""
    space = PlanSpace(
        model=ppopt.Model([{"forward": 1, "activation": 1}] * 4), devices=2, batches=(2,),
        placements=("linear", "v"), chunks=(1, 2), recompute=("none",),
    )  # fmt: skip
    search = PlanSearch(space, Objective.MAKESPAN, BackwardKind.MIXED, checked_options(20, 1))
    lefts: list[float] = []
    monkeypatch.setattr(
        search._search,
        "_solve_all",
        lambda firsts, _: lefts.extend(seconds_left() for _ in firsts),
    )
    params = search._search._params
    monkeypatch.setattr(search._search, "_params", params._replace(first=0))
    with within(10):
        search._search.begin()
    assert len(lefts) >= 2 and 10 < max(lefts) <= 10 + params.grace


def test_modes_that_chosen_recompute_includes_are_bounded_and_share_its_schedules() -> None:
    """They are not searched: the best schedule without recompute is one of the search for all."""
    layers = [{"forward": 1, "activation": 2, "kept": 1} for _ in range(4)]
    plan = ppopt.plan(
        ppopt.Model(layers), devices=2, batches=3, placement="linear", mem_limit=12,
        recompute=("none", "full", "search"), workers=1, time_limit=60,
    )  # fmt: skip
    rows = {row.configuration.recompute: row for row in plan.rows}
    assert plan.status is Status.OPTIMAL
    assert rows["none"].value == rows["search"].value == plan.value
    assert rows["full"].status is RowStatus.PRUNED
    alone = ppopt.plan(
        ppopt.Model(layers), devices=2, batches=3, placement="linear", mem_limit=12,
        recompute="none", workers=1, time_limit=60,
    )  # fmt: skip
    assert alone.value == plan.value
