"""Search with work around the microbatches, against trying every schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppopt import Objective, Pipeline, recheck, solve
from ppopt.rechecker import check
from ppopt.rechecker.verdict import Verdict
from ppopt.solver.result import Status
from tests.oracles.gradient_exhaustive import least_value

PLACEMENTS = ((0,), (0, 1), (0, 0), (0, 1, 0))


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """A handful of operations: up to three stages, two microbatches, times of 1 and 2."""
    hosts = draw(st.sampled_from(PLACEMENTS))

    def row(low: int, high: int) -> list[int]:
        return [draw(st.integers(low, high)) for _ in hosts]

    given = Pipeline(
        stages=len(hosts),
        placement=hosts,
        batches=draw(st.integers(1, 2 if len(hosts) < 3 else 1)),
        forward=row(1, 2),
        backward_input=row(1, 2),
        weight=row(1, 2),
        activation=row(1, 2),
        unshard=row(0, 3),
        unshard_memory=row(0, 2),
        gradient_sync=row(0, 3),
        optimizer=row(0, 2),
        optimizer_barrier=draw(st.booleans()),
        workspace=draw(st.sampled_from((0, 0, 1))),
    )
    return replace(given, mem_limit=draw(st.sampled_from((None, 3, 4, 5, 6, 8))))


@given(pipelines(), st.booleans(), st.booleans())
@settings(deadline=None, max_examples=12)
def test_status_and_value_are_those_of_every_schedule(
    pipeline: Pipeline, whole: bool, span: bool
) -> None:
    size = pipeline.num_stages * pipeline.batches
    if span and size > 2:
        pipeline = replace(pipeline, batches=1)
    whole = whole or size > 2
    least = least_value(pipeline, whole=whole, span=span)
    found = solve(
        pipeline,
        objective=Objective.DEVICE_SPAN if span else Objective.MAKESPAN,
        backward_kind="whole" if whole else "split",
        workers=1,
        time_limit=60,
    )
    if least is None:
        assert found.status is Status.INFEASIBLE
        assert found.value is None
    else:
        assert found.status is Status.OPTIMAL
        assert found.value == pipeline.ticks.time(least)
    assert recheck(found, workers=1).verdict is Verdict.CONFIRMED
    if least is not None:
        above = found.claim._replace(bound=least + 1)
        assert check(above, 60, 1, 0, lambda _: None).verdict is Verdict.WRONG


def test_of_two_gradient_syncs_the_longer_one_begins_first() -> None:
    """Device 1 needs 12 after its last W, device 0 only 3: W of device 1 come early."""
    pipeline = Pipeline(stages=2, batches=3, gradient_sync=(3, 12), optimizer=1)
    found = solve(pipeline, workers=1)
    assert found.status is Status.OPTIMAL
    assert found.value == 1 + 9 + 12 + 1


@pytest.mark.parametrize("limit", [4, 3])
def test_the_least_limit_holds_gathered_weights(limit: int) -> None:
    """One microbatch of 2 stages takes 2, the weights of both 2 more."""
    pipeline = Pipeline(
        stages=2, placement=(0, 0), batches=2, unshard=1, unshard_memory=1, mem_limit=limit
    )
    found = solve(pipeline, workers=1)
    assert found.status is (Status.OPTIMAL if limit == 4 else Status.INFEASIBLE)
    if limit == 3:
        assert "needs 4" in found.proof
        assert "every device is 4" in found.proof
