"""What `ppopt compare` reports: rows of schedules, and the searches behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ppopt.formats.origin_json import members_of
from ppopt.report.schedule_report import ScheduleReport, report_evaluation, report_result
from ppopt.schedule.origin import SEARCHED
from ppopt.schedule.schedule import Schedule
from ppopt.studies.baselines import best
from ppopt.studies.compare import Comparison, ComparisonRow
from ppopt.studies.headline import Headline


class ComparisonReport(NamedTuple):
    """A comparison with the figures of its rows."""

    rows: Sequence[ScheduleReport]
    """Rows within the limit first, each part by value."""
    searches: Sequence[ScheduleReport]
    """The searches for optimal schedules, that of the pipeline's own placement first."""
    skipped: Sequence[tuple[str, str]] = ()
    """Strategies that do not apply, each with the reason."""
    steadiest: ScheduleReport | None = None
    """Row that degrades least; None without random times."""
    fragile: tuple[ScheduleReport, ScheduleReport] | None = None
    """Row that is best nominally and row that is best on average; None if they do not differ."""
    headline: Headline = Headline()
    """The current schedule, the best that PyTorch runs, and the best of all."""


def report_comparison(comparison: Comparison) -> ComparisonReport:
    """Figures of all rows of a comparison and of its searches."""
    schedules = [row.schedule for row in comparison.baselines]
    reports = {id(row): _row(row, comparison, schedules) for row in comparison.rows}
    steadiest, fragile = comparison.steadiest, comparison.fragile
    return ComparisonReport(
        rows=list(reports.values()),
        searches=[report_result(search) for search in comparison.optima],
        skipped=comparison.skipped,
        steadiest=None if steadiest is None else reports[id(steadiest)],
        headline=comparison.headline,
        fragile=None if fragile is None else (reports[id(fragile[0])], reports[id(fragile[1])]),
    )


def _row(
    row: ComparisonRow, comparison: Comparison, schedules: Sequence[Schedule]
) -> ScheduleReport:
    search = comparison.search(row)
    names = ("fits_limit", "ratio_to_best", "ratio_to_optimum", "optimum_proved", "communication")
    compared = members_of(row, *names)
    if search is None:
        return report_evaluation(row.schedule, row.seconds, jitter=row.jitter, **compared)
    baseline = best(schedules, search)
    return report_result(search, baseline, strategy=SEARCHED, jitter=row.jitter, **compared)
