"""Timing of a fixed order under many columns of operation times at once.

Operations are grouped in topological levels: the level of an operation is one above the highest
level of those it waits for, including its predecessor on the device. Operations of one level do
not wait for each other, so numpy runs a whole level, for all columns, in a few calls. One numpy
call per operation, in start order, takes 1.0 to 1.3 times as long at 4 x 8 and 2.3 to 3.9 times as
long at 16 x 512 (devices x microbatches; CPU time of the strategies and samples at once of
`benchmarks.speed jitter`, which measures the speed of this file).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Bools, Floats, Ints
from ppopt.problem.objective import Objective
from ppopt.schedule import timing


class Wait(NamedTuple):
    """One input of each operation of a level, apart from its predecessor on the device."""

    source: Ints
    """Row that each row of the level waits for; its predecessor if it has no such input."""
    lag: Ints | None
    """Number of the lag after the end of the source, by row of the level; None: all are 0."""


class Level(NamedTuple):
    """Operations that do not wait for each other; all run on different devices."""

    rows: slice
    before: slice | Ints
    """Row of the predecessor of each operation on its device."""
    waits: tuple[Wait, ...]
    """Inputs; every row waits for its source in each of them."""


class OrderLevels:
    """An order, prepared for columns of times.

    Rows: one per machine for its release (the instant at which it may begin), then one per
    operation, by level. The two operations of an overlapped pair share a row. If links are
    resources they count as machines, and what they carry as operations: every link keeps its order.
    So do the collective queues of devices, with their optimizers.
    """

    def __init__(self, net: timing.Network, lag: Ints) -> None:
        """`lag` is the number of the lag of every step; 0: none.

        Raises DeadlockError if operations wait in a circle.
        """
        self.net = net
        self.machines = len(net.bounds) - 1
        """Number of devices, links and queues, which is the number of release rows."""
        level = _level(net)
        order = np.lexsort((net.device, level))
        self.row: Ints = np.empty_like(order)
        """Row of every position of the network."""
        self.row[order] = np.arange(len(order)) + self.machines
        sizes = np.bincount(level)[1:]
        bounds = np.cumsum([self.machines, *sizes]).tolist()
        self.levels = tuple(_levels(net, lag, self.row, order, bounds))

    def __len__(self) -> int:
        """Number of rows."""
        return self.machines + len(self.row)

    def values(self, times: Floats, lags: Floats, objective: Objective) -> Floats:
        """The objective of every column, in ticks. Overwrites `times` with the ends."""
        begin, last = self.ends(times, lags)
        if objective is Objective.MAKESPAN:
            return np.asarray(last.max(axis=0))
        return np.asarray((last - begin).max(axis=0))

    def ends(self, times: Floats, lags: Floats) -> tuple[Floats, Floats]:
        """First start and last end in ticks, `[device, column]`.

        `times` are those of the rows, `[row, column]`, and are overwritten with the ends; `lags`
        those of the numbers of lags, `[number, column or 1]`. Links have no ends: an operation
        waits for every transfer.
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
                    add(arrival, lags[lag], out=arrival)
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


def _levels(
    net: timing.Network, lag: Ints, row: Ints, order: Ints, bounds: list[int]
) -> Iterator[Level]:
    """The levels; `order` gives the position of every operation row."""
    machines = bounds[0]
    heads = net.first[net.bounds[:-1]]
    previous = np.append(0, row[:-1])
    previous[heads] = np.arange(machines)
    before = previous[order]
    source, lags, waiting = _waits(net, lag, row - machines, before)
    source[waiting] = row[source[waiting]]
    for low, high in pairwise(bounds):
        rows = slice(low - machines, high - machines)
        waits = tuple(
            Wait(
                source[input_index, rows],
                lags[input_index, rows] if lags[input_index, rows].any() else None,
            )
            for input_index in np.flatnonzero(waiting[:, rows].any(axis=1))
        )
        yield Level(slice(low, high), _as_slice(before[rows]), waits)


def _waits(net: timing.Network, lag: Ints, row: Ints, before: Ints) -> tuple[Ints, Ints, Bools]:
    """Source, lag and whether there is an input, each [number of the input, operation row].

    The source is a position if there is an input, else the row `before`; `row` numbers
    operation rows from 0.
    """
    steps = np.flatnonzero(net.before != timing.FREE)
    target = net.first[steps]
    input_index = np.arange(len(steps)) - np.searchsorted(target, target)
    shape = (input_index.max(initial=-1) + 1, len(before))
    sources, lags = np.tile(before, (shape[0], 1)), np.zeros(shape, dtype=np.int64)
    at = input_index, row[target]
    sources[at], lags[at] = net.before[steps], lag[steps]
    waiting = np.zeros(shape, dtype=bool)
    waiting[at] = True
    return sources, lags, waiting


def _as_slice(rows: Ints) -> slice | Ints:
    """The rows as a slice if they are consecutive, so that reading them makes no copy."""
    together = bool((np.diff(rows) == 1).all())
    return slice(int(rows[0]), int(rows[-1]) + 1) if together else rows
