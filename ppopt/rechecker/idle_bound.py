"""Idle time that memory forces on a device, before its first backward and after its last F.

Only F can run before a device's first backward, which starts a round trip after the F of the same
microbatch on the device's lowest stage. Only backwards and W can run after its last F, whose own
backward starts a round trip later. Memory bounds the work that fits into either round trip; the
rest of the round trip is idle. Workspace is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from ppopt.problem.traits import ArgumentClass, Trait, rechecked
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.precedence import Precedence

HANDLES = rechecked(ArgumentClass.EQUAL_MICROBATCHES, (Trait.SPAN,))
"""Traits that the argument handles."""


class StageCosts(NamedTuple):
    """Costs of one microbatch on a stage, as `ppopt.rechecker.device_time` defines them."""

    f: int
    g: int
    r: int
    k: int
    p: int


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
    forward, backward, *rest = claim.kinds
    times, (allocated, freed) = claim.costs.times.tolist(), claim.memory
    costs = [
        StageCosts(
            times[forward][stage],
            times[backward][stage],
            sum(times[kind][stage] for kind in rest),
            allocated[forward][stage] - freed[forward][stage],
            sum(freed[kind][stage] - allocated[kind][stage] for kind in rest),
        )
        for stage in stages
    ]
    headroom, first = claim.pipeline.ticks.headroom(device), (forward, stages[0], 0, 0)
    last, turn = (forward, stages[-1], 0, 0), (backward, stages[-1], 0, 0)
    wait = costs[0].f + each.time_between(first, turn)
    before = max(0, wait - filled([Filler(c.f, c.k, batches) for c in costs], headroom))
    open_work = max_backwards(costs, batches - 1, headroom, split=not claim.fused)
    after = max(0, each.time_between(last, turn) - open_work) if costs[-1].f else 0
    return before + after if is_tight(costs, batches, headroom) else max(before, after)


def is_tight(costs: Sequence[StageCosts], batches: int, headroom: int | None) -> bool:
    """Whether F of all microbatches exceed the headroom: then the waits follow one another."""
    return headroom is not None and batches * sum(c.k for c in costs) > headroom


def max_backwards(
    costs: Sequence[StageCosts], count: int, headroom: int | None, *, split: bool
) -> int:
    """Maximum backward work of other microbatches that is open when the last F starts.

    What F keeps of its microbatch on all stages is live, and `count` microbatches fit into the
    rest of the headroom. If backwards are split, only the W of a microbatch may be open.
    """
    fillers = [Filler(c.g + c.r, c.k, count) for c in costs]
    fillers += [Filler(c.r, c.p, count) for c in costs if split]
    return filled(fillers, None if headroom is None else headroom - sum(c.k for c in costs))


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
