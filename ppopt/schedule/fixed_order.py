"""One order under many costs at once: values and peaks of thousands of pipelines of one shape.

`ppopt.schedule.order_levels` times the order, a column per pipeline. The live memory of a device at
the start of an operation is a sum of costs with whole coefficients: a device runs its operations in
their order, whatever their times. It is the product of a matrix with the costs of all pipelines.

The costs are those of models in layers: a pair takes as long as its two operations one after the
other.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Floats, Ints
from ppopt.problem.objective import Objective
from ppopt.problem.operation import NUM_KINDS, OpKind
from ppopt.problem.partition_table import CostTable
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.traits import ArgumentClass, Trait, handled
from ppopt.schedule import timing
from ppopt.schedule.operations import split_codes
from ppopt.schedule.order_levels import OrderLevels
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


HANDLES = handled(ArgumentClass.EQUAL_COMPUTE, (Trait.SLICES, Trait.ROUTES))
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
        kind, stage, _, _ = split_codes(pipeline, net.ops)
        classes, first = kind * pipeline.num_stages + stage, net.first[net.bounds]
        bounds = pairwise(np.searchsorted(net.positions, first).tolist())
        self._memory = [
            _live_memory(classes[low:high], net.positions[low:high] - start, pipeline.num_stages)
            for (low, high), start in zip(bounds, first.tolist(), strict=False)
        ]
        self._levels = OrderLevels(net, links)
        rows = net.at(np.argsort(self._levels.row))
        self._classes = rows.kind * pipeline.num_stages + rows.stage
        """Class of the operation of every row; of a pair, of its F."""
        paired = np.flatnonzero(np.diff(net.positions) == 0) + 1
        self._paired = self._levels.row[net.positions[paired]], classes[paired]
        """Row and class of the second operation of every pair."""

    @property
    def together(self) -> int:
        """Number of pipelines that are timed together most efficiently."""
        return max(4, CELLS // len(self._levels))

    def values(self, costs: CostTable, objective: Objective) -> Ints:
        """The makespan of every pipeline, or its device span with the earliest starts, in ticks."""
        times = np.zeros((len(self._levels), costs.durations.shape[1]))
        costs.durations.take(self._classes, axis=0, out=times[self._levels.machines :], mode="clip")
        rows, classes = self._paired
        times[rows] += costs.durations[classes]
        values = self._levels.values(times, costs.links, objective)
        return np.asarray(values, dtype=np.int64)

    def peaks(self, costs: CostTable) -> Ints:
        """Peak memory, `[device, pipeline]`, in ticks.

        If operations of zero duration run at the same instant it may be less.
        """
        rows = np.concatenate([costs.allocates, costs.retained, costs.pending])
        peak = np.stack([forms.values(rows).max(axis=0) for forms in self._memory])
        return np.asarray(costs.static + peak, dtype=np.int64)


def _live_memory(classes: Ints, position: Ints, stages: int) -> _LinearForms:
    """Live memory of a device at the start of an operation, once for each distinct sum.

    The operations of the device are in their order; a class is kind x stages + stage. The two of a
    pair share a position. Rows: memory that operations allocate, by class; then, by stage, live
    memory of a microbatch from F to its backward; then from B to W.
    """
    classes, column = np.unique(classes, return_inverse=True)
    runs = np.zeros((int(position[-1]) + 1, len(classes)))
    np.add.at(runs, (position, column), 1)
    before = np.cumsum(runs, axis=0) - runs
    kind, stage = np.divmod(classes, stages)
    hosted, column = np.unique(stage, return_inverse=True)
    of_stage = column[:, None] == np.arange(len(hosted))
    split = (kind == OpKind.B).astype(np.int64)
    retained = (kind == OpKind.F) - split - (kind == OpKind.BW)
    pending = split - (kind == OpKind.W)
    live = [before @ (of_stage * change[:, None]) for change in (retained, pending)]
    first = NUM_KINDS * stages + hosted
    rows = np.concatenate([classes, first, first + stages])
    return _LinearForms(rows, np.unique(np.concatenate([runs, *live], axis=1), axis=0))
