"""Costs of stages from those of their layers: exact sums, maxima, and memory of whole backwards."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from itertools import accumulate
from operator import add, attrgetter, sub
from typing import Any

from ppopt.problem.cost_table import LAYER_COSTS, ZERO, Cost, OverLayers
from ppopt.problem.distinct import distinct, map_distinct
from ppopt.problem.layer import Layer, backward_peak

Row = tuple[Fraction, ...]
"""One number per layer, or per stage."""
Stages = Sequence[tuple[int, int]]
"""The first layer of every stage, and the one after its last."""


class LayerCosts:
    """Costs of runs of consecutive layers; the layers have the costs that they are given with."""

    def __init__(self, layers: Sequence[Layer], passing: Row, *, one_at_a_time: bool) -> None:
        """`passing` is what F of the first 0, 1, ... layers also allocates while it runs.

        `one_at_a_time`: BW recomputes and runs one layer at a time.
        """
        self._layers, self._passing, self._one_at_a_time = layers, passing, one_at_a_time
        self.amounts: dict[str, Row] = {
            cost.field: map_distinct(partial(Layer.amount, cost=cost), layers)
            for cost in LAYER_COSTS
        }
        """What each layer adds to the costs of its stage, by field."""
        self._sums = {
            field: tuple(accumulate(amounts, initial=ZERO)) if any(distinct(amounts)) else ()
            for field, amounts in self.amounts.items()
        }
        """Sums of the first 0, 1, ... amounts by field; empty: all are 0."""

    def of(self, stages: Stages) -> dict[str, Row | None]:
        """Costs of stages by field; None: no layer has any."""
        rows: dict[str, Any] = {
            cost.field: self._row(cost, stages) if self._exists(cost) else None
            for cost in LAYER_COSTS
            if cost.over_layers is not OverLayers.LAST
        }
        if any(self._passing):
            passing = [self._passing[end] - self._passing[start] for start, end in stages]
            largest = rows["forward_workspace"] or (ZERO,) * len(stages)
            rows["forward_workspace"] = tuple(map(add, largest, passing))
        rows["recompute_memory"] = None
        if self._one_at_a_time:
            rows |= self._backward_memory(stages, rows["backward_workspace"])
        if rows["kept"] is None:
            rows["recompute_memory"] = None
        return rows

    def _exists(self, cost: Cost) -> bool:
        """Whether a cost is stated of stages: some layer has it, or schedule files always do."""
        if cost.counted_if:
            return any(map(attrgetter(cost.counted_if), distinct(self._layers)))
        return not cost.optional or any(distinct(self.amounts[cost.field]))

    def _row(self, cost: Cost, stages: Stages) -> Row:
        """A cost of stages. If a stage is one layer it is the same object as that of the layer."""
        amounts, sums = self.amounts[cost.field], self._sums[cost.field]
        if cost.over_layers is OverLayers.MAXIMUM:
            return tuple(max(distinct(amounts[s:e]), default=ZERO) for s, e in stages)
        if not sums:
            return (ZERO,) * len(stages)
        return tuple(
            amounts[start] if end == start + 1 else sums[end] - sums[start] for start, end in stages
        )

    def backward_allocations(self, stages: Stages, factor: Fraction) -> Row | None:
        """What BW of stages allocates in all for a microbatch with a factor on its memory.

        None if it does not run one layer at a time.
        """
        if not self._one_at_a_time:
            return None
        runs = (self._layers[start:end] for start, end in stages)
        return tuple(backward_peak(run, factor).allocated for run in runs)

    def _backward_memory(self, stages: Stages, largest: Row | None) -> dict[str, Any]:
        """What BW allocates per stage, of layers that recompute and run one at a time.

        It counts as workspace up to the largest of the layers, and the rest as recomputed.
        """
        allocated = [backward_peak(self._layers[start:end]).allocated for start, end in stages]
        workspace = tuple(map(min, largest or (ZERO,) * len(stages), allocated))
        return {
            "backward_workspace": workspace if any(workspace) else None,
            "recompute_memory": tuple(map(sub, allocated, workspace)),
        }
