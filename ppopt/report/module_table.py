"""The modules of layers as a table: what they cost and free, and which stages choose them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

from ppopt.problem.exact import plain
from ppopt.problem.layer import Layer
from ppopt.problem.modules import Module
from ppopt.problem.pipeline import Pipeline
from ppopt.report.columns import Column, Grid, left, stacked
from ppopt.report.numbers import number, spread


class ModuleFigures(NamedTuple):
    """What a module costs and frees; None: it does not recompute, or offload."""

    name: str
    inside: str
    time: float | None
    memory: float
    offload_time: float | None
    offload_memory: float


@dataclass
class ModuleUse:
    """A module of layers of one name, and how many layers of every stage chose it."""

    layers: str
    figures: ModuleFigures
    recomputed: list[int] = field(default_factory=list)
    offloaded: list[int] = field(default_factory=list)


def figure_columns(time_unit: str | None, memory_unit: str | None) -> list[Column[ModuleFigures]]:
    """Columns of what modules cost and free."""

    def offload_cell(figures: ModuleFigures) -> str:
        return number(figures.offload_memory) if figures.offload_time else ""

    def recompute_cell(figures: ModuleFigures) -> str:
        return "" if figures.time is None else number(figures.memory)

    return [
        left("module", lambda own: own.name),
        left("inside", lambda own: own.inside),
        Column(stacked("recompute", time_unit), lambda own: _known(own.time)),
        Column(stacked("frees", memory_unit), recompute_cell),
        Column(stacked("move", time_unit), lambda own: _known(own.offload_time or None)),
        Column(stacked("moves", memory_unit), offload_cell),
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
                use = rows.setdefault((name, module.name), _unused(name, module, len(ends)))
                use.recomputed[stage] += _has(layer.recompute, layer, module)
                use.offloaded[stage] += _has(layer.offload, layer, module)
    figures = (
        column.of(_figures) for column in figure_columns(pipeline.time_unit, pipeline.memory_unit)
    )
    columns: list[Column[ModuleUse]] = [
        left("layers", lambda use: use.layers),
        *figures,
        left("layers that\nrecompute it", lambda use: _by_stage(use.recomputed)),
        left("layers that\noffload it", lambda use: _by_stage(use.offloaded)),
    ]
    return Grid(columns, list(rows.values()))


def _figures(use: ModuleUse) -> ModuleFigures:
    return use.figures


def _unused(layers: str, module: Module, stages: int) -> ModuleUse:
    time, moving = (
        None if own is None else plain(own) for own in (module.time, module.offload_time)
    )
    memory, offload_memory = plain(module.memory), plain(module.offload_memory or module.memory)
    figures = ModuleFigures(module.name, module.inside, time, memory, moving, offload_memory)
    return ModuleUse(layers, figures, [0] * stages, [0] * stages)


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


def _known(value: float | None) -> str:
    return "" if value is None else number(value)
