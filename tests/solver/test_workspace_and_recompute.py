"""Searches with memory that operations need only while they run, and with recompute."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import pytest

from ppopt import Pipeline, Status, Verdict, recheck, solve, verify
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.solver.bounds.device_bounds import infeasibility, minimum_memory
from tests.clock import SHORT, work_clock
from tests.factories.instances import draw, tiny_cases
from tests.oracles import exhaustive


def test_the_least_limit_is_exact() -> None:
    """One microbatch at a time, where no operation is without length and W has no workspace."""
    seen = 0
    for case in tiny_cases(36, 40, ops=12, heavy=True, weight_workspace=None, mem_limit=None):
        instance = Instance.uniform(case.pipeline, fused=case.fused)
        if not all(operation_class.duration for operation_class in instance.classes):
            continue
        minimum = minimum_memory(instance)
        in_units = [case.pipeline.ticks.memory(amount) for amount in minimum]
        enough = replace(case.pipeline, mem_limit=in_units)
        optimum = exhaustive.best(enough, fused=case.fused, objective="makespan")
        assert optimum is not None, case
        for device, amount in enumerate(minimum):
            if amount > case.pipeline.ticks.static[device]:
                tight = [Fraction(10**4)] * len(minimum)
                tight[device] = case.pipeline.ticks.memory(amount - 1)
                tighter = replace(case.pipeline, mem_limit=tight)
                assert exhaustive.best(tighter, fused=case.fused, objective="makespan") is None, (
                    case
                )
                assert infeasibility(Instance.uniform(tighter, fused=case.fused))
        seen += 1
    assert seen > 15


def test_workspace_of_w_is_at_least_what_it_says() -> None:
    """Two stages on one device: W of the second may run before or after the backward of the first.

    Before it, it holds 1 + 1 + 3; after F1 B1 B0 W0 nothing but its own 1 + 3. B takes nothing.
    """
    pipe = Pipeline(stages=2, placement=(0, 0), batches=1, weight_workspace=[0, 3], mem_limit=[4])
    assert solve(pipe, backward_kind="split", time_limit=600).value == 6
    refused = solve(replace(pipe, mem_limit=3.5), backward_kind="split", time_limit=600)
    assert refused.status is Status.INFEASIBLE
    assert "device 0 needs 4" in refused.proof
    assert "a limit for all devices must be at least 4" in refused.proof


def test_a_workspace_no_operation_has_time_for_is_never_held() -> None:
    """B takes no time: at its instant the workspace is given before it is taken."""
    pipe = Pipeline(stages=2, batches=3, backward_input=0, input_workspace=9, mem_limit=2)
    result = solve(pipe, time_limit=600)
    assert result.status is Status.OPTIMAL
    assert result.value == solve(replace(pipe, input_workspace=None), time_limit=600).value
    assert recheck(result).verdict is Verdict.CONFIRMED


def test_recompute_costs_time_and_saves_memory() -> None:
    """Four devices: with a tenth kept, 1F1B's four activations come down to 1.3."""
    plain = Pipeline(stages=4, batches=8)
    full = replace(plain, kept=0.1, recompute_time=1)
    for pipe, limit in ((plain, 4), (full, Fraction("1.3"))):
        result = solve(replace(pipe, mem_limit=limit), backward_kind="whole", time_limit=600)
        assert result.schedule is not None
        assert verify(result.schedule) == []
    assert (
        solve(replace(plain, mem_limit="1.3"), backward_kind="whole", time_limit=600).value
        == 8 * 12
    )
    assert result.value == (8 + 3) * (1 + 3)


@pytest.mark.parametrize(
    ("fields", "fused", "whole_only"),
    [
        ({}, False, False),
        ({"workspace": 2}, False, False),
        ({"kept": 0, "recompute_time": 1}, False, False),
        ({"input_workspace": 2}, False, True),
        ({"weight_workspace": 2}, False, True),
    ],
)
def test_a_proof_says_where_whole_backwards_may_do_better(
    fields: dict[str, Any], fused: bool, whole_only: bool
) -> None:
    result = solve(
        Pipeline(stages=1, batches=2, **fields),
        backward_kind=BackwardKind.uniform(fused=fused),
        time_limit=600,
    )
    assert result.status is Status.OPTIMAL
    assert ("all split" in (result.proof or "")) == whole_only


def test_middle_pipelines_are_valid() -> None:
    rng = Random(37)
    for _ in range(4):
        case = draw(rng, devices=4, batches=10, ops=120, heavy=True)
        with work_clock(SHORT):
            result = solve(
                case.pipeline, backward_kind=case.backward_kind, time_limit=0.3, workers=1
            )
        if result.schedule is not None:
            assert verify(result.schedule) == []
