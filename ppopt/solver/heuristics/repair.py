"""Repair: orders within the memory limits, as close to a given schedule as the limits allow.

Serial schedule generation by the starts of the given schedule, with deadlock avoidance. Of the
operations that have arrived or are on their way, every device takes the one that comes first in the
given schedule, and waits for it if necessary. An operation that does not fit into memory is
postponed, and ready ones overtake it. No operation starts after which the microbatches could not
finish on its device one after another, the oldest first. So every microbatch is completed if one at
a time can be (the banker's algorithm of Dijkstra, EWD 123, section 6, for microbatches).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from math import inf

import numpy as np

from ppopt.problem.instance import Instance
from ppopt.problem.operation import OpKind
from ppopt.problem.traits import BESIDE_COMPUTE, Trait, unhandled
from ppopt.schedule.generation import Generation, pop_until
from ppopt.schedule.orders import Orders
from ppopt.schedule.schedule import Schedule
from ppopt.solver.relaxation.symmetry import canonical

HANDLES = BESIDE_COMPUTE | {Trait.PAIRS, Trait.SHORT_PAIRS, Trait.ROUTES, Trait.FROZEN}
"""Traits of the instances whose schedules are repaired."""


@dataclass
class _Device:
    """State of one device: its operations so far, and the memory it holds."""

    classes: tuple[int, ...]
    """Classes in the order in which one microbatch alone runs them."""
    room: float
    enough: float
    """Free memory with which every microbatch can finish."""
    oldest: int = 0
    """Index, in the order of microbatches, of the first one that is not completed on the device."""


def repair(schedule: Schedule, instance: Instance, deadline: float = inf) -> Orders | None:
    """Orders within the limits of an instance that follow a schedule of the same operations.

    The limits of the pipeline of the schedule are ignored. Returns None if no order is found by
    `deadline`, an instant of `time.monotonic`. Without a deadline this happens only if a B of no
    length takes memory, if one microbatch alone does not fit, or with a trait that is not handled,
    such as slices, whose order within a microbatch is not supported here.
    """
    if unhandled(instance.traits, HANDLES):
        return None
    return _Repair(schedule, instance).result(deadline)


class _Repair:
    """One simulation. The k-th operation of a class is that of microbatch k of the route.

    This canonical order loses no schedule: see the docstring of `ppopt.solver.cp_sat.model`.
    """

    def __init__(self, schedule: Schedule, instance: Instance) -> None:
        self.classes, self.total = instance.classes, instance.batches
        numbers = range(len(self.classes))
        self.takes = [instance.allocated(number) for number in numbers]
        self.change = [instance.changes(number) for number in numbers]
        self.priority = _priorities(schedule, instance)
        self.run = Generation(instance)
        self.done = self.run.done
        rooms = map(instance.headroom, range(len(instance.hosted)))
        self.devices = [
            self._device(hosted, inf if room is None else room)
            for hosted, room in zip(instance.hosted, rooms, strict=True)
        ]
        self.by_age = self._by_age()

    def _device(self, hosted: tuple[int, ...], room: float) -> _Device:
        most = sum(max(self.takes[number], default=0) for number in hosted)
        return _Device(self._one_after_another(hosted), room, min(room, most))

    def _one_after_another(self, hosted: tuple[int, ...]) -> tuple[int, ...]:
        """Classes in the order of one microbatch alone: F by stage, B and W by stage reversed."""

        def place(number: int) -> tuple[bool, int, int]:
            op_class = self.classes[number]
            forward = op_class.kind is OpKind.F
            return not forward, op_class.stage if forward else -op_class.stage, number

        return tuple(sorted(hosted, key=place))

    def _by_age(self) -> list[tuple[int, int]]:
        """Route and number of every microbatch, by the start of its first operation."""
        firsts = [
            (self.priority[number], op_class.route)
            for number, op_class in enumerate(self.classes)
            if op_class.kind is OpKind.F and op_class.stage == 0
        ]
        ages = sorted(
            (start, route, microbatch)
            for starts, route in firsts
            for microbatch, start in enumerate(starts)
        )
        return [(route, microbatch) for _, route, microbatch in ages]

    def result(self, deadline: float) -> Orders | None:
        """Run to the end, or until the deadline."""
        events = [(0, device) for device in range(len(self.devices))]
        try:
            self.run.run(self._choose, events, pop_until(deadline))
        except TimeoutError:
            return None
        return self.run.orders() if self.run.complete else None

    def _choose(self, number: int, now: int) -> int | None:
        """First operation by priority that has arrived and fits; None: wait for it.

        A device does not wait after it has postponed an operation, because only other operations
        release memory for that one.
        """
        device, held = self.devices[number], self.run.live[number]
        while device.oldest < len(self.by_age) and self._finished(device):
            device.oldest += 1
        blocked = False
        for _, following in sorted(self._next(device)):
            arrival = self.run.arrival(following)
            if arrival is None:
                continue
            if not self._fits(device, held, following):
                blocked = True
            elif arrival <= now:
                return following
            elif not blocked:
                return None
        return None

    def _next(self, device: _Device) -> list[tuple[int, int]]:
        """Priority and class of the next operation of every class that has one left."""
        return [
            (self.priority[number][self.done[number]], number)
            for number in device.classes
            if self.done[number] < self.total
        ]

    def _fits(self, device: _Device, held: int, number: int) -> bool:
        """Whether an operation fits, and leaves a safe state."""
        microbatch = self.done[number]
        takes = self.takes[number][microbatch]
        if not takes:
            return True
        if held + takes > device.room:
            return False
        self.done[number] += 1
        safe = self._is_safe(device, device.room - held - self.change[number][microbatch])
        self.done[number] -= 1
        return safe

    def _is_safe(self, device: _Device, free: float) -> bool:
        """Whether every microbatch, the oldest first, can finish on a device after those before."""
        for route, microbatch in islice(self.by_age, device.oldest, None):
            if free >= device.enough:
                return True
            needed, kept = self._rest(device, route, microbatch)
            if needed > free:
                return False
            free -= kept
        return True

    def _rest(self, device: _Device, route: int, microbatch: int) -> tuple[int, int]:
        """Memory that a microbatch needs on a device to finish alone, and what it then keeps.

        What it keeps is below 0 if it gives back what it holds now.
        """
        kept = most = 0
        for number in device.classes:
            if self.classes[number].route == route and self.done[number] <= microbatch:
                most = max(most, kept + self.takes[number][microbatch])
                kept += self.change[number][microbatch]
        return most, kept

    def _finished(self, device: _Device) -> bool:
        """Whether a device has completed its oldest microbatch."""
        route, microbatch = self.by_age[device.oldest]
        return all(
            self.done[number] > microbatch
            for number in device.classes
            if self.classes[number].route == route
        )


def _priorities(schedule: Schedule, instance: Instance) -> list[list[int]]:
    """Starts of the operations in ticks, [class][microbatch], microbatches in order."""
    row = np.argsort(canonical(schedule))
    place = np.argsort(np.argsort(np.concatenate(instance.codes)))
    ends = np.cumsum([op_class.size for op_class in instance.classes])
    return [starts.tolist() for starts in np.split(schedule.start[row][place], ends[:-1])]
