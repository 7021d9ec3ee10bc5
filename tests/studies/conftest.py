"""What makes plans of tests short where a test looks at something else."""

from __future__ import annotations

import pytest

from ppopt.studies.plan_reports import PlanReports
from ppopt.studies.plan_search import PlanSearch


@pytest.fixture
def search_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is its search: it evaluates no strategies before, and reports nothing after."""
    for name in ("start_from_baselines", "start_from_late_baselines"):
        monkeypatch.setattr(PlanSearch, name, lambda _: None)
    monkeypatch.setattr("ppopt.studies.plan.usual_schedules", lambda *_, **__: [])
    monkeypatch.setattr(PlanReports, "plan", lambda reports: reports.search.plan())
