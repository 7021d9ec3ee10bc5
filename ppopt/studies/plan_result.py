"""What a plan returns: the best configuration and its schedule, and a row for every other one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import NamedTuple

from ppopt.notebook_view import NotebookView
from ppopt.problem.exact import plain
from ppopt.problem.objective import Objective
from ppopt.problem.partition import SEARCH
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule
from ppopt.solver.result import Provenance, Result, Status
from ppopt.studies.evaluate import peak_memory
from ppopt.studies.plan_space import PlanConfiguration, PlanSpace


class RowStatus(StrEnum):
    """What is known of one configuration of a plan."""

    OPTIMAL = "optimal"
    """Its best schedule is found and proved."""
    FEASIBLE = "feasible"
    """It has a schedule, and may have a better one."""
    PRUNED = "pruned"
    """It is no better than the best configuration: its bound says so."""
    INFEASIBLE = "infeasible"
    """Proved: none of its schedules keeps the memory limit."""
    UNKNOWN = "unknown"
    """Nothing was found in time."""


@dataclass(frozen=True)
class PlanRow:
    """One configuration of a plan; values in the user's unit."""

    configuration: PlanConfiguration
    status: RowStatus
    result: Result
    """Its best schedule, as far as it was searched; its bound is over all partitions, where these
    are searched. That of a hand strategy states no bound: others may be better."""
    lower_bound: Fraction | None
    """None of its schedules has a lower value; None: there is none at all."""
    searches: int
    """Searches of single partitions; 0: it was bounded only."""
    ruled_out_by_bounds: bool
    """Whether it is pruned by bounds that need no search of it."""

    def __repr__(self) -> str:
        mark = "<= " if self.given_up else ""
        value = "" if self.value is None else f", {mark}{plain(self.value)}"
        return f"PlanRow({self.status.value}: {self.configuration}{value})"

    @property
    def schedule(self) -> Schedule | None:
        """Its best schedule; None where none was found."""
        return self.result.schedule

    @property
    def pipeline(self) -> Pipeline:
        """Its pipeline; with the partition of the schedule, where there is one."""
        return self.result.pipeline if self.schedule is None else self.schedule.pipeline

    @property
    def value(self) -> Fraction | None:
        """Objective of its best schedule; None where none was found."""
        return self.result.value

    @property
    def peak(self) -> Fraction | None:
        """The largest device peak of its best schedule; None where none was found."""
        made = self.schedule
        return None if made is None else peak_memory(made)

    @property
    def given_up(self) -> bool:
        """Whether its schedule was not searched further, as its bound is no lower than the best."""
        return self.status is RowStatus.PRUNED and self.value is not None

    @property
    def per_microbatch(self) -> Fraction | None:
        """The value for each of its microbatches."""
        return None if self.value is None else self.value / self.configuration.batches

    @property
    def bound_per_microbatch(self) -> Fraction | None:
        """The bound for each of its microbatches."""
        bound = self.lower_bound
        return None if bound is None else bound / self.configuration.batches

    @property
    def place(self) -> tuple[bool, Fraction, Fraction, bool, bool, Fraction, PlanConfiguration]:
        """Where it stands: by time per microbatch, then by memory, then by bound.

        A configuration of chosen recompute comes after the one whose schedule it has taken over.
        """
        return (
            self.value is None,
            self.per_microbatch or Fraction(0),
            self.peak or Fraction(0),
            self.configuration.recompute == SEARCH,
            self.lower_bound is None,
            self.bound_per_microbatch or Fraction(0),
            self.configuration,
        )


def counted(rows: Sequence[PlanRow]) -> str:
    """How many configurations were ruled out or searched, in words."""
    alone = sum(row.ruled_out_by_bounds for row in rows)
    impossible = sum(row.status is RowStatus.INFEASIBLE for row in rows)
    searched = len(rows) - impossible - alone
    counts = {
        "not fit the memory limit": ("does " if impossible == 1 else "do ", impossible),
        "ruled out by bounds alone": ("is " if alone == 1 else "are ", alone),
        "searched": ("was " if searched == 1 else "were ", searched),
    }
    words = ", ".join(f"{number} {verb}{what}" for what, (verb, number) in counts.items() if number)
    every = "the 1 configuration" if len(rows) == 1 else f"all {len(rows)} configurations"
    return f"over {every}: {words}"


class LeastMemory(NamedTuple):
    """How little memory the best plan can do with, as fast, in its configuration."""

    memory: Fraction
    """The largest device peak of its schedule, in the user's unit: the least that was found."""
    lower_bound: Fraction
    """No schedule of its configuration that is as fast has a lower one."""


class WithinShare(NamedTuple):
    """The least memory found for a value that is at most a share above the best."""

    configuration: PlanConfiguration
    value: Fraction
    """Of its schedule, in the user's unit."""
    memory: Fraction
    """The largest device peak of its schedule, in the user's unit."""
    lower_bound: Fraction | None
    """No schedule of the space that is so fast has a lower one; None: not known."""


class MoreMemory(NamedTuple):
    """What a larger memory limit brings; times for as many microbatches as the best plan has."""

    limits: tuple[Fraction, ...]
    """Memory limit of every device, in the user's unit."""
    value: Fraction
    """The best value found within it; that of the plan where none is better."""
    lower_bound: Fraction
    """No schedule of any configuration is below within it."""


class Hand(NamedTuple):
    """A hand strategy beside a plan."""

    strategy: str
    schedule: Schedule
    """On the best partition and recompute found for it."""
    value: Fraction
    """Its objective in the user's unit."""
    recompute: str
    """How its layers recompute: `none`, `full`, `search` (chosen for it), or `layers`."""
    within: bool
    """Whether the plan could have chosen this schedule."""


@dataclass(frozen=True)
class Plan(NotebookView):
    """Outcome of `ppopt.plan`; times in the user's unit."""

    space: PlanSpace
    """What was searched."""
    objective: Objective
    status: Status
    """`optimal`: no configuration of the space is better, per microbatch."""
    rows: tuple[PlanRow, ...]
    """Every configuration, the best first: by time per microbatch; those without a schedule last,
    by their bounds."""
    lower_bound: Fraction | None
    """No schedule of any configuration takes less per microbatch, times the microbatches of the
    best one; None: none keeps the memory limit."""
    proof: str
    """The argument behind `lower_bound`, or behind infeasibility, in words."""
    skipped: tuple[tuple[str, str], ...]
    """Configurations that cannot be set up, each with the reason."""
    provenance: Provenance
    solve_seconds: float
    interrupted: bool = False
    """Whether Ctrl-C ended the search."""
    least_memory: LeastMemory | None = None
    """How little memory is enough for its value; None without a schedule, and where Ctrl-C ended
    the search before."""
    within: WithinShare | None = None
    """The least memory that is almost as fast, where a share was asked for and time was left."""
    more_memory: MoreMemory | None = None
    """What 10 % more memory brings, by a short search; None without a limit or a schedule."""
    hands: tuple[Hand, ...] = ()
    """Hand strategies within the memory limit, each on the best partition and recompute found for
    it, the best first; also those of placements and chunks outside the space."""
    late_hands: tuple[str, ...] = ()
    """Hand strategies for which there was no time left."""

    @property
    def best(self) -> PlanRow | None:
        """The best configuration; None where no schedule was found."""
        return self.rows[0] if self.rows[0].schedule is not None else None

    @property
    def schedule(self) -> Schedule | None:
        """The schedule of the best configuration."""
        return None if self.best is None else self.best.schedule

    @property
    def value(self) -> Fraction | None:
        """Objective of the best schedule; None without one."""
        return None if self.best is None else self.best.value

    @property
    def gap(self) -> Fraction | None:
        """(value - lower_bound) / value, over the whole space; None without a schedule."""
        if self.value is None or self.lower_bound is None:
            return None
        return (self.value - self.lower_bound) / self.value if self.value else Fraction(0)

    def __repr__(self) -> str:
        best = self.best
        if best is None:
            return f"Plan({self.status.value}: {len(self.rows)} configurations)"
        assert self.value is not None and self.gap is not None
        counts = ",".join(map(str, best.pipeline.counts))
        return (
            f"Plan({self.status.value}: {best.configuration}, partition {counts}, "
            f"{self.objective.value} {plain(self.value)}, gap {float(100 * self.gap):.2f} %, best "
            f"of {len(self.rows)} configurations)"
        )
