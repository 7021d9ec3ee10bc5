"""Schedules beside each other: what sets each apart from the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.report.summary import summary
from ppopt.report.words import CAUSE_WORDS, clean, number, percent, spread, title
from ppopt.schedule.idle import Cause, idle, totals
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.timetable import ALONE
from ppopt.verifier.measured import MEASURED

_NAMED = 3
"""Causes of idle time that are named, the largest."""


class Use(NamedTuple):
    """Time of all devices together, from 0 to the makespan, as shares of it."""

    kinds: dict[OpKind, Fraction]
    causes: dict[Cause, Fraction]

    @property
    def idle(self) -> Fraction:
        """Share of idle time."""
        return sum(self.causes.values(), Fraction(0))


class Entry(NamedTuple):
    """A schedule on a page."""

    schedule: Schedule
    figures: Mapping[str, Any]
    use: Use
    title: str
    above: str
    """How much its value is above that of the best, and whether it is over the limit; empty for
    the best."""
    note: str
    """Value and idle time, in words."""


def entries(schedules: Sequence[Schedule], *, ordered: bool = False) -> list[Entry]:
    """What there is to say of schedules, the best first, or in their own order, each for itself.

    Those over their memory limit come after those within it, and none of them is the best unless
    all are.
    """
    found = [(summary(made), made) for made in schedules]
    ranked = sorted(found, key=lambda pair: (not pair[0]["fits_limit"], pair[0]["value"]))
    best = ranked[0][0]["value"]
    if any(figures["strategy"] == MEASURED for figures, _ in found):
        for figures, _ in found:
            figures["predicted"] = figures["strategy"] != MEASURED
    if ordered:
        return [_entry(made, figures, figures["value"]) for figures, made in found]
    return [_entry(made, figures, best) for figures, made in ranked]


def use_of(schedule: Schedule) -> Use:
    """Shares of the device time by kind of operation and by cause of idleness.

    The two of an overlapped pair share its time.
    """
    alone = np.where(schedule.pair == ALONE, 2, 1)
    halves = alone * (schedule.end - schedule.start)
    total = schedule.metrics.makespan * schedule.pipeline.num_devices
    causes = totals(idle(schedule), schedule.pipeline.num_devices).sum(axis=0).tolist()
    return Use(
        {kind: Fraction(int(halves[schedule.kind == kind].sum()), 2 * total) for kind in OpKind},
        {cause: Fraction(causes[cause], total) for cause in Cause},
    )


def _entry(schedule: Schedule, figures: Mapping[str, Any], best: float) -> Entry:
    use = use_of(schedule)
    more = figures["value"] - best
    above = f"{number(more)} ({percent(more / best)})" if more > 0 else ""
    said = _note(figures, use, above)
    if not figures["fits_limit"]:
        above = f"{above} over the limit".strip()
    name = " \N{MIDDLE DOT} ".join(
        clean(part) for part in (title(figures), schedule.pipeline.name) if part
    )
    return Entry(schedule, figures, use, name, above, said)


def _note(figures: Mapping[str, Any], use: Use, above: str) -> str:
    value = number(figures["value"])
    said = f"makespan {number(figures['makespan'])}"
    if figures["objective"] != Objective.MAKESPAN.value:
        said += f", device span {value}"
    if figures["mem_limit"] is not None:
        place = "within" if figures["fits_limit"] else "over the limit of"
        said += f" {place} memory {spread(figures['mem_limit'])}"
    if above:
        said += f", {above} more than the best"
    return f"{said}; {idle_words(use)}"


def idle_words(use: Use) -> str:
    """Say how much of the device time is idle, and to what most of it is due."""
    if not use.idle:
        return "never idle"
    due = sorted(filter(use.causes.get, Cause), key=lambda cause: -use.causes[cause])
    named = [f"{percent(use.causes[cause])} {CAUSE_WORDS[cause]}" for cause in due]
    if len(named) > _NAMED:
        named[_NAMED:] = ["\N{HORIZONTAL ELLIPSIS}"]
    return f"idle {percent(use.idle)}: {', '.join(named)}"
