"""Idle time that a device cannot avoid at its two ends, because memory bounds what it can do then.

The argument needs no search. A device waits at least L from the start of its first F to the start
of its first backward: that microbatch must go down to the last stage and back. In between it can
run F alone, and no more than memory holds. Likewise from the end of its last F to the start of that
microbatch's backward, it can run only backwards and W of what memory held beside it. What remains
of the two waits is idle time, in every schedule; where memory does not hold all microbatches
at once, the first wait is over before the second begins, and both count.

The idle time of ZB-H1 (arXiv 2401.10241, section 2.3), (p - 1)(F + B - W) on equal stages, is the
sum of the two where the limit is p activations: (p - 1) B and (p - 1)(F - W).
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from ppopt.problem.pipeline import Pipeline
from ppopt.solver.cp_sat import pairs
from ppopt.solver.cp_sat.delays import Chain


class Idle(NamedTuple):
    """Least idle time of a device, in ticks."""

    first: int
    """Between its first F and its first backward."""
    last: int
    """Between its last F and the backward of the same microbatch."""


class Item(NamedTuple):
    """Something that a device may do while it waits, up to so many times."""

    work: int
    memory: int
    most: int


def idle(pipeline: Pipeline, device: int, *, fused: bool) -> Idle:
    """Least idle time of a device at its ends; none where the argument does not hold."""
    single = pipeline.routes == 1 and pipeline.num_slices == 1
    stages = pipeline.hosted[0][device]
    if not (single and stages) or pairs.useful(pipeline, fused=fused):
        return Idle(0, 0)
    chain = Chain(pipeline, fused)
    first, last = _first(chain, device), _last(chain, device)
    each = sum(pipeline.ticks.activation[stage] for stage in stages)
    room = pipeline.ticks.room(device)
    if room is not None and room < each * pipeline.batches:
        return Idle(first, last)
    return Idle(first, 0) if first >= last else Idle(0, last)


def _first(chain: Chain, device: int) -> int:
    """L from the start of the first F, less the F that memory holds."""
    stages = chain.pipeline.hosted[0][device]
    low, high = stages[0], stages[-1]
    way = chain.head(high) - chain.head(low) + chain.forward[high] + chain.turn(high)
    items = [
        Item(chain.forward[stage], chain.pipeline.ticks.activation[stage], chain.batches)
        for stage in stages
    ]
    return max(0, way - most_work(items, chain.pipeline.ticks.room(device)))


def _last(chain: Chain, device: int) -> int:
    """L from the end of the last F, less what can be done for microbatches held beside its own.

    When the last F, of the highest stage, starts, its microbatch holds the activations of all
    stages of the device; each other one holds one before its B, and what B leaves before its W.
    An F of no time is left out: it may share its instant with a B of no time.
    """
    ticks, stages = chain.pipeline.ticks, chain.pipeline.hosted[0][device]
    if not chain.forward[stages[-1]]:
        return 0
    room, items = ticks.room(device), []
    for stage in stages:
        activation = ticks.activation[stage]
        both = chain.backward[stage] + chain.weight[stage]
        items.append(Item(both, activation, chain.batches - 1))
        if not chain.fused:
            left = activation + ticks.memory_b[stage]
            items.append(Item(chain.weight[stage], left, chain.batches - 1))
        if room is not None:
            room -= activation
    return max(0, chain.turn(stages[-1]) - most_work(items, room))


def most_work(items: list[Item], room: int | None) -> int:
    """Most work that fits a room, or more: exact for up to two items, else parts of them count."""
    if room is None:
        return sum(item.most * item.work for item in items)
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
    return _in_parts(items, room)


def _count(item: Item, room: int) -> int:
    return item.most if item.memory == 0 else min(item.most, room // item.memory)


def _in_parts(items: list[Item], room: int) -> int:
    """The linear relaxation of the knapsack, rounded up: most work for its memory first."""
    total = sum(item.most * item.work for item in items if item.memory == 0)
    rest = [item for item in items if item.memory > 0]
    for item in sorted(rest, key=lambda item: Fraction(item.work, item.memory), reverse=True):
        count = min(item.most, room // item.memory)
        total += count * item.work
        room -= count * item.memory
        if count < item.most:
            return total + -(-item.work * room // item.memory)
    return total
