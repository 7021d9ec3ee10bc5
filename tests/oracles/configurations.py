"""Every configuration that a pipeline leaves open, and the least value of all of them.

A configuration is a pipeline that leaves nothing to be chosen: a placement that uses all devices, a
partition, and the layers that recompute.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise, product

from ppopt.problem.decisions import SEARCH
from ppopt.problem.pipeline import Pipeline
from tests.factories.models import sets_that_recompute
from tests.oracles import exhaustive


def partitions(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut so many layers into stages of at least one."""
    for cuts in combinations(range(1, layers), stages - 1):
        yield tuple(high - low for low, high in pairwise((0, *cuts, layers)))


def placements(devices: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every way to put so many stages on devices that uses all of these."""
    every = product(range(devices), repeat=stages)
    return (hosts for hosts in every if len(set(hosts)) == devices)


def configurations(pipeline: Pipeline) -> Iterator[Pipeline]:
    """The pipeline with everything chosen that it leaves to be searched, in every way."""
    if pipeline.placement == SEARCH:
        for hosts in placements(pipeline.num_devices, pipeline.num_stages):
            yield from configurations(pipeline.placed(hosts))
    elif pipeline.partition == SEARCH:
        for counts in partitions(len(pipeline.model), pipeline.num_stages):
            yield from configurations(replace(pipeline, partition=counts))
    elif pipeline.recompute == SEARCH:
        layers = pipeline.model.layers
        for chosen in sets_that_recompute(pipeline.model):
            chosen_layers = (
                replace(layer, recompute=does) for layer, does in zip(layers, chosen, strict=True)
            )
            model = replace(pipeline.model, layers=tuple(chosen_layers))
            yield replace(pipeline, model=model, partition=pipeline.counts, recompute=None)
    else:
        yield pipeline


def least_value(
    pipeline: Pipeline, *, fused: bool | None, objective: exhaustive.Goal = "makespan"
) -> Fraction | None:
    """The optimum over all configurations, in the user's unit; None: none has a schedule.

    `fused` is None: every backward is whole or split.
    """

    def best(candidate: Pipeline) -> int | None:
        if fused is None:
            return exhaustive.best_mixed(candidate, objective=objective)
        return exhaustive.best(candidate, fused=fused, objective=objective)

    values = ((candidate, best(candidate)) for candidate in configurations(pipeline))
    times = (candidate.ticks.time(value) for candidate, value in values if value is not None)
    return min(times, default=None)
