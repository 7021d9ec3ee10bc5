"""The state of a frontier search: schedules found and bounds proved per memory limit.

The bounds are those of each placement; a bound over all placements is the minimum of them.

Limits are in ticks of memory, values in ticks of time. The optimum does not increase with
the limit: a schedule is feasible for every limit from its own peak upwards, and a bound holds for
every limit from its own downwards.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import NamedTuple

from ppopt.schedule.schedule import Schedule
from ppopt.solver.bound import Bound

Value = int | float
"""A value; infinite if there is no schedule."""


class ParetoPoint(NamedTuple):
    """A non-dominated schedule: no other known schedule has less memory and a smaller value."""

    limit: int
    """Largest device peak of the schedule: the smallest limit that allows it."""
    value: int
    schedule: Schedule


class Proved(NamedTuple):
    """A lower bound and the limit for which it was proved; it holds for every smaller limit."""

    limit: int
    bound: Bound


class Segment(NamedTuple):
    """Consecutive open limits with the same best schedule, as indices of the list of limits."""

    first: int
    """Index of the smallest limit that is still open."""
    last: int
    value: Value
    """Value of the best schedule; infinite if there is none."""
    lower_bound: Value
    """Lower bound proved at the last limit."""


@dataclass
class LimitBounds:
    """Bounds of one placement, per limit."""

    proved: list[Proved]
    """Non-dominated bounds by limit ascending, bound descending. The last one has the largest limit
    at which the optimum may change, and holds for larger limits, too."""
    impossible: int = -1
    """Largest limit proved to allow no schedule."""
    why: str = ""
    """Proof of that."""

    def _clamped(self, limit: int) -> int:
        return min(limit, self.proved[-1].limit)

    def bound(self, limit: int) -> Proved:
        """Best bound proved for a limit."""
        index = bisect_left(self.proved, self._clamped(limit), key=lambda bound: bound.limit)
        return self.proved[index]

    def is_infeasible(self, limit: int) -> bool:
        """Whether a limit is proved to allow no schedule."""
        return self._clamped(limit) <= self.impossible

    def lower_bound(self, limit: int) -> Value:
        """Value of the best bound for a limit; infinite if the limit is infeasible."""
        return inf if self.is_infeasible(limit) else self.bound(limit).bound.value

    def learn(self, limit: int, bound: Bound | None, why: str) -> None:
        """Add a bound that a search has proved within a limit; None: why there is no schedule."""
        limit = self._clamped(limit)
        if bound is not None:
            self.add(Proved(limit, bound))
        elif limit > self.impossible:
            self.impossible, self.why = limit, why

    def add(self, new: Proved) -> None:
        """Add a bound unless one of the same or a larger limit is as good."""
        value = new.bound.value
        if self.lower_bound(new.limit) < value:
            retained = [
                old for old in self.proved if old.limit > new.limit or old.bound.value > value
            ]
            self.proved = sorted([*retained, new], key=lambda bound: bound.limit)


@dataclass
class Curve:
    """Schedules found and bounds proved, per limit."""

    limits: Sequence[int]
    """All limits at which the optimum may change, ascending."""
    placements: Sequence[LimitBounds]
    """Bounds of every placement."""
    points: list[ParetoPoint] = field(default_factory=list)
    """Non-dominated schedules by limit ascending, value descending."""

    def best(self, limit: int) -> ParetoPoint | None:
        """Best schedule found within a limit."""
        index = bisect_right(self.points, limit, key=lambda point: point.limit)
        return self.points[index - 1] if index else None

    def value(self, limit: int) -> Value:
        """Best value found within a limit."""
        best = self.best(limit)
        return inf if best is None else best.value

    def around(self, limit: int) -> list[ParetoPoint]:
        """Best schedule found within a limit, and that of minimum memory above it."""
        index = bisect_right(self.points, limit, key=lambda point: point.limit)
        return self.points[max(0, index - 1) : index + 1]

    def lower_bound(self, limit: int) -> Value:
        """Bound over all placements for a limit; infinite if the limit is infeasible."""
        return min(bounds.lower_bound(limit) for bounds in self.placements)

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """Limits, ascending, each with its bound over all placements, if larger ones have less."""
        limits = {proved.limit for bounds in self.placements for proved in bounds.proved}
        limits |= {bounds.impossible for bounds in self.placements if bounds.impossible >= 0}
        lowest: dict[int, int] = {}
        for limit in sorted(limits):
            values = [own.bound(limit).bound.value for own in self.placements]
            value = self.lower_bound(limit)
            lowest[max(values) if value == inf else int(value)] = limit
        return [(limit, value) for value, limit in lowest.items()]

    def add(self, new: ParetoPoint) -> None:
        """Add a schedule unless one of no more memory is as good."""
        if self.value(new.limit) > new.value:
            retained = [
                old for old in self.points if old.limit < new.limit or old.value < new.value
            ]
            self.points = sorted([*retained, new])

    def open(self) -> Iterator[Segment]:
        """Limits whose optimum is not proved, in segments with one best value each."""
        starts = [bisect_left(self.limits, point.limit) for point in self.points]
        values: list[Value] = [inf, *(point.value for point in self.points)]
        edges = pairwise([0, *starts, len(self.limits)])
        for (first, after), value in zip(edges, values, strict=True):
            opens = self.first_open(first, after, value)
            if opens < after:
                yield Segment(opens, after - 1, value, self.lower_bound(self.limits[after - 1]))

    def first_open(self, first: int, after: int, value: Value) -> int:
        """Index of the first limit whose bound is below a value; bounds fall with limits."""
        indices, limits = range(first, after), self.limits
        below = bisect_left(indices, True, key=lambda at: self.lower_bound(limits[at]) < value)
        return first + below
