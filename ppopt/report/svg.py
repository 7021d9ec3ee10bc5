"""A small picture of one schedule: an inline SVG Gantt chart for notebooks and documents.

It needs no script and no network, and is readable on light and on dark backgrounds.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from html import escape
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ppopt.problem.operation import NUM_KINDS, AuxiliaryKind, OpKind
from ppopt.report import colours
from ppopt.report.gantt import (
    GanttSeries,
    gantt_series,
    half_row,
    label_step,
    row_height,
    shade_words,
)
from ppopt.report.labels import KIND_WORDS, clean, objective_name, title
from ppopt.report.numbers import lowered, measured, number, percent, spread
from ppopt.report.raster import png
from ppopt.report.schedule_report import report_caption
from ppopt.schedule.auxiliary import ScheduledAuxiliary
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.timetable import ALONE, ScheduledOperation

WIDTH = 880
"""Pixels; the picture shrinks if there is less room."""
LEFT, RIGHT, TOP = 76, 12, 30
"""Margins of the chart in pixels: device labels, end of the axis, caption."""
TEXT = "#767676"
"""Grey whose contrast is at least 4.5 on white and on black (WCAG 2.1, level AA)."""
_FONT = 12
_DIGIT = 0.6
"""Width of a digit per font size."""
_LETTER = 6.6
"""Width of a letter of the legend in pixels, at most, on average."""
_HIGHEST_ROW, _ROWS = 28, 640
"""Highest row of a device, and what all rows share, in pixels."""
_BAR = 0.86
"""Height of a bar as a share of its row."""
_TICK_ROOM = 64
"""Pixels between two ticks of the time axis, at least."""
_LONGEST_CAPTION = 120
MOST_RECTS, MOST_PATHS = 1500, 6000
"""Most operations that are drawn as one element each, and as one outline each (some 200 KB)."""
_MEANS = "seen from afar: a spot has the colour of what fills most of it; slate blue: several kinds"


class _Frame(NamedTuple):
    """From devices and ticks to pixels."""

    last: int
    """Tick at the right end."""
    row: float
    """Height of a device's row."""
    devices: int
    queues: int = 0
    """Rows of collective queues, below those of the devices."""

    def x(self, tick: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * tick / self.last

    def y(self, device: int) -> float:
        return TOP + self.row * (device + (1 - _BAR) / 2)

    def top(self, row: ScheduledOperation) -> float:
        """Upper edge of an operation: of a pair run as one, F has the upper half of the bar."""
        lower = row.pair != ALONE and row.kind is not OpKind.F
        return self.y(row.device) + (self.bar / 2 if lower else 0)

    def height(self, row: ScheduledOperation) -> float:
        """Height of an operation."""
        return self.bar if row.pair == ALONE else self.bar / 2

    @property
    def bar(self) -> float:
        return self.row * _BAR

    @property
    def bottom(self) -> float:
        return TOP + self.row * (self.devices + self.queues)

    @property
    def font(self) -> float:
        """Size of the numbers in bars."""
        return min(_FONT, self.bar * 0.6)


def svg(schedule: Schedule) -> str:
    """Draw a schedule: devices as rows, operations to scale, idle time as background.

    Collectives and moves to the host have rows of their own, one per device, with their stages or
    microbatches. Optimizers are operations of their devices.

    Every operation is one `rect`, with its microbatch where that fits and its time on hover.
    Above `MOST_RECTS` operations there is one `path` per colour and there are no numbers. Above
    `MOST_PATHS` there is an image, in which a pixel has the colour of what fills most of it.
    Identical input gives an identical picture. Of an incomplete or defective schedule, the
    operations that the pipeline has are drawn and the figures are left out.
    """
    words = caption(schedule)
    known = _known(schedule)
    schedule = replace(
        schedule, **{name: getattr(schedule, name)[known] for name in ScheduledOperation._fields}
    )
    around = list(_known_auxiliary(schedule))
    frame = _frame(schedule, around)
    drawn = gantt_series(schedule)
    means = _MEANS if len(schedule) > MOST_PATHS else ""
    legend, height = _legend([*_entries(drawn), *_entries_around(around)], drawn, frame, means)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" style="max-width:100%;height:auto" role="img" '
            f'aria-label="{escape(words)}" font-family="system-ui, sans-serif" '
            f'font-size="{_FONT}">',
            f'<g fill="{TEXT}"><text x="{LEFT}" y="18">{escape(words)}</text>',
            *_device_labels(frame),
            *_axis(schedule, frame),
            "</g>",
            _idle(frame),
            *_operations(schedule, drawn, frame),
            *_around(schedule, around, frame),
            *legend,
            "</svg>\n",
        ]
    )


def _frame(schedule: Schedule, around: Sequence[ScheduledAuxiliary]) -> _Frame:
    """Rows of the devices and, if they have collectives, of their queues."""
    devices = schedule.pipeline.num_devices
    queues = devices if any(not row.on_compute for row in around) else 0
    last = max(1, int(schedule.end.max(initial=0)), *(row.end for row in around))
    return _Frame(last, row_height(devices + queues, _HIGHEST_ROW, _ROWS), devices, queues)


def _known_auxiliary(schedule: Schedule) -> Iterator[ScheduledAuxiliary]:
    """The operations around the microbatches whose stage and device the pipeline has."""
    pipeline = schedule.pipeline
    for row in schedule.auxiliary.rows():
        if 0 <= row.device < pipeline.num_devices and 0 <= row.op.stage < pipeline.num_stages:
            yield row


def caption(schedule: Schedule) -> str:
    """Name a schedule and its figures in one line of plain printable text."""
    name = schedule.pipeline.name
    missing = set(range(schedule.pipeline.num_devices)) - set(schedule.device.tolist())
    if missing or not _known(schedule).all():
        words = [name, f"incomplete or defective: {len(schedule)} operations"]
    else:
        report = report_caption(schedule)
        limits, unit = report.mem_limit, report.memory_unit
        memory = f"peak memory {spread(report.peak_memory or (), unit)}"
        words = [
            name,
            title(report),
            f"{objective_name(report.objective)} {measured(report.value, report.time_unit)}",
            f"bubble rate {percent(report.bubble_rate)}",
            memory if limits is None else f"{memory}, limit {spread(limits, unit)}",
        ]
    text = clean(" · ".join(filter(None, words)))
    return text if len(text) <= _LONGEST_CAPTION else f"{text[: _LONGEST_CAPTION - 1]}…"


def _known(schedule: Schedule) -> npt.NDArray[np.bool_]:
    """Which operations have a kind, stage, microbatch and device that the pipeline has."""
    pipeline = schedule.pipeline
    sizes = (NUM_KINDS, pipeline.num_stages, pipeline.batches, pipeline.num_devices)
    columns = np.stack(schedule.columns[:4])
    return np.asarray(((columns >= 0) & (columns < np.array(sizes)[:, None])).all(axis=0))


def _operations(schedule: Schedule, drawn: Sequence[GanttSeries], frame: _Frame) -> Iterator[str]:
    if len(schedule) > MOST_PATHS:
        yield _image(schedule, drawn, frame)
        return
    rows = list(schedule.rows())
    for series in drawn:
        own = [rows[row] for row in series.rows.tolist()]
        if len(schedule) > MOST_RECTS:
            yield _path(series, own, frame)
        else:
            yield from _rects(schedule, series, own, frame)


def _image(schedule: Schedule, drawn: Sequence[GanttSeries], frame: _Frame) -> str:
    """Draw all operations as one image."""
    width = frame.x(frame.last) - frame.x(0)
    data = base64.b64encode(png(schedule, drawn, frame.last, round(width))).decode()
    return (
        f'<image x="{_px(frame.x(0))}" y="{_px(frame.y(0))}" width="{_px(width)}" '
        f'height="{_px(frame.row * frame.devices)}" preserveAspectRatio="none" '
        f'style="image-rendering:pixelated" href="data:image/png;base64,{data}"/>'
    )


def _path(series: GanttSeries, rows: Sequence[ScheduledOperation], frame: _Frame) -> str:
    outlines = "".join(
        _box(frame.x(row.start), frame.top(row), frame.x(row.end), frame.height(row))
        for row in rows
    )
    return f'<path fill="{series.colour}" d="{outlines}"/>'


def _rects(
    schedule: Schedule, series: GanttSeries, rows: Sequence[ScheduledOperation], frame: _Frame
) -> Iterator[str]:
    """Draw every operation of a series as a rect with hover text, and its number where it fits."""
    sliced = schedule.pipeline.num_slices > 1
    yield f'<g fill="{series.colour}" stroke="{colours.INK}" stroke-width="0.5">'
    for row in rows:
        yield (
            f'<rect x="{_px(frame.x(row.start))}" y="{_px(frame.top(row))}" '
            f'width="{_px(frame.x(row.end) - frame.x(row.start))}" '
            f'height="{_px(frame.height(row))}">'
            f"<title>{_words(schedule, row)}</title></rect>"
        )
    yield "</g>"
    yield (
        f'<g fill="{colours.ink(series.colour)}" font-size="{_px(frame.font)}" '
        'text-anchor="middle" pointer-events="none">'
    )
    for row in rows:
        name = str(row.microbatch) + (lowered(row.slice) if sliced else "")
        if _fits(row.end - row.start, name, frame):
            x = (frame.x(row.start) + frame.x(row.end)) / 2
            y = frame.top(row) + frame.height(row) / 2 + 0.36 * frame.font
            yield f'<text x="{_px(x)}" y="{_px(y)}">{name}</text>'
    yield "</g>"


def _around(schedule: Schedule, rows: Sequence[ScheduledAuxiliary], frame: _Frame) -> Iterator[str]:
    """Draw operations besides compute as rects with hover text, and numbers where they fit."""
    for kind in AuxiliaryKind:
        own = [row for row in rows if row.op.kind is kind]
        if not own:
            continue
        colour = colours.HUES[kind]
        yield f'<g fill="{colour}" stroke="{colours.INK}" stroke-width="0.5">'
        for row in own:
            top, height = _band(row, frame)
            yield (
                f'<rect x="{_px(frame.x(row.start))}" y="{_px(top)}" '
                f'width="{_px(frame.x(row.end) - frame.x(row.start))}" '
                f'height="{_px(height)}"><title>{_words_around(schedule, row)}</title></rect>'
            )
        yield "</g>"
        yield (
            f'<g fill="{colours.ink(colour)}" font-size="{_px(frame.font)}" '
            'text-anchor="middle" pointer-events="none">'
        )
        for row in own:
            name = str(row.op.microbatch if kind.per_microbatch else row.op.stage)
            if not row.on_compute and _fits(row.end - row.start, name, frame):
                x = frame.x((row.start + row.end) / 2)
                top, height = _band(row, frame)
                y = top + height / 2 + 0.36 * frame.font
                yield f'<text x="{_px(x)}" y="{_px(y)}">{name}</text>'
        yield "</g>"


def _line(row: ScheduledAuxiliary, frame: _Frame) -> int:
    """Row of the picture: that of the device, or of its queue."""
    return row.device + (0 if row.on_compute else frame.devices)


def _band(row: ScheduledAuxiliary, frame: _Frame) -> tuple[float, float]:
    """Top and height of a rect: moves to the host and back have half a row each."""
    top, half = frame.y(_line(row, frame)), half_row(row.op.kind)
    if not half:
        return top, frame.bar
    return top + (half - 1) * frame.bar / 2, frame.bar / 2


def _words_around(schedule: Schedule, row: ScheduledAuxiliary) -> str:
    place = f"device {row.device}" if row.on_compute else f"stage {row.op.stage}"
    if row.op.kind.per_microbatch:
        part = f", slice {row.op.slice}" if schedule.pipeline.num_slices > 1 else ""
        place += f", microbatch {row.op.microbatch}{part}"
    return f"{row.op.kind.name}, {place}: {_times(schedule, row.start, row.end)}"


def _words(schedule: Schedule, row: ScheduledOperation) -> str:
    part = f", slice {row.slice}" if schedule.pipeline.num_slices > 1 else ""
    place = f"stage {row.stage}, microbatch {row.microbatch}{part}"
    return f"{row.kind.name}, {place}: {_times(schedule, row.start, row.end)}"


def _times(schedule: Schedule, start: int, end: int) -> str:
    pipeline = schedule.pipeline
    last = measured(pipeline.ticks.time(end), pipeline.time_unit)
    return f"{number(pipeline.ticks.time(start))} to {last}"


def _fits(ticks: int, name: str, frame: _Frame) -> bool:
    needed = _DIGIT * frame.font * len(name) + 2
    return frame.font >= 6 and frame.x(ticks) - frame.x(0) >= needed


def _idle(frame: _Frame) -> str:
    """Draw the background of every device's row, which shows where the device is idle."""
    rows = (
        _box(frame.x(0), frame.y(device), frame.x(frame.last), frame.bar)
        for device in range(frame.devices)
    )
    return f'<path fill="{colours.IDLE}" d="{"".join(rows)}"/>'


def _device_labels(frame: _Frame) -> Iterator[str]:
    rows = (("device", 0, frame.devices), ("queue", frame.devices, frame.queues))
    for name, first, count in rows:
        for device in range(0, count, label_step(frame.row)):
            y = frame.y(first + device) + frame.bar / 2 + 0.36 * _FONT
            yield f'<text x="{LEFT - 8}" y="{_px(y)}" text-anchor="end">{name} {device}</text>'


def _axis(schedule: Schedule, frame: _Frame) -> Iterator[str]:
    """Write the times below the rows: round ones, and the end."""
    per_unit, unit = schedule.pipeline.ticks.per_unit, schedule.pipeline.time_unit
    end = Fraction(frame.last, per_unit)
    last = measured(round(end, 3), unit)
    per_pixel = end / (WIDTH - LEFT - RIGHT)
    step = _step(per_pixel * _TICK_ROOM)
    room = per_pixel * max(_TICK_ROOM, round(_LETTER * (len(last) + 4)))
    rounds = [step * k for k in range(int(end / step) + 1) if end - step * k > room]
    times = [*rounds, end]
    places = [_px(frame.x(float(time * per_unit))) for time in times]
    lines = "".join(f"M{x} {TOP}V{_px(frame.bottom + 3)}" for x in places)
    yield f'<path stroke="{colours.GRID}" fill="none" d="{lines}"/>'
    anchors = ["middle"] * len(rounds) + ["end"]
    for time, x, anchor in zip(times, places, anchors, strict=True):
        y = _px(frame.bottom + 16)
        words = last if anchor == "end" else number(time)
        yield f'<text x="{x}" y="{y}" text-anchor="{anchor}">{words}</text>'


def _step(least: Fraction) -> Fraction:
    """Smallest of ..., 0.5, 1, 2, 5, 10, 20, ... that is not below `least`."""
    step = Fraction(1)
    while step >= least:
        step /= 10
    while step < least:
        step *= 10
    return next(part for part in (step / 5, step / 2, step) if part >= least)


_Entry = tuple[str, list[str]]
"""Words of a legend, and the colours that they name."""


def _entries(drawn: Sequence[GanttSeries]) -> list[_Entry]:
    return [
        (f"{kind.name} {KIND_WORDS[kind]}", [series.colour for series in same])
        for kind, same in groupby(drawn, key=lambda series: series.kind)
    ]


def _entries_around(rows: Sequence[ScheduledAuxiliary]) -> list[_Entry]:
    kinds = {row.op.kind for row in rows}
    return [
        (f"{kind.name} {KIND_WORDS[kind]}", [colours.HUES[kind]])
        for kind in AuxiliaryKind
        if kind in kinds
    ]


def _legend(
    entries: Sequence[_Entry], drawn: Sequence[GanttSeries], frame: _Frame, last: str
) -> tuple[list[str], int]:
    """Name the colours below the axis; returns the elements and the height of the picture.

    `last` is one more line of text, unless empty.
    """
    x, y = float(LEFT), frame.bottom + 40
    lines = []
    for words, strip in [*entries, ("idle", [colours.IDLE])]:
        needed = 12 * len(strip) + 6 + _LETTER * len(words)
        if frame.queues and x > LEFT and x + needed > WIDTH - RIGHT:
            x, y = float(LEFT), y + 20
        for colour in strip:
            lines.append(f'<path fill="{colour}" d="{_box(x, y - 10, x + 12, 12)}"/>')
            x += 12
        lines.append(f'<text x="{_px(x + 6)}" y="{_px(y)}" fill="{TEXT}">{words}</text>')
        x += 6 + _LETTER * len(words) + 14
    shades = shade_words(list(dict.fromkeys(series.name for series in drawn)))
    for words in filter(None, (shades and f"shades, {shades}", last)):
        y += 20
        lines.append(f'<text x="{LEFT}" y="{_px(y)}" fill="{TEXT}">{words}</text>')
    return lines, round(y + 12)


def _box(x: float, y: float, end: float, height: float) -> str:
    width = _px(end - x)
    return f"M{_px(x)} {_px(y)}h{width}v{_px(height)}h-{width}z"


def _px(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
