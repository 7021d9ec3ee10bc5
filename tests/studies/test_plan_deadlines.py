"""Plans end at their deadline, whatever they have found by then. The tests control the clock."""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product

import pytest

import ppopt
from ppopt import Model, Objective, Status
from ppopt.derivation.config_json import architecture_of
from ppopt.derivation.derived_model import DerivedModel
from ppopt.derivation.gpus import gpu_named
from ppopt.problem.problem import Problem
from ppopt.report.parallel import (
    count_combinations,
    describe_parallel_plan,
    parallel_plan_object,
)
from ppopt.report.plan_text import status_word
from ppopt.solver.choices.choice import Choice
from ppopt.solver.heuristics.first_schedules import FirstSchedules
from ppopt.studies import plan_set_up
from ppopt.studies.parallel_plan import plan_parallelism
from ppopt.studies.parallel_result import ParallelPlan, ParallelRow
from ppopt.studies.parallel_set_up import PlanArguments
from ppopt.studies.parallel_space import Parallelism, ParallelSpace
from ppopt.studies.parallel_task import CombinationState
from tests.clock import late, stepping_clock, work_clock
from tests.factories.configs import SMALL
from tests.tiers import slow

TIGHT = Model(
    [
        {"forward": 1, "activation": 3},
        {"forward": 1, "activation": 1, "static": 3},
        {"forward": 5, "activation": 2, "count": 3},
        {"forward": 4, "activation": 3, "workspace": 3},
    ]
)
"""On two devices with limits of 12 and 39 few partitions are within memory, the balanced one is
not."""


@pytest.mark.parametrize("readings", [8, 13])
def test_a_plan_ends_at_its_deadline_without_a_schedule(
    readings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time is up before any partition within memory was searched, or just after."""
    clock = stepping_clock(monkeypatch, 1.0, readings)
    plan = ppopt.plan(
        TIGHT, devices=2, batches=2, mem_limit=[12, 39], placement="v", recompute="none",
        workers=1, time_limit=1.0,
    )  # fmt: skip
    assert clock.readings < readings + 2000
    assert plan.status in (Status.UNKNOWN, Status.FEASIBLE, Status.OPTIMAL)
    if plan.schedule is not None:
        assert ppopt.verify(plan.schedule) == []


@pytest.mark.parametrize("limit", [20, 24, 30, 200])
@pytest.mark.parametrize("batches", [[8], [2, 8]])
@pytest.mark.parametrize("placements", [["linear"], ["linear", "interleaved"]])
def test_hand_strategies_are_evaluated_whatever_the_time_limit(
    limit: int, batches: list[int], placements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time is up when the first configuration is set up: linear without recompute."""
    stepping_clock(monkeypatch, 1.0, 1)
    model = Model([{"forward": 2, "activation": 4, "recompute": False, "kept": 1}] * 8)
    plan = ppopt.plan(
        model, devices=4, batches=batches, mem_limit=limit, placement=placements, workers=1,
        time_limit=1.0,
    )  # fmt: skip
    rules = product(batches, placements, ["none", "full"])
    pipelines = [
        model.pipeline(
            devices=4, batches=count, placement=placement, recompute=recompute, mem_limit=limit
        )
        for count, placement, recompute in rules
    ]
    first = [
        schedule.makespan / schedule.pipeline.batches
        for pipeline in pipelines
        for schedule in FirstSchedules(pipeline, Objective.MAKESPAN).usual()
    ]
    assert plan.best is not None and plan.best.per_microbatch == min(first)


def test_what_no_time_was_left_for_is_not_called_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only configuration is looked at, and its partition is not within memory."""
    stepping_clock(monkeypatch, 1.0, 1)
    plan = ppopt.plan(
        TIGHT, devices=2, batches=2, mem_limit=[12, 39], placement="v", recompute="none",
        workers=1, time_limit=1.0,
    )  # fmt: skip
    assert [row.searches for row in plan.rows] == [0]
    assert "1 was not searched in time" in plan.proof and " 1 was searched" not in plan.proof


@pytest.mark.usefixtures("search_alone")
def test_configurations_are_set_up_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is up while the second one is set up: what the third may reach counts in the bound.

    The work of a microbatch is 12 F of 1 and 12 backwards of 2 on two devices: 18.
    """
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    choice_of, set_up = plan_set_up.choice_of, []

    def slow_choice_of(problem: Problem) -> Choice | None:
        nonlocal now
        now += 0.6
        set_up.append(problem)
        return choice_of(problem)

    monkeypatch.setattr(plan_set_up, "choice_of", slow_choice_of)
    plan = ppopt.plan(
        Model([{"forward": 1, "count": 12}]), devices=2, batches=4,
        placement="linear,interleaved,v", workers=1, time_limit=1.0,
    )  # fmt: skip
    assert len(set_up) == 2 == len(plan.rows)
    assert plan.skipped == (("v/2, recompute none, 4 microbatches", "time limit reached"),)
    assert plan.lower_bound == 4 * 18
    assert plan.proof.startswith("over all 3 configurations") and "1 was not set up" in plan.proof


@pytest.mark.parametrize("command", ["plan", slow("compare"), "eval"])
def test_thousands_of_layers_keep_the_time_limit(command: str) -> None:
    """Equal layers are one object: their costs are computed once, whatever the number."""
    pipeline = Model([{"forward": 1, "count": 4000}]).pipeline(
        devices=4, batches=4, partition="search"
    )
    limit = 0.2
    with work_clock() as clock:
        if command == "plan":
            ppopt.plan(pipeline, time_limit=limit, workers=1)
        elif command == "compare":
            ppopt.compare(pipeline, time_limit=limit, workers=1)
        else:
            ppopt.best_choice(pipeline, "1f1b", time_limit=limit)
        seconds = clock.monotonic()
    assert not late(seconds, limit)


@pytest.mark.parametrize("readings", [8, 13])
def test_combinations_without_a_search_are_called_so_and_count_in_the_bound(
    readings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time is up after the first strategies: what the others may reach is the bound of all."""
    space = ParallelSpace(
        architecture_of(SMALL), gpu_named("h100"), 8, 16, tensor=(1, 2), microbatch=(1, 2),
        data=(1, 2), context=(1,), efficiency=(0.4, 0.39),
    )  # fmt: skip
    stepping_clock(monkeypatch, 2.0, readings)
    plan = plan_parallelism(
        space, PlanArguments(placements=("linear",), chunks=(1,)), workers=1, time_limit=2.0
    )
    output = parallel_plan_object(plan)
    rows = output["parallelism"]["rows"]
    assert output["lower_bound"] <= min(row["lower_bound"] for row in rows)
    unsearched = [
        (row_object, row)
        for row_object, row in zip(rows, plan.rows, strict=True)
        if row_object["status"] == "unknown" and not row_object["searches"]
    ]
    assert unsearched and output["value"] is not None
    for _, row in unsearched:
        assert status_word(row.status(plan.value), row.searches) == "not searched"
    late = 8 - len(plan.rows)
    text = f"not searched in time: {len(unsearched)}{f', not derived in time: {late}' * (late > 0)}"
    assert f"{text} of 8 combinations; raise --time-limit" in describe_parallel_plan(plan)


def test_combinations_are_derived_until_half_of_the_time_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each takes 0.3 s of 1: the third is not begun, and what it may reach is not known."""
    clock = stepping_clock(monkeypatch, 1.0, 600)
    model_of, derived = ParallelSpace.model, []

    def slow_model(space: ParallelSpace, combination: Parallelism) -> DerivedModel:
        clock.readings += 180
        derived.append(combination)
        return model_of(space, combination)

    monkeypatch.setattr(ParallelSpace, "model", slow_model)
    space = ParallelSpace(
        architecture_of(SMALL), gpu_named("h100"), 8, 16, tensor=(1, 2, 4), microbatch=(1,),
        data=(1,), context=(1,), expert=(1,),
    )  # fmt: skip
    arguments = PlanArguments(placements=("linear",), chunks=(1,))
    plan = plan_parallelism(space, arguments, workers=1, time_limit=1.0)
    assert len(derived) == 2 == len(plan.rows)
    assert plan.skipped == {Parallelism(4, 1, 1): "time limit reached"}
    assert plan.lower_bound == 0 and plan.status is not Status.OPTIMAL
    lines = describe_parallel_plan(plan)
    assert any("no bound: time limit reached" in line for line in lines)
    assert lines[-1].endswith("not derived in time: 1 of 3 combinations; raise --time-limit")


@cache
def planned() -> ppopt.Plan:
    return ppopt.plan(
        Model([{"forward": 1, "count": 2}]), devices=2, batches=2, placement="linear", chunks=1,
        workers=1, time_limit=600,
    )  # fmt: skip


def combination(bound: int | None, value: int | None, searches: int = 1) -> ParallelRow:
    """A combination of a plan whose only row has this value and as many searches."""
    space = ParallelSpace(architecture_of(SMALL), gpu_named("h100"), 8, 16)
    plan, sizes = planned(), Parallelism(1, 1, 1)
    row = plan.rows[0]
    ticks = None if value is None else value * plan.per_unit
    schedule = None if value is None else row.schedule
    result = replace(row.result, value_ticks=ticks, schedule=schedule)
    rows = (replace(row, result=result, searches=searches),)
    plan = replace(plan, rows=rows, value_ticks=ticks)
    lower_bound = None if bound is None else Fraction(bound)
    return ParallelRow(sizes, space.model(sizes), CombinationState(lower_bound, plan))


@pytest.mark.parametrize(
    ("bound", "value", "expected"),
    [
        (95, None, "searched"),
        (95, 110, "searched"),
        (104, 110, "excluded"),
        (104, None, "excluded"),
        (None, None, "over the limit"),
    ],
)
def test_a_word_says_whether_a_combination_may_be_faster(
    bound: int | None, value: int | None, expected: str
) -> None:
    """The best takes 100."""
    row = combination(bound, value)
    assert status_word(row.status(Fraction(100)), row.searches) == expected


def test_combinations_are_counted_by_how_they_ended() -> None:
    """One has a schedule of a baseline alone, one is searched, one is ruled out by its bound,
    one is over the limit, one is left."""
    evaluated, *unevaluated = (
        combination(2, 3, searches=0),
        combination(3, None, searches=2),
        combination(3, None, searches=0),
        combination(None, None),
        combination(2, None, searches=0),
    )
    bounded = [replace(row, state=row.state._replace(plan=None)) for row in unevaluated]
    rows = (evaluated, unevaluated[0], *bounded[1:])
    space = ParallelSpace(architecture_of(SMALL), gpu_named("h100"), 8, 16)
    provenance = planned().provenance
    plan = ParallelPlan(space, Status.FEASIBLE, rows, Fraction(2), {}, provenance, 0.0)
    assert count_combinations(plan) == [
        "5 combinations: 2 searched, 1 ruled out by bounds alone, 1 over the memory limit",
        "not searched in time: 1 of 5 combinations; raise --time-limit",
    ]
