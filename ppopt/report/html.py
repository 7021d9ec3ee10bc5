"""The page: schedules as one self-contained HTML file that opens without a network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from ppopt.errors import InputError
from ppopt.report import controls, facts
from ppopt.report.differences import Entry, entries
from ppopt.report.payload import payload
from ppopt.report.script import script
from ppopt.report.words import clean, isolated
from ppopt.schedule.schedule import Schedule

TITLE = "Pipeline schedules"
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
"""Content security policy: the browser refuses every request, whatever a script may try."""

_THEME = (
    "document.documentElement.dataset.theme ="
    " matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';"
)
"""Says which colours of `page.css` hold; the script of the page changes it."""
_INERT = ' type="text/plain" id="plotly"'
"""Keeps plotly as text: the script of the page runs it once there is something to see."""


def page(schedules: Sequence[Schedule], *, title: str = TITLE, opening: str = "") -> str:
    """One HTML page with the Gantt chart, memory and figures of every schedule.

    Several share one time axis, one above the other: the least value on top, the others compared
    with it. With `opening`, HTML that stands before them, they keep their order and are shown one
    at a time: the k-th, from 1, where the address becomes `#schedule-k`. The schedules must be
    complete (every device runs something). Identical input gives an identical page. Raises
    InputError when there is no schedule.
    """
    if not schedules:
        raise InputError("page: no schedule to show; give at least one")
    shown = entries(schedules, ordered=bool(opening))
    alone = len(shown) == 1
    drawn = [entry.schedule for entry in shown]
    titles = [(entry.title, entry.note) for entry in shown]
    return "\n".join(
        [
            _head(title),
            f"<header><h1>{isolated(title)}</h1></header>",
            opening or facts.overview(shown),
            facts.proof(shown[0].figures) if alone else "",
            controls.tools(drawn),
            controls.picture(),
            controls.usage(),
            *(_section(index, entry, alone) for index, entry in enumerate(shown, start=1)),
            f"<script{_INERT}>{get_plotlyjs()}</script>",
            _data(payload(drawn, titles, single=bool(opening))),
            f"<script>{script()}</script>",
            "</body>\n</html>\n",
        ]
    )


def _head(title: str) -> str:
    style = files("ppopt.report").joinpath("page.css").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(clean(title))}</title>
<script>{_THEME}</script>
<style>
{style}</style>
</head>
<body>"""


def _data(text: str) -> str:
    return f'<script type="application/json" id="data">{text}</script>'


def _section(index: int, entry: Entry, alone: bool) -> str:
    pipeline = entry.schedule.pipeline
    argument = "" if alone else facts.proof(entry.figures)
    return f"""<section class="schedule" id="schedule-{index}">
{facts.heading(entry.figures, pipeline.name)}
<p class="quiet">{escape(facts.pipeline_line(pipeline))}</p>
{facts.tiles(entry.figures)}
{argument}
{facts.details(entry.figures, pipeline)}
</section>"""
