"""One configuration of a plan: its bound, and the search of it with more and more effort.

Its schedules are any, of which the best is searched, or those of one hand strategy.
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
from ppopt.studies import frontier_space
from ppopt.studies.best_choice import StrategyProof
from ppopt.studies.evaluate import objective_value, peak_memory
from ppopt.studies.frontier_curve import Curve, ParetoPoint
from ppopt.studies.frontier_search import ParetoSearch
from ppopt.studies.plan_result import LeastMemory, PlanRow, RowStatus, WithinShare
from ppopt.studies.plan_space import OPTIMAL, PlanConfiguration
from ppopt.studies.strategy_search import PATIENCE, Rank, StrategySearch, Takes
from ppopt.verifier import checked

ROUNDS = 4
"""Rounds of the search for the best partition and recompute at level 0; at each level twice as
many."""
SEARCHING = 0.5
"""Share of a turn that these rounds may take; the proof has the rest."""
_BOUNDED = (
    "every partition has a device that alone needs as long, by head, work, forced idle time and "
    "way out, or too much memory"
)


class PlanRequest(NamedTuple):
    """What the search of a configuration needs from the plan."""

    options: SolveOptions
    """The deadline is that of the plan."""
    ceiling: Callable[[], Fraction | None]
    """Values from here on are of no use: the best schedule known is as good."""


class PlanCandidate(ABC):
    """What is known of one configuration; values in the user's unit."""

    def __init__(
        self, configuration: PlanConfiguration, problem: Problem, request: PlanRequest
    ) -> None:
        """Raises NotApplicableError where its partition cannot be searched."""
        self.configuration, self.problem = configuration, problem
        self._request = request
        self.impossible = False
        """Whether none of its schedules keeps the memory limits."""
        self.result: Result | None = None
        """Its best schedule, or why there is none, once it is searched."""
        self.interrupted = False
        """Whether Ctrl-C ended the search for less memory."""
        self.searches = 0
        """Searches of single partitions that were made."""
        self._choice: Choice | None = choice_of(problem, request.options.deadline)
        """Its partitions and choices of recompute; None: they are given."""
        self.bound = self._first_bound()
        """No schedule of it is below."""
        self.bound_alone = self.bound
        """The same by bounds alone, without its searches."""

    @property
    @abstractmethod
    def stuck(self) -> bool:
        """Whether more effort brings nothing: no partition is known that may be better."""

    @property
    def value(self) -> Fraction | None:
        """Objective of its best schedule."""
        return None if self.result is None else self.result.value

    @property
    def schedule(self) -> Schedule | None:
        """Its best schedule."""
        return None if self.result is None else self.result.schedule

    @property
    def peak(self) -> Fraction | None:
        """The largest device peak of its best schedule."""
        made = self.schedule
        return None if made is None else peak_memory(made)

    def per_microbatch(self, time: Fraction) -> Fraction:
        """A time of the configuration for each of its microbatches."""
        return time / self.configuration.batches

    def _first_bound(self) -> Fraction:
        """A bound that takes no time."""
        if self._choice is None:
            reduced = self.problem.reduced
            self.impossible = device_bounds.infeasibility(reduced.instance) is not None
            return reduced.pipeline.ticks.time(device_bounds.known_bound(reduced).value)
        if self.problem.pipeline.partition != SEARCH:
            return self._choice.least
        ticks = space_of(self.problem)
        limits = ticks.space.limits
        self.impossible = limits is not None and memory_of_all(ticks.space) > sum(limits)
        return Fraction(quick_bound(ticks.space), ticks.per_unit)

    @abstractmethod
    def raise_bound(self, deadline: Deadline) -> None:
        """Bound all of its partitions, as well as may be by the deadline, and search none.

        Bounds that are a margin above the best value known need not be exact.
        """

    @property
    def _useful(self) -> Fraction | None:
        """Values above this ceiling need not be exact; None: all are."""
        ceiling = self._request.ceiling()
        return None if ceiling is None else ceiling * self._request.options.params.plan.margin

    def raise_to(self, other: PlanCandidate) -> None:
        """Take over the bound of a configuration that holds all schedules of this one."""
        if other.impossible:
            self.impossible = True
        else:
            self.bound = max(self.bound, other.bound)
            self.bound_alone = max(self.bound_alone, other.bound_alone)

    @abstractmethod
    def hint(self, made: Schedule) -> None:
        """Begin from a better schedule of another configuration of the same placement."""

    @abstractmethod
    def search(self, effort: Effort, turn: Deadline = NO_DEADLINE) -> None:
        """Search it for a turn, beginning where the last search ended."""

    @abstractmethod
    def minimize_memory(self, deadline: Deadline) -> LeastMemory:
        """Look for less memory for its best value, or a lower one, by the deadline.

        Its best schedule is then that of least memory.
        """

    def least_within(
        self,
        value: Fraction,
        deadline: Deadline,  # noqa: ARG002
    ) -> WithinShare | None:
        """Look for the least memory for a value, by the deadline; None where it is not reached.

        Its best schedule stays.
        """
        made, peak = self.schedule, self.peak
        if made is None or peak is None or self.value is None or self.value > value:
            return None
        return WithinShare(self.configuration, self.value, peak, None)

    def bounded(self) -> Result:
        """The result by bounds alone, without a schedule."""
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
            provenance=self._request.options.provenance,
            solve_seconds=0.0,
        )

    def row(self, best: Fraction | None) -> PlanRow:
        """What is known of it; `best` is the least time per microbatch of any configuration."""
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

    def feasible(self, made: Schedule) -> Result:
        """The same with a schedule."""
        return replace(
            self.bounded(),
            pipeline=made.pipeline,
            status=Status.FEASIBLE,
            schedule=made,
            value=objective_value(made, self.problem.objective),
        )


class ScheduleCandidate(PlanCandidate):
    """A configuration whose best schedule is searched, whatever its order."""

    def __init__(
        self, configuration: PlanConfiguration, problem: Problem, request: PlanRequest
    ) -> None:
        """Raises NotApplicableError where its partition cannot be searched."""
        super().__init__(configuration, problem, request)
        self._level = -1.0
        """Effort of the last search of the one partition that is given."""
        self._turn = NO_DEADLINE
        self._hinted: Fraction | None = None
        """Value of the last schedule that was handed in."""
        self._search: ConfigurationSearch | None = None
        """The search over its partitions and choices of recompute; None: they are given."""
        if self._choice is not None:
            self._search = ConfigurationSearch(
                self._choice, problem, self._options, ceiling=request.ceiling
            )

    @property
    def _options(self) -> SolveOptions:
        """The options of its searches, which end with its turn."""
        options = self._request.options
        return options.by(replace(options.deadline, stop=self._enough))

    @property
    def stuck(self) -> bool:
        """Whether more effort brings nothing: no partition is known that may be better."""
        return self._search is not None and self._search.stuck

    def raise_bound(self, deadline: Deadline) -> None:
        """See `PlanCandidate.raise_bound`."""
        if self._search is None or self.impossible:
            return
        self._search.bound(deadline, self._useful)
        self.impossible |= self._search.none
        self.bound = max(self.bound, self._search.least)
        self.bound_alone = max(self.bound_alone, self._search.choice.least)

    def hint(self, made: Schedule) -> None:
        """See `PlanCandidate.hint`."""
        value = objective_value(made, self.problem.objective)
        known = [one for one in (self.value, self._hinted) if one is not None]
        if self._search is not None and value < min(known, default=value + 1):
            self._hinted = value
            self._search.hint(made)

    def holds(self, made: Schedule) -> bool:
        """Whether a schedule is one of its own."""
        own, pipeline = self.problem.pipeline, made.pipeline
        same = pipeline.layout == own.layout and pipeline.batches == own.batches
        recomputes = own.recompute == SEARCH or pipeline.model.layers == own.model.layers
        return same and recomputes and (own.partition == SEARCH or pipeline.counts == own.counts)

    def begin(self, made: Schedule) -> None:
        """Begin with a schedule of its own, of a hand strategy."""
        self.hint(made)
        result = self.feasible(made)
        made = checked(replace(made, origin=result.origin()))
        self.result = replace(result, schedule=made)

    def search(self, effort: Effort, turn: Deadline = NO_DEADLINE) -> None:
        """See `PlanCandidate.search`."""
        self._turn = turn
        if self._search is None:
            found = self._one(effort)
        else:
            found = self._search.run(effort)
            self.searches = self._search.searches
        if found is None:
            return
        self.impossible |= found.status is Status.INFEASIBLE
        if found.lower_bound is not None:
            self.bound = max(self.bound, found.lower_bound)
        if self.value is None or (found.value is not None and found.value <= self.value):
            self.result = found

    def polish(self, turn: Deadline) -> None:
        """Search the pipeline of its best schedule by itself, with all methods, for a turn."""
        made, self._turn = self.schedule, turn
        assert made is not None and self.value is not None
        self.searches += 1
        problem = replace(self.problem, pipeline=made.pipeline)
        from ppopt.solver.portfolio import PROVING  # noqa: PLC0415  ortools takes long to load

        options = self._options
        without = options.params.without | PROVING
        options = replace(options, params=replace(options.params, without=without))
        found = search_from(WarmStart(schedules=(made,)), problem, options)
        self.interrupted |= found.interrupted
        if found.schedule is not None and found.value is not None and found.value < self.value:
            self.begin(found.schedule)

    def minimize_memory(self, deadline: Deadline) -> LeastMemory:
        """See `PlanCandidate.minimize_memory`."""
        search = self._less_memory(None, deadline)
        found, space = search.curve.found[-1], search.space
        if found.schedule is not self.schedule:
            self._take(found)
        return LeastMemory(space.memory(found.limit), space.memory(search.least_limit))

    def least_within(self, value: Fraction, deadline: Deadline) -> WithinShare | None:
        """See `PlanCandidate.least_within`."""
        if super().least_within(value, deadline) is None:
            return None
        search = self._less_memory(value, deadline)
        found, low = search.least, search.least_limit
        memory = map(search.space.memory, (found.limit, low))
        return WithinShare(self.configuration, found.value, *memory)

    def _less_memory(self, goal: Fraction | None, deadline: Deadline) -> ParetoSearch:
        """A search for less memory, ended; from its best schedule."""
        made, options = self.schedule, self._request.options
        assert made is not None
        space = frontier_space.space_of(self.problem)
        seconds = max(deadline.left, options.params.frontier.least)
        deadline = Deadline.after(seconds, progress=deadline.progress)
        search = ParetoSearch(
            space, options.by(deadline), Curve(space.limits),
            most_level=options.params.plan.less_level, goal=goal,
        )  # fmt: skip
        search.minimize_memory(made)
        self.interrupted |= search.interrupted
        return search

    def _take(self, found: ParetoPoint) -> None:
        """Take over a schedule of less memory, or of a lower value, for its own limits."""
        assert self.result is not None
        pipeline = replace(found.schedule.pipeline, mem_limit=self.problem.pipeline.limits)
        result = replace(self.result, pipeline=pipeline, value=found.value)
        if result.value == result.lower_bound:
            result = replace(result, status=Status.OPTIMAL)
        made = replace(found.schedule, pipeline=pipeline, origin=result.origin())
        self.result = replace(result, schedule=checked(made))

    def _enough(self, state: Progress) -> bool:
        """Whether its turn ends; at any time left some configuration has a schedule."""
        ceiling, stop = self._request.ceiling(), self._request.options.deadline.stop
        if ceiling is not None and state.lower_bound >= ceiling:
            return True
        found = any(value is not None for value in (self.value, state.value, ceiling))
        return (found and self._turn.over) or (stop is not None and stop(state))

    def _one(self, effort: Effort) -> Result | None:
        """Search the one partition that is given, unless it was searched as long."""
        if effort.level <= self._level:
            return None
        self._level = effort.level
        self.searches += 1
        start = WarmStart(schedules=() if self.schedule is None else (self.schedule,))
        return search_from(start, self.problem, self._options.rounds(int(effort.level)))


class StrategyCandidate(PlanCandidate):
    """A configuration of one strategy, on its best partition and recompute."""

    def __init__(
        self,
        configuration: PlanConfiguration,
        problem: Problem,
        request: PlanRequest,
        options: Options,
        takes: Takes | None,
    ) -> None:
        """`takes` says which partitions the runtime takes; None: all.

        Raises NotApplicableError where the strategy or the search of its partition does not apply.
        """
        super().__init__(configuration, problem, request)
        self._choices = StrategySearch(
            problem.pipeline, configuration.strategy, problem.objective, options,
            takes=takes, seed=request.options.seed,
        )  # fmt: skip
        candidates = self._choice if problem.pipeline.partition == SEARCH else None
        self._proof = StrategyProof(self._choices, candidates)

        self._taken: Rank | None = None
        """Rank of the schedule in the result."""

    @property
    def stuck(self) -> bool:
        """Whether more effort brings nothing: no other partition is known that may be better."""
        return self._proof.proved or (self._proof.ended and self._choices.barren >= PATIENCE)

    def raise_bound(self, deadline: Deadline) -> None:
        """See `PlanCandidate.raise_bound`."""
        if self._choice is None or self.impossible:
            return
        self._proof.bound(deadline, self._useful)
        self.bound_alone = max(self.bound_alone, self._choice.least)
        self._note()

    def hint(self, made: Schedule) -> None:
        """See `PlanCandidate.hint`."""
        self._choices.hint(made.pipeline)

    def search(self, effort: Effort, turn: Deadline = NO_DEADLINE) -> None:
        """See `PlanCandidate.search`: near the best partition, then in the order of bounds."""
        self.searches += 1
        self._choices.run(ROUNDS * 2**effort.level, turn.share(SEARCHING))
        self._proof.run(turn)
        self._note()

    def _note(self) -> None:
        """Note what the search and the proof have found."""
        choices = self._choices
        self.bound = max(self.bound, self._proof.lower_bound)
        if choices.fits and choices.rank != self._taken:
            self._taken = choices.rank
            self.result = self._of_strategy(choices.schedule())
        self.impossible |= self._proof.proved and not (choices.fits or choices.refused)

    def _of_strategy(self, made: Schedule) -> Result:
        """The result of a schedule of the strategy, which keeps the limits.

        What is proved of the strategy is no bound of other schedules, so the result states none.
        """
        return replace(
            self.feasible(checked(made)),
            lower_bound=None,
            proof=f"of {self.configuration.strategy} alone: {self._proof.words}",
            certificate=Certificate(Argument.SEARCH),
        )

    def minimize_memory(self, deadline: Deadline) -> LeastMemory:
        """See `PlanCandidate.minimize_memory`: of equal values, the search prefers less memory."""

        def tell() -> None:
            deadline.tell(f"{self.configuration}, memory", self.value, self.bound)

        with suppress(KeyboardInterrupt), interrupts.heard():
            self._choices.settle(deadline, tell)
        self._note()
        peak = self.peak
        assert peak is not None
        every = self._choices.exhausted and self._choices.complete
        return LeastMemory(peak, peak if every else self._least_peak)

    @property
    def _least_peak(self) -> Fraction:
        """What all devices together need at least, spread evenly over them."""
        if self.problem.pipeline.partition != SEARCH:
            return Fraction(0)
        ticks = space_of(self.problem)
        share = Fraction(memory_of_all(ticks.space), ticks.space.num_devices)
        return share / ticks.memory_per_unit
