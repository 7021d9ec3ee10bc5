"""Searches memory against time: decides which limit to search next, and for how long.

The largest limit comes first: its bound holds for all limits. The second step finds the minimum
memory that allows the value found there; more memory does not help. A search of this step ends as
soon as it decides whether its limit allows that value. Then every turn searches the limit with the
largest area between value and bound per second: the middle of a range of limits without a search,
or a limit that was searched before, for twice as long. If decisions are open, its search is
resumed. A search starts from the results of neighbouring limits: the best schedule of smaller
memory, the next schedule above the limit (repaired to fit), and the bound of the next larger limit.
If configurations of a large problem are searched, the first turn of a limit only improves these
schedules.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from math import inf

from ppopt.cancellation import equal_part, over, part, seconds_left, shield, turns, within
from ppopt.schedule.schedule import Schedule
from ppopt.solver.choices.process_pool import ProcessPool
from ppopt.solver.options import SolveOptions
from ppopt.solver.parameters import FrontierParams
from ppopt.solver.result import Callback, Progress
from ppopt.studies.frontier_curve import Curve, ParetoPoint, Segment
from ppopt.studies.frontier_problem import FrontierProblem
from ppopt.studies.limit_candidates import limits_of_any


@dataclass
class LimitTurns:
    """The turns of one limit."""

    number: int = 0
    """Number of turns that did not settle a target."""
    seconds: float = 0.0
    exhausted: bool = False
    """Whether another turn would end like the last one."""


@dataclass
class ParetoSearch:
    """The search of a memory/time frontier, in turns of limits."""

    problems: Sequence[FrontierProblem]
    """Problems that differ in placement and chunks; the best schedule of any counts."""
    options: SolveOptions
    """Options of all searches."""
    max_level: int | None = None
    """Maximum number of rounds of a search: the first search of a limit has no rounds of all
    methods, every further one has one more. None: searches are limited by seconds."""
    goal: int = 0
    """Value to reach with less memory, in ticks; the best value found if that is larger."""
    curve: Curve = field(init=False)
    """Schedules found and bounds proved."""
    turns: defaultdict[int, LimitTurns] = field(
        init=False, default_factory=lambda: defaultdict(LimitTurns)
    )
    """Turns of every limit, by index of the list of limits."""

    def __post_init__(self) -> None:
        limits = limits_of_any([problem.limits for problem in self.problems])
        self.curve = Curve(limits, [problem.bounds for problem in self.problems])
        self._pool = ProcessPool(self.options)
        """Processes of the searches within all limits."""

    @property
    def _params(self) -> FrontierParams:
        return self.options.params.frontier

    def run(self, starts: Iterable[Schedule]) -> None:
        """Search, starting from `starts`, until all is proved or an enclosing scope ends.

        After an earlier Ctrl-C, the values of `starts` count. Without problems, there is no search.
        """
        with shield():
            self._take(chain(*(problem.one_at_a_time() for problem in self.problems)))
        self.seed(starts)
        if over() or not self.problems:
            return
        with closing(self._pool):
            self._turn(self._last)
            with part(self._params.edge):
                self._minimize_memory()
            min_seconds = self._params.min_seconds
            while seconds_left() > min_seconds and (index := self._next()) is not None:
                self._turn(index)

    def _next(self) -> int | None:
        """Limit of the next turn; None: none is left."""
        rated = dict(chain.from_iterable(map(self._gains, self.curve.open())))
        return max(rated, key=lambda index: (rated[index], -index), default=None)

    def _gains(self, segment: Segment) -> Iterator[tuple[int, float]]:
        """Limits of a segment to search, with the area between value and bound per second.

        These are the middle of the widest range without a search, and the limits that were searched
        before; if schedules are improved, also the peak of the best one.
        """
        points, (first, last, value, lower_bound) = self.curve.points, segment
        tried = self._tried(first, last)
        edges = [first - 1, *tried, last + 1]
        gap, start = max((b - a, -a) for a, b in pairwise(edges))
        height, width = value - lower_bound, last - first + 1
        if value == inf:
            height = (points[0].value - lower_bound if points else 1) / self._factor(len(tried))
        elif self._improves:
            tried = sorted({first, *tried})
        if gap > 1:
            yield gap // 2 - start, height * gap
        for index in tried:
            if not self.turns[index].exhausted:
                yield index, height * width / self._factor(self.turns[index].number)

    def _factor(self, number: int) -> int:
        """Factor on the seconds of a turn after so many turns."""
        return 1 << min(number, self._params.doublings)

    def _level(self, index: int) -> int:
        """Effort of the next turn of a limit; -1: it improves the best schedule."""
        known = self.curve.value(self.curve.limits[index]) < inf
        return self.turns[index].number - (known and self._improves and index != self._last)

    @property
    def _is_large(self) -> bool:
        """Whether problems are too large for a search whose result does not depend on the clock."""
        operations = self.problems[0].problem.num_operations
        return operations > self.options.params.plan.max_reproducible

    @property
    def _improves(self) -> bool:
        """Whether the first turn of a limit improves known schedules."""
        return self.problems[0].improves and self._is_large

    @property
    def _last(self) -> int:
        """Index of the largest limit."""
        return len(self.curve.limits) - 1

    def seed(self, starts: Iterable[Schedule]) -> None:
        """Add schedules of strategies; they need no search."""
        known = list(starts)
        with shield():
            self._take(chain(*(problem.starts(known) for problem in self.problems)))

    def minimize_memory(self, schedules: Iterable[Schedule]) -> None:
        """Minimise memory at the goal or, without one, at the best value of known schedules.

        Ends when the minimum is proved, when work is spent, or with an enclosing scope.
        """
        self._take(schedules)
        with closing(self._pool):
            self._minimize_memory()

    def _minimize_memory(self) -> None:
        """Minimise memory at the goal, by bisection."""
        while self.curve.points and seconds_left() > self._params.min_seconds:
            index = self._edge_index()
            if index is None or self.turns[index].exhausted:
                return
            self._turn(index, self._goal)

    def problem_of(self, schedule: Schedule) -> FrontierProblem:
        """The first problem to which a schedule belongs."""
        return next(problem for problem in self.problems if problem.comparable(schedule))

    @property
    def _goal(self) -> int:
        """Value to reach with less memory."""
        return max(self.curve.points[-1].value, self.goal)

    @property
    def min_memory_point(self) -> ParetoPoint:
        """Schedule of minimum memory that reaches the goal."""
        return next(point for point in self.curve.points if point.value <= self._goal)

    @property
    def min_limit(self) -> int:
        """Smallest limit that may allow the goal, in ticks."""
        return min(self.min_memory_point.limit, self.curve.limits[self._edge[0]])

    @property
    def _edge(self) -> tuple[int, int]:
        """Indices of the smallest limit that may allow the goal, and of one that does."""
        high = bisect_left(self.curve.limits, self.min_memory_point.limit)
        return self.curve.first_open(0, high, self._goal + 1), high

    def _edge_index(self) -> int | None:
        """Limit to search next for the goal; None: the minimum is proved.

        A limit that was not decided counts as one without the goal, until the bracket is short.
        Then the limits of the bracket are searched longer.
        """
        limits, (low, high) = self.curve.limits, self._edge
        if low == high:
            return None
        undecided = self._tried(low, high - 1)
        start = max(undecided, default=low - 1)
        middle = (start + high) // 2
        is_short = limits[high] - limits[middle] < self._params.edge_step * limits[high]
        if undecided and (start == middle or is_short):
            return min(undecided, key=lambda index: (self.turns[index].number, index))
        return middle

    def _take(self, schedules: Iterable[Schedule]) -> None:
        for schedule in schedules:
            if schedule.fits_limits:
                self.curve.add(ParetoPoint(*self.problems[0].point(schedule), schedule))

    def _tried(self, first: int, last: int) -> list[int]:
        """Indices of the limits from the first to the last that had a turn, ascending."""
        known = sorted(self.turns.items())
        return [index for index, each in known if each.number and first <= index <= last]

    def _seconds(self, index: int) -> float:
        """Seconds of a turn, doubled with every search of a limit.

        At first these are an equal share for every likely point, and the time of the largest limit
        if that is proved. The largest limit has a large share if configurations are searched.
        """
        left, params, own = seconds_left(), self._params, self.problems[0]
        if self.max_level is not None:
            return max(params.by_work * left, params.min_seconds)
        if index == self._last and not self.turns[index].number and own.decisions:
            return params.first * left
        operations, devices = own.problem.num_operations, own.problem.pipeline.num_devices
        each = params.improved_per_operation if self._improves else params.per_operation
        share = self.options.time_limit / min(len(self.curve.limits), 2 * devices + 4)
        first = max(params.min_seconds, each * operations, share)
        largest = self.curve.limits[self._last]
        if self.curve.value(largest) == self.curve.lower_bound(largest):
            first = max(first, self.turns[self._last].seconds)
        return min(left, first * self._factor(max(0, self._level(index))))

    def _turn(self, index: int, target: int | None = None) -> None:
        """Search a limit; with a target, only until it is reached or excluded.

        The problem of the best schedule comes first. Each ends at the best value of those before
        it, and has an equal part of the time they left.
        """
        limit, own, seconds = self.curve.limits[index], self.turns[index], self._seconds(index)
        starts = [point.schedule for point in self.curve.around(limit)]
        order = sorted(self.problems, key=lambda each: not any(map(each.comparable, starts[:1])))
        level = self._level(index)
        max_level = inf if level >= 0 and self.max_level is None else level
        options = replace(self.options, progress=self._tell(limit))
        began = options.spent
        with within(seconds):
            for problem, turn in turns(order, equal_part):
                cutoff = inf if problem is order[0] else self.curve.value(limit)
                if target is not None:
                    cutoff = min(cutoff, target + 1)
                if problem is order[0] or problem.bounds.lower_bound(limit) < cutoff:
                    with turn:
                        schedule = problem.search(
                            limit,
                            starts,
                            options,
                            self._pool,
                            max_level,
                            target=target,
                            cutoff=cutoff,
                        )
                        self._take(filter(None, (schedule,)))
        spent = options.spent - began
        own.seconds += spent
        value, lower_bound = self.curve.value(limit), self.curve.lower_bound(limit)
        if target is not None and (value <= target or target < lower_bound):
            return
        own.number += 1
        if self.max_level is None:
            own.exhausted |= max(self._params.given_up, 2 * spent) < seconds
        else:
            own.exhausted |= level >= self.max_level

    def seconds(self, limit: int) -> float:
        """Seconds of search at the smallest limit that allows a peak, both in ticks."""
        return self.turns[bisect_left(self.curve.limits, limit)].seconds

    def _tell(self, limit: int) -> Callback:
        now = float(self.problems[0].memory(limit))

        def tell(state: Progress) -> None:
            phase = f"{len(self.curve.points)} points, now limit {now:g}, {state.phase}"
            self.options.announce(state._replace(seconds=self.options.spent, phase=phase))

        return tell
