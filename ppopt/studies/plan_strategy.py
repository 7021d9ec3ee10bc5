"""A configuration of a plan whose order is that of one hand strategy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from ppopt.problem.partition import SEARCH
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.origin import Argument, Certificate
from ppopt.schedule.schedule import Schedule
from ppopt.solver.choices.result import known_result
from ppopt.solver.deadline import Deadline
from ppopt.solver.options import SolveOptions
from ppopt.solver.partitions.partition_bounds import memory_of_all
from ppopt.solver.partitions.space import space_of
from ppopt.solver.result import Result, Status
from ppopt.strategies import Options
from ppopt.studies.best_choice import has_open_choices
from ppopt.studies.evaluate import peak_memory
from ppopt.studies.plan_candidate import PlanCandidate
from ppopt.studies.plan_product import PlanChoice
from ppopt.studies.plan_result import LeastMemory, WithinShare
from ppopt.studies.strategy_evaluator import AcceptsPartition, Rank
from ppopt.studies.strategy_search import StrategySearch
from ppopt.verifier import checked

DESCENTS = 4
"""Descents to the best partition and recompute at level 0; doubled at every level."""
SEARCHING = 0.5
"""Share of a turn that these descents may take; the proof has the rest."""
MEMORY_STEP = Fraction(1, 200)
"""Share of the memory to which the bisection for the least memory goes."""


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
        self._strategy_options, self._accepts_partition = strategy_options, accepts_partition
        self._search = self._search_on(problem.pipeline)
        if problem.pipeline.partition == SEARCH:
            self._search.choice.bounds = given.choice
        self._raise_alone()
        self._taken: Rank | None = None
        """Rank of the schedule in the result."""
        self._result: Result | None = None
        """Result of the best schedule; None: none is found."""

    def _search_on(self, pipeline: Pipeline) -> StrategySearch:
        """Search for the partition and recompute of the strategy on a pipeline."""
        return StrategySearch(
            pipeline, self.configuration.strategy, self.problem.objective, self._strategy_options,
            accepts_partition=self._accepts_partition, seed=self._options.seed,
        )  # fmt: skip

    @property
    def exhausted(self) -> bool:
        """Whether more effort cannot help: no other known partition may be better."""
        return self._search.proved or (self._search.stalled and not self._search.ordered)

    def raise_bound(self, deadline: Deadline, ceiling: Fraction | None) -> None:
        """Bound all partitions until the deadline; above a ceiling, bounds need not be exact."""
        if self.problem.pipeline.partition == SEARCH and not self.impossible:
            self._search.bound(deadline, ceiling)
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
        self._search.start_from(schedule.pipeline)

    def search(self, level: int, turn: Deadline) -> None:
        """Search near the best partition, then in the order of bounds, from the last search on."""
        self.searches += 1
        turn = replace(turn, progress=None)
        self._search.descend(DESCENTS * 2**level, turn.share(SEARCHING))
        self._search.prove(turn)
        self._note()
        if self._search.interrupted:
            raise KeyboardInterrupt

    def _note(self) -> None:
        """Record what the search and the proof have found."""
        search = self._search
        self.bound = max(self.bound, search.state.lower_bound)
        if search.best is not None and search.fits and search.best[0] != self._taken:
            self._taken = search.best[0]
            self._result = self._of_strategy(search.schedule())
        self.impossible |= search.proved and not (search.fits or search.refused)

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
        proof = f"of {self.configuration.strategy} alone: {self._search.proof}"
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
            proof="no partition is within the memory limits"
            if self.impossible
            else "the bound holds for every order of this configuration",
            certificate=Certificate(argument),
            provenance=self._options.provenance,
            solve_seconds=0.0,
        )

    def minimize_memory(self, deadline: Deadline) -> LeastMemory:
        """See `PlanCandidate.minimize_memory`: of equal values, the search prefers less memory."""
        deadline.tell(f"{self.configuration}, memory", self.value, self.bound)
        self._search.descend_until_stalled(replace(deadline, progress=None))
        self._note()
        peak = self.peak
        assert peak is not None
        return LeastMemory(peak, peak if self._search.conclusive else self._least_peak)

    def least_within(self, value: Fraction, deadline: Deadline) -> WithinShare | None:
        """See `PlanCandidate.least_within`: bisects the limit of every device.

        A limit at which no schedule is found that is as fast may still allow one.
        """
        point = super().least_within(value, deadline)
        if point is None or not has_open_choices(self.problem.pipeline):
            return point
        for better in self._less_memory(point, value, replace(deadline, progress=None)):
            point = better
        self.interrupted |= deadline.pressed
        return point

    def _less_memory(
        self, point: WithinShare, value: Fraction, deadline: Deadline
    ) -> Iterator[WithinShare]:
        """Points of less and less memory at which the value is reached, until the deadline."""
        schedule, pipeline, low = self.schedule, self.problem.pipeline, self._least_peak
        assert schedule is not None
        while point.memory - low > MEMORY_STEP * point.memory and not (
            deadline.over or deadline.pressed
        ):
            limit = (low + point.memory) / 2
            limits = [min(limit, own) for own in pipeline.limits or (limit,) * pipeline.num_devices]
            search = self._search_on(replace(pipeline, mem_limit=limits))
            search.start_from(schedule.pipeline)
            search.descend_until_stalled(deadline.share(SEARCHING))
            if search.fits and search.value <= value:
                schedule = search.schedule()
                point = point._replace(value=search.value, memory=peak_memory(schedule))
                yield point
            else:
                low = limit

    @property
    def _least_peak(self) -> Fraction:
        """Least memory of all devices together, spread evenly over them."""
        if self.problem.pipeline.partition != SEARCH:
            return Fraction(0)
        ticks = space_of(self.problem)
        share = Fraction(memory_of_all(ticks.space), ticks.space.num_devices)
        return share / ticks.memory_per_unit
