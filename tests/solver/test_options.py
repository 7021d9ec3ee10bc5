"""Options of a request: when its searches end."""

from __future__ import annotations

import time

import pytest

from ppopt.solver.options import USUAL_START, checked_options, reporting


@pytest.mark.parametrize(("start", "reserved"), [(0, 0), (USUAL_START, 0), (3, 2 * 0.5)])
def test_a_slow_start_reserves_time_for_reports(
    start: float, reserved: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine on which the program starts slowly, reports of half a second are slow, too."""
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    with reporting(0.5):
        options = checked_options(20, 1, began=100 - start)
    assert options.end == pytest.approx(120 - start - reserved)
    assert options.time_limit == 20


@pytest.mark.parametrize(("start", "end"), [(18, 101), (30, 90)])
def test_half_of_the_time_left_is_for_the_search(
    start: float, end: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the end of the time limit nothing is reserved."""
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    options = checked_options(20, 1, began=100 - start)
    assert options.end == pytest.approx(end)
