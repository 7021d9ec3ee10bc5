"""One order under many costs at once, against every pipeline made and evaluated by itself."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

import ppopt
from ppopt import Layer, Model, NotApplicableError, Objective, Options, Pipeline, evaluate
from ppopt.problem.partition_table import PartitionTable
from ppopt.schedule import timing
from ppopt.schedule.order_columns import OrderColumns
from ppopt.strategies import registry
from tests.tiers import slow

FIXED = sorted(name for name, strategy in registry().items() if not strategy.adaptive)


def drawn(rng: Random, count: int) -> Model:
    """Layers whose costs all differ; every other one recomputes."""
    return Model(
        [
            Layer(
                forward=rng.randint(1, 5),
                backward_input=rng.randint(1, 5),
                weight=rng.randint(1, 5),
                activation=(full := rng.randint(0, 5)),
                memory_b=rng.randint(-full, 3),
                kept=rng.randint(0, full),
                recompute=index % 2 == 0,
                recompute_time=rng.randint(0, 3),
                static=rng.randint(0, 4),
                output=rng.randint(0, 5),
                workspace={"F": rng.randint(0, 3), "B": rng.randint(0, 3), "W": 1, "BW": 2},
            )
            for index in range(count)
        ]
    )


def links(rng: Random) -> dict[str, Any]:
    """Delays of a kind: by size, or fixed, the same both ways or not."""
    by_size = {"latency": rng.randint(0, 2), "bandwidth": rng.randint(1, 3)}
    down, back = rng.randint(0, 3), rng.randint(0, 3)
    return rng.choice(
        [
            {"link": by_size},
            {"link": by_size | {"backward": {"latency": back, "bandwidth": 2}}},
            {"p2p": down},
            {"p2p": down, "backward_p2p": back},
        ]
    )


def partitions(rng: Random, layers: int, stages: int, count: int) -> list[tuple[int, ...]]:
    cuts = [sorted(rng.sample(range(1, layers), stages - 1)) for _ in range(count)]
    return [tuple(np.diff([0, *cut, layers]).tolist()) for cut in cuts]


def placed(strategy: str, rng: Random, devices: int, **more: Any) -> Pipeline:
    model = drawn(rng, 4 * devices + rng.randint(0, 5))
    pipeline = model.pipeline(devices=devices, batches=8, **links(rng), **more)
    return registry()[strategy].apply(pipeline, Options())


@pytest.mark.parametrize("strategy", FIXED)
@pytest.mark.parametrize("seed", [1, slow(0), slow(2)])
def test_values_and_peaks_are_those_of_every_pipeline(strategy: str, seed: int) -> None:
    rng = Random(seed)
    several = registry()[strategy].routes == 1 and seed > 0
    base = placed(strategy, rng, 3 if several else 2, device_speed=[1, 2, 3] if several else 1)
    rule, costs = registry()[strategy], PartitionTable(base)
    order = OrderColumns.of_orders(base, rule.built(base, Options()))
    counts = partitions(rng, len(base.model), base.num_stages, 4)
    table = costs.table(np.array(counts))
    values, peaks = order.values_by_costs(table, Objective.MAKESPAN), order.peaks(table)
    for index, partition in enumerate(counts):
        schedule = ppopt.evaluate(replace(base, partition=partition), strategy)
        figures = schedule.metrics
        assert values[index] == figures.makespan_ticks
        assert peaks[:, index].tolist() == [*figures.peak_memory_ticks]


@pytest.mark.parametrize("strategy", FIXED)
def test_orders_of_strategies_that_do_not_adapt_depend_on_no_costs(strategy: str) -> None:
    rule = registry()[strategy]
    first, second = (placed(strategy, Random(seed), 2) for seed in (1, 2))
    orders = [rule.built(pipeline, Options()) for pipeline in (first, second)]
    assert first.model != second.model
    assert all(map(np.array_equal, *orders))


def test_the_device_span_is_that_of_earliest_starts() -> None:
    base = placed("1f1b", Random(3), 3)
    order = OrderColumns.of_orders(base, registry()["1f1b"].built(base, Options()))
    counts = partitions(Random(4), len(base.model), 3, 4)
    costs = PartitionTable(base)
    spans = order.values_by_costs(costs.table(np.array(counts)), Objective.DEVICE_SPAN)
    for span, partition in zip(spans.tolist(), counts, strict=True):
        schedule = ppopt.evaluate(replace(base, partition=partition), "1f1b")
        assert span == schedule.metrics.device_span_ticks


def test_operations_without_length_are_told() -> None:
    """Memory that such operations take and give at one instant is not counted exactly."""
    for weight, expected in ((1, False), (0, True)):
        model = Model([Layer(forward=1, backward_input=1, weight=weight)] * 4)
        assert PartitionTable(model.pipeline(devices=2, batches=2)).lengthless is expected


def test_numbers_whose_sums_are_not_exact_are_refused() -> None:
    """F, BW, B, W and recompute of a layer take 6 F by default, together. With 32 microbatches of 4
    layers that is 768 F, of 10^12 or 8 x 10^12 ticks: below and above 2^53 / 4."""
    fine = Model([Layer(forward="1000000.000001")] * 4)
    table = PartitionTable(fine.pipeline(devices=2, batches=32))
    assert table.per_unit_at_speed_1 == 10**6
    table.refuse_inexact_sums(32)
    finer = Model([Layer(forward="8000000.000001")] * 4)
    table = PartitionTable(finer.pipeline(devices=2, batches=32))
    with pytest.raises(NotApplicableError, match="times: too large or too finely divided"):
        table.refuse_inexact_sums(32)


# Timing of many orders of microbatches at once, against the timing of each pipeline by itself.


FACTORS = (1, 2, 3, 0.5, 1.7, 0.3)
PLAIN = {"forward": [3, 5, 4], "backward": [8, 9, 7], "weight": [2, 4, 3], "p2p": 1}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "whole": ("1f1b", PLAIN),
    "split": ("zb-1p", PLAIN),
    "chunks": ("interleaved", {**PLAIN, "chunks": 2}),
    "v": ("zbv", PLAIN),
    "slices": ("seq-1f1b", {**PLAIN, "slices": 2}),
    "pairs": ("1f1b-overlap", {**PLAIN, "overlap": [9, 11, 8]}),
    "step": ("1f1b", {**PLAIN, "gradient_sync": 4, "unshard": 2, "optimizer": 3}),
    "frozen": ("1f1b", {**PLAIN, "frozen": [True, False, False]}),
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_every_pipeline_by_itself(name: str) -> None:
    strategy, fields = CASES[name]
    random = Random(name)
    factors = [random.choice(FACTORS) for _ in range(6)]
    pipeline = Pipeline(stages=3, batches=6, microbatch_times=factors, **fields)
    schedule = evaluate(pipeline, strategy)
    orders = [list(range(6)), *(random.sample(range(6), 6) for _ in range(8))]
    step_factors = np.array(factors)[np.array(orders).T]
    values = OrderColumns.of_schedule(schedule).values_by_factors(step_factors, Objective.MAKESPAN)
    for order, value in zip(orders, values.tolist(), strict=True):
        reordered = schedule.pipeline.reordered(order)
        alone = timing.schedule(reordered, schedule.orders, Objective.MAKESPAN)
        assert alone.metrics.makespan * schedule.pipeline.ticks.per_unit == value
    assert values[0] == schedule.metrics.makespan_ticks
