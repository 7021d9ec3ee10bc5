"""A schedule's faults in sight: the order of every device side by side, an arrow at each fault."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ppopt.op import OpKind
from ppopt.verify_rows import Ints, Rows
from ppopt.verify_violation import Violation

MOST_STEPS = 16
MOST_DEVICES = 8
"""What the grid shows around the first fault; a schedule that is larger is cut."""
_ARROW = "-> "


def grid(rows: Rows, violations: Sequence[Violation]) -> str:
    """Draw one column per device and one line per step: its k-th operation, sorted by start.

    Operations that a violation names as faulty carry an arrow; those that cannot be named are
    shown as ?.
    """
    placed = rows.take(rows.placed)
    size = placed.pipeline.num_devices
    bounds = np.searchsorted(placed.device, np.arange(size + 1))
    faults = [row for violation in violations for row in _rows_of(placed, violation)]
    steps = int(np.diff(bounds).max())
    row = faults[0] if faults else 0
    device = int(placed.device[row]) if faults else 0
    shown_devices = _window(device, size, MOST_DEVICES)
    shown_steps = _window(row - int(bounds[device]), steps, MOST_STEPS)
    lines = _cells(placed, bounds, shown_steps, shown_devices, set(faults))
    if len(shown_steps) < steps or len(shown_devices) < size:
        cut = (_part("steps", shown_steps, steps), _part("devices", shown_devices, size))
        lines.insert(0, ", ".join(cut))
    return "\n".join(lines)


def _rows_of(placed: Rows, violation: Violation) -> list[int]:
    """Row of the fault, at its device and time; none where the fault has no place."""
    if violation.device is None or violation.time is None:
        return []
    low, high = np.searchsorted(placed.device, [violation.device, violation.device + 1])
    low += np.searchsorted(placed.start[low:high], violation.time)
    here = slice(low, low + np.searchsorted(placed.start[low:high], violation.time, "right"))
    same = placed.start[here] == violation.time
    if violation.ops:
        op = violation.ops[0]
        same &= placed.kind[here] == op.kind
        same &= (placed.stage[here] == op.stage) & (placed.microbatch[here] == op.microbatch)
    return [int(low + row) for row in np.flatnonzero(same)[:1]]


def _window(middle: int, size: int, most: int) -> range:
    low = max(0, min(middle - most // 2, size - most))
    return range(low, min(size, low + most))


def _part(what: str, shown: range, size: int) -> str:
    return f"{what} {shown.start} to {shown.stop - 1} of 0 to {size - 1}"


def _cells(placed: Rows, bounds: Ints, steps: range, devices: range, faults: set[int]) -> list[str]:
    table = [["", *(f"device {device}" for device in devices)]]
    for step in steps:
        line = [f"step {step}"]
        for device in devices:
            row = int(bounds[device]) + step
            line.append(_cell(placed, row, faults) if row < bounds[device + 1] else "")
        table.append(line)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(str.rjust, line, widths)).rstrip() for line in table]


def _cell(placed: Rows, row: int, faults: set[int]) -> str:
    kind = int(placed.kind[row])
    name = OpKind(kind).name if kind in tuple(OpKind) else "?"
    text = f"{placed.stage[row]}{name}{placed.microbatch[row]}"
    return f"{_ARROW}{text}" if row in faults else text
