"""Rules of work around the microbatches: each one is caught alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ppopt import InputError, Pipeline, Schedule, evaluate, verify
from ppopt.problem.operation import AuxiliaryKind
from ppopt.verifier import Rule
from tests.factories import tables
from tests.factories.schedules import table
from tests.factories.tables import auxiliary_table, besides_of, joined
from tests.verifier.verify_fixtures import with_auxiliary

UNSHARD, SYNC = AuxiliaryKind.UNSHARD, AuxiliaryKind.GRADIENT_SYNC
OPTIMIZER = AuxiliaryKind.OPTIMIZER
LINEAR = Pipeline(
    stages=2,
    batches=2,
    unshard=2,
    unshard_memory=1,
    gradient_sync=3,
    optimizer=1,
    optimizer_barrier=True,
)
"""1F1B: F from 2 on, BW 6..8 and 9..11 on device 0; BW 4..6 and 7..9 on device 1. Syncs end at 14
and at 12, both optimizers run 14..15."""
CHUNKS = Pipeline(stages=2, batches=2, chunks=2, placement="v", unshard=2, gradient_sync=2)
"""Of every stage one; device 0 gathers stage 0 in 0..1 and stage 3 in 1..2."""

Row = tuple[int, int]
"""Kind and stage."""


def rows(schedule: Schedule) -> dict[Row, int]:
    """Number of the row of every auxiliary operation."""
    auxiliary = besides_of(schedule).rows()
    return {(row.kind, row.stage): index for index, row in enumerate(auxiliary)}


def changed(schedule: Schedule, key: Row, **columns: int) -> Schedule:
    """The schedule with other values in the row of an auxiliary operation; times in units."""
    return with_auxiliary(schedule, rows(schedule)[key], **columns)


def rules(schedule: Schedule) -> list[Rule]:
    return [violation.rule for violation in verify(schedule)]


@pytest.mark.parametrize("pipeline", [LINEAR, CHUNKS], ids=["linear", "chunks"])
def test_what_is_made_is_right(pipeline: Pipeline) -> None:
    assert verify(evaluate(pipeline, "1f1b" if pipeline is LINEAR else "zbv")) == []


def test_every_operation_is_there_once() -> None:
    schedule = evaluate(LINEAR, "1f1b")
    ops = schedule.operations
    around = np.flatnonzero(~ops.computed)
    assert len(around) == 6
    every = np.arange(len(ops))
    for row in around:
        lacking = ops.where(every != row)
        assert set(rules(replace(schedule, operations=lacking))) >= {Rule.AUXILIARY}
    assert set(rules(replace(schedule, operations=schedule.compute))) == {Rule.AUXILIARY}
    (optimizer,) = np.flatnonzero((ops.kind == OPTIMIZER) & (ops.stage == 0))
    twice = ops.where(np.append(every, optimizer))
    assert rules(replace(schedule, operations=twice)) == [Rule.AUXILIARY, Rule.OVERLAP]


def test_a_pipeline_without_this_work_has_none() -> None:
    schedule = evaluate(LINEAR, "1f1b")
    plain = Pipeline(stages=2, batches=2)
    around = auxiliary_table(schedule)
    assert set(rules(joined(plain, table(evaluate(plain, "1f1b")), auxiliary=around))) == {
        Rule.AUXILIARY
    }


@pytest.mark.parametrize(
    ("key", "columns", "rule"),
    [
        ((OPTIMIZER, 0), {"end": 16}, Rule.AUXILIARY_TIME),
        ((UNSHARD, 1), {"start": -1, "end": 1}, Rule.AUXILIARY_TIME),
        ((UNSHARD, 0), {"start": 1, "end": 3}, Rule.UNSHARD),
        ((SYNC, 1), {"start": 8, "end": 11}, Rule.GRADIENT_SYNC),
        ((OPTIMIZER, 0), {"start": 13, "end": 14}, Rule.OPTIMIZER),
        ((OPTIMIZER, 1), {"start": 13, "end": 14}, Rule.OPTIMIZER),
    ],
)
def test_times_and_order(key: Row, columns: dict[str, int], rule: Rule) -> None:
    schedule = evaluate(LINEAR, "1f1b")
    assert schedule.metrics.makespan_ticks == 15 * schedule.pipeline.ticks.per_unit
    assert rules(changed(schedule, key, **columns)) == [rule]


def test_without_a_barrier_an_optimizer_waits_for_its_own_device_alone() -> None:
    schedule = evaluate(LINEAR, "1f1b")
    early = changed(schedule, (OPTIMIZER, 1), start=13, end=14)
    free = replace(LINEAR, optimizer_barrier=False)
    assert rules(early) == [Rule.OPTIMIZER]
    assert rules(replace(early, pipeline=free)) == []


def test_a_queue_runs_one_at_a_time() -> None:
    schedule = evaluate(CHUNKS, "zbv")
    assert rules(changed(schedule, (UNSHARD, 3), start=0, end=1)) == [Rule.COLLECTIVE]


def test_an_optimizer_computes() -> None:
    """Of device 1 alone: without syncs it may follow its last BW, not overlap it."""
    pipeline = Pipeline(stages=2, batches=2, optimizer=(3, 3))
    schedule = evaluate(pipeline, "1f1b")
    last = int(schedule.end[schedule.device == 1].max())
    unit = pipeline.ticks.per_unit
    early = changed(schedule, (OPTIMIZER, 1), start=last // unit - 1, end=last // unit + 2)
    assert set(rules(early)) == {Rule.OPTIMIZER, Rule.OVERLAP}


def test_gathered_weights_count() -> None:
    """Device 0 holds 2 activations and 1 of weights from 0 to the end of its sync."""
    schedule = evaluate(replace(LINEAR, mem_limit=3), "1f1b")
    assert schedule.metrics.peak_memory_ticks == (3, 2)
    assert rules(schedule) == []
    tight = replace(schedule.pipeline, mem_limit=2)
    assert rules(replace(schedule, pipeline=tight)) == [Rule.MEMORY]


def test_columns_of_one_length() -> None:
    schedule = evaluate(LINEAR, "1f1b")
    with pytest.raises(InputError, match="schedule: columns differ in length"):
        verify(tables.changed(schedule, start=schedule.operations.start[1:]))
