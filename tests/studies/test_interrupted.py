"""Studies that Ctrl-C ends after some steps return what they had found by then."""

from __future__ import annotations

import signal
import time
from fractions import Fraction
from itertools import count
from typing import Any

import pytest

import ppopt
from ppopt import Pipeline, Progress, Status, interrupts, verify
from ppopt.cancellation import checkpoint
from ppopt.solver.microbatch_orders.local_search import OrderSearch, ValuedOrder
from ppopt.studies.baselines import STOPPED, Evaluation
from tests.tiers import slow

LAYERS: dict[str, Any] = {
    "layers": [{"forward": 1, "activation": 1, "count": 5}, {"forward": 2, "activation": 2}]
}
PIPELINE = Pipeline(stages=3, batches=8, forward=10, weight=9, backward=21, p2p=1, mem_limit=2)
"""A search of some seconds."""
CUT = Pipeline(stages=3, batches=6, model=LAYERS["layers"], partition="search", mem_limit=6)
CHOSEN = Pipeline(
    stages=2, batches=4, model=LAYERS["layers"], partition="search", recompute="search",
    placement="search", device_speed=[1, 2], mem_limit=5,
)  # fmt: skip
STEPS = [0, slow(1), slow(2), slow(4), 8, slow(16), slow(32)]


class Press:
    """Presses Ctrl-C at one of the steps that a study tells of; notes the values told till then."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.values: list[Fraction] = []
        self.phases: list[str] = []

    @property
    def pressed(self) -> bool:
        return self.left < 0

    def __call__(self, state: Progress | str) -> None:
        if self.pressed:
            return
        if isinstance(state, str):
            self.phases.append(state)
        elif state.value is not None:
            self.values.append(state.value)
        self.left -= 1
        if self.pressed:
            signal.raise_signal(signal.SIGINT)


def check(study: Any, press: Press) -> None:
    """The best value told, or a better one, with a schedule; a bound that is not above it."""
    assert study.interrupted is press.pressed
    if press.values:
        assert study.schedule is not None
        assert study.value <= min(press.values)
    if study.schedule is not None:
        assert verify(study.schedule) == []
        assert study.lower_bound <= study.value


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("pipeline", [PIPELINE, CUT, CHOSEN])
def test_a_search_keeps_its_best_schedule(pipeline: Pipeline, steps: int) -> None:
    press = Press(steps)
    check(ppopt.solve(pipeline, workers=1, time_limit=600, progress=press), press)


@pytest.mark.parametrize("pipeline", [PIPELINE, CUT, CHOSEN])
def test_a_search_keeps_the_schedule_that_it_was_given(pipeline: Pipeline) -> None:
    """Whether Ctrl-C comes before its first step or before it begins."""
    hint = ppopt.solve(pipeline, workers=1, stop=lambda state: state.value is not None)
    assert hint.schedule is not None
    with interrupts.recorded():
        signal.raise_signal(signal.SIGINT)
        result = ppopt.solve(pipeline, workers=1, hint=hint.schedule)
    assert (result.interrupted, result.value) == (True, hint.value)
    press = Press(0)
    result = ppopt.solve(pipeline, workers=1, hint=hint.schedule, progress=press)
    check(result, press)
    assert result.value is not None and hint.value is not None
    assert result.value <= hint.value


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("pipeline", [PIPELINE, CUT])
def test_a_frontier_keeps_its_points(pipeline: Pipeline, steps: int) -> None:
    """One microbatch at a time is a point, whenever it ends; a search adds the best value told."""
    press = Press(steps)
    curve = ppopt.frontier(pipeline, workers=1, time_limit=600, progress=press)
    assert curve.interrupted is press.pressed
    assert curve.status is (Status.FEASIBLE if press.pressed else Status.OPTIMAL)
    values = [point.result.value for point in curve.points if point.result.value is not None]
    assert min(values) <= min(press.values, default=min(values))
    for point in curve.points:
        assert point.result.schedule is not None
        assert verify(point.result.schedule) == []
    evaluated = {baseline.schedule.origin.strategy for baseline in curve.baselines}
    left_out = {name for name, _ in curve.skipped}
    assert evaluated | left_out == set(ppopt.strategies())
    for baseline in curve.baselines:
        if baseline.ratio is not None:
            best = curve.at(baseline.memory)
            assert best is not None and best.result.value is not None
            assert best.result.value <= baseline.value


@pytest.mark.parametrize("pipeline", [PIPELINE, CUT, CHOSEN])
def test_a_frontier_has_a_point_where_it_is_ended_before_it_begins(pipeline: Pipeline) -> None:
    """That of one microbatch at a time."""
    with interrupts.recorded():
        signal.raise_signal(signal.SIGINT)
        curve = ppopt.frontier(pipeline, workers=1)
    assert (curve.interrupted, curve.status) == (True, Status.FEASIBLE)
    assert curve.points


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("pipeline", [PIPELINE, CUT])
def test_a_comparison_keeps_its_rows(pipeline: Pipeline, steps: int) -> None:
    """Strategies done before the last one told of, and the best value told."""
    press = Press(steps)
    comparison = ppopt.compare(pipeline, workers=1, time_limit=600, progress=press)
    assert comparison.interrupted is press.pressed
    done = {phase.removeprefix("strategy ") for phase in press.phases[:-1]}
    rows = {row.schedule.origin.strategy for row in comparison.baselines}
    missing = {name for name, reason in comparison.skipped if reason == STOPPED}
    assert not done & missing
    assert rows | {name for name, _ in comparison.skipped} == set(ppopt.strategies())
    fitting = [row for row in comparison.rows if row.fits_limit]
    assert comparison.status is not Status.UNKNOWN or not fitting
    if press.values:
        assert comparison.optimum.value <= min(press.values)
    if pipeline is CUT:
        own = [row.value for row in fitting if row.schedule.pipeline.layout == pipeline.layout]
        assert comparison.optimum.schedule is not None or not own


def test_a_comparison_keeps_the_strategy_whose_order_is_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C during the search of its order ends it: the best order by then counts."""
    search = OrderSearch.run

    def run(self: OrderSearch, evaluations: int, bound: float = 0) -> ValuedOrder:
        signal.raise_signal(signal.SIGINT)
        return search(self, evaluations, bound)

    monkeypatch.setattr(OrderSearch, "run", run)
    pipeline = Pipeline(stages=3, batches=4, microbatch_times=[1, 4, 1, 2], order="search")
    comparison = ppopt.compare(pipeline, strategies=["1f1b", "gpipe"], workers=1, time_limit=600)
    assert comparison.interrupted
    assert [row.schedule.origin.strategy for row in comparison.baselines] == ["1f1b"]
    assert comparison.optimum.value is not None
    assert ("gpipe", STOPPED) in comparison.skipped


def test_a_comparison_keeps_its_strategies_at_any_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C before the second strategy: the checkpoint there loses no row, and all are named."""
    begin = Evaluation.begin

    def begun(evaluation: Evaluation) -> None:
        if evaluation.name == "gpipe":
            signal.raise_signal(signal.SIGINT)
            checkpoint()
        begin(evaluation)

    monkeypatch.setattr(Evaluation, "begin", begun)
    comparison = ppopt.compare(PIPELINE, strategies=["1f1b", "gpipe"], workers=1, time_limit=600)
    assert comparison.interrupted
    assert [row.schedule.origin.strategy for row in comparison.baselines] == ["1f1b"]
    assert ("gpipe", STOPPED) in comparison.skipped


@pytest.mark.parametrize("reading", [1, 4, slow(10), 20, slow(40), slow(80)])
@pytest.mark.parametrize("study", ["compare", "frontier", "plan"])
def test_a_study_has_a_schedule_if_it_is_ended_at_any_checkpoint(
    study: str, reading: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints read the clock: Ctrl-C is pressed at one of its first readings."""
    clock, readings = time.monotonic, count(1)

    def pressing() -> float:
        if next(readings) == reading:
            signal.raise_signal(signal.SIGINT)
        return clock()

    monkeypatch.setattr(time, "monotonic", pressing)
    if study == "plan":
        plan = ppopt.plan(ppopt.Model(LAYERS["layers"]), devices=3, batches=6, mem_limit=6)
        schedules = [plan.schedule]
    elif study == "compare":
        comparison = ppopt.compare(CUT)
        schedules = [row.schedule for row in comparison.rows if row.fits_limit]
    else:
        schedules = [point.result.schedule for point in ppopt.frontier(CUT).points]
    assert next(readings) > reading
    assert schedules
    for schedule in schedules:
        assert schedule is not None and verify(schedule) == []


@pytest.mark.parametrize("steps", [slow(0), slow(1), 2, slow(4), slow(8), slow(16), 32])
def test_a_plan_keeps_its_best_configuration(steps: int) -> None:
    press = Press(steps)
    model = ppopt.Model(LAYERS["layers"])
    plan = ppopt.plan(
        model, devices=3, batches=6, mem_limit=5, workers=1, time_limit=600, progress=press
    )
    check(plan, press)
