"""Search with frozen stages, against trying every schedule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from ppopt import Objective, Pipeline, solve
from ppopt.problem.operation import AuxiliaryKind
from ppopt.solver.result import Status
from tests.oracles.frozen_exhaustive import StageGiven, least_frozen_value
from tests.oracles.rechecked import assert_solved
from tests.tiers import examples

PLACEMENTS = ((0,), (0, 1), (0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1))
"""Device of every stage."""


class Drawn(NamedTuple):
    """A pipeline, and what is stated of its stages."""

    pipeline: Pipeline
    stages: list[StageGiven]
    delay: int


@st.composite
def frozen_pipelines(draw: st.DrawFn, *, once: bool) -> Drawn:
    """A handful of operations, a frozen stage among them; `once`: gradient work, too.

    Three stages have gradient work either before the microbatches or after them.
    """
    hosts = draw(st.sampled_from(PLACEMENTS))
    before = once and (len(hosts) < 3 or draw(st.booleans()))
    after = once and not (len(hosts) > 2 and before)
    stages = [_stage(draw, device, before=before, after=after) for device in hosts]
    if not any(stage.frozen for stage in stages):
        stages[0] = stages[0]._replace(frozen=True)
    delay = draw(st.sampled_from((0, 1)))
    columns: dict[str, Any] = {
        field: [getattr(stage, field) for stage in stages]
        for field in StageGiven._fields
        if field != "device"
    }
    pipeline = Pipeline(
        stages=len(hosts),
        placement=hosts,
        batches=draw(st.integers(1, 2 if len(hosts) < 3 else 1)),
        p2p=delay,
        optimizer_barrier=draw(st.booleans()),
        mem_limit=draw(st.sampled_from((None, 2, 3, 4, 5))),
        **columns,
    )
    return Drawn(pipeline, stages, delay)


def _stage(draw: st.DrawFn, device: int, *, before: bool, after: bool) -> StageGiven:
    activation = draw(st.integers(1, 2))

    return StageGiven(
        device=device,
        frozen=draw(st.booleans()),
        forward=draw(st.integers(1, 2)),
        backward_input=draw(st.integers(1, 2)),
        weight=draw(st.integers(1, 2)),
        activation=activation,
        memory_b=draw(st.integers(-activation, 1)),
        unshard=draw(st.integers(0, 2 * before)),
        unshard_memory=draw(st.integers(0, before)),
        gradient_sync=draw(st.integers(0, 2 * after)),
        optimizer=draw(st.integers(0, 2 * after)),
    )


def _judge(drawn: Drawn, *, whole: bool, span: bool) -> None:
    pipeline, stages, delay = drawn
    optimum = least_frozen_value(pipeline, stages, delay, whole=whole, span=span)
    time = None if optimum is None else pipeline.ticks.time(optimum)
    assert_solved(pipeline, time, whole=whole, span=span)


@given(frozen_pipelines(once=False), st.booleans(), st.booleans())
@examples(12)
def test_status_and_value_are_those_of_every_schedule(
    drawn: Drawn, whole: bool, span: bool
) -> None:
    _judge(drawn, whole=whole, span=span)


@given(frozen_pipelines(once=True), st.booleans())
@examples(8)
def test_so_they_are_with_work_around_the_microbatches(drawn: Drawn, span: bool) -> None:
    whole = drawn.pipeline.num_stages * drawn.pipeline.batches > 2
    if span and whole:
        drawn = drawn._replace(pipeline=replace(drawn.pipeline, batches=1))
    _judge(drawn, whole=whole, span=span)


def test_a_device_that_trains_nothing_has_no_optimizer() -> None:
    """Device 0: UNSHARD takes 1, then two F take 3 each; device 1: 3 + 2 + 1 + 1. Both need 7."""
    pipeline = Pipeline(
        stages=3, placement=(0, 0, 1), batches=1, forward=3, backward_input=2, weight=1,
        frozen=[True, True, False], unshard=[1, 1, 0], optimizer=1, optimizer_barrier=True,
    )  # fmt: skip
    result = solve(pipeline, objective=Objective.DEVICE_SPAN, workers=1)
    assert (result.status, result.value) == (Status.OPTIMAL, 7)
    assert result.schedule is not None
    table = result.schedule.operations
    assert table.device[table.kind == AuxiliaryKind.OPTIMIZER].tolist() == [1]
