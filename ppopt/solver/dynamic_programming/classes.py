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
    """Maximum number of microbatches that have finished `before` but not `after`."""


class DeviceMemory(NamedTuple):
    """Memory of one device, in a unit that divides all amounts."""

    allocates: Ints
    """Allocation of an operation of every class at its start; 0 for classes of other devices."""
    change: Ints
    """Net change by an operation of every class; 0 for classes of other devices."""
    headroom: int | None
    """Memory limit; None: unlimited."""


class Classes:
    """The classes of the kept devices of a subset, and their constraints.

    Without dropped devices this is the whole pipeline. With dropped devices, the constraints of
    `ppopt.solver.relaxation.device_relaxation` between different microbatches are omitted: the
    minimum makespan under the other constraints is still a lower bound.
    """

    def __init__(self, subset: DeviceSubset) -> None:
        self.subset = subset
        instance, times = subset.instance, subset.times
        keys = [
            (kind, stage)
            for kind in instance.kinds
            for stage in subset.retained
            if len(subset.codes(kind, stage))
        ]
        self.numbers = [instance.class_id(kind, stage, times.route) for kind, stage in keys]
        self.index = {key: index for index, key in enumerate(keys)}
        """Index of a class, by kind and stage."""
        self.of = [instance.classes[class_id] for class_id in self.numbers]
        self.codes = np.array([instance.codes[class_id] for class_id in self.numbers])
        """Operation numbers, [class, microbatch]."""
        self.hosts = sorted({op_class.resource for op_class in self.of})
        self.device = [self.hosts.index(op_class.resource) for op_class in self.of]
        self.duration = [op_class.duration for op_class in self.of]
        self.batches = times.batches
        index_of = {class_id: index for index, class_id in enumerate(self.numbers)}
        self._after: list[list[tuple[int, int]]] = [[] for _ in keys]
        """Per class: (class that waits for it, lag in ticks)."""
        for before, after, lag in subset.flow:
            self._after[index_of[before]].append((index_of[after], lag))
        self.needs: list[list[int]] = [[] for _ in keys]
        """Per class: the classes that it waits for on its own device, where order suffices."""
        self.precedences: list[ClassPrecedence] = []
        """Precedence between devices, or with a lag; dropped stages are lags."""
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
        for precedence_ids in (self.into[after], self.out[before]):
            precedence_ids.append(len(self.precedences))
        width = self._width(before, after)
        self.precedences.append(ClassPrecedence(before, after, lag, width))

    def _width(self, before: int, after: int) -> int:
        """Maximum number of microbatches that have finished `before` but not `after`.

        They are between F and W on every stage whose F precedes both and whose W follows both.
        """
        subset, width = self.subset, self.batches
        closing = subset.instance.closing
        for stage in subset.retained:
            max_live = subset.times.max_until_w[stage]
            if max_live is None:
                continue
            first, last = self.index[OpKind.F, stage], self.index[closing, stage]
            if self._leads(first, before) and self._leads(after, last):
                width = min(width, max_live)
        return width

    def _leads(self, first: int, then: int) -> bool:
        """Whether two classes are the same, or a path leads from the first to the second."""
        return bool(self._led[first] >> then & 1)

    @cached_property
    def _led(self) -> dict[int, int]:
        """Per class: the class itself and all classes reachable from it, as a bit set."""
        led: dict[int, int] = {}
        for index in reversed(self._sorted):
            led[index] = 1 << index
            for after, _ in self._after[index]:
                led[index] |= led[after]
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
        for index in path:
            sequences[self.device[index]].append(self.numbers[index])
        return class_orders(self.subset.instance, sequences)

    @cached_property
    def memory(self) -> list[DeviceMemory]:
        """Memory of every device."""
        memories = []
        for host in self.hosts:
            allocates = [
                op_class.allocates if op_class.resource == host else 0 for op_class in self.of
            ]
            change = [op_class.change if op_class.resource == host else 0 for op_class in self.of]
            unit, headroom = gcd(*allocates, *change) or 1, self.subset.instance.headroom(host)
            headroom = None if headroom is None else headroom // unit
            memories.append(
                DeviceMemory(np.array(allocates) // unit, np.array(change) // unit, headroom)
            )
        return memories

    @cached_property
    def sharing(self) -> list[int]:
        """Classes that retain memory on a device where another class allocates too."""
        indices = []
        for allocates, change, headroom in self.memory:
            if headroom is not None and np.count_nonzero(allocates) > 1:
                indices += np.flatnonzero(change > 0).tolist()
        return indices

    @cached_property
    def first(self) -> list[int]:
        """Earliest start on every device."""
        earliest = dict(releases(self.subset))
        first = self.index[OpKind.F, self.subset.retained[0]]
        starts = [0] * len(self.hosts)
        starts[self.device[first]] = earliest.get(int(self.codes[first, 0]), 0)
        return starts

    @cached_property
    def tail(self) -> Ints:
        """Minimum ticks from the end of an operation, [class, microbatch], to the end.

        These are the objective cuts: dropped devices still have work after the kept operations.
        """
        tails = np.zeros((len(self), self.batches), dtype=np.int64)
        codes = self.codes.ravel().tolist()
        positions = {code: divmod(position, self.batches) for position, code in enumerate(codes)}
        for cut in objective_cuts(self.subset, Objective.MAKESPAN):
            position = positions[cut.last]
            tails[position] = max(tails[position], cut.rest)
        return tails

    @cached_property
    def remaining(self) -> Ints:
        """Minimum ticks from the start of an operation, [class, microbatch], to the end.

        The longest of four paths: the end of this operation and its tail; the later operations of
        its class, one after the other; the classes that wait for this one; and the F that waits
        until this operation frees memory.
        """
        ticks = np.zeros((len(self), self.batches + 1), dtype=np.int64)
        for microbatch in reversed(range(self.batches)):
            for index in reversed(self._sorted):
                follows = [self.tail[index, microbatch], ticks[index, microbatch + 1]]
                follows += [lag + ticks[after, microbatch] for after, lag in self._after[index]]
                follows += [
                    ticks[forward, microbatch + ahead]
                    for forward, ahead in self._freed_for[index]
                    if microbatch + ahead < self.batches
                ]
                ticks[index, microbatch] = self.duration[index] + max(follows)
        return ticks

    @cached_property
    def _freed_for(self) -> list[list[tuple[int, int]]]:
        """Per class: (F that waits until it frees memory, number of microbatches between them)."""
        subset, times = self.subset, self.subset.times
        freed_for: list[list[tuple[int, int]]] = [[] for _ in self.of]
        limits = {subset.instance.backward: times.max_until_b}
        limits[subset.instance.closing] = times.max_until_w
        for kind, stage in self.index:
            ahead = limits[kind][stage] if kind in limits else None
            if ahead:
                freed_for[self.index[kind, stage]].append((self.index[OpKind.F, stage], ahead))
        return freed_for

    @cached_property
    def _sorted(self) -> list[int]:
        """The classes in topological order."""
        waiting = {index: [after for after, _ in links] for index, links in enumerate(self._after)}
        return [*TopologicalSorter(waiting).static_order()][::-1]
