"""The verifier: finds every rule that a schedule breaks, whatever made it.

It shares no code with the timing, the strategies, the solver or the metrics. It assumes nothing
about the contents of a schedule, and recomputes every figure from the operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TypeVar

from ppopt.errors import VerificationError
from ppopt.schedule.timetable import Timetable
from ppopt.verifier import fault_grid, measure, operation_rules, origin_claims
from ppopt.verifier.measure import Figures
from ppopt.verifier.rows import read
from ppopt.verifier.violation import Rule, Violation, in_order

__all__ = ["Figures", "Rule", "Violation", "checked", "explain", "figures", "verify"]

Checked = TypeVar("Checked", bound=Timetable)


def verify(
    schedule: Timetable, claims: Mapping[str, object] | None = None, *, enforce_limit: bool = True
) -> list[Violation]:
    """Find every violation, in the order of rule, device, time, operations; [] if it is valid.

    At most `MAX_LISTED` violations of a rule are listed; one further entry then counts the rest
    (its `count`).

    `claims` are figures stated with the schedule: `makespan` and `device_span` (ticks), `busy`
    and `peak_memory` (ticks, a list with one entry per device), `bubble_rate` and
    `bubble_overhead` (the number nearest to the exact fraction), and `objective`, the time that the
    bubble rate refers to (`makespan`, the default, or `device-span`).

    The value, bound, gap and status in the schedule's origin must agree with the operations and
    with each other. The pipeline's memory limit is enforced unless `enforce_limit` is False. An
    operation without a valid device and time counts for no figure; an operation that runs twice
    counts twice, and others wait for the first of the two.

    Raises InputError if the columns are not whole numbers of one length.
    """
    rows = read(schedule)
    trace = measure.memory_trace(rows.sane)
    recomputed = measure.of_rows(rows.sane, trace)
    return in_order(
        chain(
            operation_rules.of_operations(rows),
            measure.over_limit(rows.sane, trace) if enforce_limit else (),
            () if claims is None else measure.wrong_claims(rows, recomputed, claims),
            origin_claims.wrong_origin(rows, recomputed, schedule.origin),
        )
    )


def figures(schedule: Timetable) -> Figures:
    """Recompute the figures of a schedule, over the operations that have a device and a time.

    Raises InputError if the columns are not whole numbers of one length.
    """
    sane = read(schedule).sane
    return measure.of_rows(sane, measure.memory_trace(sane))


def explain(schedule: Timetable, violations: Sequence[Violation]) -> str:
    """List the violations, and draw the order of every device with an arrow at each fault.

    Of a large schedule, only the surroundings of the first fault with a device and time are drawn.
    """
    total = sum(violation.count for violation in violations)
    count = f"{total} violation{'' if total == 1 else 's'}"
    lines = [count, *map(str, violations), "", fault_grid.grid(read(schedule), violations)]
    return "\n".join(lines)


def checked(schedule: Checked, *, enforce_limit: bool = True) -> Checked:
    """Return the schedule if the verifier accepts it; raises VerificationError otherwise."""
    violations = verify(schedule, enforce_limit=enforce_limit)
    if violations:
        raise VerificationError(
            "a schedule made here breaks its own rules: please report it\n"
            + explain(schedule, violations)
        )
    return schedule
