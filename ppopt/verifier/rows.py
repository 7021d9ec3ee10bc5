"""A schedule as the verifier reads it: untrusted rows, made safe to compute with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ppopt.errors import InputError, check_type
from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.link_mode import HostLink, LinkMode
from ppopt.problem.operation import KINDS, NUM_KINDS, AuxiliaryKind, Op, OpKind, TransferKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.operations import ALONE
from ppopt.schedule.timetable import Timetable
from ppopt.verifier.costs import MOVES, Costs
from ppopt.verifier.expected import COLLECTIVES, NO_MICROBATCH, OF_STEP, Expected

LATEST = 2**53
"""Maximum absolute time in ticks; beyond it floats are not exact."""
ABSENT = -1
"""Row number of an operation that the schedule does not have."""
NAMES = tuple(kind.name for kinds in (OpKind, TransferKind, AuxiliaryKind) for kind in kinds)
"""Name of every kind, by code."""
FIELDS = ("kind", "stage", "microbatch", "slice", "route", "device", "target")
"""Fields that identify an operation and its devices."""
_COLUMNS = (*FIELDS, "start", "end", "pair")
_NEVER = 2**62


@dataclass(frozen=True, eq=False)
class Rows:
    """All operations of a schedule, sorted by device, start, end; columns of one length n."""

    expected: Expected
    """The operations that the schedule must have."""
    kind: Ints
    stage: Ints
    """The stage; of a transfer, the one that sends."""
    microbatch: Ints
    """Microbatch, or NO_MICROBATCH."""
    slice: Ints
    route: Ints
    device: Ints
    target: Ints
    """Device that receives a transfer."""
    start: Ints
    end: Ints
    pair: Ints

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline of the schedule."""
        return self.expected.pipeline

    def take(self, keep: Bools | Ints) -> Rows:
        """Pick rows, by a mask or by row numbers."""
        if keep.dtype == np.bool_ and keep.all():
            return self
        return Rows(self.expected, *(getattr(self, name)[keep] for name in _COLUMNS))

    # Names of operations

    def op(self, row: int) -> Op:
        """The operation of a compute row whose numbers exist in the pipeline."""
        fields = (self.stage[row], self.microbatch[row], self.slice[row])
        return Op(OpKind(int(self.kind[row])), *map(int, fields))

    def ops(self, row: int) -> tuple[Op, ...]:
        """The operation of a row; empty unless it is compute of a microbatch."""
        return (self.op(row),) if self.computes[row] else ()

    def name(self, row: int) -> str:
        """Name of the operation of a row whose numbers exist in the pipeline."""
        kind, stage, slice_index = int(self.kind[row]), self.stage[row], self.slice[row]
        name, microbatch = NAMES[kind], self.microbatch[row]
        if self.computes[row] or self.sends[row]:
            return f"{stage}{name}{microbatch}" + (f"s{slice_index}" if slice_index else "")
        if kind == AuxiliaryKind.OPTIMIZER:
            return f"{name} of device {self.device[row]}"
        if kind not in OF_STEP:
            sliced = f", slice {slice_index}" if self.pipeline.num_slices > 1 else ""
            return f"{name} of stage {stage}, microbatch {microbatch}{sliced}"
        on_route = f" on route {self.route[row]}" if self.pipeline.routes > 1 else ""
        return f"{name} of stage {stage}{on_route}"

    def span(self, row: int) -> str:
        """Name, devices and times of such a row."""
        times = f"at {self.clock(self.start[row])}..{self.clock(self.end[row])}"
        if self.sends[row]:
            ends = f"from device {self.device[row]} to {self.target[row]}"
            return f"{self.name(row)} {ends} {times}"
        where = f" on device {self.device[row]}" if self.computes[row] else ""
        return f"{self.name(row)} {times}{where}"

    def start_text(self, row: int) -> str:
        """Text with the start and the device of a row."""
        return f"at {self.clock(self.start[row])} on device {self.device[row]}"

    def clock(self, ticks: int | np.int64) -> str:
        """Write a time with the user's unit."""
        return self.pipeline.time_text(int(ticks))

    def amount(self, ticks: int | np.int64) -> str:
        """Write an amount of memory with the user's unit."""
        return self.pipeline.memory_text(int(ticks))

    # Properties of rows

    @cached_property
    def computes(self) -> Bools:
        """Whether a row is compute of a microbatch."""
        return _within(self.kind, NUM_KINDS)

    @cached_property
    def sends(self) -> Bools:
        """Whether a row is a transfer."""
        return (self.kind >= min(TransferKind)) & (self.kind <= max(TransferKind))

    @cached_property
    def within(self) -> Bools:
        """Whether kind, stage, microbatch, slice and route exist in the pipeline."""
        pipeline = self.pipeline
        is_step_operation = np.isin(self.kind, OF_STEP)
        each = _within(self.microbatch, pipeline.batches) & _within(self.slice, pipeline.num_slices)
        each &= self.route == self.microbatch // self.expected.share
        of_step = (
            (self.microbatch == NO_MICROBATCH)
            & (self.slice == 0)
            & _within(self.route, pipeline.routes)
        )
        fine = np.where(is_step_operation, of_step, each) & (
            self.sends | (self.target == self.device)
        )
        fine &= _within(self.kind, KINDS) & _within(self.stage, pipeline.num_stages)
        return np.asarray(fine)

    @cached_property
    def home(self) -> Ints:
        """Device of the stage; for rows whose numbers exist in the pipeline."""
        return np.asarray(self.expected.hosts[self.route, self.stage])

    @cached_property
    def cell(self) -> Ints:
        """Cell of the operation (`Expected`); for rows of kinds that the pipeline has."""
        lane = self.expected.lane(self.microbatch)
        position = self.stage
        if not self.computes.all():
            lane = np.where(self.microbatch == NO_MICROBATCH, self.route, lane)
            optimizer = self.kind == AuxiliaryKind.OPTIMIZER
            position = np.where(optimizer, self.device, position)
            lane = np.where(optimizer, 0, lane)
        return self.expected.cell(self.kind, position, lane, self.slice)

    @cached_property
    def named(self) -> Bools:
        """Whether the pipeline has the operation; if not compute, also on this device."""
        expected = self.expected
        known = self.within & np.isin(self.kind, sorted(expected.kinds))
        rows = self.take(known)
        on_device = rows.computes | (rows.device == rows.home)
        if rows.sends.any():
            way = np.where(rows.kind == TransferKind.SEND_F, 1, -1)
            receiver = np.clip(rows.stage + way, 0, self.pipeline.num_stages - 1)
            on_device &= ~rows.sends | (rows.target == expected.hosts[rows.route, receiver])
        rows = rows.take(on_device)
        mask = np.zeros(len(self), dtype=np.bool_)
        mask[np.flatnonzero(known)[on_device]] = expected.exists[rows.cell]
        return mask

    @cached_property
    def placed(self) -> Bools:
        """Whether the device exists, per row."""
        return _within(self.device, self.pipeline.num_devices)

    @cached_property
    def timed(self) -> Bools:
        """Whether start and end are within the exact range, per row."""
        fine = (self.start >= -LATEST) & (self.start <= LATEST)
        return np.asarray(fine & (self.end >= -LATEST) & (self.end <= LATEST))

    @cached_property
    def sane(self) -> Rows:
        """The rows that occupy a resource: named, placed, timed, not ending before they start."""
        return self.take(self.named & self.placed & self.timed & (self.start <= self.end))

    @cached_property
    def starts(self) -> Ints:
        """Start per row, shape [n + 1]; _NEVER, which breaks no rule, if not timed or ABSENT."""
        return np.append(np.where(self.timed, self.start, _NEVER), _NEVER)

    @cached_property
    def ends(self) -> Ints:
        """End per row, shape [n + 1]; -_NEVER, which breaks no rule, if not timed or ABSENT."""
        return np.append(np.where(self.timed, self.end, -_NEVER), -_NEVER)

    @cached_property
    def resource(self) -> Ints:
        """Resource number of every row, a resource runs one operation at a time; for named rows.

        Compute and optimizers run on devices. Transfers run on links, directed or not; if they
        block, they run on the device that sends, and on their target too. Collectives of a device
        run on its queue. A device and its host have one link each way, or one in all.
        """
        if self.computes.all():
            return self.device
        pipeline, devices = self.pipeline, self.pipeline.num_devices
        ends = self.device, self.target
        if pipeline.link_mode is not LinkMode.EXCLUSIVE:
            ends = np.minimum(*ends), np.maximum(*ends)
        back = (self.kind == AuxiliaryKind.RELOAD) & (pipeline.host_link is not HostLink.SHARED)
        link = (4 + ends[0]) * devices + ends[1]
        blocks = pipeline.link_mode is LinkMode.BLOCKING
        resource = np.where(self.sends & (not blocks), link, self.device)
        resource += np.where(np.isin(self.kind, COLLECTIVES), devices, 0)
        return resource + np.where(np.isin(self.kind, MOVES), (2 + back) * devices, 0)

    @property
    def blocking(self) -> Bools:
        """Whether a row is a transfer that also occupies the compute of its target."""
        return self.sends & (self.pipeline.link_mode is LinkMode.BLOCKING)

    @cached_property
    def first(self) -> Ints:
        """First row of every cell, or ABSENT; for named rows only."""
        first = np.full(len(self.expected.exists), ABSENT, dtype=np.int64)
        first[self.cell[::-1]] = np.arange(len(self) - 1, -1, -1)
        return first

    def index(self, kind: int) -> Ints:
        """Row of every operation of a kind, shape [position, lane, slice]; for named rows only."""
        return np.asarray(self.expected.view(self.first, kind))

    @cached_property
    def backward(self) -> Ints:
        """Row of B or BW, shape [stage, lane, slice]; if both run, others wait for B."""
        split, whole = map(self.index, (OpKind.B, OpKind.BW))
        return np.where(split != ABSENT, split, whole)

    @cached_property
    def partner(self) -> Ints:
        """Row that shares this row's pair number, for named rows only.

        ABSENT if none does, if several do, or if the two are not an F and a B or BW of
        different microbatches.
        """
        partner = np.full(len(self), ABSENT, dtype=np.int64)
        rows = np.flatnonzero(self.pair != ALONE)
        rows = rows[np.lexsort((self.kind[rows], self.pair[rows]))]
        _, first, count = np.unique(self.pair[rows], return_index=True, return_counts=True)
        forward, backward = (rows[first[count == 2] + offset] for offset in (0, 1))
        whole = (self.kind[backward] == OpKind.B) | (self.kind[backward] == OpKind.BW)
        apart = self.microbatch[forward] != self.microbatch[backward]
        right = (self.kind[forward] == OpKind.F) & whole & apart
        partner[forward[right]], partner[backward[right]] = backward[right], forward[right]
        return partner

    @cached_property
    def joined(self) -> Bools:
        """Whether a row runs as one with its partner: on one device, from one start to one end."""
        partner = self.partner
        same: Bools = np.asarray(partner != ABSENT)
        for column in (self.device, self.start, self.end):
            same &= column == column[partner]
        return same

    @cached_property
    def counted(self) -> Bools:
        """Whether the busy time of a row counts: in a pair, only that of the first row."""
        return np.asarray(~self.joined | (np.arange(len(self)) < self.partner))


def read(schedule: Timetable, costs: Costs | None = None) -> Rows:
    """Read a schedule's columns, whose rows may come in any order.

    `costs`: those of the pipeline, or others in their place.

    Raises InputError if they are not columns of whole numbers of one length.
    """
    check_type("schedule", schedule, Timetable)
    columns = [_column(schedule, name) for name in _COLUMNS]
    if len({len(column) for column in columns}) > 1:
        raise InputError("schedule: columns differ in length; give one entry per operation")
    rows = Rows(Expected(schedule.pipeline, columns[2], costs=costs), *columns)
    if _sorted(rows):
        return rows
    names = (rows.target, rows.route, rows.slice, rows.microbatch, rows.stage, rows.kind)
    return rows.take(np.lexsort((*names, rows.end, rows.start, rows.device)))


def required(
    pipeline: Pipeline, microbatches: Ints | None = None, costs: Costs | None = None
) -> Rows:
    """What a step must run, one row per cell that exists, in their order.

    Both modes of every backward have rows. `microbatches` are the first ones of every route;
    default: all. `costs` as in `read`.
    """
    lanes = np.arange(pipeline.batches) if microbatches is None else microbatches
    expected = Expected(pipeline, lanes, 0, costs)
    return of_cells(expected, np.flatnonzero(expected.exists))


def of_cells(expected: Expected, cells: Ints) -> Rows:
    """One row per cell; each runs alone, from 0 on."""
    pipeline = expected.pipeline
    kind, position, lane, slice_index = expected.positions(cells)
    once, optimizer = np.isin(kind, OF_STEP), kind == AuxiliaryKind.OPTIMIZER
    lowest = np.array([np.argwhere(expected.hosts == d)[0] for d in range(pipeline.num_devices)])
    route = np.where(once, lane, expected.lanes[np.where(once, 0, lane)] // expected.share)
    route[optimizer], stage = lowest[position[optimizer], 0], position.copy()
    stage[optimizer] = lowest[position[optimizer], 1]
    way = np.select([kind == TransferKind.SEND_F, kind == TransferKind.SEND_B], [1, -1])
    microbatch = np.where(once, NO_MICROBATCH, expected.lanes[np.where(once, 0, lane)])
    device, target = (expected.hosts[route, stage + step] for step in (0, way))
    none = np.zeros_like(kind)
    return Rows(
        *(expected, kind, stage, microbatch, slice_index, route, device, target),
        *(none, expected.ticks[cells], np.full_like(kind, ALONE)),
    )


def _column(schedule: Timetable, name: str) -> Ints:
    column: npt.NDArray[Any] = np.asarray(getattr(schedule.operations, name))
    if column.ndim != 1 or not np.can_cast(column.dtype, np.int64):
        raise InputError(f"schedule: column {name} is not a list of whole numbers (int64)")
    return column.astype(np.int64, copy=False)


def _sorted(rows: Rows) -> bool:
    device, start, end = rows.device, rows.start, rows.end
    later_end = end[1:] > end[:-1]
    later = (start[1:] > start[:-1]) | ((start[1:] == start[:-1]) & later_end)
    return bool(((device[1:] > device[:-1]) | ((device[1:] == device[:-1]) & later)).all())


def _within(column: Ints, size: int) -> Bools:
    return np.asarray((column >= 0) & (column < size))


def first_of_device(device: Ints) -> Ints:
    """Indices at which a new device begins in a sorted column of devices."""
    return np.flatnonzero(np.diff(device, prepend=np.int64(ABSENT)))


def sum_safe(values: Ints) -> npt.NDArray[Any]:
    """Convert integers whose sums could exceed int64 to Python integers."""
    if len(values) * int(np.abs(values).max(initial=0)) < _NEVER:
        return values
    return values.astype(object)
