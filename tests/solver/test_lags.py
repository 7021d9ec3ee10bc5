"""A lag that only the instance has: every method of the search keeps it, and no bound ignores it.

The lags of these tests are put into the data flow of `Instance`, between the operations of a stage:
from F to its backward, and from B to W. Nothing else knows them, so whatever derives the data flow
by itself shows here. The optimum comes from all orders of all devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
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
            one, other = self.classes[before], self.classes[after]
            same = (one.stage, one.route, one.slice) == (other.stage, other.route, other.slice)
            more = lag_within(one.kind, other.kind, one.stage) if same else 0
            yield before, after, lag + more

    monkeypatch.setattr(Instance, "_edges", edges)


def assert_lags_are_kept(schedule: Schedule) -> None:
    """Every lag within a stage is between its operations."""
    rows = zip(schedule.kind, schedule.stage, schedule.microbatch, strict=True)
    found = {Op(OpKind(kind), int(stage), int(j)): row for row, (kind, stage, j) in enumerate(rows)}
    for op, row in found.items():
        for before, after in PAIRS:
            earlier = found.get(op._replace(kind=before))
            if op.kind is after and earlier is not None:
                gap = int(schedule.start[row] - schedule.end[earlier])
                assert gap >= lag_within(before, after, op.stage), (op, gap)


def least(pipeline: Pipeline, *, fused: bool) -> int | None:
    """Least makespan, from all orders of all devices, one stage each; None: none fits."""
    kinds = (OpKind.F, OpKind.BW) if fused else (OpKind.F, OpKind.B, OpKind.W)
    room = pipeline.ticks.limits
    orders = []
    for stage in range(pipeline.num_stages):
        mine = [
            [Op(kind, stage, count) for kind, count in order]
            for order in interleaved(kinds, (0,) * len(kinds), pipeline.batches)
        ]
        orders.append([o for o in mine if room is None or peak(pipeline, o) <= room[stage]])
    values = [timed(pipeline, kinds, chosen) for chosen in product(*orders)]
    return min((value for value in values if value is not None), default=None)


def interleaved(
    kinds: tuple[OpKind, ...], done: tuple[int, ...], total: int
) -> Iterator[list[tuple[OpKind, int]]]:
    """Orders of one stage: every kind in the order of microbatches, and behind the kind before."""
    if min(done) == total:
        yield []
        return
    for place, kind in enumerate(kinds):
        if done[place] < (done[place - 1] if place else total):
            after = (*done[:place], done[place] + 1, *done[place + 1 :])
            for rest in interleaved(kinds, after, total):
                yield [(kind, done[place]), *rest]


def peak(pipeline: Pipeline, order: list[Op]) -> int:
    """Most memory of a device; every operation takes time."""
    held = most = pipeline.ticks.static[order[0].stage]
    for op in order:
        most = max(most, held + pipeline.ticks.takes[op.kind][op.stage])
        held += pipeline.ticks.memory_change(op.kind, op.stage)
    return most


def timed(
    pipeline: Pipeline, kinds: tuple[OpKind, ...], orders: tuple[list[Op], ...]
) -> int | None:
    """Makespan of the earliest starts; None where the orders wait for each other."""
    ends: dict[Op, int] = {}
    free, place = [0] * len(orders), [0] * len(orders)
    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            while place[stage] < len(order):
                op = order[place[stage]]
                waits = [*inputs(pipeline, kinds, op)]
                if any(other not in ends for other, _ in waits):
                    break
                start = max([free[stage], *(ends[other] + lag for other, lag in waits)])
                free[stage] = ends[op] = start + pipeline.ticks.durations[op.kind][stage]
                place[stage] += 1
                moved = True
    return max(free) if all(map(len, orders)) and len(ends) == sum(map(len, orders)) else None


def inputs(pipeline: Pipeline, kinds: tuple[OpKind, ...], op: Op) -> Iterator[tuple[Op, int]]:
    """What an operation waits for, and the lag."""
    (down,), (up,), last = pipeline.ticks.down, pipeline.ticks.up, pipeline.num_stages - 1
    if op.kind is OpKind.F:
        if op.stage:
            yield op._replace(stage=op.stage - 1), down[op.stage - 1]
        return
    before = kinds[kinds.index(op.kind) - 1]
    yield op._replace(kind=before), lag_within(before, op.kind, op.stage)
    if op.kind is kinds[1] and op.stage < last:
        yield op._replace(stage=op.stage + 1), up[op.stage]


def cases(seed: int, count: int) -> Iterator[tuple[Pipeline, bool, int]]:
    """Pipelines of up to 3 stages of one device each, whether whole, and their least makespan."""
    rng = Random(seed)
    while count:
        stages, fused = rng.randint(1, 3), rng.random() < 0.4
        pipeline = Pipeline(
            stages=stages,
            batches=rng.randint(2, 3 if fused or stages < 3 else 2),
            forward=[rng.randint(1, 4) for _ in range(stages)],
            backward_input=[rng.randint(1, 4) for _ in range(stages)],
            weight=[rng.randint(1, 4) for _ in range(stages)],
            p2p=rng.randint(0, 2),
            mem_limit=rng.choice([None, 1, 2, 3]),
        )
        best = least(pipeline, fused=fused)
        if best is not None:
            count -= 1
            yield pipeline, fused, best


def test_searches_reach_the_optimum_and_prove_it() -> None:
    for pipeline, fused, best in cases(seed=1, count=25):
        found = solve(
            pipeline, backward_kind=BackwardKind.uniform(fused=fused), workers=1, time_limit=600
        )
        assert found.status is Status.OPTIMAL
        assert found.schedule.metrics.makespan_ticks == best, (pipeline, fused)
        assert_lags_are_kept(found.schedule)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_alone_keeps_the_lags_and_bounds_no_optimum_out(name: str) -> None:
    params = replace(SolveParams(), without=frozenset(NAMES) - {name})
    for pipeline, fused, best in cases(seed=2, count=6):
        found = solve(
            pipeline,
            backward_kind=BackwardKind.uniform(fused=fused),
            workers=1,
            time_limit=0.3,
            params=params,
        )
        ticks = pipeline.ticks
        assert found.lower_bound * ticks.per_unit <= best, (pipeline, fused)
        if found.schedule is not None:
            assert_lags_are_kept(found.schedule)
            assert found.schedule.metrics.makespan_ticks >= best


def test_the_dynamic_program_of_any_devices_is_a_bound_and_of_all_the_optimum() -> None:
    rng = Random(5)
    for pipeline, fused, best in cases(seed=3, count=40):
        problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.uniform(fused=fused))
        every = range(pipeline.num_devices)
        assert searches.ended(problem, tuple(every), best + 1).least == best
        some = tuple(sorted(rng.sample(every, rng.randint(1, len(every)))))
        assert searches.ended(problem, some, best + 1).least <= best
        assert device_bound(problem.instance, Objective.MAKESPAN).value <= best


def test_list_scheduling_is_no_faster_than_its_orders() -> None:
    """Its own times keep the lags: the earliest times of its orders are no later."""
    for pipeline, fused, best in cases(seed=4, count=15):
        instance = Instance.uniform(pipeline, fused=fused)
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
        found = solve(pipeline, workers=1, time_limit=600, **options)
        assert found.status is Status.OPTIMAL
        assert found.schedule is not None
        assert_lags_are_kept(found.schedule)
