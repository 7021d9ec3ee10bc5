"""The best baseline of the placement within the limit, and what a search gains over it."""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import ppopt
from ppopt import Layer, Model, cancellation
from ppopt.cancellation import within
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.pipeline import Pipeline
from ppopt.report.placement_text import unsearched_of_layers
from ppopt.report.schedule_report import ScheduleReport, report_result
from ppopt.report.search_text import describe_baseline, describe_gain, note_overlaps
from ppopt.solver.result import Result
from ppopt.studies import baselines as module
from ppopt.studies.baselines import (
    GRACE,
    OVERRUN_FACTOR,
    Baseline,
    StrategyBatch,
    baseline,
    best_other_placement,
)
from tests.cli.cli_run import done, json_of, run
from tests.clock import SHORT, work_clock
from tests.tiers import slow

UNEVEN = {"stages": 4, "batches": 8, "forward": [3, 4, 5, 4], "p2p": 1}
CASES: dict[str, dict[str, Any]] = {
    "no limit": {},
    "limit": {"mem_limit": "1f1b"},
    "below": {"mem_limit": 3},
    "v": {"placement": "v", "mem_limit": 3},
    "interleaved": {"placement": "interleaved"},
    "list": {"placement": [0, 1, 2, 3]},
}


def is_scheduled(state: ppopt.Progress) -> bool:
    """Whether a search has any schedule: it ends with its first one."""
    return state.value is not None


def solved(**more: Any) -> Result:
    return ppopt.solve(Pipeline(stages=2, batches=4, **more), workers=1, time_limit=600)


@pytest.mark.parametrize(
    ("objective", "fused"),
    [
        (ppopt.Objective.MAKESPAN, False),
        (ppopt.Objective.DEVICE_SPAN, True),
        slow(ppopt.Objective.MAKESPAN, True),
        slow(ppopt.Objective.DEVICE_SPAN, False),
    ],
)
@pytest.mark.parametrize("more", CASES.values(), ids=CASES)
def test_it_is_the_best_of_all_strategies_with_that_placement(
    more: dict[str, Any], objective: ppopt.Objective, fused: bool
) -> None:
    """Every strategy evaluated by itself; those of the placement and within the limit."""
    pipeline = Pipeline(**UNEVEN, **more)
    result = ppopt.solve(
        pipeline,
        objective=objective,
        backward_kind=BackwardKind.uniform(fused=fused),
        workers=1,
        stop=is_scheduled,
    )
    kind = BackwardKind.uniform(fused=fused)
    batch = StrategyBatch([pipeline], objective, ppopt.Options(), kind)
    result = replace(result, provenance=replace(result.provenance, time_limit=60))
    values = [
        schedule.pipeline.ticks.time(schedule.metrics.value_ticks(objective))
        for schedule in batch.evaluate()
        if schedule.pipeline.layout == pipeline.layout and schedule.fits_limits
    ]
    best = baseline(result)
    assert (best and best.value) == min(values, default=None)
    if best is not None:
        assert best.speedup == best.value / result.value
        schedule = ppopt.evaluate(pipeline, best.strategy, objective)
        assert schedule.pipeline.ticks.time(schedule.metrics.value_ticks(objective)) == best.value


@pytest.mark.parametrize(
    "more", [*CASES.values(), {"routes": 2}, {"static": 1, "mem_limit": 9}, {"forward": 3}], ids=str
)
def test_elsewhere_is_the_best_of_all_strategies_of_other_placements(more: dict[str, Any]) -> None:
    """Every strategy evaluated by itself; unequal stages are not cut into other chunks, and the
    weights of two routes count where the pipeline says what they are."""
    pipeline = Pipeline(**UNEVEN | more)
    result = ppopt.solve(pipeline, workers=1, stop=is_scheduled)
    result = replace(result, provenance=replace(result.provenance, time_limit=60))
    unplaced = pipeline
    if pipeline.named_placement:
        unplaced = replace(pipeline, placement=None, chunks=None)
    limited = replace(unplaced, mem_limit=pipeline.limits)
    batch = StrategyBatch([limited], ppopt.Objective.MAKESPAN, ppopt.Options())
    uneven = "forward" not in more
    values = [
        schedule.pipeline.ticks.time(schedule.metrics.makespan_ticks)
        for schedule in batch.evaluate()
        if schedule.pipeline.layout != pipeline.layout
        and schedule.pipeline.num_slices == 1
        and schedule.fits_limits
        and (schedule.pipeline.routes <= pipeline.routes or "static" in more)
        and (schedule.pipeline.num_chunks == pipeline.num_chunks or not uneven)
    ]
    reference = baseline(result)
    elsewhere = best_other_placement(pipeline, result, reference)
    best = min(values, default=None)
    if best is not None and reference is not None and best >= reference.value:
        best = None
    assert (elsewhere and elsewhere.value) == best
    if elsewhere is not None:
        assert elsewhere.speedup == elsewhere.value / result.value


def test_one_of_these_has_a_better_strategy_elsewhere() -> None:
    """On equal stages two chunks wait half as long for their first inputs as zb-1p: 25.5 and 27.

    zbv takes 25.5, too; strategies of equal value are in the order of their names.
    """
    pipeline = Pipeline(stages=4, batches=8)
    result = ppopt.solve(pipeline, workers=1)
    elsewhere = best_other_placement(pipeline, result, baseline(result))
    assert (elsewhere.strategy, elsewhere.value) == ("interleaved-zb", Fraction(51, 2))
    assert best_other_placement(pipeline, replace(result, interrupted=True), None) is None


def test_nothing_is_evaluated_after_the_instant_that_is_given() -> None:
    pipeline = Pipeline(stages=4, batches=8)
    result = ppopt.solve(pipeline, workers=1)
    with within(-1):
        assert baseline(result) is None
        assert best_other_placement(pipeline, result, None) is None


def test_a_command_evaluates_all_strategies_until_one_instant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A little beyond the time limit, which counts from the start of the command."""
    ends: list[float | None] = []

    def seen(*_: object) -> None:
        ends.append(cancellation._end.get())

    monkeypatch.setattr(module, "baseline", seen)
    monkeypatch.setattr(module, "best_other_placement", seen)
    monkeypatch.setattr(time, "monotonic", lambda: 50.0)
    done("solve --stages 2 --batches 4 --time-limit 100")
    assert ends == [50 + OVERRUN_FACTOR * 100 + GRACE] * 2


def test_pairs_are_compared_without_overlap_times() -> None:
    """DualPipe's pairs take F + BW then: 26, where the other strategies of two routes take 30."""
    output = json_of("solve --stages 4 --batches 8 --routes 2")
    assert (output["baseline"]["strategy"], output["baseline"]["value"]) == ("dualpipe", 26)
    assert output["value"] == output["lower_bound"] == 25


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "--stages 4 --batches 8",
            "faster elsewhere: interleaved-zb, 5.8 % more throughput; to search there: "
            "--placement interleaved --chunks 2",
        ),
        (
            "--stages 3 --batches 7 --placement interleaved --chunks 4",
            "other placement zbv (placement v, 2 chunks per device) is a better baseline; this "
            "schedule has 2.3 % more throughput",
        ),
        (
            "--stages 4 --batches 8 --static 1 --p2p-time 1 --mem-limit 7",
            "other placement dualpipe (placement linear, two routes, weights allocated twice) is a "
            "better baseline; this schedule has 6 % more throughput",
        ),
    ],
)
def test_words_of_another_placement(line: str, message: str) -> None:
    assert message in " ".join(done(f"solve {line} --details").out.split())


@pytest.mark.parametrize(
    ("line", "last"),
    [
        (
            "--stages 3 --batches 7 --placement interleaved --chunks 4",
            "not searched: placement; `--placement search` chooses it",
        ),
        (
            "--stages 2 --batches 2 --placement 0,1",
            "not searched: placement; `--placement search` chooses it",
        ),
        (
            "--model llama-3.1-8b --batches 4 --placement v --time-limit 0.1",
            "not searched: placement, partition, chunks; `ppopt plan` chooses them all",
        ),
    ],
)
def test_what_a_search_leaves_as_given_is_one_line(line: str, last: str) -> None:
    assert f" {last} " in " ".join(f"{done(f'solve {line}').out} ".split()) + " "


def test_what_is_infeasible_or_searched_is_not_named() -> None:
    for more in ("--mem-limit 0.5", "--placement search"):
        assert "not searched" not in run(f"solve --stages 2 --batches 2 {more}").out


CHOICES = Model([{"forward": 1, "activation": 2, "count": 6, "offload_time": 1}])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"mem_limit": 100},
            "not searched: partition (balanced), recompute (none), offload (none); `--partition "
            "search`, `--recompute search` and `--offload search` choose them",
        ),
        ({}, "not searched: partition (balanced); `--partition search` chooses it"),
        (
            {"partition": [4, 2], "recompute": "full", "mem_limit": 100},
            "not searched: partition, recompute, offload (none); `--partition search`, "
            "`--recompute search` and `--offload search` choose them",
        ),
        ({"partition": "search"}, ""),
        ({"devices": 6}, ""),
    ],
)
def test_what_a_comparison_does_not_search(settings: dict[str, Any], sentence: str) -> None:
    """Of six layers on six devices there is one partition; without a limit none recomputes."""
    assert unsearched_of_layers(CHOICES.pipeline(**{"devices": 2, "batches": 2} | settings)) == (
        sentence
    )
    assert unsearched_of_layers(Pipeline(stages=2, batches=2, mem_limit=9)) == ""


def test_a_worse_schedule_is_no_gain() -> None:
    """1F1B takes 5 x 3 = 15; a search that ends with 20 says who is better, and by how much."""
    result = solved()
    report = report_result(result, baseline(result))
    best = report.baseline
    assert best is not None and best.speedup == 1
    for status, cure in (("feasible", "raise --time-limit"), ("optimal", "use --backward mixed")):
        worse = replace(report, status=status, baseline=best._replace(speedup=Fraction(3, 4)))
        text = f"25 % less throughput than {best.strategy}; {cure}"
        assert describe_gain(worse) == text


def test_overlapped_pairs_without_overlap_times_are_noted() -> None:
    """Those that save no time, and no others: with times of their own, or without pairs."""
    pipeline = Pipeline(stages=2, batches=4, placement="v")
    timed = replace(pipeline, overlap=2)
    paired = ppopt.evaluate(pipeline, "dualpipe-v")
    (note,) = note_overlaps([paired, ppopt.evaluate(pipeline, "zbv")])
    assert note.startswith("dualpipe-v: an overlapped pair takes the sum")
    assert note_overlaps([ppopt.evaluate(timed, "dualpipe-v")]) == []
    line = "--stages 2 --batches 4"
    for command in (f"eval dualpipe-v {line}", f"compare {line} --strategies 1f1b,dualpipe-v"):
        assert note in " ".join(done(command).out.split())


def test_null_where_no_strategy_fits() -> None:
    """Memory of one microbatch: every strategy holds more on device 0."""
    output = json_of("solve --stages 4 --batches 8 --mem-limit 1")
    assert output["status"] == "optimal"
    assert output["baseline"] is None
    infeasible = run("solve --stages 4 --batches 8 --mem-limit 0.5", "--json")
    assert infeasible.json["baseline"] is None


def test_words() -> None:
    """1F1B, F = 1 and BW = 2 whole, two devices and four microbatches: (4 + 1) x 3 is optimal."""
    line = "solve --stages 2 --batches 4 --fused --time-unit ms --activation 2GiB --mem-limit 4GiB"
    out = " ".join(done(f"{line} --tokens-per-microbatch 4096").out.split())
    gain = "gain the same throughput as 1f1b (15 ms), the best baseline of this placement that fits"
    assert f"{gain} throughput 1,092,000 tokens/s" in out


def test_an_interrupted_search_is_not_compared() -> None:
    assert baseline(replace(solved(), interrupted=True)) is None


def test_strategies_that_take_too_long_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPipe and the others of fixed order are tried; the one that adapts to the times is not."""
    result = replace(solved(forward=[2, 3]), bound_ticks=0)
    every = baseline(result)
    monkeypatch.setattr(module, "MAX_SECONDS", 1e-3)
    limited = baseline(result)
    assert every.skipped == ()
    assert limited.skipped == ("zb-2p",)
    monkeypatch.setattr(module, "MAX_SECONDS", 0.0)
    assert baseline(result) is None


TRIAL = Model(
    layers=[
        Layer(forward="1.1"),
        *[Layer(forward="2.3", backward="4.9", activation="0.61", static="1.9")] * 40,
        Layer(forward="5.2", backward="10.1", workspace="2.5"),
    ]
)
"""On the partition of its best schedule interleaved is a fifth slower than on a balanced one."""


@pytest.mark.slow
def test_of_a_searched_partition_every_strategy_has_its_own() -> None:
    pipeline = TRIAL.pipeline(devices=8, batches=32, chunks=2, partition="search", mem_limit=80)
    with work_clock(2 * SHORT):
        result = ppopt.solve(pipeline, workers=1, time_limit=4)
        result = replace(result, provenance=replace(result.provenance, time_limit=20))
        assert result.schedule is not None
        reference = baseline(result)
    values = [
        schedule.pipeline.ticks.time(schedule.metrics.makespan_ticks)
        for partition in ("balanced", result.schedule.pipeline.counts)
        for schedule in [ppopt.evaluate(replace(pipeline, partition=partition), "interleaved-zb")]
    ]
    with work_clock(2 * SHORT):
        best = ppopt.best_choice(pipeline, "interleaved-zb", time_limit=4)
    assert values[0] < values[1]
    assert reference is not None
    assert reference.strategy == "interleaved-zb" and reference.chosen == ("partition",)
    assert reference.value == best.value <= values[0]


RECOMPUTING = Model(layers=[Layer(forward=2, backward=4, activation=2, kept=1)] * 8)


@pytest.mark.parametrize("partition", ["search", slow("even")])
def test_of_searched_recompute_every_strategy_has_its_own(partition: str) -> None:
    """Four microbatches of two layers take 16 on device 0 without recompute; 12 are too few."""
    pipeline = RECOMPUTING.pipeline(
        devices=4, batches=6, partition=partition, recompute="search", mem_limit=12
    )
    result = ppopt.solve(pipeline, workers=1, stop=is_scheduled)
    best = baseline(result)
    own = ppopt.best_choice(replace(pipeline, partition="balanced"), "1f1b")
    assert own.schedule.fits_limits
    assert any(layer.recompute for layer in own.schedule.pipeline.model.layers)
    assert best.value <= own.value
    both = ("partition", "recompute") if partition == "search" else ("recompute",)
    assert best.chosen == both


def test_words_say_what_each_strategy_chose(tmp_path: Path) -> None:
    layers = ", ".join(f"{{forward: {time}}}" for time in (1, 1, 1, 3, 2))
    (tmp_path / "layers.yaml").write_text(f"{{stages: 2, batches: 4, layers: [{layers}]}}")
    line = f"solve --config {tmp_path / 'layers.yaml'} --partition search"
    figures = json_of(line)
    best = figures["baseline"]
    assert best["chosen"] == ["partition"]
    assert sum(best["partition"]) == sum(figures["partition"])
    cut = f"{' '.join(map(str, best['partition']))} layers, {best['layout']}"
    out = " ".join(done(f"{line} --details").out.split())
    assert "the best baseline of this placement, each with its own partition" in out
    assert f"best baseline {best['strategy']}, {best['value']} ({cut})" in out
    layer = {"name": "block", "forward": 1, "activation": 2, "count": 2}
    layer |= {"recompute": {"time": 1, "activation": 1}}
    pipeline = Model([layer]).pipeline(devices=2, batches=4)
    some = Baseline("1f1b", Fraction(1), Fraction(1), pipeline, (), ("partition", "recompute"))
    assert (
        describe_baseline(ScheduleReport(baseline=some))
        == "1f1b, 1 (1 each layers, t|t; recompute 1 1 layers of the stages: block 0-1)"
    )
