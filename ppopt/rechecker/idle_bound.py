"""Idle time that memory forces on a device, before its first backward and after its last F.

Only F can run before a device's first backward, which starts a round trip after the F of the same
microbatch on the device's lowest stage. Only backwards and W can run after its last F, whose own
backward starts a round trip later. Memory bounds the work that fits into either round trip; the
rest of the round trip is idle. Workspace is not counted.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import NamedTuple

from ppopt.problem.traits import ArgumentClass, Trait, rechecked
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.precedence import Precedence

HANDLES = rechecked(ArgumentClass.EQUAL_MICROBATCHES, (Trait.SPAN,))
"""Traits that the argument handles."""


class Filler(NamedTuple):
    """Operations that may fill a round trip: the time and the memory of each."""

    time: int
    memory: int
    max_count: int
    """How many there are."""


def min_idle(claim: Claim, device: int, each: Precedence) -> int:
    """Time that a device must idle, in ticks; 0 if the argument does not apply.

    `each` is of one microbatch. After a last F that takes no time none is forced: another operation
    of duration 0 may share its instant.
    """
    stages, batches = claim.pipeline.hosted[0][device], claim.pipeline.batches
    if not claim.has_only(HANDLES) or not stages:
        return 0
    times: list[list[int]] = claim.costs.times.tolist()
    allocated, freed = claim.memory
    forward, backward, *rest = claim.kinds
    low, high = stages[0], stages[-1]
    stashed = [allocated[forward][stage] - freed[forward][stage] for stage in stages]
    headroom = claim.pipeline.ticks.headroom(device)
    fillers = [
        Filler(times[forward][stage], memory, batches)
        for stage, memory in zip(stages, stashed, strict=True)
    ]
    wait = times[forward][low] + each.time_between((forward, low, 0, 0), (backward, high, 0, 0))
    before, after = max(0, wait - filled(fillers, headroom)), 0
    if times[forward][high]:
        fillers = [
            Filler(sum(times[kind][stage] for kind in claim.kinds[1:]), memory, batches - 1)
            for stage, memory in zip(stages, stashed, strict=True)
        ]
        fillers += [
            Filler(times[kind][stage], freed[kind][stage] - allocated[kind][stage], batches - 1)
            for kind, stage in product(rest, stages)
        ]
        wait = each.time_between((forward, high, 0, 0), (backward, high, 0, 0))
        remaining = None if headroom is None else headroom - sum(stashed)
        after = max(0, wait - filled(fillers, remaining))
    tight = headroom is not None and batches * sum(stashed) > headroom
    return before + after if tight else max(before, after)


def filled(fillers: list[Filler], headroom: int | None) -> int:
    """Upper bound on the total time of fillers that fit into `headroom` together, in ticks.

    With several kinds of fillers, the bound is the fractional knapsack's: the minimum over prices
    per unit of memory of the headroom's price plus what each filler is worth above its own price.
    """
    if headroom is None:
        return sum(filler.time * filler.max_count for filler in fillers)
    if headroom < 0:
        return 0
    if len(fillers) == 1:
        (only,) = fillers
        fitting = headroom // only.memory if only.memory else only.max_count
        return only.time * min(only.max_count, fitting)
    prices = [Fraction(filler.time, filler.memory) for filler in fillers if filler.memory]
    worth = [
        price * headroom
        + sum(f.max_count * max(Fraction(0), f.time - price * f.memory) for f in fillers)
        for price in [Fraction(0), *prices]
    ]
    return int(min(worth))
