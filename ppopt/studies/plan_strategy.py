"""A configuration of a plan whose schedules are those of one hand strategy."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

from ppopt.problem.partition import SEARCH
from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Argument, Certificate
from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver.choices.search import Effort
from ppopt.solver.deadline import NO_DEADLINE, Deadline
from ppopt.solver.partitions.partition_bounds import memory_of_all
from ppopt.solver.partitions.space import space_of
from ppopt.solver.result import Result
from ppopt.strategies import Options
from ppopt.studies.best_choice import StrategyProof
from ppopt.studies.plan_candidate import PlanCandidate, PlanRequest
from ppopt.studies.plan_result import LeastMemory
from ppopt.studies.plan_space import PlanConfiguration
from ppopt.studies.strategy_search import PATIENCE, Rank, StrategySearch, Takes
from ppopt.verifier import checked

ROUNDS = 4
"""Rounds of the search for the best partition and recompute at level 0; at each level twice as
many."""
SEARCHING = 0.5
"""Share of a turn that these rounds may take; the proof has the rest."""


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
        return LeastMemory(peak, peak if self._choices.exhausted else self._least_peak)

    @property
    def _least_peak(self) -> Fraction:
        """What all devices together need at least, spread evenly over them."""
        if self.problem.pipeline.partition != SEARCH:
            return Fraction(0)
        ticks = space_of(self.problem)
        share = Fraction(memory_of_all(ticks.space), ticks.space.num_devices)
        return share / ticks.memory_per_unit
