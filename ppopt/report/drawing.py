"""The drawing of a schedule: bars in lines, which text, SVG, figure and page show alike.

A chart has a line for every device, or for every link; an operation is a bar in the line of what
runs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.kinds import RECORDS, Kind, KindRecord, Per, ResourceKind
from ppopt.problem.operation import ONCE, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.report import colours
from ppopt.report.labels import link_label, link_title
from ppopt.report.numbers import lowered
from ppopt.schedule.operations import ALONE, Operations, occurs_per
from ppopt.schedule.schedule import Schedule

BAR = 0.84
"""Height of a bar as a share of its line."""
MAX_SHADES = 4
"""A legend names at most this many parts; of more, it names the first and the last."""
_LOWEST_ROW = 4
_LABEL_HEIGHT = 11
"""Pixels that a line's label needs."""
ALL, UPPER, LOWER = 0, 1, 2
"""What a bar fills of the height of its line."""


class ChartKind(NamedTuple):
    """What the lines of a chart are, and which resources are drawn there."""

    name: str
    line: str
    """Word for one of its lines."""
    counted: str
    """Word for the operations of a line."""
    resources: dict[ResourceKind, str]
    """Kinds of resources, each with what it runs, in words."""


GANTT = ChartKind("gantt", "device", "operations", {ResourceKind.COMPUTE: "operations"})
QUEUES = ChartKind(
    *("collectives", "queue", "operations"),
    {ResourceKind.COLLECTIVE: "collectives", ResourceKind.HOST: "moves to the host"},
)
LINKS = ChartKind("links", "link", "transfers", {ResourceKind.LINK: "transfers"})
CHARTS = (GANTT, QUEUES, LINKS)
"""All charts of operations, from top to bottom."""


class Line(NamedTuple):
    """One line of a chart."""

    label: str
    """Its name in the margin."""
    title: str
    """Its name in a sentence."""
    devices: tuple[int, ...]


class Series(NamedTuple):
    """The bars of one kind and part, which share a colour."""

    record: KindRecord
    part: int
    name: str
    """Name of the part; empty if there is only one."""
    colour: str
    rows: Ints
    """Their rows among the bars, ascending."""


@dataclass(frozen=True)
class Drawing:
    """Bars of a schedule in lines, those of several charts one below the other."""

    schedule: Schedule
    charts: tuple[ChartKind, ...]
    bars: Operations
    """The operations that are drawn."""
    chart: Ints
    """Place of the chart of every bar."""
    line_in_chart: Ints
    """Line of every bar in its chart."""
    rows: Ints
    """Row of every bar in the table of all operations of the schedule."""

    @cached_property
    def lines(self) -> list[list[Line]]:
        """Lines of every chart."""
        return [_lines(self.schedule, chart) for chart in self.charts]

    @cached_property
    def line(self) -> Ints:
        """Line of every bar, counted through all charts."""
        first = np.cumsum([0, *map(len, self.lines)])
        return np.asarray(first[self.chart] + self.line_in_chart)

    @cached_property
    def half(self) -> Ints:
        """What a bar fills of its line: of a pair run as one, F is above the backward."""
        way = np.array(
            [1 + record.way if record.resource is ResourceKind.HOST else ALL for record in RECORDS]
        )
        paired = np.where(self.bars.kind == OpKind.F, UPPER, LOWER)
        return np.where(self.bars.pair == ALONE, way[self.bars.kind], paired)

    @cached_property
    def part(self) -> Ints:
        """Part of every bar, an index into `part_names`."""
        part = _part_table(self.schedule.pipeline)[self.bars.route, self.bars.stage]
        return np.where(occurs_per(Per.DEVICE)[self.bars.kind], 0, part)

    @cached_property
    def labels(self) -> list[str]:
        """Number in every bar: its microbatch, with its slice if there are any; else its stage."""
        sliced = self.schedule.pipeline.num_slices > 1
        columns = (self.bars.kind, self.bars.stage, self.bars.microbatch, self.bars.slice)
        return [
            (str(stage) if RECORDS[kind].per is Per.STAGE else "")
            if microbatch == ONCE
            else str(microbatch) + (lowered(part) if sliced else "")
            for kind, stage, microbatch, part in zip(
                *(column.tolist() for column in columns), strict=True
            )
        ]

    @cached_property
    def last(self) -> int:
        """Tick at which the last bar ends."""
        return int(self.bars.end.max(initial=0))

    @cached_property
    def series(self) -> list[Series]:
        """The bars by kind and part; empty groups are left out."""
        names = part_names(self.schedule.pipeline)
        groups = [
            (record, part, name, np.flatnonzero((self.bars.kind == code) & (self.part == part)))
            for code, record in enumerate(RECORDS)
            for part, name in enumerate(names)
        ]
        return [
            Series(
                *(record, part, "" if record.per is Per.DEVICE else name),
                *(colours.shade(record.kind, part, len(names)), rows),
            )
            for record, part, name, rows in groups
            if len(rows)
        ]


def drawing(schedule: Schedule, *charts: ChartKind) -> Drawing:
    """The drawing of these charts, its bars by chart, then line, then start.

    A chart whose resources run nothing is left out, but for the first. Operations that the pipeline
    does not have are left out.
    """
    table, lines = schedule.operations, _lines_of_operations(schedule.operations)
    chosen = [np.flatnonzero(table.known & table.on(*chart.resources)) for chart in charts]
    place = [at for at, rows in enumerate(chosen) if at == 0 or len(rows)]
    ordered = [rows[np.lexsort((table.start[rows], lines[rows]))] for rows in chosen]
    rows = np.concatenate([ordered[at] for at in place])
    chart = np.repeat(np.arange(len(place)), [len(chosen[at]) for at in place])
    visible = tuple(charts[at] for at in place)
    return Drawing(schedule, visible, table.where(rows), chart, lines[rows], rows)


def _lines_of_operations(table: Operations) -> Ints:
    """Line of every operation in its chart: its device, or the number of its link."""
    links = np.array([resource.kind is ResourceKind.LINK for resource in table.resources])
    link = np.cumsum(links) - 1
    return np.where(links[table.resource], link[table.resource], table.device)


def described(schedule: Schedule, chart: ChartKind) -> str:
    """What the resources of a chart run, in words; empty: nothing."""
    table = schedule.operations
    return " and ".join(text for kind, text in chart.resources.items() if table.on(kind).any())


def _lines(schedule: Schedule, chart: ChartKind) -> list[Line]:
    if ResourceKind.LINK not in chart.resources:
        return [
            Line(f"{chart.line} {device}", f"device {device}", (device,))
            for device in range(schedule.pipeline.num_devices)
        ]
    return [
        Line(link_label(resource), link_title(resource), resource.devices)
        for resource in schedule.operations.resources
        if resource.kind is ResourceKind.LINK
    ]


def drawn_kinds(schedules: Iterable[Schedule]) -> list[Kind]:
    """The kinds of compute, and all others that occur; their places are codes on pages."""
    present = {int(code) for schedule in schedules for code in np.unique(schedule.operations.kind)}
    return [record.kind for code, record in enumerate(RECORDS) if code in {*OpKind} | present]


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


def _part_table(pipeline: Pipeline) -> Ints:
    """Part of every [route, stage]."""
    part = np.zeros((pipeline.routes, pipeline.num_stages), dtype=np.int64)
    for route, hosted in enumerate(pipeline.hosted):
        for stages in hosted:
            part[route, list(stages)] = route * _chunks(pipeline) + np.arange(len(stages))
    return part


def _chunks(pipeline: Pipeline) -> int:
    return max(len(stages) for stages in pipeline.hosted[0])


def describe_shades(names: Sequence[str]) -> str:
    """Say which parts the shades of a colour stand for; empty if there is only one."""
    names = [name for name in names if name]
    if len(names) < 2:
        return ""
    listed = names if len(names) <= MAX_SHADES else (names[0], "…", names[-1])
    return f"dark to light: {', '.join(listed)}"


def row_height(devices: int, highest: float, total: float) -> float:
    """Height of a line in pixels: lines share `total`, none is above `highest`."""
    return max(_LOWEST_ROW, min(highest, total / devices))


def label_step(height: float) -> int:
    """Lines of this height from one label to the next."""
    return max(1, -(-_LABEL_HEIGHT // int(height)))
