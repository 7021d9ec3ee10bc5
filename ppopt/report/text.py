"""A Gantt chart in plain text, for schedules small enough to be read in a terminal."""

from __future__ import annotations

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.report.numbers import measured
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.timetable import ScheduledOperation

IDLE = "."
_MARGIN = "device {} "


def text_gantt(schedule: Schedule, width: int) -> str | None:
    """Draw one line per device, time to scale in at most `width` columns, dots where idle.

    An operation is its kind and microbatch, `F0--`; where a device hosts several stages it is
    written in full, `0F0--` (see `ppopt.problem.operation`); a pair run as one is `F1+BW0`. None
    where an operation would be narrower than its name.
    """
    devices = schedule.pipeline.num_devices
    margin = len(_MARGIN.format(devices - 1))
    for edges in _scales(schedule, width - margin):
        lines = _lines(schedule, edges)
        if lines is not None:
            labels = (_MARGIN.format(device).rjust(margin) for device in range(devices))
            drawn = [label + line for label, line in zip(labels, lines, strict=True)]
            return "\n".join([*drawn, _time_axis(schedule, margin, int(edges.max()))])
    return None


def _scales(schedule: Schedule, width: int) -> list[Ints]:
    """Columns of [operation, start or end]: whole columns per unit, then stretched to `width`."""
    ticks = np.column_stack([schedule.start, schedule.end])
    last = int(ticks.max(initial=0))
    if not last or width < 1:
        return []
    unit = int(np.gcd.reduce(ticks, axis=None))
    whole = ticks // unit * (width // (last // unit))
    return [whole, np.rint(ticks * (width / last)).astype(np.int64)]


def _lines(schedule: Schedule, edges: Ints) -> list[str] | None:
    """Line of every device; None where a name does not fit or operations overlap."""
    lines = [""] * schedule.pipeline.num_devices
    last = int(edges.max())
    rows = list(schedule.rows())
    names = [_name(schedule, row) for row in rows]
    for second in np.flatnonzero(schedule.seconds).tolist():
        names[second - 1] += f"+{names[second]}"
    for place in np.flatnonzero(~schedule.seconds).tolist():
        device, (start, end) = rows[place].device, edges[place].tolist()
        cell = _cell(names[place], end - start)
        if cell is None or start < len(lines[device]):
            return None
        lines[device] = lines[device].ljust(start, IDLE) + cell
    return [line.ljust(last, IDLE) for line in lines]


def _name(schedule: Schedule, row: ScheduledOperation) -> str:
    hosted = sum(len(stages[row.device]) for stages in schedule.pipeline.hosted)
    return str(row.op).removeprefix(str(row.stage)) if hosted == 1 else str(row.op)


def _cell(name: str, width: int) -> str | None:
    """A name padded to a width, None where it does not fit; `0F0` needs a space behind it."""
    if width < len(name) + name[0].isdigit():
        return None
    return f"{name:-<{max(width - 1, len(name))}}"[:width].ljust(width)


def _time_axis(schedule: Schedule, margin: int, columns: int) -> str:
    ticks = schedule.pipeline.ticks
    end = measured(ticks.time(int(schedule.end.max())), schedule.pipeline.time_unit)
    return "time ".rjust(margin) + "0" + end.rjust(columns - 1)
