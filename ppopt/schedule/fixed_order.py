"""One order under many costs at once: values and peaks of thousands of pipelines of one shape.

In a fixed order the idle time of a step is the larger of two: that of the step before it on its
device, and that of the step it waits for plus a delay (`ppopt.schedule.timing.Network`). The delay
is a sum of durations and link delays with whole coefficients. So is the live memory of a device at
the start of an operation: a device runs its operations in their order, whatever their times. Both
are products of a matrix with the costs of all pipelines. The rest is one maximum per step, for all
pipelines and for all steps of equal depth at once.

The costs are those of models in layers: a pair takes as long as its two operations one after the
other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Floats, Ints
from ppopt.problem.objective import Objective
from ppopt.problem.operation import NUM_KINDS, OpKind
from ppopt.problem.partition_costs import CostTable
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.traits import Trait
from ppopt.schedule import timing
from ppopt.schedule.operations import split_codes
from ppopt.schedule.orders import Orders

CELLS = 2**18
"""Approximate number of steps times pipelines that are timed together; caches are small."""


class _LinearForms(NamedTuple):
    """Sums of costs with whole coefficients."""

    rows: Ints
    """Rows of the costs that have coefficients."""
    coefficients: Floats
    """`[form, row]`."""

    def values(self, costs: Floats) -> Floats:
        """Value of every form, `[form, pipeline]`."""
        return self.coefficients @ costs[self.rows]


class _DeviceOrder:
    """The operations of one device in their order; a class is kind x stages + stage."""

    def __init__(self, classes: Ints, position: Ints) -> None:
        """One entry per operation; the two of a pair share a position."""
        self.classes, column = np.unique(classes, return_inverse=True)
        self.runs = np.zeros((int(position[-1]) + 1, len(self.classes)))
        """Operations at a position, `[position, class]`."""
        np.add.at(self.runs, (position, column), 1)
        self.through = np.cumsum(self.runs, axis=0)
        """Operations up to a position, that one included, `[position, class]`."""

    @property
    def before(self) -> Floats:
        """Operations before a position, `[position, class]`."""
        return self.through - self.runs

    def total(self) -> _LinearForms:
        """The work of the device, in rows of durations."""
        return _LinearForms(self.classes, self.through[-1:])

    def memory(self, stages: int) -> _LinearForms:
        """Live memory at the start of an operation, once for each distinct sum.

        Rows: memory that operations allocate, by class; then, by stage, live memory of a microbatch
        from F to its backward; then from B to W.
        """
        kind, stage = np.divmod(self.classes, stages)
        hosted, column = np.unique(stage, return_inverse=True)
        of_stage = column[:, None] == np.arange(len(hosted))
        split = (kind == OpKind.B).astype(np.int64)
        retained = (kind == OpKind.F) - split - (kind == OpKind.BW)
        pending = split - (kind == OpKind.W)
        live = [self.before @ (of_stage * change[:, None]) for change in (retained, pending)]
        first = NUM_KINDS * stages + hosted
        rows = np.concatenate([self.classes, first, first + stages])
        return _LinearForms(rows, np.unique(np.concatenate([self.runs, *live], axis=1), axis=0))


class _Level(NamedTuple):
    """Steps of equal depth, numbered by depth: none of them waits for another of them."""

    low: int
    high: int
    before: Ints
    """Step before each on its device; the number of steps: none."""
    needed: Ints
    """Step that each waits for; the number of steps: none."""


class _Delays(NamedTuple):
    """The delays of the steps of a device."""

    steps: Ints
    """Numbers by depth."""
    forms: _LinearForms
    """Delay of each, in rows of durations and then of links."""


HANDLES = frozenset({Trait.SLICES, Trait.ROUTES, Trait.FROZEN})
"""Traits of the pipelines whose orders are timed correctly for every partition at once."""


class FixedOrder:
    """The values and peaks of one order for pipelines of its shape; links are delays.

    It has all operations: those that a pipeline does not have cost nothing, and wait as if its
    stages were trained.
    """

    def __init__(self, pipeline: Pipeline, orders: Orders) -> None:
        """Raises InputError if the orders do not list all operations or wait in a circle."""
        if not pipeline.has_all_operations:
            pipeline = replace(pipeline.without_model(), frozen=None)
        net, links = timing.linked_network(pipeline, orders)
        timing.run(net)
        kind, stage, _, _ = split_codes(pipeline, net.ops)
        classes, first = kind * pipeline.num_stages + stage, net.first[net.bounds]
        devices = [
            _DeviceOrder(classes[low:high], net.positions[low:high] - start)
            for (low, high), start in zip(
                pairwise(np.searchsorted(net.positions, first).tolist()),
                first.tolist(),
                strict=False,
            )
        ]
        rank, self._levels = _by_depth(net)
        self._delays = list(_delays(pipeline, net, links, devices, rank))
        self._totals = [device.total() for device in devices]
        self._memory = [device.memory(pipeline.num_stages) for device in devices]
        self._last = rank[net.bounds[1:] - 1]
        self._first = rank[np.searchsorted(net.first, first[:-1], side="right") - 1]

    @property
    def together(self) -> int:
        """Number of pipelines that are timed together most efficiently."""
        return max(4, CELLS // self._levels[-1].high)

    def values(self, costs: CostTable, objective: Objective) -> Ints:
        """The makespan of every pipeline, or its device span with the earliest starts, in ticks."""
        rows = np.concatenate([costs.durations, costs.links])
        idle = self._idle(rows)
        end = idle[self._last] + np.concatenate([forms.values(rows) for forms in self._totals])
        if objective is Objective.DEVICE_SPAN:
            end -= idle[self._first]
        return np.asarray(end.max(axis=0), dtype=np.int64)

    def peaks(self, costs: CostTable) -> Ints:
        """Peak memory, `[device, pipeline]`, in ticks.

        If operations of zero duration run at the same instant it may be less.
        """
        rows = np.concatenate([costs.allocates, costs.retained, costs.pending])
        peak = np.stack([forms.values(rows).max(axis=0) for forms in self._memory])
        return np.asarray(costs.static + peak, dtype=np.int64)

    def _idle(self, rows: Floats) -> Floats:
        """Idle time of the device before every step, `[step by depth, pipeline]`."""
        steps, pipelines = self._levels[-1].high, rows.shape[1]
        delay = np.empty((steps, pipelines))
        for own, forms in self._delays:
            delay[own] = forms.values(rows)
        idle = np.zeros((steps + 1, pipelines))
        for low, high, before, needed in self._levels:
            np.maximum(idle[before], idle[needed] + delay[low:high], out=idle[low:high])
        return idle


def _by_depth(net: timing.Network) -> tuple[Ints, list[_Level]]:
    """Number of every step by depth, and the levels."""
    steps = len(net.needed)
    depth = np.array(_depths(net))
    order = np.argsort(depth, kind="stable")
    rank = np.empty(steps + 1, dtype=np.int64)
    rank[order], rank[steps] = np.arange(steps), steps
    before = np.arange(steps) - 1
    before[net.bounds[:-1]] = steps
    needed = np.where(net.needed == timing.FREE, steps, net.needed)
    ends = np.searchsorted(depth[order], np.arange(int(depth.max()) + 2)).tolist()
    levels = [
        _Level(low, high, rank[before[order[low:high]]], rank[needed[order[low:high]]])
        for low, high in pairwise(ends)
    ]
    return rank[:steps], levels


def _depths(net: timing.Network) -> list[int]:
    """Number of steps on the longest path to every step."""
    needed, bounds = net.needed.tolist(), net.bounds.tolist()
    depth = [-1] * len(needed)
    depth.append(0)  # at FREE
    reached, remaining = bounds[:-1], len(needed)
    while remaining:
        for device, end in enumerate(bounds[1:]):
            step = begun = reached[device]
            while step < end and depth[needed[step]] >= 0:
                before = depth[step - 1] if step > bounds[device] else 0
                depth[step] = 1 + max(before, depth[needed[step]])
                step += 1
            reached[device] = step
            remaining -= step - begun
    return depth[:-1]


def _delays(
    pipeline: Pipeline,
    net: timing.Network,
    links: Ints,
    devices: Sequence[_DeviceOrder],
    rank: Ints,
) -> Iterator[_Delays]:
    """The delays of every device's steps: the end of their sources minus the work before."""
    first_link, host = NUM_KINDS * pipeline.num_stages, np.array(net.host)
    starts = net.first[net.bounds]
    for device, (low, high) in enumerate(pairwise(net.bounds.tolist())):
        waiting = np.arange(low, high)[net.needed[low:high] != timing.FREE]
        sources = host[net.needed[waiting]]
        known = [device, *np.unique(sources).tolist()]
        rows = np.unique(
            np.concatenate(
                [*(devices[source].classes for source in known), first_link + links[waiting]]
            )
        )
        forms = np.zeros((high - low, len(rows)))
        own = devices[device]
        at = np.ix_(waiting - low, np.searchsorted(rows, own.classes))
        forms[at] -= own.before[net.first[waiting] - starts[device]]
        for source in known[1:]:
            source_order, steps = devices[source], waiting[sources == source]
            at = np.ix_(steps - low, np.searchsorted(rows, source_order.classes))
            forms[at] += source_order.through[net.before[steps] - starts[source]]
        forms[waiting - low, np.searchsorted(rows, first_link + links[waiting])] += 1
        yield _Delays(rank[low:high], _LinearForms(rows, forms))
