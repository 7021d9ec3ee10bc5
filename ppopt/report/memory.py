"""Memory of every device over time: a row per device, all rows to one scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]

from ppopt.problem.arrays import Ints
from ppopt.report import colours
from ppopt.report.gantt import BAR, MOST_LABELS, Numbers, in_units
from ppopt.schedule.metrics import memory_profile
from ppopt.schedule.schedule import Schedule

_HOVER = (
    "<b>memory %{{customdata[2]:.6~f}}</b>  on device %{{y}}<br>"
    "from %{{customdata[0]:.6~f}} to %{{customdata[1]:.6~f}}<br>"
    "peak %{{customdata[3]:.6~f}}{limit} · static %{{customdata[4]:.6~f}}<extra></extra>"
)


class Steps(NamedTuple):
    """Memory of all devices as intervals of one level, sorted by device, then time; ticks."""

    device: Ints
    start: Ints
    end: Ints
    level: Ints


def steps(schedule: Schedule) -> Steps:
    """Memory of every device, from 0 to the end of the schedule."""
    last = int(schedule.end.max(initial=0))
    tables = []
    for device in range(schedule.pipeline.num_devices):
        time, level = memory_profile(schedule, device)
        columns = (np.full(len(time), device), time, np.append(time[1:], last), level)
        tables.append(np.stack(columns)[:, time < last])
    return Steps(*np.concatenate(tables, axis=1))


def memory_traces(schedule: Schedule) -> list[go.Scatter | go.Bar]:
    """Level, static memory and limit of every device, in rows like those of the Gantt chart.

    Row d is centred on y = d with memory 0 at its lower edge, on an axis that runs downwards;
    all rows have one scale, the largest level or limit being as high as a bar.
    """
    ticks = schedule.pipeline.ticks
    last = int(schedule.end.max(initial=0))
    levels = steps(schedule)
    rows = np.arange(schedule.pipeline.num_devices)
    static = Steps(rows, 0 * rows, 0 * rows + last, np.array(ticks.static))
    top = max(int(levels.level.max(initial=0)), *(ticks.limits or ()), 1)
    style = {"fillcolor": colours.MEMORY, "line": {"color": colours.MEMORY_LINE, "width": 1.2}}
    traces = [_areas("memory", schedule, levels, top, style)]
    if any(ticks.static):
        style = {"fillcolor": colours.STATIC, "line": {"width": 0}}
        traces.append(_areas("static memory", schedule, static, top, style))
    if ticks.limits is not None:
        height = BAR * (np.array(ticks.limits) / top - 0.5)
        traces.append(_limits(rows - height, last / ticks.per_unit))
    if len(schedule) <= MOST_LABELS:
        traces.append(_sensor(schedule, levels))
    return traces


def _areas(
    name: str, schedule: Schedule, steps: Steps, top: int, style: Mapping[str, Any]
) -> go.Scatter:
    """Draw steps as a filled outline per device, all of them one path."""
    time = np.stack([steps.start, steps.end]).T / schedule.pipeline.ticks.per_unit
    height = np.repeat(steps.level / top, 2).reshape(-1, 2)
    outlines = []
    for device in range(schedule.pipeline.num_devices):
        here = steps.device == device
        x, y = time[here].ravel(), height[here].ravel()
        x = np.concatenate([x[:1], x, x[-1:], x[:1], [np.nan]])
        y = np.concatenate([[0], y, [0, 0, np.nan]])
        outlines.append((x, device + BAR * (0.5 - y)))
    return go.Scatter(
        name=name,
        mode="lines",
        x=np.concatenate([x for x, _ in outlines]),
        y=np.concatenate([y for _, y in outlines]),
        fill="toself",
        hoverinfo="skip",
        **style,
    )


def _limits(heights: Numbers, last: float) -> go.Scatter:
    apart = np.full(len(heights), np.nan)
    return go.Scatter(
        name="memory limit",
        mode="lines",
        x=np.tile([0, last, np.nan], len(heights)),
        y=np.column_stack([heights, heights, apart]).ravel(),
        line={"color": colours.LIMIT, "width": 1.4, "dash": "4px,3px"},
        hoverinfo="skip",
    )


def _sensor(schedule: Schedule, steps: Steps) -> go.Bar:
    """Unseen bars, one per step, that answer to the pointer with the step's figures."""
    ticks = schedule.pipeline.ticks
    peak = np.zeros(schedule.pipeline.num_devices, dtype=np.int64)
    np.maximum.at(peak, steps.device, steps.level)
    columns = [steps.level, peak[steps.device], np.array(ticks.static)[steps.device]]
    if ticks.limits is not None:
        columns.append(np.array(ticks.limits)[steps.device])
    start, end = (in_units(time, ticks.per_unit) for time in (steps.start, steps.end))
    limit = " of %{customdata[5]:.6~f}" if ticks.limits is not None else ""
    return go.Bar(
        orientation="h",
        base=start,
        x=end - start,
        y=steps.device,
        width=1,
        opacity=0,
        showlegend=False,
        customdata=np.column_stack(
            [start, end, *(in_units(column, ticks.memory_per_unit) for column in columns)]
        ),
        hovertemplate=_HOVER.format(limit=limit),
    )
