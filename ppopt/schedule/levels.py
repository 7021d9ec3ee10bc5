"""A fixed order made ready to run under many times at once.

Operations go in levels: one is a level after the last of those it waits for, its predecessor on
the device among them. No two of a level wait for each other, so that numpy runs a level in a few
calls for all samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Bools, Floats, Ints
from ppopt.problem.objective import Objective
from ppopt.schedule import timing
from ppopt.schedule.schedule import Schedule


class Wait(NamedTuple):
    """What operations wait for, besides their predecessors on the device."""

    source: Ints
    """Row of the operation that each row of a level waits for; the predecessor's: none."""
    lag: Floats | None
    """Ticks from its end on, [row of the level, 1]; None: no row has any."""


class Level(NamedTuple):
    """Operations of different devices that run without waiting for each other."""

    rows: slice
    before: slice | Ints
    """Rows of their predecessors on the devices."""
    waits: tuple[Wait, ...]
    """Each row waits for its source in every one of these."""


@dataclass(frozen=True)
class Run:
    """An order and its times, in rows: the releases of all devices, then operations by level.

    The two of an overlapped pair share a row.
    """

    net: timing.Network
    row: Ints
    """Row of every position of the network."""
    duration: Ints
    """Ticks of every row; of a release, when the device may begin."""
    levels: tuple[Level, ...]

    @classmethod
    def of(cls, schedule: Schedule) -> Run:
        """Read the order, and when devices begin, off a schedule."""
        net = timing.network(schedule.pipeline, schedule.orders)
        release = np.array(schedule.metrics.first, dtype=np.int64)
        level = _level(net)
        order = np.lexsort((net.device, level))
        row = np.empty_like(order)
        row[order] = np.arange(len(order)) + len(release)
        sizes = np.bincount(level)[1:]
        levels = _levels(net, row, order, np.cumsum([len(release), *sizes]).tolist())
        return cls(net, row, np.append(release, net.duration[order]), tuple(levels))

    @property
    def devices(self) -> int:
        """Number of devices, and of the rows that hold releases."""
        return len(self.net.bounds) - 1

    def draw(self, deviation: float, seed: int, first: int, count: int) -> Floats:
        """Random times in ticks, [row, sample]: of samples `first` to `first + count`.

        Lognormal factors of mean 1 come by the number of the operation, so that the order plays no
        part; releases have none.
        """
        variance = np.log1p(deviation**2)
        random = np.random.Generator(np.random.PCG64([seed, first]))
        drawn = random.standard_normal((len(self.row), count))
        drawn *= np.sqrt(variance)
        drawn -= variance / 2
        np.exp(drawn, out=drawn)
        first_ops = np.searchsorted(self.net.place, np.arange(len(drawn)))
        rank = np.empty_like(self.row)
        rank[self.row - self.devices] = np.argsort(np.argsort(self.net.ops[first_ops]))
        times = np.empty((len(self.duration), count))
        times[: self.devices] = 1
        np.take(drawn, rank, axis=0, out=times[self.devices :], mode="clip")
        times *= self.duration[:, None]
        return times

    def values(self, times: Floats, objective: Objective) -> Floats:
        """The objective of every sample in ticks; the times are turned into ends."""
        begin, last = self.ends(times)
        if objective is Objective.MAKESPAN:
            return np.asarray(last.max(axis=0))
        return np.asarray((last - begin).max(axis=0))

    def ends(self, times: Floats) -> tuple[Floats, Floats]:
        """First start and last end in ticks, [device, sample]; times become ends, in place."""
        bounds = self.net.first[self.net.bounds]
        opening, closing = self.row[bounds[:-1]], self.row[bounds[1:] - 1]
        opened = times[opening]
        shape = (max(level.rows.stop - level.rows.start for level in self.levels), times.shape[1])
        starts, arrivals = np.empty(shape), np.empty(shape)
        add, maximum, take = np.add, np.maximum, times.take
        for rows, before, waits in self.levels:
            block = times[rows]
            start, arrival = starts[: len(block)], arrivals[: len(block)]
            if isinstance(before, slice):
                free = times[before]
            else:
                free = take(before, axis=0, out=start, mode="clip")
            for source, lag in waits:
                take(source, axis=0, out=arrival, mode="clip")
                if lag is not None:
                    add(arrival, lag, out=arrival)
                free = maximum(free, arrival, out=start)
            add(block, free, out=block)
        return times[opening] - opened, times[closing]


def _level(net: timing.Network) -> Ints:
    """Level of every position, from 1: its end where all operations take 1 and links nothing."""
    ones = np.ones_like(net.duration)
    positions = np.arange(len(ones))
    work = positions - net.first[net.bounds[:-1]][net.device] + 1
    delay = np.where(net.before == timing.FREE, 0, work[net.before] - work[net.first[:-1]] + 1)
    return timing.run(replace(net, duration=ones, work=work, delay=delay))


def _levels(net: timing.Network, row: Ints, order: Ints, bounds: list[int]) -> Iterator[Level]:
    """What every level does; `order` has the position of every operation row, by row."""
    devices = bounds[0]
    heads = net.first[net.bounds[:-1]]
    previous = np.append(0, row[:-1])
    previous[heads] = np.arange(devices)
    before = previous[order]
    source, lag, waiting = _waits(net, row - devices, before)
    source[waiting] = row[source[waiting]]
    for low, high in pairwise(bounds):
        here = slice(low - devices, high - devices)
        waits = tuple(
            Wait(source[number, here], lag[number, here, None] if lag[number, here].any() else None)
            for number in np.flatnonzero(waiting[:, here].any(axis=1))
        )
        yield Level(slice(low, high), _as_slice(before[here]), waits)


def _waits(net: timing.Network, row: Ints, before: Ints) -> tuple[Ints, Floats, Bools]:
    """Source (a position where one waits, else `before`), lag and whether one waits.

    Each [number of the wait, operation row]; `row` numbers operation rows from 0.
    """
    steps = np.flatnonzero(net.before != timing.FREE)
    target, source = net.first[steps], net.before[steps]
    number = np.arange(len(steps)) - np.searchsorted(target, target)
    shape = (number.max(initial=-1) + 1, len(before))
    sources, lags = np.tile(before, (shape[0], 1)), np.zeros(shape)
    since = (net.work - net.duration)[target] - net.work[source]
    at = number, row[target]
    sources[at], lags[at] = source, net.delay[steps] + since
    waiting = np.zeros(shape, dtype=bool)
    waiting[at] = True
    return sources, lags, waiting


def _as_slice(rows: Ints) -> slice | Ints:
    """The same rows as a slice where they follow each other: reading them copies nothing."""
    together = bool((np.diff(rows) == 1).all())
    return slice(int(rows[0]), int(rows[-1]) + 1) if together else rows
