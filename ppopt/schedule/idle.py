"""Causes of idle time: every idle interval of a schedule, split by cause.

Between two operations of a device, the cause at an instant is the first of these that holds:

    memory      the next operation waits for data; other operations of the device have all their
                inputs, but none fits the memory limit: only the limit keeps the device idle
    input       the next operation waits for one that has not ended
    link        the input of the next operation is in transfer from another device
    collective  the weights of the next operation are not gathered yet
    host        its activation is not back from the host yet
    order       the next operation could start: the schedule itself waits

Before its first operation a device is in warm-up, after its last in cool-down. After its last
compute it waits for gradients (collective) until its optimizer may start, or until its last
gradient sync ends. An optimizer is busy time. The intervals of a device add up to its idle time,
makespan minus busy time.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.exact import plain, ratio
from ppopt.problem.kinds import ResourceKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.resources import resources_of
from ppopt.schedule.metrics import Memory, memory_of
from ppopt.schedule.operations import Operations
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.waits import FREE, Waits, waits

_NEVER = 2**62


class Cause(IntEnum):
    """Cause of idle time; the integer is its code in arrays, `label` its name in files."""

    WARM_UP = 0
    INPUT = 1
    LINK = 2
    MEMORY = 3
    ORDER = 4
    COOL_DOWN = 5
    COLLECTIVE = 6
    HOST = 7

    @property
    def label(self) -> str:
        """Name in JSON and on pages: `warm-up`, `input`, ..."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def of(cls, pipeline: Pipeline) -> list[Cause]:
        """The causes that a pipeline can have."""
        kinds = {resource.kind for resource in resources_of(pipeline, pipeline.traits)}
        none = {cause for kind, cause in BESIDES.items() if kind not in kinds}
        return [cause for cause in cls if cause not in none]


class Idle(NamedTuple):
    """Idle intervals, one cause each, sorted by device, then start; times in ticks."""

    device: Ints
    start: Ints
    end: Ints
    cause: Ints
    """Codes of Cause."""
    following: Ints
    """Row of the schedule that the device runs next; FREE after its last compute."""
    subject: Ints
    """Row of the operation that the cause names: the one waited for, or the ready one that does not
    fit (memory); FREE if there is none, or if it is no compute of a microbatch."""


class Arrivals(NamedTuple):
    """When the inputs of every operation arrive, in ticks; 0: it has none."""

    sent: Ints
    """End of the last operation that it waits for."""
    ready: Ints
    """The same with the time between devices: then only device and memory are missing."""
    needed: Ints
    """Row of the operation that arrives last; FREE: none."""
    awaited: Ints
    """Row of the operation that ends last; FREE: none. If links differ, another may arrive later.
    """
    besides: dict[Cause, Ints]
    """By cause, the end of what it waits for on other resources of its device, or 0."""

    @property
    def complete(self) -> Ints:
        """When all of it has arrived."""
        return np.asarray(np.maximum.reduce([self.ready, *self.besides.values()]))


BESIDES = {ResourceKind.COLLECTIVE: Cause.COLLECTIVE, ResourceKind.HOST: Cause.HOST}
"""Resource of a device -> cause of the time that its compute waits for it."""


def arrivals(schedule: Schedule, flow: Waits | None = None) -> Arrivals:
    """Arrival of the inputs of every operation of a complete schedule.

    `flow` is `waits(schedule)`, if it is known.
    """
    flow = flow or waits(schedule)
    table, data = schedule.operations, flow.data
    # a pair waits for what either of its operations waits for
    second = np.flatnonzero(schedule.seconds)
    stands_for = np.arange(len(schedule))
    stands_for[second] = second - 1
    before, after = flow.makers[data], stands_for[flow.compute_row[flow.after[data]]]
    arrival = table.end[flow.before[data]] + flow.lag[data]
    sent, ready = np.zeros((2, len(schedule)), dtype=np.int64)
    needed, awaited = np.full((2, len(schedule)), FREE)
    np.maximum.at(sent, after, schedule.end[before])
    np.maximum.at(ready, after, arrival)
    for row_of, last in (
        (needed, arrival == ready[after]),
        (awaited, schedule.end[before] == sent[after]),
    ):
        row_of[after[last]] = before[last]
    besides = {
        cause: np.zeros(len(schedule), dtype=np.int64)
        for cause in Cause.of(schedule.pipeline)
        if cause in BESIDES.values()
    }
    for kind, cause in BESIDES.items():
        if cause in besides:
            edges = table.on(kind)[flow.before] & (flow.compute_row[flow.after] != FREE)
            rows = stands_for[flow.compute_row[flow.after[edges]]]
            np.maximum.at(besides[cause], rows, table.end[flow.before[edges]])
    for column in (sent, ready, needed, awaited, *besides.values()):
        column[second] = column[second - 1]
    return Arrivals(sent, ready, needed, awaited, besides)


def idle(schedule: Schedule, flow: Waits | None = None) -> Idle:
    """Split all idle time of a complete schedule, from 0 to the makespan, by cause.

    `flow` is `waits(schedule)`, if it is known.
    """
    flow = flow or waits(schedule)
    arrived, last = arrivals(schedule, flow), _last(schedule)
    devices = np.arange(schedule.pipeline.num_devices + 1)
    bounds = np.searchsorted(schedule.device, devices).tolist()
    memory = memory_of(schedule.compute), memory_of(schedule.operations)
    rest = _Rest.of(schedule.operations)
    tables = [
        _of_device(flow, arrived, memory, rest, device, low, high, last)
        for device, (low, high) in enumerate(pairwise(bounds))
    ]
    return Idle(*np.concatenate(tables, axis=1))


class _Rest(NamedTuple):
    """Operations that are not compute of microbatches."""

    rows: Ints
    """Their rows of the table of all operations."""
    operations: Operations

    @classmethod
    def of(cls, operations: Operations) -> _Rest:
        """Those of a table."""
        rows = np.flatnonzero(~operations.computed)
        return cls(rows, operations.where(rows))

    def on(self, device: int, *kinds: ResourceKind) -> Ints:
        """Rows of those of a device that run on resources of these kinds."""
        own: Ints = self.rows[(self.operations.device == device) & self.operations.on(*kinds)]
        return own


def _last(schedule: Schedule) -> int:
    """The makespan, in ticks."""
    return int(schedule.operations.end.max(initial=0))


def totals(intervals: Idle, devices: int) -> Ints:
    """Ticks of idle time, [device, cause]."""
    table = np.zeros((devices, len(Cause)), dtype=np.int64)
    np.add.at(table, (intervals.device, intervals.cause), intervals.end - intervals.start)
    return table


def by_cause(schedule: Schedule) -> dict[str, list[int | float]]:
    """Idle time by label of the cause: one number per device, in the user's unit of time."""
    table = totals(idle(schedule), schedule.pipeline.num_devices).tolist()
    unit = schedule.pipeline.ticks.time
    causes = Cause.of(schedule.pipeline)
    return {cause.label: [plain(unit(row[cause])) for row in table] for cause in causes}


def share(schedule: Schedule) -> dict[str, int | float]:
    """Idle time by label of the cause, all devices together, as a share of devices x makespan."""
    table = totals(idle(schedule), schedule.pipeline.num_devices).sum(axis=0).tolist()
    total = schedule.pipeline.num_devices * _last(schedule)
    causes = Cause.of(schedule.pipeline)
    return {cause.label: ratio(table[cause], total) for cause in causes}


def _of_device(
    flow: Waits,
    arrived: Arrivals,
    memory: tuple[Memory, Memory],
    rest: _Rest,
    device: int,
    low: int,
    high: int,
    last: int,
) -> Ints:
    """Columns of Idle of one device, whose operations are the rows low to high.

    `memory` is what compute allocates and frees, and what all operations do.
    """
    schedule, (compute, amounts) = flow.schedule, memory
    ended = np.maximum.accumulate(np.append(0, schedule.end[low:high]))
    before = np.flatnonzero(schedule.start[low:high] > ended[:-1])
    gaps = np.stack([ended[before], schedule.start[low + before], low + before])
    own = rest.on(device, *BESIDES)
    gaps, gathered = _gaps_with_memory(schedule.operations, amounts, own, gaps)
    blocked = _blocked(schedule, arrived, compute, device, slice(low, high), gaps, gathered)
    table = _cut(gaps, arrived, blocked)
    warm_up = table[3] == low
    table[2, warm_up], table[4, warm_up] = Cause.WARM_UP, arrived.needed[low]
    table = _joined(table)
    ends = _after(flow, rest, device, int(ended[-1]), last)
    after = [row for row in ends if row[1] > row[0]]
    if after:
        columns = np.array([[*row, FREE, FREE] for row in after]).T
        table = np.column_stack([table, columns])
    return np.vstack([np.full(table.shape[1], device), table])


def _gaps_with_memory(
    table: Operations, amounts: Memory, own: Ints, gaps: Ints
) -> tuple[Ints, Ints]:
    """The gaps, split where other resources of the device change memory, and that memory.

    `amounts` is what all operations allocate and free; `own` are the rows of those resources.
    """
    if not len(own):
        return gaps, np.zeros(gaps.shape[1], dtype=np.int64)
    allocated, freed = (column[own] for column in amounts)
    time = np.concatenate([table.start[own], table.end[own]])
    change = np.concatenate([allocated, -freed])
    order = np.argsort(time, kind="stable")
    time, level = time[order], np.append(0, np.cumsum(change[order]))
    pieces = [
        (*edges, following)
        for start, end, following in gaps.T.tolist()
        for edges in pairwise([start, *sorted({*time[(start < time) & (time < end)]}), end])
    ]
    cut = np.array(pieces, dtype=np.int64).reshape(-1, 3).T
    return cut, level[np.searchsorted(time, cut[0], side="right")]


def _after(
    flow: Waits, rest: _Rest, device: int, ended: int, last: int
) -> Iterator[tuple[int, int, Cause]]:
    """Idle intervals after the last compute of microbatches of a device, some of them empty."""
    table, own = flow.schedule.operations, rest.on(device, ResourceKind.COMPUTE)
    if not len(own):
        queued = rest.on(device, ResourceKind.COLLECTIVE)
        synced = int(table.end[queued].max(initial=ended))
        yield ended, synced, Cause.COLLECTIVE
        yield synced, last, Cause.COOL_DOWN
        return
    start, end = int(table.start[own[0]]), int(table.end[own[0]])
    awaited = flow.before[flow.after == own[0]]
    ready = min(start, int(table.end[awaited].max(initial=ended)))
    yield ended, ready, Cause.COLLECTIVE
    yield ready, start, Cause.ORDER
    yield end, last, Cause.COOL_DOWN


class _Window(NamedTuple):
    """When only memory keeps operations of a device from its idle intervals; one entry each."""

    opens: Ints
    """From when some operation is ready that does not fit."""
    closes: Ints
    """From when some operation is ready that fits."""
    row: Ints
    """The operation that does not fit."""


def _blocked(
    schedule: Schedule,
    arrived: Arrivals,
    compute: Memory,
    device: int,
    rows: slice,
    gaps: Ints,
    gathered: Ints,
) -> _Window:
    """The window of each gap of a device, whose operations are `rows`.

    Only operations that the device has not run count. While a device is idle the memory of its
    compute does not change; that of its `gathered` weights is constant in each gap. Operations are
    grouped by the memory that they allocate; the first of a group to be ready, from each position
    on, is a running minimum from the end.
    """
    low, before = rows.start, gaps[2] - rows.start
    ready = arrived.complete[rows]
    opens, closes, row = np.full((3, len(before)), _NEVER)
    limit = schedule.pipeline.ticks.headroom(device)
    if limit is None:
        return _Window(opens, closes, row)
    allocated, freed = (column[rows] for column in compute)
    instants = schedule.start[rows] == schedule.end[rows]
    both = np.where(instants, np.minimum(allocated, freed), 0)
    allocated, freed = allocated - both, freed - both
    headroom = limit - np.append(0, np.cumsum(allocated - freed))[before] - gathered
    second = np.flatnonzero(schedule.seconds[rows])
    allocated[second] += allocated[second - 1]
    allocated[second - 1] = allocated[second]
    for amount in sorted(set(allocated.tolist())):
        first, index = _min_from(np.where(allocated == amount, ready, _NEVER))
        fits = (headroom >= amount) | (amount == 0)
        closes = np.where(fits, np.minimum(closes, first[before]), closes)
        sooner = ~fits & (first[before] < opens)
        opens = np.where(sooner, first[before], opens)
        row = np.where(sooner, low + index[before], row)
    return _Window(opens, closes, row)


def _min_from(values: Ints) -> tuple[Ints, Ints]:
    """Minimum value from every position on, and the first position that has it."""
    minimum = np.minimum.accumulate(values[::-1])[::-1]
    spot = np.where(values == minimum, np.arange(len(values)), len(values))
    return minimum, np.minimum.accumulate(spot[::-1])[::-1]


def _cut(gaps: Ints, arrived: Arrivals, window: _Window) -> Ints:
    """Split gaps (start, end, following) where their cause changes; columns of Idle."""
    start, end, following = gaps
    sent, ready = arrived.sent[following], arrived.ready[following]
    besides = {cause: ends[following] for cause, ends in arrived.besides.items()}
    closes = np.minimum(window.closes, arrived.complete[following])
    edges = [start, sent, ready, *besides.values(), window.opens, closes, end]
    cuts = np.sort(np.clip(edges, start, end), axis=0)
    left, right = cuts[:-1], cuts[1:]
    blocked = (window.opens <= left) & (left < closes)
    causes = [Cause.MEMORY, Cause.INPUT, Cause.LINK, *besides]
    cases = [blocked, left < sent, left < ready, *(left < ends for ends in besides.values())]
    cause = np.select(cases, causes, Cause.ORDER)
    named = [arrived.awaited[following], arrived.needed[following]]
    waited = np.select([cause == Cause.INPUT, cause == Cause.LINK], named, FREE)
    subject = np.where(blocked, window.row, waited)
    columns = (left, right, cause, np.broadcast_to(following, left.shape), subject)
    table = np.stack([column.T.ravel() for column in columns])
    return table[:, table[1] > table[0]]


def _joined(table: Ints) -> Ints:
    """Join neighbours of one cause in front of one operation."""
    new = np.ones(table.shape[1], dtype=bool)
    new[1:] = (table[2:4, 1:] != table[2:4, :-1]).any(axis=0)
    joined = table[:, new]
    joined[1] = table[1, np.roll(new, -1)]
    return joined
