"""The modules of layers as a table: what they cost and free, and which stages choose them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING

from ppopt.problem.layer import Layer
from ppopt.problem.modules import Module
from ppopt.problem.pipeline import Pipeline
from ppopt.report.columns import Column, Grid, left, stacked
from ppopt.report.numbers import number, spread

if TYPE_CHECKING:
    from ppopt.derivation.derived_layer import DerivedModule


@dataclass
class ModuleUse:
    """A module of layers of one name, and how many layers of every stage chose it."""

    layers: str
    module: Module
    recomputed: list[int]
    offloaded: list[int]


def cost_columns(
    time_unit: str | None, memory_unit: str | None
) -> list[Column[Module | DerivedModule]]:
    """Columns of what modules cost and free; empty if they do not recompute, or offload."""

    def recompute_memory(own: Module | DerivedModule) -> str:
        return "" if own.time is None else number(own.memory)

    def offload_memory(own: Module | DerivedModule) -> str:
        return number(own.offload_memory or own.memory) if own.offload_time else ""

    return [
        left("module", attrgetter("name")),
        left("inside", attrgetter("inside")),
        Column(stacked("recompute", time_unit), lambda own: _known(own.time)),
        Column(stacked("frees", memory_unit), recompute_memory),
        Column(stacked("move", time_unit), lambda own: _known(own.offload_time or None)),
        Column(stacked("moves", memory_unit), offload_memory),
    ]


def module_table(pipeline: Pipeline) -> Grid[ModuleUse] | None:
    """The modules of the layers of a pipeline; None if there are none.

    Layers of one name have one row per module, with the figures of the first.
    """
    if pipeline.model is None or not any(layer.modules for layer in pipeline.model.distinct):
        return None
    rows: dict[tuple[str, str], ModuleUse] = {}
    ends = list(pairwise(accumulate(pipeline.counts, initial=0)))
    for stage, (low, high) in enumerate(ends):
        for layer in pipeline.model.layers[low:high]:
            for module in layer.modules:
                name = layer.name or layer.role
                unused = ModuleUse(name, module, [0] * len(ends), [0] * len(ends))
                use = rows.setdefault((name, module.name), unused)
                use.recomputed[stage] += _has(layer.recompute, layer, module)
                use.offloaded[stage] += _has(layer.offload, layer, module)
    costs = cost_columns(pipeline.time_unit, pipeline.memory_unit)
    columns: list[Column[ModuleUse]] = [
        left("layers", attrgetter("layers")),
        *(column.of(lambda use: use.module) for column in costs),
        left("layers that\nrecompute it", lambda use: _by_stage(use.recomputed)),
        left("layers that\noffload it", lambda use: _by_stage(use.offloaded)),
    ]
    return Grid(columns, list(rows.values()))


def _has(chosen: object, layer: Layer, module: Module) -> bool:
    """Whether a layer recomputes, or offloads, a module: itself, in a container, or as a whole."""
    if isinstance(chosen, bool):
        return chosen
    inside = {each.name: each.inside for each in layer.modules}
    name = module.name
    while name and name not in set(_names(chosen)):
        name = inside[name]
    return bool(name)


def _names(chosen: object) -> Iterable[str]:
    return chosen if isinstance(chosen, tuple) else ()


def _by_stage(counts: list[int]) -> str:
    return spread(counts) if any(counts) else ""


def _known(value: float | Fraction | None) -> str:
    return "" if value is None else number(value)
