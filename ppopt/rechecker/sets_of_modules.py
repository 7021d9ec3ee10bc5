"""Every set of modules that all layers of a model recompute, with none and full recompute.

A layer recomputes the modules of the set that it has, without those inside another one of the set,
which add nothing. No set has two modules that exclude each other in a layer. Full recompute is
of every layer but an embedding or a head, unless the model says that these recompute.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from ppopt.problem.decisions import Decisions
from ppopt.problem.layer import Layer
from ppopt.problem.modules import Chosen
from ppopt.problem.pipeline import Pipeline
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.recompute import clash, may_recompute
from ppopt.verifier.modules import outermost

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
    full = [layer.having(recompute=may_recompute(layer)) for layer in layers]
    chosen = {_of(layers): ("no recompute", layers)}
    chosen.setdefault(_of(full), ("full recompute", full))
    for size in range(1, len(names) + 1):
        for own in combinations(names, size):
            recomputing = list(_recomputing(layers, own))
            if len(recomputing) == len(layers):
                name = f"recompute of {', '.join(own)}"
                chosen.setdefault(_of(recomputing), (name, recomputing))
    return {
        name: pipeline.without(Decisions.OF_MODEL, model=replace(pipeline.model, layers=tuple(own)))
        for name, own in chosen.values()
    }


def _of(layers: list[Layer]) -> tuple[Chosen, ...]:
    """What every layer recomputes."""
    return tuple(layer.recompute for layer in layers)


def _recomputing(layers: list[Layer], names: tuple[str, ...]) -> Iterator[Layer]:
    """The layers that can recompute the modules of these names that they have."""
    for layer in layers:
        known = {module.name for module in layer.modules if module.time is not None}
        own = {module.name for module in outermost(layer, tuple(known.intersection(names)))}
        stated = layer.offload or ()
        if own and (stated is True or own & {*stated} or clash(layer, own, {*stated})):
            return
        yield layer.having(recompute=tuple(sorted(own)) or False)
