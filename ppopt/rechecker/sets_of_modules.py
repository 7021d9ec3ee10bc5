"""Every set of modules that all layers of a model recompute, with none and full recompute.

A layer recomputes the modules of the set that it has. No set has two modules that exclude each
other in a layer, or a module inside another one of the set, which adds nothing. Full recompute is
of every layer but an embedding or a head, unless the model says that these recompute.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from ppopt.problem.decisions import Decisions
from ppopt.problem.layer import Layer
from ppopt.problem.modules import Module
from ppopt.problem.pipeline import Pipeline
from ppopt.rechecker.claim import Claim

MAX_NAMES = 10
"""Maximum number of different modules whose sets are enumerated."""


def pipelines_of_sets(claim: Claim) -> dict[str, Pipeline] | None:
    """The pipeline of every set, by a name for it; None if there are too many."""
    pipeline = claim.pipeline
    layers = list(pipeline.model.undecided(claim.decisions).layers)
    modules = (module for layer in layers for module in layer.modules)
    names = [*dict.fromkeys(module.name for module in modules if module.time is not None)]
    if len(names) > MAX_NAMES:
        return None
    full = [replace(layer, recompute=_recomputes_whole(layer)) for layer in layers]
    chosen = {"no recompute": layers, "full recompute": full}
    for size in range(1, len(names) + 1):
        for own in combinations(names, size):
            recomputing = list(_recomputing(layers, own))
            if len(recomputing) == len(layers):
                chosen[f"recompute of {', '.join(own)}"] = recomputing
    return {
        name: pipeline.without(Decisions.OF_MODEL, model=replace(pipeline.model, layers=tuple(own)))
        for name, own in chosen.items()
    }


def _recomputes_whole(layer: Layer) -> bool:
    return not layer.offload and (layer.recompute_given or layer.role not in ("embedding", "head"))


def _recomputing(layers: list[Layer], names: tuple[str, ...]) -> Iterator[Layer]:
    """The layers that can recompute the modules of these names that they have."""
    for layer in layers:
        by_name = {module.name: module for module in layer.modules}
        own = [name for name in names if name in by_name and by_name[name].time is not None]
        if any(_clashes(layer, by_name[name], own) for name in own):
            return
        yield replace(layer, recompute=tuple(own) or False)


def _clashes(layer: Layer, module: Module, recomputed: list[str]) -> bool:
    """Whether a module cannot recompute with what the layer recomputes and offloads."""
    if layer.offload is True or module.inside in recomputed:
        return True
    own = layer.offload or ()
    together = {*recomputed, *own}
    if module.name in own or together.intersection(module.excludes):
        return True
    inside = {each.name: each.inside for each in layer.modules}
    related = [(module.name, name) for name in own] + [(name, module.name) for name in own]
    return any(_contains(inside, *pair) for pair in related) or any(
        module.name in each.excludes for each in layer.modules if each.name in own
    )


def _contains(inside: dict[str, str], container: str, name: str) -> bool:
    while name and name != container:
        name = inside[name]
    return bool(name)
