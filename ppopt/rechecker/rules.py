"""Precedence in every schedule, and the work that a device must do between two operations.

Three rules say that an operation starts after another one ends: the data flow, the order of
microbatches (see `ppopt.rechecker.model`), and memory, by counting. An operation that waits, by
any chain of these, for X, and for which Y waits, runs between X and Y. If all are of one device,
they run one after the other: from the end of X to the start of Y there is time for all of them.
Times are the least that operations take, alone or in a pair.
If a device's own rules are left out, this stands for them.

Of a pipeline too large for that, the operations of a few devices are stated alone: the way between
their stages takes the time of all stages passed.
"""

from __future__ import annotations

from graphlib import TopologicalSorter

from ppopt.problem.operation import Op, OpKind
from ppopt.rechecker.arithmetic import head
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.route import Route

MOST_OPERATIONS = 30_000
"""Most operations that are all stated; sets of them take the square of it in bits."""


class Rules:
    """What is known of every schedule without choosing an order on any device."""

    def __init__(self, claim: Claim, devices: frozenset[int]) -> None:
        """State the rules of all operations or, if these are too many, of those of `devices`."""
        self.claim = claim
        every = frozenset(range(claim.pipeline.num_devices))
        self.all = claim.size <= MOST_OPERATIONS
        """Whether all operations are stated."""
        routes = [Route(claim, route, every if self.all else devices) for route in claim.routes()]
        self.operations = [op for route in routes for op in route.operations()]
        """The operations stated."""
        self.apart = [apart for route in routes for apart in route.apart()]
        """The three rules, and the work between pairs of operations."""
        self._behind: dict[Op, int] = {}
        self._ahead: dict[Op, int] = {}
        if self.all:
            self._follow_chains(routes)
        elif not claim.span:
            for route in routes:
                self._behind |= route.heads()
                self._ahead |= route.tails()

    def behind(self, op: Op) -> int:
        """Time that has passed when it starts, from 0 or (span) its device's first operation."""
        return self._behind.get(op, 0)

    def ahead(self, op: Op) -> int:
        """Time that is left when it ends, at least."""
        return self._ahead.get(op, 0)

    def _follow_chains(self, routes: list[Route]) -> None:
        before: dict[Op, list[Op]] = {op: [] for op in self.operations}
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
        for first, then in (pair for route in routes for pair in route.pairs()):
            between = work[self.claim.device(first)].of(later[first] & earlier[then])
            self.apart.append((first, then, between))


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
        self._claim = claim
        self._members: dict[tuple[OpKind, int], int] = {}
        least = claim.least
        for op, own_bit in bit.items():
            if claim.device(op) == device:
                key = op.kind, least[op.kind][op.stage]
                self._members[key] = self._members.get(key, 0) | own_bit

    def of(self, some: int) -> int:
        """Time that those operations in the set take that are the device's."""
        times: dict[OpKind, int] = {}
        for (kind, time), members in self._members.items():
            times[kind] = times.get(kind, 0) + time * (some & members).bit_count()
        return self._claim.work(times)
