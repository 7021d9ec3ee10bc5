"""One configuration of a plan: its best schedule, its bound and what is proved of them.

The configuration covers all orders of operations, or the order of one hand strategy. Of all orders,
one search serves all configurations (`ppopt.studies.plan_product`); that of a hand strategy has its
own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

from ppopt.problem.partition import SEARCH
from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Argument, Certificate
from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver.choices.configuration import Configuration, Key
from ppopt.solver.choices.given import ONLY
from ppopt.solver.choices.result import known_result, result_of
from ppopt.solver.choices.search import ConfigurationSearch
from ppopt.solver.deadline import Deadline
from ppopt.solver.options import SolveOptions
from ppopt.solver.partitions.partition_bounds import memory_of_all
from ppopt.solver.partitions.space import space_of
from ppopt.solver.result import Result, Status
from ppopt.strategies import Options
from ppopt.studies.best_choice import StrategyProof
from ppopt.studies.evaluate import objective_value, peak_memory
from ppopt.studies.frontier_curve import Curve
from ppopt.studies.frontier_problem import frontier_problem_of
from ppopt.studies.frontier_search import ParetoSearch
from ppopt.studies.plan_product import PlanChoice, PlanProduct
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


class PlanCandidate(ABC):
    """State of one configuration of a plan; values in the user's unit."""

    impossible = False
    """Whether no schedule is within the memory limits, which is proved."""
    searches = 0
    """Number of searches of single partitions."""
    interrupted = False
    """Whether Ctrl-C ended a search for less memory."""

    def __init__(
        self, configuration: PlanConfiguration, problem: Problem, options: SolveOptions
    ) -> None:
        self.configuration, self.problem, self._options = configuration, problem, options
        self.bound = Fraction(0)
        """Lower bound of all schedules."""
        self.bound_alone = Fraction(0)
        """Lower bound by bounds alone, without searches."""

    @property
    @abstractmethod
    def schedule(self) -> Schedule | None:
        """Best schedule."""

    @property
    @abstractmethod
    def result(self) -> Result:
        """Result of the best schedule, or why there is none."""

    @property
    def value(self) -> Fraction | None:
        """Objective of the best schedule."""
        schedule = self.schedule
        return None if schedule is None else objective_value(schedule, self.problem.objective)

    @property
    def peak(self) -> Fraction | None:
        """Largest device peak of the best schedule."""
        schedule = self.schedule
        return None if schedule is None else peak_memory(schedule)

    def per_microbatch(self, time: Fraction) -> Fraction:
        """Time per microbatch of the configuration."""
        return time / self.configuration.batches

    @abstractmethod
    def raise_to(self, other: PlanCandidate) -> None:
        """Raise the bound to that of a relaxation, whose schedules include all of this one."""

    @abstractmethod
    def hint(self, schedule: Schedule) -> None:
        """Provide a schedule of the same placement as a start."""

    @abstractmethod
    def take(self, schedule: Schedule) -> None:
        """Take a schedule that belongs to the configuration, if none is better.

        Of equal values, the one of less memory is better.
        """

    def _is_better(self, schedule: Schedule) -> bool:
        """Whether a schedule is better than the best one."""
        return self.schedule is None or self._rank(schedule) < self._rank(self.schedule)

    def _rank(self, schedule: Schedule) -> tuple[Fraction, Fraction]:
        return objective_value(schedule, self.problem.objective), peak_memory(schedule)

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

    def row(self, best: Fraction | None) -> PlanRow:
        """Row of the plan; `best` is the least time per microbatch of any configuration."""
        result, bound = self.result, None
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
            state.take(min(filter(None, (state.best, taken)), key=_by_value))
        state.raise_least(self.per_microbatch(self.bound))
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
            assert state.best.result is not None
            return state.best.result
        return result_of(self._choice, self.problem, state, self._options)

    def raise_to(self, other: PlanCandidate) -> None:
        """See `PlanCandidate.raise_to`."""
        self._product.raise_floor(self._prefix, other.per_microbatch(other.bound))
        self.refresh(None)

    def hint(self, schedule: Schedule) -> None:
        """See `PlanCandidate.hint`."""
        self._search.hint(schedule)

    def contains(self, schedule: Schedule) -> bool:
        """Whether a schedule belongs to the configuration."""
        pipeline = schedule.pipeline
        return self._prefix in self._product.prefixes(pipeline) and (
            self.problem.pipeline.partition == SEARCH
            or pipeline.counts == self.problem.pipeline.counts
        )

    def start_from(self, schedule: Schedule) -> None:
        """Start from a schedule that belongs to the configuration."""
        self.hint(schedule)
        self.take(schedule)

    def take(self, schedule: Schedule) -> None:
        """See `PlanCandidate.take`."""
        if self._is_better(schedule):
            self._taken = schedule
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


class StrategyCandidate(PlanCandidate):
    """A configuration whose order is that of one strategy; partition and recompute are searched."""

    def __init__(
        self,
        given: PlanChoice,
        options: SolveOptions,
        strategy_options: Options,
        accepts_partition: AcceptsPartition | None,
    ) -> None:
        """`accepts_partition` says which partitions the runtime runs; None: all.

        Raises NotApplicableError if the strategy or the search of its partition does not apply.
        """
        super().__init__(given.configuration, given.problem, options)
        problem, self._choice = given.problem, given.choice
        self._choices = StrategySearch(
            problem.pipeline, given.configuration.strategy, problem.objective, strategy_options,
            accepts_partition=accepts_partition, seed=options.seed,
        )  # fmt: skip
        candidates = self._choice if problem.pipeline.partition == SEARCH else None
        self._proof = StrategyProof(self._choices, candidates)
        self._raise_alone()
        self._taken: Rank | None = None
        """Rank of the schedule in the result."""
        self._result: Result | None = None
        """Result of the best schedule; None: none is found."""

    @property
    def exhausted(self) -> bool:
        """Whether more effort cannot help: no other known partition may be better."""
        return self._proof.proved or (self._proof.ended and self._choices.barren >= PATIENCE)

    def raise_bound(self, deadline: Deadline, ceiling: Fraction | None) -> None:
        """Bound all partitions until the deadline; above a ceiling, bounds need not be exact."""
        if self.problem.pipeline.partition == SEARCH and not self.impossible:
            self._proof.bound(deadline, ceiling)
        self._raise_alone()
        self._note()

    def _raise_alone(self) -> None:
        self.bound_alone = max(self.bound_alone, self._choice.lower_bound)
        self.bound = max(self.bound, self.bound_alone)

    def raise_to(self, other: PlanCandidate) -> None:
        """See `PlanCandidate.raise_to`."""
        self.impossible |= other.impossible
        if not other.impossible:
            self.bound = max(self.bound, other.bound)
            self.bound_alone = max(self.bound_alone, other.bound_alone)

    def hint(self, schedule: Schedule) -> None:
        """See `PlanCandidate.hint`."""
        self._choices.hint(schedule.pipeline)

    def search(self, level: int, turn: Deadline) -> None:
        """Search near the best partition, then in the order of bounds, from the last search on."""
        self.searches += 1
        self._choices.run(ROUNDS * 2**level, turn.share(SEARCHING))
        self._proof.run(turn)
        self._note()

    def _note(self) -> None:
        """Record what the search and the proof have found."""
        choices = self._choices
        self.bound = max(self.bound, self._proof.lower_bound)
        if choices.fits and choices.rank != self._taken:
            self._taken = choices.rank
            self._result = self._of_strategy(choices.schedule())
        self.impossible |= self._proof.proved and not (choices.fits or choices.refused)

    @property
    def schedule(self) -> Schedule | None:
        """Best schedule."""
        return None if self._result is None else self._result.schedule

    @property
    def result(self) -> Result:
        """See `PlanCandidate.result`."""
        return self._result or self._bounded()

    def take(self, schedule: Schedule) -> None:
        """See `PlanCandidate.take`."""
        if self._is_better(schedule):
            self._result = self._of_strategy(schedule)

    def _of_strategy(self, schedule: Schedule) -> Result:
        """Result of a schedule of the strategy that is within the limits.

        A bound of the strategy is no bound of other schedules, so the result states none.
        """
        proof = f"of {self.configuration.strategy} alone: {self._proof.proof_text}"
        return replace(known_result(self.problem, checked(schedule), self._options), proof=proof)

    def _bounded(self) -> Result:
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
            provenance=self._options.provenance,
            solve_seconds=0.0,
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


def _by_value(configuration: Configuration) -> tuple[Fraction, Fraction]:
    """Value and largest device peak of the best schedule of a configuration."""
    result = configuration.result
    assert configuration.value is not None and result is not None and result.schedule is not None
    return configuration.value, peak_memory(result.schedule)
