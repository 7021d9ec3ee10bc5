"""What makes plans of tests short where a test looks at something else."""

from __future__ import annotations

import pytest

from ppopt.studies.plan_reports import PlanReports


@pytest.fixture
def search_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is its search: it evaluates no strategies before, and reports nothing after."""
    monkeypatch.setattr(PlanReports, "start_from_baselines", lambda _: None)
    monkeypatch.setattr(PlanReports, "add_to", lambda _, plan, __: plan)
