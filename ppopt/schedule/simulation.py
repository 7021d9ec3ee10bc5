"""Simulation: devices run operations one after another, each as early as it can.

A simulation holds what every rule needs that decides by real times which operation a device runs
next: how far every class has come, when inputs arrive, when devices are free, how long they have
been idle. The decision is the caller's. There are two ways to run one:

    `append`   serial: the caller gives the operations one by one, in any order that the data flow
               allows; each starts when its device and its inputs are ready
    `run`      event-driven: whenever a device is free and something has ended or arrived, the
               caller chooses what it starts at that instant, if anything

Serial and parallel schedule generation of the scheduling literature (Kolisch, European Journal of
Operational Research 90, 1996).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.instance import Instance
from ppopt.schedule.orders import Orders

Choice = Callable[[int, int], int | None]
"""Takes a device and the present time; gives the class that starts now, or None."""


class Simulation:
    """Operations run so far. The operations of a class run in the order of microbatches."""

    def __init__(self, instance: Instance) -> None:
        devices = range(instance.pipeline.num_devices)
        self.instance = instance
        self.ends: list[list[int]] = [[] for _ in instance.classes]
        """End of every operation that has run, in ticks, [class][microbatch]."""
        self.sequence: list[list[int]] = [[] for _ in devices]
        """Classes of the operations that every device has run, in order."""
        self.free = [0 for _ in devices]
        """When every device is free, in ticks."""
        self.first_start: list[int | None] = [None for _ in devices]
        """Start of the first operation of every device, in ticks."""
        self.idle = [0 for _ in devices]
        """Ticks that every device has been idle since its first operation."""
        self.most_idle = 0
        """Largest of these."""
        self._inputs = instance.predecessors
        self._placed = [(one.device, one.duration) for one in instance.classes]

    def arrival(self, number: int) -> int | None:
        """When the inputs of the next operation of a class are there; None: not yet known."""
        ends = self.ends
        microbatch, latest = len(ends[number]), 0
        for before, lag in self._inputs[number]:
            known = ends[before]
            if len(known) <= microbatch:
                return None
            if (arrival := known[microbatch] + lag) > latest:
                latest = arrival
        return latest

    def append(self, number: int, earliest: int) -> int:
        """Run the next operation of a class at `earliest` or later; returns its end, in ticks."""
        device, duration = self._placed[number]
        start = free = self.free[device]
        if self.first_start[device] is None:
            self.first_start[device] = start = max(free, earliest)
        elif earliest > free:
            start = earliest
            self.idle[device] += start - free
            self.most_idle = max(self.most_idle, self.idle[device])
        end = self.free[device] = start + duration
        self.ends[number].append(end)
        self.sequence[device].append(number)
        return end

    def run(self, choose: Choice, events: Iterable[tuple[int, int]]) -> None:
        """Ask `choose` at every event, from the first ones given on: (time, device)."""
        queue = list(events)
        heapq.heapify(queue)
        classes, successors = self.instance.classes, self.instance.successors
        while queue:
            now, device = heapq.heappop(queue)
            number = choose(device, now) if self.free[device] <= now else None
            if number is None:
                continue
            end = self.append(number, now)
            heapq.heappush(queue, (end, device))
            for after, lag in successors[number]:
                if lag or classes[after].device != device:
                    heapq.heappush(queue, (end + lag, classes[after].device))

    @property
    def makespan(self) -> int:
        """End of the last operation, in ticks."""
        return max(self.free)

    @property
    def span(self) -> int:
        """Largest time of a device from its first start to its last end, in ticks."""
        return max(
            end - start
            for end, start in zip(self.free, self.first_start, strict=True)
            if start is not None
        )

    def orders(self) -> Orders:
        """The orders of all devices."""
        return class_orders(self.instance, self.sequence)


def class_orders(instance: Instance, sequences: Iterable[Iterable[int]]) -> Orders:
    """Orders from the class of every operation, per device: microbatches follow in order."""
    return [_numbers(instance, np.array(sequence, dtype=np.int64)) for sequence in sequences]


def _numbers(instance: Instance, sequence: Ints) -> Ints:
    found = np.empty_like(sequence)
    for number in sorted(set(sequence.tolist())):
        here = sequence == number
        found[here] = instance.codes[number, : np.count_nonzero(here)]
    return found
