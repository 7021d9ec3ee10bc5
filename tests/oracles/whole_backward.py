"""Memory of a whole backward by running it: recompute a layer, run its backward, free it, go on.

Written from DESIGN section 3, rule 13. A stage given by hand is one layer, unless it states what
its BW allocates.
"""

from __future__ import annotations

from fractions import Fraction

from ppopt.problem.layer import Layer
from ppopt.problem.pipeline import Pipeline


def bw_allocates(pipeline: Pipeline, stage: int) -> int:
    """Memory that BW of a stage allocates for one slice of a microbatch, in ticks."""
    unit = pipeline.ticks.memory_per_unit
    if pipeline.model is None:
        costs = pipeline.costs
        missing = costs.activation[stage] - costs.kept[stage]
        if pipeline.recompute_memory is not None:
            missing = costs.recompute_memory[stage]
        return int((missing + costs.backward_workspace[stage]) * unit)
    layers = pipeline.model.stage_layers(pipeline.counts)[stage]
    return int(of_layers(layers, pipeline.model.recompute_unit) / pipeline.num_slices * unit)


def of_layers(layers: tuple[Layer, ...], unit: str = "layer") -> Fraction:
    """The same of a stage of these layers, in the user's unit."""
    kept = [layer.kept if layer.recompute else layer.activation for layer in layers]
    if unit == "stage":
        missing = sum((layer.activation for layer in layers), Fraction(0)) - sum(kept)
        return missing + max((layer.backward_workspace for layer in layers), default=Fraction(0))  # type: ignore[no-any-return]
    before = live = peak = sum(kept, Fraction(0))
    for layer, held in reversed(list(zip(layers, kept, strict=True))):
        live += layer.activation - held
        peak = max(peak, live + layer.backward_workspace)
        live -= layer.activation
    assert live == 0
    return peak - before
