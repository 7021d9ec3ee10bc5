"""The re-checker of bounds: against exhaustive search, on what searches claim, and on lies."""

import inspect
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from math import inf
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ppopt
from ppopt import (
    InputError,
    Objective,
    Pipeline,
    Status,
    Verdict,
    evaluate,
    recheck,
    rechecker,
    solve,
)
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.operation import OpKind
from ppopt.problem.problem import Problem
from ppopt.rechecker import Recheck, check, partial_schedules, refute
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.quantities import num_operations
from ppopt.schedule.origin import Argument, Certificate, Origin
from ppopt.schedule.schedule import Schedule
from ppopt.verifier import figures, verify
from tests.factories.instances import Case, V, at_speeds, tiny_cases
from tests.factories.schedules import schedules
from tests.factories.searches import ended
from tests.oracles import exhaustive
from tests.tiers import examples, slow

HARD = {"forward": 10, "backward": 20, "weight": 9, "p2p": 1}


def checked(claim: Claim, seconds: float = 60.0) -> Recheck:
    return check(claim, seconds, 1, 7, lambda _: None)


def claimed(case: Case, objective: Objective, bound: int | None, *devices: int) -> Claim:
    span = objective is Objective.DEVICE_SPAN
    return Claim(case.pipeline, span, case.backward_kind, bound, devices)


def cases(seed: int, count: int, **fixed: bool) -> list[Case]:
    """Pipelines of every placement, of one route and of two."""
    rows = tiny_cases(seed, count, ops=14, **fixed)
    return [*rows, *tiny_cases(seed + 1, count // 3, ops=12, routes=2, **fixed)]


def test_optima_on_devices_of_unequal_speeds_are_confirmed_and_a_tick_more_is_not() -> None:
    """The optimum is that of the same times given per stage."""
    wrong = 0
    for case in at_speeds(tiny_cases(51, 12, ops=14), 52):
        best = exhaustive.best(case.spelled_out, fused=case.fused, objective="makespan")
        scale = Fraction(case.pipeline.ticks.per_unit, case.spelled_out.ticks.per_unit)
        bound = None if best is None else int(best * scale)
        claim = Claim(case.pipeline, False, case.backward_kind, bound)
        assert checked(claim).verdict is Verdict.CONFIRMED, case
        if bound is not None:
            assert checked(claim._replace(bound=bound + 1)).verdict is Verdict.WRONG, case
            wrong += 1
    assert wrong > 3


@pytest.mark.parametrize(
    ("objective", "count", "fixed"),
    [
        *((objective, 20, {}) for objective in Objective),
        (Objective.MAKESPAN, 24, {"heavy": True}),
        (Objective.MAKESPAN, 12, {"boundaries": True}),
        slow(Objective.MAKESPAN, 60, {"heavy": True}),
    ],
)
def test_optima_are_confirmed_and_a_tick_more_is_not(
    objective: Objective, count: int, fixed: dict[str, bool]
) -> None:
    """Starting from any one device: what is claimed of it is not believed."""
    infeasible = searched = 0
    for case in cases(seed=31, count=count, **fixed):
        best = exhaustive.best(case.pipeline, fused=case.fused, objective=objective.value)
        device = case.pipeline.batches % case.pipeline.num_devices
        verdict = checked(claimed(case, objective, best, device))
        assert verdict.verdict is Verdict.CONFIRMED, (case, best, verdict)
        infeasible += best is None
        searched += "no schedule" in verdict.reason
        if best is None:
            continue
        verdict = checked(claimed(case, objective, best + 1, device))
        assert verdict.verdict is Verdict.WRONG, (case, best, verdict)
        assert_below(verdict, objective, best)
    assert infeasible > count // 30
    assert searched > count // 12


def assert_below(rechecked: Recheck, objective: Objective, best: int) -> None:
    """The counterexample is a schedule, of the value that it should have."""
    assert rechecked.counterexample is not None
    assert verify(rechecked.counterexample) == []
    measured = figures(rechecked.counterexample)
    makespan = objective is Objective.MAKESPAN
    assert (measured.makespan if makespan else measured.device_span) == best


def test_the_operations_of_one_device_alone_refute_no_optimum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of too many operations, those of the certificate's device alone are in the model."""
    refuted = 0
    for case in cases(seed=35, count=15):
        best = exhaustive.best(case.pipeline, fused=case.fused, objective="makespan")
        for device, hosted in enumerate(zip(*case.pipeline.hosted, strict=True)):
            own = sum(map(len, hosted)) * (2 if case.fused else 3) * case.pipeline.batches
            if own >= num_operations(claimed(case, Objective.MAKESPAN, best)):
                continue
            monkeypatch.setattr(refute, "MAX_OPERATIONS", own)
            above = claimed(case, Objective.MAKESPAN, None if best is None else best + 1, device)
            outcome = refute.refute(above, 60.0, 1, 7, lambda _: None)
            assert outcome.devices == (device,) and outcome.schedule is None
            assert not outcome.refuted or best is None, (case, device)
            outcome = refute.refute(above._replace(bound=best), 60.0, 1, 7, lambda _: None)
            refuted += outcome.refuted
    assert refuted > 10


def test_infeasible_where_it_is_not_is_wrong() -> None:
    wrong = 0
    for case in cases(seed=33, count=9):
        best = exhaustive.best(case.pipeline, fused=case.fused, objective="makespan")
        verdict = checked(claimed(case, Objective.MAKESPAN, None))
        assert verdict.verdict is (Verdict.CONFIRMED if best is None else Verdict.WRONG), case
        wrong += best is not None
    assert wrong > 3


@pytest.mark.parametrize("objective", Objective)
def test_what_searches_claim_is_confirmed(objective: Objective) -> None:
    arguments = set()
    for case in cases(seed=63, count=16):
        result = solve(
            case.pipeline,
            objective=objective,
            backward_kind=case.backward_kind,
            workers=1,
        )
        rechecked = recheck(result, workers=1)
        assert rechecked.verdict is Verdict.CONFIRMED, (case, result.proof, rechecked.reason)
        arguments.add(result.certificate.argument)
    assert arguments >= {
        Argument.WORK,
        Argument.DEVICES,
        Argument.MEMORY,
        Argument.ENDS,
        Argument.SEARCH,
    }


def test_the_rules_of_the_device_named_are_enough() -> None:
    """288 on 4 x 8 by device 0 alone (measured in the design)."""
    result = solve(Pipeline(stages=4, batches=8, **HARD), mem_limit=4, workers=1)
    rechecked = recheck(result, workers=1)
    assert (result.value, rechecked.verdict, rechecked.devices) == (288, Verdict.CONFIRMED, (0,))


@pytest.mark.slow
def test_a_large_pipeline_is_confirmed() -> None:
    """1072 on 8 x 32 (measured in the design)."""
    large = solve(Pipeline(stages=8, batches=32, **HARD), mem_limit=8)
    assert (large.value, large.status) == (1072, Status.OPTIMAL)
    assert recheck(large).verdict is Verdict.CONFIRMED


def test_a_schedule_is_not_optimal_because_it_says_so() -> None:
    """A valid schedule with a false bound passes the verifier; a shorter one answers it: 1F1B takes
    33, the least of whole backwards, but 49 with links of length 1, where GPipe takes 39."""
    stated = {
        "status": "optimal",
        "backward_kind": BackwardKind.WHOLE,
        "lower_bound": Fraction(33),
        "gap": Fraction(0),
    }
    schedule = evaluate(Pipeline(stages=4, batches=8), "1f1b")
    right = replace(schedule, origin=replace(schedule.origin, **stated))
    assert verify(right) == []
    assert recheck(right, workers=1).verdict is Verdict.CONFIRMED
    schedule = evaluate(Pipeline(stages=4, batches=8, p2p=1), "1f1b")
    lie = replace(
        schedule, origin=replace(schedule.origin, **stated | {"lower_bound": Fraction(49)})
    )
    rechecked = recheck(lie, workers=1)
    assert verify(lie) == []
    assert rechecked.verdict is Verdict.WRONG
    assert rechecked.counterexample is not None
    assert figures(rechecked.counterexample).makespan < 49
    assert rechecked.reason.endswith("below 49")


def test_without_time_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rechecker, "MIN_TIME", 1e-9)
    result = solve(Pipeline(stages=4, batches=8, **HARD), mem_limit=3)
    assert result.certificate.argument is not Argument.ENDS
    rechecked = recheck(result, time_limit=1e-6)
    assert (rechecked.verdict, rechecked.counterexample) == (Verdict.UNDECIDED, None)
    assert "time" in rechecked.reason


def test_misuse_is_refused() -> None:
    schedule = evaluate(Pipeline(stages=2, batches=2), "1f1b")
    with pytest.raises(InputError, match="no bound to check"):
        recheck(schedule)
    strange = Origin(lower_bound=Fraction(3), certificate=Certificate(Argument.WORK, (2,)))
    with pytest.raises(InputError, match=r"device 2 is not one of 0\.\.1"):
        recheck(replace(schedule, origin=strange))
    result = solve(Pipeline(stages=2, batches=2))
    with pytest.raises(InputError, match="time_limit: 0 is not above 0"):
        recheck(result, time_limit=0)
    for workers in (0, 5_000_000):
        with pytest.raises(InputError, match=f"workers: {workers} is not between 1 and 1024"):
            recheck(result, workers=workers)
    with pytest.raises(InputError, match="seed: -1 is not between"):
        recheck(result, seed=-1)


def test_it_shares_no_code_with_what_makes_schedules() -> None:
    """Neither the search nor the timing nor the list of constraints is even loaded."""
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, ppopt.rechecker.refute; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    ).stdout.split()
    makers = (
        "ppopt.solver",
        "ppopt.strategies",
        "ppopt.schedule.timing",
        "ppopt.problem.instance",
    )
    assert "ppopt.rechecker.model" in loaded
    assert [name for name in loaded if name.startswith(makers)] == []


@settings(examples(8), suppress_health_check=[HealthCheck.too_slow])
@given(schedules(backwards=("split", "fused")), st.sampled_from(Objective), st.integers(0, 3))
def test_no_claim_above_a_schedule_is_confirmed(
    schedule: Schedule, objective: Objective, index: int
) -> None:
    """Any schedule, of pairs and slices too, refutes the bound above it."""
    pipeline, fused = schedule.pipeline, OpKind.BW in schedule.kind
    value = schedule.metrics.value_ticks(objective)
    case = Case(pipeline, fused)
    claim = claimed(case, objective, value + 1, index % pipeline.num_devices)
    assert checked(claim, seconds=0.5).verdict is not Verdict.CONFIRMED


def test_overlapped_pairs() -> None:
    """F = 2, BW = 4, both as one 4: three microbatches take F, two pairs, BW, 2 + 4 + 4 + 4."""
    pipe = Pipeline(stages=1, batches=3, forward=2, backward=4, overlap=4)
    case = Case(pipe, fused=True)
    assert checked(claimed(case, Objective.MAKESPAN, 14, 0)).verdict is Verdict.CONFIRMED
    rechecked = checked(claimed(case, Objective.MAKESPAN, 15, 0))
    assert_below(rechecked, Objective.MAKESPAN, 14)


def test_slices() -> None:
    """Two slices of F = 1, BW = 2 on two devices: F F from 0 and 1, the second slice's BW from 3
    to 5, the first one's to 7, then on device 0 both to 9; unsliced it takes 12."""
    pipe = Pipeline(stages=2, batches=1, forward=2, backward=4, slices=2)
    case = Case(pipe, fused=True)
    assert checked(claimed(case, Objective.MAKESPAN, 9, 0)).verdict is Verdict.CONFIRMED
    assert_below(checked(claimed(case, Objective.MAKESPAN, 10, 0)), Objective.MAKESPAN, 9)


@pytest.mark.parametrize(
    "more",
    [
        {"overlap": 5},
        {"overlap": 5, "routes": 2},
        {"slices": 2, "mem_limit": 3},
        {"overlap": 5, "slices": 2, "p2p": 1, "batches": 2},
    ],
)
@pytest.mark.parametrize(
    ("fused", "objective"),
    [
        (True, Objective.MAKESPAN),
        (False, Objective.DEVICE_SPAN),
        slow(True, Objective.DEVICE_SPAN),
        slow(False, Objective.MAKESPAN),
    ],
)
def test_two_models_agree_on_pairs_and_slices(
    more: dict, fused: bool, objective: Objective
) -> None:
    """What a search calls optimal is confirmed, so a schedule and a bound meet in both."""
    times = {"forward": [2, 3], "backward": [4, 5], "weight": 2}
    pipe = Pipeline(**{"stages": 2, "batches": 4, **times, **more})
    result = solve(
        pipe, backward_kind=BackwardKind.uniform(fused=fused), objective=objective, workers=1
    )
    assert result.status is Status.OPTIMAL
    assert recheck(result, workers=1).verdict is Verdict.CONFIRMED


def test_an_absurd_bound_is_wrong_like_any_other() -> None:
    schedule = evaluate(Pipeline(stages=2, batches=2), "1f1b")
    stated = {
        "status": "feasible",
        "backward_kind": BackwardKind.WHOLE,
        "lower_bound": Fraction(1e300),
    }
    rechecked = recheck(replace(schedule, origin=replace(schedule.origin, **stated)), workers=1)
    assert rechecked.verdict is Verdict.WRONG


def test_a_bound_between_two_ticks_says_as_much_as_the_later() -> None:
    schedule = evaluate(Pipeline(stages=2, batches=2), "1f1b")
    stated = {"status": "feasible", "backward_kind": BackwardKind.WHOLE}
    for bound, verdict in ((9, Verdict.CONFIRMED), (9.1, Verdict.WRONG), (8.9, Verdict.CONFIRMED)):
        claimed_schedule = replace(
            schedule, origin=replace(schedule.origin, lower_bound=Fraction(bound), **stated)
        )
        assert recheck(claimed_schedule, workers=1).verdict is verdict


def test_following_partial_schedules_refutes_what_is_below_the_optimum_and_nothing_else() -> None:
    """Of all devices; with few of them it never refutes more."""
    confirmed = {True: 0, False: 0}
    for case in cases(seed=41, count=27):
        claim = claimed(case, Objective.MAKESPAN, 0)
        best = exhaustive.best(case.pipeline, fused=case.fused, objective="makespan")
        if best is None or not partial_schedules.applies(claim):
            continue
        never = inf
        every = tuple(range(case.pipeline.num_devices))
        assert partial_schedules.refuted(claim._replace(bound=best), never, print) == every, case
        assert partial_schedules.refuted(claim._replace(bound=best + 1), never, print) is None, case
        confirmed[case.pipeline.num_stages > len(every)] += 1
        for device in every:
            by_device = claim._replace(bound=best + 1, devices=(device,))
            assert partial_schedules.refuted(by_device, never, print) is None, (case, device)
    assert min(confirmed.values()) > 2


@pytest.mark.parametrize(("placement", "device"), [("v", 3), ("interleaved", 0)])
def test_a_device_of_several_stages_alone_is_followed_to_what_the_search_found(
    placement: str, device: int
) -> None:
    """To the tick: the last W of a stage elsewhere counts in the one as in the other."""
    pipeline = replace(V, batches=8, placement=placement)
    program = ended(Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT), (device,), 1000)
    claim = Claim(
        pipeline,
        span=False,
        backward_kind=BackwardKind.SPLIT,
        bound=program.best,
        devices=(device,),
    )
    never = inf
    assert partial_schedules.refuted(claim, never, print) == (device,)
    assert partial_schedules.refuted(claim._replace(bound=program.best + 1), never, print) is None


def test_merged_partial_schedules_refute_what_is_below_the_optimum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two chunks in tight memory, by device 0 alone; a schedule of 665 exists."""
    monkeypatch.setattr(partial_schedules, "WIDTHS", (1,))
    pipeline = Pipeline(
        stages=8,
        batches=16,
        placement="interleaved",
        activation=2,
        forward=10,
        backward_input=10,
        weight=14,
        p2p=2,
        mem_limit=12,
    )
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT)
    assert ended(problem, (0,), 700, width=1).lower_bound == 665
    claim = Claim(pipeline, False, BackwardKind.SPLIT, 665, (0,))
    assert partial_schedules.refuted(claim, inf, print) == (0,)
    assert partial_schedules.refuted(claim._replace(bound=666), inf, print) is None


def test_two_devices_far_apart_that_wait_for_memory_are_followed_to_what_the_search_found() -> None:
    """Memory for 3 of 4 devices: every F waits until an earlier microbatch frees its memory."""
    pipeline = Pipeline(stages=4, batches=12, **HARD, mem_limit=3)
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT)
    program = ended(problem, (0, 2), 2000)
    claim = Claim(
        pipeline,
        span=False,
        backward_kind=BackwardKind.SPLIT,
        bound=program.best,
        devices=(0, 2),
    )
    never = inf
    assert partial_schedules.refuted(claim, never, print) == (0, 2)
    assert partial_schedules.refuted(claim._replace(bound=program.best + 1), never, print) is None


def test_a_bound_that_few_devices_need_because_memory_is_tight() -> None:
    """Memory for 2 of 3 devices, W short: what 16 microbatches need was found by one search, and
    is followed by the other; a tick more is not."""
    pipeline = Pipeline(stages=3, batches=16, **HARD | {"weight": 5}, mem_limit=2)
    result = solve(pipeline, workers=1)
    assert result.status is Status.OPTIMAL
    rechecked = recheck(result, workers=1)
    assert rechecked.verdict is Verdict.CONFIRMED
    assert "by dynamic programming over partial schedules" in rechecked.reason


@pytest.mark.parametrize(
    ("fields", "best"),
    [
        (
            {
                "stages": 3,
                "batches": 2,
                "forward": [5, 1, 1],
                "backward_input": [0, 1, 1],
                "weight": [1, 10, 1],
            },
            32,
        ),
        (
            {
                "stages": 2,
                "batches": 3,
                "placement": (1, 0),
                "forward": [2, 1],
                "backward_input": [1, 0],
                "weight": [0, 1],
                "p2p": 4,
                "activation": [2, 1],
                "memory_b": [2, 0],
                "mem_limit": [2, 4],
            },
            36,
        ),
    ],
)
def test_an_operation_of_no_time_is_followed_even_where_another_one_starts_before_it(
    fields: dict[str, object], best: int
) -> None:
    """The optima are those of exhaustive search: the other one may wait for what ends at once."""
    pipeline = Pipeline(**fields)
    assert exhaustive.best(pipeline, fused=False, objective="makespan") == best
    case, makespan = Case(pipeline, False), Objective.MAKESPAN
    assert checked(claimed(case, makespan, best)).verdict is Verdict.CONFIRMED
    assert checked(claimed(case, makespan, best + 1)).verdict is Verdict.WRONG


def test_partial_schedules_with_operations_of_no_time() -> None:
    """Every pipeline has some; a tick above the optimum is never refuted, by all devices or few."""
    followed = 0
    for seed in range(25):
        rng = Random(seed)
        size = rng.choice((2, 2, 3))
        pipeline = Pipeline(
            stages=size,
            batches=2 if size == 3 else 3,
            forward=[rng.randint(1, 5) for _ in range(size)],
            backward_input=[rng.choice((0, 0, 1, 4)) for _ in range(size)],
            weight=[rng.choice((0, 1, 9)) for _ in range(size)],
            p2p=rng.choice((0, 1, 4)),
            mem_limit=rng.choice((None, 1, 2)),
        )
        claim = claimed(Case(pipeline, False), Objective.MAKESPAN, 0)
        best = exhaustive.best(pipeline, fused=False, objective="makespan")
        assert best is not None
        never = inf
        assert partial_schedules.refuted(claim._replace(bound=best), never, print), pipeline
        for devices in ((), *((device,) for device in range(size)), (0, size - 1)):
            more = claim._replace(bound=best + 1, devices=devices)
            assert partial_schedules.refuted(more, never, print) is None, (pipeline, devices)
            followed += 1
    assert followed > 60


def test_pipelines_deeper_than_functions_may_call_themselves() -> None:
    """One microbatch takes 1 + 2 on each of 100 stages, and a bound of one more is not so."""
    pipeline, devices = Pipeline(stages=100, batches=1), tuple(range(100))
    claim = Claim(
        pipeline, span=False, backward_kind=BackwardKind.WHOLE, bound=3 * 100, devices=devices
    )
    never, limit = inf, sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 100)
    try:
        assert partial_schedules.refuted(claim, never, print) == devices
        assert partial_schedules.refuted(claim._replace(bound=3 * 100 + 1), never, print) is None
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize("objective", ["makespan", "device-span"])
@pytest.mark.parametrize("kind", ["split", "whole", "mixed"])
def test_a_bound_of_a_pipeline_without_memory_is_confirmed(kind: str, objective: str) -> None:
    """Not one microbatch fits, so that no schedule is below any bound."""
    pipeline = ppopt.Pipeline(stages=2, batches=3, activation=3, mem_limit=2)
    result = ppopt.solve(pipeline, workers=1, backward_kind=kind, objective=objective)
    assert result.status is ppopt.Status.INFEASIBLE
    claim = replace(result, status=ppopt.Status.UNKNOWN, bound_ticks=40 * result.pipeline.grid.time)
    assert ppopt.recheck(claim, workers=1).verdict == "confirmed"


@pytest.mark.parametrize("kind", ["whole", "split", "mixed"])
def test_nothing_fits_beside_an_empty_stage(kind: str) -> None:
    model = [{"forward": 1, "activation": 1}, {"forward": 1, "activation": 4}]
    pipeline = Pipeline(stages=3, batches=1, model=model, partition=[1, 0, 1], mem_limit=3)
    result = solve(pipeline, backward_kind=kind, workers=1)
    assert result.status == "infeasible"
    assert recheck(result, workers=1).verdict == "confirmed"
