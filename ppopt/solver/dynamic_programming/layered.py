"""The search, length by length: all beginnings of n operations, then those of n + 1."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ppopt.solver.dynamic_programming import dominance
from ppopt.solver.dynamic_programming.beam import Beam
from ppopt.solver.dynamic_programming.classes import Classes
from ppopt.solver.dynamic_programming.states import States


class Step(NamedTuple):
    """How the beginnings of one length came from those one shorter."""

    parent: npt.NDArray[np.int32]
    added: npt.NDArray[np.int16]


class Sweep:
    """A search for the schedule that ends first, before a given time; it can be resumed."""

    def __init__(self, classes: Classes, below: int) -> None:
        self.classes = classes
        self._space = States(classes, below)
        self._states = self._space.root()
        self._starts = self._space.starts(self._states)
        self._steps: list[Step] = []
        self._length = len(classes) * classes.batches
        self.below = below
        """Only schedules that end before this are searched; it may be lowered between runs."""

    @property
    def width(self) -> int:
        """Beginnings to be followed now."""
        return int(self._states.shape[1])

    @property
    def left(self) -> int:
        """Operations to be added until beginnings are whole schedules."""
        return self._length - len(self._steps)

    @property
    def ended(self) -> bool:
        """Whether all beginnings were followed to their ends."""
        return not self.width or not self.left

    @property
    def entries(self) -> int:
        """Numbers held for the beginnings of one length."""
        return self._states.size

    def advance(self, beam: Beam | None = None) -> None:
        """Add one operation to every beginning; keep what may end in time and is not outdone.

        Of these only what `beam` chooses: then the end is no longer known to be the best.
        """
        space = self._space
        states, parent, added = space.grow(self._states, self._starts)
        starts = space.starts(states)
        space.settle(states, starts)
        bounds = space.bound(states, starts)
        hopeful = np.flatnonzero(bounds < self.below)
        if hopeful.size < states.shape[1]:
            states = states.take(hopeful, axis=1)
        kept = dominance.kept(states[space.counts], states[space.flags], states[space.times])
        if beam is not None:
            kept = beam.chosen(space, states, bounds[hopeful], kept)
        self._states = states.take(kept, axis=1)
        kept = hopeful[kept]
        self._starts = starts.take(kept, axis=1)
        self._steps.append(Step(parent[kept].astype(np.int32), added[kept]))

    @property
    def best(self) -> int | None:
        """Of a search that has ended: the least end before the one asked for; None: none."""
        ends = self._states[self._space.least]
        return min((int(end) for end in ends if end < self.below), default=None)

    @property
    def least(self) -> int:
        """Of a search that has ended: no schedule ends before."""
        return self.below if self.best is None else self.best

    def path(self) -> list[int]:
        """Class of every operation of the schedule that ends first, as the data flow allows."""
        place, found = int(self._states[self._space.least].argmin()), []
        for step in reversed(self._steps):
            found.append(int(step.added[place]))
            place = int(step.parent[place])
        return found[::-1]
