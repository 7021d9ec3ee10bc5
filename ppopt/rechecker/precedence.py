"""Precedence in every schedule, and the work that a device must do between two operations.

Three rules say that an operation starts after another one ends: the data flow, the order of
microbatches (see `ppopt.rechecker.feasibility_model`), and memory, by counting. If an operation
waits for X by any chain of these rules, and Y waits for it, it runs between X and Y. Operations of
one device run one after the other: the time from the end of X to the start of Y is at least their
sum. Times are minimum times, alone or in a pair. This work replaces the device's own rules if they
are left out.

If a pipeline is too large for that, only the operations of a few devices are stated: the delay
between their stages is the time of all stages between.
"""

from __future__ import annotations

from graphlib import TopologicalSorter

from ppopt.problem.operation import Op, OpKind
from ppopt.rechecker.arithmetic import head
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.quantities import (
    device_of,
    microbatches_of_routes,
    min_work,
    num_operations,
    shortest_durations,
)
from ppopt.rechecker.route import Route

MAX_OPERATIONS = 30_000
"""Maximum number of operations if all are stated; sets of them need its square in bits."""


class Rules:
    """What is known of every schedule without choosing an order on any device."""

    def __init__(self, claim: Claim, devices: frozenset[int]) -> None:
        """State the rules of all operations or, if these are too many, of those of `devices`."""
        self.claim = claim
        every = frozenset(range(claim.pipeline.num_devices))
        self.all = num_operations(claim) <= MAX_OPERATIONS
        """Whether all operations are stated."""
        routes = [
            Route(claim, route, every if self.all else devices)
            for route in microbatches_of_routes(claim)
        ]
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
        """Minimum time from its end to the end of the schedule, or (span) of its device."""
        return self._ahead.get(op, 0)

    def _follow_chains(self, routes: list[Route]) -> None:
        before: dict[Op, list[Op]] = {op: [] for op in self.operations}
        after: dict[Op, list[Op]] = {op: [] for op in before}
        for first, then, _ in self.apart:
            before[then].append(first)
            after[first].append(then)
        order = list(TopologicalSorter(before).static_order())
        bit = {op: 1 << index for index, op in enumerate(before)}
        earlier, later = _reached(order, before, bit), _reached(order[::-1], after, bit)
        work = [_Work(self.claim, d, bit) for d in range(self.claim.pipeline.num_devices)]
        for op in order:
            device_work = work[device_of(self.claim, op)]
            self._behind[op] = device_work.head + device_work.of(earlier[op])
            self._ahead[op] = device_work.of(later[op])
        for first, then in (pair for route in routes for pair in route.pairs()):
            between = work[device_of(self.claim, first)].of(later[first] & earlier[then])
            self.apart.append((first, then, between))


def _reached(order: list[Op], direct: dict[Op, list[Op]], bit: dict[Op, int]) -> dict[Op, int]:
    """All operations reached from each one, as a set of bits; `order` has `direct` first."""
    reached: dict[Op, int] = {}
    for op in order:
        union = 0
        for neighbour in direct[op]:
            union |= reached[neighbour] | bit[neighbour]
        reached[op] = union
    return reached


class _Work:
    """A device: the way to its first operation (makespan), and the work of sets of operations."""

    def __init__(self, claim: Claim, device: int, bit: dict[Op, int]) -> None:
        self.head = head(claim, device)
        self._claim = claim
        self._members: dict[tuple[OpKind, int], int] = {}
        min_durations = shortest_durations(claim)
        for op, own_bit in bit.items():
            if device_of(claim, op) == device:
                key = op.kind, min_durations[op.kind][op.stage]
                self._members[key] = self._members.get(key, 0) | own_bit

    def of(self, some: int) -> int:
        """Time of the device's operations in the set."""
        times: dict[OpKind, int] = {}
        for (kind, time), members in self._members.items():
            times[kind] = times.get(kind, 0) + time * (some & members).bit_count()
        return min_work(self._claim, times)
