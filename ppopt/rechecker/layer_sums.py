"""Prefix sums of the costs of a model's layers, in ticks of every partition.

The costs of each layer are those of the model's table (`ppopt.problem.layer_table`); sums and
delays are computed here.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate
from math import floor
from typing import Any

import numpy as np

from ppopt.problem.costs import StageArrays
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.cut_delays import Way, delays_of_cuts


class LayerSums:
    """Costs of the first l layers, for every l; delays over the boundaries between stages."""

    def __init__(self, claim: Claim) -> None:
        """Read the layers of the claim's pipeline; their times are those on the fastest device."""
        pipeline, table = claim.pipeline, claim.pipeline.partitions
        slowness, layer = table.devices.slowness, np.arange(len(claim.pipeline.model))
        fastest = min(slowness)
        single = StageArrays(table.layers.stages(layer, layer + 1))
        self.grid = pipeline.grid
        self.recompute_per_unit = table.layers.per_unit["recompute_time"] * fastest
        """Ticks of one unit of recompute time, on the fastest device."""
        self.slower = [Fraction(own, fastest).as_integer_ratio() for own in slowness]
        """Per device, a fraction that multiplies the times of layers."""
        self.has_all_backwards = not pipeline.model.layers[0].frozen
        """Whether all layers have a backward."""
        forward, gradient, *rest = (single.durations[kind] * fastest for kind in claim.kinds)
        self.forward, self.gradient = _sums(forward), _sums(gradient)
        """Time of F, and until the gradient is passed on: B, or BW if backwards are whole."""
        self.rest = _sums(sum(rest, 0 * forward))
        """W, or nothing."""
        self.stashed = _sums(single.retained)
        """Live memory between F and the backward."""
        costs = single.costs
        self.pending = _sums((costs["activation"] + costs["memory_b"]) * (not claim.fused))
        """Live memory between B and W."""
        self.static = _sums(costs["static"])
        down, up = delays_of_cuts(pipeline)
        self.down, self.up, self.round_trip = Way(down), Way(up), Way(down + up)
        self.limits: tuple[int, ...] | None = None
        if pipeline.limits is not None:
            self.limits = tuple(floor(limit * self.grid.memory) for limit in pipeline.limits)


def _sums(row: Any) -> list[int]:
    return list(accumulate(row.tolist(), initial=0))
