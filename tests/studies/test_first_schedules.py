"""The first schedules of a search: published strategies with the balanced partition."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import combinations, pairwise, product
from typing import Any

import pytest

import ppopt
from ppopt import Objective, RowStatus
from ppopt.cancellation import within
from ppopt.derivation.config_json import architecture_of
from ppopt.derivation.gpus import gpu_named
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.partition import even
from ppopt.problem.problem import Problem
from ppopt.report.parallel import describe_parallel_plan
from ppopt.solver.heuristics.first_schedules import USUAL, FirstSchedules
from ppopt.solver.options import checked_options
from ppopt.strategies import Options
from ppopt.studies.evaluate import evaluate, objective_value, peak_memory
from ppopt.studies.first_schedules import (
    FirstRow,
    Step,
    best_of_each,
    first_rows,
    in_best_configuration,
    usual_schedules,
    with_few_layers,
)
from ppopt.studies.frontier_problem import FrontierProblem
from ppopt.studies.parallel_plan import _ParallelSearch, plan_parallelism
from ppopt.studies.parallel_set_up import PlanArguments
from ppopt.studies.parallel_space import ParallelSpace
from ppopt.studies.parallel_task import CombinationState, FirstTask
from ppopt.studies.plan_search import PlanSearch
from ppopt.studies.plan_space import PlanSpace
from ppopt.studies.strategy_search import StrategySearch
from tests.clock import stepping_clock
from tests.factories.configs import SMALL

LAYERS = ppopt.Model(
    [{"forward": 2, "activation": 4, "recompute": False, "kept": 1} for _ in range(8)]
)
"""Eight equal layers; full recompute keeps a quarter of the memory."""
FULL, ALL = 32, 128
"""Device peaks of 1F1B on 4 devices and 8 microbatches: roughly with full recompute, and more than
without."""
value_of = partial(objective_value, objective=Objective.MAKESPAN)


def space(limit: int | None, **lists: tuple[object, ...]) -> PlanSpace:
    dimensions = {"placements": ("linear", "interleaved", "v"), "chunks": (1, 2)} | lists
    recompute = dimensions.pop("recompute", ("none", "full", "search"))
    fields = {} if limit is None else {"mem_limit": limit}
    return PlanSpace(
        model=LAYERS, devices=4, batches=(8,), recompute=recompute, fields=fields, **dimensions
    )  # fmt: skip


def by_hand(of: PlanSpace) -> list[Fraction]:
    """Makespans of the usual strategies with none and full recompute that are within the limits."""
    values = []
    for configuration in of:
        if configuration.recompute != "search":
            pipeline = replace(of.pipeline(configuration), partition="balanced")
            schedule = evaluate(pipeline, USUAL[configuration.placement])
            values += [value_of(schedule)] if schedule.fits_limits else []
    return values


def quick_rows(of: PlanSpace) -> tuple[FirstRow, ...]:
    """Those that most trainers run."""
    return best_of_each(first_rows(of, further=False))


def all_rows(of: PlanSpace) -> tuple[FirstRow, ...]:
    return best_of_each([*quick_rows(of), *first_rows(of, further=True)])


@pytest.mark.parametrize("limit", [None, 20, 24, 28, 34, 40, 60, 90])
def test_first_rows_are_no_worse_than_strategies_by_hand(limit: int | None) -> None:
    whole = space(limit)
    all_quick = quick_rows(whole)
    every = all_rows(whole)
    quick, best = all_quick[0], every[0]
    assert best.step <= quick.step
    for row in every:
        assert ppopt.verify(row.schedule) == [] and row.schedule.fits_limits
        assert row.step >= best.step
    assert best.step <= min(by_hand(whole), default=best.step)
    assert quick.step <= min(by_hand(space(limit, placements=("linear",))), default=quick.step)


def test_early_stages_have_fewer_layers_where_memory_is_short() -> None:
    """Seven equal layers on four devices: 2 2 2 1 and 1 2 2 2 take equally long.

    A layer keeps 4 of each of the at most 4, 3, 2, 1 microbatches in flight, so that 1F1B takes
    32, 24, 16, 4 and 16, 24, 16, 8.
    """
    tight = replace(LAYERS, layers=LAYERS.layers[:7]).pipeline(
        devices=4, batches=8, partition="search", recompute="none", mem_limit=24
    )
    (first,) = FirstSchedules(tight, Objective.MAKESPAN).usual()
    assert first.pipeline.counts == (1, 2, 2, 2)
    assert max(first.peak_memory) == 24
    assert first.origin.strategy == "1f1b"


@pytest.mark.parametrize("limit", [20, 30, 50])
def test_first_rows_of_a_wider_space_are_no_worse(limit: int) -> None:
    parts = [
        space(limit, placements=placements, recompute=recompute)
        for placements in combinations(USUAL, 2)
        for recompute in (("none", "full"), ("search",))
    ]
    best = all_rows(space(limit))[0]
    for narrow in map(all_rows, parts):
        assert not narrow or best.step <= narrow[0].step


@pytest.mark.parametrize(("readings", "complete"), [(3, False), (10_000, True)])
def test_an_evaluation_ends_at_its_time_limit(
    readings: int, complete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows so far, and known ones, are its outcome: not all are evaluated."""
    known, every = quick_rows(space(30)), all_rows(space(30))
    stepping_clock(monkeypatch, 1.0, readings)
    task = FirstTask(space(30), CombinationState(None, first=known), seconds=1.0)
    state = task.perform().state
    assert state is not None and state.evaluated == complete
    assert (state.first == every) == complete
    assert state.first[0].step <= known[0].step


def test_over_the_limit_fewer_microbatches_are_in_flight() -> None:
    """1F1B with full recompute has 4 microbatches in flight, and the limit allows 3."""
    pipeline = LAYERS.pipeline(devices=4, batches=8, recompute="full", mem_limit=1000)
    published = evaluate(pipeline, "1f1b")
    limit = peak_memory(published) - 2
    (schedule,) = FirstSchedules(replace(pipeline, mem_limit=limit), Objective.MAKESPAN).usual()
    assert schedule.fits_limits and ppopt.verify(schedule) == []
    one_at_a_time = 8 * sum(pipeline.costs.forward + pipeline.costs.backward)
    assert value_of(published) < value_of(schedule) < one_at_a_time


def test_with_few_layers_is_between_none_and_full() -> None:
    pipeline = LAYERS.pipeline(devices=4, batches=8, recompute="search", mem_limit=24)
    first = FirstSchedules(pipeline, Objective.MAKESPAN)
    (full,), (few,) = first.usual(), with_few_layers(first)
    unlimited = replace(pipeline, recompute="none", mem_limit=None)
    assert value_of(evaluate(unlimited, "1f1b")) < value_of(few) < value_of(full)
    assert 0 < sum(few.pipeline.recomputed) < sum(full.pipeline.recomputed) == 8


def test_with_few_layers_does_not_wait_for_all_choices() -> None:
    """Eight layers have few choices of recompute; their first one is enough to start from."""
    pipeline = LAYERS.pipeline(devices=4, batches=8, recompute="search", mem_limit=24)
    search = StrategySearch(pipeline, "1f1b", Objective.MAKESPAN)
    search.evaluate_first()
    assert search.fits and not search.all_evaluated


@pytest.mark.parametrize("limit", [20, 24, 34])
def test_a_plan_without_time_starts_from_strategies(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time is up after the first strategy: 1F1B with full recompute, or none if that fits."""
    stepping_clock(monkeypatch, 1.0, 4)
    plan = ppopt.plan(LAYERS, devices=4, batches=8, mem_limit=limit, workers=1, time_limit=1.0)
    values = by_hand(space(limit, placements=("linear",)))
    assert plan.value is not None and plan.value <= min(values, default=plan.value)
    assert all(row.status is not RowStatus.FEASIBLE for row in plan.rows if not row.searches)


def test_all_combinations_are_evaluated_before_any_is_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Time is up after the evaluation: rows that are not excluded have the value of a strategy."""
    combinations_of = ParallelSpace(
        architecture_of(SMALL), gpu_named("h100"), 8, 16, tensor=(1, 2), microbatch=(1,),
        data=(1, 2), context=(1,),
    )  # fmt: skip
    stepping_clock(monkeypatch, 1.0, 120)
    plan = plan_parallelism(combinations_of, PlanArguments(), workers=1, time_limit=1.0)
    statuses = [row.status(plan.value) for row in plan.rows]
    assert RowStatus.UNKNOWN not in statuses and RowStatus.EVALUATED in statuses
    for row in plan.rows:
        if row.value is not None:
            pipeline = row.model.pipeline
            schedules = [
                evaluate(replace(pipeline, recompute=mode), "1f1b") for mode in ("none", "full")
            ]
            steps = [value_of(schedule) for schedule in schedules if schedule.fits_limits]
            assert row.value <= min(steps)
    best = plan.best
    assert best is not None and best.plan is not None and best.plan.value == plan.value
    counted = statuses.count(RowStatus.EVALUATED)
    assert f"{counted} evaluated by strategies alone" in "\n".join(describe_parallel_plan(plan))


class Evaluated(Exception):  # noqa: N818
    """The shortest step of all combinations, by strategies alone."""


def shortest_step(parallelism: dict[str, Any], arguments: PlanArguments) -> Fraction | None:
    """Shortest step of the first schedules of a space of `ppopt plan --from`.

    None if no schedule is within the limit, or if there are more stages than layers.
    """
    combinations_of = ParallelSpace(
        architecture_of(SMALL), gpu_named("h100"), 8, 16, context=(1,), **parallelism
    )
    try:
        plan_parallelism(combinations_of, arguments, workers=1, time_limit=1.0)
    except Evaluated as evaluated:
        step: Fraction | None = evaluated.args[0]
        return step
    except ppopt.InputError as error:
        if "every stage needs one" not in str(error):
            raise
    return None


@pytest.mark.parametrize("mem_limit", ["2GiB", "80GiB"])
def test_strategies_of_a_wider_space_of_parallelism_are_no_slower(
    mem_limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock hardly moves, and no combination is searched."""

    def evaluate_only(search: _ParallelSearch) -> None:
        search._evaluate_first()
        raise Evaluated(search.best)

    monkeypatch.setattr(_ParallelSearch, "run", evaluate_only)
    stepping_clock(monkeypatch, 1.0, 10**9)
    wide = {"tensor": (1, 2), "data": (1, 2), "microbatch": (1, 2)}
    best = shortest_step(wide, PlanArguments(mem_limit=mem_limit))
    parts = [
        shortest_step(dict(zip(wide, map(tuple, zip(sizes)), strict=True)), arguments)
        for sizes in product(*wide.values())
        for arguments in (
            PlanArguments(mem_limit=mem_limit, placements=(placement,))
            for placement in ("linear", "interleaved", "v")
        )
    ]
    steps = [step for step in parts if step is not None]
    assert steps and best == min(steps)


def test_a_frontier_evaluates_strategies_at_several_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No limit is searched: points are those of 1F1B with the least recompute, at least three."""
    pipeline = LAYERS.pipeline(
        devices=4, batches=8, partition="search", recompute="search", mem_limit=ALL
    )
    stepping_clock(monkeypatch, 1.0, 1000)
    curve = ppopt.frontier(pipeline, workers=1, time_limit=1.0)
    assert len(curve.points) >= 3
    monkeypatch.undo()
    for limit in (24, 36):
        choice = ppopt.best_choice(replace(pipeline, mem_limit=limit), "1f1b")
        best = min(point.result.value for point in curve.points if point.limit <= limit)
        assert best <= choice.value * Fraction(115, 100)


@pytest.mark.parametrize("placement", USUAL)
def test_strategies_that_mix_backwards_are_evaluated_over_the_limit(placement: str) -> None:
    """Orders of one kind of backward alone are repaired; the others are left out."""
    pipeline = LAYERS.pipeline(
        devices=4, batches=8, placement=placement, recompute="search", mem_limit=11
    )
    for schedule in FirstSchedules(pipeline, Objective.MAKESPAN).by_other_strategies():
        assert schedule.fits_limits and ppopt.verify(schedule) == []


def test_a_plan_takes_a_baseline_that_was_evaluated_after_its_search() -> None:
    """The search has 1F1B of one configuration; interleaved 1F1B follows as a late baseline."""
    whole = space(None)
    search = PlanSearch(whole, Objective.MAKESPAN, BackwardKind.MIXED, checked_options(600, 1))
    linear = whole.pipeline(next(iter(whole)))
    search.start_from([evaluate(replace(linear, partition="balanced"), "1f1b")])
    plan = search.plan()
    search.start_from_late_baselines()
    better = search.plan()
    within = [
        baseline.value
        for baseline in search.baselines.add_to(search.plan()).baselines
        if baseline.in_space
    ]
    assert plan.value is not None and better.value == min(within) < plan.value


def test_recompute_and_offload_may_both_be_searched() -> None:
    layers = ppopt.Model(
        [{"forward": 2, "activation": 4, "kept": 1, "offload": {"time": 1}} for _ in range(4)]
    )
    pipeline = layers.pipeline(
        devices=2, batches=2, recompute="search", offload="search", mem_limit=12
    )
    result = ppopt.solve(pipeline, workers=1, time_limit=600)
    (first,) = FirstSchedules(pipeline, Objective.MAKESPAN).usual()
    assert first.fits_limits and result.value is not None and result.value <= value_of(first)
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.MIXED)
    of_frontier = FrontierProblem(problem).first_schedules([first])
    assert min(max(schedule.peak_memory) for schedule in of_frontier) < max(first.peak_memory)


def test_a_frontier_starts_from_the_best_strategies_of_every_limit() -> None:
    """Not only from those of the usual one."""
    pipeline = LAYERS.pipeline(
        devices=4, batches=8, placement="v", chunks=2, partition="search", mem_limit=ALL
    )
    usual = evaluate(replace(pipeline, partition="balanced"), "1f1b-v")
    problem = FrontierProblem(Problem(pipeline, Objective.MAKESPAN, BackwardKind.MIXED))
    schedules = problem.first_schedules([usual])
    points = sorted((peak_memory(schedule), value_of(schedule)) for schedule in schedules)
    assert all(slow > fast for (_, slow), (_, fast) in pairwise(points))
    first = FirstSchedules(pipeline.having(mem_limit=peak_memory(usual)), Objective.MAKESPAN)
    further = min(map(value_of, first.by_other_strategies()))
    assert points[-1][1] <= further < value_of(usual)


def test_a_closed_combination_of_the_shortest_step_is_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1F1B of one device meets the bound, so that its combination is never open; others are."""
    combinations_of = ParallelSpace(
        architecture_of(SMALL), gpu_named("h100"), 4, 8, tensor=(1, 4), microbatch=(1,),
        data=(1,), context=(1,),
    )  # fmt: skip
    stepping_clock(monkeypatch, 1.0, 600)
    plan = plan_parallelism(combinations_of, PlanArguments(), workers=1, time_limit=1.0)
    best = plan.best
    assert best is not None and best.plan is not None and best.value == best.plan.value
    assert plan.plan.value == plan.value


def test_strategies_of_a_plan_have_its_options() -> None:
    whole = replace(
        space(None, placements=("interleaved",), chunks=(2,), recompute=("none",)),
        strategies=("searched", "interleaved"), options=Options(group_size=8),
    )  # fmt: skip
    arguments = whole, Objective.MAKESPAN, BackwardKind.MIXED, checked_options(600, 1)
    search = PlanSearch(*arguments, usual_schedules(*arguments))
    (row,) = (row for row in search.plan().rows if row.configuration.strategy == "interleaved")
    assert row.schedule is not None and row.schedule.origin.options == {"group_size": 8}


@pytest.mark.parametrize("step", [with_few_layers, in_best_configuration])
def test_the_best_configuration_has_a_partition_that_the_runtime_supports(step: Step) -> None:
    """Only the even partition; others would be faster."""
    heavy = replace(LAYERS.layers[0], forward=12, backward=24)
    pipeline = replace(LAYERS, layers=(heavy, *LAYERS.layers[1:])).pipeline(
        devices=3, batches=8, partition="search", recompute="search", mem_limit=ALL
    )
    supported = even(pipeline.model, 3)
    (anywhere,) = step(FirstSchedules(pipeline, Objective.MAKESPAN))
    (schedule,) = step(
        FirstSchedules(
            pipeline, Objective.MAKESPAN, accepts_partition=lambda counts: counts == supported
        )
    )
    assert anywhere.pipeline.counts != supported
    assert schedule.pipeline.counts == supported and ppopt.verify(schedule) == []


@pytest.mark.parametrize(("strategy", "number"), [("1f1b-v", 1), ("zbv", 0)])
def test_without_time_adaptive_strategies_are_left_out(strategy: str, number: int) -> None:
    """Their orders may take seconds, whereas those of fixed rules take a moment."""
    of = replace(
        space(None, placements=("v",), chunks=(2,), recompute=("none",)), strategies=(strategy,)
    )
    arguments = of, Objective.MAKESPAN, BackwardKind.MIXED, checked_options(600, 1)
    with within(0):
        schedules = usual_schedules(*arguments)
    assert len(schedules) == number
    assert [each.origin.strategy for each in usual_schedules(*arguments)] == [strategy]
