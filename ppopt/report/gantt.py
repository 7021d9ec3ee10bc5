"""Gantt chart: devices as rows, operations to scale, idle time drawn as such."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go  # type: ignore[import-untyped]

from ppopt.problem.arrays import Ints
from ppopt.problem.operation import OpKind
from ppopt.report import colours
from ppopt.report.words import CAUSE_WORDS, KIND_WORDS
from ppopt.schedule.idle import Cause, idle
from ppopt.schedule.metrics import memory_changes
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.timetable import ALONE

Numbers = npt.NDArray[Any]

MOST_LABELS = 4000
"""Most operations whose bars carry their microbatch and an outline, and whose memory answers
to the pointer; above, every bar costs too much time to draw."""
BAR = 0.84
"""Height of a bar; a device's row is 1 high."""
_HOVER = (
    "<b>%{{customdata[0]}}{kind}%{{customdata[1]}}</b>  {words}<br>"
    "stage %{{customdata[0]}} · {part}microbatch %{{customdata[1]}} · device %{{y}}<br>"
    "start %{{customdata[2]:.6~f}} · end %{{customdata[3]:.6~f}}"
    " · duration %{{customdata[4]:.6~f}}<br>"
    "memory %{{customdata[5]:.6~f}} while it runs, %{{customdata[6]:.6~f}} after it"
    "<extra></extra>"
)
_HOVER_IDLE = (
    "<b>idle</b>  %{text}<br>device %{y}<br>start %{customdata[0]:.6~f}"
    " · end %{customdata[1]:.6~f} · duration %{customdata[2]:.6~f}<extra></extra>"
)


def in_units(ticks: Ints, per_unit: int) -> Numbers:
    """Ticks to the user's unit, as integers where a tick is a unit."""
    return ticks if per_unit == 1 else ticks / per_unit


def idle_trace(schedule: Schedule) -> go.Bar:
    """Idle time as hatched bars, each with its cause on hover."""
    found, per_unit = idle(schedule), schedule.pipeline.ticks.per_unit
    length = in_units(found.end - found.start, per_unit)
    start = in_units(found.start, per_unit)
    return go.Bar(
        name="idle",
        orientation="h",
        base=start,
        x=length,
        y=found.device,
        width=BAR,
        text=[CAUSE_WORDS[Cause(cause)] for cause in found.cause.tolist()],
        textposition="none",
        customdata=np.column_stack([start, in_units(found.end, per_unit), length]),
        hovertemplate=_HOVER_IDLE,
        marker={
            "color": [colours.IDLE_LOOKS[Cause(cause)].colour for cause in found.cause.tolist()],
            "line": {"width": 0},
        },
    )


class Parts(NamedTuple):
    """Which of the stages of its device an operation belongs to: chunk, and route of two."""

    names: list[str]
    """Name of every part; one empty name where there is one part."""
    of: Ints
    """Part of every operation."""


def parts(schedule: Schedule) -> Parts:
    """Tell the chunks (and routes) of a schedule apart: the k-th stage of its device is chunk k."""
    pipeline = schedule.pipeline
    chunks = max(len(stages) for stages in pipeline.hosted[0])
    rank = np.zeros((pipeline.routes, pipeline.num_stages), dtype=np.int64)
    for route, hosted in enumerate(pipeline.hosted):
        for stages in hosted:
            rank[route, list(stages)] = route * chunks + np.arange(len(stages))
    names = []
    for route, chunk in np.ndindex(pipeline.routes, chunks):
        words = [f"route {route}"] * (pipeline.routes > 1) + [f"chunk {chunk}"] * (chunks > 1)
        names.append(" ".join(words))
    routes = schedule.microbatch * pipeline.routes // pipeline.batches
    return Parts(names, np.asarray(rank[routes, schedule.stage]))


def operation_traces(schedule: Schedule) -> list[go.Bar]:
    """Draw the operations as bars, one trace per kind and part."""
    names, part = parts(schedule)
    figures = _figures(schedule)
    numbered = len(schedule) <= MOST_LABELS
    traces = []
    for kind, index in product(OpKind, range(len(names))):
        chosen = np.flatnonzero((schedule.kind == kind) & (part == index))
        if len(chosen):
            look = _look(kind, index, names, numbered)
            bars = _bars(schedule.device[chosen], figures[chosen], look)
            _halve(bars, kind, schedule.pair[chosen] != ALONE)
            traces.append(bars)
    return traces


def _halve(bars: go.Bar, kind: OpKind, paired: npt.NDArray[np.bool_]) -> None:
    """Draw F in the upper half of its row and a backward in the lower, where both run as one."""
    if paired.any():
        bars.width = np.where(paired, BAR / 2, BAR)
        bars.offset = np.where(paired & (kind != OpKind.F), 0, -BAR / 2)


def _figures(schedule: Schedule) -> Numbers:
    """Figures of the operations, one row each.

    Columns: stage, microbatch, start, end, duration, memory of the device while it runs and after.
    """
    ticks = schedule.pipeline.ticks
    during, after = _memory(schedule)
    times = (schedule.start, schedule.end, schedule.end - schedule.start)
    return np.column_stack(
        [
            schedule.stage,
            schedule.microbatch,
            *(in_units(time, ticks.per_unit) for time in times),
            in_units(during, ticks.memory_per_unit),
            in_units(after, ticks.memory_per_unit),
        ]
    )


def _memory(schedule: Schedule) -> tuple[Ints, Ints]:
    """Memory of the device while every operation runs and after it: they run one by one.

    The two of a pair run as one.
    """
    pipeline = schedule.pipeline
    change = memory_changes(pipeline)[schedule.kind, schedule.stage]
    second = np.flatnonzero(schedule.seconds)
    given_back = np.minimum(change, 0)
    given_back[second] += given_back[second - 1]
    given_back[second - 1] = given_back[second]
    firsts = np.searchsorted(schedule.device, np.arange(pipeline.num_devices))
    total = np.append(0, np.cumsum(change))
    base = np.array(pipeline.ticks.static) - total[firsts]
    after = base[schedule.device] + total[1:]
    after[second - 1] = after[second]
    return after - given_back, after


def _look(kind: OpKind, index: int, names: list[str], numbered: bool) -> dict[str, Any]:
    """Name, colour and texts of one trace of operations; many parts share a legend entry."""
    part = names[index]
    colour = colours.shade(kind, index, len(names))
    hover = _HOVER.format(kind=kind.name, words=KIND_WORDS[kind], part=part and f"{part} · ")
    grouped = len(names) > 2
    return {
        "name": f"{kind.name} {KIND_WORDS[kind] if grouped or not part else part}",
        "legendgroup": kind.name if grouped else None,
        "showlegend": not grouped or index == 0,
        "hovertemplate": hover,
        "marker": {"color": colour, "line": {"width": 0.6 if numbered else 0, "color": "#ffffff"}},
        "texttemplate": "%{customdata[1]}" if numbered else None,
        "textposition": "inside" if numbered else "none",
        "insidetextfont": {"color": colours.ink(colour)},
    }


def _bars(device: Ints, figures: Numbers, look: dict[str, Any]) -> go.Bar:
    return go.Bar(
        orientation="h",
        base=figures[:, 2],
        x=figures[:, 4],
        y=device,
        width=BAR,
        customdata=figures,
        insidetextanchor="middle",
        textangle=0,
        **look,
    )
