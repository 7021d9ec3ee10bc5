"""Justification: move every operation as late as it can go, then as early as it can go.

Forward-backward improvement (Li, Willis, EJOR 56, 1992; Valls, Ballestin, Quintanilla,
"Justification and RCPSP: a technique that pays", EJOR 165, 2005). Each pass takes the operations
in the order of the schedule before it and gives each the first gap of its device that is long
enough, so that no pass makes a schedule longer and most make it shorter.

A pipeline is a job shop here: devices run one operation at a time, and everything else is a
precedence with a delay. Memory is one too where it counts microbatches
(`ppopt.solver.cp_sat.device_subset`). Elsewhere the schedule's own order of taking and giving back
is kept: the i-th taking waits for the giving back without which it would not have had room.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from functools import cached_property
from itertools import pairwise
from math import inf
from operator import add
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.instance import devices, durations
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.problem import Problem
from ppopt.schedule.list_scheduling import NEVER
from ppopt.schedule.metrics import memory_changes
from ppopt.schedule.schedule import Schedule, split_codes
from ppopt.solver.cp_sat import device_subset
from ppopt.solver.cp_sat.delays import Delays
from ppopt.solver.cp_sat.device_subset import DeviceSubset
from ppopt.solver.cp_sat.symmetry import renamed

BUSY = 0.97
"""Least work of a busy device, as a part of the most."""
STEEP = 0.25
"""Least slant of an order, as a part of the mean time of an operation."""
Links = list[list[tuple[int, int]]]
"""Per operation: (another one, least distance of their starts in the direction of the pass)."""


class Arcs(NamedTuple):
    """Precedence between operations, for passes forwards and backwards in time."""

    ahead: Links
    behind: Links


class Shop:
    """The operations of a problem, numbered 0, 1, ... in the order of their operation numbers."""

    def __init__(self, problem: Problem) -> None:
        pipeline = problem.pipeline
        kept = frozenset(range(pipeline.num_devices))
        views = [
            DeviceSubset(Delays(problem.instance, route), kept) for route in range(pipeline.routes)
        ]
        self.problem = problem
        self.codes: Ints = np.sort(np.concatenate([view.operations for view in views]))
        self.kind, self.stage, self.microbatch, _ = split_codes(pipeline, self.codes)
        hosts = devices(pipeline)[self.stage, self.microbatch]
        self.hosts: Ints = hosts
        self.device: list[int] = hosts.tolist()
        self.time: list[int] = durations(pipeline)[self.codes].tolist()
        self.size = len(self.codes)
        self.fixed = self._arcs(views)
        self.tight = [
            device for device in sorted(kept) if device_subset.needs_cumulative(views[0], device)
        ]
        if pipeline.ticks.limits is None:
            self.tight = []

    def _arcs(self, views: list[DeviceSubset]) -> Arcs:
        arcs = Arcs([[] for _ in self.codes], [[] for _ in self.codes])
        for view in views:
            flow = device_subset.implied_precedence(view)
            before = np.searchsorted(self.codes, flow.before).tolist()
            after = np.searchsorted(self.codes, flow.after).tolist()
            for first, second, lag in zip(before, after, flow.lag.tolist(), strict=True):
                self._link(arcs, first, second, lag)
        return arcs

    def _link(self, arcs: Arcs, first: int, second: int, lag: int) -> None:
        arcs.ahead[second].append((first, self.time[first] + lag))
        arcs.behind[first].append((second, self.time[second] + lag))

    @cached_property
    def following(self) -> Links:
        """Per operation: (one that waits for it, least distance of their starts in time)."""
        links: Links = [[] for _ in self.time]
        for op, before in enumerate(self.fixed.ahead):
            for other, apart in before:
                links[other].append((op, apart))
        return links

    @cached_property
    def slants(self) -> list[float]:
        """Least and most ticks per device between which the order of starts may be slanted.

        Operations on device d then count as later by d times so much, and still none counts as
        earlier than what it waits for. Where hardly any slant is left, as with links from the last
        device to the first, none is given.
        """
        low, high = -inf, inf
        for op, links in enumerate(self.following):
            for other, apart in links:
                ahead = self.device[other] - self.device[op]
                if ahead > 0:
                    low = max(low, -apart / ahead)
                elif ahead < 0:
                    high = min(high, -apart / ahead)
        steep = STEEP * sum(self.time) / self.size
        return [slant for slant in (low, high) if steep <= abs(slant) < inf]

    @cached_property
    def _instant(self) -> bool:
        """Whether some operation takes no time: start and end then leave its order open."""
        return not all(self.time)

    def arcs(self, start: list[int]) -> Arcs:
        """All precedence that a schedule's memory keeps to."""
        if not self.tight:
            return self.fixed
        arcs = Arcs(*([list(links) for links in part] for part in self.fixed))
        starts = np.array(start, dtype=np.int64)
        for device in self.tight:
            self._keep_memory(arcs, device, starts)
        return arcs

    def _keep_memory(self, arcs: Arcs, device: int, start: Ints) -> None:
        room = self.problem.pipeline.ticks.room(device)
        assert room is not None
        mine = np.flatnonzero(self.hosts == device)
        change = self._change[mine]
        takes, gives = mine[change > 0], mine[change < 0]
        ends = start + np.array(self.time, dtype=np.int64)
        takes = takes[np.lexsort((ends[takes], start[takes]))]
        gives = gives[np.lexsort((start[gives], ends[gives]))]
        given = np.concatenate([[0], np.cumsum(-self._change[gives])])
        needed = np.searchsorted(given, np.cumsum(self._change[takes]) - room)
        for chain in (takes.tolist(), gives.tolist()):
            for first, second in pairwise(chain):
                self._link(arcs, first, second, 0)
        for taker, count in zip(takes.tolist(), needed.tolist(), strict=True):
            if count > 0:
                self._link(arcs, int(gives[count - 1]), taker, 0)

    @cached_property
    def _work(self) -> Ints:
        """Time that every device's operations take."""
        work = np.zeros(self.problem.pipeline.num_devices, dtype=np.int64)
        np.add.at(work, self.hosts, np.array(self.time, dtype=np.int64))
        return work

    @cached_property
    def busy(self) -> list[int]:
        """Devices that have about the most work."""
        busy: list[int] = np.flatnonzero(self._work >= BUSY * self._work.max()).tolist()
        return busy

    @cached_property
    def _change(self) -> Ints:
        return memory_changes(self.problem.pipeline)[self.kind, self.stage]

    def justified(self, start: list[int], keys: list[float] | None = None) -> list[int]:
        """Starts after one pass backwards in time and one forwards.

        `keys` replace the order of the pass backwards: larger keys go last in time.
        """
        arcs = self.arcs(start)
        late = self._backwards(start, arcs, keys)
        if self.tight:
            arcs = self.arcs(late)
        return self._forwards(late, arcs)

    def hurried(self, start: list[int], count: int, part: float) -> list[int]:
        """Starts after a pass forwards in which backwards come to the busiest device sooner.

        Until its first backward that device may have nothing but forwards, which come too slowly.
        Those of the first `count` microbatches, on it and on the stages behind, are moved up in the
        order by a part of what the first one gains if nothing holds it up. For one route.
        """
        arcs, backward = self.arcs(start), OpKind.BW if self.problem.fused else OpKind.B
        stage = int(self.stage[self.hosts == np.argmax(self._work)].max())
        back = (self.kind == backward) & (self.stage >= stage)
        way = np.flatnonzero((self.microbatch == 0) & (self.kind == OpKind.F)).tolist()
        way += np.flatnonzero((self.microbatch == 0) & back).tolist()[::-1]
        arrival = dict.fromkeys(way, 0)
        for op in way:
            links = arcs.ahead[op]
            arrival[op] = max((arrival[x] + apart for x, apart in links if x in arrival), default=0)
        sooner = int(part * (start[way[-1]] - arrival[way[-1]]))
        keys = np.array(start, dtype=np.int64) - sooner * (back & (self.microbatch < count))
        return self._forwards(start, arcs, keys.tolist())

    def _backwards(self, start: list[int], arcs: Arcs, keys: list[float] | None) -> list[int]:
        time = self.time
        if keys is not None or self._instant:
            turned = [-key for key in (keys or map(add, start, time))]
            order = _sorted(turned, arcs.behind, arcs.ahead)
            if len(order) < self.size:
                return start
        else:
            places = [(-begin - length, -begin) for begin, length in zip(start, time, strict=True)]
            order = sorted(range(self.size), key=places.__getitem__)
        firsts = self._firsts(start)
        latest = max(firsts)
        mirrored = self._place(order, arcs.behind, [latest - first for first in firsts])
        length = max(map(add, mirrored, time))
        return [length - begin - taken for begin, taken in zip(mirrored, time, strict=True)]

    def _forwards(self, start: list[int], arcs: Arcs, keys: list[int] | None = None) -> list[int]:
        if keys is not None or self._instant:
            order = _sorted(keys or start, arcs.ahead, arcs.behind)
            if len(order) < self.size:
                return start
        else:
            order = sorted(range(self.size), key=start.__getitem__)
        return self._place(order, arcs.ahead, self._firsts(start))

    def _firsts(self, start: list[int]) -> list[int]:
        """When every device's clock starts: its first operation, for makespan the origin."""
        devices = self.problem.pipeline.num_devices
        if self.problem.objective is Objective.MAKESPAN:
            return [0] * devices
        firsts = np.full(devices, NEVER, dtype=np.int64)
        np.minimum.at(firsts, self.hosts, np.array(start, dtype=np.int64))
        firsts[firsts == NEVER] = 0
        released: list[int] = (firsts - firsts.min()).tolist()
        return released

    def _place(self, order: list[int], links: Links, release: list[int]) -> list[int]:
        """Give each operation, in order, the first gap of its device that is long enough."""
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
        """Starts of a schedule of this problem, its microbatches renamed into order."""
        start: list[int] = schedule.start[np.argsort(renamed(schedule))].tolist()
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


def _sorted(keys: list[int] | list[float], before: Links, after: Links) -> list[int]:
    """Operations by key, none before what must come before it; those in a circle are left out.

    Memory makes circles where operations of no length take and give at one instant.
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
