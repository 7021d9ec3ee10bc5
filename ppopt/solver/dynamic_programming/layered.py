"""Dynamic programming layer by layer: all states with n operations, then those with n + 1."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ppopt.solver.dynamic_programming import dominance
from ppopt.solver.dynamic_programming.classes import Classes
from ppopt.solver.dynamic_programming.states import States


class StateLayer(NamedTuple):
    """For every state of a layer: the state of the layer before that it extends."""

    parent: npt.NDArray[np.int32]
    added: npt.NDArray[np.int16]
    """Class of the added operation."""


class LayeredDP:
    """A resumable search for the schedule of minimum makespan below a given value.

    With at most `width` states per vector of counts, the other ones are merged: the result is then
    a lower bound, and there is no schedule of it.
    """

    def __init__(self, classes: Classes, below: int, width: int | None = None) -> None:
        self.classes = classes
        self._width = width
        self.exact = True
        """Whether no states were merged so far."""
        self._space = States(classes, below)
        self._states = self._space.root()
        self._starts = self._space.starts(self._states)
        self._layers: list[StateLayer] = []
        self._length = len(classes) * classes.batches
        self.below = below
        """Only schedules shorter than this number of ticks are searched. Callers may lower it
        between layers."""

    @property
    def width(self) -> int:
        """Number of states of the present layer."""
        return int(self._states.shape[1])

    @property
    def remaining_layers(self) -> int:
        """Number of layers until states are complete schedules."""
        return self._length - len(self._layers)

    @property
    def ended(self) -> bool:
        """Whether the last layer is reached, or no state remains."""
        return not self.width or not self.remaining_layers

    @property
    def entries(self) -> int:
        """Number of matrix entries of the present layer."""
        return self._states.size

    def advance(self) -> None:
        """Add one operation to every state; keep states with a bound below `below` (`reduced`).

        A scope may end this (`ppopt.cancellation`); the present layer is then unchanged.
        """
        space = self._space
        states, parent, added = space.extend(self._states, self._starts)
        starts = space.starts(states)
        space.normalise(states, starts)
        bounds = space.bound(states, starts)
        hopeful = np.flatnonzero(bounds < self.below)
        if hopeful.size < states.shape[1]:
            states, starts = (each.take(hopeful, axis=1) for each in (states, starts))
        rows = space.counts, space.flags, space.times
        reduction = dominance.reduced(states, *rows, self._width)
        self._states, self._starts = (
            each.take(reduction.columns, axis=1) for each in (states, starts)
        )
        self.exact &= not reduction.merged.size
        if reduction.merged.size:
            self._states[:, reduction.merged] = reduction.minima
            self._starts[:, reduction.merged] = space.starts(reduction.minima)
        selected = hopeful[reduction.columns]
        self._layers.append(StateLayer(parent[selected].astype(np.int32), added[selected]))

    @property
    def best(self) -> int | None:
        """Minimum makespan if it is less than `below`, else None; the search must have ended."""
        ends = self._states[self._space.bound_row]
        return min((int(end) for end in ends if end < self.below), default=None)

    @property
    def lower_bound(self) -> int:
        """Lower bound on the makespan; the search must have ended."""
        return self.below if self.best is None else self.best

    def path(self) -> list[int]:
        """Class of every operation of the shortest schedule, in topological order."""
        column, classes = int(self._states[self._space.bound_row].argmin()), []
        for layer in reversed(self._layers):
            classes.append(int(layer.added[column]))
            column = int(layer.parent[column])
        return classes[::-1]
