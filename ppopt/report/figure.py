"""A plotly figure of one schedule: Gantt chart above memory, on one time axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go  # type: ignore[import-untyped]

from ppopt.problem.arrays import Ints
from ppopt.problem.operation import AuxiliaryKind, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.report import colours
from ppopt.report.gantt import (
    BAR,
    GanttSeries,
    gantt_series,
    half_row,
    label_step,
    part_names,
    row_height,
)
from ppopt.report.labels import CAUSE_WORDS, KIND_WORDS
from ppopt.report.notebook_figure import NotebookFigure
from ppopt.report.numbers import headed, measured, number, percent
from ppopt.schedule.idle import Cause, idle
from ppopt.schedule.metrics import Metrics, memory_of_operations, memory_profile
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.timetable import ALONE

Numbers = npt.NDArray[Any]

MOST_LABELS = 4000
"""Most operations for which bars carry their microbatch and an outline, and memory has hover
text: each bar takes time to draw."""
FONT = {"family": "system-ui, sans-serif", "size": 12}
HOVER_LABEL = {
    "bgcolor": "#1c2330",
    "bordercolor": "#8a93a5",
    "font": {"color": "#ffffff", "size": 13},
    "align": "left",
}
_HIGHEST_ROW, _ROWS = 36, 720
"""Highest row of a device, and what all rows of one chart share, in pixels."""
_TOP, _BOTTOM, _BETWEEN = 64, 56, 52
_MEMORY, _GANTT = "y", "y2"
"""Axes of the two charts. The one with numbers in its bars comes last: plotly sizes the text of
bars again with every subplot that has bars."""
_HOVER = (
    "<b>%{{customdata[0]}}{kind}%{{customdata[1]}}</b>  {words}<br>"
    "stage %{{customdata[0]}} · {part}microbatch %{{customdata[1]}} · device %{{y}}<br>"
    "start %{{customdata[2]:.6~f}} · end %{{customdata[3]:.6~f}}{time}"
    " · duration %{{customdata[4]:.6~f}}{time}<br>"
    "memory %{{customdata[5]:.6~f}}{memory} while it runs, "
    "%{{customdata[6]:.6~f}}{memory} after it"
    "<extra></extra>"
)
_HOVER_IDLE = (
    "<b>idle</b>  %{{text}}<br>device %{{y}}<br>start %{{customdata[0]:.6~f}}"
    " · end %{{customdata[1]:.6~f}}{time} · duration %{{customdata[2]:.6~f}}{time}<extra></extra>"
)
_HOVER_AUXILIARY = (
    "<b>{words}</b><br>{stage}device %{{customdata[1]}}<br>"
    "start %{{customdata[2]:.6~f}} · end %{{customdata[3]:.6~f}}{time}<extra></extra>"
)
_HOVER_MEMORY = (
    "<b>memory %{{customdata[2]:.6~f}}{memory}</b>  on device %{{y}}<br>"
    "from %{{customdata[0]:.6~f}} to %{{customdata[1]:.6~f}}{time}<br>"
    "peak %{{customdata[3]:.6~f}}{limit}{memory} · static %{{customdata[4]:.6~f}}{memory}"
    "<extra></extra>"
)


def figure(schedule: Schedule) -> go.Figure:
    """Draw a complete schedule as a plotly figure: a bar for every operation.

    Above some thousands of operations the page (`ppopt.report.html`) is faster to draw.
    """
    idle_bars = _idle_bars(schedule)
    operations = [*_operation_bars(schedule), *_auxiliary_bars(schedule)]
    memory = _memory_traces(schedule)
    for trace in (idle_bars, *operations):
        trace.yaxis = _GANTT
    for rank, trace in enumerate((*operations, *memory, idle_bars), start=1):
        trace.legendrank = rank
    traces = [idle_bars, *operations, *memory]
    return NotebookFigure(traces, _layout(schedule, schedule.metrics))


def _in_units(ticks: Ints, per_unit: int) -> Numbers:
    """Ticks in the user's unit; integers, which plotly packs better, where a tick is a unit."""
    return ticks if per_unit == 1 else ticks / per_unit


def _suffixes(pipeline: Pipeline) -> dict[str, str]:
    """What stands behind figures of time and memory: a unit, or nothing if it is unknown."""
    named = {"time": pipeline.time_unit, "memory": pipeline.memory_unit}
    return {measure: f" {unit}" if unit else "" for measure, unit in named.items()}


def _idle_bars(schedule: Schedule) -> go.Bar:
    """Idle intervals as bars in the colour of their cause."""
    found, per_unit = idle(schedule), schedule.pipeline.ticks.per_unit
    start, end = _in_units(found.start, per_unit), _in_units(found.end, per_unit)
    length = _in_units(found.end - found.start, per_unit)
    causes = [Cause(cause) for cause in found.cause.tolist()]
    return go.Bar(
        name="idle",
        orientation="h",
        base=start,
        x=length,
        y=found.device,
        width=BAR,
        text=[CAUSE_WORDS[cause] for cause in causes],
        textposition="none",
        customdata=np.column_stack([start, end, length]),
        hovertemplate=_HOVER_IDLE.format(**_suffixes(schedule.pipeline)),
        marker={
            "color": [colours.IDLE_LOOKS[cause].colour for cause in causes],
            "line": {"width": 0},
        },
    )


def _operation_bars(schedule: Schedule) -> list[go.Bar]:
    """Operations as bars, one trace per series."""
    figures = _figures(schedule)
    names = part_names(schedule.pipeline)
    labelled, units = len(schedule) <= MOST_LABELS, _suffixes(schedule.pipeline)
    traces = []
    for series in gantt_series(schedule):
        shown, paired = figures[series.rows], schedule.pair[series.rows] != ALONE
        bars = go.Bar(
            orientation="h",
            base=shown[:, 2],
            x=shown[:, 4],
            y=schedule.device[series.rows],
            width=BAR,
            customdata=shown,
            insidetextanchor="middle",
            textangle=0,
            **_look(series, units, grouped=len(names) > 2, labelled=labelled),
        )
        if paired.any():
            # F has the upper half of the row, the backward that runs with it the lower half
            bars.width = np.where(paired, BAR / 2, BAR)
            bars.offset = np.where(paired & (series.kind != OpKind.F), 0, -BAR / 2)
        traces.append(bars)
    return traces


def _queues(schedule: Schedule) -> int:
    """Rows of queues: one per device, if there are collectives or moves to the host."""
    queued = (schedule.auxiliary.kind != AuxiliaryKind.OPTIMIZER).any()
    return schedule.pipeline.num_devices if queued else 0


def _auxiliary_bars(schedule: Schedule) -> Iterator[go.Bar]:
    """Work around the microbatches as bars: of devices, or of queues in rows below."""
    given, per_unit = schedule.auxiliary, schedule.pipeline.ticks.per_unit
    devices, units = schedule.pipeline.num_devices, _suffixes(schedule.pipeline)
    for kind in AuxiliaryKind:
        rows = given.kind == kind
        if not rows.any():
            continue
        queued, half = kind is not AuxiliaryKind.OPTIMIZER, half_row(kind)
        start, end = (_in_units(times[rows], per_unit) for times in (given.start, given.end))
        words = f"{kind.name} {KIND_WORDS[kind]}"
        yield go.Bar(
            name=words,
            orientation="h",
            base=start,
            x=end - start,
            y=given.device[rows] + queued * devices,
            width=BAR / 2 if half else BAR,
            offset=None if not half else (half - 2) * BAR / 2,
            customdata=np.column_stack(
                [*(column[rows] for column in (given.stage, given.device)), start, end]
                + [given.microbatch[rows]] * kind.per_microbatch
            ),
            hovertemplate=_HOVER_AUXILIARY.format(
                words=words,
                stage="stage %{customdata[0]} · " * queued
                + "microbatch %{customdata[4]} · " * kind.per_microbatch,
                **units,
            ),
            texttemplate=f"%{{customdata[{4 if kind.per_microbatch else 0}]}}" if queued else None,
            textposition="inside" if queued else "none",
            insidetextanchor="middle",
            textangle=0,
            insidetextfont={"color": colours.ink(colours.HUES[kind])},
            marker={"color": colours.HUES[kind], "line": {"width": 0.6, "color": "#ffffff"}},
        )


def _look(
    series: GanttSeries, units: Mapping[str, str], *, grouped: bool, labelled: bool
) -> dict[str, Any]:
    """Name, colour and texts of a trace; `grouped`: all parts of a kind share a legend entry."""
    kind, name = series.kind.name, series.name
    words = KIND_WORDS[series.kind]
    return {
        "name": f"{kind} {words if grouped or not name else name}",
        "legendgroup": kind if grouped else None,
        "showlegend": not grouped or series.part == 0,
        "hovertemplate": _HOVER.format(kind=kind, words=words, part=name and f"{name} · ", **units),
        "marker": {
            "color": series.colour,
            "line": {"width": 0.6 if labelled else 0, "color": "#ffffff"},
        },
        "texttemplate": "%{customdata[1]}" if labelled else None,
        "textposition": "inside" if labelled else "none",
        "insidetextfont": {"color": colours.ink(series.colour)},
    }


def _figures(schedule: Schedule) -> Numbers:
    """Figures of the operations in the user's units, one row each.

    Columns: stage, microbatch, start, end, duration, memory of the device during and after it.
    """
    ticks = schedule.pipeline.ticks
    times = (schedule.start, schedule.end, schedule.end - schedule.start)
    return np.column_stack(
        [
            schedule.stage,
            schedule.microbatch,
            *(_in_units(time, ticks.per_unit) for time in times),
            *(_in_units(level, ticks.memory_per_unit) for level in memory_of_operations(schedule)),
        ]
    )


class _Profile(NamedTuple):
    """Memory of one device as a step function: `level[i]` from `edges[i]` to `edges[i + 1]`."""

    edges: Ints
    """Ticks of time; one more than there are levels."""
    level: Ints
    """Ticks of memory."""


def _profiles(schedule: Schedule) -> Iterator[_Profile]:
    """Memory of every device, from 0 to the makespan."""
    last = schedule.metrics.makespan_ticks
    for device in range(schedule.pipeline.num_devices):
        time, level = memory_profile(schedule, device)
        yield _Profile(np.append(time[time < last], last), level[time < last])


def _memory_traces(schedule: Schedule) -> list[go.Scatter | go.Bar]:
    """Level, static memory and limit of every device, in rows like those of the Gantt chart.

    Row d is centred on y = d with memory 0 at its lower edge, on an axis that runs downwards.
    All rows have one scale: the largest level or limit is as high as a bar.
    """
    ticks, last = schedule.pipeline.ticks, schedule.metrics.makespan_ticks
    found = list(_profiles(schedule))
    top = max(*(int(profile.level.max(initial=0)) for profile in found), *(ticks.limits or ()), 1)
    style = {"fillcolor": colours.MEMORY, "line": {"color": colours.MEMORY_LINE, "width": 1.2}}
    traces = [_areas("memory", found, ticks.per_unit, top, style)]
    if any(ticks.static):
        static = [_Profile(np.array([0, last]), np.array([level])) for level in ticks.static]
        style = {"fillcolor": colours.STATIC, "line": {"width": 0}}
        traces.append(_areas("static memory", static, ticks.per_unit, top, style))
    if ticks.limits is not None:
        traces.append(_limits(np.array(ticks.limits) / top, last / ticks.per_unit))
    if len(schedule) <= MOST_LABELS:
        traces.append(_memory_hover(schedule, found))
    return traces


def _areas(
    name: str, profiles: list[_Profile], per_unit: int, top: int, style: Mapping[str, Any]
) -> go.Scatter:
    """Step functions as filled outlines, one per device, all of them one path."""
    xs, ys = [], []
    for device, (edges, level) in enumerate(profiles):
        x = np.repeat(edges / per_unit, 2)
        height = np.concatenate([[0], np.repeat(level / top, 2), [0, 0, np.nan]])
        xs.append(np.concatenate([x, x[:1], [np.nan]]))
        ys.append(device + BAR * (0.5 - height))
    return go.Scatter(
        name=name,
        mode="lines",
        x=np.concatenate(xs),
        y=np.concatenate(ys),
        fill="toself",
        hoverinfo="skip",
        **style,
    )


def _limits(heights: Numbers, last: float) -> go.Scatter:
    """A line at the limit of every device; heights are shares of a bar."""
    y = np.arange(len(heights)) + BAR * (0.5 - heights)
    return go.Scatter(
        name="memory limit",
        mode="lines",
        x=np.tile([0, last, np.nan], len(heights)),
        y=np.column_stack([y, y, np.full(len(y), np.nan)]).ravel(),
        line={"color": colours.LIMIT, "width": 1.4, "dash": "4px,3px"},
        hoverinfo="skip",
    )


def _memory_hover(schedule: Schedule, profiles: list[_Profile]) -> go.Bar:
    """Invisible bars, one per step of memory, whose hover text has the figures of the step."""
    ticks = schedule.pipeline.ticks
    device = np.repeat(np.arange(len(profiles)), [len(profile.level) for profile in profiles])
    level = np.concatenate([profile.level for profile in profiles])
    peak = np.array([profile.level.max(initial=0) for profile in profiles])
    columns = [level, peak[device], np.array(ticks.static)[device]]
    if ticks.limits is not None:
        columns.append(np.array(ticks.limits)[device])
    start = _in_units(np.concatenate([profile.edges[:-1] for profile in profiles]), ticks.per_unit)
    end = _in_units(np.concatenate([profile.edges[1:] for profile in profiles]), ticks.per_unit)
    limit = "" if ticks.limits is None else " of %{customdata[5]:.6~f}"
    return go.Bar(
        orientation="h",
        base=start,
        x=end - start,
        y=device,
        width=1,
        opacity=0,
        showlegend=False,
        customdata=np.column_stack(
            [start, end, *(_in_units(column, ticks.memory_per_unit) for column in columns)]
        ),
        hovertemplate=_HOVER_MEMORY.format(limit=limit, **_suffixes(schedule.pipeline)),
    )


def _layout(schedule: Schedule, found: Metrics) -> dict[str, Any]:
    devices, queues = len(found.busy_ticks), _queues(schedule)
    makespan = float(found.makespan)
    height = row_height(devices + queues, _HIGHEST_ROW, _ROWS)
    inner = (2 * devices + queues) * height + _BETWEEN
    split = devices * height / inner
    top = 1 - (devices + queues) * height / inner
    step = label_step(height)
    notes = _notes(schedule, found, step)
    return {
        "template": None,
        "height": round(inner + _TOP + _BOTTOM),
        "margin": {
            "t": _TOP,
            "b": _BOTTOM,
            "l": 52,
            "r": 16 + 7 * max(len(note["text"]) for note in notes),
        },
        "barmode": "overlay",
        "hovermode": "closest",
        "font": FONT | {"color": colours.INK},
        "uniformtext": {"minsize": 6, "mode": "hide"},
        "hoverlabel": HOVER_LABEL,
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "yref": "paper"},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "xaxis": {
            "range": [0, makespan],
            "anchor": _MEMORY,
            "title": {"text": headed("time", schedule.pipeline.time_unit)},
            "gridcolor": colours.GRID,
            "zeroline": False,
            "showspikes": True,
            "spikemode": "across",
            "spikesnap": "cursor",
            "spikethickness": 1,
            "spikedash": "2px,2px",
            "spikecolor": "#8a93a5",
        },
        "yaxis": _axis(devices, step, (0, split)),
        "yaxis2": _axis(devices + queues, step, (top, 1)) | _queue_ticks(devices, queues, step),
        "annotations": [*notes, _end_note(makespan, devices + queues, schedule.pipeline.time_unit)],
        "shapes": [_end_line(makespan)],
        "modebar": {"bgcolor": "rgba(0, 0, 0, 0)"},
    }


def _axis(devices: int, step: int, domain: tuple[float, float]) -> dict[str, Any]:
    return {
        "domain": domain,
        "range": [devices - 0.5, -0.5],
        "fixedrange": True,
        "tick0": 0,
        "dtick": step,
        "showgrid": False,
        "zeroline": False,
        "title": {"text": "device", "standoff": 8},
    }


def _queue_ticks(devices: int, queues: int, step: int) -> dict[str, Any]:
    """Marks of the rows of devices and queues; empty without queues."""
    if not queues:
        return {}
    shown = range(0, devices, step)
    places = [*shown, *(devices + device for device in shown)]
    names = [str(device) for device in shown] + [f"queue {device}" for device in shown]
    return {"tickvals": places, "ticktext": names, "title": {"text": ""}}


def _notes(schedule: Schedule, found: Metrics, step: int) -> list[dict[str, Any]]:
    """Share of idle time beside the rows of operations, peak beside the rows of memory."""
    ticks = schedule.pipeline.ticks
    peaks = headed("peak memory", schedule.pipeline.memory_unit)
    notes = [_note(_GANTT, -0.5, "idle", 10), _note(_MEMORY, -0.5, peaks, 10)]
    for device, busy in list(enumerate(found.busy_ticks))[::step]:
        idle_share = 1 - busy / found.makespan_ticks if found.makespan_ticks else 0
        notes.append(_note(_GANTT, device, percent(idle_share)))
        peak = number(found.peak_memory[device])
        if ticks.limits is not None:
            peak += f" of {number(ticks.memory(ticks.limits[device]))}"
        notes.append(_note(_MEMORY, device, peak))
    return notes


def _end_note(makespan: float, devices: int, unit: str | None) -> dict[str, Any]:
    place = {"xref": "x", "x": makespan, "xanchor": "right", "xshift": 0}
    words = f"makespan <b>{measured(makespan, unit)}</b>"
    return _note(_GANTT, devices - 0.5, words, -10) | place


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
