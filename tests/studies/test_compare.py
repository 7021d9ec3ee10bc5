"""How a comparison shares its time, and what it does not do twice."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ppopt import (
    Model,
    Objective,
    Options,
    Pipeline,
    Result,
    Schedule,
    cancellation,
    evaluate,
    read_pipeline,
)
from ppopt.formats import schedule_json
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.solver import options as solve_options
from ppopt.solver.heuristics import construction
from ppopt.solver.options import SolveOptions
from ppopt.solver.solve import solve_problem
from ppopt.strategies import base, names, schedules
from ppopt.studies import compare
from tests.cli.cli_run import done
from tests.clock import late, work_clock
from tests.packages import needed


def test_searches_get_the_time_that_strategies_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has an equal part of the time left: what one leaves, others get.

    The strategies take 300 s of 600, by a clock that moves only then: the three searches share 300.
    Their schedules state the time limit of the comparison.
    """
    searches: list[tuple[Pipeline, float]] = []
    evaluate, late = compare.StrategyBatch.evaluate, [0.0]
    clock = SimpleNamespace(monotonic=lambda: late[0])

    def slowly(*arguments: Any, **more: Any) -> Any:
        late[0] += 300
        return evaluate(*arguments, **more)

    def search(problem: Problem, options: SolveOptions, *more: Any, **named: Any) -> Result:
        searches.append((problem.pipeline, options.seconds))
        return solve_problem(problem, options, *more, **named)

    for module in (solve_options, cancellation):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(compare.StrategyBatch, "evaluate", slowly)
    monkeypatch.setattr(compare, "solve_problem", search)
    pipeline = Pipeline(stages=2, batches=4)
    placed = [Pipeline(stages=2, batches=4, placement=name) for name in ("v", "interleaved")]
    comparison = compare.compare(pipeline, also=placed, time_limit=600)
    assert {optimum.provenance.time_limit for optimum in comparison.optima} == {600}
    assert [problem for problem, _ in searches] == [pipeline, *placed]
    times = [seconds for _, seconds in searches]
    assert 75 < times[0] <= 100
    assert times[-1] > times[0]


def test_progress_names_strategies_then_placements() -> None:
    phases: list[str] = []
    compare.compare(
        Pipeline(stages=2, batches=4, forward=[3, 4]),
        also=[Pipeline(stages=2, batches=4, forward=[3, 4], placement="v")],
        time_limit=600,
        progress=lambda state: phases.append(state if isinstance(state, str) else state.phase),
    )
    first = phases.index("placement 1 of 2, list scheduling")
    assert {f"strategy {name}" for name in names()} == set(phases[:first])
    placements = {phase.split(",")[0] for phase in phases[first:]}
    assert placements == {"placement 1 of 2", "placement 2 of 2"}


@pytest.mark.parametrize("name", names())
def test_a_search_builds_no_order_of_an_evaluation_again(name: str) -> None:
    """The order depends on no limit, and options that are not given are the strategy's own."""
    base._built.cache_clear()
    schedule = evaluate(Pipeline(stages=2, batches=6, forward=[3, 4]), name)
    built = base._built.cache_info().misses
    rule = base.resolve(name)
    problem = Problem(schedule.pipeline, Objective.MAKESPAN, BackwardKind.MIXED)
    unlimited = schedules.with_explicit_placement(schedule.pipeline)
    baseline = construction._baseline_schedule(problem, rule, unlimited)
    assert baseline is not None
    assert base._built.cache_info().misses == built
    assert rule.built(schedule.pipeline, Options()) is baseline.orders


def test_a_table_waits_for_no_native_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turning every schedule of a large comparison into JSON takes longer than its evaluation."""

    def refuse(_: Schedule) -> dict[str, Any]:
        raise AssertionError("nobody asked for JSON")

    monkeypatch.setattr(schedule_json, "schedule_to_object", refuse)
    line = "--stages 2 --batches 4"
    assert "zbv" in done(f"compare {line}").out
    assert "makespan" in done(f"eval zbv {line}").out


@pytest.mark.parametrize("partition", [None, "search"])
def test_a_search_that_chooses_recompute_starts_from_the_best_strategy(
    partition: str | None,
) -> None:
    """In little time it finds worse: the strategy recomputes as little as the limit asks for."""
    model = read_pipeline("llama-3.1-8b")
    pipeline = replace(model, partition=partition, recompute="search")
    comparison = compare.compare(
        pipeline, strategies=["1f1b", "gpipe"], mem_limit="40GiB", time_limit=0.01, workers=1
    )
    (best,) = comparison.optima
    assert best.schedule is not None
    own = [row for row in comparison.baselines if row.fits_limit]
    assert own
    assert best.value is not None
    assert all(best.value <= row.value for row in own)


def test_a_strategy_without_recompute_is_where_a_search_starts_if_recompute_is_free() -> None:
    """Two stages of F = 1 and BW = 2, one layer each: 1F1B takes 3 (m + p - 1), and none less."""
    layers = [{"forward": 1, "activation": 2, "recompute": {"time": 0}}] * 2
    pipeline = Pipeline(stages=2, batches=2, model=layers, partition="search", recompute="search")
    comparison = compare.compare(pipeline, strategies=["1f1b"], workers=1, backward_kind="whole")
    assert comparison.optimum.value == 3 * (2 + 2 - 1)


def test_partitions_of_strategies_are_chosen_within_the_time_limit() -> None:
    """All together: alone, each of them would take five seconds."""
    model = Model([{"forward": 5 + index % 3, "activation": 1} for index in range(34)])
    pipeline = model.pipeline(devices=8, batches=32, p2p="0.2", partition="search")
    with work_clock() as clock:
        comparison = compare.compare(pipeline, time_limit=1, workers=1)
        seconds = clock.monotonic()
    assert not late(seconds, 1)
    assert "1f1b" in {row.schedule.origin.strategy for row in comparison.baselines}


def test_its_frame_has_a_row_per_schedule() -> None:
    needed("pandas")
    comparison = compare.compare(Pipeline(stages=2, batches=3, mem_limit=2), workers=1)
    frame = comparison.to_frame()
    assert len(frame) == len(comparison.rows)
    row = frame[frame.strategy == "1f1b"].iloc[0]
    assert (row.makespan, row.peak_memory, row.placement) == (12, 2, "linear")
    assert bool(row.fits_limit) and float(frame.ratio_to_best.min()) == 1
    assert not frame[frame.strategy == "gpipe"].iloc[0].fits_limit
    assert (frame.strategy == "searched").sum() == 1


@pytest.mark.parametrize("placement", ["linear, v", ["linear", "v"]])
def test_placements_are_named_as_on_the_command_line(placement: str | list[str]) -> None:
    pipeline = Pipeline(stages=2, batches=3)
    comparison = compare.compare(pipeline, placement=placement, strategies=["1f1b"], workers=1)
    assert [result.pipeline.resolved_placement for result in comparison.optima] == ["linear", "v"]
    assert [result.pipeline.num_chunks for result in comparison.optima] == [1, 2]
    line = (
        "compare --stages 2 --batches 3 --placement linear,v --strategies 1f1b --json --workers 1"
    )
    rows = done(line).json["rows"]
    assert [row.value for row in comparison.rows] == [row["value"] for row in rows]


def test_the_current_schedule_is_drawn_once() -> None:
    """It is the row of 1F1B, whose limit has the name `1f1b` there."""
    comparison = compare.compare(
        Pipeline(stages=2, batches=2), mem_limit="1f1b", strategies=("1f1b", "gpipe"), workers=1
    )
    drawn = [schedule.origin.strategy for schedule in comparison.drawn_schedules]
    assert drawn.count("1f1b") == 1
