"""Time that must pass before, after and between operations, whatever the order on a resource.

If an operation waits for X by any chain of rules, and Y waits for it, it runs between X and Y.
Operations of one resource run one after the other: the time from the end of X to the start of Y is
at least their sum. Times are minimum times, alone or in a pair.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from graphlib import TopologicalSorter
from typing import NamedTuple

import numpy as np

from ppopt.problem.operation import AuxiliaryKind, OpKind
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.pair_times import pairs_save
from ppopt.rechecker.quantities import min_work
from ppopt.rechecker.required import Edge, Place, Required
from ppopt.verifier.rows import required as required_rows

Neighbours = Mapping[int, list[tuple[int, int]]]
"""Operations next to each one, with the lag between them."""


class Queue:
    """The operations of one resource, as sets of bits."""

    def __init__(self, *, pairs: bool) -> None:
        """`pairs`: whether F and backwards may run as one, in less time."""
        self._pairs = pairs
        self._members: dict[tuple[int, int], int] = defaultdict(int)
        self.every = 0
        """All its operations."""

    def add(self, kind: int, time: int, bit: int) -> None:
        """Add an operation."""
        self._members[kind, time] |= bit
        self.every |= bit

    def work(self, some: int) -> int:
        """Minimum time of the resource for its operations in a set."""
        times: dict[int, int] = defaultdict(int)
        for (kind, time), members in self._members.items():
            times[kind] += time * (some & members).bit_count()
        return min_work(times, pairs=self._pairs)


class Margins(NamedTuple):
    """Time that must pass before every operation starts, or after it ends.

    From 0, or to the end of the schedule; for the device span, from the first operation of its
    device, or to the last one.
    """

    of: dict[int, int]
    """By number of the operation."""
    at: dict[Place, int]
    """The minimum over all microbatches."""
    on: dict[int, int]
    """The minimum over the operations of a resource, without the optimizer."""


class Precedence:
    """What the rules say of compute and of work once per step."""

    def __init__(self, required: Required, each: Precedence | None = None) -> None:
        """`each` is that of one microbatch; None: this is it."""
        self.required, rows = required, required.rows
        self._claim = required.claim
        self._numbers: list[int] = np.unique(required.number[required.counted]).tolist()
        self._place = required.places()
        self._device, self._resource = rows.device.tolist(), rows.resource.tolist()
        self._time: list[int] = required.shortest.tolist()
        self._before: Neighbours = {number: [] for number in self._numbers}
        self._after: Neighbours = {number: [] for number in self._numbers}
        bit = {number: 1 << index for index, number in enumerate(self._numbers)}
        self._bits = defaultdict[int, int](int, bit)
        """Itself; of what is not counted, the operations that wait for it."""
        for first, then, lag in required.edges:
            if first in self._before and then in self._before:
                self._before[then].append((first, lag))
                self._after[first].append((then, lag))
            elif then in self._before:
                self._bits[first] |= bit[then]
        graph = {then: [first for first, _ in near] for then, near in self._before.items()}
        self._order = list(TopologicalSorter(graph).static_order())
        self._queues: dict[int, dict[int, Queue]] = defaultdict(dict)
        pairs = pairs_save(self._claim.costs)
        for number in self._numbers:
            kind = self._place[number][0]
            if kind != AuxiliaryKind.OPTIMIZER:
                own = self._queues[self._device[number]]
                queue = own.setdefault(self._resource[number], Queue(pairs=pairs))
                queue.add(kind, self._time[number], bit[number])
        self._earlier = _reached(self._order, self._before, bit)
        self._later = _reached(self._order[::-1], self._after, bit)
        self.head: Margins = self._margins(
            self._order, self._before, self._earlier, None if each is None else each.head
        )
        self.tail: Margins = self._margins(
            self._order[::-1], self._after, self._later, None if each is None else each.tail
        )

    @classmethod
    def of_microbatch(cls, claim: Claim) -> Precedence:
        """What they say of one microbatch of every route, and of work once per step."""
        return cls(Required.of_microbatch(claim))

    def _margins(
        self, order: list[int], near: Neighbours, reached: dict[int, int], each: Margins | None
    ) -> Margins:
        """The margins on one side; `each` are those of one microbatch."""
        margins: dict[int, int] = {}
        at, on = dict[Place, int](), dict[int, int]()
        for number in order:
            device, place = self._device[number], self._place[number]
            margin = 0 if each is None else each.at[place]
            for neighbour, lag in near[number]:
                if not self._claim.span or self._device[neighbour] == device:
                    margin = max(margin, margins[neighbour] + self._time[neighbour] + lag)
            for resource, queue in self._queues[device].items():
                if queue.every & reached[number]:
                    first = 0 if each is None else each.on[resource]
                    margin = max(margin, first + queue.work(reached[number]))
            margins[number] = margin
            at[place] = min(margin, at.get(place, margin))
            if place[0] != AuxiliaryKind.OPTIMIZER:
                resource = self._resource[number]
                on[resource] = min(margin, on.get(resource, margin))
        return Margins(margins, at, on)

    def precedes(self, first: int, then: int) -> bool:
        """Whether an operation must end before another one starts, or is that one."""
        return bool(self._bits[first] & (self._earlier.get(then, 0) | self._bits[then]))

    def between(self) -> Iterator[Edge]:
        """Work of a device between the F and the backward of two microbatches, as a lag.

        F(j) and the backward of j + n at one stage, n = 1, 2, 4, ... and the last of the route.
        """
        rows = self.required.rows
        for lanes in rows.expected.lanes_of_routes:
            tables = rows.index(OpKind.F), rows.backward
            forward, backward = (table[:, lanes, 0] for table in tables)
            last = forward.shape[1] - 1
            for step in sorted({min(1 << power, last) for power in range(last.bit_length() + 1)}):
                ends = forward[:, : last + 1 - step], backward[:, step:]
                for first, then in zip(*(end.ravel().tolist() for end in ends), strict=True):
                    if step and {first, then} <= self._before.keys():
                        work = self._later[first] & self._earlier[then]
                        yield (
                            first,
                            then,
                            self._queues[self._device[first]][self._device[first]].work(work),
                        )

    def on_devices(self, claim: Claim, devices: Collection[int]) -> Required:
        """The compute of some devices in all microbatches, with the minimum times between it."""
        every = required_rows(claim.pipeline, costs=claim.costs)
        required = Required(claim, every.take(every.computes & np.isin(every.device, [*devices])))
        for first, ways in self.ways(devices).items():
            for then, lag in ways.items():
                ends = required.row(first), required.row(then)
                required.edges += [(*pair, lag) for pair in zip(*ends, strict=True)]
        return required

    def ways(self, devices: Collection[int]) -> dict[Place, dict[Place, int]]:
        """Minimum times from the end of compute of some devices to the start of other such compute.

        The ways lead through operations of other devices, and through work once per step.
        """
        own = {
            number
            for number in self._numbers
            if self.required.rows.computes[number] and self._device[number] in devices
        }
        through, ways = set(self._numbers) - own, dict[Place, dict[Place, int]]()
        for first in sorted(own):
            times = self._times_from(first, through)
            ways[self._place[first]] = {
                self._place[then]: times[then] for then in sorted(own & times.keys())
            }
        return ways

    def time_between(self, first: Place, then: Place) -> int:
        """Minimum time from the end of an operation to the start of another; 0 if it has none."""
        number = {self._place[number]: number for number in self._numbers}
        return self._times_from(number[first], self._numbers).get(number.get(then, -1), 0)

    def _times_from(self, source: int, through: Collection[int]) -> dict[int, int]:
        """Minimum time from the end of one operation to the start of each that waits for it."""
        times: dict[int, int] = {}
        for number in self._order[self._order.index(source) + 1 :]:
            ways = [
                lag if first == source else times[first] + self._time[first] + lag
                for first, lag in self._before[number]
                if first == source or (first in times and first in through)
            ]
            if ways:
                times[number] = max(ways)
        return times


def _reached(order: list[int], direct: Neighbours, bit: dict[int, int]) -> dict[int, int]:
    """All operations reached from each one, as a set of bits; `order` has `direct` first."""
    reached: dict[int, int] = {}
    for number in order:
        union = 0
        for neighbour, _ in direct[number]:
            union |= reached[neighbour] | bit[neighbour]
        reached[number] = union
    return reached
