"""Time limits: there is a schedule at any of them, and large pipelines keep them."""

from __future__ import annotations

import sys
import time
from itertools import count
from typing import Any

import pytest

from ppopt import Pipeline, Status, evaluate, solve, verify
from ppopt.problem.backward_kind import BackwardKind
from ppopt.solver import portfolio
from tests.clock import SHORT, late, work_clock
from tests.tiers import first

WIDE: dict[str, dict[str, Any]] = {
    "memory for three": {"mem_limit": 3},
    "memory of 1F1B, costs that differ": {
        "mem_limit": "1f1b",
        "p2p": 1,
        "forward": 10,
        "weight": 9,
    },
    "two chunks": {"chunks": 2, "placement": "v"},
    "pairs": {"overlap": 2},
}


@pytest.mark.parametrize("case", first(1, WIDE))
def test_many_devices_have_a_schedule_within_the_limit(case: str) -> None:
    """Bounds and memory figures take time in proportion to the devices, not to their square."""
    pipeline = Pipeline(stages=384, batches=2, **WIDE[case])
    with work_clock(2 * SHORT):
        result = solve(pipeline, time_limit=0.5, workers=1)
    assert not late(result.solve_seconds, 0.5)
    assert result.schedule is not None
    assert verify(result.schedule) == []


LARGE: dict[str, dict[str, Any]] = {
    "256 devices": {"stages": 256, "batches": 1024, "mem_limit": 256},
    "64 devices, tight memory": {"stages": 64, "batches": 4096, "mem_limit": 40},
    "two chunks": {"stages": 16, "batches": 8192, "placement": "v", "mem_limit": 16},
    "1024 devices": {"stages": 1024, "batches": 2, "mem_limit": 1024},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", LARGE)
def test_large_pipelines_keep_the_limit(case: str) -> None:
    """No method begins what it cannot end: models and networks take seconds to prepare."""
    pipeline = Pipeline(forward=10, weight=9, backward=21, p2p=1, **LARGE[case])
    with work_clock():
        result = solve(pipeline, time_limit=2, workers=1)
    assert not late(result.solve_seconds, 2)
    assert result.schedule is not None


def test_a_rule_that_takes_longer_than_the_rest_of_the_time_is_not_begun() -> None:
    pipeline = Pipeline(stages=16, batches=1024, chunks=2, placement="v", mem_limit=8)
    with work_clock(2 * SHORT):
        result = solve(pipeline, time_limit=0.3, workers=1)
    assert not late(result.solve_seconds, 0.3)
    assert result.status is Status.FEASIBLE


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> float:
    """A time limit that is over at once: every reading of the clock is a second after the last."""
    seconds = count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    return 0.001


@pytest.mark.parametrize("batches", [8, 400])
def test_there_is_a_schedule_at_any_time_limit(batches: int, no_time: float) -> None:
    """For few operations as the last resort, for many before all else."""
    pipeline = Pipeline(stages=8, batches=batches, forward=10, weight=7, p2p=1, mem_limit=6)
    result = solve(pipeline, time_limit=no_time, workers=1)
    assert result.status is Status.FEASIBLE
    assert result.schedule is not None
    assert verify(result.schedule) == []


@pytest.mark.parametrize("fused", [False, True])
def test_a_hint_is_there_before_the_clock_starts(no_time: float, *, fused: bool) -> None:
    """Also where its whole backwards are to be split, or its split ones made whole."""
    pipeline = Pipeline(stages=8, batches=32, placement="v", chunks=2, forward=10, weight=7, p2p=1)
    hint = evaluate(pipeline, "v-half" if fused else "1f1b-v")
    result = solve(
        pipeline,
        time_limit=no_time,
        workers=1,
        hint=hint,
        backward_kind=BackwardKind.uniform(fused=fused),
    )
    assert result.value is not None
    assert result.hint is not None
    assert fused or result.value <= result.hint.value
    plain = solve(
        pipeline, time_limit=no_time, workers=1, backward_kind=BackwardKind.uniform(fused=fused)
    )
    assert result.value < plain.value


TRAITS: dict[str, dict[str, Any]] = {
    "plain": {},
    "moves to the host": {"offload_memory": "0.5", "offload_time": 4},
    "work once in a step": {"unshard": 30, "gradient_sync": 40, "optimizer": 15},
    "links": {"link_mode": "streams"},
    "routes": {"routes": 2},
    "pairs": {"overlap": 25},
    "slices": {"slices": 2},
    "microbatches that differ": {"microbatch_times": [1, 2] * 12, "microbatch_memory": [1] * 24},
}


@pytest.mark.parametrize("case", TRAITS)
def test_rules_and_hand_strategies_run_even_if_time_is_up(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One microbatch at a time would be four times as long as the best strategy by hand."""
    pipeline = Pipeline(stages=8, batches=24, forward=10, weight=7, p2p=1, **TRAITS[case])
    strategies = ("seq-1f1b",) if case == "slices" else ("1f1b", "gpipe")
    if case == "routes":
        strategies = ("chimera",)
    best = min(evaluate(pipeline, name).makespan for name in strategies)
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    result = solve(pipeline, time_limit=0.1, began=99.8, workers=1)
    assert result.value is not None
    assert result.value <= best


@pytest.mark.parametrize("left", [0.1, 5.0])
def test_what_takes_longer_to_import_than_the_time_left_is_not_imported(
    left: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No module of the search is loaded yet that needs CP-SAT."""
    pipeline = Pipeline(stages=4, batches=8, forward=10, weight=7, p2p=1, mem_limit=3)
    monkeypatch.delitem(sys.modules, portfolio.__name__)
    monkeypatch.delattr("ppopt.solver.portfolio")
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    result = solve(pipeline, time_limit=left, workers=1)
    assert result.schedule is not None
    assert (portfolio.__name__ in sys.modules) == (left > 1)


def test_a_proof_that_there_is_none_needs_no_time(no_time: float) -> None:
    result = solve(Pipeline(stages=2, batches=2, mem_limit="0.5"), time_limit=no_time, workers=1)
    assert (result.status, result.schedule) == (Status.INFEASIBLE, None)
