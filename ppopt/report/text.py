"""A Gantt chart in plain text, for schedules small enough to be read in a terminal."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

import numpy as np
from rich.text import Text

from ppopt.problem.arrays import Ints
from ppopt.problem.operation import OpKind
from ppopt.report.words import number
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.timetable import Row

IDLE = "."
STYLES = {OpKind.F: "blue", OpKind.B: "yellow", OpKind.W: "green", OpKind.BW: "red"}
_MARGIN = "device {} "


class _Piece(NamedTuple):
    text: str
    style: str


def text_gantt(schedule: Schedule, width: int) -> str | None:
    """Draw one line per device, time to scale in at most `width` columns, dots where idle.

    An operation is its kind and microbatch, `F0--`; where a device hosts several stages it is
    written in full, `0F0--` (see `ppopt.problem.operation`); a pair run as one is `F1+BW0`. None
    where that is not legible: an operation would be narrower than its name.
    """
    drawn = coloured_gantt(schedule, width)
    return None if drawn is None else drawn.plain


def coloured_gantt(schedule: Schedule, width: int) -> Text | None:
    """`text_gantt` with a colour per kind; None where that is None."""
    devices = schedule.pipeline.num_devices
    margin = len(_MARGIN.format(devices - 1))
    for edges in _scales(schedule, width - margin):
        pieces = _pieces(schedule, edges)
        if pieces is not None:
            break
    else:
        return None
    chart = Text(no_wrap=True)
    for device, line in enumerate(pieces):
        chart.append(_MARGIN.format(device).rjust(margin), "bold")
        for piece in line:
            chart.append(*piece)
        chart.append("\n")
    return chart.append(_ruler(schedule, margin, int(edges.max())))


def _scales(schedule: Schedule, width: int) -> list[Ints]:
    """Columns [operation, start or end], widest last: whole columns per unit, then stretched."""
    ticks = np.column_stack([schedule.start, schedule.end])
    last = int(ticks.max(initial=0))
    if not last or width < 1:
        return []
    unit = int(np.gcd.reduce(ticks, axis=None))
    whole = ticks // unit * (width // (last // unit))
    return [whole, np.rint(ticks * (width / last)).astype(np.int64)]


def _pieces(schedule: Schedule, edges: Ints) -> list[list[_Piece]] | None:
    """Coloured text of every device's line; None where a name does not fit."""
    lines: list[list[_Piece]] = [[] for _ in range(schedule.pipeline.num_devices)]
    last = int(edges.max())
    rows = list(schedule.rows())
    names = [_name(schedule, row) for row in rows]
    for second in np.flatnonzero(schedule.seconds).tolist():
        names[second - 1] += f"+{names[second]}"
    drawn = zip(rows, names, edges.tolist(), schedule.seconds.tolist(), strict=True)
    shown = (item[:3] for item in drawn if not item[3])
    for device, here in groupby(shown, key=lambda item: item[0].device):
        at = 0
        for row, name, (start, end) in here:
            cell = _cell(name, end - start)
            if cell is None or start < at:
                return None
            lines[device] += [_idle(start - at), _Piece(cell, STYLES[row.kind])]
            at = end
        lines[device].append(_idle(last - at))
    return lines


def _idle(width: int) -> _Piece:
    return _Piece(IDLE * width, "dim")


def _name(schedule: Schedule, row: Row) -> str:
    hosted = sum(len(stages[row.device]) for stages in schedule.pipeline.hosted)
    return str(row.op).removeprefix(str(row.stage)) if hosted == 1 else str(row.op)


def _cell(name: str, width: int) -> str | None:
    """Fill a width with a name; a name that begins with a number needs a space behind it."""
    if width < len(name) + name[0].isdigit():
        return None
    return f"{name:-<{max(width - 1, len(name))}}"[:width].ljust(width)


def _ruler(schedule: Schedule, margin: int, columns: int) -> str:
    ticks = schedule.pipeline.ticks
    end = number(ticks.time(int(schedule.end.max())))
    return "time ".rjust(margin) + "0" + end.rjust(columns - 1)
