"""Timing of a fixed order: earliest starts by longest path through the precedence constraints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ppopt.errors import DeadlockError, InputError
from ppopt.problem.arrays import Ints
from ppopt.problem.instance import Constraints, data_flow, durations
from ppopt.problem.objective import Objective
from ppopt.problem.operation import Op
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.orders import Orders, codes, overlapped_pairs, split_of
from ppopt.schedule.origin import Origin
from ppopt.schedule.schedule import Schedule, split_codes
from ppopt.schedule.timetable import ALONE

FREE = -1


@dataclass(frozen=True)
class Network:
    """An order per device with its constraints, cut into steps.

    A step waits for at most one step of another device and then runs its operations back to back.
    An operation that waits for several others is preceded by steps without operations. Operations
    are numbered by their position in the concatenated orders, where the two of an overlapped pair
    share one position; steps are numbered in the same sequence.

    The idle time of a step is the time that its device has been idle before its operations: their
    start less the work done before. It never decreases along a device, and step s satisfies
    idle[s] >= idle[needed[s]] + delay[s].
    """

    pipeline: Pipeline
    ops: Ints
    """Number of every operation, by position; of a pair, F comes first."""
    place: Ints
    """Position of every operation."""
    duration: Ints
    """Ticks of the operation, or of the pair, at each position."""
    work: Ints
    """Ticks of the device's operations up to each position, that one included."""
    bounds: Ints
    """First step of every device, and the end."""
    first: Ints
    """First position of every step, and the end."""
    before: Ints
    """Position of the operation that each step waits for; FREE: none."""
    needed: Ints
    """Step that holds that operation."""
    delay: Ints
    """Least difference, in ticks, between the idle times of a step and of the needed one."""

    @cached_property
    def host(self) -> list[int]:
        """Device of every step."""
        host: list[int] = _numbered(self.bounds).tolist()
        return host

    @property
    def device(self) -> Ints:
        """Device of every position."""
        return _numbered(self.first[self.bounds])

    def program(self, device: int) -> Iterator[tuple[int, int, int]]:
        """Number, needed step and delay of every step of a device."""
        low, high = self.bounds[device : device + 2].tolist()
        columns = (column[low:high].tolist() for column in (self.needed, self.delay))
        return zip(range(low, high), *columns, strict=True)

    def ends(self, idle: Ints) -> Ints:
        """End of every position, in ticks, from the idle time of every step."""
        return np.repeat(idle, np.diff(self.first)) + self.work

    def op(self, position: int) -> Op:
        """Operation at a position, of a pair the F."""
        return self.pipeline.op(self.ops[np.searchsorted(self.place, position)])


def _numbered(bounds: Ints) -> Ints:
    """Which of the intervals between the bounds holds each number."""
    return np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))


def network(pipeline: Pipeline, orders: Orders) -> Network:
    """Join orders and data flow; raises InputError where the orders are not complete."""
    if len(orders) != pipeline.num_devices:
        raise InputError(f"{len(orders)} orders for {pipeline.num_devices} devices; give one each")
    flow = data_flow(pipeline, split_of(pipeline, orders))
    pairs = overlapped_pairs(pipeline, orders)
    listed = np.concatenate(list(orders))
    ops, place = codes(listed), np.cumsum(listed >= 0) - 1
    second = np.flatnonzero(listed < 0)
    ops[second - 1], ops[second] = pairs.T
    duration = durations(pipeline)[ops[listed >= 0]]
    duration[place[second]] = [pair_time(pipeline, *both) for both in pairs.tolist()]
    ends = np.cumsum([0, *map(len, orders)])
    starts = np.append(0, np.cumsum(listed >= 0))[ends]
    position = np.empty(pipeline.num_codes, dtype=np.int64)
    position[ops] = place
    return _cut(pipeline, ops, place, duration, starts, _waits(position, starts, flow))


def pair_time(pipeline: Pipeline, forward: int, backward: int) -> int:
    """Time of two operation numbers run as one, in ticks."""
    one, other = pipeline.op(forward), pipeline.op(backward)
    return pipeline.ticks.pair_time(one.stage, other.kind, other.stage)


def _waits(position: Ints, starts: Ints, flow: Constraints) -> Constraints:
    """The data flow that the orders do not imply, by position, sorted by `after`."""
    device = _numbered(starts)
    before, after = position[flow.before], position[flow.after]
    implied = (device[before] == device[after]) & (before < after) & (flow.lag == 0)
    kept = np.flatnonzero(~implied)
    kept = kept[np.argsort(after[kept], kind="stable")]
    return Constraints(before[kept], after[kept], flow.lag[kept])


def _cut(
    pipeline: Pipeline, ops: Ints, place: Ints, duration: Ints, starts: Ints, waits: Constraints
) -> Network:
    """Begin a step at the front of every device and at every operation that waits."""
    heads = np.searchsorted(waits.after, starts[:-1])
    first = np.append(np.insert(waits.after, heads, starts[:-1]), len(duration))
    before = np.insert(waits.before, heads, FREE)
    bounds = np.append(heads + np.arange(len(heads)), len(before))
    total = np.append(0, np.cumsum(duration))
    work = total[1:] - np.repeat(total[starts[:-1]], np.diff(starts))
    delay = work[waits.before] + waits.lag - work[waits.after] + duration[waits.after]
    needed = np.where(before == FREE, FREE, _numbered(first)[before])
    delay = np.insert(delay, heads, 0)
    return Network(pipeline, ops, place, duration, work, bounds, first, before, needed, delay)


def run(net: Network, release: Sequence[int] | None = None) -> Ints:
    """Earliest end of every position in ticks.

    Device d starts at `release[d]` or later (default 0). Demand-driven longest path: a device
    runs until it waits for another one, which then runs; linear in operations. Raises
    DeadlockError, naming the cycle, when the constraints hold one.
    """
    count = len(net.bounds) - 1
    idle: list[int | None] = [None] * len(net.host)
    idle.append(0)  # at FREE
    released = [0] * count if release is None else release
    devices = [_device(net.program(device), released[device], idle) for device in range(count)]
    _run_all(net, devices, idle)
    return net.ends(np.array(idle[:FREE], dtype=np.int64))


def _device(program: Iterator[tuple[int, int, int]], so_far: int, idle: list[Any]) -> Iterator[int]:
    """Run the steps of a device; yields the needed step whenever the device must wait."""
    for step, needed, delay in program:
        while (least := idle[needed]) is None:
            yield needed
        if least + delay > so_far:  # noqa: PLR1730  max() takes as long as all the rest
            so_far = least + delay
        idle[step] = so_far


def _run_all(net: Network, devices: Sequence[Iterator[int]], idle: Sequence[object]) -> None:
    """Run every device to its end, on demand: a device runs when another one needs its step."""
    host, waiting = net.host, [False] * len(devices)
    for device, last in enumerate((net.bounds[1:] - 1).tolist()):
        here, target = device, last
        stack: list[tuple[int, int]] = []
        while idle[last] is None:
            needed = next(devices[here], FREE)
            if idle[target] is None:
                waiting[here] = True
                stack.append((here, target))
                here, target = host[needed], needed
                if waiting[here]:
                    raise DeadlockError(_cycle(net, [waiter for waiter, _ in stack], idle))
            elif stack:
                here, target = stack.pop()
                waiting[here] = False


def _cycle(net: Network, stack: list[int], idle: Sequence[object]) -> tuple[Op, ...]:
    """Operations of the cycle closed by the last device of the stack, first to last."""
    blocked = [idle.index(None, net.bounds[device]) for device in stack]
    first = stack.index(net.host[net.needed[blocked[-1]]])
    cycle: list[int] = []
    for step in reversed(blocked[first:]):
        cycle += [int(net.before[step]), int(net.first[step])]
    return tuple(net.op(p) for i, p in enumerate(cycle) if p != cycle[i - 1])


def schedule(
    pipeline: Pipeline,
    orders: Orders,
    objective: Objective = Objective.MAKESPAN,
    origin: Origin | None = None,
) -> Schedule:
    """Time an order: the earliest starts from 0, or the starts of least device span.

    Raises InputError where the orders are not complete, DeadlockError where they wait in a circle.
    """
    net = network(pipeline, orders)
    end = run(net)
    if objective is Objective.DEVICE_SPAN:
        end = run(net, _least_span_release(net, end))
    kind, stage, microbatch, part = split_codes(pipeline, net.ops)
    device, begin, end = net.device[net.place], (end - net.duration)[net.place], end[net.place]
    made, pair = origin or Origin(), _pair_numbers(net)
    return Schedule(pipeline, kind, stage, microbatch, device, begin, end, part, pair, made)


def _pair_numbers(net: Network) -> Ints:
    """Number of every operation's pair, in the order of rows; ALONE where it is in none."""
    paired = np.bincount(net.place, minlength=len(net.duration)) == 2
    number = np.where(paired, np.cumsum(paired) - 1, ALONE)
    return np.asarray(number[net.place])


def _least_span_release(net: Network, end: Ints) -> list[int]:
    """Start of every device's first operation such that the largest device span is least.

    With x[d] the start of device d's first operation, the end of device e's last one is
    max over d of x[d] + reach[d][e] (every path starts at some device's first operation). Span V
    is possible exactly if x[e] >= x[d] + max(lead[d][e], reach[d][e] - V) has a solution, that is
    if these difference constraints hold no positive cycle (Bellman-Ford); the least V is found
    by bisection and the least solution x is returned, in ticks.
    """
    lead, reach = _path_lengths(net)
    starts = net.first[net.bounds]
    first, last = starts[:-1], starts[1:] - 1
    high = int((end[last] - end[first] + net.duration[first]).max())
    low = int(np.diagonal(reach).max())
    while low < high:
        middle = (low + high) // 2
        if _release(np.maximum(lead, reach - middle)) is None:
            low = middle + 1
        else:
            high = middle
    release = _release(np.maximum(lead, reach - high))
    assert release is not None, "the starts from 0 meet their own largest span"
    return [int(time) for time in release]


def _release(gap: Ints) -> Ints | None:
    """Least x >= 0 with x[e] >= x[d] + gap[d][e], or None where there is a positive cycle."""
    x = np.zeros(len(gap), dtype=np.int64)
    for _ in range(len(gap) + 1):
        later = np.maximum(x, (x[:, None] + gap).max(axis=0))
        if (later == x).all():
            return x
        x = later
    return None


UNREACHED = -(2**60)
DONE = 0
"""Replaces an idle time that is not needed any more."""


def _path_lengths(net: Network) -> tuple[Ints, Ints]:
    """Longest paths from the start of device d's first operation, in ticks, [d][e].

    To the start of device e's first operation, and to the end of its last one.
    """
    count = len(net.bounds) - 1
    opening = np.searchsorted(net.first, net.first[net.bounds[:-1]], side="right") - 1
    last = net.bounds[1:] - 1
    used = np.concatenate([net.needed[net.needed != FREE], opening, last])
    uses = np.bincount(used, minlength=len(net.host) + 1).tolist()
    idle: list[Any] = [None] * len(net.host)
    idle.append(np.full(count, UNREACHED))  # at FREE
    sources = np.where(np.eye(count, dtype=bool), 0, UNREACHED)
    devices = [_reach(net.program(here), sources[here], idle, uses) for here in range(count)]
    _run_all(net, devices, idle)
    lead, tail = (np.stack([idle[step] for step in steps]).T for steps in (opening, last))
    return lead, tail + net.work[net.first[net.bounds[1:]] - 1]


def _reach(
    program: Iterator[tuple[int, int, int]], so_far: Ints, idle: list[Any], uses: list[int]
) -> Iterator[int]:
    """Like `_device`, for idle times per source; drops each after its last use."""
    for step, needed, delay in program:
        while idle[needed] is None:
            yield needed
        least = idle[needed] + delay
        uses[needed] -= 1
        if uses[needed] == 0:
            idle[needed] = DONE
        idle[step] = so_far = np.maximum(least, so_far, out=least)
