"""A drawing of the faults: the order of every device side by side, an arrow at each fault."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.operation import KINDS, NUM_KINDS, Op, OpKind
from ppopt.verifier.rows import Rows
from ppopt.verifier.violation import Violation

MOST_STEPS = 16
MAX_DEVICES = 8
"""What the grid shows around the first fault; a schedule that is larger is cut."""
_ARROW = "-> "
Mark = tuple[int | None, int | None, tuple[Op, ...]]
"""Device, time in ticks and operation of a fault; no operation where it cannot be named."""


def grid(rows: Rows, violations: Sequence[Violation]) -> str:
    """Draw one column per device and one line per step: its k-th operation, sorted by start.

    Operations that a violation names as faulty carry an arrow; those that cannot be named are
    shown as ?.
    """
    computed = (rows.kind < NUM_KINDS) | (rows.kind >= KINDS)
    placed = rows.take(rows.placed & computed)
    size = placed.pipeline.num_devices
    bounds = np.searchsorted(placed.device, np.arange(size + 1))
    steps = int(np.diff(bounds).max())
    device, step = _first_fault(placed, bounds, violations)
    shown_devices = _window(device, size, MAX_DEVICES)
    shown_steps = _window(step, steps, MOST_STEPS)
    faults = {_mark(violation) for violation in violations}
    lines = _cells(placed, bounds, shown_steps, shown_devices, faults)
    if len(shown_steps) < steps or len(shown_devices) < size:
        cut = (_part("steps", shown_steps, steps), _part("devices", shown_devices, size))
        lines.insert(0, ", ".join(cut))
    return "\n".join(lines)


def _mark(violation: Violation) -> Mark:
    return violation.device, violation.time, violation.ops[:1]


def _mark_of_row(placed: Rows, row: int) -> Mark:
    op = (placed.op(row),) if placed.named[row] else ()
    return int(placed.device[row]), int(placed.start[row]), op


def _first_fault(placed: Rows, bounds: Ints, violations: Sequence[Violation]) -> tuple[int, int]:
    """Device and step of the first fault that has a place; the first operation if none has."""
    for violation in violations:
        device, time = violation.device, violation.time
        if device is None or time is None or not 0 <= device < len(bounds) - 1:
            continue
        low, high = int(bounds[device]), int(bounds[device + 1])
        row = low + int(np.searchsorted(placed.start[low:high], time))
        while row < high and placed.start[row] == time:
            if _mark_of_row(placed, row) == _mark(violation):
                return device, row - low
            row += 1
    return 0, 0


def _window(middle: int, size: int, most: int) -> range:
    low = max(0, min(middle - most // 2, size - most))
    return range(low, min(size, low + most))


def _part(what: str, shown: range, size: int) -> str:
    return f"{what} {shown.start} to {shown.stop - 1} of 0 to {size - 1}"


def _cells(
    placed: Rows, bounds: Ints, steps: range, devices: range, faults: set[Mark]
) -> list[str]:
    table = [["", *(f"device {device}" for device in devices)]]
    for step in steps:
        line = [f"step {step}"]
        for device in devices:
            row = int(bounds[device]) + step
            line.append(_cell(placed, row, faults) if row < bounds[device + 1] else "")
        table.append(line)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(str.rjust, line, widths)).rstrip() for line in table]


def _cell(placed: Rows, row: int, faults: set[Mark]) -> str:
    kind = int(placed.kind[row])
    name = OpKind(kind).name if kind in tuple(OpKind) else "?"
    text = f"{placed.stage[row]}{name}{placed.microbatch[row]}"
    return f"{_ARROW}{text}" if _mark_of_row(placed, row) in faults else text
