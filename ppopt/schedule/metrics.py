"""Figures of a schedule: makespan, device span, busy time and memory."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from ppopt.problem import units
from ppopt.problem.arrays import Ints
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.exact import plain
from ppopt.problem.instance import Instance
from ppopt.problem.objective import Objective
from ppopt.problem.operation import NUM_KINDS, AuxiliaryKind, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.auxiliary import AuxiliaryOperations, auxiliary_numbers
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
    """Time that it computes, optimizer included; an overlapped pair counts once."""
    first_ticks: tuple[int, ...]
    """Start of the first operation."""
    last_ticks: tuple[int, ...]
    """End of the last operation."""
    peak_memory_ticks: tuple[int, ...]
    """Largest memory held at any instant, static memory included."""
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
        """Largest memory of each device at any instant, static memory included."""
        unit = self.memory_ticks_per_unit
        return tuple(plain(Fraction(peak, unit)) for peak in self.peak_memory_ticks)

    def value(self, objective: Objective) -> int | float:
        """Makespan or device span, as the objective says."""
        return self._time(self.value_ticks(objective))

    def value_ticks(self, objective: Objective) -> int:
        """The same in ticks."""
        makespan = objective is Objective.MAKESPAN
        return self.makespan_ticks if makespan else self.device_span_ticks

    def bubble_rate(self, objective: Objective) -> Fraction:
        """Idle share of the device time: 1 - busy / (devices x value)."""
        total = len(self.busy_ticks) * self.value_ticks(objective)
        return 1 - Fraction(sum(self.busy_ticks), total) if total else Fraction(0)

    @property
    def bubble_overhead(self) -> Fraction:
        """Idle over busy device time, on makespan (Megatron's t_pb / t_id)."""
        busy = sum(self.busy_ticks)
        idle = len(self.busy_ticks) * self.makespan_ticks - busy
        return Fraction(idle, busy) if busy else Fraction(0)

    def __repr__(self) -> str:
        peaks = " ".join(map(str, self.peak_memory))
        spans = f"makespan {self.makespan}, device span {self.device_span}"
        return f"Metrics({spans}, peak memory {peaks})"

    def _time(self, ticks: int) -> int | float:
        return plain(Fraction(ticks, self.ticks_per_unit))


def metrics(schedule: Timetable) -> Metrics:
    """Compute all figures of a complete schedule; every device has at least one operation."""
    devices = schedule.pipeline.num_devices
    duration = schedule.end - schedule.start
    heads = np.searchsorted(schedule.device, np.arange(devices))
    first = np.minimum.reduceat(schedule.start, heads)
    last = np.maximum.reduceat(schedule.end, heads)
    busy = np.zeros(devices, dtype=np.int64)
    np.add.at(busy, schedule.device, np.where(schedule.seconds, 0, duration))
    _include_auxiliary(schedule.auxiliary, first, last, busy)
    memory, around = memory_of_compute(schedule), memory_of_auxiliary(schedule)
    return Metrics(
        makespan_ticks=int(last.max()),
        device_span_ticks=int((last - first).max()),
        busy_ticks=tuple(busy.tolist()),
        first_ticks=tuple(first.tolist()),
        last_ticks=tuple(last.tolist()),
        peak_memory_ticks=tuple(
            int(_profile(schedule, device, memory, around).level.max()) for device in range(devices)
        ),
        ticks_per_unit=schedule.pipeline.ticks.per_unit,
        memory_ticks_per_unit=schedule.pipeline.ticks.memory_per_unit,
    )


def _include_auxiliary(others: AuxiliaryOperations, first: Ints, last: Ints, busy: Ints) -> None:
    """Widen the time of devices by their auxiliary operations; optimizers compute."""
    np.minimum.at(first, others.device, others.start)
    np.maximum.at(last, others.device, others.end)
    computed = others.kind == AuxiliaryKind.OPTIMIZER
    np.add.at(busy, others.device[computed], (others.end - others.start)[computed])


class Throughput(NamedTuple):
    """What an iteration yields per second; None if the pipeline does not say enough."""

    tokens_per_second: Fraction | None
    """Of all devices together."""
    mfu: Fraction | None
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
    per_second = pipeline.batches / seconds
    tokens, flops = pipeline.tokens_per_microbatch, pipeline.flops_per_microbatch
    peak = pipeline.peak_flops
    return Throughput(
        None if tokens is None else tokens * per_second,
        None if None in (flops, peak) else flops * per_second / (peak * sum(pipeline.device_speed)),
    )


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


Memory = tuple[Ints, Ints]
"""What operations take at their start and give at their end, by row, in ticks of memory."""


def memory_profile(schedule: Timetable, device: int) -> MemoryProfile:
    """Memory of a device: operations take at their start and give at their end.

    At one instant ends come before starts.
    """
    return _profile(schedule, device, memory_of_compute(schedule), memory_of_auxiliary(schedule))


def memory_of_compute(schedule: Timetable) -> Memory:
    """Memory of the compute operations of a schedule."""
    pipeline, instance = schedule.pipeline, _instance(schedule)
    codes = pipeline.code(schedule.kind, schedule.stage, schedule.microbatch, schedule.slice)
    in_pairs = instance.pair_workspaces[codes]
    return instance.allocations[codes] + in_pairs, instance.frees[codes] + in_pairs


def _instance(schedule: Timetable) -> Instance:
    """The instance of the fewest modes that has the operations of a schedule."""
    pipeline, kinds = schedule.pipeline, np.bincount(schedule.kind, minlength=NUM_KINDS)
    uniform = not (kinds[OpKind.B] and kinds[OpKind.BW])
    kind = BackwardKind.uniform(fused=kinds[OpKind.BW] > 0) if uniform else BackwardKind.MIXED
    return Instance.of(pipeline, kind, all_resources=pipeline.has_auxiliary)


def memory_of(operations: Operations) -> Memory:
    """Memory of all operations of a schedule."""
    pipeline, kinds = operations.pipeline, set(np.unique(operations.kind).tolist())
    mixed = {OpKind.B, OpKind.BW} <= kinds
    kind = BackwardKind.MIXED if mixed else BackwardKind.uniform(fused=OpKind.BW in kinds)
    instance = Instance.of(pipeline, kind, all_resources=max(kinds, default=0) >= NUM_KINDS)
    numbers = operations.numbers
    in_pairs = instance.pair_workspaces[numbers]
    return instance.allocations[numbers] + in_pairs, instance.frees[numbers] + in_pairs


def memory_of_operations(schedule: Timetable) -> tuple[Ints, Ints]:
    """Memory of the device at the start of every operation and after it, in ticks.

    A pair counts as one.
    """
    pipeline = schedule.pipeline
    takes, gives = memory_of_compute(schedule)
    second = np.flatnonzero(schedule.seconds)
    total = np.append(0, np.cumsum(takes - gives))
    first = np.searchsorted(schedule.device, np.arange(pipeline.num_devices))
    base = np.array(pipeline.ticks.static) - total[first]
    after = base[schedule.device] + total[1:]
    after[second - 1] = after[second]
    gives[second] += gives[second - 1]
    gives[second - 1] = gives[second]
    begun, done = _held_besides(schedule)
    return after + gives + begun, after + done


def _held_besides(schedule: Timetable) -> tuple[Ints, Ints]:
    """Memory by auxiliary operations at the start of every operation, and after it, in ticks.

    At one instant, what ends comes before what starts.
    """
    given = schedule.auxiliary
    begun, done = np.zeros((2, len(schedule)), dtype=np.int64)
    for device in np.unique(given.device).tolist():
        mine, here = given.device == device, schedule.device == device
        taken, freed = (column[mine] for column in memory_of_auxiliary(schedule))
        start, end = schedule.start[here], schedule.end[here]
        begun[here] = _sum_until(given.start[mine], taken, start, "right")
        begun[here] -= _sum_until(given.end[mine], freed, start, "right")
        done[here] = _sum_until(given.start[mine], taken, end, "left")
        done[here] -= _sum_until(given.end[mine], freed, end, "right")
    return begun, done


def _sum_until(time: Ints, amount: Ints, until: Ints, side: Literal["left", "right"]) -> Ints:
    """Sum of the amounts before every instant; `right`: and at it."""
    order = np.argsort(time, kind="stable")
    total = np.append(0, np.cumsum(amount[order]))
    found: Ints = total[np.searchsorted(time[order], until, side=side)]
    return found


def memory_of_auxiliary(schedule: Timetable) -> Memory:
    """Memory of the auxiliary operations of a schedule."""
    given = schedule.auxiliary
    if not len(given):
        return given.kind, given.kind
    instance, codes = _instance(schedule), auxiliary_numbers(schedule.pipeline, given)
    return instance.allocations[codes], instance.frees[codes]


def _profile(schedule: Timetable, device: int, compute: Memory, around: Memory) -> MemoryProfile:
    """Memory of a device, from that of all operations, the auxiliary ones (`around`) among them."""
    low, high = np.searchsorted(schedule.device, [device, device + 1])
    columns = (*compute, schedule.start, schedule.end)
    takes, gives, start, end = (column[low:high] for column in columns)
    if len(schedule.auxiliary):
        here = schedule.auxiliary.device == device
        taken, given = (column[here] for column in around)
        takes, gives = np.append(takes, taken), np.append(gives, given)
        start = np.append(start, schedule.auxiliary.start[here])
        end = np.append(end, schedule.auxiliary.end[here])
    at_end = (gives > 0) | (takes == 0)
    moment = np.concatenate([[0], start[takes > 0], end[at_end]])
    change = np.concatenate([[0], takes[takes > 0], -gives[at_end]])
    time, instant = np.unique(moment, return_inverse=True)
    delta = np.zeros(len(time), dtype=np.int64)
    np.add.at(delta, instant, change)
    return MemoryProfile(time, np.cumsum(delta) + schedule.pipeline.ticks.static[device])
