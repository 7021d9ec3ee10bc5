"""What recompute and offload add to a stage, and free, from what its layers state.

The rule: a layer recomputes, or offloads, nothing, all of itself, or some of its modules. Times and
memory of a set of modules add up. A module inside another one of the set adds nothing. The
workspace of B and BW is the largest one of the layers and of the modules that they compute again. A
stage without layers states its own amounts.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from ppopt.problem.first_backward import FirstBackward
from ppopt.problem.layer import Layer
from ppopt.problem.modules import Module
from ppopt.problem.pipeline import Model, Pipeline

MAX_CACHED = 64
"""Maximum number of partitions whose amounts are cached: a schedule is verified several times."""
NOTHING = (Fraction(0),) * 5
"""Amounts of a stage without layers."""


class Amounts(NamedTuple):
    """Costs of every stage for one slice of a microbatch, in the user's units."""

    recompute_time: list[Fraction]
    """Added to B and BW."""
    retained: list[Fraction]
    """Activation that F keeps, on the device or on the host."""
    offload_memory: list[Fraction]
    offload_time: list[Fraction]
    input_workspace: list[Fraction]


def amounts(pipeline: Pipeline) -> Amounts:
    """What the layers of every stage recompute and offload."""
    costs = pipeline.costs
    if pipeline.model is None:
        rows = costs.recompute_time, costs.kept, costs.offload_memory, costs.offload_time
        return Amounts(*map(list, (*rows, costs.input_workspace)))
    of_stages = _of_stages(pipeline.model, pipeline.counts)
    slices = pipeline.num_slices
    own = Amounts(*([amount / slices for amount in column] for column in of_stages))
    if pipeline.first_backward is FirstBackward.WEIGHT:
        own.recompute_time[0] = own.input_workspace[0] = Fraction(0)
    return own


@lru_cache(maxsize=MAX_CACHED)
def _of_stages(model: Model, counts: tuple[int, ...]) -> list[tuple[Fraction, ...]]:
    """The amounts of the stages of a partition, for a whole microbatch."""
    of_layers, stages = model.each(of_layer), []
    for low, high in pairwise(accumulate(counts, initial=0)):
        *added, workspaces = zip(NOTHING, *of_layers[low:high], strict=True)
        stages.append((*map(sum, added), max(workspaces)))
    return list(zip(*stages, strict=True))


def of_layer(layer: Layer) -> tuple[Fraction, ...]:
    """The amounts of a layer."""
    offloaded = _offloaded(layer)
    return (
        added_time(layer),
        layer.activation - missing(layer),
        _total(offloaded, "offload_memory"),
        _total(offloaded, "offload_time"),
        max(layer.input_workspace, recomputed_workspace(layer)),
    )


def added_time(layer: Layer) -> Fraction:
    """Time that a layer adds to B and BW."""
    if isinstance(layer.recompute, bool):
        return layer.recompute * layer.recompute_time
    return _total(outermost(layer, layer.recompute), "time")


def missing(layer: Layer) -> Fraction:
    """Part of the activation of a layer that F does not keep."""
    if isinstance(layer.recompute, bool):
        return layer.recompute * (layer.activation - layer.kept)
    return _total(outermost(layer, layer.recompute), "memory")


def backward_workspace(layer: Layer) -> Fraction:
    """Workspace of BW of a layer."""
    return max(layer.backward_workspace, recomputed_workspace(layer))


def recomputed_workspace(layer: Layer) -> Fraction:
    """Largest workspace of the modules that are computed again."""
    if isinstance(layer.recompute, bool):
        return Fraction(0)
    modules = outermost(layer, layer.recompute)
    return max((module.workspace for module in modules), default=Fraction(0))


def _offloaded(layer: Layer) -> list[Module]:
    if isinstance(layer.offload, bool):
        moves = layer.offload_time, layer.offload_memory
        return [Module("", None, Fraction(0), Fraction(0), *moves)] if layer.offload else []
    return outermost(layer, layer.offload)


def outermost(layer: Layer, names: tuple[str, ...]) -> list[Module]:
    """The modules of a set that are inside no other one of it."""
    by_name = {module.name: module for module in layer.modules}

    def is_inside(name: str) -> bool:
        container = by_name[name].inside
        return bool(container) and (container in names or is_inside(container))

    return [by_name[name] for name in names if not is_inside(name)]


def _total(modules: list[Module], field: str) -> Fraction:
    return sum((getattr(module, field) for module in modules), Fraction(0))
