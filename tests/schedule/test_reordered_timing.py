"""Timing of many orders of microbatches at once, against the timing of each pipeline by itself."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from ppopt import Objective, Pipeline, evaluate
from ppopt.schedule import timing
from ppopt.schedule.reordered_timing import ReorderedTiming

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
    given = np.array(factors)[np.array(orders).T]
    values = ReorderedTiming.of(schedule).values(given, Objective.MAKESPAN)
    for order, value in zip(orders, values.tolist(), strict=True):
        reordered = schedule.pipeline.reordered(order)
        alone = timing.schedule(reordered, schedule.orders, Objective.MAKESPAN)
        assert alone.metrics.makespan * schedule.pipeline.ticks.per_unit == value
    assert values[0] == schedule.metrics.makespan_ticks
