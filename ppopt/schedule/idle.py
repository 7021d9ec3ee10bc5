"""Why devices are idle: every idle interval of a schedule, split by cause.

Between two operations of a device, at every instant the first of these that holds is the cause:

    memory      the next operation waits for data, and others of the device have all they wait
                for, but none of these fits the memory limit: the limit alone keeps the device from
                work
    input       the next operation waits for one that has not ended
    link        what the next operation waits for has ended and is under way from another device
    collective  the weights of the next operation are not gathered yet
    host        its activation is not back from the host yet
    order       the next operation could start: the schedule itself waits

Before its first operation a device is in warm-up, after its last in cool-down. After its last
compute it waits for gradients (collective) until its optimizer may start, or until its last
gradient sync ends. An optimizer is busy time. The intervals of a device add up to its idle time,
makespan less busy time.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.exact import plain
from ppopt.problem.instance import Instance
from ppopt.problem.operation import AuxiliaryKind, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.link_queues import LinkQueues
from ppopt.schedule.metrics import Memory, memory_of_auxiliary, memory_of_compute
from ppopt.schedule.orders import rows_by_code, split_backwards
from ppopt.schedule.schedule import Schedule

FREE = -1
"""Stands for no operation."""
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
        known = {cls.COLLECTIVE: pipeline.has_gradient_work, cls.HOST: pipeline.has_offload}
        return [cause for cause in cls if known.get(cause, True)]


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
    """Row of the operation that the cause names: the one waited for, or the one that is ready and
    does not fit (memory); FREE if there is none, or if it is auxiliary."""


class Arrivals(NamedTuple):
    """When every operation has what it waits for, in ticks; 0: it waits for nothing."""

    sent: Ints
    """End of the last operation that it waits for."""
    ready: Ints
    """The same with the time between devices: nothing but device and memory is missing."""
    needed: Ints
    """Row of the operation that arrives last; FREE: none."""
    awaited: Ints
    """Row of the operation that ends last; FREE: none. If links differ, another may arrive
    later."""
    gathered: Ints
    """End of the unshard that it waits for, or 0."""
    reloaded: Ints
    """End of the move from the host that it waits for, or 0."""


def arrivals(schedule: Schedule) -> Arrivals:
    """When the inputs of every operation of a complete schedule are there."""
    split = split_backwards(schedule)
    flow = Instance.with_backwards(schedule.pipeline, split).chosen_flow(split)
    row = rows_by_code(schedule)
    before, after = row[flow.before], row[flow.after]
    # a pair waits for what either of its operations waits for
    second = np.flatnonzero(schedule.seconds)
    stands_for = np.arange(len(schedule))
    stands_for[second] = second - 1
    after = stands_for[after]
    sent, ready = np.zeros((2, len(schedule)), dtype=np.int64)
    needed, awaited = np.full((2, len(schedule)), FREE)
    arrival = schedule.end[before] + flow.lag
    if schedule.pipeline.has_links:
        carried = transfer_rows(schedule)[flow.after]
        crossing = schedule.device[before] != schedule.device[after]
        arrival[crossing] = schedule.transfers.end[carried[crossing]]
    np.maximum.at(sent, after, schedule.end[before])
    np.maximum.at(ready, after, arrival)
    for row_of, last in (
        (needed, arrival == ready[after]),
        (awaited, schedule.end[before] == sent[after]),
    ):
        row_of[after[last]] = before[last]
    gathered, reloaded = _gathered(schedule), _reloaded(schedule)
    for column in (gathered, reloaded):
        column[second - 1] = np.maximum(column[second - 1], column[second])
    for column in (sent, ready, needed, awaited, gathered, reloaded):
        column[second] = column[second - 1]
    return Arrivals(sent, ready, needed, awaited, gathered, reloaded)


def _gathered(schedule: Schedule) -> Ints:
    """When the weights are there that every F needs, in ticks; 0 if nothing gathers them."""
    pipeline, given = schedule.pipeline, schedule.auxiliary
    end = np.zeros((pipeline.routes, pipeline.num_stages), dtype=np.int64)
    opens = given.kind == AuxiliaryKind.UNSHARD
    end[given.route[opens], given.stage[opens]] = given.end[opens]
    route = schedule.microbatch * pipeline.routes // pipeline.batches
    return np.where(schedule.kind == OpKind.F, end[route, schedule.stage], 0)


def _reloaded(schedule: Schedule) -> Ints:
    """When the activation is back that every backward needs, in ticks; 0 if it never left."""
    pipeline, given = schedule.pipeline, schedule.auxiliary
    end = np.zeros((pipeline.num_stages, pipeline.batches, pipeline.num_slices), dtype=np.int64)
    back = given.kind == AuxiliaryKind.RELOAD
    end[given.stage[back], given.microbatch[back], given.slice[back]] = given.end[back]
    backward = np.isin(schedule.kind, (OpKind.B, OpKind.BW))
    return np.where(backward, end[schedule.stage, schedule.microbatch, schedule.slice], 0)


def transfer_rows(schedule: Schedule) -> Ints:
    """The transfer that brings every operation number its input, as a row of `transfers`."""
    links = LinkQueues(schedule.pipeline)
    carried = np.full(len(links.link), FREE)
    carried[links.numbers_of(schedule.transfers)] = np.arange(len(schedule.transfers))
    _, needed = links.ends(split_backwards(schedule))
    row = np.full(schedule.pipeline.num_codes, FREE)
    row[needed] = carried[links.numbers]
    return row


def idle(schedule: Schedule) -> Idle:
    """Split all idle time of a complete schedule, from 0 to the makespan, by cause."""
    arrived = arrivals(schedule)
    last = _last(schedule)
    devices = np.arange(schedule.pipeline.num_devices + 1)
    bounds = np.searchsorted(schedule.device, devices).tolist()
    memory = memory_of_compute(schedule), memory_of_auxiliary(schedule)
    found = [
        _of_device(schedule, arrived, memory, device, low, high, last)
        for device, (low, high) in enumerate(pairwise(bounds))
    ]
    return Idle(*np.concatenate(found, axis=1))


def _last(schedule: Schedule) -> int:
    """The makespan, in ticks."""
    return max(int(schedule.end.max(initial=0)), int(schedule.auxiliary.end.max(initial=0)))


def totals(found: Idle, devices: int) -> Ints:
    """Ticks of idle time, [device, cause]."""
    table = np.zeros((devices, len(Cause)), dtype=np.int64)
    np.add.at(table, (found.device, found.cause), found.end - found.start)
    return table


def by_cause(schedule: Schedule) -> dict[str, list[int | float]]:
    """Idle time by label of the cause: one number per device, in the user's unit of time."""
    table = totals(idle(schedule), schedule.pipeline.num_devices).tolist()
    unit = schedule.pipeline.ticks.time
    causes = Cause.of(schedule.pipeline)
    return {cause.label: [plain(unit(row[cause])) for row in table] for cause in causes}


def share(schedule: Schedule) -> dict[str, Fraction]:
    """Idle time by label of the cause, all devices together, as a share of devices x makespan."""
    table = totals(idle(schedule), schedule.pipeline.num_devices).sum(axis=0).tolist()
    total = schedule.pipeline.num_devices * _last(schedule)
    causes = Cause.of(schedule.pipeline)
    return {cause.label: Fraction(table[cause], total or 1) for cause in causes}


def _of_device(
    schedule: Schedule,
    arrived: Arrivals,
    memory: tuple[Memory, Memory],
    device: int,
    low: int,
    high: int,
    last: int,
) -> Ints:
    """Columns of Idle of one device, whose operations are the rows low to high.

    `memory` is what operations take and give, and what auxiliary operations do.
    """
    compute, around = memory
    ended = np.maximum.accumulate(np.append(0, schedule.end[low:high]))
    before = np.flatnonzero(schedule.start[low:high] > ended[:-1])
    gaps = np.stack([ended[before], schedule.start[low + before], low + before])
    gaps, gathered = _gathered_in(schedule, around, device, gaps)
    blocked = _blocked(schedule, arrived, compute, device, slice(low, high), gaps, gathered)
    table = _cut(gaps, arrived, blocked)
    warm_up = table[3] == low
    table[2, warm_up], table[4, warm_up] = Cause.WARM_UP, arrived.needed[low]
    table = _joined(table)
    after = [row for row in _after(schedule, device, int(ended[-1]), last) if row[1] > row[0]]
    if after:
        ends = np.array([[*row, FREE, FREE] for row in after])
        table = np.column_stack([table, ends.T])
    return np.vstack([np.full(table.shape[1], device), table])


def _gathered_in(schedule: Schedule, around: Memory, device: int, gaps: Ints) -> tuple[Ints, Ints]:
    """The gaps, cut where auxiliary operations change memory, and what they hold in each."""
    given = schedule.auxiliary
    here = given.device == device
    if not here.any():
        return gaps, np.zeros(gaps.shape[1], dtype=np.int64)
    takes, gives = (column[here] for column in around)
    time = np.concatenate([given.start[here], given.end[here]])
    change = np.concatenate([takes, -gives])
    place = np.argsort(time, kind="stable")
    time, level = time[place], np.append(0, np.cumsum(change[place]))
    pieces = [
        (*edges, following)
        for start, end, following in gaps.T.tolist()
        for edges in pairwise([start, *sorted({*time[(start < time) & (time < end)]}), end])
    ]
    cut = np.array(pieces, dtype=np.int64).reshape(-1, 3).T
    return cut, level[np.searchsorted(time, cut[0], side="right")]


def _after(
    schedule: Schedule, device: int, ended: int, last: int
) -> Iterator[tuple[int, int, Cause]]:
    """Idle intervals after the last compute of a device, some of them empty."""
    given = schedule.auxiliary
    closes = (given.kind != AuxiliaryKind.UNSHARD) & ~given.moves
    steps = given.kind == AuxiliaryKind.OPTIMIZER
    mine = given.device == device
    own = np.flatnonzero(steps & mine)
    if not len(own):
        synced = int(given.end[closes & mine].max(initial=ended))
        yield ended, synced, Cause.COLLECTIVE
        yield synced, last, Cause.COOL_DOWN
        return
    start, end = int(given.start[own[0]]), int(given.end[own[0]])
    ready = min(start, _reduced(schedule, mine, ended))
    yield ended, ready, Cause.COLLECTIVE
    yield ready, start, Cause.ORDER
    yield end, last, Cause.COOL_DOWN


def _reduced(schedule: Schedule, mine: Bools, ended: int) -> int:
    """When the gradients are there that an optimizer waits for, at `ended` or later, in ticks.

    `mine`: which auxiliary operations are of its device, whose last compute ends at `ended`.
    """
    given = schedule.auxiliary
    everyone = schedule.pipeline.optimizer_barrier
    syncs = given.kind == AuxiliaryKind.GRADIENT_SYNC
    if everyone and not syncs.any():
        return int(schedule.end.max())
    return int(given.end[syncs & (mine | everyone)].max(initial=ended))


class _Window(NamedTuple):
    """When memory alone keeps operations of a device from its idle intervals; one entry each."""

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
    here: slice,
    gaps: Ints,
    gathered: Ints,
) -> _Window:
    """The window of each gap of a device, whose operations are the rows `here`.

    Only operations that the device has yet to run count. While a device is idle the memory of its
    compute does not change; that of its `gathered` weights is one in each gap. Operations are
    grouped by the memory they take; the first of a group to be ready, among those from each place
    on, is a running minimum from the end.
    """
    low, before = here.start, gaps[2] - here.start
    ready = np.maximum.reduce([arrived.ready, arrived.gathered, arrived.reloaded])[here]
    opens, closes, row = np.full((3, len(before)), _NEVER)
    limit = schedule.pipeline.ticks.room(device)
    if limit is None:
        return _Window(opens, closes, row)
    taken, given = (column[here] for column in compute)
    instants = schedule.start[here] == schedule.end[here]
    both = np.where(instants, np.minimum(taken, given), 0)
    taken, given = taken - both, given - both
    room = limit - np.append(0, np.cumsum(taken - given))[before] - gathered
    second = np.flatnonzero(schedule.seconds[here])
    taken[second] += taken[second - 1]
    taken[second - 1] = taken[second]
    for amount in sorted(set(taken.tolist())):
        first, place = _least_from(np.where(taken == amount, ready, _NEVER))
        fits = (room >= amount) | (amount == 0)
        closes = np.where(fits, np.minimum(closes, first[before]), closes)
        sooner = ~fits & (first[before] < opens)
        opens = np.where(sooner, first[before], opens)
        row = np.where(sooner, low + place[before], row)
    return _Window(opens, closes, row)


def _least_from(values: Ints) -> tuple[Ints, Ints]:
    """Least value from every place on, and the first place that has it."""
    least = np.minimum.accumulate(values[::-1])[::-1]
    spot = np.where(values == least, np.arange(len(values)), len(values))
    return least, np.minimum.accumulate(spot[::-1])[::-1]


def _cut(gaps: Ints, arrived: Arrivals, window: _Window) -> Ints:
    """Cut gaps (start, end, following) where their cause changes; columns of Idle less device."""
    start, end, following = gaps
    sent, ready = arrived.sent[following], arrived.ready[following]
    gathered, reloaded = arrived.gathered[following], arrived.reloaded[following]
    closes = np.minimum(window.closes, np.maximum.reduce([ready, gathered, reloaded]))
    edges = [start, sent, ready, gathered, reloaded, window.opens, closes, end]
    cuts = np.sort(np.clip(edges, start, end), axis=0)
    left, right = cuts[:-1], cuts[1:]
    blocked = (window.opens <= left) & (left < closes)
    causes = [Cause.MEMORY, Cause.INPUT, Cause.LINK, Cause.COLLECTIVE, Cause.HOST]
    cases = [blocked, left < sent, left < ready, left < gathered, left < reloaded]
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
