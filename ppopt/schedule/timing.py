"""Timing of a fixed order: earliest starts by longest path through the precedence constraints.

Where links are streams, they are machines like devices, and their transfers operations: the order
in which they carry them is fixed too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ppopt.errors import DeadlockError, InputError
from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.instance import Constraints, data_flow, durations
from ppopt.problem.objective import Objective
from ppopt.problem.operation import Op, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.link_queues import LinkQueues, QueuedOrder, Queues, dispatch, posted_early
from ppopt.schedule.orders import Orders, codes, overlapped_pairs, split_of
from ppopt.schedule.origin import Origin
from ppopt.schedule.schedule import Schedule, split_codes
from ppopt.schedule.timetable import ALONE
from ppopt.schedule.transfers import NO_TRANSFERS, Transfer, Transfers

FREE = -1


@dataclass(frozen=True)
class Network:
    """An order per device with its constraints, cut into steps.

    A step waits for at most one step of another device and then runs its operations back to back.
    An operation that waits for several others is preceded by steps without operations. Operations
    are numbered by their position in the concatenated orders, where the two of an overlapped pair
    share one position; steps are numbered in the same sequence. Links of streams come behind the
    devices, and their transfers are positions too.

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
    queues: Queues | None = None
    """What the links carry, behind the devices; None: links are delays."""

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

    @property
    def computed(self) -> int:
        """Positions of devices; those of links come behind them."""
        return int(self.first[self.bounds[self.pipeline.num_devices]])

    def op(self, position: int) -> Op | Transfer:
        """Operation at a position, of a pair the F; or the transfer."""
        if self.queues is not None and position >= self.computed:
            carried = np.concatenate(self.queues.order)
            return self.queues.links.transfer(carried[position - self.computed])
        return self.pipeline.op(self.ops[np.searchsorted(self.place, position)])


def _numbered(bounds: Ints) -> Ints:
    """Which of the intervals between the bounds holds each number."""
    return np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))


def network(pipeline: Pipeline, orders: Orders, queues: Queues | None = None) -> Network:
    """Join orders and data flow; raises InputError where the orders are not complete.

    With `queues` links are streams, else delays.
    """
    listed = _listed(pipeline, orders)
    waits = listed.delays() if queues is None else listed.streams(queues)
    if queues is not None:
        carried = np.concatenate([*queues.order, np.empty(0, dtype=np.int64)])
        duration = np.append(listed.duration, queues.links.duration[carried])
        ends = listed.starts[-1] + np.cumsum([len(order) for order in queues.order], dtype=np.int64)
        listed = listed._replace(duration=duration, starts=np.append(listed.starts, ends))
    net = _cut(pipeline, listed, waits)
    return net if queues is None else replace(net, queues=queues)


class _Listed(NamedTuple):
    """Orders with their data flow, by position."""

    ops: Ints
    place: Ints
    duration: Ints
    starts: Ints
    """First position of every device, and the end."""
    position: Ints
    """Position of every operation number."""
    split: Bools
    flow: Constraints
    """Between operation numbers."""

    def delays(self) -> Constraints:
        """What the orders do not imply, by position, where links are delays."""
        flow = self.flow
        return self._sorted(self.position[flow.before], self.position[flow.after], flow.lag)

    def streams(self, queues: Queues) -> Constraints:
        """The same where links are streams: data cross devices by transfers."""
        flow, links = self.flow, queues.links
        before, after = self.position[flow.before], self.position[flow.after]
        device = _numbered(self.starts)
        here = device[before] == device[after]
        carried = np.concatenate([*queues.order, np.empty(0, dtype=np.int64)])
        place = np.full(len(links.link), FREE)
        place[carried] = len(self.duration) + np.arange(len(carried))
        sent = self.position[queues.before], place[queues.after]
        consumers = links.consumers(self.split)[links.numbers]
        received = place[links.numbers], self.position[consumers]
        pairs = [(before[here], after[here]), sent, received]
        first, second = (np.concatenate(column) for column in zip(*pairs, strict=True))
        return self._sorted(first, second, np.zeros(len(first), dtype=np.int64))

    def _sorted(self, before: Ints, after: Ints, lag: Ints) -> Constraints:
        """The constraints that the orders do not imply, sorted by `after`."""
        links = np.full(max(0, int(np.max(after, initial=0)) + 1 - len(self.duration)), FREE)
        device = np.append(_numbered(self.starts), links)
        implied = (device[before] == device[after]) & (before < after) & (lag == 0)
        kept = np.flatnonzero(~implied)
        kept = kept[np.argsort(after[kept], kind="stable")]
        return Constraints(before[kept], after[kept], lag[kept])


def _listed(pipeline: Pipeline, orders: Orders) -> _Listed:
    if len(orders) != pipeline.num_devices:
        raise InputError(f"{len(orders)} orders for {pipeline.num_devices} devices; give one each")
    split = split_of(pipeline, orders)
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
    return _Listed(ops, place, duration, starts, position, split, data_flow(pipeline, split))


def pair_time(pipeline: Pipeline, forward: int, backward: int) -> int:
    """Time of two operation numbers run as one, in ticks."""
    one, other = pipeline.op(forward), pipeline.op(backward)
    return pipeline.ticks.pair_time(one.stage, other.kind, other.stage)


def _cut(pipeline: Pipeline, listed: _Listed, waits: Constraints) -> Network:
    """Begin a step at the front of every device and at every operation that waits."""
    ops, place, duration, starts = listed[:4]
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
    released = [*(release or ()), *[0] * count]
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


def _cycle(net: Network, stack: list[int], idle: Sequence[object]) -> tuple[Op | Transfer, ...]:
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
    queues: Queues | None = None,
) -> Schedule:
    """Time an order: the earliest starts from 0, or the starts of least device span.

    Where links are streams and no `queues` are given, these are the better of `own_queues`. Raises
    InputError where the orders are not complete, DeadlockError where they wait in a circle.
    """
    if pipeline.streams and queues is None:
        made = (
            schedule(pipeline, orders, objective, origin, q) for q in own_queues(pipeline, orders)
        )
        return min(made, key=lambda one: one.metrics.value(objective))
    net = network(pipeline, orders, queues)
    end = run(net)
    if objective is Objective.DEVICE_SPAN:
        end = run(net, _least_span_release(net, end))
    kind, stage, microbatch, part = split_codes(pipeline, net.ops)
    device, begin, ends = net.device[net.place], (end - net.duration)[net.place], end[net.place]
    return Schedule(
        *(pipeline, kind, stage, microbatch, device, begin, ends, part, _pair_numbers(net)),
        origin=origin or Origin(),
        transfers=_transfers(net, end),
    )


def own_queues(pipeline: Pipeline, orders: Orders) -> list[Queues]:
    """Queues that serve an order's own times: first come, first served; and by first need.

    The second takes first what is needed first where links are delays. Raises as `schedule` does.
    """
    listed, net = _listed(pipeline, orders), network(pipeline, orders)
    start = run(net) - net.duration
    links = LinkQueues(pipeline)
    consumed = listed.position[links.consumers(listed.split)]
    job = QueuedOrder(
        [range(*ends) for ends in pairwise(listed.starts.tolist())],
        listed.duration.tolist(),
        listed.position[links.producers(listed.split)].tolist(),
        consumed.tolist(),
    )
    need = np.zeros(len(links.link), dtype=np.int64)
    need[links.numbers] = start[consumed[links.numbers]]
    found = [dispatch(links, job, priority) for priority in (None, need.tolist())]
    return [
        posted_early(links, [np.array(one, dtype=np.int64) for one in order], listed.split)
        for order in found
    ]


def _transfers(net: Network, end: Ints) -> Transfers:
    """The transfers of the links, at their times."""
    if net.queues is None:
        return NO_TRANSFERS
    links, carried = net.queues.links, np.concatenate([*net.queues.order, np.empty(0, np.int64)])
    way, stage, microbatch = (part[carried] for part in links.parts)
    end = end[net.computed :]
    return Transfers(
        *(np.where(way == 0, int(OpKind.F), int(OpKind.B)), stage, microbatch),
        *(links.sender[carried], links.receiver[carried]),
        *(end - links.duration[carried], end),
    )


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
    starts = net.first[net.bounds[: net.pipeline.num_devices + 1]]
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
    count, machines = net.pipeline.num_devices, len(net.bounds) - 1
    bounds = net.bounds[: count + 1]
    opening = np.searchsorted(net.first, net.first[bounds[:-1]], side="right") - 1
    last = bounds[1:] - 1
    used = np.concatenate([net.needed[net.needed != FREE], opening, last])
    uses = np.bincount(used, minlength=len(net.host) + 1).tolist()
    idle: list[Any] = [None] * len(net.host)
    idle.append(np.full(count, UNREACHED))  # at FREE
    sources = np.where(np.eye(machines, count, dtype=bool), 0, UNREACHED)
    devices = [_reach(net.program(here), sources[here], idle, uses) for here in range(machines)]
    _run_all(net, devices, idle)
    lead, tail = (np.stack([idle[step] for step in steps]).T for steps in (opening, last))
    return lead, tail + net.work[net.first[bounds[1:]] - 1]


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
