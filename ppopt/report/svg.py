"""A small picture of one schedule: an inline SVG Gantt chart for notebooks and documents.

It needs no script and no network, and is readable on light and on dark backgrounds.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator, Sequence
from fractions import Fraction
from html import escape
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ppopt.problem.arrays import Ints
from ppopt.problem.kinds import RECORDS, Per
from ppopt.problem.operation import ONCE
from ppopt.report import colours
from ppopt.report.drawing import (
    ALL,
    GANTT,
    LOWER,
    QUEUES,
    UPPER,
    Drawing,
    Series,
    describe_shades,
    drawing,
    label_step,
    row_height,
)
from ppopt.report.labels import (
    clean,
    describe_microbatches,
    describe_order,
    objective_name,
    title,
)
from ppopt.report.numbers import measured, number, percent, spread
from ppopt.report.schedule_report import report_caption
from ppopt.schedule.operations import Operation
from ppopt.schedule.schedule import Schedule

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
_TICK_SPACING = 64
"""Pixels between two ticks of the time axis, at least."""
_LONGEST_CAPTION = 120
_ZOOM = 2
"""Dots of a PNG per pixel, for screens of fine resolution."""
MAX_RECTS, MAX_PATHS = 1500, 6000
"""Most operations that are drawn as one element each, and as one outline each (some 200 KB)."""
LINES, _HALF = 7, 3
"""Lines of pixels of an image per line of bars: three for each half of a bar, one between bars."""
Pixels = npt.NDArray[np.float64]
_MEANS = "seen from afar: a spot has the colour of what fills most of it; slate blue: several kinds"


class _Frame(NamedTuple):
    """From lines and ticks to pixels."""

    width_ticks: int
    """Time in ticks that the width of the chart stands for."""
    end: int
    """Tick at the end of the schedule, where the axis ends."""
    row: float
    """Height of a line."""
    devices: int
    lines: int
    """Lines in all: those of devices and, below them, those of their queues."""

    def x(self, tick: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * tick / self.width_ticks

    def y(self, line: int) -> float:
        return TOP + self.row * (line + (1 - _BAR) / 2)

    @property
    def bar(self) -> float:
        return self.row * _BAR

    @property
    def bottom(self) -> float:
        return TOP + self.row * self.lines

    @property
    def font(self) -> float:
        """Size of the numbers in bars."""
        return min(_FONT, self.bar * 0.6)


class _Box(NamedTuple):
    """A bar in pixels."""

    x: float
    y: float
    end: float
    height: float
    label: str


def svg(schedule: Schedule, *, heading: str = "", width_ticks: int = 0) -> str:
    """Draw a schedule: devices as rows, operations to scale, idle time as background.

    `heading` replaces the caption. `width_ticks` is the time in ticks that the width of the chart
    stands for, if it is longer than the schedule: charts with equal values share a time scale.

    Collectives and moves to the host have rows of their own, one per device, with their stages or
    microbatches. Optimizers are operations of their devices.

    Every operation is one `rect`, with its microbatch where that fits and its time on hover.
    Above `MAX_RECTS` operations there is one `path` per colour and there are no numbers. Above
    `MAX_PATHS` there is an image, in which a pixel has the colour of what fills most of it.
    Identical input gives an identical picture. Of an incomplete or defective schedule, the
    operations that the pipeline has are drawn and the figures are left out.
    """
    text = heading or caption(schedule)
    drawn = drawing(schedule, GANTT, QUEUES)
    devices, lines = len(drawn.lines[0]), sum(map(len, drawn.lines))
    row = row_height(lines, _HIGHEST_ROW, _ROWS)
    end = max(1, drawn.last)
    frame = _Frame(max(end, width_ticks), end, row, devices, lines)
    means = _MEANS if len(drawn.bars) > MAX_PATHS else ""
    legend, height = _legend(drawn.series, frame, means)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" style="max-width:100%;height:auto" role="img" '
            f'aria-label="{escape(text)}" font-family="system-ui, sans-serif" '
            f'font-size="{_FONT}">',
            f'<g fill="{TEXT}"><text x="{LEFT}" y="18">{escape(text)}</text>',
            *_line_labels(drawn, frame),
            *_axis(schedule, frame),
            "</g>",
            f'<path fill="{colours.IDLE}" d="{"".join(_idle(frame))}"/>',
            *_operations(drawn, frame),
            *legend,
            "</svg>\n",
        ]
    )


def picture_png(schedule: Schedule) -> bytes:
    """Draw a schedule on white as PNG; letters need a font of the system."""
    import resvg_py  # noqa: PLC0415  loads on use

    return bytes(resvg_py.svg_to_bytes(svg_string=svg(schedule), zoom=_ZOOM, background="white"))


def caption(schedule: Schedule) -> str:
    """Name a schedule and its figures in one line of plain printable text."""
    name = schedule.pipeline.name
    missing = set(range(schedule.pipeline.num_devices)) - set(schedule.device.tolist())
    if missing or not schedule.operations.known.all():
        parts = [name, f"incomplete or defective: {len(schedule.operations)} operations"]
    else:
        report = report_caption(schedule)
        limits, unit = report.mem_limit, report.memory_unit
        memory = f"peak memory {spread(report.peak_memory or (), unit)}"
        parts = [
            name,
            title(report),
            f"{objective_name(report.objective)} {measured(report.value, report.time_unit)}",
            f"bubble rate {percent(report.bubble_rate)}",
            memory if limits is None else f"{memory}, limit {spread(limits, unit)}",
            describe_order(schedule.pipeline),
        ]
    text = clean(" · ".join(filter(None, parts)))
    return text if len(text) <= _LONGEST_CAPTION else f"{text[: _LONGEST_CAPTION - 1]}…"


def _operations(drawn: Drawing, frame: _Frame) -> Iterator[str]:
    count = len(drawn.bars)
    if count > MAX_PATHS:
        yield _image(drawn, frame)
        return
    columns = (drawn.line, drawn.half, drawn.bars.start, drawn.bars.end)
    lists = (column.tolist() for column in columns)
    boxes = [
        _Box(
            frame.x(start),
            frame.y(line) + (frame.bar / 2 if half == LOWER else 0),
            frame.x(end),
            frame.bar if half == ALL else frame.bar / 2,
            label,
        )
        for line, half, start, end, label in zip(*lists, drawn.labels, strict=True)
    ]
    operations = list(drawn.bars.rows())
    microbatches = describe_microbatches(drawn.schedule.pipeline)
    for series in drawn.series:
        rows = series.rows.tolist()
        own = [boxes[row] for row in rows]
        if count > MAX_RECTS:
            outlines = "".join(_outline(box.x, box.y, box.end, box.height) for box in own)
            yield f'<path fill="{series.colour}" d="{outlines}"/>'
            continue
        texts = [_hover_text(drawn.schedule, operations[row], microbatches) for row in rows]
        yield from _rects(series, own, texts)
        yield from _numbers(series, own, frame)


def _image(drawn: Drawing, frame: _Frame) -> str:
    """Draw all operations as one image."""
    width = frame.x(frame.end) - frame.x(0)
    data = base64.b64encode(png(drawn, drawn.series, frame.end, round(width))).decode()
    return (
        f'<image x="{_px(frame.x(0))}" y="{_px(frame.y(0))}" width="{_px(width)}" '
        f'height="{_px(frame.row * frame.lines)}" preserveAspectRatio="none" '
        f'style="image-rendering:pixelated" href="data:image/png;base64,{data}"/>'
    )


def _rects(series: Series, boxes: Sequence[_Box], texts: Sequence[str]) -> Iterator[str]:
    """Draw every operation of a series as a rect with hover text."""
    yield f'<g fill="{series.colour}" stroke="{colours.INK}" stroke-width="0.5">'
    for box, text in zip(boxes, texts, strict=True):
        yield (
            f'<rect x="{_px(box.x)}" y="{_px(box.y)}" width="{_px(box.end - box.x)}" '
            f'height="{_px(box.height)}"><title>{text}</title></rect>'
        )
    yield "</g>"


def _numbers(series: Series, boxes: Sequence[_Box], frame: _Frame) -> Iterator[str]:
    """Write the number of every operation of a series where it fits."""
    yield (
        f'<g fill="{colours.ink(series.colour)}" font-size="{_px(frame.font)}" '
        'text-anchor="middle" pointer-events="none">'
    )
    for box in boxes:
        needed = _DIGIT * frame.font * len(box.label) + 2
        if box.label and frame.font >= 6 and box.end - box.x >= needed:
            y = box.y + box.height / 2 + 0.36 * frame.font
            yield f'<text x="{_px((box.x + box.end) / 2)}" y="{_px(y)}">{box.label}</text>'
    yield "</g>"


def _hover_text(schedule: Schedule, row: Operation, microbatches: Sequence[str]) -> str:
    """What an operation is and when it runs; `microbatches` is said of each, if they differ."""
    record = RECORDS[row.kind]
    place = f"device {row.device}" if record.per is Per.DEVICE else f"stage {row.stage}"
    if row.microbatch != ONCE:
        part = f", slice {row.slice}" if schedule.pipeline.num_slices > 1 else ""
        place += f", microbatch {row.microbatch}{part}"
    time, unit = schedule.pipeline.ticks.time, schedule.pipeline.time_unit
    times = f"{number(time(row.start))} to {measured(time(row.end), unit)}"
    differs = f"; {microbatches[row.microbatch]}" if 0 <= row.microbatch < len(microbatches) else ""
    return f"{record.name}, {place}: {times}{differs}"


def _idle(frame: _Frame) -> Iterator[str]:
    """Outlines of the background of devices, which shows where they are idle."""
    for device in range(frame.devices):
        yield _outline(frame.x(0), frame.y(device), frame.x(frame.end), frame.bar)


def _line_labels(drawn: Drawing, frame: _Frame) -> Iterator[str]:
    first = 0
    for lines in drawn.lines:
        for at in range(0, len(lines), label_step(frame.row)):
            y = frame.y(first + at) + frame.bar / 2 + 0.36 * _FONT
            label = lines[at].label
            yield f'<text x="{LEFT - 8}" y="{_px(y)}" text-anchor="end">{label}</text>'
        first += len(lines)


def _axis(schedule: Schedule, frame: _Frame) -> Iterator[str]:
    """Write the times below the rows: round ones, and the end."""
    per_unit, unit = schedule.pipeline.ticks.per_unit, schedule.pipeline.time_unit
    end = Fraction(frame.end, per_unit)
    last = measured(round(end, 3), unit)
    per_pixel = Fraction(frame.width_ticks, per_unit) / (WIDTH - LEFT - RIGHT)
    step = _step(per_pixel * _TICK_SPACING)
    spacing = per_pixel * max(_TICK_SPACING, round(_LETTER * (len(last) + 4)))
    rounds = [step * k for k in range(int(end / step) + 1) if end - step * k > spacing]
    times = [*rounds, end]
    places = [_px(frame.x(float(time * per_unit))) for time in times]
    lines = "".join(f"M{x} {TOP}V{_px(frame.bottom + 3)}" for x in places)
    yield f'<path stroke="{colours.GRID}" fill="none" d="{lines}"/>'
    anchors = ["middle"] * len(rounds) + ["end"]
    for time, x, anchor in zip(times, places, anchors, strict=True):
        y = _px(frame.bottom + 16)
        text = last if anchor == "end" else number(time)
        yield f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>'


def _step(minimum: Fraction) -> Fraction:
    """Smallest of ..., 0.5, 1, 2, 5, 10, 20, ... that is not below `minimum`."""
    step = Fraction(1)
    while step >= minimum:
        step /= 10
    while step < minimum:
        step *= 10
    return next(part for part in (step / 5, step / 2, step) if part >= minimum)


def _legend(drawn: Sequence[Series], frame: _Frame, last: str) -> tuple[list[str], int]:
    """Name the colours below the axis; returns the elements and the height of the picture.

    `last` is one more line of text, unless empty.
    """
    entries = [
        (f"{record.name} {record.label}", [series.colour for series in same])
        for record, same in groupby(drawn, key=lambda series: series.record)
    ]
    x, y = float(LEFT), frame.bottom + 40
    elements = []
    for text, strip in [*entries, ("idle", [colours.IDLE])]:
        needed = 12 * len(strip) + 6 + _LETTER * len(text)
        if x > LEFT and x + needed > WIDTH - RIGHT:
            x, y = float(LEFT), y + 20
        for colour in strip:
            elements.append(f'<path fill="{colour}" d="{_outline(x, y - 10, x + 12, 12)}"/>')
            x += 12
        elements.append(f'<text x="{_px(x + 6)}" y="{_px(y)}" fill="{TEXT}">{text}</text>')
        x += 6 + _LETTER * len(text) + 14
    shades = describe_shades(list(dict.fromkeys(series.name for series in drawn)))
    for text in filter(None, (shades and f"shades, {shades}", last)):
        y += 20
        elements.append(f'<text x="{LEFT}" y="{_px(y)}" fill="{TEXT}">{text}</text>')
    return elements, round(y + 12)


def _outline(x: float, y: float, end: float, height: float) -> str:
    width = _px(end - x)
    return f"M{_px(x)} {_px(y)}h{width}v{_px(height)}h-{width}z"


def _px(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def png(drawn: Drawing, series: Sequence[Series], last: int, columns: int) -> bytes:
    """Draw ticks 0 to `last` in `columns` pixels, with LINES lines of pixels per line of bars.

    Idle time is transparent.
    """
    kinds = list(dict.fromkeys(own.record for own in series))
    painted = np.zeros((len(kinds), sum(map(len, drawn.lines)), 2, columns, 4))
    edges = np.linspace(0, last, columns + 1)
    bars = drawn.bars
    for own in series:
        tone = np.array([*colours.channels(own.colour), 255.0])
        for line in np.unique(drawn.line[own.rows]).tolist():
            rows = own.rows[drawn.line[own.rows] == line]
            for half in (UPPER, LOWER):
                seen = rows[np.isin(drawn.half[rows], (ALL, half))]
                share = _covered(bars.start[seen], bars.end[seen], edges)
                painted[kinds.index(own.record), line, half - UPPER] += share[:, None] * tone
    return _encoded(_pixel_lines(_merged(painted)))


def _covered(start: Ints, end: Ints, edges: Pixels) -> Pixels:
    """Share of every column that intervals cover; they are in order and do not overlap."""
    total = np.append(0, np.cumsum(end - start))
    before = np.searchsorted(start, edges, side="right")
    ends = np.append(0, end)[before]
    until = total[before] - np.maximum(ends - edges, 0)
    return np.diff(until) / np.diff(edges)


def _merged(painted: Pixels) -> Pixels:
    """Colours of all kinds together: of the dominant kind of a pixel, or `SEVERAL`.

    A kind dominates a pixel if it fills `MIN_DOMINANT_SHARE` of it. The mean of blue and orange
    would pass for the green of another kind.
    """
    opacity = painted[..., 3].sum(axis=0)
    dominant = painted[..., 3].argmax(axis=0)
    colour = np.take_along_axis(painted, dominant[None, ..., None], axis=0)[0]
    clear = colour[..., 3] >= colours.MIN_DOMINANT_SHARE * opacity
    share = np.divide(opacity, colour[..., 3], where=colour[..., 3] > 0, out=0 * opacity)
    several = opacity[..., None] / 255 * np.array([*colours.channels(colours.SEVERAL), 255.0])
    merged: Pixels = np.where(clear[..., None], colour * share[..., None], several)
    return merged


def _pixel_lines(painted: Pixels) -> npt.NDArray[np.uint8]:
    """Lines of red, green, blue and opacity, from colours times opacity."""
    opacity = painted[..., 3:]
    colour = np.divide(255 * painted[..., :3], opacity, where=opacity > 0, out=0 * painted[..., :3])
    halves = np.rint(np.clip(np.concatenate([colour, opacity], axis=-1), 0, 255)).astype(np.uint8)
    lines = np.repeat(halves, _HALF, axis=1)
    lines = np.pad(lines, ((0, 0), (0, LINES - 2 * _HALF), (0, 0), (0, 0)))
    return lines.reshape(-1, *lines.shape[2:])


def _encoded(lines: npt.NDArray[np.uint8]) -> bytes:
    """Encode RGBA lines as PNG (W3C, "Portable Network Graphics").

    Filter type 2, `Up`, stores every line as its difference from the line above: equal lines
    become zeros.
    """
    height, width = lines.shape[:2]
    flat = lines.reshape(height, -1)
    changes = np.diff(flat, axis=0, prepend=np.zeros_like(flat[:1]))
    filtered = np.hstack([np.full((height, 1), 2, dtype=np.uint8), changes])
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    body = zlib.compress(filtered.tobytes(), 9)
    chunks = (_chunk(b"IHDR", header), _chunk(b"IDAT", body), _chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
