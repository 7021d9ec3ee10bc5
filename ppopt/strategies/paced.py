"""Orders of a V by simulation: microbatches enter at a pace, the oldest one goes first.

A building block of equal slots stalls in every microbatch where F, B and W differ (arXiv
2405.15362, section 3, on V-Min). What keeps activations alive for a short time, and so the memory
small, is that microbatches enter no faster than devices can work and then go through without
waiting; this does the same with the real times of every stage.
"""

from __future__ import annotations

import heapq
from collections import deque

from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline

KINDS = (OpKind.F, OpKind.B, OpKind.W)
F, B, W = range(len(KINDS))
PATIENCE = 50
"""Percent of W that must fit before the next arrival that is known of."""


def paced_order(pipeline: Pipeline, most: int, percent: int) -> list[list[int]]:
    """Numbers of the operations per device, W included.

    Microbatches enter every `percent` of the time that the busiest device works on one. A device
    at `most` activations lets no further microbatch in; it may exceed that for a microbatch that
    it has begun, so that nothing waits in a circle.
    """
    return _Paced(pipeline, most, percent).run()


class _Paced:
    """One simulation: what has arrived where, and when devices are free."""

    def __init__(self, pipeline: Pipeline, most: int, percent: int) -> None:
        ticks, stages = pipeline.ticks, range(pipeline.num_stages)
        self.pipeline, self.most = pipeline, most
        self.hosts, self.hosted, self.p2p = pipeline.hosts[0], pipeline.hosted[0], ticks.p2p
        self.time = [ticks.durations[kind] for kind in KINDS]
        work = [sum(time[stage] for time in self.time for stage in row) for row in self.hosted]
        pace = -(-max(work) * percent // 100)
        self.arrived: tuple[list[list[int]], ...] = tuple([[] for _ in stages] for _ in (F, B))
        self.arrived[F][0] = [pace * index for index in range(pipeline.batches)]
        self.done = tuple([0 for _ in stages] for _ in (F, B))
        self.free, self.held = [0] * len(self.hosted), [0] * len(self.hosted)
        self.pending: list[deque[tuple[int, int]]] = [deque() for _ in self.hosted]
        self.order: list[list[int]] = [[] for _ in self.hosted]
        self.events = [(time, 0) for time in self.arrived[F][0]]

    def run(self) -> list[list[int]]:
        """Let every device do what it can at every event."""
        while self.events:
            now, device = heapq.heappop(self.events)
            if self.free[device] <= now:
                self._dispatch(device, now)
        return self.order

    def _dispatch(self, device: int, now: int) -> None:
        """Start the oldest microbatch that is ready, of equals the backward; else perhaps W."""
        ready: list[tuple[int, int, int]] = []
        following, blocked = None, False
        for kind in (F, B):
            for stage in self.hosted[device]:
                index = self.done[kind][stage]
                if index == len(self.arrived[kind][stage]):
                    continue
                arrival = self.arrived[kind][stage][index]
                if arrival > now:
                    following = arrival if following is None else min(following, arrival)
                elif kind == F and not self._may_begin(device, stage):
                    blocked = True
                else:
                    ready.append((index, -kind, stage))
        if ready:
            index, kind, stage = min(ready)
            self._start(device, -kind, stage, index, now)
        elif self.pending[device]:
            stage, index = self.pending[device][0]
            gap = None if following is None else following - now
            if blocked or gap is None or 100 * gap >= PATIENCE * self.time[W][stage]:
                self.pending[device].popleft()
                self._start(device, W, stage, index, now)

    def _may_begin(self, device: int, stage: int) -> bool:
        """Whether memory allows an F: on the second chunk it may exceed it if no W is left."""
        first = stage == self.hosted[device][0]
        return self.held[device] < self.most or not (first or self.pending[device])

    def _start(self, device: int, kind: int, stage: int, index: int, now: int) -> None:
        end = self.free[device] = now + self.time[kind][stage]
        self.order[device].append(self.pipeline.code(KINDS[kind], stage, index))
        heapq.heappush(self.events, (end, device))
        self.held[device] += (1, 0, -1)[kind]
        if kind == W:
            return
        self.done[kind][stage] += 1
        if kind == B:
            self.pending[device].append((stage, index))
        target = stage + (1 if kind == F else -1)
        if target == len(self.hosts):
            self.arrived[B][stage].append(end)
        elif target >= 0:
            there = self.hosts[target]
            arrival = end + self.p2p[device][there]
            self.arrived[kind][target].append(arrival)
            heapq.heappush(self.events, (arrival, there))
