"""Search with work around the microbatches, against trying every schedule."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppopt import Objective, Pipeline, frontier, recheck, solve
from ppopt.rechecker.verdict import Verdict
from ppopt.solver.result import Status
from tests.oracles.gradient_exhaustive import least_value
from tests.oracles.rechecked import assert_solved
from tests.tiers import examples

PLACEMENTS = ((0,), (0, 1), (0, 0), (0, 1, 0))


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """A handful of operations: up to three stages, two microbatches, times of 1 and 2.

    Three stages have work either before the microbatches or after them.
    """
    hosts = draw(st.sampled_from(PLACEMENTS))
    before = draw(st.integers(0, 1)) if len(hosts) > 2 else 1
    after = 1 - before if len(hosts) > 2 else 1

    def row(low: int, high: int) -> list[int]:
        return [draw(st.integers(low, high)) for _ in hosts]

    pipeline = Pipeline(
        stages=len(hosts),
        placement=hosts,
        batches=draw(st.integers(1, 2 if len(hosts) < 3 else 1)),
        forward=row(1, 2),
        backward_input=row(1, 2),
        weight=row(1, 2),
        activation=row(1, 2),
        unshard=row(0, 3 * before),
        unshard_memory=row(0, 2 * before),
        gradient_sync=row(0, 3 * after),
        optimizer=row(0, 2 * after),
        optimizer_barrier=draw(st.booleans()),
        workspace=draw(st.sampled_from((0, 0, 1))),
        weight_workspace=draw(st.sampled_from((0, 0, 3))),
    )
    return replace(pipeline, mem_limit=draw(st.sampled_from((None, 3, 4, 5, 6, 8))))


@given(pipelines(), st.booleans(), st.booleans())
@examples(6)
def test_status_and_value_are_those_of_every_schedule(
    pipeline: Pipeline, whole: bool, span: bool
) -> None:
    size = pipeline.num_stages * pipeline.batches
    span = span and pipeline.num_stages < 3
    if span and size > 2:
        pipeline = replace(pipeline, batches=1)
    whole = whole or size > 2
    optimum = least_value(pipeline, whole=whole, span=span)
    time = None if optimum is None else pipeline.ticks.time(optimum)
    assert_solved(pipeline, time, whole=whole, span=span)


def test_of_two_gradient_syncs_the_longer_one_begins_first() -> None:
    """Device 1 needs 12 after its last W, device 0 only 3: W of device 1 come early."""
    pipeline = Pipeline(stages=2, batches=3, gradient_sync=(3, 12), optimizer=1)
    result = solve(pipeline, workers=1)
    assert result.status is Status.OPTIMAL
    assert result.value == 1 + 9 + 12 + 1


@pytest.mark.parametrize("limit", [4, 3])
def test_the_least_limit_holds_gathered_weights(limit: int) -> None:
    """One microbatch of 2 stages takes 2, the weights of both 2 more."""
    pipeline = Pipeline(
        stages=2, placement=(0, 0), batches=2, unshard=1, unshard_memory=1, mem_limit=limit
    )
    result = solve(pipeline, workers=1)
    assert result.status is (Status.OPTIMAL if limit == 4 else Status.INFEASIBLE)
    if limit == 3:
        assert "needs 4" in result.proof
        assert "limit for all devices is 4" in result.proof


def _values(pipeline: Pipeline, kind: str, objective: Objective) -> tuple[Fraction | None, ...]:
    result = solve(pipeline, objective=objective, backward_kind=kind, workers=1, time_limit=600)
    assert result.status is Status.OPTIMAL
    assert recheck(result, workers=1).verdict is Verdict.CONFIRMED
    return result.value, result.lower_bound


def test_a_w_with_workspace_may_come_after_the_sync_of_the_lowest_stage() -> None:
    """W of stage 1 needs 10 in addition to what gradient sync of stage 0 frees."""
    pipeline = Pipeline(
        stages=2, placement=(0, 0), batches=1, activation=1, weight_workspace=(0, 10),
        unshard_memory=(10, 1), mem_limit=13,
    )  # fmt: skip
    optimum = least_value(pipeline, whole=False, span=False)
    assert optimum is not None
    assert _values(pipeline, "split", Objective.MAKESPAN) == (optimum, optimum)


def test_an_unshard_that_memory_delays_ends_before_the_first_gradient_sync() -> None:
    """Device 0 syncs route 0 while it could gather the weights of route 1."""
    pipeline = Pipeline(
        stages=2, batches=2, routes=2, forward=1, backward=2, p2p=10, backward_p2p=0, activation=3,
        unshard=1, gradient_sync=8, unshard_memory=4, mem_limit=(10, 20),
    )  # fmt: skip
    value, bound = _values(pipeline, "whole", Objective.MAKESPAN)
    assert value == bound


def test_the_span_of_a_device_does_not_count_its_links() -> None:
    """Device 1 gathers for 100, then runs F and BW twice; transfers to it run meanwhile."""
    pipeline = Pipeline(stages=2, batches=2, p2p=3, unshard=(0, 100), link_mode="exclusive")
    assert _values(pipeline, "whole", Objective.DEVICE_SPAN) == (106, 106)


def test_a_span_that_begins_with_unshard_is_proved() -> None:
    """Unshard of stage 0 takes 1, and memory lets no microbatches overlap."""
    pipeline = Pipeline(
        stages=2, batches=3, forward=2, backward_input=2, weight=(2, 1), activation=2,
        unshard=(1, 0), workspace=(2, 0), memory_b=1, recompute_time=1, kept=0, mem_limit=9,
    )  # fmt: skip
    value, bound = _values(pipeline, "whole", Objective.DEVICE_SPAN)
    assert value == bound


def test_what_no_order_can_hold_is_infeasible() -> None:
    """CP-SAT's bound reaches the horizon before it says that there is no schedule."""
    pipeline = Pipeline(
        stages=3, placement=(0, 1, 0), batches=1, forward=1, backward_input=(1, 2, 1),
        weight=(1, 1, 2), activation=(1, 1, 2), unshard=(2, 3, 1), unshard_memory=(0, 2, 1),
        gradient_sync=(0, 1, 0), weight_workspace=(0, 2, 1), optimizer=(0, 1, 1), mem_limit=3,
    )  # fmt: skip
    assert least_value(pipeline, whole=True, span=False) is None
    result = solve(pipeline, backward_kind="whole", workers=1, time_limit=600)
    assert result.status is Status.INFEASIBLE


def test_a_hint_without_the_barrier_is_timed_again() -> None:
    """With a barrier both optimizers wait for the longer sync."""
    alone = Pipeline(stages=2, batches=2, gradient_sync=(1, 5), optimizer=1)
    hint = solve(alone, workers=1).schedule
    result = solve(replace(alone, optimizer_barrier=True), hint=hint, workers=1)
    assert result.status is Status.OPTIMAL


def test_the_frontier_counts_gathered_weights() -> None:
    """Its last point is the optimum without a limit; the first one holds weights and one F."""
    pipeline = Pipeline(
        stages=2, batches=2, forward=(4, 1), backward_input=(2, 3), weight=(2, 3), unshard_memory=4
    )
    points = frontier(pipeline, workers=1).points
    assert (points[0].limit, points[-1].limit) == (5, 6)
    for point in points:
        best = solve(replace(pipeline, mem_limit=point.limit), workers=1)
        assert (point.result.value, best.status) == (best.value, Status.OPTIMAL)
    assert points[-1].result.value == solve(pipeline, workers=1).value
