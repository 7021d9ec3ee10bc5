"""What results show of themselves in a notebook: a picture, figures, the proof; or a table."""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch
from html import escape
from typing import Any

from ppopt.report.columns import Grid, html_table
from ppopt.report.comparison_report import report_comparison
from ppopt.report.frontier_report import describe_frontier, report_frontier
from ppopt.report.headline_table import headline_table
from ppopt.report.placement_text import explain_routes
from ppopt.report.plan_objects import report_plan
from ppopt.report.plan_table import plan_table
from ppopt.report.plan_text import describe_use
from ppopt.report.schedule_report import report_result
from ppopt.report.search_text import describe_best, describe_search
from ppopt.report.summary import details_table, summary_table
from ppopt.report.svg import svg
from ppopt.report.table import compare_table, frontier_table, sweep_table
from ppopt.schedule.schedule import Schedule
from ppopt.solver.result import Result
from ppopt.studies.compare import Comparison
from ppopt.studies.frontier import Frontier
from ppopt.studies.plan_result import Plan
from ppopt.studies.sweep import Study

MAX_ROWS = 200
"""Rows of a study that are shown; `to_frame` has all."""


@singledispatch
def html_of(value: object) -> str:
    """The view of a value as HTML."""
    return f"<pre>{escape(repr(value))}</pre>"


@html_of.register
def _(value: Result) -> str:
    report = report_result(value, stopped_early=value.interrupted)
    return _picture(value.schedule) + _table(summary_table(report)) + _table(details_table(report))


@html_of.register
def _(value: Comparison) -> str:
    report = report_comparison(value)
    searches = [describe_search(search, report.rows) for search in report.searches]
    tables = _table(headline_table(report.headline))
    return (
        tables
        + _table(compare_table(report.rows))
        + _lines([*describe_best(report.rows), *searches, *explain_routes(report.rows)])
    )


@html_of.register
def _(value: Frontier) -> str:
    report = report_frontier(value)
    lines = describe_frontier(report) or [value.proof]
    return _table(frontier_table(report)) + _lines(lines)


@html_of.register
def _(value: Plan) -> str:
    views: tuple[Grid[Any], ...] = (
        headline_table(value.headline),
        summary_table(report_plan(value)),
        plan_table(value),
    )
    tables = "".join(map(_table, views))
    return _picture(value.schedule) + tables + _lines(describe_use(value))


@html_of.register
def _(value: Study) -> str:
    more = len(value.rows) - MAX_ROWS
    lines = [repr(value), *([f"{more} more rows: to_frame() has all"] if more > 0 else [])]
    return _table(sweep_table(value.rows[:MAX_ROWS])) + _lines(lines)


def _table(grid: Grid[Any]) -> str:
    return html_table(grid.columns, grid.rows)


def _picture(schedule: Schedule | None) -> str:
    return "" if schedule is None else f"<div>{svg(schedule)}</div>"


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"<div>{escape(line)}</div>" for line in lines)
