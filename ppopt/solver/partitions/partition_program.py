"""Dynamic programs over cut positions: the minimum bound over all partitions, without arrivals.

A device with one stage hosts one run of layers; a device with two stages hosts two runs. Devices
are visited in order of their first stage. In a V placement the two runs grow from both ends of the
model inwards. In the interleaved placement both grow forwards, one from the first layer, one from a
middle cut that the caller fixes. So a state is one or two positions, and a device adds a run of
layers at each. The bound of a partition is the maximum over its devices. The minimum over all
partitions is a bottleneck path (a shortest path whose length is its largest arc).

Every path out ends with the backward of stage 0. Its tail is the minimum time of that backward
minus the gradient time of its layers (`first_stage_tail`). So each possible tail has a program.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import cached_property
from itertools import product, starmap
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from ppopt.cancellation import checkpoint
from ppopt.problem.arrays import Ints
from ppopt.solver.partitions.device_runs import (
    Bools,
    DeviceRuns,
    RunPositions,
    Runs,
    joined,
    min_by_position,
)
from ppopt.solver.partitions.layer_run_bounds import (
    DeviceBound,
    Hosted,
    backward_times,
    first_stage_tail,
)
from ppopt.solver.partitions.option_bounds import chosen_bound
from ppopt.solver.partitions.space import FOREVER, PartitionSpace

Counts = tuple[int, ...]
"""Layers of every stage."""
LOOK = 256
"""Middle cuts between two checkpoints."""
MAX_GRID = 2**20
"""Maximum number of positions of a device in a program: between two checkpoints all of
them are visited once. So programs with two runs per device have at most 1023 layers."""
MAX_STATES = 2**27
"""Maximum number of states of all devices in a program; these need 1 GiB."""
MAX_CHOICES = 2**22
"""Maximum number of runs of layers in a program: these need 128 MiB, and their bounds a few seconds
per device."""
TOGETHER = 2**15
"""Choices whose bounds are computed between two checkpoints."""


class PlacementPattern(Enum):
    """Direction in which the second run of layers of every device grows."""

    SINGLE = 0
    """No second run: one stage per device."""
    LOOP = 1
    """Forwards: stages s and s + D share a device."""
    V = -1
    """Backwards: stages s and 2 D - 1 - s share a device."""


class ProgramTooLargeError(TimeoutError):
    """A program has too many choices to end within usual time limits."""


def pattern_of(space: PartitionSpace) -> PlacementPattern | None:
    """Pattern of a placement; None if no program handles it, or if it has too many states."""
    pattern = _pattern_of(space)
    if pattern is None:
        return None
    num_positions = space.num_layers + 1
    grid = num_positions if pattern is PlacementPattern.SINGLE else num_positions**2
    states = grid * (num_positions if pattern is PlacementPattern.LOOP else 1) * space.num_devices
    return pattern if grid <= MAX_GRID and states <= MAX_STATES else None


def _pattern_of(space: PartitionSpace) -> PlacementPattern | None:
    devices = space.num_devices
    first, rest = space.hosts[:devices], space.hosts[devices:]
    if len(set(first)) < devices:
        return None
    if not rest:
        return PlacementPattern.SINGLE
    if rest == first[::-1]:
        return PlacementPattern.V
    return PlacementPattern.LOOP if rest == first else None


class BoundFunction(NamedTuple):
    """A function of devices; its value for a partition is the maximum over the devices."""

    of_device: Callable[[PartitionSpace, int, Sequence[Hosted], int], DeviceBound]
    """Value of a device with its hosted stages, one entry per choice; values above a ceiling need
    not be exact."""
    part: Callable[[PartitionSpace, Ints, Ints], Ints]
    """Value of a range of layers; the sum over the stages of a device is at most its value."""


def work(space: PartitionSpace, low: Ints, high: Ints) -> Ints:
    """Work of layers on the fastest device: F and the minimum backward of all microbatches."""
    return space.batches * space.min_slowness * _stage_time(space, low, high)


def _stage_time(space: PartitionSpace, low: Ints, high: Ints) -> Ints:
    forward = space.sums.forward
    return np.asarray(forward[high] - forward[low] + backward_times(space, low, high).minimum)


VALUE = BoundFunction(chosen_bound, work)
"""Lower bound of the objective, in ticks."""


class PartitionProgram:
    """The dynamic programs of a space, for all partitions whose bound is at most a ceiling."""

    def __init__(
        self,
        space: PartitionSpace,
        pattern: PlacementPattern,
        ceiling: int,
        figure: BoundFunction = VALUE,
    ) -> None:
        """Create a program for a bound function; a query resumes one that time has ended."""
        self.space, self.pattern, self.ceiling, self._figure = space, pattern, ceiling, figure
        self._num_positions = space.num_layers + 1
        self._seconds = 1 if pattern is PlacementPattern.SINGLE else self._num_positions
        self._choices: list[DeviceRuns] = []
        """Per device, as far as computed."""
        self._unfinished: list[DeviceBound] = []
        """Bounds of the first choices of the next device."""
        self._suffixes: dict[int, list[Ints]] = {}
        """Per device, the last device first, as far as computed, by the tail of stage 0."""
        self._bounded: dict[int, _Bounded] = {}
        """What is known of the partitions with each tail of stage 0."""
        self._runs_so_far: list[RunPositions] = []
        """Runs that any device may host, by their lengths, as far as computed."""
        self._num_runs = 0
        """Number of these runs."""

    @cached_property
    def min_bound(self) -> int:
        """Minimum bound of all partitions; FOREVER if it is above the ceiling."""
        while True:
            tail = min(self.first_stages, key=self.known_bound, default=None)
            if tail is None:
                return FOREVER
            if self.known_bound(tail) == FOREVER or self.is_exact(tail):
                return self.known_bound(tail)
            self.raise_bound(tail)

    def most_even(self, ceiling: int) -> Counts | None:
        """Partition that minimises the sum of squared stage times, with a bound up to the ceiling.

        A stage time is F + backward. Partitions with the minimum bound may have very uneven stages.
        """
        evenest = []
        for tail in sorted(self.first_stages):
            while self.known_bound(tail) <= ceiling and not self.is_exact(tail):
                self.raise_bound(tail)
            if self.known_bound(tail) <= ceiling:
                evenest.append(self._evenest(tail, ceiling))
        return min(evenest, key=itemgetter(0))[1] if evenest else None

    # The states: positions after every device.

    def _starts(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """Middle cut (0 if there is none) and the positions before the first device."""
        last = self.space.num_layers
        if self.pattern is PlacementPattern.SINGLE:
            yield 0, (0, 0)
        elif self.pattern is PlacementPattern.V:
            yield 0, (0, last)
        else:
            devices = self.space.num_devices
            yield from ((cut, (0, cut)) for cut in range(devices, last - devices + 1))

    def _end(self) -> Ints:
        """[first][second][middle]: 0 if all layers are assigned, else FOREVER."""
        last = self.space.num_layers
        rows = self._num_positions if self.pattern is PlacementPattern.LOOP else 1
        end = np.full((self._num_positions, self._seconds, rows), FOREVER)
        if self.pattern is PlacementPattern.SINGLE:
            end[last, 0, 0] = 0
        elif self.pattern is PlacementPattern.V:
            end[range(self._num_positions), range(self._num_positions), 0] = 0
        else:
            end[range(self._num_positions), last, range(self._num_positions)] = 0
        return end

    def _hosted(self, level: int, candidates: RunPositions) -> list[Hosted]:
        """Stages of the device at a level."""
        first_end, second_end = self._ends(candidates)
        stages = [Hosted(level, candidates.first, first_end)]
        if self.pattern is PlacementPattern.V:
            stages.append(Hosted(self.space.num_stages - 1 - level, second_end, candidates.second))
        elif self.pattern is PlacementPattern.LOOP:
            stages.append(Hosted(level + self.space.num_devices, candidates.second, second_end))
        return stages

    def _ends(self, candidates: RunPositions) -> tuple[Ints, Ints]:
        """Positions after the runs of choices."""
        return (
            candidates.first + candidates.first_run,
            candidates.second + self.pattern.value * candidates.second_run,
        )

    def _window(self, runs: Runs) -> tuple[slice, slice]:
        """Positions [first, second] that runs continue from."""
        first_window = slice(0, self._num_positions - runs.first)
        if self.pattern is PlacementPattern.SINGLE:
            return first_window, slice(None)
        low, high = slice(0, self._num_positions - runs.second), slice(runs.second, None)
        return first_window, high if self.pattern is PlacementPattern.V else low

    # Figures of every device.

    def _positions_of(self, level: int) -> RunPositions:
        """Runs that a device may host, by the parts of all devices alone."""
        checkpoint()
        candidates = self._possible
        candidates = candidates.at(self._leaves_layers(level, candidates))
        return candidates.at(self._rest_fits(level, candidates))

    @cached_property
    def _possible(self) -> RunPositions:
        """Runs that any device may host, by the parts alone; sorted. Another query resumes."""
        checkpoint()
        for runs in self._remaining_runs:
            self._runs_so_far.append(self._fitting_positions(runs))
            self._num_runs += len(self._runs_so_far[-1].first)
            if self._num_runs > MAX_CHOICES:
                raise ProgramTooLargeError
            checkpoint()
        return joined(self._runs_so_far)

    @cached_property
    def _remaining_runs(self) -> Iterator[Runs]:
        """Lengths of runs whose positions are not computed yet."""
        seconds = (
            range(1) if self.pattern is PlacementPattern.SINGLE else range(1, self._longest + 1)
        )
        return starmap(Runs, product(range(1, self._longest + 1), seconds))

    @cached_property
    def _grid(self) -> list[Ints]:
        """First and second coordinates of all positions."""
        return list(
            np.meshgrid(np.arange(self._num_positions), np.arange(self._seconds), indexing="ij")
        )

    def _fitting_positions(self, runs: Runs) -> RunPositions:
        """Positions of runs of these lengths whose parts fit within the ceiling."""
        min_part = self._parts_upto[-1] - (self.space.num_devices - 1) * self.ceiling
        first, second = (axis[self._window(runs)].ravel() for axis in self._grid)
        candidates = RunPositions(first, second, *(np.full_like(first, length) for length in runs))
        hosted = self._hosted(0, candidates)
        fits = np.asarray(sum(self._parts(hosted))) <= self.ceiling
        fits &= np.asarray(sum(map(self._layers_of, hosted))) >= min_part
        return candidates.at(fits)

    def _layers_of(self, stage: Hosted) -> Ints:
        """Sum of the parts of a stage's layers."""
        return np.asarray(self._parts_upto[stage.high] - self._parts_upto[stage.low])

    def _parts(self, hosted: Sequence[Hosted]) -> list[Ints]:
        return [self._figure.part(self.space, stage.low, stage.high) for stage in hosted]

    def _rest_fits(self, level: int, candidates: RunPositions) -> Bools:
        """Whether the other devices can host all other layers within the ceiling.

        For the interleaved placement, only layers that are before or after for every middle cut.
        """
        (first_end, second_end), last = self._ends(candidates), self.space.num_layers
        upto, after = self._parts_upto, self.space.num_devices - 1 - level
        done, rest = upto[candidates.first], 0 * candidates.first
        if self.pattern is PlacementPattern.SINGLE:
            rest = upto[last] - upto[first_end]
        elif self.pattern is PlacementPattern.V:
            done, rest = (
                done + upto[last] - upto[candidates.second],
                upto[second_end] - upto[first_end],
            )
        else:
            rest = upto[last] - upto[second_end]
        return np.asarray((done <= level * self.ceiling) & (rest <= after * self.ceiling))

    @cached_property
    def _parts_upto(self) -> Ints:
        """Prefix sums of the parts of the layers; the part of a stage is at least their sum."""
        layers = np.arange(self.space.num_layers)
        return np.concatenate([[0], np.cumsum(self._figure.part(self.space, layers, layers + 1))])

    @cached_property
    def _longest(self) -> int:
        """Maximum layers of a stage, whose part is within the ceiling.

        Every other stage has at least one layer.

        The minimum part of a stage does not decrease with its length.
        """
        max_layers = self.space.num_layers - self.space.num_stages + 1
        return bisect_right(range(1, max_layers + 1), self.ceiling, key=self._min_part)

    def _min_part(self, length: int) -> int:
        starts = np.arange(self._num_positions - length)
        return int(self._figure.part(self.space, starts, starts + length).min())

    def _leaves_layers(self, level: int, candidates: RunPositions) -> Bools:
        """Whether every other stage can have a layer, and no layer is unassigned."""
        devices, last = self.space.num_devices, self.space.num_layers
        after = devices - 1 - level
        first, second = candidates[:2]
        (first_end, second_end) = self._ends(candidates)
        fits = first >= level if level else first == 0
        if self.pattern is PlacementPattern.SINGLE:
            return np.asarray(fits & (first_end + after <= last))
        if self.pattern is PlacementPattern.V:
            fits &= second <= last - level if level else second == last
            return np.asarray(fits & (second_end - first_end >= 2 * after))
        return np.asarray(
            fits & (first_end + after <= second - level) & (second_end + after <= last)
        )

    def _bounded_choices(self, level: int) -> DeviceRuns:
        """Choices of the next device with their bounds; another query resumes."""
        positions, bounds = self._positions_of(level), self._unfinished
        if not positions.first.size:
            return DeviceRuns(positions, DeviceBound(positions.first, positions.first))
        for low in range(len(bounds) * TOGETHER, positions.first.size, TOGETHER):
            checkpoint()
            hosted = self._hosted(level, positions.at(slice(low, low + TOGETHER)))
            device = self.space.hosts[level]
            bounds.append(self._figure.of_device(self.space, device, hosted, self.ceiling))
        self._unfinished = []
        return DeviceRuns(positions, DeviceBound(*map(np.concatenate, zip(*bounds, strict=True))))

    def _choices_upto(self, level: int) -> list[DeviceRuns]:
        """Runs that every device up to a level may host within the ceiling."""
        for following in range(len(self._choices), level + 1):
            self._choices.append(self._bounded_choices(following))
        return self._choices

    # The programs.

    @cached_property
    def first_stages(self) -> dict[int, list[int]]:
        """Possible tails of stage 0, each with the lengths of stage 0 that have it."""
        lengths: dict[int, list[int]] = {}
        for length in np.unique(self._choices_upto(0)[0].positions.first_run).tolist():
            tail = int(first_stage_tail(self.space, np.array(length)))
            lengths.setdefault(tail, []).append(length)
        return lengths

    def known_bound(self, tail: int) -> int:
        """Lower bound of partitions with a tail of stage 0; FOREVER: above the ceiling."""
        return self._bounded[tail].bound if tail in self._bounded else -1

    def is_exact(self, tail: int) -> bool:
        """Whether some partition with that tail has this bound."""
        return tail in self._bounded and self._bounded[tail].counted == tail

    def raise_bound(self, tail: int) -> None:
        """Refine the bound of a tail: by the minimum tail of all, then by its own.

        So the work for a single tail is done only if the weaker bound does not exclude it.
        """
        counted = tail if tail in self._bounded else min(self.first_stages)
        bounds = (bound for bound, *_ in self.roots(tail, counted))
        self._bounded[tail] = _Bounded(counted, min(bounds, default=FOREVER))

    def _suffix(self, tail: int, level: int) -> Ints:
        """[first][second][middle]: minimum bound over all devices after a level."""
        if tail not in self._suffixes:
            self._suffixes[tail] = [self._end()]
        levels = self._suffixes[tail]
        for choices in self._choices_upto(self.space.num_devices - 1)[-len(levels) : 0 : -1]:
            checkpoint()
            weight = choices.bound.with_tail(tail)
            indices = np.flatnonzero(weight <= self.ceiling)
            candidates = choices.positions.at(indices)
            ends = self._ends(candidates)
            levels.append(
                min_by_position(candidates, weight[indices], levels[-1], ends, np.maximum)
            )
        return levels[-1 - level]

    def roots(self, tail: int, counted: int) -> list[tuple[int, int, Runs]]:
        """Choices of the first device for a tail of stage 0: minimum bound, middle cut, runs.

        `counted` is the tail that the bound uses.
        """
        lengths, roots = self.first_stages[tail], []
        for middle, _ in self._starts():
            if middle % LOOK == LOOK - 1:
                checkpoint()
            steps = self.steps((), counted, middle)
            roots += [(bound, middle, runs) for bound, runs in steps if runs.first in lengths]
        return roots

    def steps(self, path: tuple[Runs, ...], tail: int, middle: int) -> list[tuple[int, Runs]]:
        """Choices of the next device within the ceiling, with the minimum bound from there on."""
        choices = self._choices_upto(len(path))[len(path)]
        choices = choices.at(choices.positions.beginning_at(self._positions(path, middle)))
        row = middle if self.pattern is PlacementPattern.LOOP else 0
        rest = self._suffix(tail, len(path))[(*self._ends(choices.positions), row)]
        bounds = np.maximum(choices.bound.with_tail(tail), rest)
        indices = np.flatnonzero(bounds <= self.ceiling)
        return list(zip(bounds[indices].tolist(), choices.at(indices).runs(), strict=True))

    def hosted_on(
        self, paths: Sequence[tuple[Runs, ...]], middles: Sequence[int]
    ) -> Iterator[list[Hosted]]:
        """Stages of the devices of paths of equal length, with one choice per path."""
        starts = [self._positions((), middle) for middle in middles]
        first, second = np.array(starts, np.int64).T
        for level, runs in enumerate(np.array(paths, np.int64).transpose(1, 2, 0)):
            positions = RunPositions(first, second, *runs)
            yield self._hosted(level, positions)
            first, second = self._ends(positions)

    def _positions(self, path: tuple[Runs, ...], middle: int) -> tuple[int, int]:
        positions = {
            PlacementPattern.SINGLE: (0, 0),
            PlacementPattern.V: (0, self.space.num_layers),
            PlacementPattern.LOOP: (0, middle),
        }
        position = positions[self.pattern]
        for runs in path:
            second = position[1] + self.pattern.value * runs.second
            position = position[0] + runs.first, second
        return position

    def counts(self, path: tuple[Runs, ...]) -> Counts:
        """Layers of every stage on a complete path."""
        firsts = [runs.first for runs in path]
        seconds = [runs.second for runs in path]
        if self.pattern is PlacementPattern.SINGLE:
            return tuple(firsts)
        return (*firsts, *(seconds[::-1] if self.pattern is PlacementPattern.V else seconds))

    # The most even partition.

    def _squares(self, level: int, candidates: RunPositions) -> np.ndarray:
        """Sum of squared stage times of the choices of a device."""
        slow = float(self.space.slowness_of(self.space.hosts[level]))
        return np.asarray(
            sum(
                (slow * _stage_time(self.space, stage.low, stage.high)) ** 2
                for stage in self._hosted(level, candidates)
            )
        )

    def _within(self, level: int, tail: int, ceiling: int) -> RunPositions:
        """Runs that a device may host within a ceiling, for a tail of stage 0."""
        choices = self._choices_upto(level)[level]
        fits = choices.bound.with_tail(tail) <= ceiling
        if not level:
            fits &= np.isin(choices.positions.first_run, self.first_stages[tail])
        return choices.positions.at(fits)

    def _square_suffix(self, tail: int, ceiling: int) -> list[np.ndarray]:
        """Per level, [first][second][middle]: minimum sum of squares from there on."""
        levels = [np.where(self._end() == 0, 0.0, np.inf)]
        for level in range(self.space.num_devices - 1, 0, -1):
            checkpoint()
            candidates = self._within(level, tail, ceiling)
            squares = self._squares(level, candidates)
            levels.append(
                min_by_position(
                    candidates,
                    squares,
                    levels[-1],
                    self._ends(candidates),
                    np.add,
                )
            )
        return levels[::-1]

    def _evenest(self, tail: int, ceiling: int) -> tuple[float, Counts]:
        """The minimum sum of squares for a tail of stage 0, and a partition that has it."""
        path: tuple[Runs, ...] = ()
        total, middle = 0.0, 0
        for level, rest in enumerate(self._square_suffix(tail, ceiling)):
            candidates = self._within(level, tail, ceiling)
            if level:
                candidates = candidates.at(candidates.beginning_at(self._positions(path, middle)))
            middles = np.full_like(candidates.second, middle)
            if self.pattern is PlacementPattern.LOOP and not level:
                middles = candidates.second
            rests = rest[(*self._ends(candidates), middles)]
            squares = self._squares(level, candidates)
            best = int(np.argmin(squares + rests))
            total += float(squares[best])
            middle = int(middles[best])
            runs = int(candidates.first_run[best]), int(candidates.second_run[best])
            path = (*path, Runs(*runs))
        return total, self.counts(path)


class _Bounded(NamedTuple):
    """Bound of all partitions with a certain tail of stage 0."""

    counted: int
    """Tail that the bound uses."""
    bound: int
