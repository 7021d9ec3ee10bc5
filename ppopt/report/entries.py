"""The entries of a page: schedules with their figures, compared with the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from ppopt.errors import InputError
from ppopt.formats.figures import known
from ppopt.problem.cost_table import ZERO
from ppopt.problem.kinds import Kind, ResourceKind
from ppopt.problem.objective import Objective
from ppopt.report.drawing import drawn_kinds
from ppopt.report.labels import CAUSE_TEXTS, clean, title
from ppopt.report.numbers import percent, significant, spread
from ppopt.report.schedule_report import ScheduleReport, report_schedule
from ppopt.report.throughput_text import gain_text
from ppopt.schedule.idle import Cause, idle, totals
from ppopt.schedule.operations import ALONE
from ppopt.schedule.schedule import Schedule
from ppopt.verifier.measured_steps import MEASURED

_MAX_CAUSES = 3
"""At most this many causes of idle time are named, the largest ones."""


class TimeUse(NamedTuple):
    """What the devices do from 0 to the makespan, as shares of devices x makespan."""

    kinds: dict[Kind, Fraction]
    causes: dict[Cause, Fraction]

    @property
    def idle(self) -> Fraction:
        """Share of idle time."""
        return sum(self.causes.values(), ZERO)


class PageSchedule(NamedTuple):
    """A schedule on a page."""

    schedule: Schedule
    report: ScheduleReport
    use: TimeUse
    name: str
    """What it is called: its strategy, or its place in a study."""
    title: str
    """Its name and that of its pipeline."""
    note: str
    """Value and idle time, in words."""


def entries(
    schedules: Sequence[Schedule], *, ordered: bool = False, names: Sequence[str] = ()
) -> list[PageSchedule]:
    """Figures of schedules, best first, with their ratio to the best.

    Schedules over their memory limit come after those within it: one of them is the best only
    if all are over. With `ordered`, schedules keep their order, may have `names`, and are not
    compared. Raises InputError if their units of time differ.
    """
    _check_units(schedules)
    reports = list(map(report_schedule, schedules))
    if any(report.strategy == MEASURED for report in reports):
        reports = [replace(report, predicted=report.strategy != MEASURED) for report in reports]
    if not ordered:
        reports.sort(key=lambda report: (not report.fits_limit, known(report.value)))
        best = known(reports[0].value)
        reports = [replace(report, ratio_to_best=_ratio(report, best)) for report in reports]
    return list(map(_entry, reports, names or map(title, reports)))


def _ratio(report: ScheduleReport, best: float) -> float:
    return known(report.value) / best if best else 1.0


def _check_units(schedules: Sequence[Schedule]) -> None:
    """Raise InputError if schedules have different units of time: they share one axis."""
    known = {schedule.pipeline.time_unit for schedule in schedules} - {None}
    if len(known) > 1:
        raise InputError(
            f"page: schedules in {' and '.join(sorted(map(str, known)))} share no time axis; "
            "make them again with one --time-unit"
        )


def time_use(schedule: Schedule) -> TimeUse:
    """Shares of the device time by kind of operation and by cause of idle time.

    The two operations of an overlapped pair count half of its time each. What runs on other
    resources leaves the device free.
    """
    table = schedule.operations
    computed = table.where(table.on(ResourceKind.COMPUTE))
    halves = np.where(computed.pair == ALONE, 2, 1) * (computed.end - computed.start)
    total = schedule.metrics.makespan_ticks * schedule.pipeline.num_devices
    causes = totals(idle(schedule), schedule.pipeline.num_devices).sum(axis=0).tolist()
    return TimeUse(
        {
            kind: Fraction(int(halves[computed.kind == kind].sum()), 2 * total)
            for kind in drawn_kinds([schedule])
        },
        {cause: Fraction(causes[cause], total) for cause in Cause},
    )


def _entry(report: ScheduleReport, name: str) -> PageSchedule:
    schedule = known(report.schedule)
    use = time_use(schedule)
    names = filter(None, (name, schedule.pipeline.name))
    full_name = " · ".join(map(clean, names))
    return PageSchedule(schedule, report, use, name, full_name, _note(report, use))


def _note(report: ScheduleReport, use: TimeUse) -> str:
    time, memory = report.time_unit, report.memory_unit
    text = f"makespan {significant(report.makespan, time)}"
    if report.objective != Objective.MAKESPAN.value:
        text += f", device span {significant(report.value, time)}"
    if report.mem_limit is not None:
        place = "within" if report.fits_limit else "over the limit of"
        text += f" {place} memory {spread(report.mem_limit, memory)}"
    if (report.ratio_to_best or 1) > 1:
        text += f", {gain_text(1 / known(report.ratio_to_best) - 1)} than the best"
    return f"{text}; {_describe_idle(use)}"


def _describe_idle(use: TimeUse) -> str:
    """Share of idle time and its largest causes, in words."""
    if not use.idle:
        return "never idle"
    causes = sorted(filter(use.causes.get, Cause), key=lambda cause: -use.causes[cause])
    named = [f"{percent(use.causes[cause])} {CAUSE_TEXTS[cause]}" for cause in causes]
    if len(named) > _MAX_CAUSES:
        named[_MAX_CAUSES:] = ["\N{HORIZONTAL ELLIPSIS}"]
    return f"idle {percent(use.idle)}: {', '.join(named)}"
