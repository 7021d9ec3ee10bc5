"""Local search: what it starts from, and what it does when time is short."""

from __future__ import annotations

import pytest

from ppopt import Objective, Pipeline
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.solver.heuristics.construction import HandStrategies, ListScheduling
from ppopt.solver.heuristics.double_justification import DoubleJustification
from ppopt.solver.heuristics.pool import Pool
from ppopt.solver.parameters import JustificationParams, PoolParams
from tests.factories.searches import Begun, waiting

TIGHT = Problem(Pipeline(stages=4, batches=8, mem_limit=3), Objective.MAKESPAN, BackwardKind.SPLIT)
PARAMS = JustificationParams()


def constructed(params: PoolParams) -> tuple[Pool, Begun]:
    """The pool and the search after construction."""
    pool, search = Pool(TIGHT, params), waiting(TIGHT)
    for method in (ListScheduling(pool), HandStrategies(pool)):
        while not method.run(search.incumbent, search.budget()).exhausted:
            pass
    pool.end_construction()
    return pool, search


def test_no_schedule_is_justified_where_that_takes_longer_than_what_is_left() -> None:
    for seconds, found in ((100.0, False), (PoolParams().justifying_seconds, True)):
        pool, search = constructed(PoolParams()._replace(justifying_seconds=seconds))
        DoubleJustification(pool, PARAMS).run(search.incumbent, search.budget(1.0))
        assert bool(pool.schedules) == found


def test_parts_of_what_is_justified_make_up_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each schedule once, the best first, whether at once or part by part."""
    justified: list[list[int]] = []
    plainly = Pool.justify

    def noted(self: Pool, start: list[int], *rest: object) -> tuple[int, list[int]]:
        justified.append(start)
        return plainly(self, start, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Pool, "justify", noted)
    found = []
    for parts in ((1.0, 1.0), (0.0, *[0.25] * 5)):
        pool, search = constructed(PoolParams())
        method = DoubleJustification(pool, PARAMS)
        for number, part in enumerate(parts):
            method.run(search.incumbent, search.budget(part * PARAMS.seconds_for_all))
            if number == 0 and part == 0:
                assert justified == found[0][: PARAMS.first]
        found.append(justified[:])
        justified.clear()
    assert len(found[0]) > PARAMS.first
    assert found[0] == found[1]
