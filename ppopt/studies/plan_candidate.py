"""A candidate: all that a plan knows of one configuration.

It owns the best schedule, the lower bound and what is proved of them. The configuration covers all
orders of operations (`ppopt.studies.plan_product`), or the order of one hand strategy
(`ppopt.studies.plan_strategy`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from fractions import Fraction

from ppopt.problem.problem import Problem
from ppopt.schedule.schedule import Schedule
from ppopt.solver.deadline import Deadline
from ppopt.solver.options import SolveOptions
from ppopt.solver.result import Result
from ppopt.studies.evaluate import objective_value, peak_memory
from ppopt.studies.plan_result import LeastMemory, PlanRow, RowStatus, WithinShare
from ppopt.studies.plan_space import OPTIMAL, PlanConfiguration


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

    @property
    def bound_per_microbatch(self) -> Fraction:
        """Lower bound of the time per microbatch."""
        return self.per_microbatch(self.bound)

    def is_open(self, ceiling: Fraction | None) -> bool:
        """Whether the configuration may be below a ceiling, per microbatch."""
        return not self.impossible and (ceiling is None or self.bound_per_microbatch < ceiling)

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
        elif best is not None and self.bound_per_microbatch >= best:
            status = RowStatus.PRUNED
        else:
            status = RowStatus.UNKNOWN if self.value is None else RowStatus.FEASIBLE
        alone = best is not None and self.per_microbatch(self.bound_alone) >= best
        ruled_out = status is RowStatus.PRUNED and alone
        return PlanRow(self.configuration, status, result, bound, self.searches, ruled_out)
