"""Measured steps: they keep the rules of order, and each operation takes its own time."""

from __future__ import annotations

from collections.abc import Mapping

from ppopt.errors import InputError
from ppopt.schedule.timetable import Timetable
from ppopt.verifier import verify
from ppopt.verifier.violation import Rule, Violation

MEASURED = "measured"
"""Strategy of a measured schedule: its operations take their own time each, so that it keeps the
rules of order but not those of duration."""
UNTIMED = frozenset((Rule.UNKNOWN, Rule.DUPLICATE, Rule.MISSING, Rule.DEVICE, Rule.START))
"""The verifier's rules that speak of no times."""


def is_measured(schedule: Timetable) -> bool:
    """Whether a schedule is what was measured, and no plan."""
    return schedule.origin.strategy == MEASURED


def faults(schedule: Timetable, claims: Mapping[str, object] | None = None) -> list[Violation]:
    """What the verifier finds, whatever the limit; of a measured step, what speaks of no times."""
    found = verify(schedule, claims, enforce_limit=False)
    if not is_measured(schedule):
        return found
    return [violation for violation in found if violation.rule in UNTIMED]


def planned(schedule: Timetable, what: str) -> None:
    """Raise InputError, beginning with `what`, for a measured step, where a plan is needed."""
    if is_measured(schedule):
        raise InputError(
            f"{what}: a measured step is no planned schedule; give the schedule that ran"
        )
