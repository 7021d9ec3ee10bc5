"""The search of all orders: one for all configurations of a plan, and what it knows of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from ppopt.problem.partition import SEARCH
from ppopt.problem.problem import Problem
from ppopt.schedule.schedule import Schedule
from ppopt.solver.choices.configuration import Configuration
from ppopt.solver.choices.enumeration import Key
from ppopt.solver.choices.given import ONLY
from ppopt.solver.choices.result import known_result, result_of
from ppopt.solver.choices.search import ConfigurationSearch, Effort
from ppopt.solver.deadline import Deadline
from ppopt.solver.options import SolveOptions
from ppopt.solver.result import Progress, Result
from ppopt.studies.baselines import GRACE
from ppopt.studies.frontier_curve import Curve
from ppopt.studies.frontier_problem import frontier_problem_of
from ppopt.studies.frontier_search import ParetoSearch
from ppopt.studies.plan_candidate import PlanCandidate
from ppopt.studies.plan_product import PlanChoice, PlanProduct, value_and_peak
from ppopt.studies.plan_result import LeastMemory, WithinShare

Ceiling = Callable[[], Fraction | None]
"""Gives a cutoff: values at or above it are of no use."""


class ScheduleCandidate(PlanCandidate):
    """A configuration whose best schedule is searched over all orders, with all others."""

    def __init__(
        self, given: PlanChoice, search: ConfigurationSearch, prefix: Key, options: SolveOptions
    ) -> None:
        """`search` is that of all configurations, in which this one has a prefix of the keys."""
        super().__init__(given.configuration, given.problem, options)
        self._choice, self._search, self._prefix = given.choice, search, prefix
        assert isinstance(search.choice, PlanProduct)
        self._product = search.choice
        self._state = search.state
        self._taken: Schedule | None = None
        """Best schedule that the search does not know."""
        self.refresh(None)

    def refresh(self, ceiling: Fraction | None) -> None:
        """Read the state of the search; `ceiling` is the best value of all, per microbatch."""
        state = self._product.state_of(self._prefix, self._search.state, ceiling)
        if self._taken is not None:
            known = known_result(self.problem, self._taken, self._options)
            taken = Configuration((), Fraction(0), batches=self.configuration.batches, result=known)
            state.take(min(filter(None, (state.best, taken)), key=value_and_peak))
        state.raise_least(self.bound_per_microbatch)
        self._state, self.searches = state, state.searched
        self.impossible = state.infeasible
        self.bound = state.least * self.configuration.batches
        self.bound_alone = self._product.least(self._prefix) * self.configuration.batches

    @property
    def schedule(self) -> Schedule | None:
        """Best schedule."""
        best = self._state.best
        return None if best is None or best.result is None else best.result.schedule

    @property
    def result(self) -> Result:
        """See `PlanCandidate.result`."""
        state = self._state
        if state.best is not None and state.best is state.known.get(ONLY):
            own, bound = state.best.result, state.lower_bound * self.configuration.batches
            if own is not None and own.lower_bound == bound:
                return own
        return result_of(self._choice, self.problem, state, self._options)

    def raise_to(self, other: PlanCandidate) -> None:
        """See `PlanCandidate.raise_to`."""
        self._product.raise_floor(self._prefix, other.bound_per_microbatch)
        self.refresh(None)

    def hint(self, schedule: Schedule) -> None:
        """See `PlanCandidate.hint`."""
        self._search.hint(schedule)

    def contains(self, schedule: Schedule) -> bool:
        """Whether a schedule belongs to the configuration."""
        pipeline = schedule.pipeline
        return self._product.allows(self._prefix, pipeline) and (
            self.problem.pipeline.partition == SEARCH
            or pipeline.counts == self.problem.pipeline.counts
        )

    def start_from(self, schedule: Schedule) -> None:
        """Start from a schedule that belongs to the configuration."""
        self.hint(schedule)
        self.take(schedule)

    def take(self, schedule: Schedule) -> None:
        """See `PlanCandidate.take`.

        The schedule has the placement of the configuration. That of a strategy may have another
        name: interleaved stages, one per device, have the layout of linear ones.
        """
        own = self.problem.pipeline
        if self._is_better(schedule):
            named = replace(schedule.pipeline, placement=own.placement, chunks=own.chunks)
            self._taken = replace(schedule, pipeline=named)
            self.refresh(None)

    def minimize_memory(self, deadline: Deadline) -> LeastMemory:
        """See `PlanCandidate.minimize_memory`."""
        search = self._less_memory(None, deadline)
        point, problem = search.curve.points[-1], search.space
        pipeline = replace(point.schedule.pipeline, mem_limit=self.problem.pipeline.limits)
        self.take(replace(point.schedule, pipeline=pipeline))
        return LeastMemory(problem.memory(point.limit), problem.memory(search.least_limit))

    def least_within(self, value: Fraction, deadline: Deadline) -> WithinShare | None:
        """See `PlanCandidate.least_within`."""
        if super().least_within(value, deadline) is None:
            return None
        search = self._less_memory(value, deadline)
        point, limit = search.least, search.least_limit
        memory = map(search.space.memory, (point.limit, limit))
        return WithinShare(self.configuration, point.value, *memory)

    def _less_memory(self, goal: Fraction | None, deadline: Deadline) -> ParetoSearch:
        """Search for less memory, starting from the best schedule; returns the ended search."""
        schedule, options = self.schedule, self._options
        assert schedule is not None
        space = frontier_problem_of(self.problem)
        seconds = max(deadline.left, options.params.frontier.least)
        deadline = Deadline.after(seconds, progress=deadline.progress)
        search = ParetoSearch(
            space, options.by(deadline), Curve(space.limits),
            max_level=options.params.plan.less_level, goal=goal,
        )  # fmt: skip
        search.minimize_memory(schedule)
        self.interrupted |= search.interrupted
        return search


class OrdersSearch:
    """The search of all orders of the configurations of a plan, perhaps of none."""

    def __init__(
        self,
        choices: Sequence[PlanChoice],
        problem: Problem,
        options: SolveOptions,
        ceiling: Ceiling,
    ) -> None:
        """`problem` is that of any configuration of the plan: all have its objective.

        `ceiling` gives the best time per microbatch of all: longer ones are of no use.
        """
        self._params, self._ceiling = options.params.plan, ceiling
        self._turn = options.deadline
        self._cutoff: Fraction | None = None
        """Ceiling as the turn began."""
        self._quick = 0
        """Most searches of level 0 in all rounds so far."""
        deadline = options.deadline
        self._stop = deadline.stop
        self._product = PlanProduct(choices, self._params.margin)
        self._search = ConfigurationSearch(
            self._product, problem, options.by(replace(deadline, stop=self._ends)),
            ceiling=lambda: self._cutoff, grace=GRACE,
        )  # fmt: skip
        self._search.enumerate_listed()
        self.candidates = [
            ScheduleCandidate(choice, self._search, prefix, options)
            for prefix, choice in zip(self._product.inner, choices, strict=True)
        ]

    @property
    def num_open(self) -> int:
        """Number of configurations that may be below the ceiling."""
        ceiling = self._ceiling()
        return sum(candidate.is_open(ceiling) for candidate in self.candidates)

    @property
    def exhausted(self) -> bool:
        """Whether more effort cannot help: no known partition may be better."""
        return self._search.exhausted or not self.num_open

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended a search."""
        return self._search.interrupted

    def bound(self, deadline: Deadline) -> None:
        """Bound the configurations that may be below the ceiling, until the deadline."""
        self._search.bound(deadline, self._ceiling())
        self._refresh()

    def search(self, effort: Effort, turn: Deadline) -> None:
        """Search for at most a turn; if nothing is found, until the deadline."""
        self._begin(turn)
        self._search.search(effort)
        self._refresh()

    def search_round(self, number: int, turn: Deadline) -> None:
        """Search for at most a turn, with the effort of a round, counted from 0."""
        each = self._params.few * 2 ** (number - 1) if number else self._params.short
        self._quick += each * self.num_open
        self.search(Effort(max(0, number - 1), self._quick), turn)

    def search_best_partition(self, turn: Deadline) -> None:
        """Search only the partition and recompute of the best schedule.

        Rounds divide their time between configurations and partitions. Methods that improve large
        pipelines most, such as windows, have no long turn in them.
        """
        from ppopt.solver.portfolio import PROVING  # noqa: PLC0415  ortools takes long to load

        self._begin(turn)
        self._search.search_best(PROVING)
        self._refresh()

    def _begin(self, turn: Deadline) -> None:
        self._turn, self._cutoff = turn, self._ceiling()

    def _refresh(self) -> None:
        values = (self._ceiling(), self._search.state.value)
        ceiling = min((value for value in values if value is not None), default=None)
        for candidate in self.candidates:
            candidate.refresh(ceiling)

    def _ends(self, state: Progress) -> bool:
        """Whether the search ends: with its turn, or as the caller says."""
        found = state.value is not None or self._cutoff is not None
        return (found and self._turn.over) or (self._stop is not None and self._stop(state))
