"""Who waits for whom in every schedule, and what work a device must do between two operations.

Three rules say that an operation starts after another one ends: the data flow, the order of
microbatches (see `ppopt.rechecker.model`), and memory, by counting. An operation that waits, by
any chain of these, for X, and for which Y waits, runs between X and Y. If all are of one device,
they run one after the other: from the end of X to the start of Y there is time for all of them.
Where a device's own rules are left out, this stands for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import TopologicalSorter
from itertools import pairwise

from ppopt.op import Op, OpKind
from ppopt.rechecker.arithmetic import head
from ppopt.rechecker.claim import Claim

MOST_OPERATIONS = 30_000
"""Most operations for which chains are followed: the sets take the square of it in bits."""
Apart = tuple[Op, Op, int]
"""(before, after, lag): `after` starts `lag` or more after the end of `before`."""


class Rules:
    """What is known of every schedule without choosing an order on any device."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.apart: list[Apart] = [*_flow(claim), *_in_order(claim), *_room(claim)]
        """The three rules, and the work between pairs of operations."""
        self._behind: dict[Op, int] = {}
        self._ahead: dict[Op, int] = {}
        if sum(1 for _ in claim.operations()) <= MOST_OPERATIONS:
            self._follow_chains()

    def behind(self, op: Op) -> int:
        """Time that its device has needed when it starts, from 0 or (span) its first operation."""
        return self._behind.get(op, 0)

    def ahead(self, op: Op) -> int:
        """Work that its device has left when it ends."""
        return self._ahead.get(op, 0)

    def _follow_chains(self) -> None:
        before: dict[Op, list[Op]] = {op: [] for op in self.claim.operations()}
        after: dict[Op, list[Op]] = {op: [] for op in before}
        for first, then, _ in self.apart:
            before[then].append(first)
            after[first].append(then)
        order = list(TopologicalSorter(before).static_order())
        bit = {op: 1 << place for place, op in enumerate(before)}
        earlier, later = _reached(order, before, bit), _reached(order[::-1], after, bit)
        work = [_Work(self.claim, d, bit) for d in range(self.claim.pipeline.num_devices)]
        for op in order:
            mine = work[self.claim.device(op)]
            self._behind[op] = mine.head + mine.of(earlier[op])
            self._ahead[op] = mine.of(later[op])
        for first, then in _pairs(self.claim):
            self.apart.append(
                (first, then, work[self.claim.device(first)].of(later[first] & earlier[then]))
            )


def _reached(order: list[Op], direct: dict[Op, list[Op]], bit: dict[Op, int]) -> dict[Op, int]:
    """All that is reached from every operation, as a set of bits; `order` has `direct` first."""
    reached: dict[Op, int] = {}
    for op in order:
        union = 0
        for other in direct[op]:
            union |= reached[other] | bit[other]
        reached[op] = union
    return reached


class _Work:
    """A device: the way to its first operation (makespan), and the work of sets of operations."""

    def __init__(self, claim: Claim, device: int, bit: dict[Op, int]) -> None:
        self.head = head(claim, device)
        self._members: dict[int, int] = {}
        for op, one in bit.items():
            if claim.device(op) == device:
                time = claim.time(op)
                self._members[time] = self._members.get(time, 0) | one

    def of(self, some: int) -> int:
        """Time of those operations in the set that are the device's."""
        return sum(time * (some & members).bit_count() for time, members in self._members.items())


def _pairs(claim: Claim) -> Iterator[tuple[Op, Op]]:
    """Pairs between which there may be more work than the rules themselves show.

    F(j) and the backward of j + n at one stage, n = 1, 2, 4, ... and the last of the route.
    """
    forward, backward = claim.kinds[:2]
    for route in claim.routes():
        steps = {min(1 << power, len(route) - 1) for power in range(len(route).bit_length())}
        for stage in range(claim.pipeline.num_stages):
            for step in sorted(steps - {0}):
                for first, then in zip(route, route[step:], strict=False):
                    yield Op(forward, stage, first), Op(backward, stage, then)


def _flow(claim: Claim) -> Iterator[Apart]:
    """Activations go down, gradients go up; within a stage the kinds follow each other."""
    p2p, stages = claim.pipeline.ticks.p2p, range(claim.pipeline.num_stages)
    forward, backward = claim.kinds[:2]
    for microbatch in range(claim.pipeline.batches):
        for stage in stages:
            for first, then in pairwise(claim.kinds):
                yield Op(first, stage, microbatch), Op(then, stage, microbatch), 0
        for low, high in pairwise(stages):
            here, there = (claim.pipeline.device(stage, microbatch) for stage in (low, high))
            yield Op(forward, low, microbatch), Op(forward, high, microbatch), p2p[here][there]
            yield Op(backward, high, microbatch), Op(backward, low, microbatch), p2p[there][here]


def _in_order(claim: Claim) -> Iterator[Apart]:
    """The k-th operation of its kind, stage and route is that of the k-th microbatch."""
    for route in claim.routes():
        for stage in range(claim.pipeline.num_stages):
            for kind in claim.kinds:
                for microbatch, following in pairwise(route):
                    yield Op(kind, stage, microbatch), Op(kind, stage, following), 0


def _room(claim: Claim) -> Iterator[Apart]:
    """As many microbatches of one stage as memory has room for; one must end to start another.

    From the start of F to the end of B (BW) a microbatch holds its activation, to the end of W
    what B leaves of it. In order, with `many` of them held and F(j) starting, one of 0 .. j-1 is
    over, and then j - many is.
    """
    ticks = claim.pipeline.ticks
    if ticks.limits is None:
        return
    for route in claim.routes():
        for stage in range(claim.pipeline.num_stages):
            device = claim.pipeline.device(stage, route[0])
            room = ticks.limits[device] - ticks.static[device]
            held = ticks.activation[stage]
            for kind in claim.kinds[1:]:
                if kind is OpKind.W:
                    held += min(0, ticks.memory_b[stage])
                if held and 0 < (many := room // held) < len(route):
                    for over, microbatch in zip(route, route[many:], strict=False):
                        yield Op(kind, stage, over), Op(OpKind.F, stage, microbatch), 0
