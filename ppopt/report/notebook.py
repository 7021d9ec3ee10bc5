"""What results show of themselves in a notebook: a picture, figures, the proof; or a table."""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch
from html import escape

from rich.table import Table
from rich.text import Text

from ppopt.report.frontier_words import what_if
from ppopt.report.layout_words import routes_words
from ppopt.report.objects import of_comparison, of_frontier, of_result
from ppopt.report.plan_objects import of_plan
from ppopt.report.plan_table import plan_table
from ppopt.report.plan_words import use_words
from ppopt.report.search_words import best_words, searched_words
from ppopt.report.svg import svg
from ppopt.report.table import compare_table, frontier_table, result_table, sweep_table
from ppopt.schedule.schedule import Schedule
from ppopt.solver.result import Result
from ppopt.studies.compare import Comparison
from ppopt.studies.frontier import Frontier
from ppopt.studies.plan_result import Plan
from ppopt.studies.sweep import Study

MOST_ROWS = 200
"""Rows of a study that are shown; `to_frame` has all."""


@singledispatch
def html_of(value: object) -> str:
    """The view of a value as HTML."""
    return f"<pre>{escape(repr(value))}</pre>"


@html_of.register
def _(value: Result) -> str:
    figures = of_result(value, None) | {"stopped_early": value.interrupted}
    return _picture(value.schedule) + notebook_table(result_table(figures))


@html_of.register
def _(value: Comparison) -> str:
    rows = of_comparison(value)["rows"]
    words = [searched_words(of_result(search, None), rows) for search in value.optima]
    return notebook_table(compare_table(rows)) + _lines(
        [*best_words(rows), *words, *routes_words(rows)]
    )


@html_of.register
def _(value: Frontier) -> str:
    found = of_frontier(value)
    return notebook_table(frontier_table(found)) + _lines(what_if(found) or [value.proof])


@html_of.register
def _(value: Plan) -> str:
    found = of_plan(value)
    of_best = {**found, "strategy": None, "stopped_early": value.interrupted}
    tables = notebook_table(result_table(of_best)) + notebook_table(plan_table(found))
    return _picture(value.schedule) + tables + _lines(use_words(found))


@html_of.register
def _(value: Study) -> str:
    rows = [
        {"overrides": dict(row.overrides), **(row.figures or {}), "failed": row.failed}
        for row in value.rows[:MOST_ROWS]
    ]
    more = len(value.rows) - len(rows)
    said = [repr(value), *([f"{more} more rows: to_frame() has all"] if more else [])]
    return notebook_table(sweep_table(rows)) + _lines(said)


def notebook_table(table: Table) -> str:
    """A table of the terminal as HTML; its numbers stand to the right as there."""
    columns = [list(column.cells) for column in table.columns]
    sides = [f' style="text-align:{column.justify}"' for column in table.columns]
    heads = [escape(str(column.header)) for column in table.columns]
    head = ""
    if table.show_header:
        cells = (f"<th{side}>{name}</th>" for side, name in zip(sides, heads, strict=True))
        head = f"<thead><tr>{''.join(cells)}</tr></thead>"
    rows = []
    for row in zip(*columns, strict=True):
        cells = (
            f"<td{side}>{escape(cell.plain if isinstance(cell, Text) else str(cell))}</td>"
            for side, cell in zip(sides, row, strict=True)
        )
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{head}<tbody>{''.join(rows)}</tbody></table>"


def _picture(schedule: Schedule | None) -> str:
    return "" if schedule is None else f"<div>{svg(schedule)}</div>"


def _lines(words: Iterable[str]) -> str:
    return "".join(f"<div>{escape(line)}</div>" for line in words)
