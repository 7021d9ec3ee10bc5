"""The page: schedules as one self-contained HTML file that opens without a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import plotly.io  # type: ignore[import-untyped]
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from ppopt.errors import InputError
from ppopt.report import facts
from ppopt.report.figure import figure
from ppopt.report.summary import summary
from ppopt.schedule import Schedule

TITLE = "Pipeline schedules"
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
"""Content security policy: the browser refuses every request, whatever a script may try."""
_USE = (
    "Drag over a picture to zoom in on a stretch of time, double-click to see all of it again; "
    "click a kind in the legend to hide it; point at anything for its figures."
)


def page(schedules: Sequence[Schedule], *, title: str = TITLE, opening: str = "") -> str:
    """One HTML page with the figures, Gantt chart and memory of every schedule, in their order.

    `opening`, HTML, stands before them in place of the table of several schedules; the section of
    the k-th schedule, from 1, is `#schedule-k`.
    The schedules must be complete (every device runs something). Identical input gives an
    identical page. Schedules of as many devices and microbatches share one time scale. Raises
    InputError when there is no schedule.
    """
    if not schedules:
        raise InputError("page: no schedule to show; give at least one")
    figures = [summary(schedule) for schedule in schedules]
    entries = [(f, s.pipeline.name) for f, s in zip(figures, schedules, strict=True)]
    sections = [
        _section(index, schedule, found, end)
        for index, (schedule, found, end) in enumerate(
            zip(schedules, figures, _ends(schedules, figures), strict=True), start=1
        )
    ]
    return "\n".join(
        [
            _head(title),
            f'<header><h1>{escape(title)}</h1><p class="quiet">{_USE}</p></header>',
            opening or _overview(entries),
            *sections,
            "</body>\n</html>\n",
        ]
    )


def _overview(entries: Sequence[tuple[Mapping[str, Any], str]]) -> str:
    return f'<div class="scroll">{facts.overview(entries)}</div>' if len(entries) > 1 else ""


def write_page(schedules: Sequence[Schedule], path: str | Path, *, title: str = TITLE) -> None:
    """Write `page` to a file; raises InputError where that cannot be done."""
    text = page(schedules, title=title)
    try:
        Path(path).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def _head(title: str) -> str:
    style = files("ppopt.report").joinpath("page.css").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}</title>
<style>
{style}</style>
<script>{get_plotlyjs()}</script>
</head>
<body>"""


def _ends(schedules: Sequence[Schedule], figures: Sequence[Mapping[str, Any]]) -> list[float]:
    """End of every time axis: the longest schedule of as many devices and microbatches."""
    sizes = [(s.pipeline.num_devices, s.pipeline.batches) for s in schedules]
    longest: dict[tuple[int, int], float] = {}
    for size, found in zip(sizes, figures, strict=True):
        longest[size] = max(longest.get(size, 0), found["makespan"])
    return [longest[size] for size in sizes]


def _section(index: int, schedule: Schedule, figures: Mapping[str, Any], end: float) -> str:
    plot = plotly.io.to_html(
        figure(schedule, end),
        include_plotlyjs=False,
        full_html=False,
        div_id=f"plot-{index}",
        validate=False,
        config={
            "displaylogo": False,
            "showSendToCloud": False,
            "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
            "toImageButtonOptions": {"filename": f"schedule-{index}", "scale": 2},
        },
    )
    return f"""<section class="schedule" id="schedule-{index}">
{facts.heading(figures, schedule.pipeline.name)}
<p class="quiet">{escape(facts.pipeline_line(schedule.pipeline))}</p>
{facts.tiles(figures)}
{facts.proof(figures)}
<div class="plot">{plot}</div>
{facts.details(figures, schedule.pipeline)}
</section>"""
