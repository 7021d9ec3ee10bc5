"""The result of a plan: the best configuration and its schedule, and a row for every other one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from ppopt.cancellation import DrivenResult
from ppopt.notebook_view import NotebookView
from ppopt.problem.cost_table import ZERO
from ppopt.problem.decisions import SEARCH
from ppopt.problem.exact import Value, plain, plain_or_none
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.origin import SEARCHED
from ppopt.schedule.schedule import Schedule
from ppopt.solver.result import BoundedValue, Provenance, Result, Status
from ppopt.studies.evaluate import headroom
from ppopt.studies.first_schedules import FirstRow
from ppopt.studies.headline import DEFAULT_RUNTIME, BestSchedule, Headline, headline
from ppopt.studies.plan_space import ANY_RUNTIME, PlanConfiguration, PlanSpace

if TYPE_CHECKING:
    from pandas import DataFrame


class RowStatus(StrEnum):
    """State of one configuration of a plan."""

    OPTIMAL = "optimal"
    """The best schedule is found and proved."""
    FEASIBLE = "feasible"
    """A search has a schedule, and there may be a better one."""
    EVALUATED = "evaluated"
    """Only strategies were evaluated; there may be a better schedule."""
    PRUNED = "pruned"
    """The bound proves that the configuration is no better than the best one."""
    INFEASIBLE = "infeasible"
    """No schedule is within the memory limit, which is proved."""
    UNKNOWN = "unknown"
    """No schedule was found in time."""

    @classmethod
    def of(
        cls,
        value: Value | None,
        bound: Value | None,
        best: Value | None,
        *,
        searched: bool = True,
    ) -> RowStatus:
        """State by the best value, the lower bound (None: infeasible) and the best of all rows."""
        if bound is None:
            return cls.INFEASIBLE
        if value is not None and bound >= value:
            return cls.OPTIMAL
        if best is not None and bound >= best:
            return cls.PRUNED
        if value is None:
            return cls.UNKNOWN
        return cls.FEASIBLE if searched else cls.EVALUATED


@dataclass(frozen=True)
class PlanRow(BoundedValue):
    """One configuration of a plan; its value is the objective of the best schedule."""

    configuration: PlanConfiguration
    status: RowStatus
    result: Result
    """Result of the best schedule found; its bound covers all partitions, if these are searched.
    The result of a strategy has no bound: other orders may be better."""
    bound_ticks: int | None
    """Lower bound of the schedules in ticks; None: there is no schedule."""
    searches: int
    """Number of searches of single partitions; 0: the configuration was bounded only."""
    ruled_out_by_bounds: bool
    """Whether the configuration is pruned by bounds that need no search of it."""

    def __repr__(self) -> str:
        mark = "<= " if self.given_up else ""
        value = "" if self.value is None else f", {mark}{plain(self.value)}"
        return f"PlanRow({self.status.value}: {self.configuration}{value})"

    @property
    def schedule(self) -> Schedule | None:
        """Best schedule; None if none was found."""
        return self.result.schedule

    @property
    def pipeline(self) -> Pipeline:
        """Pipeline; with the partition of the schedule, if there is one."""
        return self.result.pipeline if self.schedule is None else self.schedule.pipeline

    @property
    def value_ticks(self) -> int | None:
        """Objective of the best schedule in ticks; None if none was found."""
        return self.result.value_ticks

    @property
    def per_unit(self) -> int:
        """Ticks in one unit of time."""
        return self.result.per_unit

    @property
    def peak(self) -> int | float | None:
        """Largest device peak of the best schedule; None if none was found."""
        schedule = self.schedule
        return None if schedule is None else max(schedule.peak_memory)

    @property
    def headroom(self) -> int | float | None:
        """Least memory that the limit of a device leaves; None without a schedule or a limit."""
        schedule = self.schedule
        return None if schedule is None else headroom(schedule)

    @property
    def given_up(self) -> bool:
        """Whether a schedule is not searched further: the bound is no lower than the best value."""
        return self.status is RowStatus.PRUNED and self.value is not None

    @property
    def per_microbatch(self) -> Fraction | None:
        """Value per microbatch."""
        return None if self.value is None else self.value / self.configuration.batches

    @property
    def bound_per_microbatch(self) -> Fraction | None:
        """Bound per microbatch."""
        bound = self.lower_bound
        return None if bound is None else bound / self.configuration.batches

    @property
    def frame_row(self) -> dict[str, Any]:
        """The row of `Plan.to_frame`."""
        return {
            **self.configuration._asdict(),
            "status": self.status.value,
            "value": plain_or_none(self.value),
            "per_microbatch": plain_or_none(self.per_microbatch),
            "lower_bound": plain_or_none(self.lower_bound),
            "peak_memory": self.peak,
            "partition": None if self.schedule is None else self.pipeline.counts,
        }

    @property
    def sort_key(self) -> tuple[bool, Fraction, float, bool, bool, Fraction, PlanConfiguration]:
        """Sort key: time per microbatch, then memory; without a schedule, the bound.

        A configuration of chosen recompute that copied its schedule comes after the one it is from.
        """
        scheduled = self.value is not None
        return (
            not scheduled,
            self.per_microbatch or ZERO,
            self.peak or 0,
            self.configuration.recompute == SEARCH,
            not scheduled and self.lower_bound is None,
            ZERO if scheduled else self.bound_per_microbatch or ZERO,
            self.configuration,
        )


def counted(rows: Sequence[PlanRow], num_late: int) -> str:
    """Text that counts the configurations excluded, searched, and not searched.

    `num_late` configurations without a row were not set up in time.
    """
    alone = sum(row.ruled_out_by_bounds for row in rows)
    impossible = sum(row.status is RowStatus.INFEASIBLE for row in rows)
    evaluated = sum(row.status is RowStatus.EVALUATED for row in rows)
    unsearched = sum(row.status is RowStatus.UNKNOWN and not row.searches for row in rows)
    searched = len(rows) - impossible - alone - evaluated - unsearched
    counts = (
        (impossible, "does", "do", "not fit the memory limit"),
        (alone, "is", "are", "ruled out by bounds alone"),
        (searched, "was", "were", "searched"),
        (evaluated, "was", "were", "evaluated by strategies alone"),
        (unsearched, "was", "were", "not searched in time"),
        (num_late, "was", "were", "not set up in time"),
    )
    texts = (
        f"{count} {verb if count == 1 else verbs} {what}"
        for count, verb, verbs, what in counts
        if count
    )
    total = len(rows) + num_late
    every = "the 1 configuration" if total == 1 else f"all {total} configurations"
    return f"over {every}: {', '.join(texts)}"


class LeastMemory(NamedTuple):
    """The minimum memory at which the best configuration keeps its speed."""

    memory: Fraction
    """Largest device peak of the best schedule found, in the user's unit."""
    lower_bound: Fraction
    """Lower bound of this peak for all schedules of the configuration that are as fast."""


class WithinShare(NamedTuple):
    """The minimum memory found for a value that is at most a share above the best."""

    configuration: PlanConfiguration
    value: Fraction
    """Objective of the schedule, in the user's unit."""
    memory: Fraction
    """Largest device peak of the schedule, in the user's unit."""
    lower_bound: Fraction | None
    """Lower bound of this peak for all schedules of the space that are fast enough; None if
    unknown."""


@dataclass(frozen=True)
class MoreMemory(BoundedValue):
    """The effect of a larger memory limit; times are for the microbatches of the best plan.

    Its value is the best within the limit; that of the plan if none is better.
    """

    limits: tuple[Fraction, ...]
    """Memory limit of every device, in the user's unit."""
    value_ticks: int
    bound_ticks: int
    """Lower bound of all configurations within the limit."""
    per_unit: int


class PlanBaseline(NamedTuple):
    """A strategy compared with a plan."""

    strategy: str
    schedule: Schedule
    """Schedule with the best partition and recompute found for the strategy."""
    value: Fraction
    """Objective of the schedule, in the user's unit."""
    recompute: str
    """Recompute mode: `none`, `full`, `search` (chosen for the strategy), or `layers`."""
    in_space: bool
    """Whether the plan could have chosen this schedule."""


@dataclass(frozen=True)
class Plan(BoundedValue, DrivenResult, NotebookView):
    """Outcome of `ppopt.plan`; its value is the objective of the best schedule.

    Its lower bound is that of the time per microbatch of all configurations, times the microbatches
    of the best one; None: no schedule is within the memory limit.
    """

    space: PlanSpace
    """Configurations that were searched."""
    objective: Objective
    status: Status
    """`optimal`: no configuration of the space is better, per microbatch."""
    rows: tuple[PlanRow, ...]
    """All configurations, the best first: by time per microbatch; those without a schedule last, by
    their bounds."""
    value_ticks: int | None
    bound_ticks: int | None
    per_unit: int
    """Ticks in one unit of time: as many as times per microbatch need."""
    proof: str
    """Text of the argument behind `lower_bound`, or behind infeasibility."""
    skipped: tuple[tuple[str, str], ...]
    """Configurations that were not set up, each with the reason. `lower_bound` also holds for those
    for which no time was left."""
    provenance: Provenance
    solve_seconds: float
    least_memory: LeastMemory | None = None
    """Least memory for the value of the plan; None without a schedule, if no time was left, and if
    Ctrl-C ended the search before."""
    within: WithinShare | None = None
    """Least memory that is almost as fast; None unless requested, and if no time was left."""
    more_memory: MoreMemory | None = None
    """Effect of 10 % more memory, by a short search; None without a limit or a schedule."""
    baselines: tuple[PlanBaseline, ...] = ()
    """Strategies within the memory limit, each with the best partition and recompute found for
    it, the best first; also those with placements and chunks outside the space."""
    late_baselines: tuple[str, ...] = ()
    """Strategies that were not evaluated for lack of time."""
    least_memory_row: FirstRow | None = None
    """A schedule of the space that needs little memory, by rule; None if the plan has one that is
    within the limits."""
    current: Schedule | None = None
    """Schedule that the user runs today; None: none is named, and 1F1B does not apply."""

    @property
    def best(self) -> PlanRow | None:
        """Best configuration; None if no schedule was found."""
        return self.rows[0] if self.rows[0].schedule is not None else None

    @property
    def pipeline(self) -> Pipeline:
        """Pipeline of the best configuration, as it was searched: with the units and limits."""
        return self.rows[0].result.pipeline

    @property
    def schedule(self) -> Schedule | None:
        """Schedule of the best configuration."""
        return None if self.best is None else self.best.schedule

    @cached_property
    def headline(self) -> Headline:
        """The current schedule, the best one of the space that the runtime runs, and the best one.

        The runtime is that of the space, or PyTorch. If only baselines were searched, other orders
        may be better: their bound is left out.
        """
        schedules = [row.schedule for row in self.rows if row.schedule is not None]
        schedules += [baseline.schedule for baseline in self.baselines if baseline.in_space]
        bound = self.lower_bound if SEARCHED in self.space.strategies else None
        best = None if self.schedule is None else BestSchedule(self.schedule, bound)
        runtime = DEFAULT_RUNTIME if self.space.runtime == ANY_RUNTIME else self.space.runtime
        return headline(self.current, schedules, best, self.objective, runtime)

    def to_frame(self) -> DataFrame:
        """One row per configuration, in the user's units, as a pandas DataFrame.

        Needs pandas (the extra `frame`).
        """
        from pandas import DataFrame  # noqa: PLC0415  optional

        return DataFrame([row.frame_row for row in self.rows])

    def __repr__(self) -> str:
        best = self.best
        if best is None:
            return f"Plan({self.status.value}: {len(self.rows)} configurations)"
        assert self.value is not None and self.gap is not None
        counts = ",".join(map(str, best.pipeline.counts))
        return (
            f"Plan({self.status.value}: {best.configuration}, partition {counts}, "
            f"{self.objective.value} {plain(self.value)}, gap {100 * self.gap:.2f} %, best "
            f"of {len(self.rows)} configurations)"
        )
