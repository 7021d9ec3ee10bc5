"""Timing of a fixed order under many samples of random operation times at once.

Operations are grouped in topological levels: the level of an operation is one above the highest
level of those it waits for, including its predecessor on the device. Operations of one level do
not wait for each other, so numpy runs a whole level, for all samples, in a few calls. One numpy
call per operation, in start order, takes 1.0 to 1.3 times as long at 4 x 8 and 2.3 to 3.9 times as
long at 16 x 512 (devices x microbatches; CPU time of the strategies and samples at once of
`benchmarks.speed jitter`, which measures the speed of this file).
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
from ppopt.schedule.host_orders import Prefetch, own_moves
from ppopt.schedule.link_queues import queues_of_schedule
from ppopt.schedule.schedule import Schedule


class Wait(NamedTuple):
    """One input of each operation of a level, apart from its predecessor on the device."""

    source: Ints
    """Row that each row of the level waits for; its predecessor if it has no such input."""
    lag: Floats | None
    """Delay in ticks after the end of the source, [row of the level, 1]; None: all are 0."""


class Level(NamedTuple):
    """Operations that do not wait for each other; all run on different devices."""

    rows: slice
    before: slice | Ints
    """Row of the predecessor of each operation on its device."""
    waits: tuple[Wait, ...]
    """Inputs; every row waits for its source in each of them."""


@dataclass(frozen=True)
class SampledTiming:
    """An order, prepared for sampled times.

    Rows: one per device for its release (the instant at which it may begin), then one per
    operation, by level. The two operations of an overlapped pair share a row. If links are
    resources they count as devices, and what they carry as operations whose times are not random:
    every link keeps its order. So do the collective queues of devices, with their optimizers.
    """

    net: timing.Network
    row: Ints
    """Row of every position of the network."""
    duration: Ints
    """Ticks of every row; for a device, its release."""
    levels: tuple[Level, ...]

    @classmethod
    def of(cls, schedule: Schedule) -> SampledTiming:
        """Take the order and the first start of every device from a schedule."""
        queues = queues_of_schedule(schedule) if schedule.pipeline.has_links else None
        moves = own_moves(schedule) if schedule.pipeline.has_offload else Prefetch.LATE
        net = timing.network(schedule.pipeline, schedule.orders, queues, moves)
        release = np.zeros(len(net.bounds) - 1, dtype=np.int64)
        for machine, device in enumerate(net.owner):
            release[machine] = 0 if device == timing.FREE else schedule.metrics.first_ticks[device]
        level = _level(net)
        order = np.lexsort((net.device, level))
        row = np.empty_like(order)
        row[order] = np.arange(len(order)) + len(release)
        sizes = np.bincount(level)[1:]
        levels = _levels(net, row, order, np.cumsum([len(release), *sizes]).tolist())
        return cls(net, row, np.append(release, net.duration[order]), tuple(levels))

    @property
    def devices(self) -> int:
        """Number of devices, links and queues, which is the number of release rows."""
        return len(self.net.bounds) - 1

    def draw(self, deviation: float, seed: int, first: int, count: int) -> Floats:
        """Random times in ticks, [row, sample]: of samples `first` to `first + count`.

        The times are multiplied by lognormal factors of mean 1. Factors belong to operation
        numbers, so that they do not depend on the order; releases are not random.
        """
        variance = np.log1p(deviation**2)
        random = np.random.Generator(np.random.PCG64([seed, first]))
        drawn = random.standard_normal((self.net.computed, count))
        drawn *= np.sqrt(variance)
        drawn -= variance / 2
        np.exp(drawn, out=drawn)
        first_ops = np.searchsorted(self.net.positions, np.arange(len(drawn)))
        rank = np.argsort(np.argsort(self.net.ops[first_ops]))
        times = np.ones((len(self.duration), count))
        times[self.row[: self.net.computed]] = drawn[rank]
        times *= self.duration[:, None]
        return times

    def values(self, times: Floats, objective: Objective) -> Floats:
        """The objective of every sample, in ticks. Overwrites `times` with the ends."""
        begin, last = self.ends(times)
        if objective is Objective.MAKESPAN:
            return np.asarray(last.max(axis=0))
        return np.asarray((last - begin).max(axis=0))

    def ends(self, times: Floats) -> tuple[Floats, Floats]:
        """First start and last end in ticks, [device, sample]. Overwrites `times` with the ends.

        Links have none: an operation waits for every transfer.
        """
        bounds = self.net.first[self.net.bounds]
        opening, closing = self.row[bounds[self.net.opening]], self.row[bounds[1:] - 1]
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
        last = times[closing[: self.net.pipeline.num_devices]]
        for machine, device in enumerate(self.net.owner):
            if device not in (timing.FREE, machine):
                np.maximum(last[device], times[closing[machine]], out=last[device])
        return times[opening] - opened, last


def _level(net: timing.Network) -> Ints:
    """Level of every position, from 1: its end when all operations take 1 and links take 0."""
    ones = np.ones_like(net.duration)
    positions = np.arange(len(ones))
    work = positions - net.first[net.bounds[:-1]][net.device] + 1
    delay = np.where(net.before == timing.FREE, 0, work[net.before] - work[net.first[:-1]] + 1)
    return timing.run(replace(net, duration=ones, work=work, delay=delay))


def _levels(net: timing.Network, row: Ints, order: Ints, bounds: list[int]) -> Iterator[Level]:
    """The levels; `order` gives the position of every operation row."""
    devices = bounds[0]
    heads = net.first[net.bounds[:-1]]
    previous = np.append(0, row[:-1])
    previous[heads] = np.arange(devices)
    before = previous[order]
    source, lag, waiting = _waits(net, row - devices, before)
    source[waiting] = row[source[waiting]]
    for low, high in pairwise(bounds):
        rows = slice(low - devices, high - devices)
        waits = tuple(
            Wait(
                source[input_index, rows],
                lag[input_index, rows, None] if lag[input_index, rows].any() else None,
            )
            for input_index in np.flatnonzero(waiting[:, rows].any(axis=1))
        )
        yield Level(slice(low, high), _as_slice(before[rows]), waits)


def _waits(net: timing.Network, row: Ints, before: Ints) -> tuple[Ints, Floats, Bools]:
    """Source, lag and whether there is an input, each [number of the input, operation row].

    The source is a position if there is an input, else the row `before`; `row` numbers
    operation rows from 0.
    """
    steps = np.flatnonzero(net.before != timing.FREE)
    target, source = net.first[steps], net.before[steps]
    input_index = np.arange(len(steps)) - np.searchsorted(target, target)
    shape = (input_index.max(initial=-1) + 1, len(before))
    sources, lags = np.tile(before, (shape[0], 1)), np.zeros(shape)
    since = (net.work - net.duration)[target] - net.work[source]
    at = input_index, row[target]
    sources[at], lags[at] = source, net.delay[steps] + since
    waiting = np.zeros(shape, dtype=bool)
    waiting[at] = True
    return sources, lags, waiting


def _as_slice(rows: Ints) -> slice | Ints:
    """The rows as a slice if they are consecutive, so that reading them makes no copy."""
    together = bool((np.diff(rows) == 1).all())
    return slice(int(rows[0]), int(rows[-1]) + 1) if together else rows
