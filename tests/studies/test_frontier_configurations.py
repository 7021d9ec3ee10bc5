"""Frontiers over partitions, placements and choices of recompute, against every one of them."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ppopt import Frontier, Layer, Model, Pipeline, Status, frontier, recheck, verify
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.solver.choices import process_pool
from ppopt.solver.choices.process_pool import ProcessPool, SearchEngine
from ppopt.solver.options import SolveOptions, checked_options
from ppopt.solver.parameters import PlanParams, SolveParams
from ppopt.solver.search import problem_of
from ppopt.studies import frontier as module
from ppopt.studies.evaluate import evaluate
from ppopt.studies.frontier_curve import ParetoPoint, Value
from ppopt.studies.frontier_problem import FrontierProblem
from ppopt.studies.frontier_search import ParetoSearch
from tests.cli.cli_run import done, json_of
from tests.clock import SHORT, work_clock
from tests.oracles.configurations import least_value
from tests.tiers import slow

SEARCHES: list[Any] = [
    {"recompute": "search"},
    {"partition": "search"},
    {"placement": "search", "chunks": 2},
    {"partition": "search", "recompute": "search"},
    slow({"placement": "search", "partition": "search", "chunks": 2}),
]


def draw(rng: Random, options: dict[str, Any]) -> Pipeline:
    """Three or four small layers on two devices, whose memory differs by a factor of up to 4."""
    layers = [
        Layer(
            rng.randint(1, 2),
            backward=rng.randint(1, 3),
            activation=rng.randint(1, 3),
            workspace=rng.choice((0, 0, 1)),
            recompute_time=rng.randint(0, 2),
            kept=rng.randint(0, 1),
            static=rng.randint(0, 1),
        )
        for _ in range(4 if "chunks" in options else 3)
    ]
    return Model(layers).pipeline(devices=2, batches=2, p2p=rng.choice((0, 1)), **options)


def brute(pipeline: Pipeline, top: Fraction) -> list[tuple[Fraction, Fraction]]:
    """Every whole limit up to `top` at which the least value of all configurations changes."""
    changes: list[tuple[Fraction, Fraction]] = []
    for limit in range(int(top) + 1):
        value = least_value(replace(pipeline, mem_limit=limit), fused=True)
        if value is not None and (not changes or value < changes[-1][1]):
            changes.append((Fraction(limit), value))
    return changes


def points(curve: Frontier) -> list[tuple[Fraction, Fraction | None]]:
    return [(point.limit, point.result.value) for point in curve.points]


@pytest.mark.parametrize("options", SEARCHES, ids=lambda options: "-".join(map(str, options)))
def test_every_point_is_the_best_of_all_configurations(options: dict[str, Any]) -> None:
    """Each is verified, keeps its limit, and is confirmed by the re-checker."""
    rng, several = Random(71), 0
    for _ in range(1):
        pipeline = draw(rng, options)
        curve = frontier(pipeline, backward_kind="whole", workers=1, time_limit=600)
        assert curve.status is Status.OPTIMAL
        last = curve.points[-1].limit
        assert points(curve) == brute(pipeline, last + 4)
        for point in curve.points:
            schedule = point.result.schedule
            assert verify(schedule) == []
            assert schedule.fits_limits
            assert (point.limit_proved, point.result.status) == (True, Status.OPTIMAL)
        assert curve.enough_proved
        several += len(curve.points) > 1
    assert several
    first = curve.points[0].result
    if "placement" not in options or "partition" not in options:
        assert recheck(first, time_limit=600).verdict.value == "confirmed"


def test_limits_of_the_pipelines_own_hold_beside_it() -> None:
    """Device 1 has room for one microbatch, or for two that recompute."""
    layers = [Layer(1, activation=2, kept=1)] * 2
    own = Model(layers).pipeline(devices=2, batches=2, recompute="search", mem_limit=[20, 2])
    curve = frontier(own, workers=1, time_limit=600)
    assert curve.status is Status.OPTIMAL
    for point in curve.points:
        assert point.result.schedule.metrics.peak_memory_ticks[1] <= 2
        assert point.result.pipeline.limits == (point.limit, min(point.limit, 2))
    tight = replace(own, mem_limit=[1, 1])
    impossible = frontier(tight, workers=1, time_limit=600)
    assert (impossible.status, impossible.points) == (Status.INFEASIBLE, ())
    assert impossible.proof.startswith("within the pipeline's own limits, device 0 has no memory")


def test_schedules_of_another_partition_by_rule_do_not_count() -> None:
    """Without recompute, the balanced partition is (1, 3): 36 in 9, which is not of (2, 2)."""
    costs = ((3, 5, 4, 3, 0), (4, 3, 1, 1, 1), (1, 3, 3, 2, 1), (2, 1, 2, 2, 1))
    layers = [
        {
            "forward": own,
            "backward": backward,
            "activation": memory,
            "recompute": {"activation": retained, "time": time},
            "static": int(index < 3),
        }
        for index, (own, backward, memory, retained, time) in enumerate(costs)
    ]
    pipe = Model(layers).pipeline(
        devices=2, batches=2, placement="linear", partition="balanced", recompute="search"
    )
    assert pipe.counts == (2, 2)
    assert replace(pipe, recompute="none").counts == (1, 3)
    curve = frontier(
        pipe, objective="device-span", backward_kind="whole", workers=1, time_limit=600
    )
    assert curve.status is Status.OPTIMAL
    assert [(point.limit, point.result.value) for point in curve.points] == [(6, 44), (10, 30)]


def test_the_placement_of_the_last_point_is_not_named_where_all_are_searched() -> None:
    line = "frontier --stages 2 --batches 2 --placement search --chunks 2 --time-limit 600"
    assert re.search(r"^memory above \S+ does not help \(proved\): ", done(line).out, re.MULTILINE)


FILE = """
stages: 2
batches: 4
memory_unit: GiB
time_unit: ms
layers:
  - {name: block, count: 4, forward: 1, activation: 2, kept: 1, static: 1}
  - {name: head, role: head, forward: 2, activation: 3, static: 2}
"""


@pytest.mark.slow
def test_the_command_says_what_was_chosen(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(FILE)
    searched = "--partition search --recompute search --placement linear --workers 1"
    line = f"frontier --config {path} --batches 2 {searched} --time-limit 600"
    output = json_of(line)
    assert output["searched"] == ["partition", "recompute"]
    assert output["memory_unit"] == "GiB"
    for row in output["points"]:
        assert (sum(row["partition"]), row["verified"]) == (5, True)
        assert len(row["recompute"]) == 2
    assert {tuple(row["recompute"]) for row in output["points"]} != {(0, 0)}
    stdout = done(line, "-o", tmp_path / "a.html").out
    assert re.search(r"GiB: layers \d,\d, recompute \d,\d$", stdout, re.MULTILINE)
    assert "layers " in (tmp_path / "a.html").read_text()
    assert json_of(f"frontier --config {path} --placement linear")["searched"] == []


def test_the_largest_limit_has_time_for_the_bound_over_all() -> None:
    """An equal share, a tenth of the time here, is too little on a large model."""
    problem = problem_of(draw(Random(1), SEARCHES[1]), Objective.MAKESPAN, BackwardKind.MIXED)
    space = FrontierProblem(problem)
    options = checked_options(60, 1)
    explorer = ParetoSearch([space], options)
    with options.scope():
        assert 26 < explorer._seconds(len(space.limits) - 1) <= 27
        assert explorer._seconds(0) < 10


def improved(workers: int, params: PlanParams) -> tuple[ParetoSearch, list[ParetoPoint]]:
    """The search after a turn at the peak of every schedule known before, and those schedules.

    These are of one microbatch at a time, and of GPipe.
    """
    model = Model([Layer(1, activation=1), Layer(1, activation=4)])
    pipeline = model.pipeline(devices=2, batches=6, partition="search")
    space = FrontierProblem(problem_of(pipeline, Objective.MAKESPAN, BackwardKind.MIXED))
    options = replace(checked_options(60, workers), params=SolveParams(plan=params))
    explorer = ParetoSearch([space], options)
    explorer.seed([*space.one_at_a_time(), evaluate(replace(pipeline, partition="even"), "gpipe")])
    before = list(explorer.curve.points)
    with options.scope(), closing(explorer._pool):
        for point in before:
            index = explorer.curve.limits.index(point.limit)
            large = params.max_reproducible == 0 and index != explorer._last
            assert explorer._level(index) == (-1 if large else 0)
            explorer._turn(index)
    return explorer, before


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("params", [PlanParams(), PlanParams(max_reproducible=0)])
def test_schedules_are_improved_within_their_peaks(
    workers: int, params: PlanParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the peak of one microbatch at a time, device 0 has memory for four.

    The first turn of a large problem has no bounds.
    """
    monkeypatch.setattr(process_pool, "WARM_UP", 0.0)
    explorer, before = improved(workers, params)
    best = [explorer.curve.best(point.limit) for point in before]
    assert len(before) == 2
    assert all(own and own.value <= point.value for own, point in zip(best, before, strict=True))
    assert best != before


def test_the_searches_of_all_limits_share_processes(engines: list[SearchEngine]) -> None:
    """They are started once, and end with the frontier."""
    pipeline = draw(Random(1), SEARCHES[1])
    curve = frontier(pipeline, backward_kind="whole", workers=2, time_limit=600)
    assert curve.status is Status.OPTIMAL and len(curve.points) > 1
    (engine,) = engines
    assert not engine.workers


@pytest.mark.parametrize("options", SEARCHES)
def test_a_search_with_a_target_ends_when_it_is_settled(options: dict[str, Any]) -> None:
    """Whether a limit allows a value is what the whole search of that limit says, too."""
    problem = problem_of(draw(Random(7), options), Objective.MAKESPAN, BackwardKind.MIXED)
    limits, request = FrontierProblem(problem).limits, checked_options(60, 1)

    def search(limit: int, target: int | None, space: FrontierProblem) -> tuple[Value, Value]:
        """Value and bound after a search of a limit; infinite if there is no schedule."""
        cutoff = inf if target is None else target + 1
        with request.scope():
            best = space.search(
                limit, [], request, ProcessPool(request), inf, target=target, cutoff=cutoff
            )
        value = inf if best is None else best.metrics.makespan_ticks
        return value, space.bounds.lower_bound(limit)

    best, _ = search(limits[-1], None, FrontierProblem(problem))
    for limit in (limits[0], limits[len(limits) // 2], limits[-1]):
        resumed = FrontierProblem(problem)
        whole, proved = search(limit, None, FrontierProblem(problem))
        asked, bound = search(limit, int(best), resumed)
        assert whole == proved
        assert (asked <= best) == (whole == best)
        assert (bound > best) == (whole > best)
        assert min(asked, search(limit, None, resumed)[0]) == whole
        assert resumed.bounds.lower_bound(limit) == whole


def test_strategies_are_timed_where_a_partition_is_searched() -> None:
    """Of many microbatches."""
    model = Model([Layer(1, activation=1)] * 4)
    pipeline = model.pipeline(devices=2, batches=32, partition="search")
    with work_clock(SHORT):
        curve = frontier(pipeline, time_limit=1, workers=1)
    assert {baseline.schedule.origin.strategy for baseline in curve.baselines} >= {"1f1b", "gpipe"}


# Hand strategies of a frontier: those that come too late for its search are compared, too.


PIPELINE = Pipeline(stages=2, batches=4)


def with_share(monkeypatch: pytest.MonkeyPatch, share: float, **options: Any) -> Frontier:
    """A frontier whose strategies have a share of the time before its search."""

    def options_with_share(*arguments: Any, **more: Any) -> SolveOptions:
        checked = checked_options(*arguments, **more)
        params = checked.params
        return replace(
            checked, params=replace(params, frontier=params.frontier._replace(strategies=share))
        )

    monkeypatch.setattr(module, "checked_options", options_with_share)
    return frontier(PIPELINE, workers=1, **options)


def test_strategies_without_a_share_are_evaluated_after_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search proves its points long before the time limit."""
    early, late = (with_share(monkeypatch, share) for share in (0.25, 0.0))
    assert late.status == early.status
    assert late.skipped == early.skipped
    assert [repr(baseline) for baseline in late.baselines] == [
        repr(baseline) for baseline in early.baselines
    ]
    assert [repr(point) for point in late.points] == [repr(point) for point in early.points]


def test_a_strategy_that_time_leaves_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer by its estimate than the whole time limit."""
    monkeypatch.setattr("ppopt.studies.baselines.Evaluation.estimate", 1e6)
    curve = with_share(monkeypatch, 0.25)
    assert curve.baselines == ()
    assert ("1f1b", "time limit reached") in curve.skipped
