"""The critical path: by hand, and on random schedules by its definition."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given

from ppopt.problem.operation import Op, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule import timing
from ppopt.schedule.idle import arrivals
from ppopt.schedule.operations import ALONE
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.waits import FREE, _causes, critical_path, waits
from ppopt.studies.evaluate import evaluate
from tests.factories.schedules import TableRow, lag_of, op_of, schedules, table
from tests.tiers import examples


def names(schedule: Schedule) -> list[str]:
    rows = [table(schedule)[row] for row in critical_path(schedule).tolist()]
    return [str(Op(OpKind(kind), stage, microbatch)) for kind, stage, microbatch, *_ in rows]


def test_1f1b_by_hand() -> None:
    """F = 1, BW = 2: down to device 1, its work without a break from 1 to 7, and back: 9."""
    schedule = evaluate(Pipeline(stages=2, batches=2), "1f1b")
    assert names(schedule) == ["0F0", "1F0", "1BW0", "1F1", "1BW1", "0BW1"]


def test_through_work_around_the_microbatches() -> None:
    """It begins with the unshard of device 1, which makes its F0 late, and ends with a sync.

    Device 0: unshard to 1, F0 F1 to 3; device 1: unshard to 5, its work from 5 to 11; device 0:
    BW1 to 13. Device 1 syncs from 11 to 21.
    """
    work: dict[str, Any] = {"unshard": [1, 5], "gradient_sync": [2, 10], "optimizer": 1}
    schedule = evaluate(Pipeline(stages=2, batches=2, **work), "1f1b")
    assert schedule.metrics.makespan_ticks == 22
    assert names(schedule) == ["1F0", "1BW0", "1F1", "1BW1"]
    early = evaluate(Pipeline(stages=2, batches=2, optimizer=1, optimizer_barrier=True), "1f1b")
    assert names(early) == ["0F0", "1F0", "1BW0", "1F1", "1BW1", "0BW1"]


@examples(15)
@given(schedules())
def test_of_earliest_starts_it_leaves_out_no_time(schedule: Schedule) -> None:
    earliest = timing.schedule(schedule.pipeline, schedule.orders)
    rows = [table(earliest)[row] for row in critical_path(earliest).tolist()]
    assert rows[0][4] == 0
    assert rows[-1][5] == earliest.metrics.makespan_ticks
    for before, after in pairwise(rows):
        assert after[4] == before[5] + lag_of(earliest.pipeline, op_of(before), op_of(after))


@examples(15)
@given(schedules())
def test_each_operation_waits_longest_for_the_one_before_it(schedule: Schedule) -> None:
    path = critical_path(schedule).tolist()
    rows, ready = table(schedule), arrivals(schedule).ready.tolist()
    assert rows[path[-1]][5] == schedule.metrics.makespan_ticks
    for before, after in pairwise(path):
        lag = lag_of(schedule.pipeline, op_of(rows[before]), op_of(rows[after]))
        same = [
            row[5]
            for row in rows[:after]
            if row[3] == rows[after][3] and not paired(row, rows[after])
        ]
        assert rows[before][5] + lag == max(ready[after], *same[-1:], 0)


def paired(first: TableRow, second: TableRow) -> bool:
    return first[7] == second[7] != ALONE


@pytest.mark.parametrize("strategy", ["1f1b", "zb-h1", "gpipe"])
def test_over_links_it_leads_through_their_queues(strategy: str) -> None:
    """Each operation of the chain, transfers among them, starts when the one before it ends."""
    pipeline = Pipeline(stages=3, batches=6, p2p=3, link_mode="exclusive", optimizer=1)
    schedule = evaluate(pipeline, strategy)
    table, causes = schedule.operations, _causes(waits(schedule))
    row = int(table.end.argmax())
    while causes[row] != FREE:
        assert table.start[row] == table.end[causes[row]]
        row = causes[row]
    assert table.start[row] == 0
