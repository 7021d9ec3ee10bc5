"""Layers with phases: search, partitions, recompute, placements and the re-checker."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from random import Random
from typing import Any

import pytest

from ppopt import Model, Pipeline, Status, best_choice, evaluate, solve, verify
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import Decisions
from ppopt.problem.layer import Layer
from ppopt.rechecker import SEED, Verdict, check
from ppopt.rechecker.claim import Claim
from ppopt.studies.plan import plan
from tests.clock import SHORT, work_clock
from tests.oracles.configurations import partitions
from tests.oracles.rechecked import assert_like_every_order
from tests.tiers import first

SPLIT, WHOLE, MIXED = BackwardKind.SPLIT, BackwardKind.WHOLE, BackwardKind.MIXED
FUSED = {SPLIT: False, WHOLE: True, MIXED: None}


def drawn(rng: Random) -> Layer:
    """A layer of few short phases, one in four without phases."""
    more: dict[str, Any] = {"activation": rng.randint(1, 2)}
    if rng.random() < 0.25:
        return Layer(forward=rng.randint(1, 3), backward=rng.randint(2, 4), **more)
    phases: dict[str, Any] = {
        "F": [
            {"on": "compute", "time": rng.randint(1, 3)},
            {"on": "link", "time": rng.randint(0, 3)},
        ],
        "B": [
            {"on": "link", "time": rng.randint(0, 3)},
            {"on": "compute", "time": rng.randint(1, 3), "weight": rng.randint(0, 2)},
        ],
    }
    if rng.random() < 0.5:
        phases["F"].reverse()
    return Layer(phases=phases, recompute_time=rng.randint(1, 2), **more)


def model(rng: Random, layers: int) -> Model:
    return Model(tuple(drawn(rng) for _ in range(layers)))


@pytest.mark.parametrize("kind", [SPLIT, WHOLE, MIXED])
@pytest.mark.parametrize("seed", first(2, (1, 2, 0, 3, 4, 5)))
def test_search_finds_what_trying_everything_finds(seed: int, kind: BackwardKind) -> None:
    rng = Random(f"{seed}{kind}")
    layers = model(rng, 3)
    hosts = (
        rng.choice(((0,), (0, 1), (0, 0))) if kind is WHOLE else rng.choice(((0,), (0,), (0, 1)))
    )
    pipeline = layers.pipeline(
        devices=max(hosts) + 1,
        batches=2,
        placement=hosts,
        partition=(3,) if len(hosts) == 1 else (1, 2),
        mem_limit=rng.choice((None, 9)),
    )
    assert_like_every_order(pipeline, whole=FUSED[kind], spans=False)


@pytest.mark.parametrize("kind", [WHOLE, MIXED])
@pytest.mark.parametrize("seed", first(1, (1, 0, 2, 3, 4, 5)))
def test_the_best_of_all_partitions(seed: int, kind: BackwardKind) -> None:
    """The least of the optima of every partition; where it is proved, by the re-checker too."""
    rng = Random(seed)
    layers = model(rng, 4)
    limit = rng.choice((None, 7))

    def cut(partition: Any) -> Pipeline:
        return layers.pipeline(
            devices=2, batches=2, partition=partition, p2p=seed % 2, mem_limit=limit
        )

    every = [
        solve(cut((cut_at, 4 - cut_at)), backward_kind=kind, workers=1) for cut_at in range(1, 4)
    ]
    values = [result.value for result in every if result.value is not None]
    result = solve(cut("search"), backward_kind=kind, workers=1, time_limit=600)
    if not values:
        assert result.status is Status.INFEASIBLE
        return
    assert (result.status, result.value) == (Status.OPTIMAL, min(values))
    assert result.bound_ticks is not None
    assert result.schedule is not None
    assert "the bounds count phases on compute only" in result.proof
    claim = Claim(
        result.pipeline, span=False, backward_kind=kind, bound=result.bound_ticks,
        decisions=Decisions.PARTITION,
    )  # fmt: skip
    assert check(claim, 60, 1, SEED, lambda _: None).verdict is Verdict.CONFIRMED
    later = claim._replace(bound=result.bound_ticks + 1)
    assert check(later, 60, 1, SEED, lambda _: None).verdict is Verdict.WRONG


@pytest.mark.parametrize("seed", first(1, (1, 0, 2)))
def test_the_best_choice_of_recompute(seed: int) -> None:
    """The least of the optima of every set of layers that recompute."""
    rng = Random(seed)
    layers = model(rng, 3)
    fields: dict[str, Any] = {"devices": 2, "batches": 2, "partition": (2, 1), "mem_limit": 5}
    values = []
    for count in range(4):
        for places in combinations(range(3), count):
            chosen = layers.with_choice(dict.fromkeys(places, True), {}).pipeline(**fields)
            values.append(solve(chosen, backward_kind=WHOLE, workers=1).value)
    result = solve(layers.pipeline(**fields, recompute="search"), backward_kind=WHOLE, workers=1)
    known = [value for value in values if value is not None]
    assert known
    assert (result.status, result.value) == (Status.OPTIMAL, min(known))


def test_the_best_placement_of_devices_that_differ() -> None:
    """Every placement has a balanced partition of its own."""
    layers = model(Random(3), 4)
    speeds = {"device_speed": [1, 2]}
    result = solve(
        layers.pipeline(devices=2, batches=2, placement="search", **speeds),
        backward_kind=WHOLE, workers=1,
    )  # fmt: skip
    values = [
        solve(
            layers.pipeline(devices=2, batches=2, placement=hosts, **speeds),
            backward_kind=WHOLE, workers=1,
        ).value
        for hosts in ((0, 1), (1, 0))
    ]  # fmt: skip
    assert result.status is Status.OPTIMAL
    assert result.value == min(value for value in values if value is not None)


def test_a_plan_searches_partitions() -> None:
    layers = model(Random(1), 6)
    with work_clock(SHORT):
        searched = plan(
            layers, devices=2, batches=4, placement="linear", chunks=1, time_limit=0.3, workers=1
        )
    assert searched.best.schedule is not None
    assert verify(searched.best.schedule) == []


@pytest.mark.parametrize("strategy", ["1f1b-overlap", "interleaved-overlap", "dualpipe-v", "zb-h1"])
@pytest.mark.parametrize("seed", first(1, range(8)))
def test_a_strategy_takes_its_best_partition(seed: int, strategy: str) -> None:
    """The least over all partitions, each evaluated by itself."""
    rng = Random(seed)
    layers = model(rng, 6)
    limit, speed = rng.choice((None, 14)), rng.choice((1, [1, 2]))
    searched = layers.pipeline(
        devices=2, batches=4, partition="search", mem_limit=limit, device_speed=speed
    )
    choice = best_choice(searched, strategy, time_limit=600)
    pipeline = choice.schedule.pipeline
    every = [
        evaluate(replace(pipeline, partition=counts), strategy)
        for counts in partitions(6, pipeline.num_stages)
    ]
    values = [schedule.makespan for schedule in every if schedule.fits_limits]
    assert choice.schedule.fits_limits == bool(values)
    if values:
        assert choice.value == min(values)
        assert choice.lower_bound is not None
        assert choice.lower_bound <= min(values)
