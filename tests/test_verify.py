"""The verifier: silent on valid schedules, exact about every fault, independent of the rest."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppopt.errors import InputError
from ppopt.op import Op
from ppopt.pipeline import Pipeline
from ppopt.schedule import Ints, Schedule
from ppopt.verifier import Figures, Rule, Violation, explain, figures, verify
from tests import verify_naive
from tests.generate import BW, B, F, TableRow, W, limited, peaks, pipelines, schedules, table
from tests.verify_mutations import MUTATIONS
from tests.verify_naive import op_of

SLOW = settings(deadline=None)
"""The machine may be busy: no deadline for one example."""
SEEDS = st.integers(0, 2**32 - 1)
ROOMY = pipelines(min_devices=2, min_batches=2)
"""Pipelines in which every rule can be broken."""


def rules(violations: list[Violation]) -> set[Rule]:
    return {violation.rule for violation in violations}


def schedule_of(pipeline: Pipeline, *lines: str) -> Schedule:
    """Read lines of `<device>: <op>@<start>..<end> ...`, in ticks."""
    rows = []
    for line in lines:
        device, ops = line.split(":")
        for text in ops.split():
            name, times = text.split("@")
            kind = next(k for k in (BW, F, B, W) if k.name in name)
            stage, microbatch = map(int, name.split(kind.name))
            rows.append((kind, stage, microbatch, int(device), *map(int, times.split(".."))))
    return Schedule.from_rows(pipeline, rows)


# Valid schedules


@SLOW
@given(schedules())
def test_a_valid_schedule_has_no_violation(schedule: Schedule) -> None:
    assert verify(schedule) == []


def one_f_one_b() -> Schedule:
    """1F1B of two stages and two microbatches, F = 1 and BW = 2, drawn by hand:

    device 0: F0 F1 .  .  BW0 BW0 .  BW1 BW1
    device 1: .  F0 BW0 BW0 F1 BW1 BW1
    """
    return schedule_of(
        Pipeline(stages=2, batches=2, mem_limit=[2, 1]),
        "0: 0F0@0..1 0F1@1..2 0BW0@4..6 0BW1@7..9",
        "1: 1F0@1..2 1BW0@2..4 1F1@4..5 1BW1@5..7",
    )


def test_one_f_one_b_by_hand() -> None:
    schedule = one_f_one_b()
    assert verify(schedule) == []
    found = figures(schedule)
    assert found == Figures(makespan=9, device_span=9, busy=(6, 6), peak_memory=(2, 1))
    assert found.bubble_rate() == Fraction(1, 3)
    assert found.bubble_overhead() == Fraction(1, 2)


def split_with_p2p() -> Schedule:
    """One microbatch through two stages with B = 0, W = 1, p2p 1/2 and 1/4 back; ticks are 1/4.

    The device span is that of device 0: from 0 to 15; device 1 runs from 6 to 14.
    """
    pipeline = Pipeline(
        stages=2,
        batches=1,
        backward_input=0,
        weight=1,
        p2p=[[0, "0.5"], ["0.25", 0]],
        memory_b="0.5",
        static=[1, 2],
    )
    return schedule_of(
        pipeline, "0: 0F0@0..4 0B0@11..11 0W0@11..15", "1: 1F0@6..10 1B0@10..10 1W0@10..14"
    )


def test_zero_length_backward_and_p2p_by_hand() -> None:
    schedule = split_with_p2p()
    assert verify(schedule) == []
    # in half units: static 1 (2), an activation of 1, and half of one more from B on
    assert figures(schedule) == Figures(15, 15, busy=(8, 8), peak_memory=(5, 7))


def test_device_span_starts_with_the_first_operation_of_the_device() -> None:
    schedule = one_f_one_b()
    late = [(*row[:4], row[4] + 5, row[5] + 5) for row in table(schedule)]
    moved = Schedule.from_rows(schedule.pipeline, late)
    assert verify(moved) == []
    assert (figures(moved).makespan, figures(moved).device_span) == (14, 9)


# Every rule alone


def test_every_rule_has_a_mutation() -> None:
    assert set(MUTATIONS) == set(Rule)


@pytest.mark.parametrize("rule", Rule)
@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=SEEDS)
def test_breaking_one_rule_reports_that_rule_alone(
    rule: Rule, data: st.DataObject, seed: int
) -> None:
    kinds = ["split"] if rule is Rule.WEIGHT else ["split", "fused", "mixed"]
    schedule = data.draw(schedules(ROOMY, kinds))
    broken, claims = MUTATIONS[rule](Random(seed), schedule)
    found = verify(broken, claims)
    assert rules(found) == {rule}, explain(broken, found)


def test_a_violation_names_rule_place_and_time() -> None:
    schedule = replace(one_f_one_b(), end=np.array([1, 2, 6, 10, 2, 4, 5, 7]))
    (violation,) = verify(schedule)
    assert (violation.rule, violation.ops) == (Rule.DURATION, (Op(BW, 0, 1),))
    assert (violation.device, violation.time) == (0, 7)
    assert str(violation) == "duration: 0BW1 on device 0 takes 3, from 7 to 10, not 2"


MESSAGES = [
    (["0: 0F0@0..2"], "missing: 0B0 and 0W0 are missing, or BW in their place (device 0)"),
    (
        ["0: 0F0@0..2 0W0@2..4"],
        "missing: 0B0 is missing: W has run, and is half of the backward (device 0)",
    ),
    (
        ["0: 0F0@0..2 0B0@2..3 0W0@3..5 0BW0@5..8"],
        "duplicate: 0B0 runs at 1 on device 0 beside 0BW0 at 2.5 on device 0; BW is B and W in one",
    ),
    (
        ["0: 0F0@0..2 0F0@2..4 0BW0@4..7"],
        "duplicate: 0F0 runs at 0 on device 0 and again at 1 on device 0",
    ),
    (["0: 0F0@-2..0 0BW0@0..3"], "start: 0F0 starts at -1 on device 0, before 0"),
    (
        ["0: 0F0@0..2 0BW0@1..4"],
        "backward-order: 0BW0 starts at 0.5 on device 0, but 0F0 ends at 1 on device 0",
    ),
    (
        ["0: 0F0@0..2 0BW0@1..4"],
        "overlap: 0BW0 starts at 0.5 on device 0 while 0F0 runs from 0 to 1",
    ),
    (
        ["0: 0F0@0..2 0BW0@2..5", "2: 0F1@3..5"],
        "unknown-operation: an operation at 1.5 on device 2: "
        "microbatch 1 is not one of 0..0, device 2 is not one of 0..0",
    ),
    (
        ["0: 0BW0@2..5", "1: 0F0@0..2"],
        "unknown-operation: 0F0 at 0 on device 1: device 1 is not one of 0..0",
    ),
]
"""Lines of a schedule of one stage and one microbatch: F = 2, B = 1, W = 2 ticks of 1/2."""


@pytest.mark.parametrize(("lines", "message"), MESSAGES)
def test_messages(lines: list[str], message: str) -> None:
    pipeline = Pipeline(stages=1, batches=1, backward_input="0.5", weight=1)
    assert message in map(str, verify(schedule_of(pipeline, *lines)))


BACKWARDS = [
    ("", [(Rule.MISSING, (Op(B, 0, 0), Op(W, 0, 0)))]),
    ("B", [(Rule.MISSING, (Op(W, 0, 0),))]),
    ("W", [(Rule.MISSING, (Op(B, 0, 0),))]),
    ("BW", []),
    ("B W", []),
    ("B BW", [(Rule.DUPLICATE, (Op(B, 0, 0), Op(BW, 0, 0)))]),
    ("W BW", [(Rule.DUPLICATE, (Op(W, 0, 0), Op(BW, 0, 0)))]),
    (
        "B W BW",
        [
            (Rule.DUPLICATE, (Op(B, 0, 0), Op(BW, 0, 0))),
            (Rule.DUPLICATE, (Op(W, 0, 0), Op(BW, 0, 0))),
        ],
    ),
]


@pytest.mark.parametrize(("kinds", "expected"), BACKWARDS)
def test_every_combination_of_backwards(
    kinds: str, expected: list[tuple[Rule, tuple[Op, ...]]]
) -> None:
    times = {"B": "0B0@2..3", "W": "0W0@3..5", "BW": "0BW0@5..8"}
    ops = " ".join(times[kind] for kind in kinds.split())
    pipeline = Pipeline(stages=1, batches=2, backward_input="0.5", weight=1)
    found = verify(schedule_of(pipeline, f"0: 0F0@0..2 {ops}"))
    of_microbatch_0 = [(v.rule, v.ops) for v in found if v.ops[0].microbatch == 0]
    assert of_microbatch_0 == expected
    assert [v.ops for v in found if v.ops[0].microbatch == 1] == [
        (Op(F, 0, 1),),
        (Op(B, 0, 1), Op(W, 0, 1)),
    ]


def test_messages_of_two_devices_name_the_delay_and_the_right_device() -> None:
    pipeline = Pipeline(stages=2, batches=1, p2p=3)
    schedule = schedule_of(pipeline, "0: 0F0@0..1 1F0@4..5 0BW0@11..13", "1: 1BW0@5..7")
    assert [str(violation) for violation in verify(schedule)] == [
        "wrong-device: 1F0 runs at 4 on device 0; its stage sits on device 1"
    ]
    early = schedule_of(pipeline, "0: 0F0@0..1 0BW0@10..12", "1: 1F0@3..4 1BW0@5..7")
    assert [str(violation) for violation in verify(early)] == [
        "forward-order: 1F0 starts at 3 on device 1, but 0F0 ends at 1 on device 0 and p2p takes 3"
    ]


# Exact at the boundary

ORDER_RULES = {Rule.FORWARD, Rule.BACKWARD, Rule.WEIGHT}


def tight_rows(schedule: Schedule) -> list[tuple[Rule, TableRow]]:
    """Operations that start at the first moment a rule of order allows, with the rule."""
    ends = {op_of(row): (row[3], row[5]) for row in table(schedule)}
    tight = []
    for row in table(schedule):
        for rule, before in verify_naive.before(op_of(row), ends):
            if before in ends:
                device, end = ends[before]
                if row[4] == end + schedule.pipeline.ticks.p2p[device][row[3]]:
                    tight.append((rule, row))
    return tight


@SLOW
@given(schedules())
def test_one_tick_early_is_caught_and_on_time_passes(schedule: Schedule) -> None:
    assert verify(schedule) == []
    for rule, row in tight_rows(schedule):
        rows = table(schedule)
        rows[rows.index(row)] = (*row[:4], row[4] - 1, row[5] - 1)
        found = verify(Schedule.from_rows(schedule.pipeline, rows))
        assert (rule, op_of(row)) in {(v.rule, v.ops[0]) for v in found if v.ops}


def test_every_rule_of_order_is_tight_somewhere() -> None:
    hit = Counter(rule for rule, _ in tight_rows(one_f_one_b()) + tight_rows(split_with_p2p()))
    assert set(hit) == ORDER_RULES


@SLOW
@given(schedules())
def test_the_limit_may_be_reached_but_not_passed(schedule: Schedule) -> None:
    limits = peaks(schedule)
    assert verify(limited(schedule, limits)) == []
    for device, peak in enumerate(limits):
        if peak:
            lower = [limit - (d == device) for d, limit in enumerate(limits)]
            found = verify(limited(schedule, lower))
            assert {(v.rule, v.device) for v in found} == {(Rule.MEMORY, device)}
            assert verify(limited(schedule, lower), enforce_limit=False) == []


def test_each_time_the_limit_is_passed_is_reported() -> None:
    found = verify(limited(one_f_one_b(), [1, 0]))
    assert [str(violation) for violation in found] == [
        "memory-limit: device 0 holds 2, above its limit 1, from 1 on, when 0F1 starts",
        "memory-limit: device 1 holds 1, above its limit 0, from 1 on, when 1F0 starts",
        "memory-limit: device 1 holds 1, above its limit 0, from 4 on, when 1F1 starts",
    ]


def test_static_memory_above_the_limit_is_reported_by_itself() -> None:
    found = verify(limited(split_with_p2p(), [1, 7]))
    assert [str(violation) for violation in found] == [
        "memory-limit: device 0 holds 1, above its limit 0.5, by static memory alone"
    ]


def test_at_one_instant_ends_come_before_starts() -> None:
    """F0 and F1 hold one activation each, W0 gives one back at 5: F2 may start at 5, not at 4.

    B takes no time and no memory; W takes no time, so that its release falls at its start.
    """
    pipeline = Pipeline(stages=1, batches=3, backward_input=2, weight=0, mem_limit=2)
    lines = "0: 0F0@0..1 0F1@1..2 0B0@2..4 {} 0B1@6..8 0W1@8..8 0B2@8..10 0W2@10..10"
    assert verify(schedule_of(pipeline, lines.format("0W0@5..5 0F2@5..6"))) == []
    # a forward that starts at the instant of the release, and is listed before it
    assert figures(schedule_of(pipeline, lines.format("0F2@5..6 0W0@5..5"))).peak_memory == (2,)
    late = verify(schedule_of(pipeline, lines.format("0F2@4..5 0W0@5..5")))
    assert [(v.rule, v.time) for v in late] == [(Rule.MEMORY, 4)]


def test_at_one_instant_a_release_of_no_length_precedes_a_taking_of_no_length() -> None:
    """B and W take no time, B takes 1 more: at 2, W0 gives back 2 before B1 takes its 1."""
    pipeline = Pipeline(stages=1, batches=2, backward=0, memory_b=1, mem_limit=3)
    schedule = schedule_of(pipeline, "0: 0F0@0..1 0B0@1..1 0F1@1..2 0B1@2..2 0W0@2..2 0W1@2..2")
    assert verify(schedule) == []
    assert figures(schedule).peak_memory == (3,)


def test_an_operation_of_no_length_may_touch_another_but_not_split_it() -> None:
    pipeline = Pipeline(stages=1, batches=2, backward_input=0, weight=2)
    lines = "0: 0F0@0..1 0F1@1..2 0W0@2..4 0W1@4..6 0B0@2..2 0B1@{0}..{0}"
    for instant in (2, 4):
        assert verify(schedule_of(pipeline, lines.format(instant))) == []
    (violation,) = verify(schedule_of(pipeline, lines.format(3)))
    assert str(violation) == "overlap: 0B1 starts at 3 on device 0 while 0W0 runs from 2 to 4"


# Against the rules in plain Python


def _findings(violations: list[Violation]) -> Counter[verify_naive.Finding]:
    """What the oracle finds: of memory only device and time."""
    return Counter(
        (v.rule, v.device, v.time, v.ops[0] if v.ops and v.rule is not Rule.MEMORY else None)
        for v in violations
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
                rows[row] = _set(rows[row], random.randrange(6), random.choice(HOSTILE))
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


@settings(max_examples=200, deadline=None)
@given(schedules(), SEEDS, st.integers(1, 8))
def test_damaged_schedules_agree_with_the_rules_in_plain_python(
    schedule: Schedule, seed: int, times: int
) -> None:
    broken = damaged(schedule, Random(seed), times)
    found = verify(broken)
    assert _findings(found) == verify_naive.findings(broken)
    assert explain(broken, found).count("\n") >= len(found)


@settings(max_examples=200, deadline=None)
@given(schedules(), SEEDS, st.integers(0, 8))
def test_figures_agree_with_brute_force(schedule: Schedule, seed: int, times: int) -> None:
    broken = damaged(schedule, Random(seed), times)
    found = figures(broken)
    busy, makespan, span = verify_naive.busy_and_span(broken)
    assert (list(found.busy), found.makespan, found.device_span) == (busy, makespan, span)
    only_sane = Schedule.from_rows(broken.pipeline, verify_naive.sane(broken))
    assert list(found.peak_memory) == peaks(only_sane)


# Hostile columns


def _columns(schedule: Schedule, rows: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
    kind, stage, microbatch, device, start, end = (column[rows] for column in schedule.columns)
    return kind, stage, microbatch, device, start, end


@SLOW
@given(schedules(), SEEDS, st.integers(0, 4))
def test_the_order_of_rows_makes_no_difference(schedule: Schedule, seed: int, times: int) -> None:
    schedule = damaged(schedule, Random(seed), times)
    mixed = np.random.default_rng(seed).permutation(len(schedule))
    other = Schedule(schedule.pipeline, *_columns(schedule, mixed))
    assert verify(other) == verify(schedule)
    assert figures(other) == figures(schedule)


INT64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 5)


@SLOW
@given(pipelines(), st.lists(st.tuples(*[INT64] * 6), max_size=30))
def test_garbage_is_reported_and_never_crashes(
    pipeline: Pipeline, rows: list[tuple[int, ...]]
) -> None:
    schedule = Schedule.from_rows(pipeline, rows)
    found = verify(schedule, {"makespan": -1})
    assert {Rule.MISSING, Rule.CLAIM} <= rules(found)
    assert _findings([v for v in found if v.rule is not Rule.CLAIM]) == verify_naive.findings(
        schedule
    )
    assert str(found[-1]) in explain(schedule, found)


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
    found = figures(Schedule.from_rows(pipeline, rows))
    assert (found.makespan, found.device_span, found.busy) == (0, 3, (3,))


def test_sums_beyond_int64_stay_exact() -> None:
    pipeline = Pipeline(stages=1, batches=1, activation=10**12)
    long = [(F, 0, 0, 0, -(2**53), 2**53)] * 3000
    found = figures(Schedule.from_rows(pipeline, long))
    assert found.busy == (3000 * 2**54,)
    assert found.peak_memory == (3000 * 10**12,)


def test_a_duration_that_wraps_around_int64_is_caught() -> None:
    pipeline = Pipeline(stages=1, batches=1)
    start, end = 2**63 - 1, -(2**63)
    schedule = Schedule.from_rows(pipeline, [(F, 0, 0, 0, start, end), (BW, 0, 0, 0, 0, 2)])
    assert [violation.rule for violation in verify(schedule)] == [Rule.DURATION, Rule.START]


def test_columns_that_are_not_whole_numbers_of_one_length_are_refused() -> None:
    schedule = one_f_one_b()
    for column in (schedule.start.astype(float), schedule.start[1:], schedule.start[None]):
        with pytest.raises(InputError, match="schedule: column"):
            verify(replace(schedule, start=column))


# Claims


@SLOW
@given(schedules(), st.sampled_from(["makespan", "device-span"]))
def test_true_claims_pass(schedule: Schedule, objective: str) -> None:
    busy, makespan, span = verify_naive.busy_and_span(schedule)
    total = len(busy) * (makespan if objective == "makespan" else span)
    claims: dict[str, object] = {
        "makespan": makespan,
        "device_span": span,
        "busy": busy,
        "peak_memory": tuple(peaks(schedule)),
        "objective": objective,
        "bubble_rate": (total - sum(busy)) / total,
        "bubble_overhead": (len(busy) * makespan - sum(busy)) / sum(busy),
    }
    assert verify(schedule, claims) == []


def test_claims_are_compared_one_by_one_and_all_reported() -> None:
    claims = {
        "makespan": 8,
        "busy": [6, 7],
        "peak_memory": [2],
        "bubble_rate": 0.3333,
        "bubble_overhead": True,
        "device_span": "9",
        "latency": 3,
        "objective": "makespan",
    }
    assert [str(violation) for violation in verify(one_f_one_b(), claims)] == [
        "claim: bubble_overhead: claimed True: not a number",
        "claim: bubble_rate: claimed 0.3333: 0.3333333333333333 recomputed",
        "claim: device_span: claimed '9': not a whole number of ticks",
        "claim: latency: claimed 3: not a figure that can be recomputed",
        "claim: makespan: claimed 8: 9 ticks recomputed, that is 9",
        "claim: peak_memory: claimed [2]: not a list of 2 numbers, one per device",
        "claim: busy of device 1: claimed 7: 6 ticks recomputed, that is 6",
    ]


# The picture


def test_explain_draws_the_grid_with_an_arrow_at_the_fault() -> None:
    rows = table(one_f_one_b())
    schedule = Schedule.from_rows(one_f_one_b().pipeline, [rows[0], (*rows[1][:5], 4), *rows[2:]])
    assert explain(schedule, verify(schedule)).splitlines() == [
        "        device 0  device 1",
        "step 0       0F0       1F0",
        "step 1    -> 0F1      1BW0",
        "step 2      0BW0       1F1",
        "step 3      0BW1      1BW1",
        "1 violation",
        "duration: 0F1 on device 0 takes 3, from 1 to 4, not 1",
    ]


def test_explain_cuts_a_large_schedule_around_the_first_fault() -> None:
    pipeline = Pipeline(stages=12, batches=30, p2p=1)
    rows = [
        (kind, s, j, s, 1000 * j + at, 1000 * j + at + duration)
        for s in range(12)
        for j in range(30)
        for kind, at, duration in ((F, 2 * s, 1), (BW, 100 - 3 * s, 2))
    ]
    faulty = (F, 9, 20, 9, 20017, 20018)
    broken = [faulty if row[:3] == faulty[:3] else row for row in rows]
    schedule = Schedule.from_rows(pipeline, broken)
    lines = explain(schedule, verify(schedule)).splitlines()
    assert lines[0] == "steps 32 to 47 of 0 to 59, devices 4 to 11 of 0 to 11"
    assert lines[1].split() == [word for d in range(4, 12) for word in ("device", str(d))]
    (arrow,) = [line for line in lines if "->" in line]
    assert arrow.startswith("step 40 ") and "-> 9F20" in arrow
    assert lines[-2:] == [
        "1 violation",
        "forward-order: 9F20 starts at 20017 on device 9, "
        "but 8F20 ends at 20017 on device 8 and p2p takes 1",
    ]


def test_explain_of_no_violation() -> None:
    assert explain(one_f_one_b(), []).splitlines()[-1] == "0 violations"


# Independence

OWN = {
    "ppopt.verifier" + ("" if path.stem == "__init__" else f".{path.stem}"): path
    for path in sorted(Path(inspect.getfile(verify)).parent.glob("*.py"))
}


def imported(path: Path) -> set[str]:
    """Modules that a file imports, at its top or inside a function."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            whole = node.module == "ppopt"
            names |= {f"ppopt.{a.name}" for a in node.names} if whole else {node.module or "."}
    return names


@pytest.mark.parametrize("path", OWN.values(), ids=OWN)
def test_the_verifier_imports_nothing_of_what_it_checks(path: Path) -> None:
    shared = {f"ppopt.{name}" for name in ("errors", "op", "exact", "pipeline", "schedule")}
    outside = {name.split(".")[0] for name in imported(path) - shared - set(OWN)}
    assert outside <= {*sys.stdlib_module_names, "numpy"} - {"importlib"}


def test_loading_the_verifier_loads_nothing_of_what_it_checks() -> None:
    code = "import sys, ppopt.verifier; print(*(m for m in sys.modules if m.startswith('ppopt.')))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    problem = ("errors", "op", "exact", "placement", "costs", "pipeline", "schedule")
    assert set(run.stdout.split()) == set(OWN) | {f"ppopt.{name}" for name in problem}
