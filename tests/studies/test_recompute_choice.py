"""The layers that recompute under a hand strategy: as few as the limit asks for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from random import Random

import pytest

import ppopt
from ppopt import Layer, Model, Pipeline, Schedule
from ppopt.studies.compare import compare
from ppopt.studies.recompute_choice import choose_recompute
from tests.tiers import first, slow


def drawn(seed: int, layers: int = 6) -> Model:
    """Layers of unequal costs, most of which save memory by recompute."""
    rng = Random(seed)
    return Model(
        [
            Layer(
                forward=rng.randint(1, 4),
                backward=rng.randint(2, 6),
                weight=1,
                activation=(full := rng.randint(1, 4)),
                kept=rng.randint(0, full),
                static=rng.randint(0, 2),
            )
            for _ in range(layers)
        ]
    )


def limited(seed: int, strategy: str, share: Fraction, **more: object) -> Pipeline:
    """A pipeline whose limit lies between the strategy's peaks with and without recompute."""
    base = drawn(seed).pipeline(devices=2, batches=4, recompute="none", **more)
    peaks = [peak_of(ppopt.evaluate(replace(base, recompute=way), strategy)) for way in WAYS]
    limit = min(peaks) + share * (peaks[0] - min(peaks))
    return replace(base, recompute="search", mem_limit=limit)


WAYS = ("none", "full")


def peak_of(schedule: Schedule) -> Fraction:
    """The largest peak of all devices, in the user's unit."""
    return max(map(schedule.pipeline.ticks.memory, schedule.metrics.peak_memory))


def makespan(schedule: Schedule) -> Fraction:
    return schedule.pipeline.ticks.time(schedule.metrics.makespan)


def every_choice(pipeline: Pipeline, strategy: str) -> Iterator[Schedule]:
    """The strategy with every set of layers that recompute, within the limits."""
    places = range(len(pipeline.model))
    for count in range(len(places) + 1):
        for chosen in combinations(places, count):
            layers = tuple(
                replace(layer, recompute=place in chosen)
                for place, layer in enumerate(pipeline.model.layers)
            )
            model = replace(pipeline.model, layers=layers)
            made = ppopt.evaluate(replace(pipeline, model=model, recompute=None), strategy)
            if made.fits_limits:
                yield made


@pytest.mark.parametrize("strategy", ["1f1b", "gpipe", "zb-h1"])
@pytest.mark.parametrize("seed", range(4))
def test_no_choice_within_the_limit_is_faster(strategy: str, seed: int) -> None:
    """One stage per device, orders that do not depend on times: against all sets of layers."""
    pipeline = limited(seed, strategy, Fraction(seed, 4), partition=(3, 3))
    made = choose_recompute(pipeline, strategy)
    best = min(map(makespan, every_choice(pipeline, strategy)))
    assert made.fits_limits
    assert makespan(made) == best


@pytest.mark.parametrize("seed", range(3))
def test_several_stages_per_device_keep_the_limit(seed: int) -> None:
    """No slower than with full recompute."""
    pipeline = limited(seed, "interleaved", Fraction(1, 2), partition=(2, 1, 1, 2), chunks=2)
    made = choose_recompute(pipeline, "interleaved")
    full = ppopt.evaluate(replace(pipeline, recompute="full"), "interleaved")
    assert made.fits_limits
    assert makespan(made) <= makespan(full)


def test_nothing_recomputes_without_a_limit_or_within_it() -> None:
    base = replace(limited(1, "1f1b", Fraction(1)), mem_limit=None)
    assert not any(choose_recompute(base, "1f1b").pipeline.recomputed)
    wide = replace(base, mem_limit=10**6)
    assert not any(choose_recompute(wide, "1f1b").pipeline.recomputed)


def test_everything_recomputes_where_nothing_fits() -> None:
    """The limit is reported, not enforced."""
    tight = replace(limited(1, "1f1b", Fraction(1), partition=(3, 3)), mem_limit=Fraction(1, 2))
    made = choose_recompute(tight, "1f1b")
    full = ppopt.evaluate(replace(tight, recompute="full"), "1f1b")
    assert not made.fits_limits
    assert peak_of(made) == peak_of(full)


@pytest.mark.parametrize("seed", first(1, range(3)))
def test_the_best_partition_and_recompute_together(seed: int) -> None:
    """Against every partition with every set of layers that recompute."""
    pipeline = limited(seed, "1f1b", Fraction(1, 2))
    found = ppopt.choose_partition(replace(pipeline, partition="search"), "1f1b")
    best = min(
        makespan(made)
        for first in range(1, 6)
        for made in every_choice(replace(pipeline, partition=(first, 6 - first)), "1f1b")
    )
    assert found.schedule.fits_limits
    assert found.value == makespan(found.schedule) == best
    assert found.lower_bound <= best


@pytest.mark.parametrize("partition", ["balanced", slow("search")])
def test_compare_gives_every_strategy_its_recompute(partition: str) -> None:
    """The optimum, which chooses recompute too, is no slower than any row that fits."""
    pipeline = replace(limited(1, "1f1b", Fraction(0)), partition=partition)
    found = compare(pipeline, time_limit=20, workers=1)
    assert found.optimum.value is not None
    rows = {row.schedule.origin.strategy: row for row in found.rows}
    assert rows["1f1b"].fits_limit
    assert any(any(row.schedule.pipeline.recomputed) for row in found.hands)
    assert all(
        row.ratio_to_optimum is None or row.ratio_to_optimum >= 1
        for row in found.hands
        if row.fits_limit and row.optimum_proved
    )
