"""The operation classes that the dynamic program schedules, and their constraints.

A class is one kind and stage, with one operation per microbatch. The classes are those of all
devices or of a subset.
"""

from __future__ import annotations

from functools import cached_property
from graphlib import TopologicalSorter
from math import gcd
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.schedule.generation import class_orders
from ppopt.schedule.orders import Orders
from ppopt.solver.relaxation.device_relaxation import DeviceSubset, objective_cuts, releases


class ClassPrecedence(NamedTuple):
    """Operations of class `after` wait for those of class `before`, of the same microbatch."""

    before: int
    after: int
    lag: int
    """Ticks from an end to a start."""
    width: int
    """Largest number of microbatches that are done in `before` and not in `after`."""


class DeviceMemory(NamedTuple):
    """Memory of one device, in a unit that divides every amount."""

    takes: Ints
    """Memory taken by an operation of every class at its start; 0 for classes of other devices."""
    change: Ints
    """Net change by an operation of every class; 0 for classes of other devices."""
    room: int | None
    """Memory limit; None: unlimited."""


class Classes:
    """The classes of the kept devices of a subset, and their constraints.

    Without dropped devices this is the whole pipeline. With dropped devices, those constraints of
    `ppopt.solver.relaxation.device_relaxation` that join different microbatches are left out: the
    least makespan under the other constraints is still a lower bound.
    """

    def __init__(self, subset: DeviceSubset) -> None:
        self.subset = subset
        instance, delays = subset.instance, subset.delays
        keys = [
            (kind, stage)
            for kind in instance.kinds
            for stage in subset.kept
            if len(subset.codes(kind, stage))
        ]
        self.numbers = [instance.number(kind, stage, delays.route) for kind, stage in keys]
        self.place = {key: place for place, key in enumerate(keys)}
        """Index of a class, by kind and stage."""
        self.of = [instance.classes[number] for number in self.numbers]
        self.codes = np.array([instance.codes[number] for number in self.numbers])
        """Operation numbers, [class, microbatch]."""
        self.hosts = sorted({op_class.device for op_class in self.of})
        self.device = [self.hosts.index(op_class.device) for op_class in self.of]
        self.duration = [op_class.duration for op_class in self.of]
        self.batches = delays.batches
        by_number = {number: place for place, number in enumerate(self.numbers)}
        self._after: list[list[tuple[int, int]]] = [[] for _ in keys]
        """Per class: (class that waits for it, lag in ticks)."""
        for before, after, lag in subset.flow:
            self._after[by_number[before]].append((by_number[after], lag))
        self.needs: list[list[int]] = [[] for _ in keys]
        """Per class: the classes that it waits for, if their order on the device is enough."""
        self.precedences: list[ClassPrecedence] = []
        """Precedence from device to device, or with a lag; dropped stages are lags."""
        self.into: list[list[int]] = [[] for _ in keys]
        """Per class: the precedences by which it waits for other classes."""
        self.out: list[list[int]] = [[] for _ in keys]
        """Per class: the precedences by which other classes wait for it."""
        for before, links in enumerate(self._after):
            for after, lag in links:
                self._add(before, after, lag)

    def __len__(self) -> int:
        return len(self.of)

    def _add(self, before: int, after: int, lag: int) -> None:
        if self.device[before] == self.device[after] and not lag:
            self.needs[after].append(before)
            return
        for places in (self.into[after], self.out[before]):
            places.append(len(self.precedences))
        width = self._width(before, after)
        self.precedences.append(ClassPrecedence(before, after, lag, width))

    def _width(self, before: int, after: int) -> int:
        """Largest number of microbatches that are done in `before` and not in `after`.

        They are between F and W on every stage whose F comes before both and whose W after both.
        """
        subset, width = self.subset, self.batches
        closing = subset.instance.closing
        for stage in subset.kept:
            most = subset.delays.most_until_w[stage]
            if most is None:
                continue
            first, last = self.place[OpKind.F, stage], self.place[closing, stage]
            if self._leads(first, before) and self._leads(after, last):
                width = min(width, most)
        return width

    def _leads(self, first: int, then: int) -> bool:
        """Whether two classes are the same, or a path leads from the first to the second."""
        return bool(self._led[first] >> then & 1)

    @cached_property
    def _led(self) -> dict[int, int]:
        """Per class: itself and all classes to which paths lead from it, as a set of bits."""
        led: dict[int, int] = {}
        for place in reversed(self._sorted):
            led[place] = 1 << place
            for after, _ in self._after[place]:
                led[place] |= led[after]
        return led

    @property
    def rows(self) -> int:
        """Approximate number of rows of a state."""
        return (
            len(self) + len(self.hosts) + sum(precedence.width for precedence in self.precedences)
        )

    def orders(self, path: list[int]) -> Orders:
        """The operations of every device in order, from the classes of all operations in order."""
        sequences: list[list[int]] = [[] for _ in self.hosts]
        for place in path:
            sequences[self.device[place]].append(self.numbers[place])
        return class_orders(self.subset.instance, sequences)

    @cached_property
    def memory(self) -> list[DeviceMemory]:
        """Memory of every device."""
        found = []
        for host in self.hosts:
            takes = [op_class.allocates if op_class.device == host else 0 for op_class in self.of]
            change = [op_class.change if op_class.device == host else 0 for op_class in self.of]
            unit, room = gcd(*takes, *change) or 1, self.subset.instance.headroom(host)
            room = None if room is None else room // unit
            found.append(DeviceMemory(np.array(takes) // unit, np.array(change) // unit, room))
        return found

    @cached_property
    def sharing(self) -> list[int]:
        """Classes that keep memory which another class of their device takes too."""
        found = []
        for takes, change, room in self.memory:
            if room is not None and np.count_nonzero(takes) > 1:
                found += np.flatnonzero(change > 0).tolist()
        return found

    @cached_property
    def first(self) -> list[int]:
        """Earliest start on every device."""
        earliest = dict(releases(self.subset))
        first = self.place[OpKind.F, self.subset.kept[0]]
        found = [0] * len(self.hosts)
        found[self.device[first]] = earliest.get(int(self.codes[first, 0]), 0)
        return found

    @cached_property
    def tail(self) -> Ints:
        """Least ticks from the end of an operation, [class, microbatch], to the end of all.

        By the objective cuts: dropped devices have work left after the kept operations.
        """
        found = np.zeros((len(self), self.batches), dtype=np.int64)
        codes = self.codes.ravel().tolist()
        places = {code: divmod(place, self.batches) for place, code in enumerate(codes)}
        for cut in objective_cuts(self.subset, Objective.MAKESPAN):
            place = places[cut.last]
            found[place] = max(found[place], cut.rest)
        return found

    @cached_property
    def remaining(self) -> Ints:
        """Least ticks from the start of an operation, [class, microbatch], to the end of all.

        The longest of: the later operations of its class, one after the other; the classes that
        wait for this one; and the later operation of this class that must wait for this microbatch
        to release memory.
        """
        found = np.zeros((len(self), self.batches + 1), dtype=np.int64)
        tails: dict[int, int] = {}
        for place in reversed(self._sorted):
            tail = max(
                (lag + self.duration[after] + tails[after] for after, lag in self._after[place]),
                default=0,
            )
            tails[place] = tail
            lasts = self.duration[place] + np.maximum(self.tail[place], tail)
            ahead, life = self._most_ahead(place)
            for microbatch in reversed(range(self.batches)):
                least = lasts[microbatch]
                if microbatch + 1 < self.batches:
                    least = max(least, found[place, microbatch + 1] + self.duration[place])
                if ahead is not None and microbatch + ahead < self.batches:
                    least = max(least, found[place, microbatch + ahead] + life)
                found[place, microbatch] = least
        return found

    @cached_property
    def _sorted(self) -> list[int]:
        """The classes in topological order."""
        waiting = {place: [after for after, _ in links] for place, links in enumerate(self._after)}
        return [*TopologicalSorter(waiting).static_order()][::-1]

    def _most_ahead(self, place: int) -> tuple[int | None, int]:
        """Number of F of its stage after which an F waits for the W of this one, and the lag."""
        if self.of[place].kind is not OpKind.F:
            return None, 0
        stage, delays = self.of[place].stage, self.subset.delays
        life = delays.forward[stage] + delays.round_trip(stage) + delays.backward[stage]
        return delays.most_until_w[stage], life + delays.closing[stage]
