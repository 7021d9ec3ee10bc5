"""The search over overlapped pairs and slices: against trying everything, and its bounds."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import pytest

from ppopt import Pipeline, Status, evaluate, solve, verify
from ppopt.errors import VerificationError
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.problem.traits import Trait
from ppopt.schedule.operations import ALONE
from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver.bound import Bound
from ppopt.solver.bounds.device_bounds import device_bound
from ppopt.solver.bounds.relaxation_bound import raise_by_subset
from ppopt.solver.cp_sat.cpsat import SolverLimits
from ppopt.solver.relaxation.pairs import candidate_pairs, max_saved
from ppopt.solver.result import Result
from tests.clock import SHORT, work_clock
from tests.oracles.rechecked import assert_like_every_order
from tests.tiers import first, slow


def tiny(rng: Random, hosts: tuple[int, ...], **fixed: Any) -> Pipeline:
    """Two microbatches, unequal times, pairs of which most save time, limits now and then."""
    forward = [rng.randint(1, 4) for _ in hosts]
    backward = [rng.randint(2, 5) for _ in hosts]
    activation = [rng.randint(1, 2) for _ in hosts]
    fields: dict[str, Any] = {
        "stages": len(hosts),
        "placement": hosts,
        "batches": 2,
        "routes": rng.choice((1, 2)),
        "forward": forward,
        "backward": backward,
        "weight": [rng.randint(1, full - 1) for full in backward],
        "overlap": [
            rng.randint(max(f, b), f + b + 1) for f, b in zip(forward, backward, strict=True)
        ],
        "p2p": rng.choice((0, 0, 1)),
        "activation": activation,
        "memory_b": [rng.choice((0, -much, -1, 1)) for much in activation],
        "mem_limit": rng.choice((None, None, sum(activation) + 1, 2 * sum(activation) + 2)),
    }
    return Pipeline(**fields | fixed)


def assert_sound(result: Result) -> None:
    assert result.schedule is not None
    assert verify(result.schedule) == []
    assert result.lower_bound <= result.value


@pytest.mark.parametrize(
    ("hosts", "fused", "count", "spans"),
    [
        ((0, 1), True, 1, True),
        ((1, 0), True, 1, True),
        ((0, 0), True, 2, False),
        ((0,), False, 2, True),
        ((0, 1), False, 1, False),
        slow((0, 1), True, 5, True),
        slow((0, 0), True, 4, False),
    ],
)
def test_search_finds_what_trying_everything_finds(
    hosts: tuple[int, ...], fused: bool, count: int, spans: bool
) -> None:
    rng = Random(len(hosts) + 10 * fused)
    for _ in range(count):
        assert_like_every_order(tiny(rng, hosts), whole=fused, spans=spans)


def test_three_microbatches_on_one_device() -> None:
    assert_like_every_order(tiny(Random(5), (0,), batches=3, routes=1), whole=True, spans=True)


@pytest.mark.parametrize("slices", [2, 3])
def test_slices(slices: int) -> None:
    rng = Random(slices)
    for _ in range(1 if slices == 2 else 2):
        pipeline = tiny(rng, (0, 1), batches=1, routes=1, slices=slices, overlap=None)
        pipeline = replace(pipeline, mem_limit=rng.choice((None, slices * 4)))
        assert_like_every_order(pipeline, whole=slices == 3, spans=True)


def test_pairs_that_save_nothing_are_never_needed() -> None:
    """A search leaves them out, trying everything does not."""
    rng = Random(3)
    for _ in range(2):
        pipeline = tiny(rng, (0, 1))
        pipeline = replace(
            pipeline,
            overlap=[f + b for f, b in zip(pipeline.forward, pipeline.backward, strict=True)],
        )
        assert Trait.PAIRS not in Instance.uniform(pipeline, fused=True).traits
        assert_like_every_order(pipeline, whole=True, spans=False)


@pytest.mark.parametrize("seed", first(4, range(8)))
def test_no_bound_is_above_a_schedule(seed: int) -> None:
    """A model of few devices, cut off at the value of a schedule, must still have a solution."""
    rng = Random(seed)
    stages, routes = rng.choice((2, 3)), rng.choice((1, 2))
    pipeline = tiny(rng, tuple(range(stages)), batches=4, routes=routes)
    fused = rng.random() < 0.5
    limits = SolverLimits(seconds=20, workers=1, seed=0, work=0.5)
    for goal in Objective:
        with work_clock(SHORT):
            result = solve(
                pipeline,
                backward_kind=BackwardKind.uniform(fused=fused),
                objective=goal,
                time_limit=0.05,
                workers=1,
            )
        if result.schedule is None:
            continue
        assert_sound(result)
        value = result.schedule.metrics.value_ticks(goal)
        problem = Problem(pipeline, goal, BackwardKind.uniform(fused=fused))
        known = device_bound(Instance.uniform(pipeline, fused=fused), goal)
        assert known.value <= value
        for devices in [(device,) for device in range(stages)] + [(0, stages - 1)]:
            bound, _ = raise_by_subset(problem, devices, known, value, limits)
            assert bound.value <= value


def test_most_saved_by_hand() -> None:
    """Stages 0 and 1 save 1 and 3 with themselves, so 1 with each other. On one device, of four
    microbatches: F of stage 0 saves 1 each, F of stage 1 up to 3, less the first one's least."""
    pipeline = Pipeline(
        stages=2, batches=4, placement=(0, 0), forward=3, backward=6, overlap=[8, 6]
    )
    assert (
        max_saved(Instance.uniform(pipeline, fused=True), 0)
        == (4 * (1 + 3) - 1) * pipeline.ticks.per_unit
    )


@pytest.mark.parametrize(
    ("overlap", "saved"), [([[8, 9], [6, 9]], 4 * 3), ([[6, 6], [9, 9]], 4 * 3)]
)
def test_an_operation_saves_once(overlap: list[list[int]], saved: int) -> None:
    """Only backwards of stage 0 save, 1 and 3; or only F of stage 0, 3 with each backward."""
    pipeline = Pipeline(
        stages=2, batches=4, placement=(0, 0), forward=3, backward=6, overlap=overlap
    )
    assert max_saved(Instance.uniform(pipeline, fused=True), 0) == saved * pipeline.ticks.per_unit


def test_pairs_of_microbatches_that_differ_have_their_own_times() -> None:
    """F of microbatch 1 or 2 with the backward of an earlier one, both times their factors."""
    pipeline = Pipeline(stages=1, batches=3, overlap=2, microbatch_times=(1, 2, 4))
    instance = Instance.uniform(pipeline, fused=False)
    pairs = list(candidate_pairs(instance, frozenset({0})))
    times = [instance.pair_time(pair.forward, pair.backward) for pair in pairs]
    assert [pair.time for pair in pairs] == times
    assert len(set(times)) > 1


def test_work_bound_counts_pairs() -> None:
    """One device, F = B = W = 1: pairs of F and B take 1, all but one of the four F in one."""
    pipeline = Pipeline(stages=1, batches=4, overlap=2)
    assert (
        device_bound(Instance.uniform(pipeline, fused=False), Objective.MAKESPAN).value
        == (12 - 3) * 1
    )
    result = solve(pipeline)
    assert (result.status, result.value) == (Status.OPTIMAL, 9)
    assert (result.schedule.pair != ALONE).sum() == 6


def test_search_is_no_worse_than_the_strategies_of_its_kind() -> None:
    """Chimera and DualPipe on two routes; 1F1B with pairs on one."""
    for name, pipeline in (
        ("dualpipe", Pipeline(stages=4, batches=8, overlap=2)),
        ("chimera", Pipeline(stages=2, batches=4)),
        ("1f1b-overlap", Pipeline(stages=3, batches=6, overlap=2)),
        ("seq-1f1b", Pipeline(stages=2, batches=3)),
    ):
        baseline = evaluate(pipeline, name)
        with work_clock(SHORT):
            result = solve(baseline.pipeline, time_limit=0.2, workers=1)
        assert_sound(result)
        assert result.value <= baseline.pipeline.ticks.time(baseline.metrics.makespan_ticks)
        assert result.pipeline.hosts == baseline.pipeline.hosts


def test_a_bound_that_is_too_high_is_noticed() -> None:
    """Half a unit less than the optimum leaves the one-device model without a solution."""
    pipeline = Pipeline(stages=1, batches=3, overlap=2)
    value = solve(pipeline).value
    assert value == Fraction(7)
    problem, limits = (
        Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT),
        SolverLimits(20, 1, 0),
    )
    with pytest.raises(VerificationError, match="lost a schedule of 6 ticks"):
        raise_by_subset(problem, (0,), Bound(0, "", Certificate(Argument.WORK)), 6, limits)


@pytest.mark.parametrize("fields", [{"slices": 2}, {"overlap": 2}, {"overlap": 2, "routes": 2}])
def test_long_runs(fields: dict[str, Any]) -> None:
    """Hundreds of microbatches, where the middle of a short run is repeated or left alone."""
    with work_clock(SHORT):
        result = solve(Pipeline(stages=2, batches=200, **fields), time_limit=0.1, workers=1)
    assert_sound(result)
