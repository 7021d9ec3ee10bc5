"""Tables of a schedule by resource, as plain rows and as columns, and schedules of such rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ppopt.problem.arrays import Bools
from ppopt.problem.kinds import RECORDS, ResourceKind
from ppopt.problem.operation import ONCE, OpKind, TransferKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.operations import ALONE, Operations
from ppopt.schedule.schedule import Schedule

_SENT = {OpKind.F: TransferKind.SEND_F, OpKind.B: TransferKind.SEND_B}
_CARRIED = {kind: carried for carried, kind in _SENT.items()}


def transfers_of(schedule: Schedule) -> Operations:
    """What links carry."""
    return schedule.operations.where(schedule.operations.on(ResourceKind.LINK))


def besides_of(schedule: Schedule) -> Operations:
    """What devices run besides compute of microbatches."""
    table = schedule.operations
    return table.where(~table.computed & ~table.on(ResourceKind.LINK))


def transfer_table(schedule: Schedule) -> list[tuple[int, ...]]:
    """Transfers: what is carried (F or B), stage, microbatch, both devices, start, end, slice."""
    return [
        (_CARRIED[row.kind], *row[1:4], row.target, row.start, row.end, row.slice)  # type: ignore[index]
        for row in transfers_of(schedule).rows()
    ]


def auxiliary_table(schedule: Schedule) -> list[tuple[int, ...]]:
    """Other operations: kind, stage, device, start, end, route, microbatch, slice."""
    rows = sorted(besides_of(schedule).rows(), key=lambda row: (row.device, row.start, row.end))
    return [(*row[:2], *row[3:6], row.route, row.microbatch, row.slice) for row in rows]


def joined(
    pipeline: Pipeline,
    rows: Iterable[Sequence[int]],
    transfers: Iterable[Sequence[int]] = (),
    auxiliary: Iterable[Sequence[int]] = (),
) -> Schedule:
    """A schedule of the rows of `tests.factories.schedules.table` and of those above."""
    both: list[tuple[int, ...]] = []
    for kind, stage, microbatch, device, start, end, *more in rows:
        route = pipeline.route(microbatch)
        prefix = (kind, stage, microbatch, device)
        both.append((*prefix, start, end, *(more or (0, ALONE)), route, device))
    for kind, stage, microbatch, device, target, start, end, *more in transfers:
        route, sent = pipeline.route(microbatch), _SENT.get(kind, len(RECORDS))
        prefix = (sent, stage, microbatch, device)
        both.append((*prefix, start, end, *(more or (0,)), ALONE, route, target))
    for kind, stage, device, start, end, *more in auxiliary:
        route, microbatch, slice_index = (*more, *(0, ONCE, 0)[len(more) :])
        prefix = (kind, stage, microbatch, device)
        both.append((*prefix, start, end, slice_index, ALONE, route, device))
    return Schedule.from_rows(pipeline, both)


def changed(schedule: Schedule, chosen: Bools | None = None, **columns: Any) -> Schedule:
    """The schedule with other columns, or with other entries of its chosen operations."""
    table = schedule.operations
    if chosen is not None:
        values, columns = columns, {name: getattr(table, name).copy() for name in columns}
        for name, value in values.items():
            columns[name][chosen] = value
    return replace(schedule, operations=replace(table, **columns))
