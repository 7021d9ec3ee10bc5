"""Explore memory against time: which limit to search next, and for how long.

The largest limit comes first: its bound holds for all. Then comes the least memory of the value
found there, the most memory that is worth having: a search for it ends as soon as it tells whether
a limit allows that value. The rest is bisection over the limits: an interval of limits is halved
where the values at its ends differ, so that a run of n equal optima costs about log2(n) searches. A
search starts from what is known of neighbouring limits: the best schedule of smaller memory, the
next one above the limit (repaired to fit), and the bound of the next larger limit. A limit that
stays open is searched again, each time for twice as long.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from math import inf

from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver.deadline import Callback, Deadline
from ppopt.solver.options import SolveOptions
from ppopt.solver.parameters import FrontierParams
from ppopt.solver.result import Progress, Result, Status
from ppopt.studies.frontier_curve import Curve, Number, ParetoPoint, Proved, Segment
from ppopt.studies.frontier_space import Space, is_settled


@dataclass
class ParetoSearch:
    """State of an exploration."""

    space: Space
    options: SolveOptions
    """The deadline is that of the exploration."""
    curve: Curve
    tried: Counter[int] = field(default_factory=Counter)
    """Number of searches per limit, by position in the list of limits."""
    spent: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds of search per limit, in ticks of memory."""
    impossible: str = ""
    """Why the largest limit that was proved impossible is."""
    given_up: set[int] = field(default_factory=set)
    """Positions of the limits where another search would end like the last one."""
    interrupted: bool = False
    most_level: int | None = None
    """Searches are by work: the first one of a limit has no rounds of all methods, every further
    one has one more, up to so many. None: they are by seconds."""
    goal: Fraction | None = None
    """Least memory is searched for this value or a lower one; None: for the best value found."""

    @property
    def _params(self) -> FrontierParams:
        return self.options.params.frontier

    @property
    def left(self) -> float:
        """Seconds left."""
        return 0.0 if self.interrupted else self.options.deadline.left

    def run(self, hands: Iterable[Schedule]) -> None:
        """Explore, starting from hand strategies, until all is proved, time is up, or Ctrl-C.

        An earlier Ctrl-C ends it with what hand strategies reach.
        """
        self._seed(hands)
        try:
            with interrupts.heard():
                self._search(self._last)
                self._minimize_memory(self._params.edge)
                while self.left > self._params.least and (segment := self._next()) is not None:
                    self._search(self._place(segment))
        except KeyboardInterrupt:
            self.interrupted = True

    @property
    def _last(self) -> int:
        """Position of the largest limit."""
        return len(self.curve.limits) - 1

    def _seed(self, hands: Iterable[Schedule]) -> None:
        """Add the schedules that need no search."""
        for made in self.space.starts(hands):
            self._take(made)

    def minimize_memory(self, made: Schedule) -> None:
        """Find less and less memory for the value of a schedule, or a lower one.

        Until the least memory is proved, until time or work is spent, or until Ctrl-C.
        """
        self._take(made)
        try:
            with interrupts.heard():
                self._minimize_memory(1.0)
        except KeyboardInterrupt:
            self.interrupted = True

    def _minimize_memory(self, share: float) -> None:
        """Find less memory for the goal for a share of the time left, by rounds of bisection.

        At first in the configuration of the best schedule, which is searched much faster than all.
        """
        turn = self.options.deadline.share(share)
        self._minimize_memory_of_best(turn)
        while self.left > self._params.least and not turn.over:
            edge = self._edge()
            if edge is None or not self._bisect(*edge, turn):
                return

    @interrupts.deferred()
    def _minimize_memory_of_best(self, turn: Deadline) -> None:
        """Find less memory in the configuration of the best schedule, by work."""
        made = self.curve.found[-1].schedule if self.curve.found else None
        space = None if made is None else self.space.alone(made)
        if made is None or space is None:
            return
        alone = replace(
            self, space=space, options=self.options.by(turn.share(self._params.alone)),
            curve=Curve(space.limits), tried=Counter(), spent=defaultdict(float), given_up=set(),
            most_level=self.most_level or 0,
        )  # fmt: skip
        alone.minimize_memory(made)
        self.interrupted |= alone.interrupted
        for found in alone.curve.found:
            self._take(found.schedule)

    def _edge(self) -> tuple[int, int] | None:
        """Positions of limits: the goal is impossible at the first, reached at the second.

        None where nothing is found, and where the second is proved to be the least.
        """
        if not self.curve.found:
            return None
        goal = self._goal
        high = bisect_left(self.curve.limits, self.least.limit)
        places = range(high)
        low = bisect_left(
            places, True, key=lambda place: self.curve.low(self.curve.limits[place]) <= goal
        )
        return (low - 1, high) if low < high else None

    @property
    def _goal(self) -> Fraction:
        """The value for which less memory is searched."""
        best = self.curve.found[-1].value
        return best if self.goal is None else max(best, self.goal)

    @property
    def least(self) -> ParetoPoint:
        """The schedule of least memory that reaches the goal."""
        return next(point for point in self.curve.found if point.value <= self._goal)

    @property
    def least_limit(self) -> int:
        """The least limit that may allow the goal, in ticks."""
        edge = self._edge()
        return self.least.limit if edge is None else self.curve.limits[edge[0] + 1]

    def _bisect(self, low: int, high: int, turn: Deadline) -> bool:
        """Halve an interval of limits until it is short; whether another round may bring more."""
        limits, searched = self.curve.limits, False
        while high - low > 1 and not turn.over:
            middle = (low + high) // 2
            if searched and limits[high] - limits[middle] < self._params.edge_step * limits[high]:
                return True
            if middle in self.given_up:
                return searched
            self._search(middle, self._goal)
            searched = True
            edge = self._edge()
            if edge is None:
                return False
            if edge[1] > middle:
                low = middle
            elif edge[1] <= low:
                low = edge[0]
            low, high = max(low, edge[0]), edge[1]
        return searched

    def _take(self, made: Schedule) -> None:
        if made.fits_limits:
            self.curve.add(ParetoPoint(*self.space.point(made), made))

    def _next(self) -> Segment | None:
        """The segment to search next: untried ones of a large step first, then large gaps."""
        useful = (one for one in self.curve.open() if self._place(one) not in self.given_up)
        return min(useful, key=self._urgency, default=None)

    def _urgency(self, segment: Segment) -> tuple[int, Number]:
        tries = self.tried[self._place(segment)]
        if segment.value == inf:
            return tries - 1, -inf
        if not tries and segment.step < self._params.worth * segment.value:
            tries = 1
        width = self.curve.limits[segment.last] - self.curve.limits[segment.first] + 1
        return tries, -(segment.value - segment.low) * width

    def _place(self, segment: Segment) -> int:
        """Position of the limit to search: the middle of the widest untried gap of a segment.

        Where all limits have been tried, the one tried least.
        """
        first, last = segment.first, segment.last
        tried = [place for place in sorted(self.tried) if first <= place <= last]
        edges = [first - 1, *tried, last + 1]
        gap, start = max((b - a, -a) for a, b in pairwise(edges))
        if gap > 1:
            return -start + gap // 2
        return min(tried, key=lambda place: (place in self.given_up, self.tried[place], place))

    @property
    def _least(self) -> float:
        """Least seconds of a search: as long as the largest limit took, if that is proved."""
        largest, best = (
            self.curve.limits[self._last],
            self.curve.best(self.curve.limits[self._last]),
        )
        is_proved = best is not None and self.curve.low(largest) == best.value
        taken = self.spent[largest] if is_proved else 0.0
        params, operations = self._params, self.space.problem.operations
        return max(params.least, params.per_operation * operations, taken)

    def _seconds(self, place: int) -> float:
        """Time for a search: an equal share for every likely point, doubled with every try."""
        if place == self._last and not self.tried[place] and self.space.every:
            return self._params.first * self.left
        matter = min(len(self.curve.limits), 2 * self.space.problem.pipeline.num_devices + 4)
        first = max(self._least, self.options.deadline.seconds / matter)
        return min(self.left, first * (1 << min(self.tried[place], self._params.doublings)))

    @interrupts.deferred()
    def _search(self, place: int, target: Fraction | None = None) -> None:
        """Search a limit; where there is a target, only until it is reached or ruled out.

        Ctrl-C ends the search, and what it found is kept.
        """
        limit = self.curve.limits[place]
        known = (self.curve.best(limit), self.curve.next(limit))
        by_work = self.most_level is not None
        seconds = max(self.left, self._params.least) if by_work else self._seconds(place)
        deadline = Deadline.after(seconds, progress=self._tell(limit))
        result = self.space.search(
            self.space.memory(limit),
            [found.schedule for found in known if found is not None],
            self.curve.bound(limit),
            self.options.by(deadline),
            target,
            self.tried[place] if by_work else None,
        )
        self.spent[limit] += result.solve_seconds
        self._learn(limit, result)
        if target is not None and is_settled(target, result.value, result.lower_bound):
            return
        self.tried[place] += 1
        if self.most_level is not None:
            if self.tried[place] > self.most_level:
                self.given_up.add(place)
        elif max(self._params.given_up, 2 * result.solve_seconds) < seconds:
            self.given_up.add(place)

    def _learn(self, limit: int, result: Result) -> None:
        """Add the outcome of a search."""
        self.interrupted = result.interrupted
        if result.status is Status.INFEASIBLE:
            if limit > self.curve.impossible:
                self.curve.impossible, self.impossible = limit, result.proof
            return
        if result.schedule is not None:
            self._take(result.schedule)
        assert result.lower_bound is not None
        proof = self.space.proof_core(result)
        self.curve.prove(Proved(limit, result.lower_bound, proof, result.certificate))

    def _tell(self, limit: int) -> Callback:
        now = float(self.space.memory(limit))
        where = f"{len(self.curve.found)} points, now limit {now:g}"

        def tell(state: Progress) -> None:
            self.options.deadline.tell(f"{where}, {state.phase}", state.value, state.lower_bound)

        return tell
