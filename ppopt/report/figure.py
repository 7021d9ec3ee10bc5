"""A plotly figure of one schedule: Gantt chart above memory, on one time axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go  # type: ignore[import-untyped]

from ppopt.problem.arrays import Ints
from ppopt.problem.kinds import KindRecord, Per, ResourceKind
from ppopt.problem.pipeline import Pipeline
from ppopt.report import colours
from ppopt.report.drawing import (
    ALL,
    BAR,
    GANTT,
    LOWER,
    QUEUES,
    Drawing,
    Line,
    Series,
    drawing,
    label_step,
    part_names,
    row_height,
)
from ppopt.report.labels import CAUSE_TEXTS
from ppopt.report.notebook_figure import NotebookFigure
from ppopt.report.numbers import headed, measured, number, percent
from ppopt.schedule.idle import Cause, idle
from ppopt.schedule.metrics import Metrics, memory_of_operations, memory_profile
from ppopt.schedule.schedule import Schedule

Numbers = npt.NDArray[Any]

MAX_LABELS = 4000
"""Most operations for which bars carry their microbatch and an outline, and memory has hover
text: each bar takes time to draw."""
_HIGHEST_ROW, _ROWS = 36, 720
"""Highest row of a device, and what all rows of one chart share, in pixels."""
_TOP, _BOTTOM, _BETWEEN = 64, 56, 52
_MEMORY, _GANTT = "y", "y2"
"""Axes of the two charts. The one with numbers in its bars comes last: plotly sizes the text of
bars again with every subplot that has bars."""
_HOVER_TIMES = (
    "start %{{customdata[2]:.6~f}} · end %{{customdata[3]:.6~f}}{time}"
    " · duration %{{customdata[4]:.6~f}}{time}"
)
_HOVER_LIVE = (
    "<br>memory %{{customdata[5]:.6~f}}{memory} while it runs, "
    "%{{customdata[6]:.6~f}}{memory} after it"
)
_HOVER_IDLE = (
    "<b>idle</b>  %{{text}}<br>device %{{y}}<br>start %{{customdata[0]:.6~f}}"
    " · end %{{customdata[1]:.6~f}}{time} · duration %{{customdata[2]:.6~f}}{time}<extra></extra>"
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
    drawn = drawing(schedule, GANTT, QUEUES)
    operations = _operation_bars(drawn)
    memory = _memory_traces(schedule)
    for trace in (idle_bars, *operations):
        trace.yaxis = _GANTT
    for rank, trace in enumerate((*operations, *memory, idle_bars), start=1):
        trace.legendrank = rank
    traces = [idle_bars, *operations, *memory]
    return NotebookFigure(traces, _layout(drawn))


def _in_units(ticks: Ints, per_unit: int) -> Numbers:
    """Ticks in the user's unit; integers, which plotly packs better, where a tick is a unit."""
    return ticks if per_unit == 1 else ticks / per_unit


def _suffixes(pipeline: Pipeline) -> dict[str, str]:
    """What stands behind figures of time and memory: a unit, or nothing if it is unknown."""
    named = {"time": pipeline.time_unit, "memory": pipeline.memory_unit}
    return {measure: f" {unit}" if unit else "" for measure, unit in named.items()}


def _idle_bars(schedule: Schedule) -> go.Bar:
    """Idle intervals as bars in the colour of their cause."""
    gaps, per_unit = idle(schedule), schedule.pipeline.ticks.per_unit
    start, end = _in_units(gaps.start, per_unit), _in_units(gaps.end, per_unit)
    length = _in_units(gaps.end - gaps.start, per_unit)
    causes = [Cause(cause) for cause in gaps.cause.tolist()]
    return go.Bar(
        name="idle",
        orientation="h",
        base=start,
        x=length,
        y=gaps.device,
        width=BAR,
        text=[CAUSE_TEXTS[cause] for cause in causes],
        textposition="none",
        customdata=np.column_stack([start, end, length]),
        hovertemplate=_HOVER_IDLE.format(**_suffixes(schedule.pipeline)),
        marker={
            "color": [colours.IDLE_LOOKS[cause].colour for cause in causes],
            "line": {"width": 0},
        },
    )


def _operation_bars(drawn: Drawing) -> list[go.Bar]:
    """Operations as bars, one trace per series."""
    names, figures = part_names(drawn.schedule.pipeline), _figures(drawn)
    traces = []
    for series in drawn.series:
        operations, half = figures[series.rows], drawn.half[series.rows]
        look = _look(drawn, series, grouped=len(names) > 2)
        bars = go.Bar(
            orientation="h",
            base=operations[:, 2],
            x=operations[:, 4],
            y=drawn.line[series.rows],
            width=BAR,
            customdata=operations,
            insidetextanchor="middle",
            textangle=0,
            **look,
        )
        if (half != ALL).any():
            bars.width = np.where(half == ALL, BAR, BAR / 2)
            bars.offset = np.where(half == LOWER, 0, -BAR / 2)
        traces.append(bars)
    return traces


def _look(drawn: Drawing, series: Series, *, grouped: bool) -> dict[str, Any]:
    """Name, colour and texts of a trace; `grouped`: all parts of a kind share a legend entry."""
    record, name = series.record, series.name
    labelled = len(drawn.bars) <= MAX_LABELS
    place = 0 if record.per is Per.STAGE else 1
    has_text = labelled and record.per is not Per.DEVICE
    return {
        "name": f"{record.name} {record.label if grouped or not name else name}",
        "legendgroup": record.name if grouped else None,
        "showlegend": not grouped or series.part == 0,
        "hovertemplate": _hover(record, name, _suffixes(drawn.schedule.pipeline)),
        "marker": {
            "color": series.colour,
            "line": {"width": 0.6 if labelled else 0, "color": "#ffffff"},
        },
        "texttemplate": f"%{{customdata[{place}]}}" if has_text else None,
        "textposition": "inside" if has_text else "none",
        "insidetextfont": {"color": colours.ink(series.colour)},
    }


def _hover(record: KindRecord, part: str, units: Mapping[str, str]) -> str:
    """The hover text of the operations of a kind and part, as a template of plotly's."""
    stage = "" if record.per is Per.DEVICE else "%{customdata[0]}"
    microbatch = "%{customdata[1]}" if record.per is Per.MICROBATCH else ""
    has_memory = record.resource is ResourceKind.COMPUTE and bool(microbatch)
    place = [
        stage and f"stage {stage}",
        part,
        microbatch and f"microbatch {microbatch}",
        "device %{customdata[7]}",
    ]
    return "".join(
        [
            f"<b>{stage}{record.name}{microbatch}</b>  {record.label}<br>",
            " · ".join(filter(None, place)) + "<br>",
            (_HOVER_TIMES + _HOVER_LIVE * has_memory).format(**units),
            "<extra></extra>",
        ]
    )


def _figures(drawn: Drawing) -> Numbers:
    """Figures of the bars in the user's units, one row each.

    Columns: stage, microbatch, start, end, duration, memory of the device during and after it, and
    the device. Memory stands with compute of microbatches, which has it.
    """
    schedule, bars = drawn.schedule, drawn.bars
    ticks, memory = schedule.pipeline.ticks, np.zeros((2, len(bars)), dtype=np.int64)
    memory[:, bars.computed] = memory_of_operations(schedule)
    times = (bars.start, bars.end, bars.end - bars.start)
    return np.column_stack(
        [
            bars.stage,
            bars.microbatch,
            *(_in_units(time, ticks.per_unit) for time in times),
            *(_in_units(level, ticks.memory_per_unit) for level in memory),
            bars.device,
        ]
    )


class _Profile(NamedTuple):
    """Memory of one device as a step function: `level[i]` from `edges[i]` to `edges[i + 1]`."""

    edges: Ints
    """Ticks of time; one more than there are levels."""
    level: Ints
    """Ticks of memory."""

    @classmethod
    def of(cls, schedule: Schedule, device: int) -> Self:
        """Memory of a device, from 0 to the makespan."""
        last = schedule.metrics.makespan_ticks
        time, level = memory_profile(schedule, device)
        return cls(np.append(time[time < last], last), level[time < last])


def _memory_traces(schedule: Schedule) -> list[go.Scatter | go.Bar]:
    """Level, static memory and limit of every device, in rows like those of the Gantt chart.

    Row d is centred on y = d with memory 0 at its lower edge, on an axis that runs downwards.
    All rows have one scale: the largest level or limit is as high as a bar.
    """
    ticks, last = schedule.pipeline.ticks, schedule.metrics.makespan_ticks
    profiles = [_Profile.of(schedule, device) for device in range(schedule.pipeline.num_devices)]
    top = max(
        *(int(profile.level.max(initial=0)) for profile in profiles), *(ticks.limits or ()), 1
    )
    style = {"fillcolor": colours.MEMORY, "line": {"color": colours.MEMORY_LINE, "width": 1.2}}
    traces = [_areas("memory", profiles, ticks.per_unit, top, style)]
    if any(ticks.static):
        static = [_Profile(np.array([0, last]), np.array([level])) for level in ticks.static]
        style = {"fillcolor": colours.STATIC, "line": {"width": 0}}
        traces.append(_areas("static memory", static, ticks.per_unit, top, style))
    if ticks.limits is not None:
        traces.append(_limits(np.array(ticks.limits) / top, last / ticks.per_unit))
    if len(schedule) <= MAX_LABELS:
        traces.append(_memory_hover(schedule, profiles))
    return traces


def _areas(
    name: str, profiles: list[_Profile], per_unit: int, top: int, style: Mapping[str, object]
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
    per_device = [schedule.metrics.peak_memory_ticks, ticks.static, ticks.limits]
    own = [np.array(values)[device] for values in per_device if values is not None]
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
            [start, end, *(_in_units(column, ticks.memory_per_unit) for column in (level, *own))]
        ),
        hovertemplate=_HOVER_MEMORY.format(limit=limit, **_suffixes(schedule.pipeline)),
    )


def _layout(drawn: Drawing) -> dict[str, Any]:
    schedule, metrics = drawn.schedule, drawn.schedule.metrics
    devices, queues = len(drawn.lines[0]), sum(map(len, drawn.lines[1:]))
    makespan = float(metrics.makespan)
    height = row_height(devices + queues, _HIGHEST_ROW, _ROWS)
    inner = (2 * devices + queues) * height + _BETWEEN
    split = devices * height / inner
    top = 1 - (devices + queues) * height / inner
    step = label_step(height)
    notes = _notes(schedule, metrics, step)
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
        "font": colours.FONT | {"color": colours.INK},
        "uniformtext": {"minsize": 6, "mode": "hide"},
        "hoverlabel": colours.HOVER_LABEL,
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
        "yaxis2": _axis(devices + queues, step, (top, 1)) | _queue_ticks(drawn.lines, step),
        "annotations": [*notes, _end_note(makespan, devices + queues, schedule.pipeline.time_unit)],
        "shapes": [
            {
                "type": "line",
                "xref": "x",
                "x0": makespan,
                "x1": makespan,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"color": colours.INK, "width": 1},
            }
        ],
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


def _queue_ticks(charts: Sequence[Sequence[Line]], step: int) -> dict[str, Any]:
    """Marks of the lines of devices and queues; empty without queues."""
    devices, *queues = charts
    if not queues:
        return {}
    places, names = list(range(len(devices))), [str(device) for device in range(len(devices))]
    marks = [*zip(places, names, strict=True)][::step]
    for lines in queues:
        first = len(places)
        places += range(first, first + len(lines))
        marks += [(first + at, lines[at].label) for at in range(0, len(lines), step)]
    return {
        "tickvals": [place for place, _ in marks],
        "ticktext": [name for _, name in marks],
        "title": {"text": ""},
    }


def _notes(schedule: Schedule, metrics: Metrics, step: int) -> list[dict[str, Any]]:
    """Share of idle time at the rows of operations, peak at the rows of memory."""
    ticks = schedule.pipeline.ticks
    peaks = headed("peak memory", schedule.pipeline.memory_unit)
    notes = [_note(_GANTT, -0.5, "idle", 10), _note(_MEMORY, -0.5, peaks, 10)]
    for device, busy in list(enumerate(metrics.busy_ticks))[::step]:
        idle_share = 1 - busy / metrics.makespan_ticks if metrics.makespan_ticks else 0
        notes.append(_note(_GANTT, device, percent(idle_share)))
        peak = number(metrics.peak_memory[device])
        if ticks.limits is not None:
            peak += f" of {number(ticks.memory(ticks.limits[device]))}"
        notes.append(_note(_MEMORY, device, peak))
    return notes


def _end_note(makespan: float, devices: int, unit: str | None) -> dict[str, Any]:
    place = {"xref": "x", "x": makespan, "xanchor": "right", "xshift": 0}
    text = f"makespan <b>{measured(makespan, unit)}</b>"
    return _note(_GANTT, devices - 0.5, text, -10) | place


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
