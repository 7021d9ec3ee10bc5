"""What all Gantt charts share: operations grouped by colour, and rows of devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.operation import AuxiliaryKind, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.report import colours
from ppopt.schedule.schedule import Schedule

BAR = 0.84
"""Height of a bar as a share of its row."""
MOST_SHADES = 4
"""A legend names at most this many parts; of more, it names the first and the last."""
_LOWEST_ROW = 4
_LABEL_HEIGHT = 11
"""Pixels that a device's label needs."""


DrawnKind = OpKind | AuxiliaryKind
"""Kind of an operation that has a bar in the row of a device, or of its queues."""


def drawn_kinds(schedules: Iterable[Schedule]) -> list[DrawnKind]:
    """The kinds that schedules of such pipelines may have; their places are codes on pages."""
    around = any(schedule.pipeline.has_auxiliary for schedule in schedules)
    return [*OpKind, *(AuxiliaryKind if around else ())]


def half_row(kind: int) -> int:
    """Half of a queue's row in which a kind is drawn: 1, the upper one, or 2; 0: all of it."""
    return {AuxiliaryKind.OFFLOAD: 1, AuxiliaryKind.RELOAD: 2}.get(AuxiliaryKind(kind), 0)


def part_names(pipeline: Pipeline) -> list[str]:
    """Names of the parts of a pipeline: `chunk 0`, `route 1`, `route 0 chunk 1`, ...

    A part is a chunk, or a chunk of one of two routes. The only part has an empty name.
    """
    chunks, routes = _chunks(pipeline), pipeline.routes
    return [
        " ".join([f"route {route}"] * (routes > 1) + [f"chunk {chunk}"] * (chunks > 1))
        for route in range(routes)
        for chunk in range(chunks)
    ]


def parts(schedule: Schedule) -> Ints:
    """Part of every operation, an index into `part_names`."""
    pipeline, chunks = schedule.pipeline, _chunks(schedule.pipeline)
    part = np.zeros((pipeline.routes, pipeline.num_stages), dtype=np.int64)
    for route, hosted in enumerate(pipeline.hosted):
        for stages in hosted:
            part[route, list(stages)] = route * chunks + np.arange(len(stages))
    routes = schedule.microbatch * pipeline.routes // pipeline.batches
    return np.asarray(part[routes, schedule.stage])


def _chunks(pipeline: Pipeline) -> int:
    return max(len(stages) for stages in pipeline.hosted[0])


class GanttSeries(NamedTuple):
    """The operations of one kind and part, which share a colour."""

    kind: OpKind
    part: int
    name: str
    """Name of the part; empty if there is only one."""
    colour: str
    rows: Ints
    """Their rows in the schedule, ascending."""


def gantt_series(schedule: Schedule) -> list[GanttSeries]:
    """Group the operations of a schedule by kind and part; empty groups are left out."""
    names, part_of = part_names(schedule.pipeline), parts(schedule)
    found = [
        GanttSeries(
            kind,
            part,
            name,
            colours.shade(kind, part, len(names)),
            np.flatnonzero((schedule.kind == kind) & (part_of == part)),
        )
        for kind in OpKind
        for part, name in enumerate(names)
    ]
    return [series for series in found if len(series.rows)]


def shade_words(names: Sequence[str]) -> str:
    """Say which parts the shades of a colour stand for; empty if there is only one."""
    if len(names) < 2:
        return ""
    shown = names if len(names) <= MOST_SHADES else (names[0], "…", names[-1])
    return f"dark to light: {', '.join(shown)}"


def row_height(devices: int, highest: float, total: float) -> float:
    """Height of a device's row in pixels: rows share `total`, none is above `highest`."""
    return max(_LOWEST_ROW, min(highest, total / devices))


def label_step(height: float) -> int:
    """Rows of this height from one label to the next."""
    return max(1, -(-_LABEL_HEIGHT // int(height)))
