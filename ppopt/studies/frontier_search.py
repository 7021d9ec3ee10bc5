"""Searches memory against time: decides which limit to search next, and for how long.

The largest limit comes first: its bound holds for all limits. The second step finds the minimum
memory that allows the value found there; more memory does not help. A search of this step ends as
soon as it decides whether its limit allows that value. The rest is bisection over the limits: an
interval of limits is halved if the values at its ends differ, so that n adjacent limits with equal
optima cost about log2(n) searches. A search starts from the results of neighbouring limits: the
best schedule of smaller memory, the next schedule above the limit (repaired to fit), and the bound
of the next larger limit. A limit that stays open is searched again, each time for twice as long.
If configurations of a large problem are searched, schedules are also improved within their own
peaks, one after each search of a limit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain, count, pairwise
from math import inf

from ppopt.cancellation import over, part, seconds_left, shield, within
from ppopt.schedule.schedule import Schedule
from ppopt.solver.choices.configuration import Configuration
from ppopt.solver.choices.search import ANY_EFFORT, IMPROVEMENT, Effort
from ppopt.solver.choices.search_processes import ProcessPool
from ppopt.solver.choices.search_tasks import SearchTask
from ppopt.solver.options import SolveOptions
from ppopt.solver.parameters import FrontierParams
from ppopt.solver.result import Callback, Progress, Result
from ppopt.studies.frontier_curve import Curve, ParetoPoint, Segment, Value
from ppopt.studies.frontier_problem import FrontierProblem
from ppopt.studies.limit_candidates import limits_of_any


@dataclass
class LimitSearches:
    """The searches of one limit."""

    tried: int = 0
    """Number of searches that did not settle a target."""
    seconds: float = 0.0
    exhausted: bool = False
    """Whether another search would end like the last one."""


@dataclass
class ParetoSearch:
    """The search of a memory/time frontier by bisection over limits."""

    problems: Sequence[FrontierProblem]
    """Problems that differ in placement and chunks; the best schedule of any counts."""
    options: SolveOptions
    """Options of all searches."""
    max_level: int | None = None
    """Maximum number of rounds of a search: the first search of a limit has no rounds of all
    methods, every further one has one more. None: searches are limited by seconds."""
    goal: int | None = None
    """Value to reach with less memory, in ticks; None: the best value found."""
    curve: Curve = field(init=False)
    """Schedules found and bounds proved."""
    searches: defaultdict[int, LimitSearches] = field(
        init=False, default_factory=lambda: defaultdict(LimitSearches)
    )
    """Searches of every limit, by index of the list of limits."""

    def __post_init__(self) -> None:
        limits = limits_of_any([problem.limits for problem in self.problems])
        self.curve = Curve(limits, [problem.bounds for problem in self.problems])
        self._pool = ProcessPool(self.options)
        """Processes of the searches within all limits."""
        self._vain = Counter[Value]()
        """Number of improvements in vain of a schedule, by its value."""

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
            self._search(self._last)
            with part(self._params.edge):
                self._minimize_memory()
            while seconds_left() > self._params.min_seconds:
                segment = self._next()
                if segment is not None:
                    self._search(self._index(segment))
                if not self._improve() and segment is None:
                    return

    def _improve(self) -> bool:
        """Improve the schedules with the largest gaps, within their own peaks and without bounds.

        As many at once as there are processes; alone, a search also starts from the next schedule.
        Returns False if there is none.
        """
        gains = sorted(filter(self._gain, self.curve.open()), key=self._gain, reverse=True)
        ends = [self.curve.limits[segment.last] for segment in gains[: self._pool.at_once(1)]]
        points = list(filter(None, map(self.curve.best, ends)))
        if not points:
            return False
        doublings = min(self._vain[point.value] for point in points)
        seconds = min(seconds_left(), self._turn_seconds * (1 << doublings))
        processes = self._pool.processes(min_workers=1)
        if processes is None or len(points) == 1:
            del points[1:]
            own = [self.problem_of(points[0].schedule)]
            self._search_problems(own, points[0].limit, seconds, IMPROVEMENT)
        else:
            tasks = (self._improvement(point, seconds) for point in points)
            processes.run(tasks, self._receive, over=over, cutoff=lambda _: None)
        for point in points:
            self._vain[point.value] += self.curve.best(point.limit) == point
        return True

    def _improvement(self, point: ParetoPoint, seconds: float) -> tuple[Configuration, SearchTask]:
        """Search of a process for a better schedule of a configuration."""
        own = self.problem_of(point.schedule)
        task = own.improvement(point.schedule, self.options, seconds)
        return Configuration((point.limit,), 0), task

    def _receive(self, _: Configuration, result: Result) -> None:
        """Add the schedule of a search in a process."""
        self._take(filter(None, (result.schedule,)))
        self.options.tell(f"{len(self.curve.points)} points")

    def _gain(self, segment: Segment) -> float:
        """Area between value and bound of a segment per second of its next improvement.

        Above the last limit there is no other: its segment counts as one of mean width.
        """
        vain = self._vain[segment.value]
        if not self._by_clock or segment.value == inf or vain > self._params.max_vain:
            return 0
        width = segment.last - segment.first + 1
        if segment.last == self._last:
            width = max(width, len(self.curve.limits) // len(self.curve.points))
        return (segment.value - segment.lower_bound) * width / (1 << vain)

    @property
    def _by_clock(self) -> bool:
        """Whether problems are too large for a search whose result does not depend on the clock.

        Then the best schedules are also improved between the searches of limits.
        """
        own, max_reproducible = self.problems[0], self.options.params.plan.max_reproducible
        return bool(own.decisions) and own.problem.num_operations > max_reproducible

    @property
    def _last(self) -> int:
        """Index of the largest limit."""
        return len(self.curve.limits) - 1

    def seed(self, starts: Iterable[Schedule]) -> None:
        """Add schedules of strategies; they need no search."""
        known = list(starts)
        with shield():
            self._take(chain(*(problem.starts(known) for problem in self.problems)))

    def minimize_memory(self, schedule: Schedule) -> None:
        """Minimise memory at the value of a schedule or a lower one.

        Ends when the minimum is proved, when work is spent, or with an enclosing scope.
        """
        self._take((schedule,))
        with closing(self._pool):
            self._minimize_memory()

    def _minimize_memory(self) -> None:
        """Minimise memory at the goal, by bisection.

        The configuration of the best schedule comes first: its search is much faster than all.
        """
        with part(self._params.alone):
            self._minimize_memory_of_best()
        while seconds_left() > self._params.min_seconds:
            index = self._edge_index()
            if index is None or self.searches[index].exhausted:
                return
            self._search(index, self._goal)

    def _minimize_memory_of_best(self) -> None:
        """Minimise memory in the configuration of the best schedule, limited by work."""
        if not self.curve.points:
            return
        schedule = self.curve.points[-1].schedule
        problem = self.problem_of(schedule).of_configuration(schedule)
        if problem is None:
            return
        narrow = replace(self, problems=[problem], max_level=self.max_level or 0)
        narrow.minimize_memory(schedule)
        self._take(point.schedule for point in narrow.curve.points)

    def problem_of(self, schedule: Schedule) -> FrontierProblem:
        """The first problem to which a schedule belongs."""
        return next(problem for problem in self.problems if problem.comparable(schedule))

    def _edge(self) -> tuple[int, int] | None:
        """Bracket of the minimum limit: indices of a limit without the goal and of one with it.

        None if there is no schedule, or if the second is proved to be the minimum.
        """
        if not self.curve.points:
            return None
        goal = self._goal
        high = bisect_left(self.curve.limits, self.min_memory_point.limit)
        indices = range(high)
        low = bisect_left(
            indices,
            True,
            key=lambda index: self.curve.lower_bound(self.curve.limits[index]) <= goal,
        )
        return (low - 1, high) if low < high else None

    @property
    def _goal(self) -> int:
        """Value to reach with less memory."""
        best = self.curve.points[-1].value
        return best if self.goal is None else max(best, self.goal)

    @property
    def min_memory_point(self) -> ParetoPoint:
        """Schedule of minimum memory that reaches the goal."""
        return next(point for point in self.curve.points if point.value <= self._goal)

    @property
    def min_limit(self) -> int:
        """Smallest limit that may allow the goal, in ticks."""
        edge = self._edge()
        return self.min_memory_point.limit if edge is None else self.curve.limits[edge[0] + 1]

    def _edge_index(self) -> int | None:
        """Limit of the bracket to search next; None: the minimum is proved.

        A limit that was not decided counts as one without the goal, until the bracket is short. The
        next round begins with all limits of the bracket, and searches each of them longer.
        """
        edge = self._edge()
        if edge is None:
            return None
        limits, (low, high) = self.curve.limits, edge
        undecided = self._tried(low + 1, high - 1)
        for rounds in count():
            start = max((at for at in undecided if self.searches[at].tried > rounds), default=low)
            middle = (start + high) // 2
            is_short = limits[high] - limits[middle] < self._params.edge_step * limits[high]
            if start == low or (start < middle and not is_short):
                return middle
        raise AssertionError("the first round without an undecided limit has a middle")

    def _take(self, schedules: Iterable[Schedule]) -> None:
        for schedule in schedules:
            if schedule.fits_limits:
                self.curve.add(ParetoPoint(*self.problems[0].point(schedule), schedule))

    def _next(self) -> Segment | None:
        """Segment to search next: untried ones of a large step first, then large gaps."""
        useful = (
            segment
            for segment in self.curve.open()
            if not self.searches[self._index(segment)].exhausted
        )
        return min(useful, key=self._urgency, default=None)

    def _urgency(self, segment: Segment) -> tuple[int, Value]:
        if segment.value == inf:
            tried = self._tried(segment.first, segment.last)
            return len(tried) - (not self._by_clock), -inf
        tries = self.searches[self._index(segment)].tried
        if not tries and segment.step < self._params.worth * segment.value:
            tries = 1
        width = self.curve.limits[segment.last] - self.curve.limits[segment.first] + 1
        return tries, -(segment.value - segment.lower_bound) * width

    def _index(self, segment: Segment) -> int:
        """Index of the limit to search: the middle of the widest untried gap of a segment.

        If all limits have been tried, the one with the fewest tries.
        """
        tried = self._tried(segment.first, segment.last)
        edges = [segment.first - 1, *tried, segment.last + 1]
        gap, start = max((b - a, -a) for a, b in pairwise(edges))
        if gap > 1:
            return -start + gap // 2
        searches = self.searches
        return min(tried, key=lambda at: (searches[at].exhausted, searches[at].tried, at))

    def _tried(self, first: int, last: int) -> list[int]:
        """Indices of the limits from the first to the last that were searched, ascending."""
        known = sorted(self.searches.items())
        return [index for index, each in known if each.tried and first <= index <= last]

    @property
    def _min_seconds(self) -> float:
        """Minimum seconds of a search: the time of the largest limit, if that is proved."""
        largest = self.curve.limits[self._last]
        best = self.curve.best(largest)
        is_proved = best is not None and self.curve.lower_bound(largest) == best.value
        taken = self.searches[self._last].seconds if is_proved else 0.0
        params, operations = self._params, self.problems[0].problem.num_operations
        each = params.improved_per_operation if self._by_clock else params.per_operation
        return max(params.min_seconds, each * operations, taken)

    def _seconds(self, index: int) -> float:
        """Seconds of a search, doubled with every try."""
        if self.max_level is not None:
            return max(self._params.by_work * seconds_left(), self._params.min_seconds)
        tried = self.searches[index].tried
        if index == self._last and not tried and self.problems[0].decisions:
            return self._params.first * seconds_left()
        doublings = min(tried, self._params.doublings)
        return min(seconds_left(), self._turn_seconds * (1 << doublings))

    @property
    def _turn_seconds(self) -> float:
        """Seconds of the first search of a limit: an equal share for every likely point."""
        matter = min(len(self.curve.limits), 2 * self.problems[0].problem.pipeline.num_devices + 4)
        return max(self._min_seconds, self.options.time_limit / matter)

    def _search(self, index: int, target: int | None = None) -> None:
        """Search a limit; with a target, only until it is reached or excluded."""
        limit, searches = self.curve.limits[index], self.searches[index]
        seconds, effort = self._seconds(index), ANY_EFFORT
        if self.max_level is not None:
            effort = Effort(searches.tried, self._params.quick << searches.tried)
        spent = self._search_problems(self.problems, limit, seconds, effort, target)
        searches.seconds += spent
        if target is not None and self._is_settled(limit, target):
            return
        searches.tried += 1
        if self.max_level is None:
            searches.exhausted |= max(self._params.given_up, 2 * spent) < seconds
        else:
            searches.exhausted |= searches.tried > self.max_level

    def _search_problems(
        self,
        problems: Iterable[FrontierProblem],
        limit: int,
        seconds: float,
        effort: Effort,
        target: int | None = None,
    ) -> float:
        """Search some problems within a limit, that of the best schedule first; return the seconds.

        Each ends at the best value of those before it, and has an equal part of the time they left.
        """
        points = filter(None, (self.curve.best(limit), self.curve.next(limit)))
        starts = [point.schedule for point in points]
        order = sorted(problems, key=lambda own: not any(map(own.comparable, starts[:1])))
        best, enough, spent = inf, -inf if target is None else target, 0.0
        with within(seconds):
            options = self.options.in_scope(self._tell(limit))
        with shield():
            for problem, turn in options.turns(order):
                if spent and (best <= enough or problem.bounds.lower_bound(limit) >= best):
                    continue
                result = problem.search(limit, starts, turn, self._pool, target, effort, best)
                spent += result.solve_seconds
                if result.schedule is not None and result.value_ticks is not None:
                    self._take((result.schedule,))
                    best = min(best, result.value_ticks)
        return spent

    def seconds(self, limit: int) -> float:
        """Seconds of search at the smallest limit that allows a peak, both in ticks."""
        return self.searches[bisect_left(self.curve.limits, limit)].seconds

    def _is_settled(self, limit: int, target: int) -> bool:
        """Whether a schedule within a limit reaches a target, or bounds exclude it."""
        best = self.curve.best(limit)
        return self.curve.lower_bound(limit) > target or (best is not None and best.value <= target)

    def _tell(self, limit: int) -> Callback:
        now = float(self.problems[0].memory(limit))
        where = f"{len(self.curve.points)} points, now limit {now:g}"

        def tell(state: Progress) -> None:
            phase = f"{where}, {state.phase}"
            self.options.announce(state._replace(seconds=self.options.spent, phase=phase))

        return tell
