"""Search with activations that move to the host, against trying every schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppopt import Objective, Pipeline, recheck, solve, verify
from ppopt.rechecker.verdict import Verdict
from ppopt.solver.result import Status
from tests.oracles.gradient_exhaustive import least_value
from tests.oracles.rechecked import assert_solved
from tests.tiers import examples

PLACEMENTS = ((0,), (0, 1), (0, 0))


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """A handful of operations: one or two stages and microbatches, times of 1 and 2."""
    hosts = draw(st.sampled_from(PLACEMENTS))

    def row(low: int, high: int) -> list[int]:
        return [draw(st.integers(low, high)) for _ in hosts]

    activation = row(1, 3)
    offloaded = [draw(st.integers(0, amount)) for amount in activation]
    pipeline = Pipeline(
        stages=len(hosts),
        placement=hosts,
        batches=draw(st.integers(1, 2)),
        forward=row(1, 2),
        backward_input=row(1, 2),
        weight=row(1, 2),
        activation=activation,
        memory_b=[-draw(st.integers(0, amount)) for amount in activation],
        offload_memory=offloaded,
        offload_time=[draw(st.integers(1, 2)) if memory else 0 for memory in offloaded],
        host_link=draw(st.sampled_from(("duplex", "shared"))),
        workspace=draw(st.sampled_from((0, 0, 1))),
    )
    return replace(pipeline, mem_limit=draw(st.sampled_from((None, 2, 3, 4, 5, 6))))


@given(pipelines(), st.booleans(), st.booleans())
@examples(5)
def test_status_and_value_are_those_of_every_schedule(
    pipeline: Pipeline, whole: bool, span: bool
) -> None:
    size = pipeline.num_stages * pipeline.batches
    whole, span = whole or size > 2, span and size <= 2
    optimum = least_value(pipeline, whole=whole, span=span)
    time = None if optimum is None else pipeline.ticks.time(optimum)
    assert_solved(pipeline, time, whole=whole, span=span)


def test_a_device_of_two_stages_fits_one_activation_and_the_other_at_the_host() -> None:
    """F of stage 0 until 1, out until 2, all of stage 1 until 5, back until 6, B and W until 8."""
    pipeline = Pipeline(stages=2, batches=1, placement=(0, 0), mem_limit=1)
    alone = solve(pipeline, workers=1)
    offloading = solve(replace(pipeline, offload_memory=(1, 0), offload_time=(1, 0)), workers=1)
    assert alone.status is Status.INFEASIBLE
    assert (offloading.status, offloading.value) == (Status.OPTIMAL, 8)


@given(pipelines(), st.lists(st.integers(2, 4), min_size=2, max_size=2), st.booleans())
@examples(5)
def test_backwards_that_are_free_are_no_worse_and_proved(
    pipeline: Pipeline, backward: list[int], span: bool
) -> None:
    """BW takes another time than B and W, so that a choice of one place is not one of another."""
    _judge_free(replace(pipeline, backward=backward[: pipeline.num_stages]), span=span)


@pytest.mark.slow
def test_free_backwards_where_almost_nothing_takes_time() -> None:
    """B of every stage and W of three take none, BW of stage 2 takes less than W alone."""
    pipeline = Pipeline(
        stages=4, placement=(0, 2, 2, 1), batches=1, backward_input=(0, 0, 0, 0),
        weight=(0, 0, 1, 0), backward=(0, 0, "0.5", 0), activation=(0, 0, 1, 0),
        mem_limit=(0, 0, 1), offload_memory=(0, 0, 1, 0), offload_time=(0, 0, 1, 0),
    )  # fmt: skip
    _judge_free(pipeline, span=True)


def _judge_free(free_backwards: Pipeline, *, span: bool) -> None:
    objective = Objective.DEVICE_SPAN if span else Objective.MAKESPAN
    result = solve(
        free_backwards, objective=objective, backward_kind="mixed", workers=1, time_limit=600
    )
    known = [
        solve(free_backwards, objective=objective, backward_kind=kind, workers=1).value
        for kind in ("split", "whole")
    ]
    assert recheck(result, workers=1).verdict is Verdict.CONFIRMED
    if any(value is not None for value in known):
        assert result.status is Status.OPTIMAL
        assert result.value <= min(value for value in known if value is not None)
        assert verify(result.schedule) == []


def test_pairs_that_save_time_go_with_moves() -> None:
    """One after the other: F0 and F1, then B, W, B and W, from 0 to 2 * 2 + 2 * 3 = 10.

    F1 with a backward of 0 starts at 4, as that is back then, and ends at 6 or later. The second
    activation is out and back at 8, so its backward ends at 11.
    """
    pipeline = Pipeline(
        stages=1, batches=2, forward=2, backward_input=2, weight=1, overlap=[[2]],
        activation=2, offload_memory=2, offload_time=1,
    )  # fmt: skip
    result = solve(pipeline, workers=1)
    assert (result.status, result.value) == (Status.OPTIMAL, 10)
    assert recheck(result, workers=1).verdict is Verdict.CONFIRMED


def test_links_without_delay_change_nothing_for_a_device_span() -> None:
    """Transfers of no length wait for no link, so the optimum is that of delays, and is proved."""
    pipeline = Pipeline(
        stages=2, batches=2, forward=3, backward_input=1, weight=2, activation=[1, 2],
        offload_memory=[0, 1], offload_time=[0, 3], mem_limit=6,
    )  # fmt: skip
    links = replace(pipeline, link_mode="exclusive")
    delays, exclusive = (
        solve(each, objective=Objective.DEVICE_SPAN, backward_kind="split", workers=1)
        for each in (pipeline, links)
    )
    assert delays.status is exclusive.status is Status.OPTIMAL
    assert delays.value == exclusive.value
    assert recheck(exclusive, workers=1).verdict is Verdict.CONFIRMED


def test_the_limit_of_1f1b_is_that_of_the_pipeline_with_moves() -> None:
    """Compute alone, without what moves, has a lower 1F1B peak: no limit of the pipeline."""
    pipeline = Pipeline(
        stages=3, batches=2, forward=[1, 1, 40], backward=[0, 50, 30], activation=[2, 0, 2],
        offload_memory=[1, 0, 1], offload_time=[1, 0, 1], mem_limit="1f1b",
    )  # fmt: skip
    same = replace(pipeline, mem_limit=pipeline.limits)
    named, numbers = (
        solve(each, objective=Objective.DEVICE_SPAN, backward_kind="split", workers=1)
        for each in (pipeline, same)
    )
    assert named.status is numbers.status is Status.OPTIMAL
    assert named.value == numbers.value
