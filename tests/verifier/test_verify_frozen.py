"""Rules of frozen stages: each one is caught alone, and what they allow is allowed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ppopt import Pipeline, Schedule, evaluate, verify
from ppopt.problem.operation import AuxiliaryKind, Op, OpKind
from ppopt.verifier import Rule
from tests.factories.schedules import BW, B, F, W, table
from tests.factories.tables import auxiliary_table, changed, joined, transfer_table

FROZEN = Pipeline(stages=3, batches=2, frozen=[True, False, True])
"""Stage 0 runs no backward; stage 2 hands a gradient on. Split as ZB-H1, all starts are whole: F at
0 and 1 on device 0, at 1 and 2 on device 1, at 2 and 4 on device 2; B on device 2 at 3 and 5, on
device 1 at 4 and 6, W there behind them."""
STEP = replace(FROZEN, gradient_sync=3, optimizer=1)


def with_start(
    schedule: Schedule, kind: OpKind, stage: int, start: int, length: int = 1
) -> Schedule:
    """The schedule with other times of an operation of microbatch 0, in units."""
    unit = schedule.pipeline.ticks.per_unit
    times = start * unit, (start + length) * unit
    rows = [
        (*row[:4], *times, *row[6:]) if row[:3] == (kind, stage, 0) else row
        for row in table(schedule)
    ]
    assert rows != table(schedule)
    return joined(schedule.pipeline, rows, auxiliary=auxiliary_table(schedule))


def rules(schedule: Schedule) -> list[Rule]:
    return [violation.rule for violation in verify(schedule)]


def test_times_are_those_of_the_fixture() -> None:
    schedule = evaluate(FROZEN, "zb-h1")
    assert rules(schedule) == []
    unit = schedule.pipeline.ticks.per_unit
    starts = {row[:3]: row[4] // unit for row in table(schedule)}
    assert [starts[F, 0, j] for j in (0, 1)] == [0, 1]
    assert [starts[B, 2, j] for j in (0, 1)] == [3, 5]
    assert [starts[B, 1, j] for j in (0, 1)] == [4, 6]


@pytest.mark.parametrize(
    ("kind", "stage", "start", "length", "rule"),
    [
        (B, 1, 3, 1, Rule.BACKWARD),  # the gradient of the frozen stage behind it is not there
        (B, 2, 9, 0, Rule.DURATION),  # the B of a frozen stage that hands a gradient on
    ],
)
def test_each_is_caught_alone(
    kind: OpKind, stage: int, start: int, length: int, rule: Rule
) -> None:
    broken = set(rules(with_start(evaluate(FROZEN, "zb-h1"), kind, stage, start, length)))
    assert rule in broken
    assert broken - {rule} <= {Rule.BACKWARD, Rule.WEIGHT} - {rule}


@pytest.mark.parametrize("length", [0, 1])
@pytest.mark.parametrize(("kind", "stage"), [(B, 0), (W, 0), (BW, 0), (W, 2)])
def test_a_frozen_stage_has_no_such_operation(kind: OpKind, stage: int, length: int) -> None:
    """Not even one of no length. Where the stage is trained, it is missing."""
    schedule = evaluate(FROZEN, "zb-h1")
    unit = schedule.pipeline.ticks.per_unit
    row = (kind, stage, 0, stage, 9 * unit, (9 + length) * unit)
    more = Schedule.from_rows(FROZEN, [*(each[:6] for each in table(schedule)), row])
    [violation] = verify(more)
    assert (violation.rule, violation.ops) == (Rule.UNKNOWN, (Op(kind, stage, 0),))
    assert f"stage {stage} is frozen and has no {kind.name}" in str(violation)
    trained = replace(schedule, pipeline=replace(FROZEN, frozen=None))
    assert Op(B if kind is BW else kind, stage, 0) in {
        op for missing in verify(trained) if missing.rule is Rule.MISSING for op in missing.ops
    }


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (1, "1B0 and 1W0 are missing, or BW in their place"),
        (2, "2B0 is missing, or BW in its place"),
    ],
)
def test_a_backward_that_there_is_is_missed(stage: int, message: str) -> None:
    schedule = evaluate(FROZEN, "zb-h1")
    rows = [row for row in table(schedule) if row[1:3] != (stage, 0) or row[0] == F]
    [violation] = verify(Schedule.from_rows(FROZEN, rows))
    assert violation.rule is Rule.MISSING
    assert message in violation.message
    whole = [row for row in table(schedule) if row[2] != 0]
    violations = verify(Schedule.from_rows(FROZEN, whole))
    assert {missing.rule for missing in violations} == {Rule.MISSING}
    assert len(violations) == 3 + 2


def test_the_activation_goes_at_the_end_of_f() -> None:
    """GPipe holds one activation on device 0 at a time; both of a trained stage."""
    schedule = evaluate(FROZEN, "gpipe")
    assert schedule.metrics.peak_memory_ticks == (1, 2, 2)
    assert rules(replace(schedule, pipeline=replace(FROZEN, mem_limit=[1, 2, 2]))) == []
    limited = replace(FROZEN, mem_limit=["0.5", 2, 2])
    assert set(rules(replace(schedule, pipeline=limited))) == {Rule.MEMORY}
    trained = replace(Pipeline(stages=3, batches=2), mem_limit=[1, 2, 2])
    assert evaluate(trained, "gpipe").metrics.peak_memory_ticks == (2, 2, 2)


@pytest.mark.parametrize("whole", [True, False])
def test_no_gradient_is_sent_to_a_stage_without_backward(whole: bool) -> None:
    pipeline = replace(FROZEN, p2p=1, link_mode="exclusive")
    schedule = evaluate(pipeline, "1f1b" if whole else "zb-h1")
    assert rules(schedule) == []
    rows, transfers = table(schedule), transfer_table(schedule)
    assert {row[:2] for row in transfers} == {(F, 0), (F, 1), (B, 2)}
    end = schedule.metrics.makespan_ticks
    unit = pipeline.ticks.per_unit
    more = [*transfers, (B, 1, 0, 1, 0, end, end + unit, 0)]
    assert set(rules(joined(pipeline, rows, transfers=more))) == {Rule.TRANSFER}
    remaining = [row for row in transfers if row[:3] != (B, 2, 0)]
    assert set(rules(joined(pipeline, rows, transfers=remaining))) == {Rule.TRANSFER}


def auxiliary_moved(schedule: Schedule, kind: AuxiliaryKind, stage: int, by: int) -> Schedule:
    """The schedule with an operation around the microbatches moved by so many units."""
    ops, unit = schedule.operations, schedule.pipeline.ticks.per_unit
    selected = (ops.kind == kind) & (ops.stage == stage)
    assert selected.sum() == 1
    return schedule.with_starts(ops.start + selected * by * unit)


def test_an_optimizer_waits_for_trained_stages_alone() -> None:
    """That of device 1 follows its sync; with a barrier it waits for no other device either."""
    for barrier in (False, True):
        schedule = evaluate(replace(STEP, optimizer_barrier=barrier), "1f1b")
        assert rules(schedule) == []
        assert rules(auxiliary_moved(schedule, AuxiliaryKind.OPTIMIZER, 1, -1)) == [Rule.OPTIMIZER]
        late = auxiliary_moved(schedule, AuxiliaryKind.GRADIENT_SYNC, 0, 20)
        assert rules(late) == []
        assert rules(auxiliary_moved(late, AuxiliaryKind.GRADIENT_SYNC, 2, 20)) == []


def test_a_frozen_stage_has_no_gradient_sync() -> None:
    schedule = evaluate(STEP, "1f1b")
    ops, unit = schedule.operations, schedule.pipeline.ticks.per_unit
    syncs = ops.kind == AuxiliaryKind.GRADIENT_SYNC
    assert ((ops.end - ops.start)[syncs] // unit).tolist() == [0, 3, 0]
    longer = ops.end + (syncs & (ops.stage == 2)) * 3 * unit
    longer_sync = changed(schedule, end=longer)
    assert rules(longer_sync) == [Rule.AUXILIARY_TIME]
    assert BW in schedule.kind
