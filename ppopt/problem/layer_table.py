"""Costs of the layers of a model in whole ticks, and those of any runs of consecutive layers.

A cost of a run is a difference of two prefix sums, or the maximum of its layers. So the costs of
all stages of one partition, or of thousands, are gathered at once. Runs are two arrays of one
shape: an entry stands for the layers `low` to `high` - 1; a run may be empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.backward_memory import RecomputeUnit
from ppopt.problem.cost_table import LAYER_COSTS, OverLayers
from ppopt.problem.costs import WORKSPACES
from ppopt.problem.operation import OpKind

if TYPE_CHECKING:
    from ppopt.problem.layers import Layers

PASSING = "passing"
"""Row of the activation that F allocates only while it runs, if a layer has no backward."""
_SUMS = (*(cost.field for cost in LAYER_COSTS if cost.over_layers is OverLayers.SUM), PASSING)
_CHOSEN = tuple(cost for cost in LAYER_COSTS if cost.counted_if)


@dataclass(frozen=True, eq=False)
class LayerTable:
    """Costs of layers, with and without recompute and offload, in ticks."""

    stated: Mapping[str, Ints]
    """Cost of every layer by field, whether it recomputes or offloads or not: `[layer]`."""
    flags: Mapping[str, Bools]
    """Whether a layer does `recompute`, and whether it does `offload`: `[layer]`."""
    recompute_unit: RecomputeUnit

    @classmethod
    def of(cls, model: Layers, per_unit: Mapping[str, Fraction]) -> LayerTable:
        """The costs of a model; `per_unit` has the ticks in one unit of each cost, by field."""
        index = np.array(model.distinct_index)
        stated = {
            field: np.array(
                [int(getattr(layer, field) * ticks) for layer in model.distinct_costed], np.int64
            )[index]
            for field, ticks in per_unit.items()
        }
        ticks = per_unit["activation"]
        stated[PASSING] = np.array([int(amount * ticks) for amount in model.passing], np.int64)
        return cls(stated, model.flags, model.recompute_unit)

    def having(self, flags: Mapping[str, Bools]) -> LayerTable:
        """The same layers with another choice of those that recompute and offload."""
        return replace(self, flags=flags)

    @cached_property
    def amounts(self) -> Mapping[str, Ints]:
        """What each layer adds to the costs of its stage, by field: `[layer]`."""
        changed = {}
        for cost in _CHOSEN:
            stated, default = self.stated[cost.field], cost.default
            absent: Any = 0
            if default.function is not None:
                absent = default.function(*(self.stated[field] for field in default.fields))
            changed[cost.field] = np.where(self.flags[cost.counted_if], stated, absent)
        return {**self.stated, **changed}

    @cached_property
    def _matrix(self) -> Ints:
        """Sums of the first 0, 1, ... layers: `[field, number of layers]`."""
        rows = np.stack([self.amounts[field] for field in _SUMS])
        return np.concatenate([np.zeros((len(rows), 1), np.int64), rows.cumsum(axis=1)], axis=1)

    @cached_property
    def sums(self) -> Mapping[str, Ints]:
        """Sum of each cost that adds up over the first 0, 1, ... layers, by field."""
        return dict(zip(_SUMS, self._matrix, strict=True))

    @cached_property
    def _workspaces(self) -> tuple[tuple[OpKind, ...], RangeMaximum]:
        """Kinds of operations that need workspace, and its maxima over runs."""
        rows = {kind: self.stated[field] for kind, field in WORKSPACES.items()}
        kinds = tuple(kind for kind, row in rows.items() if kind is OpKind.BW or row.any())
        return kinds, RangeMaximum(np.stack([rows[kind] for kind in kinds]))

    def workspaces(self, low: Ints, high: Ints) -> dict[OpKind, Ints]:
        """Workspace of the operations of runs, by kind; without kinds that need none."""
        kinds, maxima = self._workspaces
        rows = dict(zip(kinds, maxima.over(low, high), strict=True))
        passing = self.sums[PASSING]
        if passing[-1]:
            rows[OpKind.F] = rows.get(OpKind.F, 0) + passing[high] - passing[low]
        return rows

    def allocated(self, low: Ints, high: Ints, factor: Fraction = Fraction(1)) -> Ints:
        """Memory that BW of runs allocates at its start, in ticks / the denominator of the factor.

        It is that of `ppopt.problem.backward_memory`, workspace included, for a microbatch with
        this factor on its memory.
        """
        retained, activation = self.sums["kept"] * factor.numerator, self.sums["activation"]
        if self.recompute_unit is RecomputeUnit.STAGE:
            activation = activation * factor.numerator
            missing = activation[high] - activation[low] - (retained[high] - retained[low])
            largest = self.workspaces(low, high)[OpKind.BW]
            return np.asarray(missing + largest * factor.denominator)
        during = self._during if factor == 1 else self._during_with(factor)
        return np.asarray(np.maximum(during.over(low, high), retained[high]) - retained[high])

    @cached_property
    def _during(self) -> RangeMaximum:
        return self._during_with(Fraction(1))

    def _during_with(self, factor: Fraction) -> RangeMaximum:
        """Live memory while a layer runs in BW, if all layers before it have run F."""
        own = self.sums["kept"][:-1] + self.stated["activation"]
        workspace = self.stated[WORKSPACES[OpKind.BW]]
        return RangeMaximum(own * factor.numerator + workspace * factor.denominator)

    def stages(self, low: Ints, high: Ints) -> dict[str, Ints]:
        """Costs of stages of these runs, by field; those of pairs follow from others.

        Memory that BW allocates counts as workspace up to the largest workspace of the layers; the
        rest counts as recomputed.
        """
        rows = dict(zip(_SUMS, self._matrix[:, high] - self._matrix[:, low], strict=True))
        none = np.zeros_like(rows.pop(PASSING))
        workspaces = self.workspaces(low, high)
        rows |= {field: workspaces.get(kind, none) for kind, field in WORKSPACES.items()}
        allocated, field = self.allocated(low, high), WORKSPACES[OpKind.BW]
        rows[field] = np.minimum(rows[field], allocated)
        rows["recompute_memory"], rows["workspace"] = allocated - rows[field], none
        return rows

    def total(self, field: str) -> int:
        """Sum of the absolute amounts of a cost over all layers, if none or if all recompute."""
        amounts = np.maximum(np.abs(self.stated[field]), np.abs(self.amounts[field]))
        return int(amounts.sum())


class RangeMaximum:
    """The largest of consecutive numbers: a table of the maxima of runs of 1, 2, 4, ..."""

    def __init__(self, values: Ints) -> None:
        """`values`, 0 or more: `[..., position]`."""
        rows = [values]
        for power in range(1, values.shape[-1].bit_length()):
            half, before = 1 << (power - 1), rows[-1]
            later = np.concatenate([before[..., half:], before[..., -1:].repeat(half, -1)], axis=-1)
            rows.append(np.maximum(before, later))
        self._rows = np.stack(rows)

    def over(self, low: Ints, high: Ints) -> Ints:
        """Maximum of the numbers `low` to `high` - 1, 0 if there is none: `[..., run]`."""
        length = high - low
        power = np.log2(np.maximum(length, 1)).astype(np.int64)
        rows = np.moveaxis(self._rows, 0, -2)
        maxima = np.maximum(rows[..., power, low], rows[..., power, high - (1 << power)])
        return np.asarray(np.where(length > 0, maxima, 0))
