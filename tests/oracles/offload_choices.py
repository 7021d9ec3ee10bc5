"""The least value over every choice of layers that offload or recompute, by every schedule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product

from ppopt import Pipeline
from ppopt.problem.layer import Layer
from tests.oracles.gradient_exhaustive import least_value


def every_choice(pipeline: Pipeline) -> Iterator[Pipeline]:
    """The pipeline with every choice of its layers, one by one: each does one thing at most."""
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
        return layers

    for layers in product(*map(ways, pipeline.model.layers)):
        model = replace(pipeline.model, layers=layers)
        yield replace(pipeline, model=model, offload=None, recompute=None)


def least_of_all(pipeline: Pipeline, *, whole: bool, span: bool = False) -> Fraction | None:
    """Least value over every choice, in the user's unit; None where none keeps the limits."""
    every = (
        (candidate, least_value(candidate, whole=whole, span=span))
        for candidate in every_choice(pipeline)
    )
    values = (candidate.ticks.time(value) for candidate, value in every if value is not None)
    return min(values, default=None)
