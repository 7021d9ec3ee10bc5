"""Follow an order as closely as memory limits allow: list scheduling by its priorities.

Every device takes, of the operations that have arrived or are on their way, the one that comes
first in the order given, and waits for it if need be. An operation for which there is no room is
put off, and what is ready goes before it. The room that the oldest microbatch still needs on a
device is never given to another one, so every microbatch comes to its end wherever one at a time
does (the banker's rule of Dijkstra, EWD 123, section 6, for microbatches).
"""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

import numpy as np

from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.orders import Orders
from ppopt.schedule.schedule import Schedule


class _Class(NamedTuple):
    """Operations of one kind, stage and route, in microbatch order."""

    kind: OpKind
    stage: int
    route: int
    codes: list[int]
    places: list[float]
    """When the schedule followed starts each, in ticks: the priority."""
    device: int
    time: int
    change: int
    """Signed change of memory."""


@dataclass
class _Device:
    """What one device has done and holds."""

    classes: list[int]
    limit: float
    held: int
    busy: int = 0
    oldest: int = 0
    """Place, in the order of microbatches, of the first that is not done here."""
    order: list[int] = field(default_factory=list)


def follow(schedule: Schedule, pipeline: Pipeline, deadline: float = inf) -> Orders | None:
    """Orders within the pipeline's limits that follow a schedule of the same operations.

    The schedule's own limits do not matter. None where no order is found: only where a B of no
    length takes memory, or where one microbatch alone has too little room; and of slices, whose
    order within a microbatch is not kept here; and where it takes beyond `deadline`, an instant
    of `time.monotonic`.
    """
    if pipeline.num_slices > 1:
        return None
    return _Run(schedule, pipeline).result(deadline)


class _Run:
    """One simulation."""

    def __init__(self, schedule: Schedule, pipeline: Pipeline) -> None:
        ticks = pipeline.ticks
        limits = ticks.limits or (inf,) * pipeline.num_devices
        self.pipeline = pipeline
        self.classes = _classes(schedule, pipeline)
        self.index = {(c.kind, c.route, c.stage): i for i, c in enumerate(self.classes)}
        self.done = [0] * len(self.classes)
        self.arrived: list[list[int]] = [
            [0] * len(c.codes) if c.kind is OpKind.F and c.stage == 0 else [] for c in self.classes
        ]
        self.devices = [
            _Device([i for i, c in enumerate(self.classes) if c.device == device], limit, static)
            for device, (limit, static) in enumerate(zip(limits, ticks.static, strict=True))
        ]
        self.age = _ages(self.classes)
        self.events = [(0, device) for device in range(pipeline.num_devices)]

    def result(self, deadline: float) -> Orders | None:
        """Run to the end, or until then."""
        while self.events and time.monotonic() < deadline:
            now, device = heapq.heappop(self.events)
            if self.devices[device].busy <= now:
                self._dispatch(self.devices[device], now)
        if any(len(c.codes) > done for c, done in zip(self.classes, self.done, strict=True)):
            return None
        return [np.array(device.order, dtype=np.int64) for device in self.devices]

    def _dispatch(self, device: _Device, now: int) -> None:
        """Start the first operation by priority that is here and fits, or wait for its arrival.

        Nothing is waited for once something was put off: only what ends soon makes room for it.
        """
        blocked = False
        for _, number in sorted(self._next(device)):
            arrives = self._arrival(number)
            if arrives is None:
                continue
            if not self._fits(device, number):
                blocked = True
            elif arrives <= now:
                self._start(device, number, now)
                return
            elif not blocked:
                return

    def _next(self, device: _Device) -> list[tuple[float, int]]:
        """Priority and class of the next operation of every class that has one left."""
        return [
            (self.classes[i].places[self.done[i]], i)
            for i in device.classes
            if self.done[i] < len(self.classes[i].codes)
        ]

    def _arrival(self, number: int) -> int | None:
        """When the next operation of a class may start; None: not known yet."""
        done, arrived = self.done[number], self.arrived[number]
        return arrived[done] if done < len(arrived) else None

    def _fits(self, device: _Device, number: int) -> bool:
        """Whether there is room, the oldest microbatch's share left alone."""
        change = self.classes[number].change
        if change <= 0:
            return True
        after = device.held + change
        if after > device.limit:
            return False
        route, microbatch = self.age[device.oldest]
        if (self.classes[number].route, self.done[number]) == (route, microbatch):
            return True
        return after + self._missing(device, route, microbatch) <= device.limit

    def _missing(self, device: _Device, route: int, microbatch: int) -> int:
        """Room that a microbatch still needs on a device."""
        mine = [i for i in device.classes if self.classes[i].route == route]
        left = [self.classes[i] for i in mine if self.done[i] <= microbatch]
        taken = sum(c.change for c in left if c.kind is OpKind.F)
        return taken + max((c.change for c in left if c.kind is OpKind.B), default=0)

    def _start(self, device: _Device, number: int, now: int) -> None:
        chosen = self.classes[number]
        end = device.busy = now + chosen.time
        device.held += chosen.change
        device.order.append(chosen.codes[self.done[number]])
        self.done[number] += 1
        heapq.heappush(self.events, (end, chosen.device))
        for after in self._after(chosen):
            there = self.classes[after]
            arrives = end + self.pipeline.ticks.p2p[chosen.device][there.device]
            self.arrived[after].append(arrives)
            heapq.heappush(self.events, (arrives, there.device))
        while device.oldest < len(self.age) and self._finished(device, *self.age[device.oldest]):
            device.oldest += 1

    def _after(self, chosen: _Class) -> list[int]:
        """Classes whose next operation waits for one of this class alone, or for it last.

        B waits for F of its own stage too, which is done before F of the next one.
        """
        kind, stage, route = chosen.kind, chosen.stage, chosen.route
        if kind is OpKind.F:
            last = stage == self.pipeline.num_stages - 1
            wanted = [(k, stage) for k in (OpKind.B, OpKind.BW)] if last else [(kind, stage + 1)]
        else:
            wanted = [(OpKind.W, stage)] if kind is OpKind.B else []
            wanted += [(kind, stage - 1)] if kind is not OpKind.W else []
        keys = ((kind, route, stage) for kind, stage in wanted)
        return [self.index[key] for key in keys if key in self.index]

    def _finished(self, device: _Device, route: int, microbatch: int) -> bool:
        return all(
            self.done[i] > microbatch for i in device.classes if self.classes[i].route == route
        )


def _classes(schedule: Schedule, pipeline: Pipeline) -> list[_Class]:
    """Every class of operations, the k-th of each given to the route's microbatch k.

    This renaming loses nothing: the docstring of `ppopt.solver.cp_sat.model`.
    """
    share = pipeline.batches // pipeline.routes
    found = []
    for kind in (OpKind(code) for code in np.unique(schedule.kind).tolist()):
        for route in range(pipeline.routes):
            for stage in range(pipeline.num_stages):
                here = (schedule.kind == kind) & (schedule.stage == stage)
                here &= schedule.microbatch // share == route
                codes = pipeline.code(kind, stage, np.arange(int(here.sum())) + route * share)
                found.append(
                    _Class(
                        *(kind, stage, route, codes.tolist()),
                        np.sort(schedule.start[here]).tolist(),
                        pipeline.hosts[route][stage],
                        pipeline.ticks.durations[kind][stage],
                        pipeline.ticks.memory_change(kind, stage),
                    )
                )
    return found


def _ages(classes: list[_Class]) -> list[tuple[int, int]]:
    """Route and number of every microbatch, by the start of its first operation."""
    firsts = [c for c in classes if c.kind is OpKind.F and c.stage == 0]
    return [
        (route, number)
        for _, route, number in sorted(
            (place, c.route, number) for c in firsts for number, place in enumerate(c.places)
        )
    ]
