"""Bounds of devices on every partition against the optimum, and delays over all cuts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate, combinations
from math import inf
from random import Random

import numpy as np
import pytest

from ppopt import Model
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import Decisions
from ppopt.problem.operation import OpKind
from ppopt.rechecker import partitions
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.cut_delays import Way
from ppopt.rechecker.device_time import StageRange
from ppopt.rechecker.partitions import open_partitions
from tests.factories.partitions import draw_space
from tests.oracles import configurations, exhaustive
from tests.solver.partitions.test_partition_bounds import slow_at_first
from tests.solver.partitions.test_partition_search import LINKS, pipeline
from tests.tiers import first

MAX_OPERATIONS = 12


def lower_bounds(claim: Claim, counts: tuple[int, ...]) -> Iterator[float]:
    """The bounds of every device, with and without rates; inf: it exceeds its limit."""
    choices = partitions._Choices(claim, inf)
    decided = claim.for_pipeline(claim.pipeline.with_partition(counts))
    forward = decided.costs.times[OpKind.F].tolist()
    ends = [0, *accumulate(counts)]
    cuts = tuple(ends[1:-1])
    for device, hosted in enumerate(claim.pipeline.hosted[0]):
        stages = tuple(StageRange(stage, ends[stage], ends[stage + 1]) for stage in hosted)
        if choices._times.over_limit(device, stages):
            yield inf
        yield choices._times.work(stages)
        rates = choices._rates(cuts, hosted)
        for stage, rate in zip(hosted, rates, strict=False):
            assert rate <= max(forward[:stage], default=0)
        for used in dict.fromkeys((None, rates or None)):
            yield choices._times.lower_bound(device, stages, ends[1], used)


def drawn_claim(rng: Random) -> Claim:
    """Of all partitions; the first layers may be frozen, and devices may differ in speed."""
    while True:
        space = draw_space(rng, most_layers=2)
        if rng.random() < 0.3:
            space = slow_at_first(space, rng)
        kinds = 2 if space.whole else 3
        if kinds * space.batches * len(space.hosts) <= MAX_OPERATIONS:
            break
    pipe = pipeline(space, "search", **rng.choice(LINKS))
    if rng.random() < 0.3:
        frozen = rng.randint(1, len(pipe.model))
        layers = [
            replace(layer, frozen=index < frozen) for index, layer in enumerate(pipe.model.layers)
        ]
        pipe = replace(pipe, model=Model(layers), grid=None)
    if rng.random() < 0.2:
        speeds = tuple(Fraction(rng.randint(1, 2)) for _ in range(pipe.num_devices))
        pipe = replace(pipe, device_speed=speeds, grid=None)
    kind = BackwardKind.WHOLE if space.whole else BackwardKind.SPLIT
    return Claim(pipe, space.span, kind, 1, decisions=Decisions.PARTITION)


@pytest.mark.parametrize("seed", first(6, range(40)))
def test_bounds_of_devices_are_at_most_the_optimum_and_often_reach_it(seed: int) -> None:
    rng = Random(seed)
    reached = compared = 0
    while compared < 40:
        claim = drawn_claim(rng)
        assert open_partitions(claim, inf) is not None
        objective = "device-span" if claim.span else "makespan"
        for counts in configurations.partitions(
            len(claim.pipeline.model), claim.pipeline.num_stages
        ):
            decided = claim.pipeline.with_partition(counts)
            best = exhaustive.best(decided, fused=claim.fused, objective=objective)
            bound = max(lower_bounds(claim, counts))
            assert bound <= (inf if best is None else best), (decided, counts)
            compared += 1
            reached += bound == (inf if best is None else best)
    assert reached > compared // 4


@pytest.mark.parametrize("seed", range(4))
def test_delays_over_cuts_are_minimum_sums(seed: int) -> None:
    rng = Random(seed)
    boundaries, layers = rng.randint(1, 4), 6
    table = np.array([[rng.randint(0, 5) for _ in range(layers + 1)] for _ in range(boundaries)])
    way = Way(table)

    def sums(first: int, last: int, low: int | None, high: int | None) -> int:
        cuts = combinations(range(1, layers), last - first + 1)
        return min(
            sum(table[boundary, cut] for boundary, cut in enumerate(chosen, first))
            for chosen in cuts
            if low in (None, chosen[0]) and high in (None, chosen[-1])
        )

    assert (way.beyond(boundaries, 2), way.up_to(-1, 2), way.between(1, 2, 0, 4)) == (0, 0, 0)
    for low, high in combinations(range(boundaries), 2):
        assert way.between(low, 1, high, 5) == sums(low, high, 1, 5)
    for last in range(boundaries):
        assert way.up_to(last, 5) == sums(0, last, None, 5)
        assert way.beyond(last, 1) == sums(last, boundaries - 1, 1, None)
