"""Repair: orders within the memory limits, as close to a given schedule as the limits allow.

Serial schedule generation by the starts of the given schedule, with deadlock avoidance. Among the
operations that have arrived or are in transfer, every device selects the first one in the given
schedule, and waits for it if necessary. An operation that does not fit into memory is postponed,
and ready operations overtake it. An operation starts only if afterwards the microbatches can still
finish on its device one after another, the oldest first. So every microbatch is completed if one
microbatch at a time fits (Dijkstra's banker's algorithm, EWD 123, section 6, for microbatches).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from math import inf

import numpy as np

from ppopt.problem.instance import Instance
from ppopt.problem.operation import OpKind
from ppopt.problem.problem import Problem
from ppopt.problem.traits import ArgumentClass, Trait, handled, unhandled
from ppopt.schedule import timing
from ppopt.schedule.generation import EventSimulation
from ppopt.schedule.orders import Orders, convert_backwards
from ppopt.schedule.schedule import Schedule
from ppopt.solver.relaxation.symmetry import canonical

HANDLES = handled(ArgumentClass.EQUAL_MICROBATCHES, (Trait.PAIRS, Trait.SHORT_PAIRS, Trait.ROUTES))
"""Traits of the instances whose schedules are repaired."""


@dataclass
class _Device:
    """State of one device: its classes, headroom and oldest microbatch."""

    classes: tuple[int, ...]
    """Classes in the order in which one microbatch alone runs them."""
    headroom: float
    enough: float
    """Free memory that suffices for every microbatch to finish."""
    oldest: int = 0
    """Index, in the order of microbatches, of the first incomplete one on the device."""


def repair(schedule: Schedule, instance: Instance) -> Orders | None:
    """Orders within the limits of an instance that follow a schedule of the same operations.

    The limits of the pipeline of the schedule are ignored. Returns None if no order is found.
    This happens only if a B of duration 0 allocates memory, if one microbatch alone does not fit,
    or with a trait that is not handled, such as slices.
    """
    if unhandled(instance.traits, HANDLES):
        return None
    return _Repair(schedule, instance).result()


def converted(schedule: Schedule, problem: Problem) -> Schedule | None:
    """A schedule of a problem of one kind of backward that follows one of its pipeline.

    Backwards are converted; see `repair` on memory limits and None.
    """
    pipeline, objective = problem.pipeline, problem.objective
    orders = convert_backwards(pipeline, schedule.orders, problem.backward_kind)
    timed = timing.schedule(pipeline, orders, objective)
    if timed.fits_limits:
        return timed
    repaired = repair(timed, problem.instance)
    return None if repaired is None else timing.schedule(pipeline, repaired, objective)


class _Repair:
    """One simulation. The k-th operation of a class is that of microbatch k of the route.

    This canonical order loses no schedule: see the docstring of `ppopt.solver.cp_sat.model`.
    """

    def __init__(self, schedule: Schedule, instance: Instance) -> None:
        self.classes, self.total = instance.classes, instance.batches
        numbers = range(len(self.classes))
        self.allocates = [instance.allocated(class_id) for class_id in numbers]
        self.change = [instance.changes(class_id) for class_id in numbers]
        self.priority = _priorities(schedule, instance)
        self.run = EventSimulation(instance)
        self.done = self.run.done
        headrooms = map(instance.headroom, range(len(instance.hosted)))
        self.devices = [
            self._device(hosted, inf if headroom is None else headroom)
            for hosted, headroom in zip(instance.hosted, headrooms, strict=True)
        ]
        self.by_age = self._by_age()

    def _device(self, hosted: tuple[int, ...], headroom: float) -> _Device:
        demand = sum(max(self.allocates[class_id], default=0) for class_id in hosted)
        return _Device(self._sequential_order(hosted), headroom, min(headroom, demand))

    def _sequential_order(self, hosted: tuple[int, ...]) -> tuple[int, ...]:
        """Classes in the order of one microbatch alone: F by stage, B and W by stage reversed."""

        def key(class_id: int) -> tuple[bool, int, int]:
            op_class = self.classes[class_id]
            forward = op_class.kind is OpKind.F
            return not forward, op_class.stage if forward else -op_class.stage, class_id

        return tuple(sorted(hosted, key=key))

    def _by_age(self) -> list[tuple[int, int]]:
        """Route and number of every microbatch, by the start of its first operation."""
        firsts = [
            (self.priority[class_id], op_class.route)
            for class_id, op_class in enumerate(self.classes)
            if op_class.kind is OpKind.F and op_class.stage == 0
        ]
        ages = sorted(
            (start, route, microbatch)
            for starts, route in firsts
            for microbatch, start in enumerate(starts)
        )
        return [(route, microbatch) for _, route, microbatch in ages]

    def result(self) -> Orders | None:
        """Run to the end."""
        events = [(0, device) for device in range(len(self.devices))]
        self.run.run(self._choose, events)
        return self.run.orders() if self.run.complete else None

    def _choose(self, device_id: int, now: int) -> int | None:
        """First operation by priority that has arrived and fits; None: wait.

        A device does not wait after it has postponed an operation, because only other operations
        free memory for it.
        """
        device, live = self.devices[device_id], self.run.live[device_id]
        while device.oldest < len(self.by_age) and self._finished(device):
            device.oldest += 1
        blocked = False
        for _, following in sorted(self._next(device)):
            arrival = self.run.arrival(following)
            if arrival is None:
                continue
            if not self._fits(device, live, following):
                blocked = True
            elif arrival <= now:
                return following
            elif not blocked:
                return None
        return None

    def _next(self, device: _Device) -> list[tuple[int, int]]:
        """Priority and class of the next operation of every incomplete class."""
        return [
            (self.priority[class_id][self.done[class_id]], class_id)
            for class_id in device.classes
            if self.done[class_id] < self.total
        ]

    def _fits(self, device: _Device, live: int, class_id: int) -> bool:
        """Whether an operation fits, and leaves a safe state."""
        microbatch = self.done[class_id]
        allocated = self.allocates[class_id][microbatch]
        if not allocated:
            return True
        if live + allocated > device.headroom:
            return False
        self.done[class_id] += 1
        safe = self._is_safe(device, device.headroom - live - self.change[class_id][microbatch])
        self.done[class_id] -= 1
        return safe

    def _is_safe(self, device: _Device, free: float) -> bool:
        """Whether the microbatches can finish on a device one after another, the oldest first."""
        for route, microbatch in islice(self.by_age, device.oldest, None):
            if free >= device.enough:
                return True
            needed, retained = self._rest(device, route, microbatch)
            if needed > free:
                return False
            free -= retained
        return True

    def _rest(self, device: _Device, route: int, microbatch: int) -> tuple[int, int]:
        """Memory that a microbatch needs on a device to finish alone, and its net change then.

        The net change is below 0 if the microbatch frees memory that is live now.
        """
        retained = needed = 0
        for class_id in device.classes:
            if self.classes[class_id].route == route and self.done[class_id] <= microbatch:
                needed = max(needed, retained + self.allocates[class_id][microbatch])
                retained += self.change[class_id][microbatch]
        return needed, retained

    def _finished(self, device: _Device) -> bool:
        """Whether a device has completed its oldest microbatch."""
        route, microbatch = self.by_age[device.oldest]
        return all(
            self.done[class_id] > microbatch
            for class_id in device.classes
            if self.classes[class_id].route == route
        )


def _priorities(schedule: Schedule, instance: Instance) -> list[list[int]]:
    """Starts of the operations in ticks, [class][microbatch], microbatches in order."""
    row = np.argsort(canonical(schedule))
    position = np.argsort(np.argsort(np.concatenate(instance.codes)))
    ends = np.cumsum([op_class.size for op_class in instance.classes])
    return [starts.tolist() for starts in np.split(schedule.start[row][position], ends[:-1])]
