"""What is in a model: slices, both routes, subsets of devices, modes that a stage chooses from."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ppopt import Objective, Pipeline
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.operation import parse
from ppopt.problem.problem import Problem
from ppopt.solver.budget import SolverLimits
from ppopt.solver.cp_sat import cpsat
from ppopt.solver.cp_sat.device_scope import DeviceScope
from ppopt.solver.cp_sat.model import build_model

LIMITS = SolverLimits(30, 1, 0)


def in_order(problem: Problem, *names: str) -> bool:
    """Whether there is a schedule in which these operations start one after the other."""
    built = build_model(problem, horizon=100, bound=0)
    ops = [parse(name) for name in names]
    starts = [
        built.variables.start[
            int(problem.pipeline.code(op.kind, op.stage, op.microbatch, op.slice))
        ]
        for op in ops
    ]
    for first, second in pairwise(starts):
        built.cp.add(first < second)
    return not cpsat.search(built, LIMITS, lambda _value, _bound: None).infeasible


@pytest.mark.parametrize(
    ("names", "there_is"),
    [
        (("0F0", "0F0s1", "0B0s1", "0B0"), True),
        (("0F0s1", "0F0"), False),
        (("0B0", "0B0s1"), False),
        (("0F1", "0F0"), False),
        (("0F0", "0F1", "0F0s1"), True),
    ],
)
def test_slices_are_in_causal_order(names: tuple[str, ...], there_is: bool) -> None:
    """Forwards by slice, backwards against it; microbatches in order, slice by slice."""
    pipeline = Pipeline(stages=1, batches=2, slices=2, forward=2, backward_input=2, weight=2)
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT)
    assert in_order(problem, *names) is there_is


@pytest.mark.parametrize(
    ("names", "there_is"),
    [
        (("0F0", "1F0"), True),
        (("1F0", "0F0"), False),
        (("1F1", "0F0"), True),
        (("0F1", "0F0"), True),
    ],
)
def test_microbatches_of_two_routes_are_in_no_order(names: tuple[str, ...], there_is: bool) -> None:
    """Microbatch 1 goes the other way round, on its own route."""
    pipeline = Pipeline(stages=2, batches=2, routes=2)
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT)
    assert in_order(problem, *names) is there_is


@pytest.mark.parametrize(
    ("routes", "later", "there_is"),
    [(1, [], True), (1, ["0F0"], False), (2, ["0F0"], True), (2, ["0F0", "0F1"], False)],
)
def test_time_counts_from_the_first_forward_of_a_route(
    routes: int, later: list[str], there_is: bool
) -> None:
    """Where the objective is the device span; `later` starts at 1 or after."""
    pipeline = Pipeline(stages=2, batches=2, routes=routes)
    problem = Problem(pipeline, Objective.DEVICE_SPAN, BackwardKind.SPLIT)
    built = build_model(problem, horizon=100, bound=0)
    for name in later:
        op = parse(name)
        code = int(pipeline.code(op.kind, op.stage, op.microbatch))
        built.cp.add(built.variables.start[code] >= 1)
    outcome = cpsat.search(built, LIMITS, lambda _value, _bound: None)
    assert outcome.infeasible is not there_is


@pytest.mark.parametrize(("devices", "minimum"), [((0,), 20), ((1,), 16), ((0, 1), 20)])
def test_the_least_value_of_a_subset(devices: tuple[int, ...], minimum: int) -> None:
    """Device 0 has 4 x (2 + 2 + 1) ticks of work, and need not wait.

    Device 1 alone ends its first B at 4 or later, and B and W of stage 0 then take 4 x (2 + 1).
    """
    pipeline = Pipeline(
        stages=2, batches=4, forward=(2, 1), backward_input=(2, 1), weight=(1, 0), backward=(3, 1)
    )
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT)
    built = build_model(problem, horizon=60, bound=0, devices=devices)
    assert cpsat.search(built, LIMITS, lambda _value, _bound: None).bound == minimum


def test_a_stage_has_no_mode_that_is_never_better() -> None:
    """Stage 0 gains nothing by splitting, stage 1 loses nothing, stage 2 has a choice."""
    pipeline = Pipeline(
        stages=3,
        batches=1,
        forward=1,
        backward_input=(2, 1, 2),
        weight=(1, 2, 2),
        backward=(2, 3, 3),
    )
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.MIXED)
    scope = DeviceScope(problem, frozenset(range(3)), 50)
    modes = {task.name: len(task.modes) for task in scope.tasks}
    assert modes == {
        **dict.fromkeys(("0F0", "1F0", "2F0"), 1),
        "0B0": 1,
        "1B0": 1,
        "1W0": 1,
        "2B0": 2,
        "2W0": 2,
    }
