"""The phases of a search that better the best schedule: what they do when time is short."""

from __future__ import annotations

import pytest

from ppopt import Objective, Pipeline
from ppopt.problem.problem import Problem
from ppopt.solver.heuristics.improve import FIRST, Improver
from ppopt.solver.heuristics.iterated_local_search import Shaker
from tests.factories.searches import begun

TIGHT = Problem(Pipeline(stages=4, batches=8, mem_limit=3), Objective.MAKESPAN, False)


def test_no_schedule_is_justified_where_that_takes_longer_than_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    improver = Improver(begun(TIGHT), 0)
    improver.construct()
    with monkeypatch.context() as slow:
        slow.setattr("ppopt.solver.heuristics.improve.JUSTIFYING", 100.0)
        improver.settle(1.0)
        assert not improver.ready
    improver.settle(1.0)
    assert improver.ready


def test_parts_of_what_is_justified_make_up_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each schedule once, the best first, whether at once or part by part."""
    justified: list[list[int]] = []
    plainly = Shaker.settle

    def noted(self: Shaker, start: list[int]) -> tuple[int, list[int]]:
        justified.append(start)
        return plainly(self, start)

    monkeypatch.setattr(Shaker, "settle", noted)
    found = []
    for parts in ((1.0, 1.0), (0.0, *[0.25] * 5)):
        improver = Improver(begun(TIGHT), 0)
        improver.construct()
        if parts[0] == 0:
            improver.settle_first()
            assert justified == found[0][:FIRST]
        for part in parts:
            improver.settle(part)
        found.append(justified[:])
        justified.clear()
    assert len(found[0]) > FIRST
    assert found[0] == found[1]
