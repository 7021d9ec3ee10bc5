"""A schedule file with one other number is refused, or is read as it is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import pytest

from ppopt import InputError, Layer, Model, Pipeline, Schedule, evaluate, solve
from ppopt.formats.schedule_json import schedule_from_object, schedule_to_object
from tests.oracles.changed_numbers import (
    Document,
    changed,
    differences,
    numbers_for,
    places,
)
from tests.tiers import MULTIPLE

WORK = {"unshard": 1, "gradient_sync": 3, "optimizer": 1, "unshard_memory": 2}
DIFFERENT = {"microbatch_times": [1, 2, "0.5"], "microbatch_memory": [1, "1.5", 2]}
LAYERS = Model(
    (
        Layer(forward=1, activation=2, output=3, static=1, role="embedding"),
        Layer(forward=2, activation=3, output=2, recompute={"time": 1, "activation": 1}, count=3),
        Layer(forward="1.5", weight=1, activation=1, workspace=2, role="head"),
    )
)


def _simple(strategy: str, **fields: Any) -> Schedule:
    return evaluate(Pipeline(**{"stages": 2, "batches": 2} | fields), strategy)


def _solved(**fields: Any) -> Schedule:
    pipeline = Pipeline(**{"stages": 2, "batches": 2, "mem_limit": "1f1b"} | fields)
    schedule = solve(pipeline, workers=1, time_limit=600).schedule
    assert schedule is not None
    return schedule


FILES: dict[str, Callable[[], Schedule]] = {
    "delays": lambda: _simple("1f1b", p2p=[[0, "0.5"], [2, 0]], backward_p2p=1, memory_b="-0.5"),
    "searched": lambda: _solved(p2p=1, time_unit="ms", tokens_per_microbatch=7),
    "chunks": lambda: _simple("interleaved", chunks=2, static=2, forward_workspace=1),
    "speeds": lambda: _simple("zb-h1", device_speed=[2, 3], recompute_time=1, kept="0.5"),
    "microbatches": lambda: _simple("1f1b", batches=3, **DIFFERENT),
    "order": lambda: evaluate(
        Pipeline(stages=2, batches=3, **DIFFERENT).reordered([2, 0, 1]), "1f1b"
    ),
    "slices": lambda: _simple("seq-1f1b", slice_times=[1, 3]),
    "pairs": lambda: _simple("dualpipe", batches=4, overlap=[["2.5", 2], [3, "2.5"]]),
    "transfers": lambda: _simple("1f1b", p2p=1, backward_p2p=2, link_mode="exclusive"),
    "streams": lambda: _simple("zb-h1", p2p=[1], link_mode="streams"),
    "step": lambda: _simple("1f1b", device_speed=[1, 2], **WORK),
    "offload": lambda: _simple(
        "1f1b", batches=3, offload_memory="0.5", offload_time=1, **DIFFERENT
    ),
    "frozen": lambda: _simple("zb-1p", frozen=[False, True]),
    "layers": lambda: evaluate(
        LAYERS.pipeline(
            devices=2, batches=2, recompute="full", link={"latency": 1, "bandwidth": 2}
        ),
        "1f1b",
    ),
    "layers, different": lambda: evaluate(
        LAYERS.pipeline(devices=2, batches=3, recompute="full", partition=[3, 2], **DIFFERENT),
        "1f1b",
    ),
}
"""A schedule of every kind of pipeline."""
CHECKED = (("value",), ("lower_bound",), ("gap",))
"""Numbers of the origin that the operations determine, in the file of an optimal schedule."""
SAMPLE = 8
"""Changes of a file that the fast tier looks at."""
DRAWN = MULTIPLE
"""Changes of each number that the slow tier looks at."""


@cache
def document_of(name: str) -> Document:
    document: Document = json.loads(json.dumps(schedule_to_object(FILES[name]())))
    assert differences(document) == []
    return document


def _check(document: Document, place: tuple[Any, ...], number: float) -> None:
    """Every change of an operation, a figure, a value, a bound or a gap must be refused."""
    is_checked = place[0] in ("ops", "claims") or place[1:] in CHECKED
    expected = (None,) if is_checked else (None, [])
    assert differences(changed(document, place, number)) in expected


@pytest.mark.parametrize("name", FILES)
def test_some_changes(name: str) -> None:
    document, rng = document_of(name), Random(name)
    spots = list(places(document))
    for place in rng.sample(spots, min(SAMPLE, len(spots))):
        _check(document, place, rng.choice(numbers_for(document, place)))


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_changes_of_every_number(name: str) -> None:
    document, rng = document_of(name), Random(name)
    for place in places(document):
        numbers = list(numbers_for(document, place))
        for number in rng.sample(numbers, min(DRAWN, len(numbers))):
            _check(document, place, number)


@pytest.mark.parametrize(
    ("fields", "changes", "expected"),
    [
        ({"microbatch_times": ["0.5"]}, {"ticks_per_unit": 1}, "ticks_per_unit: 1 is not a mult"),
        ({"microbatch_times": ["0.5"]}, {"ticks_per_unit": 3}, "ticks_per_unit: 3 is not a mult"),
        (
            {"microbatch_times": [1], "microbatch_memory": ["0.5"]},
            {"memory_ticks_per_unit": 3},
            "memory_ticks_per_unit: 3 is not a multiple of 6: some costs, divided or",
        ),
        (
            {"slice_times": [1, 3]},
            {"ticks_per_unit": 2},
            "ticks_per_unit: 2 is not a multiple of 4",
        ),
    ],
)
def test_ticks_that_the_factors_divide(
    fields: dict[str, Any], changes: dict[str, int], expected: str
) -> None:
    """Costs that are whole ticks, but with their factors no whole ticks, are not rounded down."""
    strategy = "seq-1f1b" if "slice_times" in fields else "1f1b"
    file = schedule_to_object(_simple(strategy, stages=1, batches=1, **fields))
    for key, per_unit in changes.items():
        kinds = ("forward_times", "backward_times", "weight_times", "input_times")
        names = ("activation",) if key.startswith("memory") else kinds
        for name in names:
            file["pipeline"][name] = [
                ticks * per_unit // file[key] for ticks in file["pipeline"][name]
            ]
        file[key] = per_unit
    with pytest.raises(InputError, match=expected):
        schedule_from_object(file)


def test_relative_times_of_slices_are_not_scaled_again() -> None:
    file = changed(document_of("slices"), ("pipeline", "slice_times", 1, 0), 5)
    with pytest.raises(InputError, match="slice_times: are not factors of mean 1"):
        schedule_from_object(file)
