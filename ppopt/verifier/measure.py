"""The figures of a schedule, recomputed from its operations alone, and the rules on them."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isclose
from typing import Any, NamedTuple

import numpy as np

from ppopt.problem import exact
from ppopt.problem.operation import AuxiliaryKind, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.verifier.rows import Ints, Rows, first_of_device, scaled, sum_safe
from ppopt.verifier.violation import Rule, Violation
from ppopt.verifier.whole_backward import allocated_by_whole_backward, runs_whole_in_weight
from ppopt.verifier.work import Work, memory_changes

ROUNDING = 1e-12
"""Difference allowed between floats of one exact ratio, computed in different ways."""
MOST = 2**60
"""Bound on a ratio that makes sense; larger whole numbers need not fit a float."""


@dataclass(frozen=True)
class Figures:
    """Figures of one schedule; times and memory in ticks, one entry per device in tuples."""

    makespan: int
    """End of the last operation, from time 0."""
    device_span: int
    """Longest time any one device takes from its first operation to its last."""
    busy: tuple[int, ...]
    """Time that it computes, optimizer included; a pair that runs as one counts once."""
    peak_memory: tuple[int, ...]
    """Largest memory held at any instant, static memory included."""

    def bubble_rate(self, objective: str = "makespan") -> Fraction:
        """1 - busy / (devices x makespan), or x device span (objective `device-span`)."""
        total = len(self.busy) * (self.makespan if objective == "makespan" else self.device_span)
        return 1 - Fraction(sum(self.busy), total) if total else Fraction(0)

    def bubble_overhead(self) -> Fraction:
        """Idle over busy device time, on makespan."""
        busy = sum(self.busy)
        return Fraction(len(self.busy) * self.makespan - busy, busy) if busy else Fraction(0)


def of_rows(sane: Rows, trace: MemoryTrace, works: Sequence[Work]) -> Figures:
    """Compute the figures of rows that occupy a device, and of the memory that they hold.

    `works` are the operations around the microbatches.
    """
    devices = sane.pipeline.num_devices
    peaks = np.array(sane.pipeline.ticks.static, dtype=object)
    if not len(sane):
        return Figures(0, 0, (0,) * devices, tuple(peaks))
    first = first_of_device(sane.device)
    present = sane.device[first]
    busy = np.zeros(devices, dtype=object)
    taken = np.where(sane.counted, sane.end - sane.start, 0)
    busy[present] = np.add.reduceat(sum_safe(taken), first)
    begin = dict(zip(present.tolist(), sane.start[first].tolist(), strict=True))
    last = dict(zip(present.tolist(), np.maximum.reduceat(sane.end, first).tolist(), strict=True))
    for work in works:
        begin[work.device] = min(work.start, begin.get(work.device, work.start))
        last[work.device] = max(work.end, last.get(work.device, work.end))
        if work.kind is AuxiliaryKind.OPTIMIZER:
            busy[work.device] += work.end - work.start
    changes = first_of_device(trace.device)
    holding = trace.device[changes]
    peaks[holding] = np.maximum(peaks[holding], np.maximum.reduceat(trace.level, changes))
    return Figures(
        makespan=max(0, *last.values()),
        device_span=max(last[device] - begin[device] for device in last),
        busy=tuple(int(time) for time in busy),
        peak_memory=tuple(int(peak) for peak in peaks),
    )


class MemoryTrace(NamedTuple):
    """Every change of memory, sorted by device, then time, at one instant ends before starts."""

    row: Ints
    """Row number of the operation; those around the microbatches are numbered behind the rows."""
    device: Ints
    level: Any
    """Ticks held on its device from the change on, static memory included."""
    before: Any
    """Ticks held until then."""


def memory_trace(sane: Rows, works: Sequence[Work]) -> MemoryTrace:
    """Follow the memory of every device through time: taken at starts, given back at ends."""
    takes, gives = _memory_of_rows(sane)
    devices, starts, ends = sane.device, sane.start, sane.end
    if works:
        more = np.array([memory_changes(sane.pipeline, work) for work in works], dtype=np.int64)
        takes, gives = np.append(takes, more[:, 0]), np.append(gives, more[:, 1])
        places = np.array([(work.device, work.start, work.end) for work in works], dtype=np.int64)
        devices, starts, ends = (
            np.append(column, new)
            for column, new in zip((devices, starts, ends), places.T, strict=True)
        )
    change = np.stack((takes, -gives), axis=1).reshape(-1)
    event = np.flatnonzero(change)
    row, at_end = event >> 1, event & 1
    device = devices[row]
    moment = 2 * np.where(at_end, ends[row], starts[row]) + (1 - at_end)
    earlier = (device[1:] == device[:-1]) & (moment[1:] < moment[:-1])
    if (earlier | (device[1:] < device[:-1])).any():
        order = np.lexsort((moment, device))
        event, row, device = event[order], row[order], device[order]
    change = sum_safe(change[event])
    total = np.cumsum(change)
    first = first_of_device(device)
    static = np.array(sane.pipeline.ticks.static, dtype=np.int64)[device]
    others = np.repeat(total[first] - change[first], np.diff(np.append(first, len(row))))
    level = static + (total - others)
    return MemoryTrace(row, device, level, level - change)


def _memory_of_rows(sane: Rows) -> tuple[Ints, Ints]:
    """Memory taken at the start and given back at the end of every row, in ticks."""
    factors = sane.pipeline.microbatch_memory
    if factors is None:
        takes, gives = takes_and_gives(sane.pipeline, Fraction(1))
        return takes[sane.kind, sane.stage], gives[sane.kind, sane.stage]
    different = sorted(set(factors))
    tables = np.array([takes_and_gives(sane.pipeline, factor) for factor in different])
    factor = np.array([different.index(factor) for factor in factors])[sane.microbatch]
    takes, gives = tables[factor, :, sane.kind, sane.stage].T
    return takes, gives


def takes_and_gives(pipeline: Pipeline, factor: Fraction) -> tuple[Ints, Ints]:
    """Memory taken at the start and given back at the end, in ticks, indexed [kind, stage].

    `factor` multiplies the activation of the microbatch, the part that F keeps, the part that moves
    to the host and the change by B, but no workspace.

    F takes what it keeps of the activation; B takes the rest of it. B also takes its change of
    memory if that is positive, and gives it if it is negative. W gives what is left, so that all
    three leave nothing. BW gives what F keeps, and at its end what it takes
    (`ppopt.verifier.whole_backward`). Workspace is taken at the start of its operation and given
    back at the end. What moves to the host is in `Ticks` a workspace of F; here F keeps it.
    """
    ticks, costs = pipeline.ticks, pipeline.ticks.costs
    rows = (costs.activation, ticks.kept, costs.memory_b, costs.offload_memory)
    activation, kept, change, moved = (np.array(row, dtype=np.int64) for row in rows)
    workspace = np.array(ticks.workspace, dtype=np.int64)
    kept, workspace[OpKind.F] = kept + moved, workspace[OpKind.F] - moved
    activation, kept, change = (scaled(row, factor) for row in (activation, kept, change))
    missing, none = activation - kept, np.zeros_like(activation)
    workspace[OpKind.BW] = allocated_by_whole_backward(pipeline, factor)
    if runs_whole_in_weight(pipeline):
        workspace[OpKind.W, 0] = workspace[OpKind.BW, 0]
    takes = {OpKind.F: kept, OpKind.B: missing + np.maximum(change, 0)}
    gives = {OpKind.B: np.maximum(-change, 0), OpKind.W: activation + change, OpKind.BW: kept}
    return (
        np.array([takes.get(kind, none) + workspace[kind] for kind in OpKind]),
        np.array([gives.get(kind, none) + workspace[kind] for kind in OpKind]),
    )


def over_limit(sane: Rows, trace: MemoryTrace, works: Sequence[Work]) -> Iterator[Violation]:
    """Every instant at which a device comes to hold more than its limit."""
    limits = sane.pipeline.ticks.limits
    if limits is None:
        return
    for device, static in enumerate(sane.pipeline.ticks.static):
        if static > limits[device]:
            yield _over(sane, device, None, static, limits[device], works)
    limit = np.array(limits, dtype=np.int64)[trace.device]
    for event in np.flatnonzero((trace.level > limit) & (trace.before <= limit)).tolist():
        row, device = int(trace.row[event]), int(trace.device[event])
        yield _over(sane, device, row, trace.level[event], limits[device], works)


def _over(
    sane: Rows, device: int, row: int | None, held: int, limit: int, works: Sequence[Work]
) -> Violation:
    amounts = f"device {device} holds {sane.amount(held)}, above its limit {sane.amount(limit)}"
    if row is None:
        return Violation(Rule.MEMORY, (), device, None, f"{amounts}, by static memory alone")
    if row >= len(sane):
        work = works[row - len(sane)]
        message = f"{amounts}, from {sane.clock(work.start)} on, when {work.kind.name} starts"
        return Violation(Rule.MEMORY, (), device, work.start, message)
    op, start = sane.op(row), int(sane.start[row])
    message = f"{amounts}, from {sane.clock(start)} on, when {op} starts"
    return Violation(Rule.MEMORY, (op,), device, start, message)


def wrong_claims(rows: Rows, figures: Figures, claims: Mapping[str, object]) -> Iterator[Violation]:
    """Every stated figure that is unknown, of the wrong type, or not the recomputed one."""
    objective = claims.get("objective", "makespan")
    if objective not in ("makespan", "device-span"):
        yield claim("objective", objective, "neither makespan nor device-span")
        objective = "makespan"
    for key, claimed in claims.items():
        if key in ("makespan", "device_span"):
            yield from _whole(key, claimed, getattr(figures, key), rows.clock)
        elif key == "busy":
            yield from _per_device(key, claimed, figures.busy, rows.clock)
        elif key == "peak_memory":
            yield from _per_device(key, claimed, figures.peak_memory, rows.amount)
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
    elif not (abs(claimed) < MOST and isclose(claimed, figure, rel_tol=ROUNDING, abs_tol=ROUNDING)):
        yield claim(key, claimed, f"{exact.plain(figure)} recomputed")
