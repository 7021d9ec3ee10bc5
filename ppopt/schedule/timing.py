"""Timing of a fixed order: earliest starts by longest paths through the precedence constraints.

If links are resources, they are machines like devices, and their transfers are operations: their
order is fixed too. So are the queues of all other operations, with the optimizer of the device at
their end: all its compute has ended by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ppopt.errors import DeadlockError, InputError
from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.features.gradient_work import without_gradient_work
from ppopt.problem.instance import Instance
from ppopt.problem.kinds import ResourceKind
from ppopt.problem.objective import Objective
from ppopt.problem.operation import Op, OpKind
from ppopt.problem.operation_classes import Constraints
from ppopt.problem.partition_table import link_number
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.host_orders import (
    HostOrders,
    Prefetch,
    host_orders,
    own_moves,
    start_reloads_late,
)
from ppopt.schedule.link_queues import (
    MISSING,
    LinkQueues,
    QueuedOrder,
    Queues,
    blocking_queues,
    dispatch,
    dispatch_blocking,
    queues_of_orders,
    queues_of_schedule,
)
from ppopt.schedule.operations import ALONE, Operation, Operations, split_codes
from ppopt.schedule.orders import Orders, codes, existing, overlapped_pairs, split_of
from ppopt.schedule.origin import Origin
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.step_orders import (
    delay_until_memory_fits,
    lookahead_waits,
    releases,
    step_orders,
)

FREE = -1


@dataclass(frozen=True)
class Network:
    """An order per device with its constraints, cut into steps.

    A step waits for at most one step of another device and then runs its operations back to back.
    An operation that waits for several others is preceded by steps without operations. Operations
    are numbered by their position in the concatenated orders, where the two of an overlapped pair
    share one position; steps are numbered in the same sequence. Links follow the devices, and
    queues of all other operations follow the links; their operations have positions too.

    The idle time of a step is the time that its device has been idle before its operations: their
    start minus the work done before. It never decreases along a device, and step s satisfies
    idle[s] >= idle[needed[s]] + delay[s].
    """

    pipeline: Pipeline
    ops: Ints
    """Number of every operation, by position; of a pair, F comes first."""
    positions: Ints
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
    """Step of that operation."""
    delay: Ints
    """Minimum difference, in ticks, between the idle times of a step and of the needed one."""
    queues: Queues | None = None
    """The transfers of the links; None: links are delays."""

    @cached_property
    def owner(self) -> list[int]:
        """Device of every machine; FREE: it is a link, between devices or to a host."""
        devices, links = self.pipeline.num_devices, [FREE] * self._links
        first = self._first_of_queues
        queues = np.where(first.on(ResourceKind.HOST), FREE, first.device).tolist()
        return [*range(devices), *links, *queues]

    @cached_property
    def opening(self) -> Ints:
        """Machine whose first operation is the first of every device: its queue, or itself."""
        devices, first = self.pipeline.num_devices, self._first_of_queues
        opening = np.arange(devices)
        opens = np.flatnonzero(first.of(lambda record: record.precedes_compute))
        opening[first.device[opens]] = devices + self._links + opens
        return opening

    @property
    def _links(self) -> int:
        return 0 if self.queues is None else len(self.queues.order)

    @cached_property
    def _first_of_queues(self) -> Operations:
        """First operation of every machine behind the devices and their links."""
        steps = self.bounds[self.pipeline.num_devices + self._links : -1]
        return self.at(self.first[steps])

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

    def at(self, positions: Sequence[int] | Ints) -> Operations:
        """Operations at some positions, of pairs the F; all at 0."""
        numbers = self.ops[np.searchsorted(self.positions, positions)]
        return Operations.untimed(self.pipeline, numbers)


def _numbered(bounds: Ints) -> Ints:
    """Which of the intervals between the bounds holds each number."""
    return np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))


def network(
    pipeline: Pipeline,
    orders: Orders,
    queues: Queues | None = None,
    prefetch: Prefetch | HostOrders = Prefetch.LATE,
    unshard_ahead: int | None = None,
) -> Network:
    """Join orders and data flow; raises InputError if the orders are not complete.

    With `queues` links are resources, otherwise delays. `unshard_ahead` is as for `schedule`.
    """
    listed = listed_orders(pipeline, orders, queues, prefetch=prefetch, unshard_ahead=unshard_ahead)
    return _cut(pipeline, listed, queues)


def linked_network(pipeline: Pipeline, orders: Orders) -> tuple[Network, Ints]:
    """Join orders and data flow of compute alone, links being delays; with the link of every step.

    The link is a number (`ppopt.problem.partition_table.link_number`): the input of the step
    arrives through that link; 0: through none. Raises InputError if the orders are not complete.
    """
    listed = listed_orders(pipeline, orders, compute_alone=True)
    flow = Instance.with_backwards(pipeline, listed.split).chosen_flow(listed.split)
    numbers = _link_numbers(pipeline, flow)
    numbered = listed._replace(flow=listed.flow._replace(lag=numbers)).waits
    heads = np.searchsorted(numbered.after, listed.starts[:-1])
    return _cut(pipeline, listed, None), np.insert(numbered.lag, heads, 0)


def _link_numbers(pipeline: Pipeline, flow: Constraints) -> Ints:
    """Number of the link between two operations; 0: none."""
    _, before, _, _ = split_codes(pipeline, flow.before)
    kind, stage, microbatch, _ = split_codes(pipeline, flow.after)
    route = microbatch * pipeline.routes // pipeline.batches
    hosts = np.array(pipeline.hosts)
    apart = hosts[route, before] != hosts[route, stage]
    back = (kind != OpKind.F).astype(np.int64)
    numbers = link_number(pipeline, route, np.minimum(before, stage), back)
    return np.where(apart, numbers, 0)


class ListedOrders(NamedTuple):
    """Orders of devices, and of links if these are resources, with their precedence."""

    ops: Ints
    """Number of every operation; of a pair, F comes first."""
    positions: Ints
    """Position of every operation."""
    duration: Ints
    """Ticks of every position."""
    starts: Ints
    """First position of every device, link and queue, and the end."""
    position_of: Ints
    """Position of every operation number."""
    split: Bools
    """Whether the backward is split, [stage, microbatch, slice]."""
    flow: Constraints
    """Precedence, by position."""

    @property
    def waits(self) -> Constraints:
        """The precedence that the orders do not imply, sorted by `after`."""
        before, after, lag = self.flow
        host = _numbered(self.starts)
        implied = (host[before] == host[after]) & (before < after) & (lag == 0)
        explicit = np.flatnonzero(~implied)
        explicit = explicit[np.argsort(after[explicit], kind="stable")]
        return Constraints(before[explicit], after[explicit], lag[explicit])


def listed_orders(
    pipeline: Pipeline,
    orders: Orders,
    queues: Queues | None = None,
    *,
    prefetch: Prefetch | HostOrders = Prefetch.LATE,
    unshard_ahead: int | None = None,
    compute_alone: bool = False,
) -> ListedOrders:
    """Join orders and precedence; raises InputError if the orders are not complete.

    Operations that the pipeline does not have are left out of the orders. `compute_alone`: links
    are delays, and other operations are left out.
    """
    if len(orders) != pipeline.num_devices:
        raise InputError(f"{len(orders)} orders for {pipeline.num_devices} devices; give one each")
    orders = existing(pipeline, orders)
    split = split_of(pipeline, orders)
    pairs = overlapped_pairs(pipeline, orders)
    whole = pipeline.has_auxiliary_operations and not compute_alone
    instance = (
        Instance.with_backwards(pipeline, split, all_resources=whole)
        if queues is None
        else queues.links.instance
    )
    rows = [*orders, *(queues.order if queues else ())]
    host = None
    if whole:
        rows += step_orders(instance, _positions(instance, orders))
        if pipeline.has_offload:
            host = (
                prefetch
                if isinstance(prefetch, HostOrders)
                else host_orders(instance, orders, prefetch)
            )
            rows += host.order
    listed = np.concatenate(rows)
    ops, positions = codes(listed), np.cumsum(listed >= 0) - 1
    second = np.flatnonzero(listed < 0)
    ops[second - 1], ops[second] = pairs.T
    duration = instance.durations[ops[listed >= 0]]
    duration[positions[second]] = [instance.pair_time(*both) for both in pairs.tolist()]
    ends = np.cumsum([0, *map(len, rows)])
    starts = np.append(0, np.cumsum(listed >= 0))[ends]
    position_of = np.full(instance.num_codes, FREE)
    position_of[ops] = positions
    before, after, lag = instance.chosen_flow(split)
    waits = [(waiting.before, waiting.after) for waiting in (queues, host) if waiting is not None]
    if whole and unshard_ahead is not None and pipeline.has_unshard:
        waits.append(lookahead_waits(pipeline, orders, unshard_ahead))
    for earlier, later in waits:
        before, after = np.append(before, earlier), np.append(after, later)
        lag = np.append(lag, np.zeros(len(later), dtype=np.int64))
    by_position = Constraints(position_of[before], position_of[after], lag)
    return ListedOrders(ops, positions, duration, starts, position_of, split, by_position)


def _positions(instance: Instance, orders: Orders) -> Ints:
    """Position of every operation number in the orders, one device after the other; FREE: none."""
    listed = codes(np.concatenate(list(orders)))
    position = np.full(instance.num_codes, FREE)
    position[listed] = np.arange(len(listed))
    return position


def _cut(pipeline: Pipeline, listed: ListedOrders, queues: Queues | None) -> Network:
    """Begin a step at the front of every device and at every operation that waits."""
    (ops, positions, duration, starts), waits = listed[:4], listed.waits
    heads = np.searchsorted(waits.after, starts[:-1])
    first = np.append(np.insert(waits.after, heads, starts[:-1]), len(duration))
    before = np.insert(waits.before, heads, FREE)
    bounds = np.append(heads + np.arange(len(heads)), len(before))
    total = np.append(0, np.cumsum(duration))
    work = total[1:] - np.repeat(total[starts[:-1]], np.diff(starts))
    delay = work[waits.before] + waits.lag - work[waits.after] + duration[waits.after]
    needed = np.where(before == FREE, FREE, _numbered(first)[before])
    delay = np.insert(delay, heads, 0)
    return Network(
        pipeline, ops, positions, duration, work, bounds, first, before, needed, delay, queues
    )


def run(net: Network, release: Sequence[int] | None = None) -> Ints:
    """Earliest end of every position in ticks.

    Machines of device d start at `release[d]` or later (default 0). Demand-driven longest path: a
    device runs until it waits for another one, which then runs; linear in operations. Raises
    DeadlockError, naming the cycle, if the constraints have one.
    """
    count = len(net.bounds) - 1
    idle: list[int | None] = [None] * len(net.host)
    idle.append(0)  # at FREE
    released = [0] * count if release is None else [*release, 0]  # the last one: of links
    if release is not None:
        released = [released[owner] for owner in net.owner]
    devices = [_device(net.program(device), released[device], idle) for device in range(count)]
    _run_all(net, devices, idle)
    return net.ends(np.array(idle[:FREE], dtype=np.int64))


def _device(program: Iterator[tuple[int, int, int]], so_far: int, idle: list[Any]) -> Iterator[int]:
    """Run the steps of a device; yields the needed step whenever the device must wait."""
    for step, needed, delay in program:
        while (needed_idle := idle[needed]) is None:
            yield needed
        if needed_idle + delay > so_far:  # noqa: PLR1730  max() takes as long as all the rest
            so_far = needed_idle + delay
        idle[step] = so_far


def _run_all(net: Network, devices: Sequence[Iterator[int]], idle: Sequence[object]) -> None:
    """Run every device to its end, on demand: a device runs when another one needs its step."""
    host, waiting = net.host, [False] * len(devices)
    for device, last in enumerate((net.bounds[1:] - 1).tolist()):
        running, target = device, last
        stack: list[tuple[int, int]] = []
        while idle[last] is None:
            needed = next(devices[running], FREE)
            if idle[target] is None:
                waiting[running] = True
                stack.append((running, target))
                running, target = host[needed], needed
                if waiting[running]:
                    raise DeadlockError(_cycle(net, [waiter for waiter, _ in stack], idle))
            elif stack:
                running, target = stack.pop()
                waiting[running] = False


def _cycle(net: Network, stack: list[int], idle: Sequence[object]) -> tuple[Op | Operation, ...]:
    """Operations of the cycle closed by the last device of the stack, first to last."""
    blocked = [idle.index(None, net.bounds[device]) for device in stack]
    first = stack.index(net.host[net.needed[blocked[-1]]])
    cycle: list[int] = []
    for step in reversed(blocked[first:]):
        cycle += [int(net.before[step]), int(net.first[step])]
    rows = net.at([p for i, p in enumerate(cycle) if p != cycle[i - 1]]).rows()
    return tuple(row.op if isinstance(row.kind, OpKind) else row for row in rows)


def schedule(
    pipeline: Pipeline,
    orders: Orders,
    objective: Objective = Objective.MAKESPAN,
    origin: Origin | None = None,
    queues: Queues | None = None,
    prefetch: Prefetch | HostOrders | None = None,
    unshard_ahead: int | None = None,
) -> Schedule:
    """Time an order: the earliest starts from 0, or the starts of minimum device span.

    If links are resources and no `queues` are given, these are the best of `own_queues`; so is the
    `prefetch` of moves to the host. With `unshard_ahead`, device r gathers the weights of its next
    r + `unshard_ahead` stages only. Operations of empty stages at the same instant are in the order
    of files. Raises InputError if the orders are not complete, DeadlockError if they wait in a
    circle.
    """
    if pipeline.has_links and queues is None:
        each = (
            schedule(pipeline, orders, objective, origin, q, unshard_ahead=unshard_ahead)
            for q in own_queues(pipeline, orders)
        )
        return min(each, key=lambda timed: timed.metrics.value_ticks(objective))
    if pipeline.has_offload and prefetch is None:
        every = (
            schedule(pipeline, orders, objective, origin, queues, way, unshard_ahead)
            for way in Prefetch
        )
        return min(
            every, key=lambda timed: (not timed.fits_limits, timed.metrics.value_ticks(objective))
        )
    net = network(pipeline, orders, queues, prefetch or Prefetch.LATE, unshard_ahead)
    end = run(net)
    if objective is Objective.DEVICE_SPAN:
        end = run(net, _min_span_release(net, end))
    times = (end - net.duration)[net.positions], end[net.positions]
    table = Operations.of_numbers(pipeline, net.ops, *times, _pair_numbers(net))
    instants = ((table.start == table.end) & (table.kind == OpKind.F)).any()
    timed = Schedule(pipeline, table.ordered(compute_in_order=not instants), origin or Origin())
    if not pipeline.has_auxiliary_operations:
        return timed
    return delay_until_memory_fits(start_reloads_late(timed) if pipeline.has_offload else timed)


def retimed(timetable: Schedule, objective: Objective) -> Schedule:
    """The schedule of the same orders, those of links too, timed for an objective."""
    pipeline = timetable.pipeline
    queues = queues_of_schedule(timetable) if pipeline.has_links else None
    return schedule(pipeline, timetable.orders, objective, timetable.origin, queues)


def exposed(timed: Schedule) -> Fraction | None:
    """Time that unshard, gradient sync and optimizer add to a step, in the user's unit.

    That is the objective minus that of the same orders without this work: the orders of compute,
    links and moves to the host stay, and get new times. None if the pipeline has no such work.
    Raises as `schedule` does, for an incomplete schedule.
    """
    pipeline, objective = timed.pipeline, timed.objective
    if not pipeline.has_gradient_work:
        return None
    plain = without_gradient_work(pipeline)
    queues = queues_of_schedule(replace(timed, pipeline=plain)) if pipeline.has_links else None
    moves = own_moves(timed) if pipeline.has_offload else None
    alone = schedule(plain, timed.orders, objective, None, queues, moves)
    with_work, without_work = (
        timetable.metrics.value_ticks(objective) for timetable in (timed, alone)
    )
    return pipeline.ticks.time(with_work) - plain.ticks.time(without_work)


def own_queues(pipeline: Pipeline, orders: Orders) -> list[Queues]:
    """Queues for an order's own times, by each of `Instance.dispatch_rules`.

    Raises as `schedule` does.
    """
    listed = listed_orders(pipeline, orders, compute_alone=True)
    net = _cut(pipeline, listed, None)
    start = run(net) - net.duration
    links = LinkQueues(pipeline)
    numbers = links.numbers.tolist()
    produced, consumed = (listed.position_of[ends] for ends in links.ends(listed.split))
    job = QueuedOrder(
        [range(*ends) for ends in pairwise(listed.starts.tolist())],
        listed.duration.tolist(),
        dict(zip(numbers, produced.tolist(), strict=True)),
        dict(zip(numbers, consumed.tolist(), strict=True)),
        dict(zip(numbers, start[consumed].tolist(), strict=True)),
        releases(links.instance, _positions(links.instance, orders), listed.position_of),
    )
    if pipeline.blocks:
        return [_blocking(links, job, listed)]
    link_orders = [dispatch(links, job, rule) for rule in links.instance.dispatch_rules]
    return [
        queues_of_orders(links, [np.array(row, dtype=np.int64) for row in order])
        for order in link_orders
    ]


def _blocking(links: LinkQueues, job: QueuedOrder, listed: ListedOrders) -> Queues:
    """Queues of transfers that occupy devices, in the order of `dispatch_blocking`."""
    number = listed.ops[np.searchsorted(listed.positions, np.arange(len(listed.duration)))].tolist()
    occupied = [
        [~what if what < 0 else number[what] for what in row]
        for row in dispatch_blocking(links, job)
    ]
    order: list[list[int]] = [[] for _ in links.pairs]
    for device, row in enumerate(occupied):
        for what in row:
            link = links.link[what]
            if link != MISSING and links.pairs[link][0] == device:
                order[link].append(what)
    rows = [np.array(row, dtype=np.int64) for row in order]
    return blocking_queues(links, rows, ([[what] for what in row] for row in occupied))


def _pair_numbers(net: Network) -> Ints:
    """Number of every operation's pair, in the order of rows; ALONE if it is in none."""
    paired = np.bincount(net.positions, minlength=len(net.duration)) == 2
    pair_number = np.where(paired, np.cumsum(paired) - 1, ALONE)
    return np.asarray(pair_number[net.positions])


def _min_span_release(net: Network, end: Ints) -> list[int]:
    """Start of every device's first operation that minimizes the largest device span.

    With x[d] the start of device d's first operation, the end of device e's last one is max over d
    of x[d] + reach[d][e] (every path starts at some device's first operation). Span V is possible
    exactly if x[e] >= x[d] + max(lead[d][e], reach[d][e] - V) has a solution, that is if these
    difference constraints have no positive cycle (Bellman-Ford). Bisection finds the minimum V; the
    minimum solution x is returned, in ticks.
    """
    lead, reach = _path_lengths(net)
    start, last = end - net.duration, net.first[net.bounds[1:]] - 1
    opening = net.first[net.bounds[net.opening]]
    high = max(
        int(end[last[machine]] - start[opening[device]])
        for machine, device in enumerate(net.owner)
        if device != FREE
    )
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
    """Minimum x >= 0 with x[e] >= x[d] + gap[d][e], or None if there is a positive cycle."""
    x = np.zeros(len(gap), dtype=np.int64)
    for _ in range(len(gap) + 1):
        later = np.maximum(x, (x[:, None] + gap).max(axis=0))
        if (later == x).all():
            return x
        x = later
    return None


UNREACHED = -(2**60)
DONE = 0
"""Replaces an idle time that is no longer needed."""


def _path_lengths(net: Network) -> tuple[Ints, Ints]:
    """Longest paths from the start of device d's first operation, in ticks, [d][e].

    To the start of device e's first operation, and to the end of its last one.
    """
    count, machines = net.pipeline.num_devices, len(net.bounds) - 1
    heads = net.bounds[net.opening]
    opening = np.searchsorted(net.first, net.first[heads], side="right") - 1
    last = net.bounds[1:] - 1
    used = np.concatenate([net.needed[net.needed != FREE], opening, last])
    uses = np.bincount(used, minlength=len(net.host) + 1).tolist()
    idle: list[Any] = [None] * len(net.host)
    idle.append(np.full(count, UNREACHED))  # at FREE
    owned = np.array(net.owner)[:, None] == np.arange(count)
    sources = np.where(owned, 0, UNREACHED)
    devices = [_reach(net.program(index), sources[index], idle, uses) for index in range(machines)]
    _run_all(net, devices, idle)
    lead, tail = (np.stack([idle[step] for step in steps]).T for steps in (opening, last))
    tail = tail + net.work[net.first[net.bounds[1:]] - 1]
    reach = np.full((count, count), UNREACHED)
    for machine, device in enumerate(net.owner):
        if device != FREE:
            reach[:, device] = np.maximum(reach[:, device], tail[:, machine])
    return lead, reach


def _reach(
    program: Iterator[tuple[int, int, int]], so_far: Ints, idle: list[Any], uses: list[int]
) -> Iterator[int]:
    """Like `_device`, for idle times per source; drops each after its last use."""
    for step, needed, delay in program:
        while idle[needed] is None:
            yield needed
        reached = idle[needed] + delay
        uses[needed] -= 1
        if uses[needed] == 0:
            idle[needed] = DONE
        idle[step] = so_far = np.maximum(reached, so_far, out=reached)
