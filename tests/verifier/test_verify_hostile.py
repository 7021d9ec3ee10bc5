"""The verifier on damaged schedules and garbage: complete, exact, and never at a loss."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppopt.errors import InputError
from ppopt.problem.arrays import Ints
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule
from ppopt.verifier import Figures, Rule, Violation, explain, figures, verify
from ppopt.verifier.violation import MAX_LISTED
from tests.factories.schedules import BW, F, partly_frozen, peaks, pipelines, schedules, table
from tests.factories.tables import changed
from tests.verifier import verify_naive
from tests.verifier.verify_fixtures import one_f_one_b, rules

SEEDS = st.integers(0, 2**32 - 1)


# Against the rules in plain Python


def _findings(violations: list[Violation]) -> Counter[verify_naive.Finding]:
    """What the oracle finds: of memory only device and time. It reads compute alone."""
    return Counter(
        (v.rule, v.device, v.time, v.ops[0] if v.ops and v.rule is not Rule.MEMORY else None)
        for v in violations
        if v.rule not in (Rule.TRANSFER, Rule.AUXILIARY)
    )


HOSTILE = (-(2**63), -(2**53) - 1, -1, 0, 1, 2, 3, 4, 2**53 + 1, 2**62, 2**63 - 1)


def damaged(schedule: Schedule, random: Random, times: int) -> Schedule:
    """Change, drop, repeat and exchange rows at random."""
    rows: list[Any] = table(schedule)
    for _ in range(times):
        row = random.randrange(len(rows))
        match random.randrange(5):
            case 0:
                rows.append(list(random.choice(rows)))
            case 1 if len(rows) > 1:
                rows.pop(row)
            case 2:
                rows[row] = _set(rows[row], random.randrange(8), random.choice(HOSTILE))
            case 3:
                rows[row] = _set(rows[row], random.randrange(3, 6), random.randrange(20))
            case _:
                by = random.choice((-2, -1, 1, 2))
                rows[row] = _set(rows[row], 4, rows[row][4] + by)
                rows[row] = _set(rows[row], 5, rows[row][5] + by)
    return Schedule.from_rows(schedule.pipeline, rows)


def _set(row: Any, field: int, value: int) -> list[int]:
    changed = list(row)
    changed[field] = min(2**63 - 1, max(-(2**63), value))
    return changed


@given(schedules() | schedules(partly_frozen()), SEEDS, st.integers(1, 8))
def test_damaged_schedules_agree_with_the_rules_in_plain_python(
    schedule: Schedule, seed: int, times: int
) -> None:
    broken = damaged(schedule, Random(seed), times)
    violations = verify(broken)
    assert _findings(violations) == verify_naive.findings(broken)
    assert explain(broken, violations).count("\n") >= len(violations)


@given(schedules(), SEEDS, st.integers(0, 8))
def test_figures_agree_with_brute_force(schedule: Schedule, seed: int, times: int) -> None:
    broken = damaged(schedule, Random(seed), times)
    measured = figures(broken)
    busy, makespan, span = verify_naive.busy_and_span(broken)
    assert (list(measured.busy), measured.makespan, measured.device_span) == (busy, makespan, span)
    only_sane = Schedule.from_rows(broken.pipeline, verify_naive.sane(broken))
    assert list(measured.peak_memory) == peaks(only_sane)


# Hostile columns


def _rearranged(schedule: Schedule, rows: Ints) -> Schedule:
    return replace(schedule, operations=schedule.operations.where(rows))


@given(schedules(), SEEDS, st.integers(0, 4))
def test_the_order_of_rows_makes_no_difference(schedule: Schedule, seed: int, times: int) -> None:
    schedule = damaged(schedule, Random(seed), times)
    mixed = np.random.default_rng(seed).permutation(len(schedule.operations))
    rearranged = _rearranged(schedule, mixed)
    assert verify(rearranged) == verify(schedule)
    assert figures(rearranged) == figures(schedule)


INT64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 5)


@given(pipelines(), st.lists(st.tuples(*[INT64] * 8), max_size=30))
def test_garbage_is_reported_and_never_crashes(
    pipeline: Pipeline, rows: list[tuple[int, ...]]
) -> None:
    schedule = Schedule.from_rows(pipeline, rows)
    violations = verify(schedule, {"makespan": -1})
    assert {Rule.MISSING, Rule.CLAIM} <= rules(violations)
    assert _findings([v for v in violations if v.rule is not Rule.CLAIM]) == verify_naive.findings(
        schedule
    )
    assert str(violations[-1]) in explain(schedule, violations)


def test_a_schedule_of_nothing() -> None:
    schedule = Schedule.from_rows(Pipeline(stages=2, batches=1, static=3), [])
    assert [violation.rule for violation in verify(schedule)] == [Rule.MISSING] * 4
    assert figures(schedule) == Figures(0, 0, (0, 0), (3, 3))
    assert figures(schedule).bubble_rate() == figures(schedule).bubble_overhead() == 0
    assert "4 violations" in explain(schedule, verify(schedule))
    truth_values = verify(schedule, {"makespan": False, "busy": [0, False]})
    assert [violation.rule for violation in truth_values][4:] == [Rule.CLAIM] * 2


def test_makespan_runs_from_0_even_where_everything_ends_before() -> None:
    pipeline = Pipeline(stages=1, batches=1)
    rows = [(F, 0, 0, 0, -5, -4), (BW, 0, 0, 0, -4, -2)]
    measured = figures(Schedule.from_rows(pipeline, rows))
    assert (measured.makespan, measured.device_span, measured.busy) == (0, 3, (3,))


def test_sums_beyond_int64_stay_exact() -> None:
    pipeline = Pipeline(stages=1, batches=1, activation=10**12)
    long = [(F, 0, 0, 0, -(2**53), 2**53)] * 3000
    measured = figures(Schedule.from_rows(pipeline, long))
    assert measured.busy == (3000 * 2**54,)
    assert measured.peak_memory == (3000 * 10**12,)


def test_a_duration_that_wraps_around_int64_is_caught() -> None:
    pipeline = Pipeline(stages=1, batches=1)
    start, end = 2**63 - 1, -(2**63)
    schedule = Schedule.from_rows(pipeline, [(F, 0, 0, 0, start, end), (BW, 0, 0, 0, 0, 2)])
    assert [violation.rule for violation in verify(schedule)] == [Rule.DURATION, Rule.START]


def test_columns_that_are_not_whole_numbers_of_one_length_are_refused() -> None:
    schedule = one_f_one_b()
    for column in (schedule.start.astype(float), schedule.start[1:], schedule.start[None]):
        with pytest.raises(InputError, match="schedule: column"):
            verify(changed(schedule, start=column))


# More than can be listed


def test_what_a_schedule_lacks_is_counted() -> None:
    """800,000 forwards and backwards are claimed, and two forwards are there.

    A byte for each of them and each kind would take more than the limit.
    """
    batches = 200_000
    schedule = Schedule.from_rows(
        Pipeline(stages=2, batches=batches), [(F, 0, 0, 0, 0, 1), (F, 1, batches - 1, 1, 1, 2)]
    )
    tracemalloc.start()
    violations = verify(schedule)
    text = explain(schedule, violations)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * 2**19
    assert len(violations) == MAX_LISTED + 1
    assert sum(violation.count for violation in violations) == 2 * 2 * batches - 2
    assert {violation.rule for violation in violations} == {Rule.MISSING}
    assert "missing: 798998 more, not listed" in text
    assert "799998 violations" in text


def test_of_every_rule_as_many_are_listed_as_of_another() -> None:
    """Two operations of each microbatch start before 0, and nothing is missing."""
    pipeline = Pipeline(stages=1, batches=MAX_LISTED)
    rows = []
    for microbatch in range(MAX_LISTED):
        start = -3 * (microbatch + 1)
        rows += [(F, 0, microbatch, 0, start, start + 1), (BW, 0, microbatch, 0, start + 1, start)]
    violations = verify(Schedule.from_rows(pipeline, rows))
    per_rule = Counter(violation.rule for violation in violations)
    assert per_rule == {Rule.DURATION: MAX_LISTED, Rule.START: MAX_LISTED + 1}
    (last,) = [violation for violation in violations if violation.count > 1]
    assert (last.count, last.rule) == (MAX_LISTED, Rule.START)
    assert violations[-1] == last
