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
    recomputed = [_recomputed(layer) for layer in layers]
    retained = [
        own - factor * sum((memory for memory, _ in modules), Fraction(0))
        for own, modules in zip(activations, recomputed, strict=True)
    ]
    workspaces = [
        max(layer.backward_workspace, *(needed for _, needed in modules), Fraction(0))
        for layer, modules in zip(layers, recomputed, strict=True)
    ]
    if unit == "stage":
        missing = sum(activations, Fraction(0)) - sum(retained)
        return missing + max(workspaces, default=Fraction(0))
    before = live = peak = sum(retained, Fraction(0))
    for activation, retained_of_layer, workspace in reversed(
        list(zip(activations, retained, workspaces, strict=True))
    ):
        live += activation - retained_of_layer
        peak = max(peak, live + workspace)
        live -= activation
    assert live == 0
    return peak - before


def _recomputed(layer: Layer) -> list[tuple[Fraction, Fraction]]:
    """Memory and workspace of what a layer computes again, part by part."""
    if isinstance(layer.recompute, bool):
        return [(layer.activation - layer.kept, Fraction(0))] * layer.recompute
    names = set(layer.recompute)
    parts = [module for module in layer.modules if module.name in names]
    outermost = [module for module in parts if module.inside not in names]
    return [(module.memory, module.workspace) for module in outermost]
