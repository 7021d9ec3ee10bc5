"""Placement chosen with partition or recompute: against all configurations, each exhaustively."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import count
from random import Random

import pytest

import ppopt
from ppopt import NotApplicableError, Objective, Pipeline, Status, solve, verify
from ppopt.cancellation import within
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.solver.choice_of_decisions import choice_of
from ppopt.solver.placements import product as placement_product
from tests.clock import SHORT, work_clock
from tests.oracles import exhaustive
from tests.oracles.configurations import least_value, placements
from tests.tiers import slow

COMPOSITIONS = ("partition", "recompute", "partition and recompute")
"""What is searched with the placement."""


def drawn(rng: Random, searched: str, chunks: int, batches: int) -> Pipeline:
    """A model of few layers on two devices, with limits at which recompute and placement matter."""
    stages = 2 * chunks
    model = ppopt.Model([layer(rng) for _ in range(stages + rng.randint(1, 3 - chunks))])
    mean = float(sum(layer.activation + layer.static for layer in model.layers)) / 2
    limits = [int(mean * rng.uniform(0.8, 2)) for _ in range(2)]
    return Pipeline(
        stages=2,
        chunks=chunks,
        batches=rng.randint(1, batches),
        model=model,
        p2p=rng.choice((0, 1)),
        device_speed=rng.choice((1, 1, (1, 2))),
        mem_limit=rng.choice((None, max(limits), limits, limits)),
        placement="search",
        partition="search" if "partition" in searched else "balanced",
        recompute="search" if "recompute" in searched else None,
    )


def layer(rng: Random) -> ppopt.Layer:
    """A layer; one in three has nothing to save by recompute."""
    activation = rng.randint(1, 4)
    return ppopt.Layer(
        forward=rng.randint(1, 3),
        backward=rng.randint(2, 4),
        weight=1,
        activation=activation,
        recompute_time=rng.randint(0, 2),
        kept=rng.choice((0, min(1, activation), activation)),
        static=rng.randint(0, 1),
    )


def check(pipeline: Pipeline, objective: exhaustive.Goal, steps: int) -> None:
    """Value, status and bounds, also of a search that is stopped after some steps, and of one that
    has time to set up one placement."""
    wanted = least_value(pipeline, fused=False, objective=objective)
    split = partial(solve, pipeline, objective=objective, backward_kind="split", workers=1)
    result = split(time_limit=600)
    assert result.value == wanted, pipeline
    if wanted is None:
        assert result.status is Status.INFEASIBLE
        return
    assert result.status is Status.OPTIMAL
    assert result.schedule is not None
    assert verify(result.schedule) == []
    calls = count()
    early = split(stop=lambda _: next(calls) >= steps)
    assert early.lower_bound <= wanted, pipeline
    assert early.value is None or wanted <= early.value
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement_product, "SET_UP", 0)
        with work_clock(SHORT):
            cut_short = split(time_limit=0.2)
    assert cut_short.lower_bound <= wanted, pipeline
    assert cut_short.value is None or wanted <= cut_short.value


@pytest.mark.parametrize(
    ("searched", "chunks"),
    [
        *((composition, 1) for composition in COMPOSITIONS),
        ("partition", 2),
        slow("recompute", 2),
        slow("partition and recompute", 2),
    ],
)
def test_agrees_with_all_configurations(searched: str, chunks: int) -> None:
    rng = Random(f"{searched} {chunks}")
    for index in range(2 if chunks == 1 else 1):
        objective: exhaustive.Goal = "device-span" if index == 1 else "makespan"
        check(drawn(rng, searched, chunks, 2 if chunks == 1 else 1), objective, 3 * index)


@pytest.mark.slow
@pytest.mark.parametrize("searched", COMPOSITIONS)
def test_agrees_with_all_configurations_of_many_models(searched: str) -> None:
    rng = Random(f"many {searched}")
    for index in range(3):
        objective: exhaustive.Goal = "device-span" if index % 2 else "makespan"
        check(drawn(rng, searched, 1, 3), objective, 3 * index)


def test_every_placement_is_scheduled_with_a_choice_of_its_own() -> None:
    """All before a second configuration of any; limits differ, so each has other choices."""
    pipeline = Pipeline(
        stages=2, batches=2, chunks=2, placement="search", mem_limit=[7, 5], recompute="search",
        model=[{"forward": 1, "activation": 1, "count": 4}],
    )  # fmt: skip
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT)
    candidates = choice_of(problem)
    keys = list(candidates.first())
    wanted = set(placements(2, 4))
    assert {candidates.pipeline(key).hosts[0] for key in keys[: len(wanted)]} == wanted
    assert [candidates.key(candidates.pipeline(key)) for key in keys] == keys


def test_placements_of_equal_limits_and_recompute() -> None:
    """Two chunks and a limit that never binds: the value without recompute."""
    pipeline = Pipeline(
        stages=2, batches=2, chunks=2, placement="search", mem_limit=1000, recompute="search",
        model=[{"forward": 1, "activation": 1, "count": 4}],
    )  # fmt: skip
    assert (
        solve(pipeline, workers=1).value
        == solve(replace(pipeline, recompute=None), workers=1).value
    )


def test_too_many_placements_are_refused_with_what_to_do() -> None:
    model = ppopt.Model([layer(Random(1)) for _ in range(12)])
    pipeline = Pipeline(
        stages=6, batches=2, model=model, device_speed=(1, 2, 3, 4, 5, 6), placement="search",
        partition="search",
    )  # fmt: skip
    with pytest.raises(NotApplicableError, match="search the placement alone"):
        solve(pipeline)


@pytest.mark.parametrize("field", ["partition", "recompute"])
def test_without_time_for_all_placements_some_are_set_up(field: str) -> None:
    """Two placements are not too many, also if the time is up."""
    model = [{"forward": 1, "activation": 1, "count": 3}]
    pipeline = Pipeline(
        stages=2, batches=2, model=model, mem_limit=9, placement="search", **{field: "search"}
    )
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT)
    with within(0):
        candidates = choice_of(problem)
    assert candidates is not None
    assert candidates.lower_bound <= pipeline.grid.time * least_value(pipeline, fused=False)
