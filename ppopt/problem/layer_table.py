"""Costs of the layers of a model in whole ticks, and those of any runs of consecutive layers.

A cost of a run is a difference of two prefix sums, or the maximum of its layers. So the costs of
all stages of one partition, or of thousands, are gathered at once. Runs are two arrays of one
shape: an entry stands for the layers `low` to `high` - 1; a run may be empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.backward_memory import RecomputeUnit
from ppopt.problem.cost_table import LAYER_COSTS, OverLayers
from ppopt.problem.costs import WORKSPACES
from ppopt.problem.operation import OpKind

if TYPE_CHECKING:
    from ppopt.problem.layer import Layer
    from ppopt.problem.layer_options import LayerOption
    from ppopt.problem.layers import Layers

PASSING = "passing"
"""Row of the activation that F allocates only while it runs, if a layer has no backward."""
_SUMS = (*(cost.field for cost in LAYER_COSTS if cost.over_layers is OverLayers.SUM), PASSING)


@dataclass(frozen=True, eq=False)
class LayerTable:
    """Costs of layers, with what they recompute and offload, in ticks."""

    largest: Mapping[str, Ints]
    """Upper bound on the cost of every layer by field, over all that it may recompute or offload:
    `[layer]`."""
    amounts: Mapping[str, Ints]
    """What each layer adds to the costs of its stage, by field: `[layer]`."""
    per_unit: Mapping[str, Fraction]
    """Ticks in one unit of each cost, by field."""
    recompute_unit: RecomputeUnit

    @classmethod
    def of(cls, model: Layers, per_unit: Mapping[str, Fraction]) -> LayerTable:
        """The costs of a model; `per_unit` has the ticks in one unit of each cost, by field."""
        stated = _in_ticks(model, per_unit, vars)
        ticks = per_unit["activation"]
        stated[PASSING] = np.array([int(amount * ticks) for amount in model.passing], np.int64)
        largest = stated | _in_ticks(model, per_unit, attrgetter("largest"))
        amounts = stated | _in_ticks(model, per_unit, attrgetter("in_force"))
        return cls(largest, amounts, per_unit, model.recompute_unit)

    def having(self, model: Layers) -> LayerTable:
        """The same layers with another choice of what they recompute and offload."""
        changed = _in_ticks(model, self.per_unit, attrgetter("in_force"))
        return replace(self, amounts={**self.amounts, **changed})

    @cached_property
    def sums(self) -> Mapping[str, Ints]:
        """Sum of each cost that adds up over the first 0, 1, ... layers, by field."""
        none = np.zeros(1, dtype=np.int64)
        return {field: np.concatenate([none, self.amounts[field].cumsum()]) for field in _SUMS}

    @cached_property
    def _present(self) -> tuple[tuple[str, ...], Ints]:
        """Fields of the costs that some layer has, and their sums: `[field, number of layers]`."""
        fields = tuple(field for field, row in self.sums.items() if row.any())
        return fields, np.stack([self.sums[field] for field in fields])

    @cached_property
    def _workspaces(self) -> RangeMaximum:
        """Maxima over runs: `[kind]`."""
        return RangeMaximum(np.stack([self.amounts[WORKSPACES[kind]] for kind in OpKind]))

    def allocated(self, low: Ints, high: Ints) -> Ints:
        """Memory that BW of runs allocates at its start, in ticks.

        It is that of `ppopt.problem.backward_memory`, workspace included.
        """
        retained = self.sums["kept"]
        if self.recompute_unit is RecomputeUnit.STAGE:
            missing = self.sums["activation"] - retained
            return np.asarray(
                missing[high] - missing[low] + self._workspaces.over(low, high)[OpKind.BW]
            )
        return np.asarray(np.maximum(self._during.over(low, high), retained[high]) - retained[high])

    @cached_property
    def _during(self) -> RangeMaximum:
        """Live memory while a layer runs in BW, if all layers before it have run F."""
        own = self.sums["kept"][:-1] + self.amounts["activation"]
        return RangeMaximum(own + self.amounts[WORKSPACES[OpKind.BW]])

    def multiplied(self, factor: Fraction) -> LayerTable:
        """The memory of a microbatch with this factor, whose denominator divides the ticks."""
        changed = {
            field: self.amounts[field] // factor.denominator * factor.numerator
            for field in ("kept", "activation")
        }
        return replace(self, amounts={**self.amounts, **changed})

    def stages(self, low: Ints, high: Ints) -> dict[str, Ints]:
        """Costs of stages of these runs, by field; those of pairs follow from others.

        Memory that BW allocates counts as workspace up to the largest workspace of the layers; the
        rest counts as recomputed.
        """
        fields, sums = self._present
        none = np.zeros_like(high)
        rows = dict.fromkeys(_SUMS, none)
        rows |= zip(fields, sums.take(high, axis=1) - sums.take(low, axis=1), strict=True)
        rows |= zip(WORKSPACES.values(), self._workspaces.over(low, high), strict=True)
        rows["forward_workspace"] = rows["forward_workspace"] + rows.pop(PASSING)
        allocated, field = self.allocated(low, high), WORKSPACES[OpKind.BW]
        rows[field] = np.minimum(rows[field], allocated)
        rows["recompute_memory"], rows["workspace"] = allocated - rows[field], none
        return rows

    def ticks_of_option(self, option: LayerOption) -> list[int]:
        """The costs of an option of a layer in ticks."""
        units = (self.per_unit["recompute_time"],) * 2 + (self.per_unit["kept"],) * 4
        return [int(cost * unit) for cost, unit in zip(option.costs, units, strict=True)]

    def activation_of(self, layer: Layer) -> int:
        """Activation of a layer without recompute, in ticks."""
        return int(layer.activation * self.per_unit["kept"])

    def total(self, field: str) -> int:
        """Upper bound on the sum of a cost over all layers, whatever they recompute."""
        return int(np.abs(self.largest[field]).sum())


def _in_ticks(
    model: Layers,
    per_unit: Mapping[str, Fraction],
    costs: Callable[[Layer], Mapping[str, Fraction]],
) -> dict[str, Ints]:
    """Costs of every layer in whole ticks, by field: `[layer]`."""
    index = np.array(model.distinct_index)
    rows = [costs(layer) for layer in model.distinct_costed]
    return {
        field: np.array([int(row[field] * ticks) for row in rows], np.int64)[index]
        for field, ticks in per_unit.items()
        if field in rows[0]
    }


class RangeMaximum:
    """The largest of consecutive numbers: a table of the maxima of runs of 1, 2, 4, ..."""

    def __init__(self, values: Ints) -> None:
        """`values`, 0 or more: `[..., position]`."""
        rows, self._size = [values], values.shape[-1]
        for power in range(1, self._size.bit_length()):
            half, before = 1 << (power - 1), rows[-1]
            later = np.concatenate([before[..., half:], before[..., -1:].repeat(half, -1)], axis=-1)
            rows.append(np.maximum(before, later))
        self._rows = np.concatenate(rows, axis=-1)
        self._power = np.array([max(0, size.bit_length() - 1) for size in range(self._size + 1)])
        """Power of 2 of the longest run of the table that fits into so many numbers."""

    def over(self, low: Ints, high: Ints) -> Ints:
        """Maximum of the numbers `low` to `high` - 1, 0 if there is none: `[..., run]`."""
        length = high - low
        power = self._power[length]
        first, last = power * self._size + low, power * self._size + high - (1 << power)
        maxima = np.maximum(self._rows.take(first, axis=-1), self._rows.take(last, axis=-1))
        return maxima if length.all() else np.where(length > 0, maxima, 0)
