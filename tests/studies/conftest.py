"""What makes plans of tests short where a test looks at something else."""

from __future__ import annotations

import pytest

from ppopt.studies.plan_reports import PlanReports
from ppopt.studies.plan_search import PlanSearch


@pytest.fixture
def short_polishing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan improves its best schedules once, for a moment.

    With a limit of ten minutes it would do so for half a minute, also if the plan of two devices
    is proved right after it.
    """
    improve = PlanSearch._improve
    monkeypatch.setattr(
        PlanSearch, "_improve", lambda search, turn: improve(search, turn.share(0.0))
    )


@pytest.fixture
def search_alone(monkeypatch: pytest.MonkeyPatch, short_polishing: None) -> None:
    """A plan is its search: it evaluates no strategies before, and reports nothing after."""
    monkeypatch.setattr(PlanReports, "start_from_baselines", lambda _: None)
    monkeypatch.setattr(PlanReports, "add_to", lambda _, plan, __: plan)
