"""The re-checker of bounds over all placements: on what searches claim, and on lies."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

import ppopt
from ppopt import Layer, Model, Pipeline, Result, Verdict, recheck, solve
from ppopt.formats.schedule_json import dumps, loads
from ppopt.problem.backward_kind import BackwardKind
from ppopt.rechecker import placements
from ppopt.rechecker.claim import Claim

SLOW_AND_FAST = Pipeline(
    stages=3, placement="search", batches=2, forward=[1, 3, 2], device_speed=[1, "0.5", 1],
    mem_limit=[3, 3, 2],
)  # fmt: skip


@cache
def best_of_slow_and_fast() -> Result:
    return solve(SLOW_AND_FAST, workers=1)


def test_a_bound_that_holds_of_the_placement_found_alone_is_refuted() -> None:
    """The claim is of every placement: the value of a worse one is no bound."""
    best = best_of_slow_and_fast()
    worse = solve(best.pipeline.placed((0, 1, 2)), workers=1)
    assert best.value < worse.value
    assert worse.claim is not None
    assert recheck(worse, workers=1).verdict is Verdict.CONFIRMED
    lie = replace(worse, certificate=best.certificate)
    assert recheck(lie, workers=1).verdict is Verdict.WRONG


def test_a_file_says_that_its_bound_is_of_all_placements() -> None:
    result = best_of_slow_and_fast()
    assert result.schedule is not None
    rechecked = recheck(loads(dumps(result.schedule), "x")[0], workers=1)
    assert rechecked.verdict is Verdict.CONFIRMED
    assert "placements" in rechecked.reason


def test_a_bound_of_placements_and_partitions_together_is_refuted_but_not_confirmed() -> None:
    """Two devices, one half as fast, and four layers, three of them light."""
    model = Model([Layer(forward=time) for time in (1, 1, 1, 3)])
    pipeline = model.pipeline(
        devices=2, batches=2, placement="search", partition="search", device_speed=[1, "0.5"]
    )
    best = solve(pipeline, workers=1, time_limit=600)
    assert best.schedule is not None and best.schedule.origin.certificate is not None
    rechecked = recheck(loads(dumps(best.schedule), "x")[0], workers=1)
    assert rechecked.verdict is Verdict.UNDECIDED
    assert "combinations of decisions are not enumerated" in rechecked.reason
    higher = replace(best, bound_ticks=best.bound_ticks + best.pipeline.grid.time)
    assert recheck(higher, workers=1).verdict is Verdict.WRONG
    slower = solve(replace(pipeline, placement=(1, 0), partition=(1, 3)), workers=1, time_limit=600)
    assert slower.value > best.value
    assert recheck(slower, workers=1).verdict is Verdict.CONFIRMED
    false = replace(slower, certificate=best.certificate)
    assert recheck(false, workers=1).verdict is Verdict.UNDECIDED


def test_placements_are_enumerated_but_for_devices_that_are_alike() -> None:
    """Two stages on each of two devices that are alike: 7 of 14, device 0 hosts stage 0."""
    claim = Claim(
        Pipeline(stages=4, placement=[0, 0, 1, 1], batches=1), False, BackwardKind.SPLIT, 1
    )
    assert list(placements.every(claim)) == [
        (0, 0, 0, 1), (0, 0, 1, 0), (0, 0, 1, 1), (0, 1, 0, 0), (0, 1, 0, 1), (0, 1, 1, 0),
        (0, 1, 1, 1),
    ]  # fmt: skip
    differ = claim._replace(pipeline=replace(claim.pipeline, device_speed=[1, 2]))
    assert len(list(placements.every(differ))) == 14


@pytest.mark.slow
def test_more_placements_than_can_be_enumerated() -> None:
    result = solve(
        Pipeline(
            stages=6, chunks=2, placement="search", batches=6, device_speed=[1, 1, 1, 1, 1, 2]
        ),
        workers=1, stop=ppopt.stop.FirstSchedule(),
    )  # fmt: skip
    rechecked = recheck(result, workers=1, time_limit=5)
    assert rechecked.verdict is Verdict.UNDECIDED
    assert "more placements than can be enumerated" in rechecked.reason


def test_a_bound_that_a_file_rounds_is_the_bound() -> None:
    """Speeds of 0.315 make values that no float is equal to."""
    pipeline = Pipeline(stages=2, batches=3, placement="search", device_speed=[1, "0.315"], p2p=0.1)
    result = solve(pipeline, workers=1)
    assert result.schedule is not None
    assert result.value is not None
    read = loads(dumps(result.schedule), "x")[0]
    assert read.origin.lower_bound != result.value
    assert recheck(read, workers=1).verdict is Verdict.CONFIRMED


def test_nothing_fits_on_any_placement_whatever_recomputes() -> None:
    """Mixed backwards, which no one kind stands for: both layers hold 4 and more on any device."""
    layers = [
        {"forward": 1, "backward": 2, "activation": 4, "workspace": {"B": 3, "BW": 1}},
        {"forward": 1, "backward": 2, "activation": 3, "workspace": {"BW": 4}},
    ]
    result = solve(
        Pipeline(
            stages=2, batches=1, model=layers, partition="balanced", mem_limit=4,
            recompute="search", placement="search", chunks=1,
        ),
        backward_kind="mixed",
        workers=1,
    )  # fmt: skip
    assert result.status == "infeasible"
    assert recheck(result, workers=1).verdict == "confirmed"
