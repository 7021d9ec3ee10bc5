"""A comparison ends at its deadline: the tests control the clock, and count the strategies."""

from __future__ import annotations

from typing import Any

import pytest

import ppopt
from ppopt import Model
from ppopt.cancellation import within
from ppopt.problem.objective import Objective
from ppopt.solver.recompute.stage_options import StageOptions
from ppopt.studies import baselines, compare
from ppopt.studies.strategy_configurations import StrategyConfigurations
from ppopt.studies.strategy_search import StrategySearch
from tests.clock import WorkBetweenReadings, stepping_clock


@pytest.mark.parametrize("partition", ["balanced", "search"])
@pytest.mark.parametrize("readings", [15, 30])
def test_no_strategy_is_begun_after_the_deadline(
    partition: str, readings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reading of the clock takes a part of the limit: time is up after few strategies."""
    clock = stepping_clock(monkeypatch, 1.0, readings)
    begun: list[float] = []
    begin = baselines.Evaluation.begin

    def watched(evaluation: baselines.Evaluation) -> None:
        now = clock.readings * clock.step
        begin(evaluation)
        if evaluation.schedule is not None or evaluation.search is not None:
            begun.append(now)

    monkeypatch.setattr(baselines.Evaluation, "begin", watched)
    layers = [{"forward": 5 + index % 3, "activation": 1} for index in range(18)]
    pipeline = Model(layers).pipeline(devices=4, batches=8, partition=partition)
    result = compare.compare(pipeline, time_limit=1.0, workers=1)
    assert begun and begun[-1] <= 1.0
    names = {row.schedule.origin.strategy for row in result.baselines}
    skipped = {name for name, _ in result.skipped}
    assert names | skipped == set(ppopt.strategies()) and skipped


def test_the_first_point_of_a_strategy_needs_no_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """With many layers the recompute options of all neighbours take longer than a short limit."""
    layers = [{"forward": 1, "activation": 2, "recompute": {"activation": 1}, "count": 64}]
    pipeline = Model(layers).pipeline(
        devices=4, batches=4, partition="search", recompute="search", mem_limit=100
    )

    def refuse(*_: object) -> None:
        raise AssertionError("no time is left for neighbours")

    monkeypatch.setattr(StrategyConfigurations, "after_layer_move", refuse)
    search = StrategySearch(pipeline, "1f1b", Objective.MAKESPAN)
    search.descend(0)
    assert search.fits


@pytest.mark.parametrize("strategy", ["1f1b", "zb-2p", "v-half"])
def test_without_time_no_strategy_is_slower_than_with_its_balanced_partition(strategy: str) -> None:
    """Also if its configurations are evaluated one by one, since its order adapts to times."""
    model = Model([{"forward": forward} for forward in (1, 1, 1, 1, 4, 5)])
    chunks = {"devices": 2, "batches": 4, "chunks": 2 if strategy == "v-half" else 1}
    pipeline = model.pipeline(**chunks, partition="search")
    search = StrategySearch(pipeline, strategy, Objective.MAKESPAN)
    with within(-1.0):
        search.descend()
    balanced = ppopt.evaluate(model.pipeline(**chunks, partition="balanced"), strategy)
    assert search.schedule().makespan <= balanced.makespan


def test_a_descent_reads_the_clock_at_every_stage_with_new_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With many layers the options of the stages of all neighbours take half a second."""
    layers = [{"forward": 1, "activation": 2, "recompute": {"activation": 1}, "count": 64}]
    pipeline = Model(layers).pipeline(
        devices=4, batches=4, partition="search", recompute="search", mem_limit=100
    )
    search = StrategySearch(pipeline, "1f1b", Objective.MAKESPAN)
    search.descend(0)
    clock, of = WorkBetweenReadings(monkeypatch, 20), StageOptions.of

    def counted(options: StageOptions, *ends: int) -> Any:
        clock.work += 1
        return of(options, *ends)

    monkeypatch.setattr(StageOptions, "of", counted)
    with within(1.0):
        search.descend(1)
    assert clock.max_work == 1 and clock.readings <= 25
