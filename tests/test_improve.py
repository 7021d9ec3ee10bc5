"""The phases of a search that better the best schedule: what they do when time is short."""

from __future__ import annotations

import pytest

from ppopt import Objective, Pipeline
from ppopt.solver.improve import Improver
from ppopt.solver.incumbent import Problem
from tests.searches import begun


def test_no_schedule_is_justified_where_that_takes_longer_than_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = begun(Problem(Pipeline(stages=4, batches=8, mem_limit=3), Objective.MAKESPAN, False))
    improver = Improver(search, 0)
    improver.construct()
    with monkeypatch.context() as slow:
        slow.setattr("ppopt.solver.improve.JUSTIFYING", 100.0)
        improver.settle()
        assert not improver.ready
    improver.settle()
    assert improver.ready
