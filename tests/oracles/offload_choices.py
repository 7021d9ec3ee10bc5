"""The least value over every partition and choice of what layers do, by every schedule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product

from ppopt import Pipeline
from ppopt.problem.layer import Layer
from tests.oracles.configurations import partitions
from tests.oracles.gradient_exhaustive import jobs_of, least_of_jobs


def every_choice(pipeline: Pipeline) -> Iterator[Pipeline]:
    """The pipeline with every partition and choice of its layers that are searched.

    A layer, or else each of its modules, does one thing at most.
    """
    if pipeline.partition == "search":
        for counts in partitions(len(pipeline.model), pipeline.num_stages):
            yield from every_choice(replace(pipeline, partition=counts))
        return
    recompute, offload = pipeline.recompute == "search", pipeline.offload == "search"

    def ways(layer: Layer) -> list[Layer]:
        bare = replace(
            layer,
            offload=False if offload else layer.offload,
            recompute=False if recompute else layer.recompute,
        )
        layers = [bare]
        if recompute and not bare.offload:
            layers.append(replace(bare, recompute=True))
        if offload and layer.offload_time and not bare.recompute:
            layers.append(replace(bare, offload=True))
        if not (bare.recompute or bare.offload):
            searched = {"recompute": recompute, "offload": offload}
            layers += [
                replace(bare, **sets)
                for sets in module_sets(layer)
                if all(searched[field] for field, names in sets.items() if names)
            ]
        return layers

    for layers in product(*map(ways, pipeline.model.layers)):
        model = replace(pipeline.model, layers=layers)
        yield replace(
            pipeline, model=model, offload=None, recompute=None, partition=pipeline.counts
        )


def module_sets(layer: Layer) -> Iterator[dict[str, tuple[str, ...]]]:
    """What the modules of a layer may do: of two, one inside the other, at most one does."""
    for roles in product(("", "recompute", "offload"), repeat=len(layer.modules)):
        does = [(own, role) for own, role in zip(layer.modules, roles, strict=True) if role]
        timed = all(
            own.time is not None if role == "recompute" else own.offload_time for own, role in does
        )
        names = {own.name for own, _ in does}
        if timed and does and not any(own.inside in names for own, _ in does):
            yield {
                field: tuple(own.name for own, role in does if role == field)
                for field in ("recompute", "offload")
            }


def least_of_all(pipeline: Pipeline, *, whole: bool, span: bool = False) -> Fraction | None:
    """Least value over every choice, in the user's unit; None where none keeps the limits."""
    values: dict[object, int | None] = {}
    lowest: int | None = None
    for candidate in every_choice(pipeline):
        assert candidate.grid == pipeline.grid
        jobs, ticks = jobs_of(candidate, whole=whole), candidate.ticks
        key = (*jobs, ticks.limits, ticks.static)
        if key not in values:
            values[key] = least_of_jobs(candidate, jobs, span=span, below=lowest)
            lowest = min(
                (value for value in (lowest, values[key]) if value is not None), default=None
            )
    return None if lowest is None else pipeline.ticks.time(lowest)
