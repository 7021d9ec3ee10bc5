"""The picture of one schedule: Gantt chart above memory, on one time axis."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go  # type: ignore[import-untyped]

from ppopt.report import colours
from ppopt.report.gantt import idle_trace, operation_traces
from ppopt.report.memory import memory_traces
from ppopt.report.words import number, percent
from ppopt.schedule.metrics import Metrics, metrics
from ppopt.schedule.schedule import Schedule

TALLEST_ROW = 36
"""Height of a device's row in pixels, when there are few."""
_ROWS = 720
"""Pixels that the rows of one chart share, when there are many."""
_LEAST_ROW = 4
_TOP, _BOTTOM, _BETWEEN = 64, 56, 52
_MEMORY, _GANTT = "y", "y2"
"""Axes of the two charts. The one with numbers in its bars comes last: plotly sizes the text of
bars anew with every subplot that has bars."""
_LEAST_LABEL = 11
"""Pixels that a device's label needs."""


def figure(schedule: Schedule) -> go.Figure:
    """Draw a complete schedule as a plotly figure: a bar for every operation.

    Above some thousands of operations the page (`ppopt.report.html`) is the quicker picture.
    """
    found = metrics(schedule)
    traces = [idle_trace(schedule), *operation_traces(schedule)]
    lower = memory_traces(schedule)
    for trace in traces:
        trace.yaxis = _GANTT
    for rank, trace in enumerate((*traces[1:], *lower, traces[0])):
        trace.legendrank = 1 + rank
    return go.Figure([*traces, *lower], _layout(schedule, found))


def row_height(devices: int) -> float:
    """Pixels of one device's row."""
    return max(_LEAST_ROW, min(TALLEST_ROW, _ROWS / devices))


def _layout(schedule: Schedule, found: Metrics) -> dict[str, Any]:
    devices = len(found.busy)
    makespan = found.makespan / schedule.pipeline.ticks.per_unit
    rows = devices * row_height(devices)
    inner = 2 * rows + _BETWEEN
    split = rows / inner
    beside = _notes(schedule, found)
    return {
        "template": None,
        "height": round(inner + _TOP + _BOTTOM),
        "margin": {
            "t": _TOP,
            "b": _BOTTOM,
            "l": 52,
            "r": 16 + 7 * max(len(note["text"]) for note in beside),
        },
        "barmode": "overlay",
        "hovermode": "closest",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": colours.INK},
        "uniformtext": {"minsize": 6, "mode": "hide"},
        "hoverlabel": {
            "bgcolor": "#1c2330",
            "bordercolor": "#8a93a5",
            "font": {"color": "#ffffff", "size": 13},
            "align": "left",
        },
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "yref": "paper"},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "xaxis": {
            "range": [0, makespan],
            "anchor": _MEMORY,
            "title": {"text": "time"},
            "gridcolor": colours.GRID,
            "zeroline": False,
            "showspikes": True,
            "spikemode": "across",
            "spikesnap": "cursor",
            "spikethickness": 1,
            "spikedash": "2px,2px",
            "spikecolor": "#8a93a5",
        },
        "yaxis": _axis(devices, (0, split)),
        "yaxis2": _axis(devices, (1 - split, 1)),
        "annotations": [*beside, _end_note(makespan, devices)],
        "shapes": [_end_line(makespan)],
        "modebar": {"bgcolor": "rgba(0, 0, 0, 0)"},
    }


def _axis(devices: int, domain: tuple[float, float]) -> dict[str, Any]:
    apart = max(1, -(-_LEAST_LABEL // int(row_height(devices))))
    return {
        "domain": domain,
        "range": [devices - 0.5, -0.5],
        "fixedrange": True,
        "tick0": 0,
        "dtick": apart,
        "showgrid": False,
        "zeroline": False,
        "title": {"text": "device", "standoff": 8},
    }


def _notes(schedule: Schedule, found: Metrics) -> list[dict[str, Any]]:
    """Share of idle time beside every row of operations, peak beside every row of memory."""
    ticks = schedule.pipeline.ticks
    devices = len(found.busy)
    apart = max(1, -(-_LEAST_LABEL // int(row_height(devices))))
    shown = range(0, devices, apart)
    idle = [1 - busy / found.makespan if found.makespan else 0 for busy in found.busy]
    notes = [_note(_GANTT, -0.5, "idle", 10), _note(_MEMORY, -0.5, "peak memory", 10)]
    for device in shown:
        notes.append(_note(_GANTT, device, percent(idle[device])))
        peak = number(ticks.memory(found.peak_memory[device]))
        if ticks.limits is not None:
            peak += f" of {number(ticks.memory(ticks.limits[device]))}"
        notes.append(_note(_MEMORY, device, peak))
    return notes


def _end_note(makespan: float, devices: int) -> dict[str, Any]:
    place = {"xref": "x", "x": makespan, "xanchor": "right", "xshift": 0}
    return _note(_GANTT, devices - 0.5, f"makespan <b>{number(makespan)}</b>", -10) | place


def _end_line(makespan: float) -> dict[str, Any]:
    return {
        "type": "line",
        "xref": "x",
        "x0": makespan,
        "x1": makespan,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"color": colours.INK, "width": 1},
    }


def _note(axis: str, y: float, text: str, lift: int = 0) -> dict[str, Any]:
    return {
        "xref": "paper",
        "x": 1,
        "xanchor": "left",
        "xshift": 6,
        "yref": axis,
        "y": y,
        "yshift": lift,
        "text": text,
        "showarrow": False,
        "font": {"size": 11},
    }
