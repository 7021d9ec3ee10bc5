"""Timing of an order of a pipeline: `ppopt.schedule.fixed_order` with the operations of devices.

If links are resources, they are machines like devices, and their transfers are operations: their
order is fixed too. So are the queues of all other operations, with the optimizer of the device at
their end: all its compute has ended by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from ppopt.errors import InputError
from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.features.gradient_work import without_gradient_work
from ppopt.problem.features.transfers import DISPATCH_RULES
from ppopt.problem.instance import Instance
from ppopt.problem.kinds import ResourceKind
from ppopt.problem.objective import Objective
from ppopt.problem.operation import AuxiliaryKind, Op, OpKind
from ppopt.problem.operation_classes import Constraints
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.fixed_order import FREE, UNREACHED, FixedOrder
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
from ppopt.schedule.operations import ALONE, Operation, Operations
from ppopt.schedule.orders import Orders, codes, existing, overlapped_pairs, split_of
from ppopt.schedule.origin import Origin
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.step_orders import (
    delay_until_memory_fits,
    lookahead_waits,
    releases,
    step_orders,
)


class Network(FixedOrder):
    """An order of a pipeline with its durations.

    The two of an overlapped pair share one position. Links follow the devices, and queues of all
    other operations follow the links; their operations have positions too.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        orders: Orders,
        queues: Queues | None = None,
        *,
        prefetch: Prefetch | HostOrders = Prefetch.LATE,
        unshard_ahead: int | None = None,
        compute_alone: bool = False,
    ) -> None:
        """Join orders and precedence; raises InputError if the orders are not complete.

        Operations that the pipeline does not have are left out. With `queues` links are resources,
        otherwise delays. `compute_alone` leaves out all operations but compute. `unshard_ahead` is
        as for `schedule`.
        """
        if len(orders) != (devices := pipeline.num_devices):
            raise InputError(f"{len(orders)} orders for {devices} devices; give one each")
        self.pipeline, orders = pipeline, existing(pipeline, orders)
        self.split = split_of(pipeline, orders)
        """Whether the backward is split, [stage, microbatch, slice]."""
        pairs = overlapped_pairs(pipeline, orders)
        whole = pipeline.has_auxiliary_operations and not compute_alone
        instance = (
            Instance.with_backwards(pipeline, self.split, all_resources=whole)
            if queues is None
            else queues.links.instance
        )
        self._links: Sequence[Ints] = () if queues is None else queues.order
        """The transfers of the links; empty if links are delays."""
        rows = [*orders, *self._links]
        waits = [] if queues is None else [(queues.before, queues.after)]
        if whole:
            rows += step_orders(instance, _positions(instance, orders))
            if pipeline.has_offload:
                moves = _moves(instance, orders, prefetch)
                rows += moves.order
                waits.append((moves.before, moves.after))
            if unshard_ahead is not None and pipeline.has_unshard:
                waits.append(lookahead_waits(pipeline, orders, unshard_ahead))
        listed = np.concatenate(rows)
        self.ops: Ints = codes(listed)
        """Number of every operation, by position; of a pair, F comes first."""
        self.positions: Ints = np.cumsum(listed >= 0) - 1
        """Position of every operation."""
        self.second: Ints = np.flatnonzero(listed < 0)
        """Index in `ops` of the backward of every pair; its F precedes it."""
        self.ops[self.second - 1], self.ops[self.second] = pairs.T
        self.duration: Ints = instance.durations[self.ops[listed >= 0]]
        """Ticks of the operation, or of the pair, at each position."""
        pair_times = [instance.pair_time(*both) for both in pairs.tolist()]
        self.duration[self.positions[self.second]] = pair_times
        self.position_of: Ints = np.full(instance.num_codes, FREE)
        """Position of every operation number."""
        self.position_of[self.ops] = self.positions
        before, after, lag = self.flow = _flow(instance, self.split, waits)
        """Precedence, by operation number; `edge` refers to it."""
        by_position = Constraints(self.position_of[before], self.position_of[after], lag)
        starts = np.append(0, np.cumsum(listed >= 0))[np.cumsum([0, *map(len, rows)])]
        super().__init__(starts, by_position)

    @cached_property
    def owner(self) -> list[int]:
        """Device of every machine; FREE: it is a link, between devices or to a host."""
        first = self._first_of_queues
        queues = np.where(first.on(ResourceKind.HOST), FREE, first.device).tolist()
        return [*range(self.pipeline.num_devices), *[FREE] * len(self._links), *queues]

    @cached_property
    def opening(self) -> Ints:
        """Machine whose first operation is the first of every device: its queue, or itself."""
        devices, first = self.pipeline.num_devices, self._first_of_queues
        opening = np.arange(devices)
        opens = np.flatnonzero(first.of(lambda record: record.precedes_compute))
        opening[first.device[opens]] = devices + len(self._links) + opens
        return opening

    @cached_property
    def _first_of_queues(self) -> Operations:
        """First operation of every machine behind the devices and their links."""
        return self.at(self.starts[self.pipeline.num_devices + len(self._links) : -1])

    @property
    def computed(self) -> int:
        """Positions of devices; those of links come behind them."""
        return int(self.starts[self.pipeline.num_devices])

    def at(self, positions: Sequence[int] | Ints) -> Operations:
        """Operations at some positions, of pairs the F; all at 0."""
        numbers = self.ops[np.searchsorted(self.positions, positions)]
        return Operations.untimed(self.pipeline, numbers)

    def named(self, positions: Sequence[int]) -> tuple[Op | Operation, ...]:
        """The operations at some positions."""
        rows = self.at(positions).rows()
        return tuple(row.op if isinstance(row.kind, OpKind) else row for row in rows)


def _flow(instance: Instance, split: Bools, waits: Sequence[tuple[Ints, Ints]]) -> Constraints:
    """Precedence of the backwards that are chosen, and of what waits for what besides."""
    before, after, lag = instance.chosen_flow(split)
    for earlier, later in waits:
        before, after = np.append(before, earlier), np.append(after, later)
        lag = np.append(lag, np.zeros(len(later), dtype=np.int64))
    return Constraints(before, after, lag)


def _moves(instance: Instance, orders: Orders, prefetch: Prefetch | HostOrders) -> HostOrders:
    """The orders of moves to the host and back, by a rule unless these are stated."""
    if isinstance(prefetch, Prefetch):
        return host_orders(instance, orders, prefetch)
    return prefetch


def _positions(instance: Instance, orders: Orders) -> Ints:
    """Position of every operation number in the orders, one device after the other; FREE: none."""
    listed = codes(np.concatenate(list(orders)))
    position = np.full(instance.num_codes, FREE)
    position[listed] = np.arange(len(listed))
    return position


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
    prefetch = prefetch or Prefetch.LATE
    net = Network(pipeline, orders, queues, prefetch=prefetch, unshard_ahead=unshard_ahead)
    end = _ends(net, objective)
    times = (end - net.duration)[net.positions], end[net.positions]
    pair = np.full(len(net.ops), ALONE, dtype=np.int64)
    pair[net.second - 1] = pair[net.second] = np.arange(len(net.second))
    table = Operations.of_numbers(pipeline, net.ops, *times, pair)
    instants = ((table.start == table.end) & (table.kind == OpKind.F)).any()
    timed = Schedule(pipeline, table.ordered(compute_in_order=not instants), origin or Origin())
    if not pipeline.has_auxiliary_operations:
        return timed
    return delay_until_memory_fits(start_reloads_late(timed) if pipeline.has_offload else timed)


def _ends(net: Network, objective: Objective) -> Ints:
    """End at every position: the earliest, or those of minimum device span."""
    end = net.ends(net.duration)
    if objective is Objective.MAKESPAN:
        return end
    release = [*_min_span_release(net, end), 0]
    return net.ends(net.duration, [release[device] for device in net.owner])


def retimed(timetable: Schedule, objective: Objective) -> Schedule:
    """The schedule of the same orders, those of links too, timed for an objective."""
    pipeline = timetable.pipeline
    queues = queues_of_schedule(timetable) if pipeline.has_links else None
    return schedule(pipeline, timetable.orders, objective, timetable.origin, queues)


def exposed(timed: Schedule) -> int | None:
    """Time that unshard, gradient sync and optimizer add to a step, in ticks.

    That is the objective minus that of the same orders without this work: the orders of compute,
    links and moves to the host stay, and get new times. None if the pipeline has no such work.
    Raises as `schedule` does, for an incomplete schedule.
    """
    pipeline, objective = timed.pipeline, timed.objective
    if not pipeline.has_gradient_work:
        return None
    if pipeline.has_links or pipeline.has_offload:
        plain = without_gradient_work(pipeline)
        queues = queues_of_schedule(replace(timed, pipeline=plain)) if pipeline.has_links else None
        moves = own_moves(timed) if pipeline.has_offload else None
        alone = schedule(plain, timed.orders, objective, None, queues, moves)
        without_work = alone.metrics.value_ticks(objective)
    else:
        without_work = _compute_value(
            Network(pipeline, timed.orders, compute_alone=True), objective
        )
    return timed.metrics.value_ticks(objective) - without_work


def _compute_value(net: Network, objective: Objective) -> int:
    """Objective of compute without other operations, in ticks."""
    end = _ends(net, objective)
    if objective is Objective.MAKESPAN:
        return int(end.max())
    return int((end[net.starts[1:] - 1] - (end - net.duration)[net.starts[:-1]]).max())


def own_queues(pipeline: Pipeline, orders: Orders) -> list[Queues]:
    """Queues for an order's own times, by each of `DISPATCH_RULES`.

    Raises as `schedule` does.
    """
    net = Network(pipeline, orders, compute_alone=True)
    start = net.ends(net.duration) - net.duration
    links = LinkQueues(pipeline)
    numbers = links.numbers.tolist()
    produced, consumed = (net.position_of[ends] for ends in links.ends(net.split))
    job = QueuedOrder(
        [range(*ends) for ends in pairwise(net.starts.tolist())],
        net.duration.tolist(),
        dict(zip(numbers, produced.tolist(), strict=True)),
        dict(zip(numbers, consumed.tolist(), strict=True)),
        dict(zip(numbers, start[consumed].tolist(), strict=True)),
        releases(links.instance, _positions(links.instance, orders), net.position_of),
    )
    if pipeline.blocks:
        return [_blocking(links, job, net)]
    link_orders = [dispatch(links, job, rule) for rule in DISPATCH_RULES[pipeline.link_mode]]
    return [
        queues_of_orders(links, [np.array(row, dtype=np.int64) for row in order])
        for order in link_orders
    ]


def _blocking(links: LinkQueues, job: QueuedOrder, net: Network) -> Queues:
    """Queues of transfers that occupy devices, in the order of `dispatch_blocking`.

    Behind them comes the optimizer of the device.
    """
    number = net.ops[np.searchsorted(net.positions, np.arange(len(net.duration)))].tolist()
    occupied = [
        [~what if what < 0 else number[what] for what in row]
        for row in dispatch_blocking(links, job)
    ]
    instance = links.instance
    for class_id in instance.auxiliary_classes:
        if instance.classes[class_id].kind == AuxiliaryKind.OPTIMIZER:
            occupied[instance.device(class_id)].append(int(instance.codes[class_id][0]))
    order: list[list[int]] = [[] for _ in links.pairs]
    for device, row in enumerate(occupied):
        for what in row:
            link = links.link[what]
            if link != MISSING and links.pairs[link][0] == device:
                order[link].append(what)
    rows = [np.array(row, dtype=np.int64) for row in order]
    return blocking_queues(links, rows, ([[what] for what in row] for row in occupied))


def _min_span_release(net: Network, end: Ints) -> list[int]:
    """Start of every device's first operation that minimizes the largest device span.

    With x[d] the start of device d's first operation, the end of device e's last one is max over d
    of x[d] + reach[d][e] (every path starts at some device's first operation). Span V is possible
    exactly if x[e] >= x[d] + max(lead[d][e], reach[d][e] - V) has a solution, that is if these
    difference constraints have no positive cycle (Bellman-Ford). Bisection finds the minimum V; the
    minimum solution x is returned, in ticks.
    """
    lead, reach = _path_lengths(net)
    start, last = end - net.duration, net.starts[1:] - 1
    opening = net.starts[net.opening]
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


def _path_lengths(net: Network) -> tuple[Ints, Ints]:
    """Longest paths from the start of device d's first operation, in ticks, [d][e].

    To the start of device e's first operation, and to the end of its last one.
    """
    count = net.pipeline.num_devices
    owner, last = np.array(net.owner), net.bounds[1:] - 1
    opening = np.searchsorted(net.first, net.starts[net.opening], side="right") - 1
    sources = np.where(owner[:, None] == np.arange(count), 0, UNREACHED)
    lead, tail = net.longest_paths(net.duration, sources, (opening, last))
    work = np.diff(np.append(0, np.cumsum(net.duration))[net.starts])
    reach = np.full((count, count), UNREACHED)
    owned = owner != FREE
    np.maximum.at(reach, owner[owned], (tail + work[:, None])[owned])
    return lead.T, reach.T
