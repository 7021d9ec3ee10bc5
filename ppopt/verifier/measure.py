"""The figures of a schedule, recomputed from its operations alone, and the rules on them."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import isclose
from typing import Any, NamedTuple

import numpy as np

from ppopt.problem import exact
from ppopt.problem.arrays import Ints
from ppopt.problem.operation import AuxiliaryKind
from ppopt.verifier.rows import Rows, first_of_device, sum_safe
from ppopt.verifier.violation import Rule, Violation

ROUNDING = 1e-12
"""Difference allowed between floats of one exact ratio, computed in different ways."""
MAX_RATIO = 2**60
"""Upper bound on a meaningful ratio; larger whole numbers need not fit a float."""


@dataclass(frozen=True)
class Figures:
    """Figures of one schedule; times and memory in ticks, one entry per device in tuples."""

    makespan: int
    """End of the last operation, from time 0."""
    device_span: int
    """Longest time any one device takes from its first operation to its last."""
    busy: tuple[int, ...]
    """Time of compute per device, optimizer included; a pair that runs as one counts once."""
    peak_memory: tuple[int, ...]
    """Maximum live memory per device, static memory included."""

    def bubble_rate(self, objective: str = "makespan") -> Fraction:
        """1 - busy / (devices x makespan), or x device span (objective `device-span`)."""
        total = len(self.busy) * (self.makespan if objective == "makespan" else self.device_span)
        return 1 - Fraction(sum(self.busy), total) if total else Fraction(0)

    def bubble_overhead(self) -> Fraction:
        """Idle over busy device time, on makespan."""
        busy = sum(self.busy)
        return Fraction(len(self.busy) * self.makespan - busy, busy) if busy else Fraction(0)


def of_rows(sane: Rows, trace: MemoryTrace) -> Figures:
    """Compute the figures of rows that occupy a resource, and the peaks of their memory trace."""
    own = sane.take(~sane.sends)
    devices = own.pipeline.num_devices
    peaks = np.array(own.pipeline.ticks.static, dtype=object)
    if not len(own):
        return Figures(0, 0, (0,) * devices, tuple(peaks))
    first = first_of_device(own.device)
    present = own.device[first]
    busy = np.zeros(devices, dtype=object)
    computing = own.counted & (own.computes | (own.kind == AuxiliaryKind.OPTIMIZER))
    busy[present] = np.add.reduceat(sum_safe(np.where(computing, own.end - own.start, 0)), first)
    last = np.maximum.reduceat(own.end, first)
    changes = first_of_device(trace.device)
    holding = trace.device[changes]
    peaks[holding] = np.maximum(peaks[holding], np.maximum.reduceat(trace.level, changes))
    return Figures(
        makespan=max(0, int(last.max())),
        device_span=int((last - own.start[first]).max()),
        busy=tuple(int(time) for time in busy),
        peak_memory=tuple(int(peak) for peak in peaks),
    )


class MemoryTrace(NamedTuple):
    """Every change of memory, sorted by device, then time; at one instant ends before starts."""

    row: Ints
    """Row number of the operation."""
    device: Ints
    level: Any
    """Live memory of the device after the change, in ticks, static memory included."""
    before: Any
    """Live memory of the device before the change, in ticks."""


def memory_trace(sane: Rows) -> MemoryTrace:
    """Live memory of every device over time: allocated at starts, freed at ends."""
    allocates, frees = memory_of_rows(sane)
    change = np.stack((allocates, -frees), axis=1).reshape(-1)
    event = np.flatnonzero(change)
    row, at_end = event >> 1, event & 1
    device = sane.device[row]
    # an end is half an instant before the starts of its time
    moment = 2 * np.where(at_end, sane.end[row], sane.start[row]) + (1 - at_end)
    earlier = (device[1:] == device[:-1]) & (moment[1:] < moment[:-1])
    if (earlier | (device[1:] < device[:-1])).any():
        order = np.lexsort((moment, device))
        event, row, device = event[order], row[order], device[order]
    change = sum_safe(change[event])
    total = np.cumsum(change)
    first = first_of_device(device)
    static = np.array(sane.pipeline.ticks.static, dtype=np.int64)[device]
    on_previous_devices = np.repeat(
        total[first] - change[first], np.diff(np.append(first, len(row)))
    )
    level = static + (total - on_previous_devices)
    return MemoryTrace(row, device, level, level - change)


def memory_of_rows(sane: Rows) -> tuple[Ints, Ints]:
    """Memory that every row allocates at its start and frees at its end, in ticks."""
    costs, factors = sane.expected.costs, sane.pipeline.microbatch_memory
    if factors is None:
        allocates, frees = costs.memory[:, sane.kind, sane.stage]
        return allocates, frees
    different = sorted(set(factors))
    tables = np.array([costs.memory_at(sane.pipeline, factor) for factor in different])
    factor = np.array([different.index(factor) for factor in factors])[sane.microbatch]
    allocates, frees = tables[factor, :, sane.kind, sane.stage].T
    return allocates, frees


def over_limit(sane: Rows, trace: MemoryTrace) -> Iterator[Violation]:
    """Every instant at which the live memory of a device rises above its limit."""
    limits = sane.pipeline.ticks.limits
    if limits is None:
        return
    for device, static in enumerate(sane.pipeline.ticks.static):
        if static > limits[device]:
            message = f"{_above(sane, device, static, limits[device])}, by static memory alone"
            yield Violation(Rule.MEMORY, (), device, None, message)
    limit = np.array(limits, dtype=np.int64)[trace.device]
    for event in np.flatnonzero((trace.level > limit) & (trace.before <= limit)).tolist():
        row, device = int(trace.row[event]), int(trace.device[event])
        start, amounts = (
            int(sane.start[row]),
            _above(sane, device, trace.level[event], limit[event]),
        )
        message = f"{amounts}, from {sane.clock(start)} on, when {sane.name(row)} starts"
        yield Violation(Rule.MEMORY, sane.ops(row), device, start, message)


def _above(sane: Rows, device: int, live: int, limit: int) -> str:
    return f"device {device}: live memory {sane.amount(live)} above its limit {sane.amount(limit)}"


def wrong_claims(rows: Rows, figures: Figures, claims: Mapping[str, object]) -> Iterator[Violation]:
    """Every stated figure that is unknown, of the wrong type, or not the recomputed one."""
    objective = claims.get("objective", "makespan")
    if objective not in ("makespan", "device-span"):
        yield claim("objective", objective, "neither makespan nor device-span")
        objective = "makespan"
    formatters = {"makespan": rows.clock, "device_span": rows.clock, "busy": rows.clock}
    formatters["peak_memory"] = rows.amount
    for key, claimed in claims.items():
        if key in formatters:
            figure = getattr(figures, key)
            check = _per_device if isinstance(figure, tuple) else _whole
            yield from check(key, claimed, figure, formatters[key])
        elif key == "bubble_rate":
            yield from _rate(key, claimed, figures.bubble_rate(str(objective)))
        elif key == "bubble_overhead":
            yield from _rate(key, claimed, figures.bubble_overhead())
        elif key != "objective":
            yield claim(key, claimed, "not a figure that can be recomputed")


def claim(key: str, claimed: object, why: str, device: int | None = None) -> Violation:
    """The violation of a stated figure that is wrong, with the reason."""
    where = "" if device is None else f" of device {device}"
    message = f"{key}{where}: claimed {_short(claimed)}: {why}"
    return Violation(Rule.CLAIM, (), device, None, message)


def _short(claimed: object) -> str:
    """Text of a claim of any kind, on one line."""
    if isinstance(claimed, int) and abs(claimed) >= 2**64:
        return "an enormous number"
    return " ".join(reprlib.repr(claimed).split())


def _whole(
    key: str,
    claimed: object,
    figure: int,
    show: Callable[[int], str],
    device: int | None = None,
) -> Iterator[Violation]:
    if not isinstance(claimed, int) or isinstance(claimed, bool):
        yield claim(key, claimed, "not a whole number of ticks", device)
    elif claimed != figure:
        yield claim(key, claimed, f"{figure} ticks recomputed, that is {show(figure)}", device)


def _per_device(
    key: str, claimed: object, figure: tuple[int, ...], show: Callable[[int], str]
) -> Iterator[Violation]:
    if not isinstance(claimed, list | tuple) or len(claimed) != len(figure):
        yield claim(key, claimed, f"not a list of {len(figure)} numbers, one per device")
        return
    for device, (entry, recomputed) in enumerate(zip(claimed, figure, strict=True)):
        yield from _whole(key, entry, recomputed, show, device)


def _rate(key: str, claimed: object, figure: Fraction) -> Iterator[Violation]:
    if not isinstance(claimed, int | float) or isinstance(claimed, bool):
        yield claim(key, claimed, "not a number")
    elif not (
        abs(claimed) < MAX_RATIO and isclose(claimed, figure, rel_tol=ROUNDING, abs_tol=ROUNDING)
    ):
        yield claim(key, claimed, f"{exact.plain(figure)} recomputed")
