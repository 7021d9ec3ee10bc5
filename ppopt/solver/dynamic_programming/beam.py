"""Which beginnings to follow where all are too many: a search for good schedules, not a proof.

Dynamic programming restricted to the most promising states, after Malandraki and Dial ("A
restricted dynamic programming heuristic algorithm for the time dependent traveling salesman
problem", European Journal of Operational Research 90, 1996).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppopt.solver.dynamic_programming.states import Matrix, Places, States


@dataclass(frozen=True)
class Beam:
    """A limit to the beginnings of one length, and what is preferred."""

    most: int
    bounds_first: bool
    """The least bound, and among equal ones the least sum over devices of waits and work; or
    the latter alone."""

    def chosen(self, space: States, states: Matrix, bounds: Matrix, places: Places) -> Places:
        """The most promising of these places of `states`."""
        if places.size <= self.most:
            return places
        keys = [np.sum(list(space.loads(states.take(places, axis=1))), axis=0)]
        if self.bounds_first:
            keys.append(bounds[places])
        return places[np.lexsort(keys)[: self.most]]
