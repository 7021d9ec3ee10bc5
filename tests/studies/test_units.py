"""Figures in Python are in the user's units, as the command line prints them; ticks say so."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

import ppopt
from ppopt import Objective, Pipeline
from tests.cli.cli_run import json_of
from tests.packages import needed

FIELDS: dict[str, Any] = {"p2p": 0.25, "activation": 1.5, "static": 0.125}
UNITS: dict[str, Any] = {"time_unit": "ms", "memory_unit": "GiB"}
PIPELINE = Pipeline(stages=2, batches=3, forward=[0.5, 0.7], **FIELDS, **UNITS)


def test_figures_of_a_schedule_by_hand() -> None:
    """GPipe: device 0 runs F until 1.5, device 1 from 0.75 to 2.85, then BW of 1.4 until 7.05.
    BW of device 0 follow the last after 0.25: 7.05 + 0.25 + 1. It holds 3 x 1.5 + 0.125 GiB."""
    schedule = ppopt.evaluate(PIPELINE, "gpipe")
    assert (schedule.makespan, schedule.peak_memory) == (8.3, (4.625, 4.625))
    figures = schedule.metrics
    assert (figures.makespan, figures.peak_memory) == (8.3, (4.625, 4.625))
    assert figures.device_span == figures.value(Objective.DEVICE_SPAN) == 8.3
    assert figures.busy == (4.5, 6.3)
    per_unit = PIPELINE.ticks.per_unit
    assert per_unit > 1
    assert figures.makespan_ticks == figures.value_ticks(Objective.MAKESPAN) == 8.3 * per_unit
    assert figures.busy_ticks == (4.5 * per_unit, 6.3 * per_unit)
    assert repr(figures) == "Metrics(makespan 8.3, device span 8.3, peak memory 4.625 4.625)"


def test_whole_figures_are_integers() -> None:
    """1F1B: 3 (8 + 3) units of time; device i holds 4 - i microbatches. Half of all: not whole."""
    schedule = ppopt.evaluate(Pipeline(stages=4, batches=8), "1f1b")
    assert repr((schedule.makespan, schedule.peak_memory)) == "(33, (4, 3, 2, 1))"
    half = ppopt.evaluate(Pipeline(stages=4, batches=8, forward=0.5, activation=0.5), "1f1b")
    assert repr((half.makespan, half.peak_memory)) == "(16.5, (2, 1.5, 1, 0.5))"


@pytest.mark.parametrize("strategy", ["1f1b", "interleaved", "zb-1p", "zbv", "dualpipe-v"])
def test_python_says_what_the_command_line_prints(strategy: str) -> None:
    """Chunks divide the tick: the unit stays."""
    pipeline = Pipeline(stages=2, batches=4, forward=0.7, **FIELDS, **UNITS)
    schedule = ppopt.evaluate(pipeline, strategy)
    printed = json_of(
        f"eval {strategy} --stages 2 --batches 4 --forward-times 0.7 --p2p-time 0.25 "
        "--activation 1.5 --static 0.125 --time-unit ms --memory-unit GiB"
    )
    assert schedule.makespan == printed["makespan"]
    assert schedule.metrics.device_span == printed["device_span"]
    assert list(schedule.peak_memory) == printed["peak_memory"]


def test_rows_of_a_comparison_are_in_the_users_unit() -> None:
    compared = ppopt.compare(PIPELINE, strategies=["1f1b", "zbv"], workers=1)
    values = {row.schedule.origin.strategy: row.value for row in compared.rows}
    for row in compared.rows:
        assert row.figures.value(Objective.MAKESPAN) == float(row.value)
        assert row.schedule.pipeline.ticks.time(row.figures.makespan_ticks) == row.value
    assert values["1f1b"] == Fraction(str(ppopt.evaluate(PIPELINE, "1f1b").makespan))
    assert values["searched"] == compared.optimum.value


# Frames of pandas: a row for every row of a result.


needed("pandas")


def test_a_frontier_has_a_row_per_point_and_hand_strategy() -> None:
    """1F1B on 2 x 3 of F = B = W = 1 takes 3 x 3 + 3 with two activations."""
    curve = ppopt.frontier(ppopt.Pipeline(stages=2, batches=3), workers=1)
    frame = curve.to_frame()
    points = frame[frame.strategy == "searched"]
    assert [*points.memory] == [point.limit for point in curve.points]
    assert [*points.value] == [point.result.value for point in curve.points]
    assert [*points.lower_bound] == [point.result.lower_bound for point in curve.points]
    assert [*points.status] == [point.result.status.value for point in curve.points]
    baselines = frame[frame.strategy != "searched"]
    assert [*baselines.strategy] == [
        baseline.schedule.origin.strategy for baseline in curve.baselines
    ]
    row = baselines[baselines.strategy == "1f1b"].iloc[0]
    assert (row.memory, row.value, row.placement, row.chunks) == (2, 12, "linear", 1)


def test_a_plan_has_a_row_per_configuration() -> None:
    model = ppopt.Model([{"forward": time} for time in (3, 1, 2, 1)])
    plan = ppopt.plan(model, devices=2, batches=2, placement="linear,v", workers=1)
    frame = plan.to_frame()
    assert len(frame) == len(plan.rows) > 1
    assert [*frame.placement] == [row.configuration.placement for row in plan.rows]
    assert [*frame.status] == [row.status.value for row in plan.rows]
    best = frame.iloc[0]
    assert (best.value, best.peak_memory) == (plan.value, plan.rows[0].peak)
    assert best.partition == plan.rows[0].pipeline.counts
