"""Plain CP-SAT against the exhaustive oracle, and what runs the sides of a race."""

from __future__ import annotations

from itertools import islice

import pytest

from benchmarks import attempt, hand, plain_cp_sat, sides, suite
from benchmarks.outcome import Limits, Run, Size
from benchmarks.plain_cp_sat import Jobs
from benchmarks.targets import TARGETS
from ppopt.errors import VerificationError
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.verifier import verify
from tests.factories.instances import tiny_cases
from tests.oracles import exhaustive

pytestmark = pytest.mark.slow

LIMITS = Limits(seconds=60.0, workers=1, seed=0)
Question = tuple[Pipeline, Objective]


def questions() -> list[Question]:
    """Tiny pipelines without operations of no length, feasible or not, each with its objective.

    In the last one 1F1B keeps the limit only with whole backwards: B takes more before W.
    """
    drawn = [case.pipeline for case in tiny_cases(11, 60, ops=15, fused=False)]
    timed = [one for one in drawn if all(map(min, one.ticks.durations))]
    chosen = list(islice(timed, 16))
    split = Pipeline(stages=2, batches=2, activation=2, memory_b=1, mem_limit=4)
    return [(one, tuple(Objective)[place % 2]) for place, one in enumerate([*chosen, split])]


def test_plain_cp_sat_finds_what_the_oracle_finds() -> None:
    seen = set()
    for pipeline, objective in questions():
        answer = plain_cp_sat.solve(pipeline, objective, LIMITS)
        expected = exhaustive.best(pipeline, fused=False, objective=objective.value)
        seen.add(answer.status)
        if expected is None:
            assert answer.status == "infeasible"
            continue
        assert (answer.status, answer.value, answer.bound) == ("optimal", expected, expected)
        assert answer.schedule is not None and verify(answer.schedule) == []
        assert min(answer.size) > 0
        assert [point.seconds for point in answer.trace] == sorted(p.seconds for p in answer.trace)
        assert answer.trace[-1][1:] == (expected, expected)
    assert seen == {"optimal", "infeasible"}


def test_plain_cp_sat_out_of_time_claims_no_proof() -> None:
    pipeline = Pipeline(stages=8, batches=32, forward=10, backward_input=11, weight=9, mem_limit=8)
    run = plain_cp_sat.solve(pipeline, Objective.MAKESPAN, Limits(0.5, 1, 0))
    assert run.status in ("feasible", "unknown")
    assert run.value is None or run.bound < run.value


def test_starts_that_break_a_rule_are_not_taken() -> None:
    jobs = Jobs.of(Pipeline(stages=1, batches=1))
    with pytest.raises(VerificationError):
        jobs.schedule(dict.fromkeys(jobs.duration, 0))


def test_memory_is_held_by_what_takes_it_until_what_gives_it_back() -> None:
    """F takes 5; B gives back 2, or takes 3 more."""
    for at_b, amounts in (
        (-2, {("F", "W"): 3, ("F", "B"): 2}),
        (3, {("F", "W"): 5, ("B", "W"): 3}),
    ):
        pipeline = Pipeline(stages=1, batches=1, activation=5, memory_b=at_b)
        held = Jobs.of(pipeline).holdings(0)
        names = {
            (OpKind(pipeline.op(first).kind).name, OpKind(pipeline.op(last).kind).name): amount
            for first, last, amount in held
        }
        assert names == amounts


def test_a_run_keeps_the_best_and_refuses_a_bound_above_its_schedule() -> None:
    run = Run(Objective.MAKESPAN, LIMITS)
    for value, bound in ((None, 3), (9, 2), (12, None), (8, 5)):
        run.note(value, bound)
    assert [point[1:] for point in run.trace] == [(None, 3), (9, 3), (8, 5)]
    jobs = Jobs.of(Pipeline(stages=1, batches=1))
    made = jobs.schedule({0: 0, 1: 1, 2: 2})
    run.note(None, made.metrics.makespan_ticks + 1)
    with pytest.raises(AssertionError, match="above"):
        run.outcome(made, Size(1, 1), infeasible=False)


def test_hand_schedules_keep_the_limit_and_the_placement() -> None:
    tight = Pipeline(stages=4, batches=8, mem_limit=4)
    assert {"1f1b", "zb-h1"} <= set(hand.fitting(tight, Objective.MAKESPAN))
    assert "gpipe" not in hand.fitting(tight, Objective.MAKESPAN)
    wide = Pipeline(stages=4, batches=8, placement="interleaved")
    found = hand.fitting(wide, Objective.MAKESPAN)
    assert "interleaved" in found and "1f1b" not in found


def test_the_core_is_a_fixed_part_of_every_group() -> None:
    core = list(suite.core())
    assert {instance.group for instance in core} == {target.group for target in TARGETS}
    assert len({instance.name for instance in core}) == len(core) == 156
    costs = {instance.name.split()[0] for instance in core if instance.group.startswith("linear")}
    assert costs == set(suite.COSTS)


SMALL = suite.Instance("small", "linear", Pipeline(stages=2, batches=4, mem_limit=2))


def test_an_attempt_is_a_line_of_a_record() -> None:
    """Default costs: F, B and W take 1 each, so that every device works for 4 x 3."""
    one = attempt.attempt(sides.OURS, SMALL, Limits(20.0, 1, 0))
    assert (one.side, one.instance, one.status) == (sides.OURS, "small", "optimal")
    assert one.proved and one.gap == 0
    assert (one.operations, one.busiest / one.per_unit) == (24, 12)
    assert one.peak_mib > 20 and one.seconds > 0
    assert one.trace[-1][1:] == (one.value, one.bound)


def test_an_attempt_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "PATIENCE", 0.0)
    one = attempt.attempt(sides.PLAIN, SMALL, Limits(0.001, 1, 0))
    assert (one.status, one.value, one.proved, one.gap) == ("killed", None, False, None)


def test_an_attempt_whose_side_fails_is_no_result() -> None:
    """The plain model has no slices: nobody may read the failure as a gap."""
    slices = Pipeline(stages=2, batches=2, slices=2)
    with pytest.raises(RuntimeError, match="no slices"):
        attempt.attempt(sides.PLAIN, SMALL._replace(pipeline=slices), Limits(5.0, 1, 0))
