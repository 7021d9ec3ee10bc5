"""The result of a plan over the parallelism: every combination, and a bound over all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ppopt.cancellation import DrivenResult
from ppopt.derivation.derived_model import DerivedModel
from ppopt.problem.cost_table import ZERO
from ppopt.problem.exact import gap_of, plain, plain_or_none
from ppopt.schedule.origin import SEARCHED
from ppopt.schedule.schedule import Schedule
from ppopt.solver.result import Provenance, Status
from ppopt.studies.evaluate import headroom
from ppopt.studies.first_schedules import FirstRow
from ppopt.studies.headline import Headline
from ppopt.studies.parallel_space import Parallelism, ParallelSpace
from ppopt.studies.parallel_task import CombinationState, StorageReport
from ppopt.studies.plan_result import Plan, PlanRow, RowStatus
from ppopt.studies.step_breakdown import StepBreakdown, step_breakdown

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class ParallelRow:
    """Plan and bound of one combination; times of a step, in ms."""

    parallelism: Parallelism
    model: DerivedModel
    state: CombinationState
    failed: str | None = None
    """Why its last search failed, in one line; None if it did not."""

    @property
    def lower_bound(self) -> Fraction | None:
        """Lower bound of its steps; None: no schedule is within the memory limit."""
        return self.state.lower_bound

    @property
    def plan(self) -> Plan | None:
        """Best plan of the combination, with or without a schedule; None: it was not searched."""
        return self.state.plan

    @property
    def value(self) -> Fraction | None:
        """Shortest step found."""
        return self.state.value

    @property
    def sort_key(self) -> tuple[bool, Fraction, bool, bool, Fraction, Parallelism]:
        """Sort key: the step, then whether it was searched; the bound, infeasible ones last."""
        value, bound = self.value, self.lower_bound
        zero = ZERO
        return (
            value is None, value or zero, self.plan is None,
            bound is None, bound or zero, self.parallelism,
        )  # fmt: skip

    @property
    def configuration(self) -> str | None:
        """Configuration of the shortest step; None without a schedule."""
        best = self._best
        return None if best is None else str(best.configuration)

    @property
    def schedule(self) -> Schedule | None:
        """Schedule of the shortest step; None without one."""
        return None if self._best is None else self._best.schedule

    @property
    def strategy(self) -> str | None:
        """Strategy of the best schedule, or `searched`; None without a schedule."""
        return None if self.schedule is None else self.schedule.origin.strategy

    @property
    def peak(self) -> int | float | None:
        """Largest device peak of the best schedule; None without one."""
        return None if self.schedule is None else max(self.schedule.peak_memory)

    @property
    def headroom(self) -> int | float | None:
        """Least memory that the limit leaves a device; None without a schedule or a limit."""
        return None if self.schedule is None else headroom(self.schedule)

    @cached_property
    def breakdown(self) -> StepBreakdown | None:
        """Parts of the shortest step; None without a schedule."""
        schedule = self.schedule
        return None if schedule is None else step_breakdown(schedule, self.model.layers)

    @property
    def _best(self) -> PlanRow | FirstRow | None:
        """Row of the shortest step: of the plan or, before a search, of a strategy."""
        planned = None if self.plan is None else self.plan.best
        return planned if planned is not None else next(iter(self.state.first), None)

    @property
    def searches(self) -> int:
        """Number of searches of single partitions in the best plan; 0: not searched."""
        return 0 if self.plan is None else sum(row.searches for row in self.plan.rows)

    def status(self, best: Fraction | None) -> RowStatus:
        """State of the combination; `best` is the shortest step of any."""
        return RowStatus.of(self.value, self.lower_bound, best, searched=self.plan is not None)


@dataclass(frozen=True)
class ParallelPlan(DrivenResult):
    """Outcome of `ppopt.studies.parallel_plan.plan_parallelism`."""

    space: ParallelSpace
    status: Status
    """`optimal`: no combination has a shorter step."""
    rows: tuple[ParallelRow, ...]
    """Every combination, the best first."""
    lower_bound: Fraction | None
    """Lower bound of the steps of all combinations, in ms; None: none is within the memory limit.
    """
    skipped: Mapping[Parallelism, str]
    """Invalid combinations, each with the reason."""
    provenance: Provenance
    solve_seconds: float
    storage: StorageReport | None = None
    """Report on the storage; None if the plan has no storage."""
    least_memory: tuple[Parallelism, FirstRow] | None = None
    """A combination, and a schedule of it that needs little memory, by rule; None if a schedule is
    within the memory limit."""

    @property
    def skipped_by_reason(self) -> dict[str, int]:
        """Number of invalid combinations of every reason, the most frequent first."""
        return dict(Counter(self.skipped.values()).most_common())

    @property
    def best(self) -> ParallelRow | None:
        """Combination of the shortest step; None if none was found."""
        return self.rows[0] if self.rows and self.rows[0].value is not None else None

    @property
    def plan(self) -> Plan:
        """Plan of the best combination, which is always searched; else the first plan."""
        return next(row.plan for row in self.rows if row.plan is not None)

    @property
    def headline(self) -> Headline:
        """The headline of this plan; its bound is over all combinations, if over all orders."""
        bound = self.lower_bound if SEARCHED in self.plan.space.strategies else None
        return self.plan.headline.within_bound(bound or None)

    @property
    def value(self) -> Fraction | None:
        """Shortest step found, in ms."""
        return None if self.best is None else self.best.value

    @property
    def gap(self) -> int | float | None:
        """(value - lower_bound) / value over the whole space; None without a schedule."""
        return gap_of(self.value, self.lower_bound)

    def row_object(self, row: ParallelRow) -> dict[str, Any]:
        """Figures of a combination, as `ppopt plan --from --json` has them; None if unknown."""
        training = row.model.training
        parts = (None,) * len(StepBreakdown._fields) if row.breakdown is None else row.breakdown
        return {
            **row.parallelism._asdict(),
            "status": row.status(self.value).value,
            "searches": row.searches,
            "devices": training.devices,
            "batches": training.batches,
            "value": plain_or_none(row.value),
            "lower_bound": plain_or_none(row.lower_bound),
            **dict(zip(StepBreakdown._fields, map(plain_or_none, parts), strict=True)),
            "tokens_per_second_per_gpu": self.tokens_per_second(row.value),
            "bound_tokens_per_second_per_gpu": self.tokens_per_second(row.lower_bound),
            "configuration": row.configuration,
            "strategy": row.strategy,
            "peak_memory": row.peak,
            "seconds": round(row.state.seconds, 3),
            "failed": row.failed,
        }

    def to_frame(self) -> DataFrame:
        """One row per combination, the best first, as a pandas DataFrame; times in ms.

        Needs pandas (the extra `frame`).
        """
        from pandas import DataFrame  # noqa: PLC0415  optional

        return DataFrame([self.row_object(row) for row in self.rows])

    def tokens_per_second(self, step: Fraction | None) -> float | None:
        """Tokens per second per GPU for a step time in ms.

        For a lower bound on the step time: an upper bound.
        """
        if not step:
            return None
        return float(self.space.tokens * 1000 / step / self.space.gpus)

    def __repr__(self) -> str:
        if self.best is None or self.gap is None:
            return f"ParallelPlan({self.status.value}: {len(self.rows)} combinations)"
        assert self.value is not None
        return (
            f"ParallelPlan({self.status.value}: {self.best.parallelism}, step "
            f"{plain(self.value)} ms, gap {100 * self.gap:.2f} %, best of "
            f"{len(self.rows)} combinations)"
        )
