"""Figures of a schedule: the one place that computes what is reported."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.objective import Objective
from ppopt.problem.operation import NUM_KINDS, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.timetable import Timetable


class Metrics(NamedTuple):
    """Figures of one schedule; times and memory in ticks, one entry per device in tuples."""

    makespan: int
    device_span: int
    busy: tuple[int, ...]
    """Time in operations; an overlapped pair counts once."""
    first: tuple[int, ...]
    """Start of the first operation."""
    last: tuple[int, ...]
    """End of the last operation."""
    peak_memory: tuple[int, ...]
    """Largest memory held at any instant, static memory included."""

    def value(self, objective: Objective) -> int:
        """The figure that the objective makes small, in ticks."""
        return self.makespan if objective is Objective.MAKESPAN else self.device_span

    def bubble_rate(self, objective: Objective) -> Fraction:
        """Idle share of the device time: 1 - busy / (devices x value)."""
        total = len(self.busy) * self.value(objective)
        return 1 - Fraction(sum(self.busy), total) if total else Fraction(0)

    @property
    def bubble_overhead(self) -> Fraction:
        """Idle over busy device time, on makespan (Megatron's t_pb / t_id)."""
        busy = sum(self.busy)
        return Fraction(len(self.busy) * self.makespan - busy, busy) if busy else Fraction(0)


def metrics(schedule: Timetable) -> Metrics:
    """Compute every figure of a schedule that is complete (each device has an operation)."""
    devices = schedule.pipeline.num_devices
    duration = schedule.end - schedule.start
    first = _per_device(np.minimum, schedule.start, schedule)
    last = _per_device(np.maximum, schedule.end, schedule)
    busy = np.zeros(devices, dtype=np.int64)
    np.add.at(busy, schedule.device, np.where(schedule.seconds, 0, duration))
    return Metrics(
        makespan=int(last.max()),
        device_span=int((last - first).max()),
        busy=tuple(busy.tolist()),
        first=tuple(first.tolist()),
        last=tuple(last.tolist()),
        peak_memory=tuple(
            int(memory_profile(schedule, device).level.max()) for device in range(devices)
        ),
    )


def _per_device(pick: Callable[..., Ints] | np.ufunc, values: Ints, schedule: Timetable) -> Ints:
    starts = np.searchsorted(schedule.device, np.arange(schedule.pipeline.num_devices))
    return np.asarray(pick.reduceat(values, starts))  # type: ignore[union-attr]


def communication(pipeline: Pipeline) -> int:
    """Activations and gradients that devices send each other in an iteration.

    One of each per microbatch and boundary between stages on different devices; the unit is the
    tensor of one microbatch at such a boundary.
    """
    crossings = sum(here != there for hosts in pipeline.hosts for here, there in pairwise(hosts))
    return 2 * crossings * pipeline.batches // pipeline.routes


class MemoryProfile(NamedTuple):
    """Memory of one device over time, a step function: `level[i]` holds from `time[i]` on."""

    time: Ints
    """Ticks of time, strictly ascending, first 0."""
    level: Ints
    """Ticks of memory, static memory included."""


def memory_profile(schedule: Timetable, device: int) -> MemoryProfile:
    """Memory of a device: increases at the start of an operation, decreases at its end."""
    low, high = np.searchsorted(schedule.device, [device, device + 1])
    here = slice(int(low), int(high))
    change = memory_changes(schedule.pipeline)[schedule.kind[here], schedule.stage[here]]
    moment = np.where(change > 0, schedule.start[here], schedule.end[here])
    time, group = np.unique(np.append(moment, 0), return_inverse=True)
    delta = np.zeros(len(time), dtype=np.int64)
    np.add.at(delta, group[:-1], change)
    return MemoryProfile(time, np.cumsum(delta) + schedule.pipeline.ticks.static[device])


def memory_changes(pipeline: Pipeline) -> Ints:
    """Signed change of memory in ticks, indexed [kind, stage]."""
    ticks = pipeline.ticks
    return np.array(
        [
            [ticks.memory_change(OpKind(kind), stage) for stage in range(pipeline.num_stages)]
            for kind in range(NUM_KINDS)
        ],
        dtype=np.int64,
    )
