"""What a search returns: the schedule, its value, the bound, and why it is believed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ppopt import exact
from ppopt.certificate import Certificate
from ppopt.metrics import Objective
from ppopt.pipeline import Pipeline

if TYPE_CHECKING:
    from ppopt.schedule import Schedule


class Status(StrEnum):
    """How a search ended."""

    OPTIMAL = "optimal"
    """The value equals the lower bound."""
    FEASIBLE = "feasible"
    """A schedule, with a gap to the bound."""
    INFEASIBLE = "infeasible"
    """Proved: no schedule keeps the memory limit."""
    UNKNOWN = "unknown"
    """Time ran out before anything was found."""


@dataclass(frozen=True)
class Provenance:
    """All that is needed to repeat a search."""

    seed: int
    workers: int
    time_limit: float
    versions: dict[str, str]


@dataclass(frozen=True)
class Result:
    """Outcome of `ppopt.solve`."""

    pipeline: Pipeline
    objective: Objective
    fused: bool
    status: Status
    schedule: Schedule | None
    value: Fraction | None
    """Objective of the schedule in the user's unit; None without a schedule."""
    lower_bound: Fraction | None
    """No schedule of this search space is below it, in the user's unit; None where infeasible."""
    proof: str
    """The argument behind `lower_bound`, or behind infeasibility, in words."""
    certificate: Certificate
    """The same, to be checked again by `ppopt.recheck`."""
    provenance: Provenance
    solve_seconds: float
    interrupted: bool = False
    """Whether Ctrl-C ended the search."""

    @property
    def gap(self) -> Fraction | None:
        """(value - lower_bound) / value; None without a schedule."""
        if self.value is None or self.lower_bound is None:
            return None
        return (self.value - self.lower_bound) / self.value if self.value else Fraction(0)

    def origin(self) -> dict[str, Any]:
        """How the schedule was found, for files: everything but the time it took."""
        provenance = self.provenance
        return {
            "strategy": "optimal",
            "objective": self.objective.value,
            "fused": self.fused,
            "status": self.status.value,
            "value": _plain(self.value),
            "lower_bound": _plain(self.lower_bound),
            "gap": _plain(self.gap),
            "proof": self.proof,
            "certificate": self.certificate.to_object(),
            "seed": provenance.seed,
            "workers": provenance.workers,
            "time_limit": provenance.time_limit,
            "versions": provenance.versions,
        }


def _plain(value: Fraction | None) -> int | float | None:
    return None if value is None else exact.plain(value)
