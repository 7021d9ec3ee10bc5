"""A schedule as the verifier reads it: untrusted rows, made safe to compute with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import islice, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from ppopt.errors import InputError
from ppopt.problem.operation import KINDS, NUM_KINDS, Op, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.operations import ALONE
from ppopt.schedule.timetable import Timetable

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

LATEST = 2**53
"""Largest time in ticks, either sign, that is computed with: beyond it floats are not exact."""
ABSENT = -1
"""Row number of an operation that the schedule does not have."""
_NEVER = 2**62
_FIELDS = ("kind", "stage", "microbatch", "device", "start", "end", "slice", "pair")


@dataclass(frozen=True, eq=False)
class Rows:
    """Operations of a schedule, sorted by device, start, end; columns of one length n."""

    pipeline: Pipeline
    kind: Ints
    stage: Ints
    microbatch: Ints
    device: Ints
    start: Ints
    end: Ints
    slice: Ints
    pair: Ints

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, keep: Bools | Ints) -> Rows:
        """Pick rows, by a mask or by row numbers."""
        if keep.dtype == np.bool_ and keep.all():
            return self
        return Rows(self.pipeline, *(getattr(self, field)[keep] for field in _FIELDS))

    def op(self, row: int) -> Op:
        """Name the operation of a row whose numbers are those of the pipeline."""
        fields = (self.stage[row], self.microbatch[row], self.slice[row])
        return Op(OpKind(int(self.kind[row])), *map(int, fields))

    @cached_property
    def within(self) -> Bools:
        """Whether kind, stage, microbatch and slice are numbers of the pipeline, per row."""
        return (
            _within(self.kind, 0, NUM_KINDS - 1)
            & _within(self.stage, 0, self.pipeline.num_stages - 1)
            & _within(self.microbatch, 0, self.pipeline.batches - 1)
            & _within(self.slice, 0, self.pipeline.num_slices - 1)
        )

    @cached_property
    def named(self) -> Bools:
        """Whether the pipeline has the operation, per row."""
        kind, stage = (np.where(self.within, column, 0) for column in (self.kind, self.stage))
        return np.asarray(self.within & existing_kinds(self.pipeline)[kind, stage])

    @cached_property
    def placed(self) -> Bools:
        """Whether the device exists, per row."""
        return _within(self.device, 0, self.pipeline.num_devices - 1)

    @cached_property
    def timed(self) -> Bools:
        """Whether start and end can be computed with, per row."""
        return _within(self.start, -LATEST, LATEST) & _within(self.end, -LATEST, LATEST)

    @cached_property
    def sane(self) -> Rows:
        """The rows that occupy a device: named, placed, timed, and not ending before they start."""
        return self.take(self.named & self.placed & self.timed & (self.start <= self.end))

    @cached_property
    def starts(self) -> Ints:
        """Start per row, shape [n + 1]; _NEVER, which breaks no rule, where not timed or ABSENT."""
        return np.append(np.where(self.timed, self.start, _NEVER), _NEVER)

    @cached_property
    def ends(self) -> Ints:
        """End per row, shape [n + 1]; -_NEVER, which breaks no rule, where not timed or ABSENT."""
        return np.append(np.where(self.timed, self.end, -_NEVER), -_NEVER)

    @cached_property
    def present(self) -> Ints:
        """The microbatches that have any operation, ascending; for named rows only."""
        seen = np.zeros(self.pipeline.batches, dtype=np.bool_)
        seen[self.microbatch] = True
        return np.flatnonzero(seen)

    @cached_property
    def slot(self) -> Ints:
        """Place of each row's microbatch among those that are present; for named rows only."""
        if len(self.present) == self.pipeline.batches:
            return self.microbatch
        return np.searchsorted(self.present, self.microbatch)

    @cached_property
    def cell(self) -> Ints:
        """Place of each row's operation in the flattened `index`; for named rows only."""
        stage = self.kind * self.pipeline.num_stages + self.stage
        place = stage * len(self.present) + self.slot
        return np.asarray(place * self.pipeline.num_slices + self.slice)

    @cached_property
    def index(self) -> Ints:
        """Row of each operation, shape [kind, stage, microbatch, slice], for named rows only.

        Only the microbatches that are present have a place: the size follows from the rows, not
        from how many microbatches the pipeline claims. ABSENT if there is no row; the first
        one if there are several.
        """
        pipeline = self.pipeline
        shape = (NUM_KINDS, pipeline.num_stages, len(self.present), pipeline.num_slices)
        index = np.full(shape, ABSENT, dtype=np.int64)
        index.reshape(-1)[self.cell[::-1]] = np.arange(len(self) - 1, -1, -1)
        return index

    @cached_property
    def partner(self) -> Ints:
        """Row that shares this row's pair number, for named rows only.

        ABSENT if none does, if several do, or if the two are not an F and a B or BW of
        different microbatches.
        """
        found = np.full(len(self), ABSENT, dtype=np.int64)
        rows = np.flatnonzero(self.pair != ALONE)
        rows = rows[np.lexsort((self.kind[rows], self.pair[rows]))]
        _, first, count = np.unique(self.pair[rows], return_index=True, return_counts=True)
        one, other = (rows[first[count == 2] + place] for place in (0, 1))
        whole = (self.kind[other] == OpKind.B) | (self.kind[other] == OpKind.BW)
        apart = self.microbatch[one] != self.microbatch[other]
        right = (self.kind[one] == OpKind.F) & whole & apart
        found[one[right]], found[other[right]] = other[right], one[right]
        return found

    @cached_property
    def joined(self) -> Bools:
        """Whether a row runs as one with its partner: on one device, from one start to one end."""
        other = self.partner
        same: Bools = np.asarray(other != ABSENT)
        for column in (self.device, self.start, self.end):
            same &= column == column[other]
        return same

    @cached_property
    def counted(self) -> Bools:
        """Whether the busy time of a row counts: of a pair, only that of the first row."""
        return np.asarray(~self.joined | (np.arange(len(self)) < self.partner))

    def clock(self, ticks: int | np.int64) -> str:
        """Write a time with the user's unit."""
        return self.pipeline.time_text(int(ticks))

    def amount(self, ticks: int | np.int64) -> str:
        """Write an amount of memory with the user's unit."""
        return self.pipeline.memory_text(int(ticks))


def read(schedule: Timetable) -> Rows:
    """Read the compute of microbatches, in whatever order its rows come.

    What has no known kind is read as compute. Raises as `columns` does.
    """
    given = columns(schedule)
    here = (given["kind"] < NUM_KINDS) | (given["kind"] >= KINDS)
    rows = Rows(schedule.pipeline, *(given[field][here] for field in _FIELDS))
    if _sorted(rows):
        return rows
    named = (rows.slice, rows.microbatch, rows.stage, rows.kind)
    return rows.take(np.lexsort((*named, rows.end, rows.start, rows.device)))


def columns(schedule: Timetable) -> dict[str, Ints]:
    """The columns of all operations, in whatever order.

    Raises InputError if they are not columns of whole numbers of one length.
    """
    found = {field: _column(schedule, field) for field in (*_FIELDS, "route", "target")}
    if len({len(column) for column in found.values()}) > 1:
        raise InputError("schedule: columns differ in length; give one entry per operation")
    return found


def _column(schedule: Timetable, field: str) -> Ints:
    column: npt.NDArray[Any] = np.asarray(getattr(schedule.operations, field))
    if column.ndim != 1 or not np.can_cast(column.dtype, np.int64):
        raise InputError(f"schedule: column {field} is not a list of whole numbers (int64)")
    return column.astype(np.int64, copy=False)


def _sorted(rows: Rows) -> bool:
    device, start, end = rows.device, rows.start, rows.end
    later_end = end[1:] > end[:-1]
    later = (start[1:] > start[:-1]) | ((start[1:] == start[:-1]) & later_end)
    return bool(((device[1:] > device[:-1]) | ((device[1:] == device[:-1]) & later)).all())


def _within(column: Ints, low: int, high: int) -> Bools:
    return np.asarray((column >= low) & (column <= high))


def first_of_device(device: Ints) -> Ints:
    """Places where a new device begins in a sorted column of devices."""
    return np.flatnonzero(np.diff(device, prepend=np.int64(ABSENT)))


def scaled(ticks: Ints, factors: Fraction | Sequence[Fraction]) -> Ints:
    """Ticks times a factor, or each times its own: whole numbers, as the ticks are fine enough."""
    each = repeat(factors) if isinstance(factors, Fraction) else factors
    products = [whole(tick * factor) for tick, factor in zip(ticks.tolist(), each, strict=False)]
    return np.array(products, dtype=np.int64)


def whole(ticks: Fraction) -> int:
    """Whole ticks, as the pipeline's are fine enough."""
    assert ticks.denominator == 1, f"{ticks} ticks are not whole"
    return ticks.numerator


def sum_safe(values: Ints) -> npt.NDArray[Any]:
    """Turn integers whose sums could pass int64 into Python's own."""
    if len(values) * int(np.abs(values).max(initial=0)) < _NEVER:
        return values
    return values.astype(object)


class Places:
    """Where the operations of some microbatches belong, as arrays."""

    def __init__(self, pipeline: Pipeline, microbatches: Ints) -> None:
        route = microbatches // (pipeline.batches // pipeline.routes)
        hosts = np.array(pipeline.hosts, dtype=np.int64)[route].T
        boundary = np.arange(len(hosts) - 1)[:, None]
        here, following = hosts[:-1], hosts[1:]
        there, back = _given(pipeline)
        down = _delays(pipeline, there, boundary, here, following)
        up = _delays(pipeline, back, boundary, following, here)
        self.host: Ints = hosts
        """Device, shape [stage, microbatch]: each route takes an equal run of microbatches."""
        self.forward: Ints = down[..., None]
        """Ticks from stage s to s + 1, shape [stages - 1, microbatch, 1]."""
        self.backward: Ints = up[..., None]
        """Ticks from stage s + 1 to s, shape [stages - 1, microbatch, 1]."""


def frozen_stages(pipeline: Pipeline) -> list[bool]:
    """Whether nothing in a stage is trained, per stage; of an empty stage, nothing before it."""
    if pipeline.model is None:
        return list(pipeline.frozen or (False,) * pipeline.num_stages)
    layers, found, none_before = iter(pipeline.model.layers), [], True
    for count in pipeline.counts:
        own = [layer.frozen for layer in islice(layers, count)]
        found.append(all(own) if own else none_before)
        none_before &= all(own)
    return found


def existing_kinds(pipeline: Pipeline) -> Bools:
    """Whether a stage runs operations of a kind, shape [kind, stage].

    A frozen stage has no gradients of weights, so no W. If all stages before it are frozen, too, no
    gradient goes there, so it has no backward.
    """
    frozen = np.array(frozen_stages(pipeline))
    table = np.ones((NUM_KINDS, len(frozen)), dtype=np.bool_)
    table[OpKind.W] = ~frozen
    table[[OpKind.B, OpKind.BW]] = ~np.logical_and.accumulate(frozen)
    return table


def _given(pipeline: Pipeline) -> tuple[Any, Any]:
    """Delays on the way there and back, as `_delays` takes them.

    Of links by size, after a stage: latency + output of its last layer / bandwidth; of a slice, its
    part of the output. The way back has the same sizes.
    """
    there, link = pipeline.p2p, pipeline.link
    back = there if pipeline.backward_p2p is None else pipeline.backward_p2p
    if link is None:
        return there, back
    last = np.cumsum(pipeline.counts)[:-1] - 1
    sizes = [pipeline.model.layers[layer].output / pipeline.num_slices for layer in last]
    there = tuple(link.latency + size / link.bandwidth for size in sizes)
    if pipeline.backward_p2p is None:
        return there, there
    if link.backward is not None:
        way = link.backward
        back = tuple(way.latency + size / way.bandwidth for size in sizes)
    return there, back


def _delays(pipeline: Pipeline, given: Any, boundary: Ints, source: Ints, target: Ints) -> Ints:
    """Ticks over boundaries between stages, from source to target devices; 0 on one device.

    `given` is one number, one per boundary, or a matrix [from device][to device].
    """
    ticks = np.vectorize(lambda time: int(time * pipeline.ticks.per_unit), otypes=[np.int64])
    table = ticks(np.array(given, dtype=object)) if source.size else np.zeros(0, dtype=np.int64)
    if not source.size:
        found = np.zeros(source.shape, dtype=np.int64)
    elif table.ndim == 2:
        found = table[source, target]
    else:
        found = np.broadcast_to(table if table.ndim == 0 else table[boundary], source.shape)
    return np.where(source == target, 0, found)
