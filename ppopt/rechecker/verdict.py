"""The outcome of a re-check: its verdict and the reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from ppopt.rechecker.claim import Claim
from ppopt.schedule.timetable import Timetable
from ppopt.verifier import figures

if TYPE_CHECKING:
    from ppopt.rechecker.refute import RefutationOutcome
    from ppopt.schedule.schedule import Schedule


class Verdict(StrEnum):
    """How a re-check ended."""

    CONFIRMED = "confirmed"
    """No schedule is below the bound (or there is none at all, if that was claimed)."""
    UNDECIDED = "not confirmed"
    """Time ran out."""
    WRONG = "wrong"
    """There is a schedule below the bound."""


@dataclass(frozen=True)
class Recheck:
    """Outcome of `ppopt.recheck`."""

    verdict: Verdict
    reason: str
    """Text that says what decided it."""
    devices: tuple[int, ...]
    """The devices whose rules decided it; for the others only the data flow was used."""
    seconds: float = 0.0
    counterexample: Schedule | None = None
    """A valid schedule below the bound, if the bound is wrong and one was built."""


def outcome_of(stated: Claim, outcome: RefutationOutcome) -> Recheck:
    """The outcome of a search by CP-SAT."""
    if outcome.schedule is not None:
        from ppopt.schedule.schedule import Schedule  # noqa: PLC0415  nothing here works with it

        below = Schedule.from_columns(
            stated.pipeline, *outcome.schedule.operations.columns, origin=outcome.schedule.origin
        )
        return Recheck(Verdict.WRONG, _below(stated, below), outcome.devices, 0.0, below)
    verdict = Verdict.CONFIRMED if outcome.refuted else Verdict.UNDECIDED
    reason = searched(stated, outcome.devices, refuted=outcome.refuted)
    return Recheck(verdict, reason, outcome.devices)


def searched(stated: Claim, devices: tuple[int, ...], *, refuted: bool) -> str:
    """Text of the outcome of a search."""
    what = "no schedule" if refuted else "the time was up before a schedule was found or excluded"
    if stated.bound is not None:
        what += f" below {stated.pipeline.time_text(stated.bound)}"
    if len(devices) == stated.pipeline.num_devices:
        return f"{what} under all rules"
    names = " and ".join(map(str, devices))
    rules = f"device{'s' if len(devices) > 1 else ''} {names}"
    return f"{what} under all rules of {rules} and the data flow of the others"


def value_of(stated: Claim, schedule: Timetable) -> int:
    """Objective of a schedule, in ticks, as the verifier computes it."""
    measured = figures(schedule)
    return measured.device_span if stated.span else measured.makespan


def _below(stated: Claim, schedule: Schedule) -> str:
    """Text that says why a claim is wrong."""
    value = stated.pipeline.time_text(value_of(stated, schedule))
    if stated.bound is None:
        return f"there is a schedule of {value} within the limits"
    return f"there is a schedule of {value}, below {stated.pipeline.time_text(stated.bound)}"
