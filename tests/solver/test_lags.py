"""A lag that only the instance has: every method of the search keeps it, and no bound ignores it.

The lags of these tests are put into the data flow of `Instance`, between the operations of a stage:
from F to its backward, and from B to W. Nothing else knows them, so whatever derives the data flow
by itself shows here: in its schedules, or against the value that another method proves.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from random import Random
from typing import Any

import pytest

from ppopt import Objective, SolveParams, Status, solve
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.operation import Op, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.schedule.list_scheduling import ListScheduler
from ppopt.schedule.schedule import Schedule
from ppopt.solver.bounds.device_bounds import device_bound
from ppopt.solver.heuristics.priority_rules import priority_rules
from ppopt.solver.parameters import RoundParams
from ppopt.solver.portfolio import NAMES
from tests.factories import searches

TURN = (5, 0, 3, 2)
"""Ticks from the end of F to the start of its backward, per stage."""
REST = (0, 4, 1, 0)
"""Ticks from the end of B to the start of W, per stage."""
PAIRS = ((OpKind.F, OpKind.B), (OpKind.F, OpKind.BW), (OpKind.B, OpKind.W))


def lag_within(before: OpKind, after: OpKind, stage: int) -> int:
    """Lag between two operations of a stage and microbatch."""
    if (before, after) not in PAIRS:
        return 0
    return REST[stage] if after is OpKind.W else TURN[stage]


@pytest.fixture(autouse=True)
def _lags(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the lags into the data flow of every instance."""
    without = Instance._edges

    def edges(self: Instance) -> Iterator[tuple[int, int, int]]:
        for before, after, lag in without(self):
            first, second = self.classes[before], self.classes[after]
            same = (first.stage, first.route, first.slice) == (
                second.stage,
                second.route,
                second.slice,
            )
            more = lag_within(first.kind, second.kind, first.stage) if same else 0
            yield before, after, lag + more

    monkeypatch.setattr(Instance, "_edges", edges)


def assert_lags_are_kept(schedule: Schedule) -> None:
    """Every lag within a stage is between its operations."""
    rows = zip(schedule.kind, schedule.stage, schedule.microbatch, strict=True)
    row_of = {
        Op(OpKind(kind), int(stage), int(j)): row for row, (kind, stage, j) in enumerate(rows)
    }
    for op, row in row_of.items():
        for before, after in PAIRS:
            earlier = row_of.get(op._replace(kind=before))
            if op.kind is after and earlier is not None:
                gap = int(schedule.start[row] - schedule.end[earlier])
                assert gap >= lag_within(before, after, op.stage), (op, gap)


@cache
def cases(seed: int, count: int) -> list[tuple[Pipeline, BackwardKind, int]]:
    """Pipelines of up to 3 stages of one device each, the kind of backward, and their optimum.

    The optimum is proved by the search; other methods and bounds are held against its schedule.
    """
    rng = Random(seed)
    solved: list[tuple[Pipeline, BackwardKind, int]] = []
    while len(solved) < count:
        stages, kind = rng.randint(1, 3), rng.choice((BackwardKind.WHOLE, BackwardKind.SPLIT))
        pipeline = Pipeline(
            stages=stages,
            batches=rng.randint(2, 3),
            forward=[rng.randint(1, 4) for _ in range(stages)],
            backward_input=[rng.randint(1, 4) for _ in range(stages)],
            weight=[rng.randint(1, 4) for _ in range(stages)],
            p2p=rng.randint(0, 2),
            mem_limit=rng.choice([None, 1, 2, 3]),
        )
        result = solve(pipeline, backward_kind=kind, workers=1, time_limit=600)
        if result.schedule is not None:
            assert result.status is Status.OPTIMAL
            assert_lags_are_kept(result.schedule)
            solved.append((pipeline, kind, result.schedule.metrics.makespan_ticks))
    return solved


@pytest.mark.parametrize("name", NAMES)
def test_every_method_alone_keeps_the_lags_and_agrees_with_all(name: str) -> None:
    without, rounds = frozenset(NAMES) - {name}, RoundParams(max_rounds=2)
    params = SolveParams(without=without, rounds=rounds)
    for pipeline, kind, best in cases(seed=2, count=6):
        result = solve(pipeline, backward_kind=kind, workers=1, time_limit=600, params=params)
        assert result.lower_bound * pipeline.ticks.per_unit <= best, (pipeline, kind)
        if result.schedule is not None:
            assert_lags_are_kept(result.schedule)
            assert result.schedule.metrics.makespan_ticks >= best


def test_the_dynamic_program_of_any_devices_is_a_bound_and_of_all_the_optimum() -> None:
    rng = Random(5)
    for pipeline, kind, best in cases(seed=3, count=20):
        problem = Problem(pipeline, Objective.MAKESPAN, kind)
        every = range(pipeline.num_devices)
        assert searches.ended(problem, tuple(every), best + 1).lower_bound == best
        some = tuple(sorted(rng.sample(every, rng.randint(1, len(every)))))
        assert searches.ended(problem, some, best + 1).lower_bound <= best
        assert device_bound(problem.instance, Objective.MAKESPAN).value <= best


def test_list_scheduling_is_no_faster_than_its_orders() -> None:
    """Its own times keep the lags: the earliest times of its orders are no later."""
    for pipeline, kind, best in cases(seed=3, count=20):
        instance = Instance(pipeline, kind)
        for rule in priority_rules(instance):
            built = ListScheduler(instance).build(rule)
            if built is not None:
                timed_again = timing.schedule(pipeline, built.arrays(), Objective.MAKESPAN)
                assert built.makespan >= timed_again.metrics.makespan_ticks >= best


@pytest.mark.parametrize("placement", ["v", "interleaved"])
def test_several_stages_of_a_device(placement: str) -> None:
    """Two stages on each of two devices: both objectives, whole and split."""
    pipeline = Pipeline(stages=2, chunks=2, batches=3, placement=placement, p2p=1, mem_limit=3)
    for kind, objective in product(("split", "whole"), Objective):
        options: dict[str, Any] = {"backward_kind": kind, "objective": objective.value}
        result = solve(pipeline, workers=1, time_limit=600, **options)
        assert result.status is Status.OPTIMAL
        assert result.schedule is not None
        assert_lags_are_kept(result.schedule)
