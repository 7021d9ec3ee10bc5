"""Bound and search of one configuration of a plan, continued with more and more effort.

The configuration covers all orders of operations, or the order of one hand strategy. Its partition
and recompute are searched: each such assignment is a configuration of `ppopt.solver.choices`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from ppopt.problem.partition import SEARCH
from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Argument, Certificate
from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver.bounds import device_bounds
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.search import ConfigurationSearch, Effort
from ppopt.solver.deadline import NO_DEADLINE, Deadline
from ppopt.solver.open_choices import choice_of
from ppopt.solver.options import SolveOptions
from ppopt.solver.partitions.partition_bounds import memory_of_all, quick_bound
from ppopt.solver.partitions.space import space_of
from ppopt.solver.result import Progress, Result, Status
from ppopt.solver.search import search_from
from ppopt.solver.warm_start import WarmStart
from ppopt.strategies import Options
from ppopt.studies.best_choice import StrategyProof
from ppopt.studies.evaluate import objective_value, peak_memory
from ppopt.studies.frontier_curve import Curve, ParetoPoint
from ppopt.studies.frontier_problem import frontier_problem_of
from ppopt.studies.frontier_search import ParetoSearch
from ppopt.studies.plan_result import LeastMemory, PlanRow, RowStatus, WithinShare
from ppopt.studies.plan_space import OPTIMAL, PlanConfiguration
from ppopt.studies.strategy_search import PATIENCE, AcceptsPartition, Rank, StrategySearch
from ppopt.verifier import checked

ROUNDS = 4
"""Rounds of the search for the best partition and recompute at level 0; doubled at every level."""
SEARCHING = 0.5
"""Share of a turn that these rounds may take; the proof has the rest."""
_BOUNDED = (
    "every partition has a device that alone needs as long, by head, work, forced idle time and "
    "way out, or too much memory"
)


class SearchContext(NamedTuple):
    """Options and cutoff that the plan gives to the search of a configuration."""

    options: SolveOptions
    """Options of the plan, with its deadline."""
    ceiling: Callable[[], Fraction | None]
    """Returns the cutoff: values at or above it cannot improve the best known schedule."""


class PlanCandidate(ABC):
    """State and search of one configuration of a plan; values in the user's unit."""

    def __init__(
        self, configuration: PlanConfiguration, problem: Problem, context: SearchContext
    ) -> None:
        """Raises NotApplicableError if the partition of the configuration cannot be searched."""
        self.configuration, self.problem = configuration, problem
        self._context = context
        self.impossible = False
        """Whether no schedule is within the memory limits, which is proved."""
        self.result: Result | None = None
        """Result of the best schedule, or why there is none; None: not searched yet."""
        self.interrupted = False
        """Whether Ctrl-C ended a search for less memory or of the best assignment."""
        self.searches = 0
        """Number of searches of single partitions."""
        self._choice: Choice | None = choice_of(problem, context.options.deadline)
        """Configuration space of partitions and recompute; None: they are given."""
        self.bound = self._first_bound()
        """Lower bound of all schedules."""
        self.bound_alone = self.bound
        """Lower bound by bounds alone, without searches."""

    @property
    @abstractmethod
    def exhausted(self) -> bool:
        """Whether more effort cannot help: no known partition may be better."""

    @property
    def value(self) -> Fraction | None:
        """Objective of the best schedule."""
        return None if self.result is None else self.result.value

    @property
    def schedule(self) -> Schedule | None:
        """Best schedule."""
        return None if self.result is None else self.result.schedule

    @property
    def peak(self) -> Fraction | None:
        """Largest device peak of the best schedule."""
        schedule = self.schedule
        return None if schedule is None else peak_memory(schedule)

    def per_microbatch(self, time: Fraction) -> Fraction:
        """Time per microbatch of the configuration."""
        return time / self.configuration.batches

    def _first_bound(self) -> Fraction:
        """Quick bound."""
        if self._choice is None:
            reduced = self.problem.reduced
            self.impossible = device_bounds.infeasibility(reduced.instance) is not None
            return reduced.pipeline.ticks.time(device_bounds.known_bound(reduced).value)
        if self.problem.pipeline.partition != SEARCH:
            return self._choice.lower_bound
        ticks = space_of(self.problem)
        limits = ticks.space.limits
        self.impossible = limits is not None and memory_of_all(ticks.space) > sum(limits)
        return Fraction(quick_bound(ticks.space), ticks.per_unit)

    @abstractmethod
    def raise_bound(self, deadline: Deadline) -> None:
        """Bound all partitions until the deadline, without searching.

        Bounds far enough above the best known value need not be exact.
        """

    @property
    def _useful(self) -> Fraction | None:
        """Ceiling above which bounds need not be exact; None: all must be."""
        ceiling = self._context.ceiling()
        return None if ceiling is None else ceiling * self._context.options.params.plan.margin

    def raise_to(self, other: PlanCandidate) -> None:
        """Raise the bound to that of a relaxation, whose schedules include all of this one."""
        if other.impossible:
            self.impossible = True
        else:
            self.bound = max(self.bound, other.bound)
            self.bound_alone = max(self.bound_alone, other.bound_alone)

    @abstractmethod
    def hint(self, schedule: Schedule) -> None:
        """Provide a better schedule of another configuration of the same placement as a start."""

    @abstractmethod
    def search(self, effort: Effort, turn: Deadline = NO_DEADLINE) -> None:
        """Search for a turn, starting where the last search ended."""

    @abstractmethod
    def minimize_memory(self, deadline: Deadline) -> LeastMemory:
        """Minimise memory at the best value or a lower one, until the deadline.

        The best schedule is then that of least memory.
        """

    def least_within(
        self,
        value: Fraction,
        deadline: Deadline,  # noqa: ARG002
    ) -> WithinShare | None:
        """Find the least memory at which `value` is reached; None if it is not reached.

        The best schedule does not change.
        """
        schedule, peak = self.schedule, self.peak
        if schedule is None or peak is None or self.value is None or self.value > value:
            return None
        return WithinShare(self.configuration, self.value, peak, None)

    def bounded(self) -> Result:
        """Result by bounds alone, without a schedule."""
        pipeline = self.problem.pipeline
        argument = Argument.PARTITIONS if pipeline.partition == SEARCH else Argument.ENDS
        if pipeline.recompute == SEARCH:
            argument = Argument.PARTITIONS_RECOMPUTE
        return Result(
            pipeline=pipeline,
            objective=self.problem.objective,
            backward_kind=self.problem.backward_kind,
            status=Status.INFEASIBLE if self.impossible else Status.UNKNOWN,
            schedule=None,
            value=None,
            lower_bound=None if self.impossible else self.bound,
            proof=_BOUNDED,
            certificate=Certificate(argument),
            provenance=self._context.options.provenance,
            solve_seconds=0.0,
        )

    def row(self, best: Fraction | None) -> PlanRow:
        """Row of the plan; `best` is the least time per microbatch of any configuration."""
        result, bound = self.result or self.bounded(), None
        if not self.impossible:
            bound = self.bound if self.value is None else min(self.bound, self.value)
            if self.configuration.strategy == OPTIMAL:
                result = replace(result, lower_bound=bound)
        if self.impossible:
            status = RowStatus.INFEASIBLE
        elif self.value is not None and self.bound >= self.value:
            status = RowStatus.OPTIMAL
        elif best is not None and self.per_microbatch(self.bound) >= best:
            status = RowStatus.PRUNED
        else:
            status = RowStatus.UNKNOWN if self.value is None else RowStatus.FEASIBLE
        alone = best is not None and self.per_microbatch(self.bound_alone) >= best
        ruled_out = status is RowStatus.PRUNED and alone
        return PlanRow(self.configuration, status, result, bound, self.searches, ruled_out)

    def feasible(self, schedule: Schedule) -> Result:
        """Result with a schedule, not proved optimal."""
        return replace(
            self.bounded(),
            pipeline=schedule.pipeline,
            status=Status.FEASIBLE,
            schedule=schedule,
            value=objective_value(schedule, self.problem.objective),
        )


class ScheduleCandidate(PlanCandidate):
    """A configuration whose best schedule is searched over all orders."""

    def __init__(
        self, configuration: PlanConfiguration, problem: Problem, context: SearchContext
    ) -> None:
        """Raises NotApplicableError if the partition of the configuration cannot be searched."""
        super().__init__(configuration, problem, context)
        self._level = -1.0
        """Effort of the last search of the one partition that is given."""
        self._turn = NO_DEADLINE
        self._hinted: Fraction | None = None
        """Value of the best schedule that was provided as a start."""
        self._search: ConfigurationSearch | None = None
        """Search over partitions and recompute; None: they are given."""
        if self._choice is not None:
            self._search = ConfigurationSearch(
                self._choice, problem, self._options, ceiling=context.ceiling
            )

    @property
    def _options(self) -> SolveOptions:
        """Options of the searches, which end with the turn."""
        options = self._context.options
        return options.by(replace(options.deadline, stop=self._enough))

    @property
    def exhausted(self) -> bool:
        """Whether more effort cannot help: no known partition may be better."""
        return self._search is not None and self._search.exhausted

    def raise_bound(self, deadline: Deadline) -> None:
        """See `PlanCandidate.raise_bound`."""
        if self._search is None or self.impossible:
            return
        self._search.bound(deadline, self._useful)
        self.impossible |= self._search.infeasible
        self.bound = max(self.bound, self._search.lower_bound)
        self.bound_alone = max(self.bound_alone, self._search.choice.lower_bound)

    def hint(self, schedule: Schedule) -> None:
        """See `PlanCandidate.hint`."""
        value = objective_value(schedule, self.problem.objective)
        values = [value for value in (self.value, self._hinted) if value is not None]
        if self._search is not None and value < min(values, default=value + 1):
            self._hinted = value
            self._search.hint(schedule)

    def contains(self, schedule: Schedule) -> bool:
        """Whether a schedule belongs to the configuration."""
        problem, pipeline = self.problem.pipeline, schedule.pipeline
        same = pipeline.layout == problem.layout and pipeline.batches == problem.batches
        recomputes = problem.recompute == SEARCH or pipeline.model.layers == problem.model.layers
        return (
            same
            and recomputes
            and (problem.partition == SEARCH or pipeline.counts == problem.counts)
        )

    def start_from(self, schedule: Schedule) -> None:
        """Start from a schedule of a hand strategy that belongs to the configuration."""
        self.hint(schedule)
        result = self.feasible(schedule)
        schedule = checked(replace(schedule, origin=result.origin()))
        self.result = replace(result, schedule=schedule)

    def search(self, effort: Effort, turn: Deadline = NO_DEADLINE) -> None:
        """See `PlanCandidate.search`."""
        self._turn = turn
        if self._search is None:
            result = self._one(effort)
        else:
            result = self._search.run(effort)
            self.searches = self._search.searches
        if result is None:
            return
        self.impossible |= result.status is Status.INFEASIBLE
        if result.lower_bound is not None:
            self.bound = max(self.bound, result.lower_bound)
        if self.value is None or (result.value is not None and result.value <= self.value):
            self.result = result

    def search_best_assignment(self, turn: Deadline) -> None:
        """Search only the partition and recompute of the best schedule, with all methods."""
        schedule, self._turn = self.schedule, turn
        assert schedule is not None and self.value is not None
        self.searches += 1
        problem = replace(self.problem, pipeline=schedule.pipeline)
        from ppopt.solver.portfolio import PROVING  # noqa: PLC0415  ortools takes long to load

        options = self._options
        without = options.params.without | PROVING
        options = replace(options, params=replace(options.params, without=without))
        result = search_from(WarmStart(schedules=(schedule,)), problem, options)
        self.interrupted |= result.interrupted
        if result.schedule is not None and result.value is not None and result.value < self.value:
            self.start_from(result.schedule)

    def minimize_memory(self, deadline: Deadline) -> LeastMemory:
        """See `PlanCandidate.minimize_memory`."""
        search = self._less_memory(None, deadline)
        point, problem = search.curve.points[-1], search.space
        if point.schedule is not self.schedule:
            self._take(point)
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
        schedule, options = self.schedule, self._context.options
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

    def _take(self, point: ParetoPoint) -> None:
        """Adopt a schedule of less memory or of a lower value, with the problem's own limits."""
        assert self.result is not None
        pipeline = replace(point.schedule.pipeline, mem_limit=self.problem.pipeline.limits)
        result = replace(self.result, pipeline=pipeline, value=point.value)
        if result.value == result.lower_bound:
            result = replace(result, status=Status.OPTIMAL)
        schedule = replace(point.schedule, pipeline=pipeline, origin=result.origin())
        self.result = replace(result, schedule=checked(schedule))

    def _enough(self, state: Progress) -> bool:
        """Whether the turn ends; even if time is up, some configuration gets a schedule first."""
        ceiling, stop = self._context.ceiling(), self._context.options.deadline.stop
        if ceiling is not None and state.lower_bound >= ceiling:
            return True
        found = any(value is not None for value in (self.value, state.value, ceiling))
        return (found and self._turn.over) or (stop is not None and stop(state))

    def _one(self, effort: Effort) -> Result | None:
        """Search the one partition that is given, unless it was searched with as much effort."""
        if effort.level <= self._level:
            return None
        self._level = effort.level
        self.searches += 1
        start = WarmStart(schedules=() if self.schedule is None else (self.schedule,))
        return search_from(start, self.problem, self._options.rounds(int(effort.level)))


class StrategyCandidate(PlanCandidate):
    """A configuration whose order is that of one strategy; partition and recompute are searched."""

    def __init__(
        self,
        configuration: PlanConfiguration,
        problem: Problem,
        context: SearchContext,
        options: Options,
        accepts_partition: AcceptsPartition | None,
    ) -> None:
        """`accepts_partition` says which partitions the runtime runs; None: all.

        Raises NotApplicableError if the strategy or the search of its partition does not apply.
        """
        super().__init__(configuration, problem, context)
        self._choices = StrategySearch(
            problem.pipeline, configuration.strategy, problem.objective, options,
            accepts_partition=accepts_partition, seed=context.options.seed,
        )  # fmt: skip
        candidates = self._choice if problem.pipeline.partition == SEARCH else None
        self._proof = StrategyProof(self._choices, candidates)

        self._taken: Rank | None = None
        """Rank of the schedule in the result."""

    @property
    def exhausted(self) -> bool:
        """Whether more effort cannot help: no other known partition may be better."""
        return self._proof.proved or (self._proof.ended and self._choices.barren >= PATIENCE)

    def raise_bound(self, deadline: Deadline) -> None:
        """See `PlanCandidate.raise_bound`."""
        if self._choice is None or self.impossible:
            return
        self._proof.bound(deadline, self._useful)
        self.bound_alone = max(self.bound_alone, self._choice.lower_bound)
        self._note()

    def hint(self, schedule: Schedule) -> None:
        """See `PlanCandidate.hint`."""
        self._choices.hint(schedule.pipeline)

    def search(self, effort: Effort, turn: Deadline = NO_DEADLINE) -> None:
        """See `PlanCandidate.search`: near the best partition, then in the order of bounds."""
        self.searches += 1
        self._choices.run(ROUNDS * 2**effort.level, turn.share(SEARCHING))
        self._proof.run(turn)
        self._note()

    def _note(self) -> None:
        """Record what the search and the proof have found."""
        choices = self._choices
        self.bound = max(self.bound, self._proof.lower_bound)
        if choices.fits and choices.rank != self._taken:
            self._taken = choices.rank
            self.result = self._of_strategy(choices.schedule())
        self.impossible |= self._proof.proved and not (choices.fits or choices.refused)

    def _of_strategy(self, schedule: Schedule) -> Result:
        """Result of a schedule of the strategy that is within the limits.

        A bound of the strategy is no bound of other schedules, so the result states none.
        """
        return replace(
            self.feasible(checked(schedule)),
            lower_bound=None,
            proof=f"of {self.configuration.strategy} alone: {self._proof.proof_text}",
            certificate=Certificate(Argument.SEARCH),
        )

    def minimize_memory(self, deadline: Deadline) -> LeastMemory:
        """See `PlanCandidate.minimize_memory`: of equal values, the search prefers less memory."""

        def tell() -> None:
            deadline.tell(f"{self.configuration}, memory", self.value, self.bound)

        with suppress(KeyboardInterrupt), interrupts.heard():
            self._choices.run_until_stalled(deadline, tell)
        self._note()
        peak = self.peak
        assert peak is not None
        return LeastMemory(peak, peak if self._choices.conclusive else self._least_peak)

    @property
    def _least_peak(self) -> Fraction:
        """Least memory of all devices together, spread evenly over them."""
        if self.problem.pipeline.partition != SEARCH:
            return Fraction(0)
        ticks = space_of(self.problem)
        share = Fraction(memory_of_all(ticks.space), ticks.space.num_devices)
        return share / ticks.memory_per_unit
