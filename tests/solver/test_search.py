"""The search against exhaustive search and figures of the design."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from ppopt import InputError, Objective, Pipeline, Result, Status, evaluate, solve
from ppopt.formats.schedule_json import read_schedule
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.schedule.schedule import Schedule
from ppopt.solver.parameters import DynamicProgramParams, PoolParams, RoundParams, SolveParams
from ppopt.solver.portfolio import NAMES
from ppopt.solver.turns import round_seconds
from ppopt.verifier import verify
from tests.clock import SHORT, late, work_clock
from tests.factories.instances import at_speeds, tiny_cases
from tests.oracles import exhaustive
from tests.tiers import slow


def ticks(result: Result) -> int | None:
    return None if result.value is None else int(result.value * result.pipeline.ticks.per_unit)


def assert_sound(result: Result) -> None:
    """What every result promises, whatever its status."""
    if result.status is Status.INFEASIBLE:
        assert result.schedule is None
        assert result.value is None
        assert re.search(
            "minimum feasible limit for all|a limit for all devices must be", result.proof
        )
        return
    assert verify(result.schedule) == []
    assert ticks(result) == result.schedule.metrics.value_ticks(result.objective)
    assert result.lower_bound <= result.value
    assert (result.status is Status.OPTIMAL) == (result.lower_bound == result.value)
    assert result.proof


MODEL_ALONE = SolveParams(without=frozenset(NAMES) - {"list scheduling", "full model"})


@pytest.mark.parametrize(
    ("objective", "count", "fixed"),
    [
        (Objective.MAKESPAN, 20, {"ops": 12}),
        (Objective.DEVICE_SPAN, 10, {"ops": 12}),
        *(slow(objective, 40, {"ops": 14}) for objective in Objective),
        (Objective.MAKESPAN, 40, {"heavy": True, "ops": 14}),
        slow(Objective.MAKESPAN, 120, {"heavy": True}),
        (Objective.DEVICE_SPAN, 10, {"heavy": True, "ops": 12}),
        (Objective.MAKESPAN, 12, {"heavy": True, "ops": 16, "routes": 2}),
        (Objective.MAKESPAN, 20, {"boundaries": True, "ops": 14}),
        (Objective.DEVICE_SPAN, 10, {"boundaries": True, "ops": 12}),
    ],
)
def test_agrees_with_exhaustive_search(
    objective: Objective, count: int, fixed: dict[str, Any]
) -> None:
    """Value and infeasibility, over unequal times, links, limits, chunks, fused and split.

    Plain ones twice: by all methods, and by the model of all devices alone.
    """
    infeasible = searched = 0
    is_plain = fixed.keys() == {"ops"}
    for case in tiny_cases(seed=2, count=count, **fixed):
        expected = exhaustive.best(case.pipeline, fused=case.fused, objective=objective.value)
        infeasible += expected is None
        for params in (SolveParams(), MODEL_ALONE)[: 1 + is_plain]:
            result = solve(
                case.pipeline,
                objective=objective,
                backward_kind=case.backward_kind,
                workers=1,
                params=params,
            )
            assert_sound(result)
            assert ticks(result) == expected, case
            proved = Status.INFEASIBLE if expected is None else Status.OPTIMAL
            assert result.status is proved, case
        searched += "CP-SAT" in result.proof
    assert count < 32 * infeasible < 20 * count
    assert not is_plain or 32 * searched > 5 * count


def test_devices_of_unequal_speeds_agree_with_exhaustive_search() -> None:
    """Value, infeasibility and the schedule itself: that of the same times given per stage."""
    infeasible = unequal = 0
    for case in at_speeds(tiny_cases(seed=40, count=30, ops=14), seed=41):
        expected = exhaustive.best(case.spelled_out, fused=case.fused, objective="makespan")
        result = solve(case.pipeline, backward_kind=case.backward_kind, workers=1)
        assert_sound(result)
        wanted = None if expected is None else case.spelled_out.ticks.time(expected)
        assert result.value == wanted, case
        assert result.status is (Status.INFEASIBLE if expected is None else Status.OPTIMAL), case
        if result.schedule is not None:
            assert verify(retimed(result.schedule, case.spelled_out)) == []
        infeasible += expected is None
        unequal += len(set(case.pipeline.device_speed)) > 1
    assert 2 < infeasible < 20
    assert unequal > 10


def retimed(schedule: Schedule, pipeline: Pipeline) -> Schedule:
    """The same operations at the same times, on a pipeline of other ticks."""
    own_scale, target_scale = schedule.pipeline.ticks.per_unit, pipeline.ticks.per_unit
    rows = []
    for row in schedule.rows():
        times = [Fraction(time * target_scale, own_scale) for time in row[4:6]]
        assert all(time.denominator == 1 for time in times)
        rows.append((*row[:4], *map(int, times)))
    return Schedule.from_rows(pipeline, rows)


Z = {"forward": 10, "backward": 20, "weight": 9, "p2p": 1}


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"mem_limit": "1f1b"}, 27),
        ({"mem_limit": 4, **Z}, 288),
        slow({"placement": "v", "mem_limit": 8, "activation": 2, "memory_b": -1, "forward": 20,
              "backward": 40, "weight": 18, "p2p": 1}, 522),
    ],
)  # fmt: skip
def test_values_measured_before(fields: dict, value: int) -> None:
    """Optima of the design's first measurements, 4 devices and 8 microbatches."""
    result = solve(Pipeline(stages=4, batches=8, **fields), time_limit=2400)
    assert_sound(result)
    assert (result.status, result.value) == (Status.OPTIMAL, value)


def test_an_optimum_that_takes_long_to_find() -> None:
    """523 of the same measurements, interleaved: bound at once, and met by a schedule on file."""
    path = Path(__file__).parents[1] / "studies" / "references" / "solved-interleaved-4x8.json"
    stored, _ = read_schedule(path)
    result = solve(stored.pipeline, hint=stored)
    assert_sound(result)
    assert (result.status, result.value) == (Status.OPTIMAL, 523)
    alone = solve(stored.pipeline, stop=lambda state: state.lower_bound == 523)
    assert alone.lower_bound == 523


def test_makespan_and_device_span_are_different_objectives() -> None:
    pipe = Pipeline(
        stages=4, batches=12, forward=5, backward=10, weight=4, activation=2, memory_b=-1
    )
    result = solve(pipe, mem_limit=10)
    assert_sound(result)
    assert (result.status, result.value) == (Status.OPTIMAL, 195)


def test_infeasible_limit_says_the_least_that_works() -> None:
    """Device 1 holds 5 and one activation of 2; a B takes 1 more, a whole backward nothing."""
    pipe = Pipeline(stages=2, batches=4, activation=[3, 2], static=[1, 5], memory_b=[0, 1])
    for kind, minimum in (("split", 8), ("mixed", 7)):
        result = solve(pipe, mem_limit=6, backward_kind=kind)
        assert result.status is Status.INFEASIBLE
        assert f"device 1 needs {minimum}" in result.proof
        assert f"minimum feasible limit for all devices is {minimum}" in result.proof
        repeated = solve(pipe, mem_limit=minimum, backward_kind=kind)
        assert repeated.status is Status.OPTIMAL


def test_time_limit_returns_the_best_so_far_with_its_gap() -> None:
    pipe = Pipeline(stages=8, batches=16, **Z)
    with work_clock(SHORT):
        result = solve(pipe, mem_limit=6, time_limit=0.5, workers=1)
    assert_sound(result)
    assert result.status is Status.FEASIBLE
    assert 0 < result.gap < Fraction(1, 4)
    assert not late(result.solve_seconds, 1)


def test_one_worker_repeats_itself() -> None:
    pipe = Pipeline(stages=3, batches=5, forward=[3, 5, 4], p2p=1)
    first, second = (solve(pipe, mem_limit=3, workers=1, seed=5) for _ in range(2))
    assert first.schedule == second.schedule
    assert first.origin() == second.origin()


def test_progress_is_told_and_never_worsens() -> None:
    seen = []
    result = solve(Pipeline(stages=4, batches=8, **Z), mem_limit=4, progress=seen.append)
    values = [state.value for state in seen if state.value is not None]
    limits = [state.lower_bound for state in seen]
    assert values == sorted(values, reverse=True)
    assert values[-1] == result.value
    assert all(low <= result.value for low in limits)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_limit": 0}, "time_limit: 0 is not above 0"),
        ({"time_limit": float("nan")}, "time_limit: nan"),
        ({"workers": -1}, "workers: -1 is not between 1 and 1024"),
        ({"seed": -1}, "seed: -1 is not between"),
        ({"objective": "speed"}, "objective: 'speed'"),
        ({"mem_limit": "x"}, "mem_limit: 'x' is not a number"),
    ],
)
def test_misuse_is_refused(options: dict, message: str) -> None:
    with pytest.raises(InputError) as caught:
        solve(Pipeline(stages=2, batches=2), **options)
    assert str(caught.value).startswith(message)


@pytest.mark.slow
def test_one_worker_writes_the_same_file_however_busy_the_machine() -> None:
    """A search of several short rounds, alone and in parallel with another one of the same."""
    short = SolveParams(
        rounds=RoundParams(first_seconds=0.002),
        dynamic_program=DynamicProgramParams(first_reach=0),
        pool=PoolParams(first_steps=(5, 5)),
    )
    pipe = Pipeline(
        stages=6,
        batches=12,
        forward=[10, 12, 9, 11, 13, 8],
        backward=[21, 19, 23, 20, 22, 18],
        weight=[9, 8, 10, 9, 11, 7],
        p2p=1,
    )
    phases: list[str] = []
    alone = solve(
        pipe,
        mem_limit=4,
        workers=1,
        time_limit=2400,
        progress=lambda state: phases.append(state.phase),
        params=short,
    )
    assert "relaxation bounds" in phases[phases.index("full model") :], "one round is not several"
    with ThreadPoolExecutor(2) as pool:
        pair = pool.map(
            lambda _: solve(pipe, mem_limit=4, workers=1, time_limit=2400, params=short), range(2)
        )
    assert alone.status is Status.OPTIMAL
    for repeated in pair:
        assert repeated.schedule == alone.schedule
        assert repeated.origin() == alone.origin()
    assert "dynamic program" in phases


def test_a_proof_that_ends_at_the_value_says_that_all_was_searched() -> None:
    """One microbatch at a time through three devices and back, links included: 4 x 11."""
    pipeline = Pipeline(stages=3, batches=4, p2p=1, mem_limit=1)
    result = solve(pipeline, workers=1, backward_kind="split", params=MODEL_ALONE)
    assert (result.status, result.value) == ("optimal", 44)
    assert result.proof == "CP-SAT searched all orders of the 36 operations and found none faster"


def test_rounds_begin_as_short_as_a_pipeline_is_small() -> None:
    """Half a millisecond per operation, at most half a second; each twice as long as the last."""
    for batches, first in ((10, 0.06), (100, 0.5)):
        problem = Problem(
            Pipeline(stages=4, batches=batches), Objective.MAKESPAN, BackwardKind.SPLIT
        )
        seconds = [round_seconds(problem, round_index, RoundParams()) for round_index in range(3)]
        assert seconds == pytest.approx([first, 2 * first, 4 * first])


def test_a_method_is_left_out_by_its_name() -> None:
    phases: set[str] = set()
    pipe = Pipeline(stages=3, batches=5, forward=[3, 5, 4], p2p=1, mem_limit=3)
    params = SolveParams(without=frozenset({"list scheduling", "full model"}))
    result = solve(pipe, workers=1, params=params, progress=lambda state: phases.add(state.phase))
    assert result.status is Status.OPTIMAL
    assert "baselines" in phases
    assert not phases & params.without
    with pytest.raises(InputError, match="no method is called 'luck'"):
        solve(pipe, params=SolveParams(without=frozenset({"luck"})))


ROUTES: dict[str, dict[str, Any]] = {
    "one scale": {
        "stages": 2,
        "batches": 2,
        "routes": 2,
        "p2p": 1,
        "forward": [2, 3],
        "backward_input": [1, 4],
        "weight": [4, 3],
        "backward": [5, 7],
        "activation": [3, 2],
        "mem_limit": 7,
    },
    "no common divisor": {
        "stages": 3,
        "batches": 2,
        "routes": 2,
        "placement": [2, 1, 0],
        "forward": [1.056864, 1.01633, 4.096851],
        "backward_input": [3.076586, 2.021682, 4.037623],
        "weight": [3.06923, 4.080467, 4.011019],
        "backward": [4.611201, 4.754361, 8.048642],
        "activation": [2, 1, 3],
        "mem_limit": 6,
    },
}


@pytest.mark.parametrize("name", ROUTES)
def test_time_to_a_proof_does_not_grow_with_the_number_of_ticks(name: str) -> None:
    """A refutation that shifts starts tick by tick would need far more work than a small model has.

    The value of the first case is checked by exhaustive search over its few ticks.
    """
    fields = ROUTES[name]
    million = {
        key: [10**6 * value for value in value] if isinstance(value, list) else 10**6 * value
        for key, value in fields.items()
        if key in ("forward", "backward_input", "weight", "backward", "p2p")
    }
    methods = {"list scheduling", "baselines", "double justification", "full model"}
    params = SolveParams(without=frozenset(NAMES) - methods)
    pipeline = Pipeline(**(fields | million))
    result = solve(
        pipeline, objective="device-span", backward_kind="split", workers=1, params=params
    )
    assert result.status is Status.OPTIMAL
    assert_sound(result)
    if name == "one scale":
        optimum = exhaustive.best(Pipeline(**fields), fused=False, objective="device-span")
        assert result.value == 10**6 * optimum


def test_one_number_a_list_of_it_and_a_matrix_are_the_same() -> None:
    single = Pipeline(stages=3, batches=4, p2p=2, backward_p2p=1)
    listed = replace(single, p2p=[2, 2], backward_p2p=[1, 1])
    square = replace(single, p2p=[[0, 2, 2], [2, 0, 2], [2, 2, 0]])
    schedules = [evaluate(pipe, "1f1b") for pipe in (single, listed, square)]
    assert schedules[0].pipeline.ticks == schedules[1].pipeline.ticks == schedules[2].pipeline.ticks
    assert schedules[0].metrics == schedules[1].metrics == schedules[2].metrics
    assert all(verify(each) == [] for each in schedules)


def test_both_routes_cross_the_boundaries_of_their_stages() -> None:
    """One microbatch a route, three stages of 1 + 2: 9 of work, 5 + 1 down, 5 + 1 up. Device 1
    runs stage 1 of both: F of the second waits 1, and its BW, that much later, 1 more."""
    pipe = Pipeline(stages=3, batches=2, routes=2, p2p=[5, 1])
    assert pipe.ticks.down == pipe.ticks.up == ((5, 1), (5, 1))
    result = solve(pipe, backward_kind="whole", time_limit=600)
    assert result.value == 9 + 12 + 2
