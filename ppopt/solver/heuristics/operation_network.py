"""The network of operations: a pipeline as a job shop, and double justification on it.

Devices run one operation at a time, and everything else is precedence with a delay, memory too.
Where a memory limit is a number of microbatches, its precedence is the same for all schedules
(`ppopt.solver.relaxation.device_subset`). Elsewhere the order of allocations and releases of a
given schedule is kept: the i-th allocation waits for the release that made room for it.

Double justification moves every operation as late as possible, then as early as possible
(forward-backward improvement: Li, Willis, EJOR 56, 1992; Valls, Ballestin, Quintanilla,
"Justification and RCPSP: a technique that pays", EJOR 165, 2005). Each pass is a serial schedule
generation: it takes the operations in the order of the given schedule and gives each the first
gap of its device that is long enough. No pass makes a schedule longer, and most make it shorter.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from math import inf
from operator import add
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.instance import Holding
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.problem import Problem
from ppopt.schedule.generation import NEVER
from ppopt.schedule.schedule import Schedule, split_codes
from ppopt.solver.parameters import NetworkParams
from ppopt.solver.relaxation import device_subset
from ppopt.solver.relaxation.delays import Delays
from ppopt.solver.relaxation.device_subset import DeviceSubset
from ppopt.solver.relaxation.symmetry import canonical

Links = list[list[tuple[int, int]]]
"""Per operation: (another one, least distance of their starts in the direction of the pass)."""


class Precedence(NamedTuple):
    """Precedence between operations, for passes forwards and backwards in time."""

    predecessors: Links
    """Per operation: (one that it waits for, least distance of their starts), in ticks."""
    mirrored: Links
    """The same with time reversed: (one that waits for it, least distance of their ends)."""


class OperationNetwork:
    """The operations of a problem, numbered 0, 1, ... in the order of their operation numbers."""

    def __init__(self, problem: Problem, params: NetworkParams = NetworkParams()) -> None:
        pipeline, instance = problem.pipeline, problem.instance
        by_code = np.argsort(np.concatenate(instance.codes))
        number = by_code // instance.batches
        self.problem = problem
        self._params = params
        self.codes: Ints = np.concatenate(instance.codes)[by_code]
        self.kind, self.stage, self.microbatch, _ = split_codes(pipeline, self.codes)
        fields = ("device", "duration", "takes", "gives")
        columns = ([getattr(one, field) for one in instance.classes] for field in fields)
        self.hosts, time, self._takes, self._gives = (
            np.array(column, dtype=np.int64)[number] for column in columns
        )
        self.device: list[int] = self.hosts.tolist()
        self.time: list[int] = time.tolist()
        self.size = len(self.codes)
        kept = frozenset(range(pipeline.num_devices))
        subsets = [DeviceSubset(Delays(instance, route), kept) for route in range(pipeline.routes)]
        self.precedence = self._fixed_precedence(subsets)
        self.tight = [
            device
            for device in sorted(kept)
            if instance.room(device) is not None
            and device_subset.needs_cumulative(subsets[0], device)
        ]

    def _fixed_precedence(self, subsets: list[DeviceSubset]) -> Precedence:
        links = Precedence([[] for _ in self.codes], [[] for _ in self.codes])
        for subset in subsets:
            flow = device_subset.implied_precedence(subset)
            before = np.searchsorted(self.codes, flow.before).tolist()
            after = np.searchsorted(self.codes, flow.after).tolist()
            for first, second, lag in zip(before, after, flow.lag.tolist(), strict=True):
                self._link(links, first, second, lag)
        return links

    def _link(self, links: Precedence, first: int, second: int, lag: int) -> None:
        links.predecessors[second].append((first, self.time[first] + lag))
        links.mirrored[first].append((second, self.time[second] + lag))

    @cached_property
    def successors(self) -> Links:
        """Per operation: (one that waits for it, least distance of their starts), in ticks."""
        links: Links = [[] for _ in self.time]
        for op, before in enumerate(self.precedence.predecessors):
            for other, apart in before:
                links[other].append((op, apart))
        return links

    @cached_property
    def holdings(self) -> dict[int, list[Holding]]:
        """What operations hold, by their numbers here, on every device of `tight`."""
        instance = self.problem.instance
        place = [np.searchsorted(self.codes, codes).tolist() for codes in instance.codes]
        found: dict[int, list[Holding]] = {device: [] for device in self.tight}
        for taker, giver, amount in instance.holdings:
            mine = found.get(instance.classes[taker].device)
            if mine is not None:
                pairs = zip(place[taker], place[giver], strict=True)
                mine += (Holding(first, last, amount) for first, last in pairs)
        for mine in found.values():
            mine.sort(key=lambda one: (self.stage[one.taker], self.microbatch[one.taker], one))
        return found

    def choices(self, inside: Sequence[int]) -> dict[int, int]:
        """Of some operations: what chooses their modes, if all operations of the choice are there.

        There is none where every operation has one mode.
        """
        del inside
        return {}

    def times(self, op: int) -> tuple[int | None, ...]:
        """Times of an operation in its modes, in ticks; None: it is absent."""
        return (self.time[op],)

    def in_first_mode(self, choice: int) -> bool:
        """Whether the operations of a choice are in their first modes."""
        raise KeyError(choice)

    def held(
        self, device: int, choices: Collection[int]
    ) -> Iterator[tuple[Holding, tuple[int, bool] | None]]:
        """What operations hold on a device of `tight`, and in which modes if these are open.

        In the modes of these choices that is (choice, whether they are the first).
        """
        del choices
        return ((one, None) for one in self.holdings[device])

    @cached_property
    def skews(self) -> list[float]:
        """Least and largest skew of the order of starts, in ticks per device.

        Adding d x skew to the sort key of the operations of device d preserves precedence. Skews
        of less than `least_skew` are left out, for example with links from the last device to the
        first.
        """
        low, high = -inf, inf
        for op, links in enumerate(self.successors):
            for other, apart in links:
                ahead = self.device[other] - self.device[op]
                if ahead > 0:
                    low = max(low, -apart / ahead)
                elif ahead < 0:
                    high = min(high, -apart / ahead)
        least = self._params.least_skew * sum(self.time) / self.size
        return [skew for skew in (low, high) if least <= abs(skew) < inf]

    @cached_property
    def _instant(self) -> bool:
        """Whether some operation has no length: starts then do not determine the order."""
        return not all(self.time)

    def precedence_of(self, start: list[int]) -> Precedence:
        """All precedence that a schedule obeys, including the order of its memory allocations."""
        if not self.tight:
            return self.precedence
        links = Precedence(*([list(links) for links in part] for part in self.precedence))
        starts = np.array(start, dtype=np.int64)
        for device in self.tight:
            self._keep_memory(links, device, starts)
        return links

    def _keep_memory(self, links: Precedence, device: int, start: Ints) -> None:
        room = self.problem.instance.room(device)
        assert room is not None
        mine = np.flatnonzero(self.hosts == device)
        takes, gives = mine[self._takes[mine] > 0], mine[self._gives[mine] > 0]
        ends = start + np.array(self.time, dtype=np.int64)
        takes = takes[np.lexsort((ends[takes], start[takes]))]
        gives = gives[np.lexsort((start[gives], ends[gives]))]
        given = np.concatenate([[0], np.cumsum(self._gives[gives])])
        needed = np.searchsorted(given, np.cumsum(self._takes[takes]) - room)
        for chain in (takes.tolist(), gives.tolist()):
            for first, second in pairwise(chain):
                self._link(links, first, second, 0)
        for taker, count in zip(takes.tolist(), needed.tolist(), strict=True):
            if count > 0:
                self._link(links, int(gives[count - 1]), taker, 0)

    @cached_property
    def _work(self) -> Ints:
        """Work of every device, in ticks."""
        work = np.zeros(self.problem.pipeline.num_devices, dtype=np.int64)
        np.add.at(work, self.hosts, np.array(self.time, dtype=np.int64))
        return work

    @cached_property
    def busy(self) -> list[int]:
        """Devices with about the largest work."""
        least = self._params.busy_share * self._work.max()
        busy: list[int] = np.flatnonzero(self._work >= least).tolist()
        return busy

    def double_justified(self, start: list[int], keys: list[float] | None = None) -> list[int]:
        """Starts after one pass backwards in time and one forwards.

        `keys` replaces the order of the backward pass: larger keys go later in time.
        """
        links = self.precedence_of(start)
        late = self._backwards(start, links, keys)
        if self.tight:
            links = self.precedence_of(late)
        return self._forwards(late, links)

    def expedite_backwards(self, start: list[int], count: int, part: float) -> list[int]:
        """Starts after a forward pass in which backwards reach the busiest device sooner.

        Before its first backward that device runs only forwards, which may arrive too slowly. The
        backwards of the first `count` microbatches, on the highest stage of that device and on the
        stages above it, move up in the order by a part of the largest possible gain: that of the
        first microbatch without any delay. Assumes one route.
        """
        links, backward = self.precedence_of(start), self.problem.instance.backward
        stage = int(self.stage[self.hosts == np.argmax(self._work)].max())
        back = (self.kind == backward) & (self.stage >= stage)
        way = np.flatnonzero((self.microbatch == 0) & (self.kind == OpKind.F)).tolist()
        way += np.flatnonzero((self.microbatch == 0) & back).tolist()[::-1]
        arrival = dict.fromkeys(way, 0)
        for op in way:
            before = links.predecessors[op]
            arrival[op] = max(
                (arrival[x] + apart for x, apart in before if x in arrival), default=0
            )
        sooner = int(part * (start[way[-1]] - arrival[way[-1]]))
        keys = np.array(start, dtype=np.int64) - sooner * (back & (self.microbatch < count))
        return self._forwards(start, links, keys.tolist())

    def earliest_starts(self, order: list[int]) -> list[int]:
        """Earliest starts of all operations, in the given order on every device.

        The order must be topological. Memory is ignored.
        """
        start, free = [0] * self.size, [0] * self.problem.pipeline.num_devices
        for op in order:
            begin = free[self.device[op]]
            for other, apart in self.precedence.predecessors[op]:
                begin = max(begin, start[other] + apart)
            start[op] = begin
            free[self.device[op]] = begin + self.time[op]
        return start

    def _backwards(
        self, start: list[int], links: Precedence, keys: list[float] | None
    ) -> list[int]:
        time = self.time
        if keys is not None or self._instant:
            turned = [-key for key in (keys or map(add, start, time))]
            order = _topological_order(turned, links.mirrored, links.predecessors)
            if len(order) < self.size:
                return start
        else:
            places = [(-begin - length, -begin) for begin, length in zip(start, time, strict=True)]
            order = sorted(range(self.size), key=places.__getitem__)
        firsts = self._firsts(start)
        latest = max(firsts)
        mirrored = self._place(order, links.mirrored, [latest - first for first in firsts])
        length = max(map(add, mirrored, time))
        return [length - begin - taken for begin, taken in zip(mirrored, time, strict=True)]

    def _forwards(
        self, start: list[int], links: Precedence, keys: list[int] | None = None
    ) -> list[int]:
        if keys is not None or self._instant:
            order = _topological_order(keys or start, links.predecessors, links.mirrored)
            if len(order) < self.size:
                return start
        else:
            order = sorted(range(self.size), key=start.__getitem__)
        return self._place(order, links.predecessors, self._firsts(start))

    def _firsts(self, start: list[int]) -> list[int]:
        """Origin of the clock of every device: its first operation; for makespan always 0."""
        devices = self.problem.pipeline.num_devices
        if self.problem.objective is Objective.MAKESPAN:
            return [0] * devices
        firsts = np.full(devices, NEVER, dtype=np.int64)
        np.minimum.at(firsts, self.hosts, np.array(start, dtype=np.int64))
        firsts[firsts == NEVER] = 0
        released: list[int] = (firsts - firsts.min()).tolist()
        return released

    def _place(self, order: list[int], links: Links, release: list[int]) -> list[int]:
        """Place each operation, in order, into the first gap of its device that is long enough."""
        start, time, device = [0] * self.size, self.time, self.device
        opens, shuts = [[first] for first in release], [[NEVER] for _ in release]
        for op in order:
            ready = 0
            for other, apart in links[op]:
                reached = start[other] + apart
                if reached > ready:  # noqa: PLR1730  max() costs a tenth of the whole pass
                    ready = reached
            begins, ends, length = opens[device[op]], shuts[device[op]], time[op]
            gap = bisect_right(ends, ready)
            while True:
                begin = begins[gap]
                if begin < ready:  # noqa: PLR1730
                    begin = ready
                end = begin + length
                if end <= ends[gap]:
                    break
                gap += 1
            start[op] = begin
            if begin == begins[gap]:
                if end == ends[gap]:
                    del begins[gap], ends[gap]
                else:
                    begins[gap] = end
            elif end == ends[gap]:
                ends[gap] = begin
            else:
                begins.insert(gap + 1, end)
                ends.insert(gap, begin)
        return start

    def value(self, start: list[int]) -> int:
        """Makespan or largest device span of these starts, in ticks."""
        ends = np.array(start, dtype=np.int64) + np.array(self.time, dtype=np.int64)
        if self.problem.objective is Objective.MAKESPAN:
            return int(ends.max())
        first = np.full(self.problem.pipeline.num_devices, NEVER, dtype=np.int64)
        last = np.zeros_like(first)
        np.minimum.at(first, self.hosts, np.array(start, dtype=np.int64))
        np.maximum.at(last, self.hosts, ends)
        return int((last - first).max())

    def starts(self, schedule: Schedule) -> list[int]:
        """Starts of a schedule of this problem, its microbatches in canonical order."""
        start: list[int] = schedule.start[np.argsort(canonical(schedule))].tolist()
        return start

    def schedule(self, start: list[int]) -> Schedule:
        """The schedule of these starts, the earliest at 0."""
        begin = np.array(start, dtype=np.int64)
        begin -= begin.min()
        end = begin + np.array(self.time, dtype=np.int64)
        return Schedule.from_columns(
            self.problem.pipeline,
            self.kind,
            self.stage,
            self.microbatch,
            self.hosts,
            begin,
            end,
        )


def _topological_order(keys: list[int] | list[float], before: Links, after: Links) -> list[int]:
    """Topological order of the operations by key; operations in a cycle are left out.

    Memory causes cycles if operations of no length take and release memory at one instant.
    """
    missing = [len(links) for links in before]
    heap = [(key, op) for op, key in enumerate(keys) if not missing[op]]
    heapq.heapify(heap)
    order = []
    while heap:
        op = heapq.heappop(heap)[1]
        order.append(op)
        for other, _ in after[op]:
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(heap, (keys[other], other))
    return order
