"""Clocks of work and of the processor: work moves them, waiting does not."""

from __future__ import annotations

import time
from importlib import import_module

from ppopt import Pipeline, Status, solve
from tests.clock import EVENTS, SHORT, processor_clock, work_clock

HARD = Pipeline(stages=8, batches=64, forward=10419, backward_input=10207, weight=7715, p2p=408)


def nothing() -> None:
    """Return."""


def test_calls_and_returns_move_it_and_waiting_does_not() -> None:
    with work_clock() as clock:
        began = time.monotonic()
        time.sleep(0.01)
        waited = time.monotonic()
        for _ in range(1000):
            nothing()
        worked = time.monotonic()
        assert worked <= clock.monotonic()
    assert 0 <= waited - began <= 10 / EVENTS
    assert 2000 / EVENTS <= worked - waited <= 2010 / EVENTS
    assert time.monotonic() != clock.monotonic()


def test_waiting_does_not_move_the_clock_of_the_processor() -> None:
    """Neither for searches nor for the re-checks of bounds, which have its name of their own."""
    rechecker = import_module("ppopt.rechecker")
    with processor_clock():
        for clock in (time, rechecker):
            began = clock.monotonic()
            time.sleep(0.05)
            assert 0 <= clock.monotonic() - began < 0.05
    assert time.monotonic is rechecker.monotonic


def test_a_search_ends_at_the_same_work_each_time() -> None:
    """The first one also imports what it uses. CP-SAT's deterministic time counts.

    With less than half a second left, a search does not load its methods: they are loaded before.
    """
    import_module("ppopt.solver.portfolio")
    runs = []
    for _ in range(3):
        with work_clock(SHORT // 4):
            runs.append(solve(HARD, mem_limit=6, time_limit=0.5, workers=1))
    _imports, first, second = runs
    assert first.status is second.status is Status.FEASIBLE
    assert first.value == second.value and first.lower_bound == second.lower_bound
    assert first.solve_seconds >= 0.5
