"""A Gantt chart in plain text, for schedules small enough to be read in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import gcd
from typing import NamedTuple

import numpy as np

from ppopt.report.numbers import measured
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.timetable import ScheduledOperation

IDLE = "."
OPTIMIZER = "O"
_MARGIN = "device {} "


def text_gantt(schedule: Schedule, width: int) -> str | None:
    """Draw one line per device, time to scale in at most `width` columns, dots where idle.

    An operation is its kind and microbatch, `F0--`; where a device hosts several stages it is
    written in full, `0F0--` (see `ppopt.problem.operation`); a pair run as one is `F1+BW0`, an
    optimizer `O--`. None if an operation would be narrower than its name.
    """
    devices = schedule.pipeline.num_devices
    margin = len(_MARGIN.format(devices - 1))
    bars = _bars(schedule)
    for columns in _scales(schedule, bars, width - margin):
        end = columns(_last(schedule))
        lines = _lines(bars, columns, devices, end)
        if lines is not None:
            labels = (_MARGIN.format(device).rjust(margin) for device in range(devices))
            drawn = [label + line for label, line in zip(labels, lines, strict=True)]
            return "\n".join([*drawn, _time_axis(schedule, margin, end)])
    return None


class _Bar(NamedTuple):
    """What a device runs from `start` to `end`, in ticks."""

    device: int
    name: str
    start: int
    end: int


def _bars(schedule: Schedule) -> list[_Bar]:
    """Operations, pairs and optimizers, by device, then start."""
    rows = list(schedule.rows())
    names = [_name(schedule, row) for row in rows]
    for second in np.flatnonzero(schedule.seconds).tolist():
        names[second - 1] += f"+{names[second]}"
    alone = np.flatnonzero(~schedule.seconds).tolist()
    computed = [_Bar(rows[at].device, names[at], rows[at].start, rows[at].end) for at in alone]
    steps = [
        _Bar(row.device, OPTIMIZER, row.start, row.end)
        for row in schedule.auxiliary.rows()
        if row.on_compute and row.end > row.start
    ]
    return sorted([*computed, *steps], key=lambda bar: bar.device)


def _last(schedule: Schedule) -> int:
    """The makespan, in ticks."""
    return max(int(schedule.end.max(initial=0)), int(schedule.auxiliary.end.max(initial=0)))


def _scales(schedule: Schedule, bars: Iterable[_Bar], width: int) -> list[Callable[[int], int]]:
    """Column of a tick: whole columns per unit, then stretched to `width`."""
    last = _last(schedule)
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


def _name(schedule: Schedule, row: ScheduledOperation) -> str:
    hosted = sum(len(stages[row.device]) for stages in schedule.pipeline.hosted)
    return str(row.op).removeprefix(str(row.stage)) if hosted == 1 else str(row.op)


def _cell(name: str, width: int) -> str | None:
    """A name padded to a width, None if it does not fit; `0F0` needs a space behind it."""
    if width < len(name) + name[0].isdigit():
        return None
    return f"{name:-<{max(width - 1, len(name))}}"[:width].ljust(width)


def _time_axis(schedule: Schedule, margin: int, columns: int) -> str:
    ticks = schedule.pipeline.ticks
    end = measured(ticks.time(_last(schedule)), schedule.pipeline.time_unit)
    return "time ".rjust(margin) + "0" + end.rjust(columns - 1)
