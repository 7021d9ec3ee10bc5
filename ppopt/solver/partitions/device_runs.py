"""Runs of consecutive layers that a device may host in the partition program, with bounds.

A choice is one or two runs of layers, given by the positions at which they begin (the state of the
program before the device) and their lengths. Choices are sorted by these, so that the choices of
one state are adjacent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ppopt.problem.arrays import Ints
from ppopt.solver.partitions.layer_run_bounds import DeviceBound
from ppopt.solver.partitions.space import FOREVER

Bools = npt.NDArray[np.bool_]
Numbers = npt.NDArray[Any]
"""Integers or floats."""
TOGETHER = 2**14
"""Choices whose paths are computed at once."""


class Runs(NamedTuple):
    """Runs of one device: `first` layers at the first position, `second` layers at the second."""

    first: int
    second: int


class RunPositions(NamedTuple):
    """Positions and lengths of runs, one entry per choice; `second` is 0 if there is one run."""

    first: Ints
    second: Ints
    first_run: Ints
    second_run: Ints

    def at(self, selected: Ints | Bools | slice) -> RunPositions:
        """Select choices."""
        return RunPositions(*(row[selected] for row in self))


class DeviceRuns(NamedTuple):
    """The choices of a device, sorted by positions and lengths."""

    positions: RunPositions
    bound: DeviceBound

    def at(self, selected: Ints | Bools | slice) -> DeviceRuns:
        """Select choices, in their order."""
        return DeviceRuns(
            self.positions.at(selected), DeviceBound(*(row[selected] for row in self.bound))
        )

    def beginning_at(self, position: tuple[int, int]) -> DeviceRuns:
        """Select the choices whose runs begin at these positions."""
        first, second = self.positions[:2]
        low, high = np.searchsorted(first, (position[0], position[0] + 1))
        lower, upper = np.searchsorted(second[low:high], (position[1], position[1] + 1))
        return self.at(slice(low + lower, low + upper))

    def runs(self) -> Iterator[Runs]:
        """Lengths of the runs of every choice."""
        lengths = zip(
            self.positions.first_run.tolist(), self.positions.second_run.tolist(), strict=True
        )
        return (Runs(*length) for length in lengths)


def joined(parts: Sequence[RunPositions]) -> RunPositions:
    """Concatenate and sort choices."""
    if not parts:
        return RunPositions(*np.zeros((4, 0), np.int64))
    rows = RunPositions(*map(np.concatenate, zip(*parts, strict=True)))
    return rows.at(np.lexsort(rows[::-1]))


def min_by_position(
    positions: RunPositions,
    own: Numbers,
    rest: Numbers,
    ends: tuple[Ints, Ints],
    join: np.ufunc,
    look: Callable[[], None] = lambda: None,
) -> Numbers:
    """Minimum over the choices of every position of their own value combined with the rest.

    `rest` is the minimum over what follows, by positions [first][second] and rows that do not
    change; it is read at the `ends` of the runs. Its largest value means that nothing follows. The
    result has the same shape, by the positions at which the runs begin. `join` combines two values.
    `look` is called between batches of choices.
    """
    nothing = np.inf if rest.dtype.kind == "f" else FOREVER
    minima = np.full(rest.shape, nothing, rest.dtype)
    alive = np.flatnonzero(np.any(rest < nothing, axis=-1)[ends])
    positions, own, ends = positions.at(alive), own[alive], (ends[0][alive], ends[1][alive])
    for index, batch in enumerate(_batches(positions)):
        if index:
            look()
        paths = join(own[batch, None], rest[ends[0][batch], ends[1][batch]])
        first, second = positions.first[batch], positions.second[batch]
        begin = _beginnings(first, second)
        minima[first[begin], second[begin]] = np.minimum.reduceat(paths, begin, axis=0)
    return minima


def _beginnings(first: Ints, second: Ints) -> Ints:
    """Indices at which the choices of another position begin."""
    changes = (np.diff(first) != 0) | (np.diff(second) != 0)
    return np.concatenate([[0], 1 + np.flatnonzero(changes)])


def _batches(positions: RunPositions) -> Iterator[slice]:
    """Batches of choices of limited size; the choices of a position are in the same batch."""
    count = len(positions.first)
    if not count:
        return
    begin = _beginnings(positions.first, positions.second)
    cuts = np.unique(begin[np.searchsorted(begin, np.arange(0, count, TOGETHER), "right") - 1])
    for low, high in pairwise([*cuts.tolist(), count]):
        yield slice(low, high)
