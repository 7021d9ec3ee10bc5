"""Moves of local search over orders: valid, within limits, and with the makespan they say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from ppopt import Objective, Pipeline, Schedule, evaluate, solve, verify
from ppopt.cancellation import within
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.operation import OpKind
from ppopt.problem.problem import Problem
from ppopt.solver.heuristics.construction import Baselines, ListScheduling
from ppopt.solver.heuristics.double_justification import DoubleJustification
from ppopt.solver.heuristics.moves import Flip, Move, State, Swap
from ppopt.solver.heuristics.pool import Pool
from ppopt.solver.parameters import JustificationParams, PoolParams, RoundParams, SolveParams
from tests.factories.instances import mixed_cases
from tests.factories.schedules import build
from tests.factories.searches import Begun, waiting


def state_of(schedule: Schedule) -> State:
    problem = Problem(schedule.pipeline, Objective.MAKESPAN, BackwardKind.MIXED)
    return State.of_schedule(problem, schedule)


def schedules(seed: int, count: int) -> Iterator[Schedule]:
    """Random mixed schedules of tiny pipelines within their limits, some with pairs or streams."""
    rng = Random(seed)
    for index, drawn in enumerate(mixed_cases(seed, count, ops=20)):
        schedule = build(drawn, rng, "mixed", paired=bool(index % 2))
        if schedule.fits_limits:
            yield schedule
    for index in range(count // 4):
        fields: dict[str, Any] = {"stages": 3, "batches": 3, "p2p": 2, "backward_input": 2}
        streams = Pipeline(**fields, weight=3, backward=4, link_mode="streams")
        yield evaluate(streams, ("1f1b", "zb-h1", "gpipe")[index % 3])


def kinds(schedule: Schedule) -> dict[tuple[int, int, int], set[int]]:
    """Kinds of backward operations of every stage, microbatch and slice."""
    kinds_of_backwards: dict[tuple[int, int, int], set[int]] = {}
    columns = (schedule.stage, schedule.microbatch, schedule.slice, schedule.kind)
    for *slot, kind in zip(*(column.tolist() for column in columns), strict=True):
        stage, microbatch, slice_index = slot
        if kind != OpKind.F:
            kinds_of_backwards.setdefault((stage, microbatch, slice_index), set()).add(kind)
    return kinds_of_backwards


@pytest.mark.parametrize(("move", "flips"), [(Swap(), 0), (Flip(), 1)])
def test_a_move_gives_a_valid_schedule_within_limits(move: Move, flips: int) -> None:
    """A swap changes no mode, and a flip one."""
    rng, moves = Random(7), 0
    for schedule in schedules(7, 40):
        start = state_of(schedule)
        proposal = move.propose(start, rng)
        if proposal is None:
            continue
        moves += 1
        changed = proposal.schedule
        assert verify(changed) == []
        assert changed.fits_limits
        assert changed.metrics.makespan_ticks == proposal.value
        before, after = kinds(start.schedule), kinds(changed)
        assert sum(before[slot] != after[slot] for slot in before) == flips
    assert moves > 13


def test_a_flip_splits_a_backward_where_that_is_shorter() -> None:
    """F, F, BW of 6 and BW of 6 take 14 ticks; with B of 1 at stage 1, BW of stage 0 ends at 9."""
    pipeline = Pipeline(stages=2, batches=1, forward=1, backward_input=1, weight=5, backward=6)
    start, rng = state_of(evaluate(pipeline, "1f1b")), Random(0)
    assert start.value == 14
    proposals = [Flip().propose(start, rng) for _ in range(20)]
    assert min(proposal.value for proposal in proposals if proposal is not None) == 9


def test_a_flip_keeps_the_limit() -> None:
    """BW holds no more than its F; B takes one more, and there is room for it or not."""
    fields: dict[str, Any] = {"backward_input": 1, "weight": 5, "backward": 6, "memory_b": 1}
    for limit, some in ((1, False), (2, True)):
        pipeline = Pipeline(stages=2, batches=1, **fields, mem_limit=limit)
        start, rng = state_of(evaluate(pipeline, "1f1b")), Random(0)
        proposals = [Flip().propose(start, rng) for _ in range(20)]
        assert any(proposal is not None for proposal in proposals) == some


@pytest.mark.slow
def test_flips_improve_searches_that_windows_do_not_apply_to() -> None:
    """Slices: in so many rounds, without the methods that prove."""
    pipeline = Pipeline(
        stages=4,
        batches=6,
        slices=2,
        forward=(9, 12, 8, 10),
        backward_input=(12, 9, 13, 8),
        weight=(6, 11, 7, 10),
        backward=(14, 16, 16, 14),
        activation=4,
        mem_limit="1f1b",
    )
    known = SolveParams(
        without=frozenset({"full model", "feasibility checks"}), rounds=RoundParams(max_rounds=2)
    )
    values = [
        solve(
            pipeline,
            workers=1,
            time_limit=120,
            params=replace(known, moves=known.moves._replace(flips=flips)),
        ).value
        for flips in (0.0, known.moves.flips)
    ]
    assert values[1] < values[0]


# Local search: what it starts from, and what it does when time is short.


TIGHT = Problem(Pipeline(stages=4, batches=8, mem_limit=3), Objective.MAKESPAN, BackwardKind.SPLIT)
PARAMS = JustificationParams()


def constructed(params: PoolParams) -> tuple[Pool, Begun]:
    """The pool and the search after construction."""
    pool, search = Pool(TIGHT, params), waiting(TIGHT)
    for method in (ListScheduling(pool), Baselines(pool)):
        while not method.run(search.incumbent, search.budget()).exhausted:
            pass
    pool.end_construction()
    return pool, search


def test_no_schedule_is_justified_where_that_takes_longer_than_what_is_left() -> None:
    for seconds, justified_any in ((100.0, False), (PoolParams().justifying_seconds, True)):
        pool, search = constructed(PoolParams()._replace(justifying_seconds=seconds))
        with within(600.0):
            DoubleJustification(pool, PARAMS).run(search.incumbent, search.budget(1.0))
        assert bool(pool.schedules) == justified_any


def test_parts_of_what_is_justified_make_up_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each schedule once, the best first, whether at once or part by part."""
    justified: list[list[int]] = []
    plainly = Pool.justify

    def noted(self: Pool, start: list[int], *rest: object) -> tuple[int, list[int]]:
        justified.append(start)
        return plainly(self, start, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Pool, "justify", noted)
    batches_of_schedules = []
    for parts in ((1.0, 1.0), (0.0, *[0.25] * 5)):
        pool, search = constructed(PoolParams())
        method = DoubleJustification(pool, PARAMS)
        for index, part in enumerate(parts):
            method.run(search.incumbent, search.budget(part * PARAMS.seconds_for_all))
            if index == 0 and part == 0:
                assert justified == batches_of_schedules[0][: PARAMS.first]
        batches_of_schedules.append(justified[:])
        justified.clear()
    assert len(batches_of_schedules[0]) > PARAMS.first
    assert batches_of_schedules[0] == batches_of_schedules[1]
