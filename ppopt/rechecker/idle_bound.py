"""Idle time that memory forces on a device, before its first backward and after its last F.

Only F can run before a device's first backward, which starts a round trip after the F of the same
microbatch on the device's lowest stage. Only backwards and W can run after its last F, whose own
backward starts a round trip later. Memory bounds the work that fits into either round trip; the
rest of the round trip is idle. Workspace is not counted.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from ppopt.problem.operation import OpKind
from ppopt.problem.traits import ArgumentClass, Trait, rechecked
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.precedence import Precedence
from ppopt.rechecker.quantities import live_after_forward, live_before_weight

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

    `each` is of one microbatch.
    """
    pipeline = claim.pipeline
    stages = pipeline.hosted[0][device]
    if not claim.has_only(HANDLES) or not stages:
        return 0
    before, after = _before_backward(claim, stages, each), _after_forward(claim, stages, each)
    headroom = pipeline.ticks.headroom(device)
    whole = pipeline.batches * sum(live_after_forward(claim, stage) for stage in stages)
    return before + after if headroom is not None and whole > headroom else max(before, after)


def _before_backward(claim: Claim, stages: tuple[int, ...], each: Precedence) -> int:
    pipeline, ticks = claim.pipeline, claim.pipeline.ticks
    forward, backward = claim.kinds[:2]
    low, high = (forward, stages[0], 0, 0), (backward, stages[-1], 0, 0)
    wait = ticks.durations[OpKind.F][stages[0]] + each.time_between(low, high)
    fillers = [
        Filler(ticks.durations[OpKind.F][stage], live_after_forward(claim, stage), pipeline.batches)
        for stage in stages
    ]
    return max(0, wait - filled(fillers, ticks.headroom(pipeline.hosts[0][stages[0]])))


def _after_forward(claim: Claim, stages: tuple[int, ...], each: Precedence) -> int:
    """Idle time in the round trip of the last F, of the highest stage, while its activations live.

    0 if that F takes no time: another operation of duration 0 may share its instant.
    """
    pipeline, ticks, high = claim.pipeline, claim.pipeline.ticks, stages[-1]
    if ticks.durations[OpKind.F][high] == 0:
        return 0
    wait = each.time_between(*((kind, high, 0, 0) for kind in claim.kinds[:2]))
    fillers = []
    for stage in stages:
        own = [ticks.durations[kind][stage] for kind in claim.kinds[1:]]
        fillers.append(Filler(sum(own), live_after_forward(claim, stage), pipeline.batches - 1))
        if not claim.fused:
            pending = live_before_weight(claim, stage)
            fillers.append(Filler(own[-1], pending, pipeline.batches - 1))
    headroom = ticks.headroom(pipeline.hosts[0][high])
    if headroom is not None:
        headroom -= sum(live_after_forward(claim, stage) for stage in stages)
    return max(0, wait - filled(fillers, headroom))


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
