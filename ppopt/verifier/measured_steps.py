"""Measured steps: operations in a planned order, each with its own measured time."""

from __future__ import annotations

from collections.abc import Mapping

from ppopt.errors import InputError
from ppopt.schedule.timetable import Timetable
from ppopt.verifier import verify
from ppopt.verifier.violation import Rule, Violation

MEASURED = "measured"
"""Strategy of a measured schedule: it obeys the rules of order, but not those of duration."""
UNTIMED = frozenset((Rule.UNKNOWN, Rule.DUPLICATE, Rule.MISSING, Rule.DEVICE, Rule.START))
"""The rules that do not depend on times."""


def is_measured(schedule: Timetable) -> bool:
    """Whether a schedule was measured; else it was planned."""
    return schedule.origin.strategy == MEASURED


def faults(schedule: Timetable, claims: Mapping[str, object] | None = None) -> list[Violation]:
    """All violations except of the memory limit; of a measured step, only those of `UNTIMED`."""
    violations = verify(schedule, claims, enforce_limit=False)
    if not is_measured(schedule):
        return violations
    return [violation for violation in violations if violation.rule in UNTIMED]


def planned(schedule: Timetable, what: str) -> None:
    """Raise InputError, beginning with `what`, if the schedule is a measured step."""
    if is_measured(schedule):
        raise InputError(
            f"{what}: a measured step is no planned schedule; give the schedule that ran"
        )
