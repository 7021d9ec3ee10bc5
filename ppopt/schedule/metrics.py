"""Figures of a schedule: makespan, device span, busy time and memory."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from ppopt.problem import units
from ppopt.problem.arrays import Ints
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.exact import ratio
from ppopt.problem.instance import Instance
from ppopt.problem.kinds import ResourceKind
from ppopt.problem.objective import Objective
from ppopt.problem.operation import KINDS, NUM_KINDS, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.operations import Operations
from ppopt.schedule.timetable import Timetable


class Metrics(NamedTuple):
    """Figures of one schedule, one entry per device in tuples.

    Exact in ticks, where names say so. Otherwise in the user's unit, as in JSON: an int where the
    figure is whole, else a float.
    """

    makespan_ticks: int
    device_span_ticks: int
    busy_ticks: tuple[int, ...]
    """Time of compute, optimizer included; an overlapped pair counts once."""
    first_ticks: tuple[int, ...]
    """Start of the first operation."""
    peak_memory_ticks: tuple[int, ...]
    """Peak memory, static memory included."""
    ticks_per_unit: int
    """Ticks of time in the user's unit."""
    memory_ticks_per_unit: int

    @property
    def makespan(self) -> int | float:
        """End of the last operation; the first starts at 0."""
        return self._time(self.makespan_ticks)

    @property
    def device_span(self) -> int | float:
        """Longest time that a device takes from its first operation to its last."""
        return self._time(self.device_span_ticks)

    @property
    def busy(self) -> tuple[int | float, ...]:
        """Time that each device computes."""
        return tuple(map(self._time, self.busy_ticks))

    @property
    def peak_memory(self) -> tuple[int | float, ...]:
        """Peak memory of each device, static memory included."""
        unit = self.memory_ticks_per_unit
        return tuple(ratio(peak, unit) for peak in self.peak_memory_ticks)

    def value(self, objective: Objective) -> int | float:
        """Makespan or device span, as the objective says."""
        return self._time(self.value_ticks(objective))

    def value_ticks(self, objective: Objective) -> int:
        """The same in ticks."""
        makespan = objective is Objective.MAKESPAN
        return self.makespan_ticks if makespan else self.device_span_ticks

    def bubble_rate(self, objective: Objective) -> int | float:
        """Idle share of the device time: 1 - busy / (devices x value)."""
        total = len(self.busy_ticks) * self.value_ticks(objective)
        return ratio(total - sum(self.busy_ticks), total)

    @property
    def bubble_overhead(self) -> int | float:
        """Idle over busy device time, on makespan (Megatron's t_pb / t_id)."""
        busy = sum(self.busy_ticks)
        return ratio(len(self.busy_ticks) * self.makespan_ticks - busy, busy)

    def __repr__(self) -> str:
        peaks = " ".join(map(str, self.peak_memory))
        spans = f"makespan {self.makespan}, device span {self.device_span}"
        return f"Metrics({spans}, peak memory {peaks})"

    def _time(self, ticks: int) -> int | float:
        return ratio(ticks, self.ticks_per_unit)


def metrics(schedule: Timetable) -> Metrics:
    """Compute all figures of a complete schedule; every device has at least one operation."""
    table = _of_devices(schedule)
    devices, static = schedule.pipeline.num_devices, schedule.pipeline.ticks.static
    duration = np.where(table.seconds | ~table.on(ResourceKind.COMPUTE), 0, table.end - table.start)
    memory = memory_of(table)
    bounds = np.searchsorted(table.device, np.arange(devices + 1))
    heads = bounds[:-1]
    first = np.minimum.reduceat(table.start, heads)
    last = np.maximum.reduceat(table.end, heads)
    peaks = (
        int(_profile(table, memory, static[device], slice(low, high)).level.max())
        for device, (low, high) in enumerate(pairwise(bounds.tolist()))
    )
    return Metrics(
        makespan_ticks=int(last.max()),
        device_span_ticks=int((last - first).max()),
        busy_ticks=tuple(np.add.reduceat(duration, heads).tolist()),
        first_ticks=tuple(first.tolist()),
        peak_memory_ticks=tuple(peaks),
        ticks_per_unit=schedule.pipeline.ticks.per_unit,
        memory_ticks_per_unit=schedule.pipeline.ticks.memory_per_unit,
    )


def _of_devices(schedule: Timetable) -> Operations:
    """Operations of devices, without transfers between them, sorted by device."""
    table = schedule.operations
    if len(table) == len(schedule):
        return table
    table = table.where(~table.on(ResourceKind.LINK))
    return table.where(np.argsort(table.device, kind="stable"))


class Throughput(NamedTuple):
    """Throughput per second; None if the pipeline does not state enough."""

    tokens_per_second: float | None
    """Of all devices together."""
    mfu: float | None
    """Model FLOPs utilisation: FLOPs that the model needs, over what the devices could do in that
    time (PaLM, arXiv 2204.02311, appendix B)."""


def throughput(pipeline: Pipeline, value: int) -> Throughput:
    """Throughput of iterations that take `value` ticks each, above 0.

    Tokens per second need `tokens_per_microbatch`; MFU needs `flops_per_microbatch` and
    `peak_flops` (of a device of speed 1); both need the unit of time.
    """
    if pipeline.time_unit is None:
        return Throughput(None, None)
    seconds = pipeline.ticks.time(value) * units.SCALES["time"][pipeline.time_unit]
    tokens, flops = pipeline.tokens_per_microbatch, pipeline.flops_per_microbatch
    peak = pipeline.peak_flops
    return Throughput(
        None if tokens is None else ratio(tokens * pipeline.batches, seconds),
        None
        if None in (flops, peak)
        else ratio(flops * pipeline.batches, seconds * peak * sum(pipeline.device_speed)),
    )


def communication(pipeline: Pipeline) -> int:
    """Number of activations and gradients that devices send each other in a step.

    One of each per microbatch and boundary between stages on different devices; the unit is the
    tensor of one microbatch at such a boundary.
    """
    crossings = sum(
        source != target for hosts in pipeline.hosts for source, target in pairwise(hosts)
    )
    return 2 * crossings * pipeline.batches // pipeline.routes


class MemoryProfile(NamedTuple):
    """Memory of one device over time, a step function: `level[i]` holds from `time[i]` on."""

    time: Ints
    """Ticks of time, strictly ascending, first 0."""
    level: Ints
    """Ticks of memory, static memory included."""


Memory = tuple[Ints, Ints]
"""Memory that operations allocate at their start and free at their end, by row, in ticks."""


def memory_profile(schedule: Timetable, device: int) -> MemoryProfile:
    """Memory of a device: operations allocate at their start and free at their end.

    At the same instant ends come before starts.
    """
    table = _of_devices(schedule)
    low, high = np.searchsorted(table.device, [device, device + 1]).tolist()
    static = schedule.pipeline.ticks.static[device]
    return _profile(table, memory_of(table), static, slice(low, high))


def memory_of(operations: Operations) -> Memory:
    """Memory of operations of a schedule, by the instance of the fewest modes that has them."""
    pipeline, kinds = operations.pipeline, np.bincount(operations.kind, minlength=KINDS)
    uniform = not (kinds[OpKind.B] and kinds[OpKind.BW])
    kind = BackwardKind.uniform(fused=kinds[OpKind.BW] > 0) if uniform else BackwardKind.MIXED
    whole = pipeline.has_auxiliary_operations or bool(kinds[NUM_KINDS:].any())
    instance, numbers = Instance.of(pipeline, kind, all_resources=whole), operations.numbers
    in_pairs = instance.pair_workspaces[numbers]
    return instance.allocations[numbers] + in_pairs, instance.frees[numbers] + in_pairs


def memory_of_operations(schedule: Timetable) -> tuple[Ints, Ints]:
    """Memory of the device at the start of every compute of a microbatch and after it, in ticks.

    A pair counts as one.
    """
    pipeline, computed = schedule.pipeline, schedule.compute
    allocated, freed = memory_of(computed)
    second = np.flatnonzero(computed.seconds)
    total = np.append(0, np.cumsum(allocated - freed))
    first = np.searchsorted(computed.device, np.arange(pipeline.num_devices))
    base = np.array(pipeline.ticks.static) - total[first]
    after = base[computed.device] + total[1:]
    after[second - 1] = after[second]
    freed[second] += freed[second - 1]
    freed[second - 1] = freed[second]
    begun, done = _noncompute_memory(schedule)
    return after + freed + begun, after + done


def _noncompute_memory(schedule: Timetable) -> tuple[Ints, Ints]:
    """Memory of all but compute of microbatches at the start of every compute, and after it.

    In ticks. At the same instant, ends come before starts.
    """
    table, computed = _of_devices(schedule), schedule.compute
    noncompute, (allocated, freed) = table.where(~table.computed), memory_of(table)
    allocated, freed = (amount[~table.computed] for amount in (allocated, freed))
    begun, done = np.zeros((2, len(computed)), dtype=np.int64)
    for device in np.unique(noncompute.device).tolist():
        own, computes = noncompute.device == device, computed.device == device
        start, end = noncompute.start[own], noncompute.end[own]
        began, ended = computed.start[computes], computed.end[computes]
        begun[computes] = _sum_until(start, allocated[own], began, "right")
        begun[computes] -= _sum_until(end, freed[own], began, "right")
        done[computes] = _sum_until(start, allocated[own], ended, "left")
        done[computes] -= _sum_until(end, freed[own], ended, "right")
    return begun, done


def _sum_until(time: Ints, amount: Ints, until: Ints, side: Literal["left", "right"]) -> Ints:
    """Sum of the amounts before every instant; `right`: and at it."""
    order = np.argsort(time, kind="stable")
    total = np.append(0, np.cumsum(amount[order]))
    return np.asarray(total[np.searchsorted(time[order], until, side=side)])


def _profile(table: Operations, memory: Memory, static: int, rows: slice) -> MemoryProfile:
    """Memory of a device with these rows."""
    allocated, freed = (amount[rows] for amount in memory)
    at_start, at_end = allocated > 0, (freed > 0) | (allocated == 0)
    moment = np.concatenate([[0], table.start[rows][at_start], table.end[rows][at_end]])
    change = np.concatenate([[0], allocated[at_start], -freed[at_end]])
    time, instant = np.unique(moment, return_inverse=True)
    delta = np.zeros(len(time), dtype=np.int64)
    np.add.at(delta, instant, change)
    return MemoryProfile(time, np.cumsum(delta) + static)
