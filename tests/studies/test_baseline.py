"""The best hand strategy of the placement within the limit, and what a search gains over it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

import ppopt
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.timetable import ALONE
from ppopt.solver.result import Result
from ppopt.studies import baseline as module
from ppopt.studies.baseline import baseline
from ppopt.studies.compare import evaluate_all
from tests.cli.cli_run import done, run, shown

UNEVEN = {"stages": 4, "batches": 8, "forward": [3, 4, 5, 4], "p2p": 1}
CASES: dict[str, dict[str, Any]] = {
    "no limit": {},
    "limit": {"mem_limit": "1f1b"},
    "below": {"mem_limit": 3},
    "v": {"placement": "v", "mem_limit": 3},
    "interleaved": {"placement": "interleaved"},
    "list": {"placement": [0, 1, 2, 3]},
}


def solved(**more: Any) -> Result:
    return ppopt.solve(Pipeline(stages=2, batches=4, **more), workers=1, time_limit=20)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("objective", ppopt.Objective)
@pytest.mark.parametrize("more", CASES.values(), ids=CASES)
def test_it_is_the_best_of_all_strategies_with_that_placement(
    more: dict[str, Any], objective: ppopt.Objective, fused: bool
) -> None:
    """Every strategy evaluated by itself; those of the placement and within the limit."""
    pipeline = Pipeline(**UNEVEN, **more)
    result = ppopt.solve(pipeline, objective=objective, fused=fused, workers=1, time_limit=1)
    kind = BackwardKind.uniform(fused=fused)
    made, _ = evaluate_all(pipeline, objective, ppopt.Options(), kind)
    result = replace(result, provenance=replace(result.provenance, time_limit=60))
    values = [
        schedule.pipeline.ticks.time(schedule.metrics.value(objective))
        for schedule, _ in made
        if schedule.pipeline.layout == pipeline.layout
        and schedule.fits_limits
        and (schedule.pair == ALONE).all()
    ]
    found = baseline(result)
    assert (found and found.value) == min(values, default=None)
    if found is not None:
        assert result.value is not None
        assert found.speedup == found.value / result.value
        again = ppopt.evaluate(pipeline, found.strategy, objective)
        assert again.pipeline.ticks.time(again.metrics.value(objective)) == found.value


def test_null_where_no_strategy_fits() -> None:
    """Memory of one microbatch: every strategy holds more on device 0."""
    found = shown("solve --stages 4 --batches 8 --mem-limit 1")
    assert found["status"] == "optimal"
    assert found["baseline"] is None
    infeasible = run("solve --stages 4 --batches 8 --mem-limit 0.5", "--json")
    assert infeasible.json["baseline"] is None


def test_words() -> None:
    """1F1B, F = 1 and BW = 2 whole, two devices and four microbatches: (4 + 1) x 3 is optimal."""
    line = "solve --stages 2 --batches 4 --fused --time-unit ms --activation 2GiB --mem-limit 4GiB"
    out = " ".join(done(f"{line} --tokens-per-microbatch 4096").out.split())
    assert (
        "gain no more throughput than 1f1b, the best hand strategy within 4 GiB: "
        "1,092,267 tokens/s" in out
    )


def test_an_interrupted_search_is_not_compared() -> None:
    assert baseline(replace(solved(), interrupted=True)) is None


def test_strategies_that_take_too_long_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPipe and the others of fixed order are tried; the one that adapts to the times is not."""
    result = replace(solved(forward=[2, 3]), lower_bound=Fraction(0))
    every = baseline(result)
    monkeypatch.setattr(module, "LONGEST", 1e-3)
    few = baseline(result)
    assert every is not None
    assert few is not None
    assert every.skipped == ()
    assert few.skipped == ("zb-2p",)
    monkeypatch.setattr(module, "LONGEST", 0.0)
    assert baseline(result) is None
