"""Forced idle time: how long a memory limit forces a device to idle after its first and last F.

The argument needs no search. Between the start of its first F and the start of its first backward,
a device waits for the round trip L of that microbatch to the last stage and back. Meanwhile the
device can run only F, and only as many as fit into memory. In the same way, between the end of its
last F and the start of the backward of that microbatch, it can run only backwards and W of the
other microbatches that were live at that time. The rest of each wait is idle time in every
schedule. If not all microbatches fit into memory at once, the first wait ends before the second
starts, and both count.

Only memory that stays allocated after an operation is counted. Workspace could only exclude more
schedules, so the bound is valid without it.

The idle time of ZB-H1 (arXiv 2401.10241, section 2.3), (p - 1)(F + B - W) on equal stages, is the
sum of the two where the limit is p activations: (p - 1) B and (p - 1)(F - W).
"""

from __future__ import annotations

from math import lcm
from typing import NamedTuple

from ppopt.solver.arguments import FORCED_IDLE
from ppopt.solver.relaxation.route_times import RouteTimes


class ForcedIdle(NamedTuple):
    """Minimum idle time of a device, in ticks."""

    first: int
    """Idle time between the first F and the first backward."""
    last: int
    """Idle time between the last F and the backward of the same microbatch."""


class KnapsackItem(NamedTuple):
    """An item of a bounded knapsack: work that a device may do while it waits."""

    work: int
    """Work in ticks."""
    memory: int
    """Memory in ticks of memory."""
    copies: int
    """Largest number of times that the item may be used."""


def forced_idle(times: RouteTimes, device: int) -> ForcedIdle:
    """Forced idle time of a device; 0 if the argument does not hold."""
    instance = times.instance
    if not FORCED_IDLE.applies(instance.traits):
        return ForcedIdle(0, 0)
    first, last = _first(times, device), _last(times, device)
    each = sum(times.operations[stage][0].change for stage in times.hosted[device])
    headroom = instance.headroom(device)
    if headroom is not None and headroom < each * instance.batches:
        return ForcedIdle(first, last)
    return ForcedIdle(first, 0) if first >= last else ForcedIdle(0, last)


def _first(times: RouteTimes, device: int) -> int:
    """Round trip from the start of the first F, minus the work of the F that fit into memory."""
    stages = times.hosted[device]
    low, high = stages[0], stages[-1]
    way = times.head(high) - times.head(low) + times.forward[high] + times.round_trip(high)
    forwards = [times.operations[stage][0] for stage in stages]
    items = [
        KnapsackItem(op_class.duration, op_class.change, times.batches) for op_class in forwards
    ]
    return max(0, way - knapsack_bound(items, times.instance.headroom(device)))


def _last(times: RouteTimes, device: int) -> int:
    """Round trip from the end of the last F, minus the work for the other live microbatches.

    When the last F (of the highest stage) starts, the activations of its microbatch on all stages
    of the device are live. Every other microbatch has one live activation before its B, and what B
    does not free before its W. The bound is 0 for an F of duration 0: it may start together with a
    B of duration 0.
    """
    stages = times.hosted[device]
    if not times.forward[stages[-1]]:
        return 0
    headroom, items = times.instance.headroom(device), []
    for stage in stages:
        forward, *after = times.operations[stage]
        live = forward.change
        if headroom is not None:
            headroom -= live
        for index, op_class in enumerate(after):
            work = sum(later.duration for later in after[index:])
            items.append(KnapsackItem(work, live, times.batches - 1))
            live += op_class.change
    return max(0, times.round_trip(stages[-1]) - knapsack_bound(items, headroom))


def knapsack_bound(items: list[KnapsackItem], capacity: int | None) -> int:
    """Upper bound on the work that fits: exact for one item, else the linear relaxation.

    The relaxation is rounded down: it takes items by work per memory, the largest first.
    """
    if capacity is None:
        return sum(item.copies * item.work for item in items)
    if capacity < 0:
        return 0
    total = sum(item.copies * item.work for item in items if item.memory == 0)
    rest = [item for item in items if item.memory > 0]
    common = lcm(*(item.memory for item in rest))
    for item in sorted(rest, key=lambda own: own.work * (common // own.memory), reverse=True):
        count = min(item.copies, capacity // item.memory)
        total += count * item.work
        capacity -= count * item.memory
        if count < item.copies and len(items) > 1:
            return total + item.work * capacity // item.memory
    return total
