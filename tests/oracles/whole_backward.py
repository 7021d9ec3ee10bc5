"""Memory of a whole backward by running it: recompute a layer, run its backward, free it, go on.

Written from DESIGN section 3, rule 13. A stage given by hand is one layer, unless it states what
its BW allocates.
"""

from __future__ import annotations

from fractions import Fraction

from ppopt.problem.layer import Layer
from ppopt.problem.pipeline import Pipeline


def bw_allocates(pipeline: Pipeline, stage: int, factor: Fraction = Fraction(1)) -> int:
    """Memory that BW of a stage allocates for one slice of a microbatch, in ticks.

    `factor` multiplies the activations of the microbatch, and what F keeps of them.
    """
    unit = pipeline.ticks.memory_per_unit
    if pipeline.model is None:
        costs = pipeline.costs
        missing = costs.activation[stage] - costs.kept[stage]
        if pipeline.recompute_memory is not None:
            missing = costs.recompute_memory[stage]
        return int((factor * missing + costs.backward_workspace[stage]) * unit)
    layers = pipeline.model.stage_layers(pipeline.counts)[stage]
    allocated = bw_allocates_of_layers(layers, pipeline.model.recompute_unit, factor)
    return int(allocated / pipeline.num_slices * unit)


def bw_allocates_of_layers(
    layers: tuple[Layer, ...], unit: str = "layer", factor: Fraction = Fraction(1)
) -> Fraction:
    """The same of a stage of these layers, in the user's unit."""
    activations = [factor * layer.activation for layer in layers]
    retained = [
        factor * layer.kept if layer.recompute else factor * layer.activation for layer in layers
    ]
    if unit == "stage":
        missing = sum(activations, Fraction(0)) - sum(retained)
        return missing + max((layer.backward_workspace for layer in layers), default=Fraction(0))  # type: ignore[no-any-return]
    before = live = peak = sum(retained, Fraction(0))
    for layer, activation, retained_of_layer in reversed(
        list(zip(layers, activations, retained, strict=True))
    ):
        live += activation - retained_of_layer
        peak = max(peak, live + layer.backward_workspace)
        live -= activation
    assert live == 0
    return peak - before
