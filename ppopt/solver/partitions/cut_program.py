"""Dynamic programs over cuts: the least bound of all partitions, and partitions in its order.

With one stage per device a device hosts one run of layers; with two it hosts two. Devices are taken
in order of their first stage. Of a V the two runs grow from both ends of the model inwards; of the
interleaved placement both grow forwards, one from the first layer, one from a middle cut that is
fixed outside. So a state is one or two positions, and a device adds a run of layers at each. The
bound of a partition is the largest of its devices; the least over all partitions is a bottleneck
path (a shortest path whose length is its largest arc).

Fixed outside is also stage 0: every way out ends with its backward, and no stage gets its inputs
faster than F of stage 0 runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import cached_property
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.solver.partitions.device_bounds import (
    DeviceBound,
    Hosted,
    backward_times,
    first_stage_tail,
    pace_of,
)
from ppopt.solver.partitions.recompute_choices import chosen_bound
from ppopt.solver.partitions.space import FOREVER, PartitionSpace

Counts = tuple[int, ...]
"""Layers of every stage."""
LOOK = 256
"""Steps of the search for partitions in order from one look at the time to the next."""


class Form(Enum):
    """How the second run of layers of every device grows."""

    ONE = 0
    """There is none: one stage per device."""
    LOOP = 1
    """Forwards: stages s and s + D share a device."""
    V = -1
    """Backwards: stages s and 2 D - 1 - s share a device."""


def form_of(space: PartitionSpace) -> Form | None:
    """The form of a placement; None: it has no program."""
    devices = space.num_devices
    first, rest = space.hosts[:devices], space.hosts[devices:]
    if len(set(first)) < devices:
        return None
    if not rest:
        return Form.ONE
    if rest == first[::-1]:
        return Form.V
    return Form.LOOP if rest == first else None


class Runs(NamedTuple):
    """Runs of one device: `first` layers at the first position, `second` at the second."""

    first: int
    second: int


Table = dict[Runs, DeviceBound]
"""Per runs: bounds by positions, [first][second]."""


class FirstStage(NamedTuple):
    """What matters of stage 0 to other devices."""

    tail: int
    """`first_stage_tail` of it."""
    pace: int
    """Time of its F; 0: it does not matter to the figure."""


class Figure(NamedTuple):
    """A figure of devices; that of a partition is the largest of its devices."""

    of_device: Callable[[PartitionSpace, int, Sequence[Hosted], int, int], DeviceBound]
    """Of a device that hosts certain stages, one entry per choice of these; above a ceiling any
    figure above it will do. Last comes the pace of stage 0; 0: not known."""
    part: Callable[[PartitionSpace, Ints, Ints], Ints]
    """Of the layers between; the parts of a device's stages add up to no more than its figure."""
    paced: bool = False
    """Whether the pace of stage 0 matters."""


def work(space: PartitionSpace, low: Ints, high: Ints) -> Ints:
    """Work of layers on the fastest device: F and the least backward of all microbatches."""
    return space.batches * space.least_slowness * _stage_time(space, low, high)


def _stage_time(space: PartitionSpace, low: Ints, high: Ints) -> Ints:
    forward = space.sums.forward
    return np.asarray(forward[high] - forward[low] + backward_times(space, low, high).least)


VALUE = Figure(chosen_bound, work, paced=True)
"""Lower bound of the objective, in ticks."""


class CutProgram:
    """The dynamic programs of a space, for all partitions whose bound is at most a ceiling."""

    def __init__(
        self,
        space: PartitionSpace,
        form: Form,
        ceiling: int,
        deadline: float,
        figure: Figure = VALUE,
    ) -> None:
        """State the program of a figure.

        Raises TimeoutError where `time.monotonic` passes the deadline before it is stated, and so
        do its programs.
        """
        self.space, self.form, self.ceiling, self._figure = space, form, ceiling, figure
        self.deadline = deadline
        """Of `time.monotonic`; it may be moved."""
        self._places = space.num_layers + 1
        self._seconds = 1 if form is Form.ONE else self._places
        self._tables = [self._table(level) for level in range(space.num_devices)]
        self._paced: dict[FirstStage, list[Table]] = {}
        self._suffixes: dict[FirstStage, list[Ints]] = {}

    @cached_property
    def least(self) -> int:
        """Least bound of all partitions; FOREVER where it is above the ceiling."""
        least = FOREVER
        for bound, stage in self._stages_in_order:
            if bound >= least:
                break
            least = min(least, min((key for key, *_ in self._roots(stage)), default=FOREVER))
        return least

    def in_order(self) -> Iterator[tuple[int, Counts]]:
        """Partitions of bounds up to the ceiling with their bounds, the least first.

        Best-first search over devices; of equal bounds the deepest is followed first.
        """
        heap: list[tuple[int, int, tuple[Runs, ...], FirstStage, int]] = []
        waiting, pops = self._stages_in_order[::-1], count(1)
        while heap or waiting:
            while waiting and (not heap or waiting[-1][0] < heap[0][0]):
                _, stage = waiting.pop()
                for key, middle, runs in self._roots(stage):
                    heappush(heap, (key, 0, (runs,), stage, middle))
            if not heap:
                continue
            if next(pops) % LOOK == 0:
                self._check_time()
            key, depth, path, first, middle = heappop(heap)
            if len(path) == self.space.num_devices:
                yield key, self._counts(path)
                continue
            for bound, step in self._steps(path, first, middle):
                if max(key, bound) <= self.ceiling:
                    heappush(heap, (max(key, bound), depth - 1, (*path, step), first, middle))

    def most_even(self, ceiling: int) -> Counts | None:
        """Partition of least sum of squared stage times (F + backward) with a bound at most this.

        The least bound alone may have stages of one layer beside stages of many.
        """
        best: tuple[float, FirstStage, int, Runs] | None = None
        for bound, first in self._stages_in_order:
            if bound > ceiling:
                break
            sums = self._square_suffix(first, ceiling)
            for runs in self._tables[0]:
                self._check_time()
                if runs.first in self._first_stages[first]:
                    squares, middle = self._square_from_start(first, ceiling, runs, sums[0])
                    found = squares, first, middle, runs
                    if squares < np.inf and (best is None or found < best):
                        best = found
        return None if best is None else self._trace(*best[1:], ceiling)

    def _check_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise TimeoutError

    # The states: positions after every device.

    def _starts(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """The middle cut (0 where there is none) and the positions before the first device."""
        last = self.space.num_layers
        if self.form is Form.ONE:
            yield 0, (0, 0)
        elif self.form is Form.V:
            yield 0, (0, last)
        else:
            devices = self.space.num_devices
            yield from ((cut, (0, cut)) for cut in range(devices, last - devices + 1))

    def _end(self) -> Ints:
        """[middle][first][second]: 0 where all layers are taken, else FOREVER."""
        last = self.space.num_layers
        rows = self._places if self.form is Form.LOOP else 1
        end = np.full((rows, self._places, self._seconds), FOREVER)
        if self.form is Form.ONE:
            end[0, last, 0] = 0
        elif self.form is Form.V:
            end[0, range(self._places), range(self._places)] = 0
        else:
            end[range(self._places), range(self._places), last] = 0
        return end

    def _hosted(self, level: int, first: Ints, second: Ints, runs: Runs) -> list[Hosted]:
        """The stages of the device at a level, whose runs begin at these positions."""
        found = [Hosted(level, first, first + runs.first)]
        if self.form is Form.V:
            stage = self.space.num_stages - 1 - level
            found.append(Hosted(stage, second - runs.second, second))
        elif self.form is Form.LOOP:
            found.append(Hosted(level + self.space.num_devices, second, second + runs.second))
        return found

    def _moved(self, positions: tuple[Any, Any], runs: Runs) -> tuple[Any, Any]:
        """Positions, or arrays of them, after the runs of a device."""
        return positions[0] + runs.first, positions[1] + self.form.value * runs.second

    def _window(self, runs: Runs) -> tuple[slice, slice]:
        """The positions [first, second] from which runs lead on."""
        here = slice(0, self._places - runs.first)
        if self.form is Form.ONE:
            return here, slice(None)
        low, high = slice(0, self._places - runs.second), slice(runs.second, None)
        return here, high if self.form is Form.V else low

    # Figures of every device.

    def _runs(self, level: int) -> Iterator[tuple[Runs, Ints, Ints]]:
        """Runs of a device with the positions at which they may begin, by their parts alone."""
        seconds = range(1) if self.form is Form.ONE else range(1, self._longest + 1)
        grid = np.meshgrid(np.arange(self._places), np.arange(self._seconds), indexing="ij")
        for first in range(1, self._longest + 1):
            self._check_time()
            for second in seconds:
                runs = Runs(first, second)
                one, other = (axis[self._window(runs)].ravel() for axis in grid)
                kept = self._leaves_room(level, one, other, runs)
                hosted = self._hosted(level, one[kept], other[kept], runs)
                parts = [self._figure.part(self.space, stage.low, stage.high) for stage in hosted]
                low = np.asarray(sum(parts)) <= self.ceiling
                low &= self._others_fit(level, one[kept], other[kept], runs)
                if low.any():
                    yield runs, one[kept][low], other[kept][low]

    def _others_fit(self, level: int, first: Ints, second: Ints, runs: Runs) -> np.ndarray:
        """Whether devices before and after a level, each within the ceiling, hold all other layers.

        Of the interleaved placement, only layers that are before or after for every middle cut.
        """
        there, last = self._moved((first, second), runs), self.space.num_layers
        upto = self._parts_upto
        done, rest = upto[first], 0 * first
        if self.form is Form.ONE:
            rest = upto[last] - upto[there[0]]
        elif self.form is Form.V:
            done, rest = done + upto[last] - upto[second], upto[there[1]] - upto[there[0]]
        else:
            rest = upto[last] - upto[there[1]]
        after = self.space.num_devices - 1 - level
        return np.asarray((done <= level * self.ceiling) & (rest <= after * self.ceiling))

    @cached_property
    def _parts_upto(self) -> Ints:
        """Sum of the parts of the first layers; the part of a stage is no less than its layers'."""
        places = np.arange(self.space.num_layers)
        return np.concatenate([[0], np.cumsum(self._figure.part(self.space, places, places + 1))])

    @cached_property
    def _longest(self) -> int:
        """Most layers of a stage: others hold one at least, and its part alone is not too much."""
        most = self.space.num_layers - self.space.num_stages + 1
        return max(
            (n for n in range(1, most + 1) if self._least_part(n) <= self.ceiling), default=0
        )

    def _least_part(self, length: int) -> int:
        places = np.arange(self._places - length)
        return int(self._figure.part(self.space, places, places + length).min())

    def _leaves_room(self, level: int, first: Ints, second: Ints, runs: Runs) -> np.ndarray:
        """Whether every other stage still finds a layer of its own."""
        devices, last = self.space.num_devices, self.space.num_layers
        after = devices - 1 - level
        kept = first >= level
        if self.form is Form.ONE:
            return np.asarray(kept & (first + runs.first + after <= last))
        if self.form is Form.V:
            room = second - runs.second - first - runs.first
            return np.asarray(kept & (room >= 2 * after) & (second <= last - level))
        kept &= first + runs.first + after <= second - level
        return np.asarray(kept & (second + runs.second + after <= last))

    def _table(self, level: int) -> Table:
        """Figures of a device for all its runs, whatever stage 0 is."""
        return self._figures(level, list(self._runs(level)), 0)

    def _figures(self, level: int, found: list[tuple[Runs, Ints, Ints]], pace: int) -> Table:
        """Figures of a device for runs that begin at these positions, computed at once."""
        self._check_time()
        if not found:
            return {}
        stages = [self._hosted(level, first, second, runs) for runs, first, second in found]
        together = [
            Hosted(
                same[0].stage,
                np.concatenate([one.low for one in same]),
                np.concatenate([one.high for one in same]),
            )
            for same in zip(*stages, strict=True)
        ]
        device = self.space.hosts[level]
        figures = self._figure.of_device(self.space, device, together, self.ceiling, pace)
        bounds = np.cumsum([len(first) for _, first, _ in found])[:-1]
        rows = [np.split(row, bounds) for row in figures]
        table: Table = {}
        for (runs, first, second), *values in zip(found, *rows, strict=True):
            dense = [np.full((self._places, self._seconds), FOREVER) for _ in values]
            for row, own in zip(dense, values, strict=True):
                row[first, second] = own
            table[runs] = DeviceBound(*dense)
        return table

    def _tables_after(self, first: FirstStage) -> list[Table]:
        """Figures of all devices after such a stage 0."""
        if not first.pace:
            return self._tables
        if first not in self._paced:
            self._paced[first] = [
                self._figures(level, list(self._within(table, first)), first.pace)
                for level, table in enumerate(self._tables)
            ]
        return self._paced[first]

    def _within(self, table: Table, stage: FirstStage) -> Iterator[tuple[Runs, Ints, Ints]]:
        """Runs of a table with the positions at which their figures are within the ceiling."""
        for runs, bound in table.items():
            first, second = np.nonzero(bound.with_tail(stage.tail) <= self.ceiling)
            if first.size:
                yield runs, first, second

    # The programs.

    @cached_property
    def _first_stages(self) -> dict[FirstStage, list[int]]:
        """What stage 0 may be, each with the lengths of that stage that make it so."""
        found: dict[FirstStage, list[int]] = {}
        for length in sorted({runs.first for runs in self._tables[0]}):
            tail = int(first_stage_tail(self.space, np.array(length)))
            pace = pace_of(self.space, length) if self._figure.paced else 0
            found.setdefault(FirstStage(tail, pace), []).append(length)
        return found

    def _suffix(self, stage: FirstStage) -> list[Ints]:
        """Per level, [middle][first][second]: the least bound of all devices from there on."""
        if stage not in self._suffixes:
            levels = [self._end()]
            for table in reversed(self._tables_after(stage)[1:]):
                self._check_time()
                least = np.full(levels[-1].shape, FOREVER)
                for runs, bound in table.items():
                    weight = bound.with_tail(stage.tail)
                    first, second = np.nonzero(weight <= self.ceiling)
                    rest = levels[-1][:, *self._moved((first, second), runs)]
                    path = np.maximum(weight[first, second], rest)
                    least[:, first, second] = np.minimum(least[:, first, second], path)
                levels.append(least)
            self._suffixes[stage] = [*reversed(levels)]
        return self._suffixes[stage]

    @cached_property
    def _stages_in_order(self) -> list[tuple[int, FirstStage]]:
        """What stage 0 may be, by the least bound of all partitions with it, whatever its pace.

        The pace is worked out only where that bound does not rule it out.
        """
        found = []
        for stage in self._first_stages:
            roots = self._roots(stage, stage._replace(pace=0))
            found += [(min(key for key, *_ in roots), stage)] if roots else []
        return sorted(found)

    def _roots(
        self, stage: FirstStage, known: FirstStage | None = None
    ) -> list[tuple[int, int, Runs]]:
        """Choices of the first device with such a stage 0: least bound, middle cut, runs.

        `known`: what is counted of stage 0; None: all.
        """
        lengths = self._first_stages[stage]
        return [
            (bound, middle, runs)
            for middle, _ in self._starts()
            for bound, runs in self._steps((), known or stage, middle)
            if runs.first in lengths and bound <= self.ceiling
        ]

    def _steps(
        self, path: tuple[Runs, ...], first: FirstStage, middle: int
    ) -> Iterator[tuple[int, Runs]]:
        """Choices of the next device, each with the least bound of it and all that follow."""
        positions = self._positions(path, middle)
        beyond = self._suffix(first)[len(path)]
        row = middle if self.form is Form.LOOP else 0
        for runs, bound in self._tables_after(first)[len(path)].items():
            own = int(bound.alone[positions]), int(bound.through[positions]) + first.tail
            if max(own) <= self.ceiling:
                rest = int(beyond[(row, *self._moved(positions, runs))])
                if rest < FOREVER:
                    yield max(*own, rest), runs

    def _positions(self, path: tuple[Runs, ...], middle: int) -> tuple[int, int]:
        positions = {Form.ONE: (0, 0), Form.V: (0, self.space.num_layers), Form.LOOP: (0, middle)}
        found = positions[self.form]
        for runs in path:
            found = self._moved(found, runs)
        return found

    def _counts(self, path: tuple[Runs, ...]) -> Counts:
        firsts = [runs.first for runs in path]
        seconds = [runs.second for runs in path]
        if self.form is Form.ONE:
            return tuple(firsts)
        return (*firsts, *(seconds[::-1] if self.form is Form.V else seconds))

    # The most even partition.

    def _squares(self, level: int, first: Ints, second: Ints, runs: Runs) -> np.ndarray:
        """Sum of squared stage times of a device's runs that begin at these positions."""
        hosted = self._hosted(level, first, second, runs)
        slow = float(self.space.slowness_of(self.space.hosts[level]))
        return np.asarray(
            sum((slow * _stage_time(self.space, one.low, one.high)) ** 2 for one in hosted)
        )

    def _square_suffix(self, stage: FirstStage, ceiling: int) -> list[np.ndarray]:
        levels = [np.where(self._end() == 0, 0.0, np.inf)]
        for level in range(self.space.num_devices - 1, 0, -1):
            self._check_time()
            least = np.full(levels[-1].shape, np.inf)
            for runs, bound in self._tables_after(stage)[level].items():
                first, second = np.nonzero(bound.with_tail(stage.tail) <= ceiling)
                rest = levels[-1][:, *self._moved((first, second), runs)]
                path = self._squares(level, first, second, runs) + rest
                least[:, first, second] = np.minimum(least[:, first, second], path)
            levels.append(least)
        return levels[::-1]

    def _square_from_start(
        self, stage: FirstStage, ceiling: int, runs: Runs, sums: np.ndarray
    ) -> tuple[float, int]:
        """Least sum of squares after these runs of the first device, and its middle cut."""
        middles, seconds = (np.array(row) for row in zip(*self._second_starts, strict=True))
        firsts = 0 * seconds
        bound = self._tables_after(stage)[0].get(runs)
        if bound is None:
            return np.inf, 0
        fits = bound.with_tail(stage.tail)[firsts, seconds] <= ceiling
        middles, seconds, firsts = middles[fits], seconds[fits], firsts[fits]
        if not middles.size:
            return np.inf, 0
        rows = middles if self.form is Form.LOOP else 0
        rest = sums[(rows, *self._moved((firsts, seconds), runs))]
        squares = self._squares(0, firsts, seconds, runs) + rest
        best = int(np.argmin(squares))
        return float(squares[best]), int(middles[best])

    @cached_property
    def _second_starts(self) -> list[tuple[int, int]]:
        """Middle cuts, and where the second run of the first device begins."""
        return [(middle, second) for middle, (_, second) in self._starts()]

    def _trace(self, stage: FirstStage, middle: int, first_runs: Runs, ceiling: int) -> Counts:
        """The partition of least squares with these runs of the first device."""
        sums, path = self._square_suffix(stage, ceiling), [first_runs]
        row = middle if self.form is Form.LOOP else 0
        for level, beyond in enumerate(sums[1:], 1):
            positions = self._positions(tuple(path), middle)
            best: tuple[float, Runs] | None = None
            for runs, bound in self._tables_after(stage)[level].items():
                worst = max(int(bound.alone[positions]), int(bound.through[positions]) + stage.tail)
                if worst > ceiling:
                    continue
                first, second = (np.array(place) for place in positions)
                own = float(self._squares(level, first, second, runs))
                rest = float(beyond[(row, *self._moved(positions, runs))])
                if rest < np.inf and (best is None or (own + rest, runs) < best):
                    best = own + rest, runs
            assert best is not None
            path.append(best[1])
        return self._counts(tuple(path))
