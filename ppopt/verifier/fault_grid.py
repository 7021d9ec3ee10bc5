"""A drawing of the faults: the order of every device side by side, an arrow at each fault."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.operation import KINDS, NUM_KINDS, Op, OpKind
from ppopt.verifier.rows import Rows
from ppopt.verifier.violation import Violation

MAX_STEPS = 16
MAX_DEVICES = 8
"""Size of the grid around the first fault; a larger schedule is cut."""
_ARROW = "-> "
Mark = tuple[int | None, int | None, tuple[Op, ...]]
"""Device, time in ticks and operation of a fault; no operation if it cannot be named."""


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
    visible_devices = _window(device, size, MAX_DEVICES)
    visible_steps = _window(step, steps, MAX_STEPS)
    faults = {_mark(violation) for violation in violations}
    lines = _cells(placed, bounds, visible_steps, visible_devices, faults)
    if len(visible_steps) < steps or len(visible_devices) < size:
        cut = (
            _describe_range("steps", visible_steps, steps),
            _describe_range("devices", visible_devices, size),
        )
        lines.insert(0, ", ".join(cut))
    return "\n".join(lines)


def _mark(violation: Violation) -> Mark:
    return violation.device, violation.time, violation.ops[:1]


def _mark_of_row(placed: Rows, row: int) -> Mark:
    op = (placed.op(row),) if placed.named[row] else ()
    return int(placed.device[row]), int(placed.start[row]), op


def _first_fault(placed: Rows, bounds: Ints, violations: Sequence[Violation]) -> tuple[int, int]:
    """Device and step of the first fault that has both; the first operation if none has."""
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


def _window(middle: int, size: int, limit: int) -> range:
    low = max(0, min(middle - limit // 2, size - limit))
    return range(low, min(size, low + limit))


def _describe_range(what: str, visible: range, size: int) -> str:
    return f"{what} {visible.start} to {visible.stop - 1} of 0 to {size - 1}"


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
