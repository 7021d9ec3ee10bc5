"""Rules between the operations of a claim hold in every schedule in the order of microbatches."""

from __future__ import annotations

import numpy as np
import pytest

from ppopt.problem.arrays import Ints
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.operation import AuxiliaryKind, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.precedence import Precedence
from ppopt.rechecker.refute import refute
from ppopt.rechecker.required import Required
from ppopt.schedule.schedule import Schedule
from ppopt.solver.options import checked_options
from ppopt.solver.search import search_from
from ppopt.solver.warm_start import WarmStart
from ppopt.verifier import figures, verify
from tests.factories.instances import middle_cases
from tests.tiers import slow

COLUMNS = ("kind", "stage", "slice", "route", "microbatch")


def quick_schedule(pipeline: Pipeline, kind: BackwardKind) -> Schedule | None:
    """A schedule of heuristics within the limits, its microbatches in order; None: none is."""
    problem = Problem(pipeline, Objective.MAKESPAN, kind)
    return search_from(WarmStart(), problem, checked_options(600, 1).with_max_rounds(0)).schedule


def times_of(required: Required, schedule: Schedule) -> tuple[Ints, Ints]:
    """Start and end of every row in a schedule; -1 if it does not run."""
    rows, timed = required.rows, schedule.operations
    numbers = {
        place: number
        for number, place in enumerate(
            zip(*(getattr(rows, name).tolist() for name in COLUMNS), strict=True)
        )
    }
    places = zip(*(getattr(timed, name).tolist() for name in COLUMNS), strict=True)
    order = [numbers[place] for place in places]
    start, end = np.full((2, len(rows)), -1)
    start[order], end[order] = timed.start, timed.end
    return start, end


def assert_rules(required: Required, start: Ints, end: Ints) -> None:
    """Every rule between two operations holds; both modes of a backward have one number."""
    begins, ends = ({} for _ in range(2))
    for number, first, last in zip(required.number.tolist(), start, end, strict=True):
        if first >= 0:
            begins[number], ends[number] = first, last
    for earlier, later, lag in required.edges:
        if earlier in ends and later in begins:
            assert ends[earlier] + lag <= begins[later], (earlier, later)


def assert_peaks(required: Required, schedule: Schedule, start: Ints, end: Ints) -> None:
    """Live memory is what the verifier measures."""
    ticks = schedule.pipeline.ticks
    live_parts = [each for each in required.live() if start[each[0]] >= 0 and start[each[1]] >= 0]
    for device, static in enumerate(ticks.static):
        own = [each for each in live_parts if required.rows.device[each[0]] == device]
        peaks = [
            sum(amount for first, last, amount in own if start[first] <= time < end[last])
            for time in start[start >= 0]
        ]
        assert static + max(peaks) == figures(schedule).peak_memory[device]


def test_memory_that_b_allocates_is_not_live_before_it() -> None:
    """Room for three: B holds two activations, and two F may precede the W of microbatch 0."""
    pipeline = Pipeline(stages=2, batches=4, memory_b=1, mem_limit=3)
    claim = Claim(pipeline, False, BackwardKind.SPLIT, 0)
    required = Required.of_claim(claim)
    schedule = quick_schedule(pipeline, BackwardKind.SPLIT)
    assert schedule is not None
    start, end = times_of(required, schedule)
    assert_rules(required, start, end)
    numbers = {place: required.row(place) for place in required.places()}
    forward, weight = numbers[OpKind.F, 0, 0, 0], numbers[OpKind.W, 0, 0, 0]
    limits = [
        (forward.index(then), weight.index(first))
        for first, then, _ in required.edges
        if then in forward and first in weight
    ]
    assert limits == [(3, 0)]


@pytest.mark.parametrize("kind", [BackwardKind.SPLIT, BackwardKind.MIXED])
def test_only_a_w_that_must_run_limits_the_forwards(kind: BackwardKind) -> None:
    """Room for two: W of microbatch 0 may follow F of 2 if the backward of 1 is whole."""
    pipeline = Pipeline(stages=1, batches=3, mem_limit=2)
    required = Required.of_claim(Claim(pipeline, False, kind, 0))
    forward, weight = (required.row((of, 0, 0, 0)) for of in (OpKind.F, OpKind.W))
    limited = any((first, then) == (weight[0], forward[2]) for first, then, _ in required.edges)
    assert limited == (kind is BackwardKind.SPLIT)


def test_all_work_that_must_come_before_an_operation_counts() -> None:
    """One device: before B of microbatch 2 three F and two B, before its W a B and two W more."""
    pipeline = Pipeline(stages=1, batches=3)
    claim = Claim(pipeline, False, BackwardKind.SPLIT, 0)
    required = Required.of_claim(claim)
    head = Precedence(required, Precedence.of_microbatch(claim)).head.of
    last = (required.row((kind, 0, 0, 0))[2] for kind in (OpKind.F, OpKind.B, OpKind.W))
    assert [head[number] for number in last] == [2, 5, 8]


def test_an_optimizer_counts_once() -> None:
    """After F of microbatch 0: another F, two B, two W, and the optimizer of 5."""
    pipeline = Pipeline(stages=1, batches=2, optimizer=5)
    claim = Claim(pipeline, False, BackwardKind.SPLIT, 0)
    required = Required.of_claim(claim)
    rules = Precedence(required, Precedence.of_microbatch(claim))
    (optimizer,) = np.flatnonzero(required.rows.kind == AuxiliaryKind.OPTIMIZER).tolist()
    first = required.row((OpKind.F, 0, 0, 0))[0]
    assert (rules.tail.of[first], rules.head.of[optimizer]) == (5 + 5, 6)


def test_a_w_that_does_not_run_starts_before_its_device() -> None:
    """F and BW on device 1 take 3, from 1 on: a bound of 4 of the device span is wrong.

    B and W would take 4; W of a whole backward has no time, and is not in the window.
    """
    pipeline = Pipeline(
        stages=2, batches=1, frozen=[True, False], backward=2, backward_input=2, weight=2
    )
    claim = Claim(pipeline, True, BackwardKind.MIXED, 4 * pipeline.ticks.per_unit)
    outcome = refute(claim, 600, 1, 0, lambda _: None)
    assert not outcome.refuted and outcome.schedule is not None
    assert {OpKind.F, OpKind.BW} == {*outcome.schedule.operations.kind.tolist()}


def test_work_once_per_step_is_before_the_first_microbatch_or_after_the_last() -> None:
    """The weights are gathered before F of microbatch 0, and synced after W of microbatch 2."""
    pipeline = Pipeline(stages=1, batches=3, unshard=2, gradient_sync=3)
    required = Required.of_claim(Claim(pipeline, False, BackwardKind.SPLIT, 0))
    places, microbatch = required.places(), required.rows.microbatch.tolist()
    step = {AuxiliaryKind.UNSHARD, AuxiliaryKind.GRADIENT_SYNC}
    edges = {
        tuple((places[row][0], microbatch[row]) for row in (first, then))
        for first, then, _ in required.edges
        if step & {places[first][0], places[then][0]}
    }
    assert edges >= {
        ((AuxiliaryKind.UNSHARD, -1), (OpKind.F, 0)),
        ((OpKind.W, 2), (AuxiliaryKind.GRADIENT_SYNC, -1)),
    }


def test_pairs_of_two_routes_need_no_order() -> None:
    """On one route the F of a pair is of the later microbatch; on two, of any."""
    pipeline = Pipeline(stages=2, batches=4, routes=2, overlap=2)
    required = Required.of_claim(Claim(pipeline, False, BackwardKind.SPLIT, 0))
    rows = required.rows
    pairs = {
        (rows.route[first] == rows.route[then], rows.microbatch[first] > rows.microbatch[then])
        for first, then, _ in required.pairs([0, 1])
    }
    assert pairs == {(True, True), (False, True), (False, False)}


@pytest.mark.parametrize("seed", [60, slow(61)])
@pytest.mark.parametrize("mixed", [False, True])
def test_rules_hold_in_schedules(seed: int, mixed: bool) -> None:
    """Those of memory, too, where a stage holds less after its B than after its F."""
    schedules = 0
    for case in middle_cases(seed, 25, ops=40, heavy=mixed):
        kind = BackwardKind.MIXED if mixed else case.backward_kind
        schedule = quick_schedule(case.pipeline, kind)
        if schedule is None:
            continue
        schedules += 1
        assert verify(schedule) == []
        required = Required.of_claim(Claim(case.pipeline, False, kind, 0))
        start, end = times_of(required, schedule)
        assert_rules(required, start, end)
        if (start != end)[start >= 0].all():
            assert_peaks(required, schedule, start, end)
    assert schedules > 10
