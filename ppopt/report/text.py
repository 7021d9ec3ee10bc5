"""A Gantt chart in plain text, for schedules small enough to be read in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import gcd
from typing import NamedTuple

import numpy as np

from ppopt.problem.kinds import RECORDS, Per
from ppopt.report.drawing import GANTT, Drawing, drawing
from ppopt.report.numbers import measured
from ppopt.schedule.operations import Operation
from ppopt.schedule.schedule import Schedule

IDLE = "."
_MARGIN = "device {} "


def text_gantt(schedule: Schedule, width: int) -> str | None:
    """Draw one line per device, time to scale in at most `width` columns, dots where idle.

    An operation is its kind and microbatch, `F0--`; where a device hosts several stages it is
    written in full, `0F0--` (see `ppopt.problem.operation`); a pair run as one is `F1+BW0`, an
    optimizer `O--`. None if an operation would be narrower than its name.
    """
    if np.bincount(schedule.compute.device).max(initial=0) > width:
        return None
    drawn = drawing(schedule, GANTT)
    lines = drawn.lines[0]
    margin = len(_MARGIN.format(len(lines) - 1))
    bars = _bars(drawn)
    last = int(schedule.operations.end.max(initial=0))
    for columns in _scales(bars, last, width - margin):
        cells = _lines(bars, columns, len(lines), columns(last))
        if cells is not None:
            labels = (_MARGIN.format(line.devices[0]).rjust(margin) for line in lines)
            texts = [label + cell for label, cell in zip(labels, cells, strict=True)]
            end = measured(schedule.pipeline.ticks.time(last), schedule.pipeline.time_unit)
            axis = "time ".rjust(margin) + "0" + end.rjust(columns(last) - 1)
            return "\n".join([*texts, axis])
    return None


class _Bar(NamedTuple):
    """What a device runs from `start` to `end`, in ticks."""

    device: int
    name: str
    start: int
    end: int


def _bars(drawn: Drawing) -> list[_Bar]:
    """What devices run, by device, then start; a pair is one bar."""
    bars: list[_Bar] = []
    for row, second in zip(drawn.bars.rows(), drawn.bars.seconds.tolist(), strict=True):
        name = _name(drawn.schedule, row)
        if second:
            bars[-1] = bars[-1]._replace(name=f"{bars[-1].name}+{name}")
        elif row.end > row.start or RECORDS[row.kind].per is Per.MICROBATCH:
            bars.append(_Bar(row.device, name, row.start, row.end))
    return bars


def _scales(bars: Iterable[_Bar], last: int, width: int) -> list[Callable[[int], int]]:
    """Column of a tick: whole columns per unit, then stretched to `width`."""
    if not last or width < 1:
        return []
    unit = gcd(last, *(tick for bar in bars for tick in (bar.start, bar.end)))
    each = width // (last // unit)
    return [lambda tick: tick // unit * each, lambda tick: round(tick * (width / last))]


def _lines(
    bars: Iterable[_Bar], columns: Callable[[int], int], devices: int, width: int
) -> list[str] | None:
    """Line of every device; None if a name does not fit or operations overlap."""
    lines = [""] * devices
    for device, name, *times in bars:
        start, end = map(columns, times)
        cell = _cell(name, end - start)
        if cell is None or start < len(lines[device]):
            return None
        lines[device] = lines[device].ljust(start, IDLE) + cell
    return [line.ljust(width, IDLE) for line in lines]


def _name(schedule: Schedule, row: Operation) -> str:
    record = RECORDS[row.kind]
    if record.per is not Per.MICROBATCH:
        return record.letter
    hosted = sum(len(stages[row.device]) for stages in schedule.pipeline.hosted)
    return str(row).removeprefix(str(row.stage)) if hosted == 1 else str(row)


def _cell(name: str, width: int) -> str | None:
    """A name padded to a width, None if it does not fit; `0F0` needs a space behind it."""
    if width < len(name) + name[0].isdigit():
        return None
    return f"{name:-<{max(width - 1, len(name))}}"[:width].ljust(width)
