"""Prefix sums of the costs of a model's layers, in ticks of their own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from math import floor, lcm
from operator import add

from ppopt.problem.pipeline import Pipeline
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.cut_delays import Boundary, Way
from ppopt.rechecker.quantities import live_after_forward, live_before_weight


class LayerSums:
    """Costs of the first l layers, for every l; delays over the boundaries between stages."""

    def __init__(self, claim: Claim) -> None:
        """Read the layers of the claim's pipeline; their times are those on the fastest device."""
        pipeline, count = claim.pipeline, len(claim.pipeline.model)
        fastest = max(pipeline.device_speed)
        ratios = [fastest / speed for speed in pipeline.device_speed]
        single = replace(
            pipeline,
            stages=count,
            placement=(0,) * count,
            chunks=None,
            partition=(1,) * count,
            device_speed=fastest,
            mem_limit=None,
            p2p=0,
            backward_p2p=None,
            link=None,
        )
        single_claim, indices = claim._replace(pipeline=single), range(count)
        own, delays = single.ticks, _delays(pipeline)
        units = (delay.denominator for way in delays for row in way for delay in row)
        layers = pipeline.model.layers if claim.recompute or claim.offload else ()
        modules = [module for layer in set(layers) for module in layer.modules]
        times = [layer.recompute_time for layer in layers] + [own.time or 0 for own in modules]
        recompute_units = ((time / fastest).denominator for time in times)
        finer = lcm(*(ratio.denominator for ratio in ratios))
        self.per_unit = lcm(lcm(own.per_unit, *recompute_units) * finer, *units)
        self.recompute_per_unit = self.per_unit / fastest
        """Ticks of one unit of recompute time, on the fastest device."""
        self.slower = [(ratio.numerator, ratio.denominator) for ratio in ratios]
        """Per device, a fraction that multiplies the times of layers."""
        factor = self.per_unit // own.per_unit
        kinds = claim.kinds
        self.has_all_backwards = not pipeline.model.layers[0].frozen
        """Whether all layers have a backward."""
        self.forward = _sums((own.durations[kinds[0]][index] for index in indices), factor)
        self.gradient = _sums((own.durations[kinds[1]][index] for index in indices), factor)
        """Time until the gradient is passed on: B, or BW if backwards are whole."""
        rest = (sum(own.durations[kind][index] for kind in kinds[2:]) for index in indices)
        self.rest = _sums(rest, factor)
        """W, or nothing."""
        self.memory_per_unit = own.memory_per_unit
        for layer in layers:
            parts = layer.kept.denominator, layer.offload_memory.denominator
            self.memory_per_unit = lcm(self.memory_per_unit, *parts)
        for module in modules:
            amounts = module.memory, module.offload_memory, module.workspace
            self.memory_per_unit = lcm(self.memory_per_unit, *(own.denominator for own in amounts))
        memory_factor = self.memory_per_unit // own.memory_per_unit
        stashed = (live_after_forward(single_claim, index) for index in indices)
        self.stashed = _sums(stashed, memory_factor)
        """Live memory between F and the backward."""
        pending = (
            0 if claim.fused else live_before_weight(single_claim, index) for index in indices
        )
        self.pending = _sums(pending, memory_factor)
        """Live memory between B and W."""
        static = (value * self.memory_per_unit for value in single.costs.static)
        self.static = _sums(static, 1)
        down, up = (
            [[int(delay * self.per_unit) for delay in row] for row in way] for way in delays
        )
        self.down, self.up = Way(down), Way(up)
        self.round_trip = Way([list(map(add, *rows)) for rows in zip(down, up, strict=True)])
        limits = pipeline.limits
        self.limits: tuple[int, ...] | None = None
        if limits is not None:
            self.limits = tuple(floor(limit * self.memory_per_unit) for limit in limits)


def _delays(pipeline: Pipeline) -> tuple[list[list[Fraction]], list[list[Fraction]]]:
    """Delays down and up, [boundary][layers before it]."""
    boundary = Boundary(pipeline, pipeline.hosts[0])
    cuts = range(len(pipeline.model) + 1)
    ways = (boundary.down, boundary.up)
    down, up = (
        [[way(index, cut) for cut in cuts] for index in range(pipeline.num_stages - 1)]
        for way in ways
    )
    return down, up


def _sums(row: Iterable[int | Fraction], factor: int) -> list[int]:
    return [int(value) * factor for value in accumulate(row, initial=0)]
