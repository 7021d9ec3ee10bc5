"""The rules once more, in plain Python straight from the semantics: an oracle for the verifier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from itertools import product

from ppopt.problem.operation import Op, OpKind, TransferKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule
from ppopt.verifier import Rule
from tests.factories.schedules import (
    ALONE,
    BW,
    B,
    F,
    TableRow,
    W,
    duration_of,
    exists,
    lag_of,
    live_after,
    memory_changes,
    op_of,
    table,
)

EXACT = 2**53
TRANSFERS = tuple(TransferKind)
"""Kinds of which a pipeline has none whose links are delays: one finding for all."""
Finding = tuple[Rule, int | None, int | None, Op | None]
"""Rule, device, time in ticks, and the operation at fault (None for memory and the unknown)."""


def findings(schedule: Schedule) -> Counter[Finding]:
    """Every violation of a schedule, claims aside."""
    pipeline, rows = schedule.pipeline, _sorted(table(schedule))
    named = [row for row in rows if _named(pipeline, row)]
    violations = [
        *_strangers(pipeline, rows),
        *_counts(pipeline, named),
        *_single_rows(pipeline, named),
        *_order(pipeline, named),
        *_overlaps(sane(schedule)),
        *_memory(pipeline, sane(schedule)),
    ]
    return Counter(violations)


def sane(schedule: Schedule) -> list[TableRow]:
    """The rows that occupy a device."""
    pipeline = schedule.pipeline
    return [
        row
        for row in _sorted(table(schedule))
        if _named(pipeline, row)
        and 0 <= row[3] < pipeline.num_devices
        and -EXACT <= row[4] <= row[5] <= EXACT
    ]


def _sorted(rows: list[TableRow]) -> list[TableRow]:
    """By device, start and end, then operation: of two equal ones the first is well defined."""
    return sorted(rows, key=lambda row: (*row[3:6], *row[:3], row[6]))


def busy_and_span(schedule: Schedule) -> tuple[list[int], int, int]:
    """Busy ticks per device, makespan, device span."""
    rows = sane(schedule)
    hosted = [[row for row in rows if row[3] == d] for d in range(schedule.pipeline.num_devices)]
    together = {(row[3], *row[4:6], row[7]) for row in rows if joined(row, rows)}
    spells = [(row[3], row[5] - row[4]) for row in rows if not joined(row, rows)]
    spells += [(device, end - start) for device, start, end, _ in together]
    busy = [sum(t for d, t in spells if d == device) for device in range(len(hosted))]
    spans = [max(row[5] for row in own) - min(row[4] for row in own) for own in hosted if own]
    return busy, max([0, *(row[5] for row in rows)]), max(spans, default=0)


def partner(row: TableRow, rows: list[TableRow]) -> TableRow | None:
    """The other row of a pair: one of two with its number, an F and a backward, of different
    microbatches."""
    same = [candidate for candidate in rows if candidate[7] == row[7] != ALONE]
    if len(same) != 2 or same[0][2] == same[1][2]:
        return None
    if sorted(member[0] == F for member in same) != [False, True] or any(o[0] == W for o in same):
        return None
    return same[1] if row == same[0] else same[0]


def joined(row: TableRow, rows: list[TableRow]) -> bool:
    """Whether a row runs as one with its partner."""
    paired = partner(row, rows)
    return paired is not None and paired[3:6] == row[3:6]


def _named(pipeline: Pipeline, row: TableRow) -> bool:
    return _within(pipeline, row) and exists(pipeline, OpKind(row[0]), row[1])


def _within(pipeline: Pipeline, row: TableRow) -> bool:
    kind, stage, microbatch = row[:3]
    return (
        kind in {0, 1, 2, 3}
        and 0 <= stage < pipeline.num_stages
        and 0 <= microbatch < pipeline.batches
        and 0 <= row[6] < (pipeline.slices or 1)
    )


def _fault(rule: Rule, row: TableRow) -> Finding:
    return rule, row[3], row[4], op_of(row)


def _strangers(pipeline: Pipeline, rows: list[TableRow]) -> Iterator[Finding]:
    if any(row[0] in TRANSFERS for row in rows):
        yield Rule.TRANSFER, None, None, None
    for row in rows:
        if row[0] in TRANSFERS:
            continue
        if not _within(pipeline, row):
            yield Rule.UNKNOWN, row[3], row[4], None
        elif not _named(pipeline, row) or not 0 <= row[3] < pipeline.num_devices:
            yield _fault(Rule.UNKNOWN, row)


def _first(named: list[TableRow]) -> dict[Op, TableRow]:
    return {op_of(row): row for row in reversed(named)}


def _counts(pipeline: Pipeline, named: list[TableRow]) -> Iterator[Finding]:
    seen: set[Op] = set()
    for row in named:
        if op_of(row) in seen:
            yield _fault(Rule.DUPLICATE, row)
        seen.add(op_of(row))
    first = _first(named)
    parts = range(pipeline.slices or 1)
    for slot in product(range(pipeline.num_stages), range(pipeline.batches), parts):
        f, b, w, full = (Op(kind, *slot) for kind in OpKind)
        missing = [] if f in seen else [f]
        halves = [op for op in (b, w) if exists(pipeline, op.kind, op.stage)]
        if full in seen:
            yield from (_fault(Rule.DUPLICATE, first[op]) for op in halves if op in seen)
        else:
            missing += [op for op in halves if op not in seen][:1]
        for op in missing:
            yield Rule.MISSING, pipeline.device(*slot[:2]), None, op


def _single_rows(pipeline: Pipeline, named: list[TableRow]) -> Iterator[Finding]:
    for row in named:
        _, stage, microbatch, device, start, end, _, pair_id = row
        if pair_id != ALONE and not joined(row, named):
            yield _fault(Rule.PAIR, row)
        if 0 <= device < pipeline.num_devices and device != pipeline.device(stage, microbatch):
            yield _fault(Rule.DEVICE, row)
        paired = partner(row, named)
        group = [op_of(row)]
        if paired is not None and pipeline.device(stage, microbatch) == pipeline.device(
            *paired[1:3]
        ):
            group.append(op_of(paired))
        if end - start != duration_of(pipeline, group):
            yield _fault(Rule.DURATION, row)
        if start < 0 or not _timed(row):
            yield _fault(Rule.START, row)


def _timed(row: TableRow) -> bool:
    return abs(row[4]) <= EXACT and abs(row[5]) <= EXACT


def _order(pipeline: Pipeline, named: list[TableRow]) -> Iterator[Finding]:
    first = _first(named)
    for op, row in first.items():
        for rule, wait in before(pipeline, op, first):
            known = wait in first and _timed(row) and _timed(first[wait])
            if known and row[4] < first[wait][5] + lag_of(pipeline, wait, op):
                yield _fault(rule, row)


def before(pipeline: Pipeline, op: Op, first: Container[Op]) -> Iterator[tuple[Rule, Op]]:
    """What an operation waits for, and by which rule; `first` holds the operations there are."""
    kind, stage, microbatch, slice_index = op
    if kind is F:
        yield Rule.FORWARD, Op(F, stage - 1, microbatch, slice_index)
        yield Rule.SLICE, Op(F, stage, microbatch, slice_index - 1)
    if kind in (B, BW):
        split = Op(B, stage + 1, microbatch, slice_index)
        yield Rule.BACKWARD, split if split in first else split._replace(kind=BW)
        yield Rule.BACKWARD, Op(F, stage, microbatch, slice_index)
        later = Op(B, stage, microbatch, slice_index + 1)
        yield Rule.SLICE, later if later in first else later._replace(kind=BW)
    if kind is W:
        yield Rule.WEIGHT, Op(B, stage, microbatch, slice_index)


def _overlaps(rows: list[TableRow]) -> Iterator[Finding]:
    rows = [
        row
        for position, row in enumerate(rows)
        if not (joined(row, rows) and partner(row, rows) in rows[:position])
    ]
    for position, row in enumerate(rows):
        if any(_conflict(row, earlier) for earlier in rows[:position] if earlier[3] == row[3]):
            yield _fault(Rule.OVERLAP, row)


def _conflict(row: TableRow, second: TableRow) -> bool:
    (start, end), (start2, end2) = row[4:6], second[4:6]
    if start == end or start2 == end2:
        return start2 < start < end2 or start < start2 < end
    return max(start, start2) < min(end, end2)


def _memory(pipeline: Pipeline, rows: list[TableRow]) -> Iterator[Finding]:
    limits = pipeline.ticks.limits or ()
    for device, limit in enumerate(limits):
        if pipeline.ticks.static[device] > limit:
            yield Rule.MEMORY, device, None, None
        static, changes = pipeline.ticks.static[device], memory_changes(pipeline, rows, device)
        for time in {time for row in rows for time in row[4:6]}:
            after_ends = live_after(static, changes, time, starts=False)
            after_starts = live_after(static, changes, time, starts=True)
            if after_ends <= limit < after_starts:
                yield Rule.MEMORY, device, time, None
