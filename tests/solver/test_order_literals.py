"""Order literals: proofs where times are far apart and memory is short."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from ppopt import Objective, Pipeline, Status, solve
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.solver.cp_sat import model
from tests.oracles import exhaustive

FAR_APART: dict[str, Any] = {
    "stages": 3, "batches": 2, "routes": 2, "placement": (0, 1, 1), "forward": 1,
    "backward_input": (4, 1, 2), "weight": (2, 2, 4), "backward": (5, 2, 6),
    "activation": (1, "1.5", "1.5"), "memory_b": (0, "0.5", "0.5"), "mem_limit": "1f1b",
}  # fmt: skip
"""The adversary found it, with F a million times shorter than all else."""


def far_apart(times: int) -> Pipeline:
    """F takes 1, other times are multiplied."""
    scaled = {
        name: tuple(times * time for time in FAR_APART[name])
        for name in ("backward_input", "weight", "backward")
    }
    return Pipeline(**(FAR_APART | scaled))


def optimum(pipeline: Pipeline, kind: BackwardKind) -> int | None:
    """Least makespan, by exhaustive search."""
    if kind is BackwardKind.MIXED:
        return exhaustive.best_mixed(pipeline, objective="makespan")
    return exhaustive.best(pipeline, fused=kind is BackwardKind.WHOLE, objective="makespan")


@pytest.mark.parametrize("kind", [BackwardKind.WHOLE, BackwardKind.MIXED])
def test_times_far_apart_are_proved(kind: BackwardKind) -> None:
    """Without the literals CP-SAT's bound moves by one F at a time."""
    pipeline = far_apart(10**6)
    result = solve(pipeline, backward_kind=kind, workers=1, time_limit=600)
    assert result.status is Status.OPTIMAL
    assert result.value == optimum(pipeline, kind)


@pytest.mark.parametrize("kind", BackwardKind)
def test_values_are_those_of_exhaustive_search(kind: BackwardKind) -> None:
    """Far-apart times, shared memory, workspace and two routes, drawn at random."""
    rng = Random(str(kind))
    searched = 0
    while searched < (1 if kind is BackwardKind.MIXED else 4):
        pipeline = drawn(rng)
        best = optimum(pipeline, kind)
        result = solve(pipeline, backward_kind=kind, workers=1, time_limit=600)
        if best is None:
            assert result.status is Status.INFEASIBLE, pipeline
        else:
            searched += 1
            assert result.status is Status.OPTIMAL, pipeline
            assert result.value == best, pipeline


def drawn(rng: Random) -> Pipeline:
    """A pipeline of three stages on two devices with a limit."""

    def three(*values: int) -> tuple[int, ...]:
        return tuple(rng.choice(values) for _ in range(3))

    backward_input, weight = three(1, 2, 1000, 3000), three(1, 1000, 2000)
    return Pipeline(
        stages=3,
        batches=2,
        routes=rng.choice((1, 2)),
        placement=rng.choice(((0, 1, 0), (0, 1, 1), (1, 0, 0))),
        forward=three(1, 1000, 2000),
        backward_input=backward_input,
        weight=weight,
        backward=tuple(max(b, w) for b, w in zip(backward_input, weight, strict=True)),
        activation=three(1, 2),
        memory_b=three(0, 1),
        workspace=three(0, 0, 1),
        mem_limit=rng.choice((4, 5, 6, 8)),
    )


def literals(pipeline: Pipeline, kind: BackwardKind, horizon: int = 1000) -> int:
    """Booleans of the whole model."""
    problem = Problem(pipeline, Objective.MAKESPAN, kind)
    variables = model.build_model(problem, horizon=horizon, bound=0).cp.proto.variables
    return sum(list(variable.domain) == [0, 1] for variable in variables)


def test_models_have_literals_only_where_memory_needs_times_and_they_are_few() -> None:
    """One stage of a device whose memory goes from F to W needs none."""
    split, shared = BackwardKind.SPLIT, {"placement": (0, 0), "stages": 2}
    assert literals(Pipeline(stages=2, batches=2, mem_limit=2), split) == 0
    assert literals(Pipeline(batches=2, **shared), split) == 0
    assert literals(Pipeline(batches=2, mem_limit=3, **shared), split) == 12 * 11 // 2
    assert literals(Pipeline(batches=20, mem_limit=3, **shared), split) == 0


def test_models_with_far_apart_times_have_more_literals() -> None:
    """60 operations of a device make 1770 literals, 120 make 7140."""
    shared: dict[str, Any] = {"placement": (0, 0), "stages": 2, "mem_limit": 3}
    far = 10**5
    assert literals(Pipeline(batches=10, **shared), BackwardKind.SPLIT, far) == 60 * 59 // 2
    assert literals(Pipeline(batches=20, **shared), BackwardKind.SPLIT, far) == 0
