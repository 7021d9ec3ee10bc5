"""The verifier: silent on valid schedules, exact about every fault."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppopt import evaluate
from ppopt.errors import VerificationError
from ppopt.problem.operation import Op, parse
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule import timing
from ppopt.schedule.operations import ALONE
from ppopt.schedule.schedule import Schedule
from ppopt.verifier import Figures, Rule, checked, explain, figures, verify
from tests.factories.auxiliary import with_gradient_work, with_offload
from tests.factories.schedules import (
    BW,
    B,
    F,
    TableRow,
    W,
    by_boundary,
    lag_of,
    limited,
    op_of,
    peaks,
    pipelines,
    schedules,
    table,
)
from tests.factories.streams import LINK_MODES, TRANSFER_MODES, built, linked_pipelines
from tests.factories.tables import changed
from tests.tiers import examples
from tests.verifier import verify_naive
from tests.verifier.verify_fixtures import one_f_one_b, rules, schedule_of, split_with_p2p
from tests.verifier.verify_mutations import GRADIENTS, MUTATIONS, OFFLOADS, STREAMS

SEEDS = st.integers(0, 2**32 - 1)
EITHER = pipelines(different=(False, True))
"""Pipelines whose microbatches are alike, or differ."""
ROOMY = pipelines(min_devices=2, min_batches=2, max_devices=2)
SLICED = pipelines(min_devices=2, min_batches=2, max_devices=2, slices=(2,))
"""Pipelines in which every rule can be broken."""


# Valid schedules


@given(schedules(EITHER))
def test_a_valid_schedule_has_no_violation(schedule: Schedule) -> None:
    assert verify(schedule) == []


@given(schedules(by_boundary()), SEEDS)
def test_delays_per_boundary(schedule: Schedule, seed: int) -> None:
    """Valid as built; with every operation moved a little, the rules in plain Python agree."""
    assert verify(schedule) == []
    random = Random(seed)
    rows = [
        (*row[:4], row[4] - by, row[5] - by, *row[6:])
        for row in table(schedule)
        for by in [random.choice((0, 0, 1))]
    ]
    late = Schedule.from_rows(schedule.pipeline, rows)
    violations = {(violation.rule, violation.device, violation.time) for violation in verify(late)}
    assert violations == {finding[:3] for finding in verify_naive.findings(late)}


def test_one_f_one_b_by_hand() -> None:
    schedule = one_f_one_b()
    assert verify(schedule) == []
    measured = figures(schedule)
    assert measured == Figures(makespan=9, device_span=9, busy=(6, 6), peak_memory=(2, 1))
    assert measured.bubble_rate() == Fraction(1, 3)
    assert measured.bubble_overhead() == Fraction(1, 2)


def test_zero_length_backward_and_p2p_by_hand() -> None:
    schedule = split_with_p2p()
    assert verify(schedule) == []
    # in half units: static 1 (2), an activation of 1, and half of one more from B on
    assert figures(schedule) == Figures(15, 15, busy=(8, 8), peak_memory=(5, 7))


def test_device_span_starts_with_the_first_operation_of_the_device() -> None:
    schedule = one_f_one_b()
    late = [(*row[:4], row[4] + 5, row[5] + 5, *row[6:]) for row in table(schedule)]
    later = Schedule.from_rows(schedule.pipeline, late)
    assert verify(later) == []
    assert (figures(later).makespan, figures(later).device_span) == (14, 9)


# Every rule alone


def test_every_rule_has_a_mutation() -> None:
    assert set(MUTATIONS) == set(Rule)


@pytest.mark.parametrize("rule", Rule)
@examples(10)
@given(data=st.data(), seed=SEEDS)
def test_breaking_one_rule_reports_that_rule_alone(
    rule: Rule, data: st.DataObject, seed: int
) -> None:
    kinds = ["split"] if rule is Rule.WEIGHT else ["split", "fused", "mixed"]
    if rule in STREAMS:
        # A blocking transfer occupies its devices: two on one link may overlap compute, too.
        modes = LINK_MODES if rule is Rule.LINK else TRANSFER_MODES
        schedule = data.draw(built(linked_pipelines(modes, max_devices=2))).schedule
    elif rule in GRADIENTS:
        schedule = data.draw(with_gradient_work(ROOMY, kinds))
    elif rule in OFFLOADS:
        schedule = data.draw(with_offload(ROOMY, kinds))
    else:
        schedule = data.draw(schedules(SLICED if rule is Rule.SLICE else ROOMY, kinds))
    broken, claims = MUTATIONS[rule](Random(seed), schedule)
    violations = verify(broken, claims)
    assert rules(violations) == {rule}, explain(broken, violations)


def test_a_violation_names_rule_place_and_time() -> None:
    schedule = changed(one_f_one_b(), end=np.array([1, 2, 6, 10, 2, 4, 5, 7]))
    (violation,) = verify(schedule)
    assert (violation.rule, violation.ops) == (Rule.DURATION, (Op(BW, 0, 1),))
    assert (violation.device, violation.time) == (0, 7)
    assert str(violation) == "duration: 0BW1 on device 0 takes 3, from 7 to 10, not 2"


def test_a_schedule_with_a_violation_is_not_taken() -> None:
    schedule = one_f_one_b()
    assert checked(schedule) is schedule
    broken = changed(schedule, end=np.array([1, 2, 6, 10, 2, 4, 5, 7]))
    with pytest.raises(VerificationError, match="duration: 0BW1 on device 0 takes 3"):
        checked(broken)


MESSAGES = [
    (["0: 0F0@0..2"], "missing: 0B0 and 0W0 are missing, or BW in their place (device 0)"),
    (
        ["0: 0F0@0..2 0W0@2..4"],
        "missing: 0B0 is missing: W has run, and is half of the backward (device 0)",
    ),
    (
        ["0: 0F0@0..2 0B0@2..3 0W0@3..5 0BW0@5..8"],
        "duplicate: 0B0 runs at 1 on device 0, and 0BW0 at 2.5 on device 0; "
        "BW is B and W in one operation",
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
    violations = verify(schedule_of(pipeline, f"0: 0F0@0..2 {ops}"))
    of_microbatch_0 = [(v.rule, v.ops) for v in violations if v.ops[0].microbatch == 0]
    assert of_microbatch_0 == expected
    assert [v.ops for v in violations if v.ops[0].microbatch == 1] == [
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


def pairs_by_hand() -> Schedule:
    """One stage, two microbatches, F = 1 and BW = 2, 2 as one; F1 runs with BW0, drawn by hand:

    device 0: F0, then F1 and BW0 from 1 to 3, then BW1.
    """
    rows = [(F, 0, 0, 0, 0, 1), (F, 0, 1, 0, 1, 3), (BW, 0, 0, 0, 1, 3), (BW, 0, 1, 0, 3, 5)]
    numbered = [(*row, 0, pair) for row, pair in zip(rows, (-1, 4, 4, -1), strict=True)]
    return Schedule.from_rows(Pipeline(stages=1, batches=2, overlap=2), numbered)


def test_a_pair_by_hand() -> None:
    """It takes time once; F1 allocates at its start while F0 is live, BW0 frees at its end."""
    schedule = pairs_by_hand()
    assert verify(schedule) == []
    assert figures(schedule) == Figures(5, 5, busy=(5,), peak_memory=(2,))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"end": [1, 4, 4, 6], "start": [0, 1, 1, 4]}, ["duration", "duration"]),
        ({"pair": [-1, -1, -1, -1]}, ["duration", "overlap"]),
        ({"pair": [-1, 0, 0, 0]}, ["pair", "pair", "pair", "duration", "overlap"]),
        ({"pair": [0, 1, 1, 0]}, ["pair", "pair", "duration"]),
        ({"end": [1, 2, 3, 5]}, ["pair", "pair", "duration", "overlap"]),
    ],
)
def test_broken_pairs(change: dict[str, list[int]], expected: list[str]) -> None:
    columns = {name: np.array(values) for name, values in change.items()}
    violations = verify(changed(pairs_by_hand(), **columns))
    assert [violation.rule.value for violation in violations] == expected


def test_a_pair_says_what_it_lacks() -> None:
    violations = verify(changed(pairs_by_hand(), pair=np.array([-1, 2, -1, -1])))
    assert str(violations[0]) == (
        "pair: 0F1 at 1..3 on device 0 is to run as one with no other; a pair is one F and one B "
        "or BW of different microbatches, on one device, with one start and one end"
    )


def test_slices_by_hand() -> None:
    """Two slices of one microbatch: F forth, BW back; a slice may not go before another."""
    pipeline = Pipeline(stages=1, batches=1, slices=2, forward=2, backward=2, weight=2)
    right = [(F, 0, 0, 0, 0, 1, 0, -1), (F, 0, 0, 0, 1, 2, 1, -1)]
    right += [(BW, 0, 0, 0, 2, 3, 1, -1), (BW, 0, 0, 0, 3, 4, 0, -1)]
    assert verify(Schedule.from_rows(pipeline, right)) == []
    wrong = [(*row[:6], 1 - row[6], -1) for row in right]
    assert [str(violation) for violation in verify(Schedule.from_rows(pipeline, wrong))] == [
        "slice-order: 0F0s1 starts at 0 on device 0, but 0F0 ends at 2 on device 0",
        "slice-order: 0BW0 starts at 2 on device 0, but 0BW0s1 ends at 4 on device 0",
    ]


# Exact at the boundary

ORDER_RULES = {Rule.FORWARD, Rule.BACKWARD, Rule.WEIGHT}
"""Those that schedules drawn by hand without slices meet; slices are among the drawn ones."""


def tight_rows(schedule: Schedule) -> list[tuple[Rule, TableRow]]:
    """Operations that start at the first moment a rule of order allows, with the rule."""
    ends = {op_of(row): (row[3], row[5]) for row in table(schedule)}
    tight = []
    for row in table(schedule):
        for rule, before in verify_naive.before(schedule.pipeline, op_of(row), ends):
            if before in ends:
                _, end = ends[before]
                if row[4] == end + lag_of(schedule.pipeline, before, op_of(row)):
                    tight.append((rule, row))
    return tight


@given(schedules(), SEEDS)
def test_one_tick_early_is_caught_and_on_time_passes(schedule: Schedule, seed: int) -> None:
    """An operation of every rule that is tight somewhere."""
    assert verify(schedule) == []
    tight = tight_rows(schedule)
    Random(seed).shuffle(tight)
    for rule, row in dict(tight).items():
        rows = table(schedule)
        rows[rows.index(row)] = (*row[:4], row[4] - 1, row[5] - 1, *row[6:])
        violations = verify(Schedule.from_rows(schedule.pipeline, rows))
        assert (rule, op_of(row)) in {(v.rule, v.ops[0]) for v in violations if v.ops}


@pytest.mark.parametrize(
    ("costs", "times"),
    [
        ({"overlap": 2}, {0: 2, 1: 2}),
        ({"overlap": [2, 3]}, {0: 2, 1: 3}),
        ({"overlap": [[2, 9], [9, 3]]}, {0: 2, 1: 3}),
        ({"overlap": [2, 3], "recompute_time": 1}, {0: 3, 1: 4}),
        ({"overlap": [[4, 9], [9, 6]], "device_speed": 2}, {0: 2, 1: 3}),
    ],
)
def test_pairs_take_just_the_time_stated(costs: dict[str, Any], times: dict[int, int]) -> None:
    """Also where that is below the longer of F and BW; a tick more or less is reported."""
    schedule = evaluate(
        Pipeline(stages=2, batches=4, forward=3, backward=6, **costs), "1f1b-overlap"
    )
    assert verify(schedule) == []
    rows = [row for row in schedule.rows() if row.pair != ALONE]
    ticks = schedule.pipeline.ticks
    assert {(row.stage, ticks.time(row.end - row.start)) for row in rows} == set(times.items())
    for pair_id, by in product({row.pair for row in rows}, (-1, 1)):
        altered = [
            (*row[:5], row[5] + (by if row[7] == pair_id else 0), *row[6:])
            for row in table(schedule)
        ]
        violations = verify(Schedule.from_rows(schedule.pipeline, altered))
        assert {
            violation.ops[0] for violation in violations if violation.rule is Rule.DURATION
        } == {row.op for row in rows if row.pair == pair_id}


@pytest.mark.parametrize(
    ("forward", "backward", "overlap", "time"),
    [
        ([6, 8], [8, 6], [2, 1], 1),  # F of stage 0 and BW of stage 1 save 12 of 12
        ([6, 8], [8, 6], [1, 2], 1),
        ([1, 8], [8, 1], [2, 3], 1),  # both alone take 1
        ([1, 8], [8, 2], [3, 3], 2),
        ([3, 8], [8, 1], [4, 4], 3),
    ],
)
def test_two_stages_take_no_less_than_the_shortest_stated(
    forward: list[int], backward: list[int], overlap: list[int], time: int
) -> None:
    """F of stage 0 with BW of stage 1, on one device."""
    pipeline = Pipeline(
        stages=2, batches=2, placement=(0, 0), forward=forward, backward=backward, overlap=overlap
    )
    ops = ("0F0", "1F0", "0F1", "1BW0", "0BW0", "1F1", "1BW1", "0BW1")
    order = [pipeline.code(*parse(name)) for name in ops]
    order[3] = ~order[3]
    schedule = timing.schedule(pipeline, [np.array(order)])
    assert verify(schedule) == []
    pair = next(row for row in schedule.rows() if row.pair != ALONE)
    assert pipeline.ticks.time(pair.end - pair.start) == time


def test_a_matrix_read_by_its_columns_is_reported() -> None:
    """Two routes: F of a stage with BW of another. The transpose is another time."""
    pipeline = Pipeline(stages=2, batches=4, overlap=[[2, 1], [3, 2]])
    schedule = evaluate(pipeline, "dualpipe")
    assert verify(schedule) == []
    transposed = replace(schedule.pipeline, overlap=[[2, 3], [1, 2]])
    violations = verify(Schedule.from_rows(transposed, table(schedule)))
    assert Rule.DURATION in {violation.rule for violation in violations}


def test_every_rule_of_order_is_tight_somewhere() -> None:
    hit = Counter(rule for rule, _ in tight_rows(one_f_one_b()) + tight_rows(split_with_p2p()))
    assert set(hit) == ORDER_RULES


@given(schedules())
def test_the_limit_may_be_reached_but_not_passed(schedule: Schedule) -> None:
    limits = peaks(schedule)
    assert verify(limited(schedule, limits)) == []
    if any(limits):
        device = max(range(len(limits)), key=limits.__getitem__)
        lower = [limit - (d == device) for d, limit in enumerate(limits)]
        violations = verify(limited(schedule, lower))
        assert {(v.rule, v.device) for v in violations} == {(Rule.MEMORY, device)}
        assert verify(limited(schedule, lower), enforce_limit=False) == []


def test_each_time_the_limit_is_passed_is_reported() -> None:
    violations = verify(limited(one_f_one_b(), [1, 0]))
    assert [str(violation) for violation in violations] == [
        "memory-limit: device 0: live memory 2 above its limit 1, from 1 on, when 0F1 starts",
        "memory-limit: device 1: live memory 1 above its limit 0, from 1 on, when 1F0 starts",
        "memory-limit: device 1: live memory 1 above its limit 0, from 4 on, when 1F1 starts",
    ]


def test_static_memory_above_the_limit_is_reported_by_itself() -> None:
    violations = verify(limited(split_with_p2p(), [1, 7]))
    assert [str(violation) for violation in violations] == [
        "memory-limit: device 0: live memory 1 above its limit 0.5, by static memory alone"
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
    """B and W take no time, B takes 1 more: at 2, W0 frees 2 before B1 allocates its 1."""
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
