"""The result of a search: schedule, value, bound and certificate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ppopt.cancellation import DrivenResult
from ppopt.errors import VerificationError
from ppopt.notebook_view import NotebookView
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import Decisions
from ppopt.problem.exact import Value, gap_of, plain, ratio
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.origin import SEARCHED, Certificate, HintRecord, Origin
from ppopt.verifier import checked

if TYPE_CHECKING:
    from ppopt.rechecker.claim import Claim
    from ppopt.schedule.schedule import Schedule


class Status(StrEnum):
    """Outcome of a search in one word."""

    OPTIMAL = "optimal"
    """The value equals the lower bound."""
    FEASIBLE = "feasible"
    """There is a schedule, with a gap to the bound."""
    INFEASIBLE = "infeasible"
    """It is proved that no schedule is within the memory limit. Without a limit one exists."""
    UNKNOWN = "unknown"
    """The time limit was reached before a schedule was found."""

    @classmethod
    def of(cls, value: Value | None, lower_bound: Value | None) -> Status:
        """Status of a search with a best value and a lower bound; bound None: infeasible."""
        if value is None:
            return cls.INFEASIBLE if lower_bound is None else cls.UNKNOWN
        return cls.OPTIMAL if value == lower_bound else cls.FEASIBLE


class Progress(NamedTuple):
    """State of a search."""

    seconds: float
    phase: str
    """Name of the method at work."""
    value_ticks: int | None
    bound_ticks: int
    per_unit: int
    """Ticks of its value and bound in one unit of time."""

    @property
    def value(self) -> Fraction | None:
        """Best value in the user's unit; None without a schedule."""
        return None if self.value_ticks is None else Fraction(self.value_ticks, self.per_unit)

    @property
    def lower_bound(self) -> Fraction:
        """Lower bound in the user's unit."""
        return Fraction(self.bound_ticks, self.per_unit)


class Ticks(Protocol):
    """A best value and a lower bound in ticks, of which `per_unit` are one unit of time."""

    @property
    def value_ticks(self) -> int | None:
        """Objective of the best schedule; None without one."""

    @property
    def bound_ticks(self) -> int | None:
        """Lower bound of all schedules; None: there is none."""

    @property
    def per_unit(self) -> int:
        """Ticks in one unit of time."""


class BoundedValue:
    """A best value and a lower bound, exact in the user's unit: of all results, the only place."""

    @property
    def value(self: Ticks) -> Fraction | None:
        """Objective of the best schedule in the user's unit; None without one."""
        return None if self.value_ticks is None else Fraction(self.value_ticks, self.per_unit)

    @property
    def lower_bound(self: Ticks) -> Fraction | None:
        """Lower bound in the user's unit; None: there is no schedule."""
        return None if self.bound_ticks is None else Fraction(self.bound_ticks, self.per_unit)

    @property
    def gap(self: Ticks) -> int | float | None:
        """(value - lower_bound) / value; None if either is unknown."""
        return gap_of(self.value_ticks, self.bound_ticks)


Callback = Callable[[Progress], None]
Stop = Callable[[Progress], bool]
"""Stop criterion of the caller: whether the search ends now."""


@dataclass(frozen=True)
class Provenance:
    """Settings and versions that are needed to repeat a search."""

    seed: int
    workers: int
    time_limit: float
    versions: dict[str, str]


@dataclass(frozen=True)
class Result(BoundedValue, DrivenResult, NotebookView):
    """Outcome of `ppopt.solve`.

    Raises VerificationError if it is infeasible without a memory limit: a bug of ppopt.
    """

    pipeline: Pipeline
    objective: Objective
    backward_kind: BackwardKind
    """Kind of backwards that was searched."""
    status: Status
    schedule: Schedule | None
    value_ticks: int | None
    """Objective of the schedule in ticks of the grid; None without a schedule."""
    bound_ticks: int | None
    """Lower bound of the schedules of this search space in ticks; None: infeasible."""
    proof: str
    """Text of the argument behind the bound, or behind infeasibility."""
    certificate: Certificate
    """Certificate of the same argument, for `ppopt.recheck`."""
    provenance: Provenance
    solve_seconds: float
    hint: HintRecord | None = None
    """The hint, as it was used; None if none was given."""

    def __post_init__(self) -> None:
        if self.status is Status.INFEASIBLE and self.pipeline.limits is None:
            raise VerificationError(
                f"no schedule is said to exist, without a memory limit: please report it "
                f"({self.proof})"
            )

    @property
    def per_unit(self) -> int:
        """Ticks in one unit of time."""
        return self.pipeline.ticks.per_unit

    @property
    def fused(self) -> bool:
        """Whether only whole backwards were searched."""
        return self.backward_kind is BackwardKind.WHOLE

    @property
    def gain(self) -> int | float | None:
        """By which share the schedule has more throughput than the hint: hint / value - 1.

        The gain is negative only if the hint is over the memory limit or outside the search space;
        None without a hint or a schedule.
        """
        if self.hint is None or self.value is None:
            return None
        return ratio(self.hint.value - self.value, self.value)

    def __repr__(self) -> str:
        if self.value is None:
            return f"Result({self.status.value}: {self.proof})"
        assert self.gap is not None
        gap = "" if self.status is Status.OPTIMAL else f", gap {100 * self.gap:.2f} %"
        figures = f"{self.objective.value} {plain(self.value)}{gap}"
        return f"Result({self.status.value}: {figures}; {self.pipeline!r})"

    @property
    def claim(self) -> Claim | None:
        """Claimed bound, or claim of infeasibility; None if there is neither."""
        if self.lower_bound is None and self.status is not Status.INFEASIBLE:
            return None
        from ppopt.rechecker.claim import Claim  # noqa: PLC0415  on use

        placement = self.pipeline.open_decisions & Decisions.PLACEMENT
        return Claim(
            self.pipeline,
            self.objective is Objective.DEVICE_SPAN,
            self.backward_kind,
            self.bound_ticks,
            self.certificate.devices,
            placement or self.certificate.decisions,
        )

    def with_schedule(self, schedule: Schedule) -> Result:
        """Result with a schedule, which has it as its origin, and which is verified."""
        return replace(self, schedule=checked(replace(schedule, origin=self.origin())))

    def origin(self) -> Origin:
        """Origin of the schedule for its file: everything except the solve time."""
        return Origin(
            strategy=SEARCHED,
            objective=self.objective,
            status=self.status.value,
            backward_kind=self.backward_kind,
            value=self.value,
            lower_bound=self.lower_bound,
            gap=self.gap,
            proof=self.proof,
            certificate=self.certificate,
            seed=self.provenance.seed,
            workers=self.provenance.workers,
            time_limit=self.provenance.time_limit,
            versions=self.provenance.versions,
            hint=None if self.hint is None else replace(self.hint, gain=self.gain),
        )
