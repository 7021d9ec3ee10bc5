"""Idle time that memory forces on a device, before its first backward and after its last F.

Only F can run before a device's first backward. That backward comes a round trip after the F of
the same microbatch on the device's lowest stage. Only backwards and W can run after its last F,
whose own backward comes a round trip later. Memory bounds the work that fits into either round
trip; what is left of it is idle. What an operation holds only while it runs is not counted.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from ppopt.problem.operation import OpKind
from ppopt.problem.traits import BESIDE_COMPUTE, Trait
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.route_times import RouteTimes

HANDLES = BESIDE_COMPUTE | {Trait.FROZEN, Trait.SPAN}
"""Traits that the argument handles."""


class Filler(NamedTuple):
    """Operations that may fill a round trip: the time and the memory of each."""

    time: int
    memory: int
    most: int
    """How many there are."""


def least_idle(claim: Claim, device: int) -> int:
    """Time that a device must idle, in ticks; 0 if the argument does not apply."""
    pipeline = claim.pipeline
    stages = pipeline.hosted[0][device]
    if not claim.has_only(HANDLES) or not stages:
        return 0
    before, after = _before_backward(claim, stages), _after_forward(claim, stages)
    room = pipeline.ticks.headroom(device)
    whole = pipeline.batches * sum(claim.kept(stage) for stage in stages)
    return before + after if room is not None and whole > room else max(before, after)


def _before_backward(claim: Claim, stages: tuple[int, ...]) -> int:
    pipeline, ticks, hosts = claim.pipeline, claim.pipeline.ticks, claim.pipeline.hosts[0]
    times, low, high = RouteTimes(claim, hosts), stages[0], stages[-1]
    wait = times.way(OpKind.F, high) - times.way(OpKind.F, low)
    wait += ticks.durations[OpKind.F][high] + times.round_trip(high)
    fillers = [
        Filler(ticks.durations[OpKind.F][stage], claim.kept(stage), pipeline.batches)
        for stage in stages
    ]
    return max(0, wait - filled(fillers, ticks.headroom(hosts[low])))


def _after_forward(claim: Claim, stages: tuple[int, ...]) -> int:
    """The round trip of the last F, of the highest stage; all stages here hold its microbatch.

    0 if that F takes no time: another operation of no time may share its instant.
    """
    pipeline, ticks, high = claim.pipeline, claim.pipeline.ticks, stages[-1]
    if ticks.durations[OpKind.F][high] == 0:
        return 0
    wait = RouteTimes(claim, pipeline.hosts[0]).round_trip(high)
    fillers = []
    for stage in stages:
        own = [ticks.durations[kind][stage] for kind in claim.kinds[1:]]
        fillers.append(Filler(sum(own), claim.kept(stage), pipeline.batches - 1))
        if not claim.fused:
            left = claim.unfinished(stage)
            fillers.append(Filler(own[-1], left, pipeline.batches - 1))
    room = ticks.headroom(pipeline.hosts[0][high])
    if room is not None:
        room -= sum(claim.kept(stage) for stage in stages)
    return max(0, wait - filled(fillers, room))


def filled(fillers: list[Filler], room: int | None) -> int:
    """Upper bound on the time of fillers that fit into `room` together, in ticks.

    Two kinds: every number of the last one is tried. More: at any price per unit of memory, no
    choice within the room takes more than the room's price and what each filler is worth above
    its own; the least of these over all prices is what parts of fillers could take.
    """
    if room is None:
        return sum(filler.time * filler.most for filler in fillers)
    if room < 0:
        return 0
    if len(fillers) <= 2:
        return _tried(fillers, room)
    prices = [Fraction(filler.time, filler.memory) for filler in fillers if filler.memory]
    worth = [
        price * room + sum(f.most * max(Fraction(0), f.time - price * f.memory) for f in fillers)
        for price in [Fraction(0), *prices]
    ]
    return int(min(worth))


def _tried(fillers: list[Filler], room: int) -> int:
    *others, last = fillers
    if not others:
        return last.time * _fit(last, room)
    return max(
        number * last.time + _tried(others, room - number * last.memory)
        for number in range(_fit(last, room) + 1)
    )


def _fit(filler: Filler, room: int) -> int:
    return min(filler.most, room // filler.memory) if filler.memory else filler.most
