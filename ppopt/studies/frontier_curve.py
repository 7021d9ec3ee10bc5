"""The frontier of memory and time while it is explored: schedules found and bounds proved.

Limits are in ticks of memory, values in the user's unit of time. The optimum falls as the limit
grows: a schedule counts for every limit from its own peak upwards, a bound for every limit from its
own downwards.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from math import inf
from typing import NamedTuple

from ppopt.schedule.origin import Certificate
from ppopt.schedule.schedule import Schedule

Number = Fraction | float
"""A value; infinite where there is no schedule."""


class ParetoPoint(NamedTuple):
    """A non-dominated schedule: no other one found has both less memory and a smaller value."""

    limit: int
    """Its largest device peak: the least limit that allows it."""
    value: Fraction
    schedule: Schedule


class Proved(NamedTuple):
    """A lower bound and the limit for which it was proved; it holds for every smaller limit."""

    limit: int
    value: Fraction
    proof: str
    """The argument in words, without the space that it covers."""
    certificate: Certificate


class Segment(NamedTuple):
    """Consecutive open limits with the same best schedule, as positions in the list of limits."""

    first: int
    """The least limit that is still open."""
    last: int
    value: Number
    """Value of the best schedule; infinite where there is none."""
    low: Number
    """Proved bound at the last limit."""
    step: Number
    """Improvement of the best schedule of the next segment over this one's."""


@dataclass
class Curve:
    """Schedules found and bounds proved."""

    limits: Sequence[int]
    """Every limit at which the optimum may change, ascending."""
    found: list[ParetoPoint] = field(default_factory=list)
    """By limit ascending, value descending."""
    proved: list[Proved] = field(default_factory=list)
    """By limit ascending, bound descending."""
    impossible: int = -1
    """The largest limit proved to allow no schedule."""

    def best(self, limit: int) -> ParetoPoint | None:
        """The best schedule found within a limit."""
        place = bisect_right(self.found, limit, key=lambda found: found.limit)
        return self.found[place - 1] if place else None

    def next(self, limit: int) -> ParetoPoint | None:
        """The schedule of least memory above a limit."""
        place = bisect_right(self.found, limit, key=lambda found: found.limit)
        return self.found[place] if place < len(self.found) else None

    def bound(self, limit: int) -> Proved | None:
        """The best bound proved for a limit."""
        place = bisect_left(self.proved, limit, key=lambda proved: proved.limit)
        return self.proved[place] if place < len(self.proved) else None

    def low(self, limit: int) -> Number:
        """Value of the best bound for a limit; infinite where no schedule keeps it."""
        if limit <= self.impossible:
            return inf
        proved = self.bound(limit)
        return 0 if proved is None else proved.value

    def add(self, new: ParetoPoint) -> bool:
        """Add a schedule unless one of no more memory is as good; returns whether it was added."""
        known = self.best(new.limit)
        if known is not None and known.value <= new.value:
            return False
        kept = [old for old in self.found if old.limit < new.limit or old.value < new.value]
        self.found = sorted([*kept, new])
        return True

    def prove(self, new: Proved) -> None:
        """Add a bound unless one of the same or a larger limit is as good."""
        if self.low(new.limit) < new.value:
            kept = [old for old in self.proved if old.limit > new.limit or old.value > new.value]
            self.proved = sorted([*kept, new], key=lambda proved: proved.limit)

    def open(self) -> Iterator[Segment]:
        """The limits whose optimum is not proved, cut where the best schedule changes."""
        starts = [bisect_left(self.limits, found.limit) for found in self.found]
        values: list[Number] = [inf, *(found.value for found in self.found)]
        edges = pairwise([0, *starts, len(self.limits)])
        betters = [*values[1:], inf]
        for (first, after), value, better in zip(edges, values, betters, strict=True):
            opens = self._closed(first, after, value)
            if opens < after:
                low = self.low(self.limits[after - 1])
                yield Segment(opens, after - 1, value, low, max(0, value - better))

    def _closed(self, first: int, after: int, value: Number) -> int:
        """Position of the first limit whose bound is below the value; bounds fall with limits."""
        places = range(first, after)
        return first + bisect_left(
            places, True, key=lambda place: self.low(self.limits[place]) < value
        )
