"""Reduces claims about unequal microbatches or slices to claims about equal ones.

Microbatches run in their stated order.

One factor multiplies every time of a microbatch, another its memory except workspace. Take any
schedule and make every microbatch as short and as small as the smallest: nothing ends later, and no
microbatch has more live memory at any time. So if the pipeline of the smallest has no schedule
below a bound, neither has this one. The same holds for the pipeline with unlimited memory. If a
microbatch as large as the largest does not fit alone, there is no schedule at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import permutations
from typing import NamedTuple

import numpy as np

from ppopt.problem.operation import OpKind
from ppopt.problem.traits import ArgumentClass, Trait, rechecked
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.quantities import factors_of, slice_factors
from ppopt.verifier.expected import Expected

MAX_ENUMERATED = 6
"""Maximum number of microbatches whose orders are enumerated."""
HANDLES = rechecked(ArgumentClass.EVERY_OPERATION, (Trait.SLICES, Trait.SPAN))
"""Traits that the argument of a round trip handles."""
UNEQUAL = frozenset({Trait.MICROBATCHES, Trait.UNEQUAL_SLICES})


def simpler(claim: Claim) -> tuple[Claim, ...]:
    """Claims that each imply this one; the claim itself if its microbatches are equal."""
    if not claim.traits & UNEQUAL:
        return (claim,)
    unlimited = claim.pipeline.having(mem_limit=None, microbatch_memory=None)
    return of_smallest(claim), claim._replace(pipeline=unlimited)


def of_smallest(claim: Claim) -> Claim:
    """A claim of equal microbatches and slices that implies this one."""
    if not claim.traits & UNEQUAL:
        return claim
    time, memory = map(min, zip(*factors_of(claim), strict=True))
    return _equal(claim, time * min(slice_factors(claim)), memory)


def of_largest(claim: Claim) -> list[Claim]:
    """Per route, the claim in which all microbatches equal its largest."""
    factors, share = factors_of(claim), claim.pipeline.batches // claim.pipeline.routes
    return [
        _equal(claim, *map(max, zip(*factors[first : first + share], strict=True)))
        for first in range(0, len(factors), share)
    ]


def claims_of_orders(claim: Claim) -> dict[str, Claim] | None:
    """The claim of every order of the microbatches, by its name; None if there are too many."""
    positions = range(claim.pipeline.batches)
    if len(positions) > MAX_ENUMERATED:
        return None
    factors = factors_of(claim)
    orders = {
        tuple(factors[position] for position in order): order for order in permutations(positions)
    }
    return {
        f"order {','.join(map(str, order))}": claim.for_pipeline(claim.pipeline.reordered(order))
        for order in orders.values()
    }


class _RoundTrip(NamedTuple):
    """Times of one device around the round trip of a microbatch, in ticks at a factor of 1.

    The factor does not multiply the times of links.
    """

    before: Fraction
    """F of a stage and of those below it on the device, of all slices."""
    behind: Fraction
    """Their backwards."""
    way: Fraction
    """From a last slice's F of the stage to its backward, on the stages above."""
    head: Fraction
    tail: Fraction
    links: int
    """Of the way, the head and the tail."""
    link_of_way: int

    def around(self, factor: Fraction) -> Fraction:
        """Time of a microbatch from its first operation counted to its last."""
        return factor * (self.before + self.way + self.behind)

    def in_order(self, factors: list[Fraction]) -> Fraction:
        """Minimum time of all microbatches in this order, from each of them and from the work."""
        ends = self.head * factors[0] + self.tail * factors[-1] + self.links
        done, remaining, values = Fraction(0), sum(factors, Fraction(0)), []
        values.append((self.before + self.behind) * remaining - self.link_of_way)
        for factor in factors:
            remaining -= factor
            values.append(self.before * done + self.around(factor) + self.behind * remaining)
            done += factor
        return ends + max(values)

    def in_any_order(self, factors: list[Fraction]) -> Fraction:
        """Minimum of `in_order` over all orders, from the largest microbatch and from the work."""
        *smaller, largest = sorted(factors)
        if not smaller:
            return self.in_order(factors)
        rest, smallest = sum(smaller, Fraction(0)), smaller[0]
        last = self.head * smallest + self.before * rest + self.tail * largest
        first = self.head * largest + self.behind * rest + self.tail * smallest
        ways = [last, first]
        if len(smaller) > 1:
            low = min(self.before, self.behind)
            ends = self.head + self.before - low, self.tail + self.behind - low
            ways.append(low * rest + min(ends) * smaller[1] + max(ends) * smallest)
        both = sorted(factors)[:2]
        work = (self.before + self.behind) * (rest + largest) - self.link_of_way
        work += min(self.head, self.tail) * both[1] + max(self.head, self.tail) * both[0]
        return self.links + max(work, self.around(largest) + min(ways))


def by_round_trip(claim: Claim, *, any_order: bool) -> tuple[int, str] | None:
    """A device that proves a claim by the round trip of a microbatch, and the argument; else None.

    All stages run all kinds in one order. So before F of a microbatch, the device runs F of all
    earlier microbatches, and after its backward all backwards of later ones. The largest microbatch
    is first, last, or between two others.
    """
    if claim.bound is None or claim.mixed or not claim.has_only(HANDLES):
        return None
    factors = [times for times, _ in factors_of(claim)]
    delays = Expected(claim.pipeline, np.array([0]), unlisted=0).delays
    down, up = (ticks[:, 0].tolist() for ticks in delays)
    for stage, device in enumerate(claim.pipeline.hosts[0]):
        if claim.has(claim.kinds[1], stage):
            trip = _round_trip(claim, stage, down, up)
            min_time = trip.in_any_order(factors) if any_order else trip.in_order(factors)
            if min_time >= claim.bound:
                text = claim.pipeline.time_text(int(min_time))
                work = f"the round trip of a microbatch from stage {stage}, or all its work"
                return device, f"device {device} alone needs {text}: {work}, and its remaining work"
    return None


def _round_trip(claim: Claim, stage: int, down: list[int], up: list[int]) -> _RoundTrip:
    """The round trip from a stage, with the delays after every stage and back to it."""
    hosts, costs = claim.pipeline.hosts[0], claim.costs
    times = costs.times[: len(costs.exists)] * costs.exists
    forward, backward, *rest = claim.kinds
    own = [index for index in range(stage + 1) if hosts[index] == hosts[stage]]
    above, below = range(stage + 1, len(hosts)), range(own[0])
    slices = slice_factors(claim)
    whole = sum(slices, Fraction(0))

    def total(kinds: Sequence[OpKind], stages: Sequence[int]) -> int:
        return int(times[[*kinds]][:, [*stages]].sum())

    head, tail, at_ends = Fraction(0), Fraction(0), 0
    if not claim.span:
        head, at_ends = slices[0] * total([forward], below), sum(down[: own[0]])
    if not claim.span and claim.fused:
        tail = slices[0] * total([backward], below)
        at_ends += sum(up[index] for index in below if claim.has(backward, index))
    of_way = sum(down[stage:]) + sum(up[stage:])
    return _RoundTrip(
        before=whole * total([forward], own),
        behind=whole * total([backward, *rest], own),
        way=slices[-1] * total([forward, backward], above),
        head=head,
        tail=tail,
        links=at_ends + of_way,
        link_of_way=of_way,
    )


def _equal(claim: Claim, time: Fraction, memory: Fraction) -> Claim:
    """The claim whose microbatches all have these factors."""
    costs = claim.costs.multiplied(claim.pipeline, time, memory)
    fields = dict.fromkeys(("microbatch_times", "microbatch_memory", "slice_times"))
    equal = claim.pipeline.having(**fields, mem_limit=claim.pipeline.limits)
    return claim._replace(pipeline=equal, relaxed=costs)
