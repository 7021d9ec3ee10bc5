"""What recompute and offload add to a stage, and free, from what its layers state.

The rule: a layer recomputes, or offloads, nothing, all of itself, or some of its modules. Times and
memory of a set of modules add up. A module inside another one of the set adds nothing. The
workspace of B and BW is the largest one of the layers and of the modules that they compute again. A
stage without layers states its own amounts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import groupby
from typing import NamedTuple

from ppopt.problem.first_backward import FirstBackward
from ppopt.problem.layer import Layer
from ppopt.problem.modules import Module
from ppopt.problem.pipeline import Pipeline


class Amounts(NamedTuple):
    """Costs of every stage for one slice of a microbatch, in the user's units."""

    recompute_time: list[Fraction]
    """Added to B and BW."""
    retained: list[Fraction]
    """Activation that F keeps, on the device or on the host."""
    input_workspace: list[Fraction]
    offload_memory: list[Fraction]
    offload_time: list[Fraction]


def amounts(pipeline: Pipeline) -> Amounts:
    """What the layers of every stage recompute and offload."""
    costs = pipeline.costs
    if pipeline.model is None:
        recompute = list(costs.recompute_time), list(costs.kept), list(costs.input_workspace)
        return Amounts(*recompute, list(costs.offload_memory), list(costs.offload_time))
    stages = [list(_runs(layers)) for layers in pipeline.model.stage_layers(pipeline.counts)]

    def sums(amount: Callable[[Layer], Fraction]) -> list[Fraction]:
        parts = ((amount(layer) * count for layer, count in runs) for runs in stages)
        return [sum(part, Fraction(0)) / pipeline.num_slices for part in parts]

    largest = [
        max((_input_workspace(layer) for layer, _ in runs), default=Fraction(0)) for runs in stages
    ]
    own = Amounts(
        sums(added_time),
        sums(lambda layer: layer.activation - missing(layer)),
        [workspace / pipeline.num_slices for workspace in largest],
        sums(lambda layer: _total(_offloaded(layer), "offload_memory")),
        sums(lambda layer: _total(_offloaded(layer), "offload_time")),
    )
    if pipeline.first_backward is FirstBackward.WEIGHT:
        own.recompute_time[0] = own.input_workspace[0] = Fraction(0)
    return own


def _runs(layers: Sequence[Layer]) -> Iterator[tuple[Layer, int]]:
    """Layers in a row that are one object, and their number."""
    for _, group in groupby(layers, key=id):
        same = list(group)
        yield same[0], len(same)


def added_time(layer: Layer) -> Fraction:
    """Time that a layer adds to B and BW."""
    if isinstance(layer.recompute, bool):
        return layer.recompute * layer.recompute_time
    return _total(_outermost(layer, layer.recompute), "time")


def missing(layer: Layer) -> Fraction:
    """Part of the activation of a layer that F does not keep."""
    if isinstance(layer.recompute, bool):
        return layer.recompute * (layer.activation - layer.kept)
    return _total(_outermost(layer, layer.recompute), "memory")


def backward_workspace(layer: Layer) -> Fraction:
    """Workspace of BW of a layer."""
    return max(layer.backward_workspace, _recomputed_workspace(layer))


def _input_workspace(layer: Layer) -> Fraction:
    return max(layer.input_workspace, _recomputed_workspace(layer))


def _recomputed_workspace(layer: Layer) -> Fraction:
    """Largest workspace of the modules that are computed again."""
    if isinstance(layer.recompute, bool):
        return Fraction(0)
    modules = _outermost(layer, layer.recompute)
    return max((module.workspace for module in modules), default=Fraction(0))


def _offloaded(layer: Layer) -> list[Module]:
    if isinstance(layer.offload, bool):
        moves = layer.offload_time, layer.offload_memory
        return [Module("", None, Fraction(0), Fraction(0), *moves)] if layer.offload else []
    return _outermost(layer, layer.offload)


def _outermost(layer: Layer, names: tuple[str, ...]) -> list[Module]:
    """The modules of a set that are inside no other one of it."""
    by_name = {module.name: module for module in layer.modules}

    def is_inside(name: str) -> bool:
        container = by_name[name].inside
        return bool(container) and (container in names or is_inside(container))

    return [by_name[name] for name in names if not is_inside(name)]


def _total(modules: list[Module], field: str) -> Fraction:
    return sum((getattr(module, field) for module in modules), Fraction(0))
