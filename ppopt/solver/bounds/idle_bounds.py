"""Forced idle time: what memory forces a device to idle after its first F and after its last F.

The argument needs no search. From the start of its first F to the start of its first backward, a
device waits at least the round trip L of that microbatch to the last stage and back. Meanwhile the
device can run only F, and only as many as memory holds. In the same way, from the end of its last F
to the start of the backward of that microbatch, it can run only backwards and W of the other
microbatches that memory held at that time. The rest of each wait is idle time in every schedule.
If memory does not hold all microbatches at once, the first wait ends before the second starts,
and both count.

Only memory that an operation keeps beyond its end is counted. Memory that it holds only while it
runs can forbid more but allow nothing, so the bound remains valid without it.

The idle time of ZB-H1 (arXiv 2401.10241, section 2.3), (p - 1)(F + B - W) on equal stages, is the
sum of the two where the limit is p activations: (p - 1) B and (p - 1)(F - W).
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from ppopt.solver.arguments import FORCED_IDLE
from ppopt.solver.relaxation.delays import Delays


class ForcedIdle(NamedTuple):
    """Least idle time of a device, in ticks."""

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


def forced_idle(delays: Delays, device: int) -> ForcedIdle:
    """Forced idle time of a device; 0 if the argument does not hold."""
    instance = delays.instance
    if not FORCED_IDLE.applies(instance.traits):
        return ForcedIdle(0, 0)
    first, last = _first(delays, device), _last(delays, device)
    each = sum(delays.operations[stage][0].change for stage in delays.hosted[device])
    room = instance.headroom(device)
    if room is not None and room < each * instance.batches:
        return ForcedIdle(first, last)
    return ForcedIdle(first, 0) if first >= last else ForcedIdle(0, last)


def _first(delays: Delays, device: int) -> int:
    """Round trip from the start of the first F, less the work of the F that memory holds."""
    stages = delays.hosted[device]
    low, high = stages[0], stages[-1]
    way = delays.head(high) - delays.head(low) + delays.forward[high] + delays.round_trip(high)
    forwards = [delays.operations[stage][0] for stage in stages]
    items = [
        KnapsackItem(op_class.duration, op_class.change, delays.batches) for op_class in forwards
    ]
    return max(0, way - knapsack_bound(items, delays.instance.headroom(device)))


def _last(delays: Delays, device: int) -> int:
    """Round trip from the end of the last F, less the work for the other microbatches held.

    When the last F, of the highest stage, starts, its microbatch holds the activations of all
    stages of the device. Each other microbatch holds one activation before its B, and what B
    leaves before its W. The bound is 0 for an F of no length: it may share its instant with a B of
    no length.
    """
    stages = delays.hosted[device]
    if not delays.forward[stages[-1]]:
        return 0
    room, items = delays.instance.headroom(device), []
    for stage in stages:
        forward, *after = delays.operations[stage]
        held = forward.change
        if room is not None:
            room -= held
        for place, op_class in enumerate(after):
            work = sum(other.duration for other in after[place:])
            items.append(KnapsackItem(work, held, delays.batches - 1))
            held += op_class.change
    return max(0, delays.round_trip(stages[-1]) - knapsack_bound(items, room))


def knapsack_bound(items: list[KnapsackItem], room: int | None) -> int:
    """Upper bound on the work that fits into `room`: exact for up to two items, else relaxed."""
    if room is None:
        return sum(item.copies * item.work for item in items)
    if room < 0:
        return 0
    if len(items) == 2:
        one, other = items
        fitting = range(_count(one, room) + 1)
        return max(
            count * one.work + _count(other, room - count * one.memory) * other.work
            for count in fitting
        )
    if len(items) == 1:
        return _count(items[0], room) * items[0].work
    return _linear_relaxation(items, room)


def _count(item: KnapsackItem, room: int) -> int:
    return item.copies if item.memory == 0 else min(item.copies, room // item.memory)


def _linear_relaxation(items: list[KnapsackItem], room: int) -> int:
    """Linear relaxation of the knapsack, rounded up: items by work per memory, largest first."""
    total = sum(item.copies * item.work for item in items if item.memory == 0)
    rest = [item for item in items if item.memory > 0]
    for item in sorted(rest, key=lambda item: Fraction(item.work, item.memory), reverse=True):
        count = min(item.copies, room // item.memory)
        total += count * item.work
        room -= count * item.memory
        if count < item.copies:
            return total + -(-item.work * room // item.memory)
    return total
