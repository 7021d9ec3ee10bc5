"""Pairs that take less time than one of their operations alone: search, bounds and re-checker."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import pytest

from ppopt import Pipeline, Status, evaluate, solve
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance_costs import InstanceCosts
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.problem import Problem
from ppopt.problem.short_pairs import ShortPairs
from ppopt.rechecker import SEED, Verdict, check
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.pair_times import shortest
from ppopt.schedule.operations import ALONE
from ppopt.solver.bounds.device_bounds import known_bound
from ppopt.verifier.costs import Costs
from tests.clock import SHORT, work_clock
from tests.oracles.rechecked import assert_like_every_order
from tests.tiers import slow

F, B, W, BW = OpKind
SPLIT, WHOLE, MIXED = BackwardKind.SPLIT, BackwardKind.WHOLE, BackwardKind.MIXED
FUSED = {SPLIT: False, WHOLE: True, MIXED: None}


def tiny(rng: Random, hosts: tuple[int, ...], *, matrix: bool) -> Pipeline:
    """Two microbatches, B, W and BW free of each other, pairs of any time above 0."""
    forward, full, partial = ([rng.randint(1, 7) for _ in hosts] for _ in range(3))
    activation = [rng.randint(1, 2) for _ in hosts]
    row = [rng.randint(1, 5) for _ in hosts]
    return Pipeline(
        stages=len(hosts),
        placement=hosts,
        batches=2,
        routes=rng.choice((1, 2)),
        forward=forward,
        backward=full,
        backward_input=partial,
        weight=[rng.randint(1, 4) for _ in hosts],
        overlap=[[rng.randint(1, 5) for _ in hosts] for _ in hosts] if matrix else row,
        overlap_input=rng.choice((None, None, [rng.randint(1, 5) for _ in hosts])),
        recompute_time=rng.choice((None, None, 1)),
        p2p=rng.choice((0, 0, 1)),
        activation=activation,
        memory_b=[rng.choice((0, -much, -1, 1)) for much in activation],
        mem_limit=rng.choice((None, sum(activation) + 1, 2 * sum(activation) + 2)),
    )


@pytest.mark.parametrize("matrix", [False, True], ids=["stages", "matrix"])
@pytest.mark.parametrize(
    ("hosts", "kind", "count", "spans"),
    [
        ((0,), SPLIT, 1, True),
        ((0,), WHOLE, 2, True),
        ((0,), MIXED, 1, True),
        ((0, 1), WHOLE, 1, True),
        ((1, 0), WHOLE, 1, True),
        ((0, 0), WHOLE, 1, False),
        slow((0,), WHOLE, 6, True),
        slow((0,), MIXED, 8, True),
        slow((0, 1), WHOLE, 8, True),
        slow((0, 1), SPLIT, 3, False),
    ],
)
def test_search_and_recheck_find_what_trying_everything_finds(
    hosts: tuple[int, ...], kind: BackwardKind, count: int, spans: bool, matrix: bool
) -> None:
    rng, short = Random(f"{hosts}{kind}{matrix}"), 0
    for _ in range(count):
        pipeline = tiny(rng, hosts, matrix=matrix)
        short += Problem(pipeline, Objective.MAKESPAN, kind).instance.short_pairs.exist
        assert_like_every_order(pipeline, whole=FUSED[kind], spans=spans)
    assert short


@pytest.mark.parametrize("seed", range(40))
def test_the_relaxation_has_no_longer_operation_and_no_longer_pair(seed: int) -> None:
    """And none of its pairs is shorter than a part; the re-checker's least times are no less."""
    rng = Random(seed)
    hosts = rng.choice(((0, 1), (0, 0), (0, 1, 1), (0, 1, 2, 2, 1, 0)))
    pipeline = tiny(rng, hosts, matrix=seed % 2 == 0)
    if seed % 3 == 0 and pipeline.routes == 1:
        pipeline = replace(
            pipeline, device_speed=[rng.choice((1, 2)) for _ in range(max(hosts) + 1)]
        )
    for kind in BackwardKind:
        pairs = ShortPairs(InstanceCosts.of(pipeline), kind)
        ours, theirs = pipeline.ticks, pairs.relaxed.ticks
        assert ours.per_unit == theirs.per_unit
        backward = BW if kind is WHOLE else B
        kinds = (B, BW) if kind is MIXED else (backward,)
        for stage, (original, two) in enumerate(
            zip(ours.durations[F], theirs.durations[F], strict=True)
        ):
            assert 0 < two <= original
            minimum = min(ours.durations[each][stage] for each in kinds)
            assert theirs.durations[backward][stage] <= minimum
            assert shortest(Costs.of(pipeline))[F][stage] <= two
        for original, two in pairs.stage_pairs:
            time = theirs.pair_time(original, backward, two)
            assert time >= max(theirs.durations[F][original], theirs.durations[backward][two])
            assert time == min(ours.pair_time(original, each, two) for each in kinds)
            if kind is MIXED:
                assert time + theirs.durations[W][two] <= ours.pair_time(original, BW, two)
        assert not ShortPairs(pairs.relaxed, WHOLE if kind is WHOLE else SPLIT).exist


def test_nothing_is_relaxed_where_no_pair_is_shorter_than_a_part() -> None:
    for overlap, kind in product((None, 4, 5, [[4, 5], [6, 4]]), (SPLIT, WHOLE)):
        pipeline = Pipeline(stages=2, batches=3, forward=2, backward=4, overlap=overlap)
        problem = Problem(pipeline, Objective.MAKESPAN, kind)
        assert problem.relaxed is problem


def test_bound_by_hand() -> None:
    """F = 3, BW = 6, as one 5: F, two pairs, BW. No F and no BW need be longer than 5."""
    pipeline = Pipeline(stages=1, batches=3, forward=3, backward=6, overlap=5)
    result = solve(pipeline, backward_kind=WHOLE)
    assert (result.status, result.value) == (Status.OPTIMAL, 3 + 5 + 5 + 6)
    assert result.schedule is not None
    assert (result.schedule.pair != ALONE).sum() == 4
    bound = known_bound(Problem(pipeline, Objective.MAKESPAN, WHOLE))
    assert pipeline.ticks.time(bound.value) == 3 + 5 * 3
    assert "as short as its shortest overlapped pair" in bound.proof


def test_a_matrix_that_changes_the_order() -> None:
    """Both stages on one device: F pairs with BW of the stage that hides it, not with its own."""
    fields: dict[str, Any] = {"stages": 2, "batches": 3, "placement": (0, 0), "backward": 3}
    for overlap, apart in (([[4, 2], [2, 4]], 1), ([[2, 4], [4, 2]], 0)):
        result = solve(Pipeline(**fields, overlap=overlap), backward_kind=WHOLE, workers=1)
        assert result.status is Status.OPTIMAL
        assert result.schedule is not None
        pairs: dict[int, list[int]] = {}
        for row in result.schedule.rows():
            if row.pair != ALONE:
                pairs.setdefault(row.pair, []).append(row.op.stage)
        assert pairs
        assert {abs(first - second) for first, second in pairs.values()} == {apart}


def test_search_is_no_worse_than_strategies() -> None:
    pipeline = Pipeline(stages=4, batches=8, forward=2, backward=5, overlap=[4, 3, 4, 3])
    baseline = evaluate(pipeline, "1f1b-overlap")
    with work_clock(SHORT):
        result = solve(pipeline, time_limit=0.3, workers=1)
    assert result.value is not None
    assert result.lower_bound is not None
    assert (
        result.lower_bound <= result.value <= pipeline.ticks.time(baseline.metrics.makespan_ticks)
    )


def test_placements_with_short_pairs() -> None:
    """The bound of every placement, and of all, is no more than what its search finds."""
    pipeline = Pipeline(
        stages=3, batches=2, placement="search", forward=[2, 3, 2], backward=[5, 4, 6], overlap=3
    )
    result = solve(pipeline, workers=1, backward_kind=WHOLE)
    assert result.status is Status.OPTIMAL


def test_work_around_the_microbatches_waits_for_the_end_of_a_pair() -> None:
    """The re-checker's gradient sync starts when a pair ends, not when its BW would end alone."""
    pipeline = Pipeline(
        stages=2, batches=2, placement=(0, 0), forward=[2, 4], backward=[6, 3],
        overlap=[[3, 5], [2, 6]], gradient_sync=2, unshard=1,
    )  # fmt: skip
    result = solve(pipeline, backward_kind=WHOLE, workers=1)
    assert result.status is Status.OPTIMAL
    assert result.lower_bound is not None
    bound = int(result.lower_bound * pipeline.ticks.per_unit)
    for more, verdict in ((0, Verdict.CONFIRMED), (1, Verdict.WRONG)):
        claim = Claim(pipeline, span=False, backward_kind=WHOLE, bound=bound + more)
        assert check(claim, 30, 1, SEED, lambda _: None).verdict is verdict
