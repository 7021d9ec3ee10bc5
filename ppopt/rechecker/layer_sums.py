"""Prefix sums of the costs of a model's layers, in ticks of every partition.

Of layers with phases only the time on compute counts, which a pair also needs. Of mixed backwards,
B and W are those of `ppopt.rechecker.mixed`, layer by layer: what fits into the time of every layer
fits into that of a stage, and a minimum of sums is at least the sum of the minima.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from itertools import accumulate

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.layer import Layer
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.cut_delays import Way, delays_of_cuts
from ppopt.verifier.modules import of_layer


class LayerSums:
    """Costs of the first l layers, for every l; delays over the boundaries between stages."""

    def __init__(self, claim: Claim) -> None:
        """Read the layers of the claim's pipeline; their times are those on the fastest device."""
        pipeline, self.grid = claim.pipeline, claim.pipeline.grid
        fastest = max(pipeline.device_speed)
        self.per_unit = self.grid.time / fastest
        """Ticks of one unit of time, on the fastest device."""
        self.slower = [(fastest / speed).as_integer_ratio() for speed in pipeline.device_speed]
        """Per device, a fraction that multiplies the times of layers."""
        self.has_all_backwards = not pipeline.model.layers[0].frozen
        """Whether all layers have a backward."""
        times = pipeline.model.each(lambda layer: _times(layer, claim.backward_kind))
        self.forward, self.gradient, self.rest = (
            _sums(row, self.per_unit) for row in zip(*times, strict=True)
        )
        """Time of F, until the gradient is passed on (B, or BW if backwards are whole), and W."""
        memory = pipeline.model.each(lambda layer: _memory(layer, claim.backward_kind))
        self.stashed, self.pending, self.static = (
            _sums(row, self.grid.memory) for row in zip(*memory, strict=True)
        )
        """Live memory between F and the backward, between B and W, and at any time."""
        trains = not any(pipeline.model.each(lambda layer: layer.frozen))
        around = pipeline.model.each(
            lambda layer: (layer.unshard, trains * layer.gradient_sync, trains * layer.optimizer)
        )
        units = (self.grid.time, self.grid.time, self.per_unit)
        self.unshard, self.sync, self.optimizer = map(_sums, zip(*around, strict=True), units)
        """Times once per step. Optimizers wait for no frozen stage: then only unshards count."""
        gathered = pipeline.model.each(lambda layer: (layer.unshard_memory, layer.weight_workspace))
        amounts, workspace = zip(*gathered, strict=True)
        counts = self.has_all_backwards and not any(workspace)
        self.gathered = _sums((counts * amount for amount in amounts), self.grid.memory)
        """Memory of a device's first stage during all F and B of the device."""
        down, up = delays_of_cuts(pipeline)
        self.down, self.up, self.round_trip = Way(down), Way(up), Way(down + up)
        self.limits = pipeline.ticks.limits


def computes(layer: Layer) -> bool:
    """Whether the F of a layer takes time on compute; phases on a link do not count."""
    return layer.phases is None or _times(layer, BackwardKind.SPLIT)[0] > 0


def _times(layer: Layer, kind: BackwardKind) -> tuple[Fraction, Fraction, Fraction]:
    """F, the time until the gradient is passed on, and W."""
    zero, recompute = Fraction(0), of_layer(layer)[0]
    f, b, w, bw = layer.forward, layer.backward_input, layer.weight, layer.backward
    if layer.phases is not None:
        f, b = (
            sum((phase.time for phase in phases if phase.on == "compute"), zero)
            for phases in (layer.phases.forward, layer.phases.backward)
        )
        w = sum((phase.weight for phase in layer.phases.backward), zero)
        bw = b + w
    if kind is BackwardKind.MIXED:
        b, w = min(b, bw), max(min(w, bw - b), zero)
    return (f, bw + recompute, zero) if kind is BackwardKind.WHOLE else (f, b + recompute, w)


def _memory(layer: Layer, kind: BackwardKind) -> tuple[Fraction, Fraction, Fraction]:
    """What is live between F and the backward, what is live between B and W, and what always is.

    Of mixed backwards, B may only free memory.
    """
    _, retained, offloaded, *_ = of_layer(layer)
    change = min(layer.memory_b, Fraction(0)) if kind is BackwardKind.MIXED else layer.memory_b
    pending = (layer.activation + change) * (kind is not BackwardKind.WHOLE)
    return retained - offloaded, pending, layer.static


def _sums(amounts: Iterable[Fraction], per_unit: Fraction | int) -> list[int]:
    return list(accumulate((int(amount * per_unit) for amount in amounts), initial=0))
