"""Hand strategies of a frontier: those that come too late for its search are compared, too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ppopt import Frontier, Pipeline, frontier
from ppopt.solver.options import SolveOptions, checked_options
from ppopt.studies import frontier as module

PIPELINE = Pipeline(stages=2, batches=4)


def with_share(monkeypatch: pytest.MonkeyPatch, share: float, **options: Any) -> Frontier:
    """A frontier whose strategies have a share of the time before its search."""

    def options_with_share(*arguments: Any, **more: Any) -> SolveOptions:
        checked = checked_options(*arguments, **more)
        params = checked.params
        return replace(
            checked, params=replace(params, frontier=params.frontier._replace(strategies=share))
        )

    monkeypatch.setattr(module, "checked_options", options_with_share)
    return frontier(PIPELINE, workers=1, **options)


def test_strategies_without_a_share_are_evaluated_after_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search proves its points long before the time limit."""
    early, late = (with_share(monkeypatch, share) for share in (0.25, 0.0))
    assert late.status == early.status
    assert late.skipped == early.skipped
    assert [repr(hand) for hand in late.baselines] == [repr(hand) for hand in early.baselines]
    assert [repr(point) for point in late.points] == [repr(point) for point in early.points]


def test_a_strategy_that_time_leaves_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer by its estimate than the whole time limit."""
    monkeypatch.setattr("ppopt.studies.baselines.EVALUATING", 1e6)
    found = with_share(monkeypatch, 0.25)
    assert found.baselines == ()
    assert ("1f1b", "time limit reached") in found.skipped
