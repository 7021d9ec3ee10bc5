"""Microbatches that differ, in their given order: the search against trying every schedule."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppopt import Layer, Model, Pipeline, Verdict, evaluate, recheck, solve, verify
from ppopt.solver.result import Status
from tests.oracles.different_exhaustive import Different, least_makespan
from tests.oracles.rechecked import assert_proved, assert_solved

FACTORS = (Fraction(1), Fraction(2), Fraction(1, 2), Fraction(3), Fraction(4, 3))


@st.composite
def cases(draw: st.DrawFn, most: int = 3) -> Different:
    """Two stages of so many microbatches at most, or one of one more."""
    stages = draw(st.integers(1, 2))
    batches = draw(st.integers(2, most + 1 if stages == 1 else most))

    def row(*choices: int) -> tuple[int, ...]:
        return tuple(draw(st.sampled_from(choices)) for _ in range(stages))

    def factors() -> tuple[Fraction, ...]:
        return tuple(draw(st.sampled_from(FACTORS)) for _ in range(batches))

    b, w = row(1, 2, 3), row(0, 1, 2)
    limit = draw(st.sampled_from((None, None, 1, 2, 3, 4)))
    return Different(
        forward=row(1, 2, 3),
        backward_input=b,
        weight=w,
        backward=tuple(map(sum, zip(b, w, strict=True))),
        activation=row(1, 2),
        memory_b=row(0, 0, -1, 1),
        workspace=row(0, 0, 1),
        delay=draw(st.sampled_from((0, 1))),
        times=factors(),
        memory=factors(),
        limit=None if limit is None else Fraction(limit),
    )


def pipeline_of(case: Different) -> Pipeline:
    return Pipeline(
        stages=len(case.forward),
        batches=len(case.times),
        forward=case.forward,
        backward_input=case.backward_input,
        weight=case.weight,
        backward=case.backward,
        activation=case.activation,
        memory_b=case.memory_b,
        workspace=case.workspace,
        p2p=case.delay,
        microbatch_times=case.times,
        microbatch_memory=case.memory,
        mem_limit=case.limit,
    )


@settings(deadline=None, max_examples=60)
@given(cases(), st.booleans())
def test_the_search_finds_the_least_makespan(case: Different, whole: bool) -> None:
    assert_solved(pipeline_of(case), least_makespan(case, whole=whole), whole=whole, span=False)


@settings(deadline=None, max_examples=40)
@given(cases(most=2), st.data())
def test_backwards_of_either_kind(case: Different, data: st.DataObject) -> None:
    whole = tuple(
        data.draw(st.integers(1, b + w + 1))
        for b, w in zip(case.backward_input, case.weight, strict=True)
    )
    case = case._replace(backward=whole)
    result = solve(pipeline_of(case), workers=1, time_limit=600)
    least = least_makespan(case, whole=None)
    assert result.status is (Status.INFEASIBLE if least is None else Status.OPTIMAL)
    assert result.value == least
    assert_proved(result)


W_OF_AN_EARLIER_ONE = Different(
    forward=(1, 1),
    backward_input=(1, 1),
    weight=(1, 1),
    backward=(2, 2),
    activation=(1, 1),
    memory_b=(0, 0),
    workspace=(0, 0),
    delay=2,
    times=(Fraction(3), Fraction(1), Fraction(2)),
    memory=(Fraction(1),) * 3,
    limit=Fraction(2),
)
"""Its optimum runs the W of microbatch 0 behind the BW of microbatch 1: split, it comes later."""


def test_splitting_may_lose_where_microbatches_differ() -> None:
    split = least_makespan(W_OF_AN_EARLIER_ONE, whole=False)
    either = least_makespan(W_OF_AN_EARLIER_ONE, whole=None)
    assert either is not None
    assert split is not None
    assert either < split
    result = solve(pipeline_of(W_OF_AN_EARLIER_ONE), workers=1, time_limit=600)
    assert (result.status, result.value) == (Status.OPTIMAL, either)
    assert_proved(result)


def test_a_device_needs_the_largest_microbatch_of_each_route() -> None:
    fields: dict[str, Any] = {"stages": 2, "batches": 2, "routes": 2, "activation": [1, 100]}
    pipeline = Pipeline(**fields, microbatch_memory=[10, 1], mem_limit=[150, 1100])
    assert verify(evaluate(pipeline, "chimera")) == []
    result = solve(pipeline, workers=1)
    assert result.schedule is not None
    assert verify(result.schedule) == []
    tight = solve(replace(pipeline, mem_limit=[150, 999]), workers=1)
    assert tight.status is Status.INFEASIBLE
    assert recheck(tight, workers=1).verdict is Verdict.CONFIRMED


@pytest.mark.parametrize(
    ("time", "memory", "value"), [(1, ["1", "1.5"], 13), (3, ["1", "1.5"], 23)]
)
def test_moves_to_the_host_last_as_long_as_their_memory_says(
    time: int, memory: list[str], value: int
) -> None:
    """Both values are those of the same pipeline in ticks of a tenth."""
    fields: dict[str, Any] = {"stages": 2, "batches": 2, "activation": 4, "offload_memory": 4}
    pipeline = Pipeline(**fields, offload_time=time, microbatch_memory=memory, mem_limit=9)
    result = solve(pipeline, backward_kind="split", workers=1, time_limit=600)
    assert (result.status, result.value) == (Status.OPTIMAL, value)


def test_short_moves_to_the_host() -> None:
    fields: dict[str, Any] = {"stages": 2, "batches": 2, "activation": 4, "offload_memory": 2}
    pipeline = Pipeline(**fields, offload_time=1, microbatch_memory=["0.5", "1.5"])
    result = solve(pipeline, workers=1, time_limit=600)
    assert result.status is Status.OPTIMAL
    assert_proved(result)


def test_a_backward_that_allocates_less_than_its_workspace() -> None:
    layers = [
        Layer(forward=1, activation=0, workspace=3),
        Layer(forward=1, activation=1, count=2),
    ]
    fields: dict[str, Any] = {"stages": 2, "batches": 2, "partition": [2, 1], "mem_limit": 30}
    pipeline = Pipeline(**fields, model=Model(layers), microbatch_memory=[1, 3])
    result = solve(pipeline, workers=1, time_limit=600)
    assert result.status is Status.OPTIMAL
    assert_proved(result)


def test_equal_factors_are_a_change_of_units() -> None:
    plain = solve(Pipeline(stages=3, batches=4, mem_limit="1f1b"), workers=1)
    twice = solve(
        Pipeline(stages=3, batches=4, mem_limit="1f1b", microbatch_times=2, microbatch_memory=3),
        workers=1,
    )
    assert plain.value is not None
    assert (twice.status, twice.value) == (Status.OPTIMAL, 2 * plain.value)
    assert twice.schedule is not None
    assert plain.schedule is not None
    assert max(twice.schedule.peak_memory) == 3 * max(plain.schedule.peak_memory)


@pytest.mark.parametrize(
    "strategy", ["1f1b", "gpipe", "zb-h1", "zb-2p", "zbv", "dualpipe", "seq-1f1b"]
)
def test_hand_strategies_take_the_given_order(strategy: str) -> None:
    pipeline = Pipeline(stages=2, batches=4, microbatch_times=[1, 3, 1, 2])
    made = evaluate(pipeline, strategy)
    assert verify(made) == []
    busy = 2 * (1 + 3 + 1 + 2) * 3
    assert sum(made.metrics.busy_ticks) == busy * made.pipeline.ticks.per_unit
