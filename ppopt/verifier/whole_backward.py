"""Memory that a whole backward (BW) allocates at its start, from the layers of its stage alone.

The rule: BW recomputes and runs one layer at a time, the last one first, and frees a layer when the
layer's own backward ends. Before BW, held_k of every layer k is live; missing_l is what F did not
keep of layer l (`ppopt.verifier.modules`). While layer l runs, missing_l and its workspace are
allocated, and the layers after it have been freed:

    max(0, max over l of (missing_l + workspace_l - sum of held_k over k > l))

If the whole stage recomputes at once, BW allocates the sum of missing_l plus the largest workspace.
A stage without layers states what it allocates.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import groupby

from ppopt.problem.backward_memory import RecomputeUnit
from ppopt.problem.first_backward import FirstBackward
from ppopt.problem.layer import Layer
from ppopt.problem.pipeline import Model, Pipeline
from ppopt.verifier.modules import MAX_CACHED, backward_workspace, missing
from ppopt.verifier.times import whole


def allocated_by_whole_backward(pipeline: Pipeline, factor: Fraction) -> list[int]:
    """What BW of every stage allocates for one slice of a microbatch, in ticks of memory.

    `factor` multiplies activations, and what F keeps of them, but no workspace.
    """
    per_unit = pipeline.ticks.memory_per_unit
    if pipeline.model is None:
        costs = pipeline.costs
        rows = zip(costs.recompute_memory, costs.backward_workspace, strict=True)
        return [
            whole((factor * recomputed + workspace) * per_unit) for recomputed, workspace in rows
        ]
    of_stages = _of_stages(pipeline.model, pipeline.counts, factor)
    return [whole(amount / pipeline.num_slices * per_unit) for amount in of_stages]


def runs_whole_in_weight(pipeline: Pipeline) -> bool:
    """Whether W of stage 0 runs its whole backward, one layer at a time, and its B nothing."""
    if pipeline.first_backward is not FirstBackward.WEIGHT:
        return False
    return bool(pipeline.model.recompute_unit is RecomputeUnit.LAYER)


@lru_cache(maxsize=MAX_CACHED)
def _of_stages(model: Model, counts: tuple[int, ...], factor: Fraction) -> list[Fraction]:
    """What BW of the stages of a partition allocates, in the user's unit."""
    whole_stage = model.recompute_unit is RecomputeUnit.STAGE
    of_stage = _whole_stage if whole_stage else _layer_by_layer
    return [of_stage(layers, factor) for layers in model.stage_layers(counts)]


def _whole_stage(layers: Sequence[Layer], factor: Fraction) -> Fraction:
    workspace = max(map(backward_workspace, layers), default=Fraction(0))
    return factor * sum(map(missing, layers), Fraction(0)) + workspace


def _layer_by_layer(layers: Sequence[Layer], factor: Fraction) -> Fraction:
    """Of equal consecutive layers the last allocates most: none of them has been freed yet."""
    largest, freed = Fraction(0), Fraction(0)
    for _, run in groupby(reversed(layers), id):
        layer, *rest = run
        recomputed = factor * missing(layer)
        largest = max(largest, recomputed + backward_workspace(layer) - freed)
        freed += (1 + len(rest)) * (factor * layer.activation - recomputed)
    return largest
