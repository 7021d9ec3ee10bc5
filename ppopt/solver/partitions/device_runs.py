"""Runs of consecutive layers that a device may host in the partition program, with bounds.

A choice is one or two runs of layers, given by the positions at which they begin (the state of the
program before the device) and their lengths. Choices are sorted by these, so that the choices of
one state are adjacent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ppopt.cancellation import checkpoint
from ppopt.problem.arrays import Ints
from ppopt.solver.partitions.layer_run_bounds import DeviceBound
from ppopt.solver.partitions.space import FOREVER

Bools = npt.NDArray[np.bool_]
Numbers = npt.NDArray[Any]
"""Integers or floats."""
LOOK = 64
"""Number of groups of choices between two looks."""


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

    def beginning_at(self, position: tuple[int, int]) -> slice:
        """The range of sorted choices whose runs begin at these positions."""
        low, high = np.searchsorted(self.first, (position[0], position[0] + 1))
        lower, upper = np.searchsorted(self.second[low:high], (position[1], position[1] + 1))
        return slice(low + lower, low + upper)


class DeviceRuns(NamedTuple):
    """The choices of a device, sorted by positions and lengths."""

    positions: RunPositions
    bound: DeviceBound

    def at(self, selected: Ints | Bools | slice) -> DeviceRuns:
        """Select choices, in their order."""
        return DeviceRuns(
            self.positions.at(selected), DeviceBound(*(row[selected] for row in self.bound))
        )

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
) -> Numbers:
    """Minimum over the choices of every position of their own value combined with the rest.

    `rest` is the minimum over what follows, by positions [first][second] and rows that do not
    change; it is read at the `ends` of the runs. Its largest value means that nothing follows. The
    result has the same shape, by the positions at which the runs begin. `join` combines two values.
    Choices of equal lengths are joined at once: their rest is the same table, shifted.
    """
    nothing = np.inf if rest.dtype.kind == "f" else FOREVER
    minima = np.full(rest.shape, nothing, rest.dtype)
    begins = positions.first, positions.second
    shift = np.stack(ends) - np.stack(begins)
    order = np.lexsort(shift)
    changes = np.flatnonzero(np.diff(shift[:, order], axis=1).any(axis=0)) + 1
    for index, equal in enumerate(np.split(order, changes) if order.size else ()):
        if index % LOOK == LOOK - 1:
            checkpoint()
        first, second = (row[equal] for row in begins)
        here, there = (
            (_range(first, by), _range(second, also)) for by, also in ((0, 0), shift[:, equal[0]])
        )
        values = np.full((*minima[here].shape[:2], 1), nothing, rest.dtype)
        values[first - here[0].start, second - here[1].start, 0] = own[equal]
        minima[here] = np.minimum(minima[here], join(values, rest[there]))
    return minima


def _range(positions: Ints, shift: int) -> slice:
    """The range of positions, shifted."""
    return slice(int(positions.min()) + int(shift), int(positions.max()) + int(shift) + 1)
