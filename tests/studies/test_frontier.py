"""Memory against time: every point against exhaustive search, and what a frontier promises."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import islice
from math import inf, log2
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ppopt import Frontier, InputError, Objective, Pipeline, Status, frontier, solve, verify
from ppopt.cancellation import within
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver.bound import Bound
from ppopt.solver.options import SolveOptions, checked_options
from ppopt.solver.result import Result
from ppopt.solver.search import search_from
from ppopt.studies import frontier as frontier_module
from ppopt.studies import frontier_problem, frontier_search
from ppopt.studies.frontier_curve import Curve, LimitBounds, ParetoPoint, Proved
from ppopt.studies.frontier_problem import FrontierProblem
from ppopt.studies.limit_candidates import candidates, with_limit
from tests.cli.cli_json import (
    EVALUATED,
    FLAG,
    INT,
    KNOWN_TEXT,
    LIST,
    NUMBER,
    OBJECT,
    SOLVED,
    TEXT,
    assert_types,
)
from tests.cli.cli_run import done, json_of, run
from tests.clock import SHORT, late, work_clock
from tests.factories.instances import Case, tiny_cases
from tests.oracles import exhaustive
from tests.report.drawn import Content
from tests.tiers import first, slow

FRONTIER = {
    "schema": INT,
    "status": TEXT,
    "objective": TEXT,
    "proof": TEXT,
    "mem_limit": LIST,
    "time_unit": KNOWN_TEXT,
    "memory_unit": KNOWN_TEXT,
    "searched": LIST,
    "placements": LIST,
    "link_mode": TEXT,
    "least_limit": NUMBER,
    "least_limit_proved": FLAG,
    "useful_limit": NUMBER,
    "useful_limit_proved": FLAG,
    "points": LIST,
    "bounds": LIST,
    "strategies": LIST,
    "skipped": LIST,
    "backward_kind": TEXT,
    "seed": INT,
    "workers": INT,
    "versions": OBJECT,
    "solve_seconds": NUMBER,
}
POINT = SOLVED | {"limit": NUMBER, "limit_proved": FLAG}
BASELINE = EVALUATED | {"memory": NUMBER, "ratio_to_best": NUMBER}
SMALL = "frontier --placement linear --stages 2 --batches 3"
HARD = Pipeline(stages=8, batches=32, forward=10, backward=20, weight=9, p2p=1)
"""Many of its points take many seconds to prove."""


def split(pipeline: Pipeline) -> Problem:
    return Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT)


def steps(curve: Frontier) -> list[tuple[int, int]]:
    """(limit, value) of every point, in ticks of the whole pipeline."""
    ticks = curve.pipeline.ticks
    return [
        (int(point.limit * ticks.memory_per_unit), int((point.result.value or 0) * ticks.per_unit))
        for point in curve.points
    ]


def brute(case: Case, objective: Objective) -> list[tuple[int, int]]:
    """Every whole limit, in ticks, at which the exhaustive optimum changes, with its value."""
    ticks = case.pipeline.ticks
    top = max(
        static + case.pipeline.batches * sum(taken + max(0, at_b) for taken, at_b in _memory(case))
        for static in ticks.static
    ) + sum(map(sum, ticks.workspace))
    changes: list[tuple[int, int]] = []
    for limit in range(top + 1):
        tight = with_limit(case.pipeline, ticks.memory(limit))
        value = exhaustive.best(tight, fused=case.fused, objective=objective.value)
        if value is not None and (not changes or value < changes[-1][1]):
            changes.append((limit, value))
    return changes


def _memory(case: Case) -> list[tuple[int, int]]:
    ticks = case.pipeline.ticks
    return list(zip(ticks.costs.activation, ticks.costs.memory_b, strict=True))


def with_room(seed: int, count: int) -> Iterator[Case]:
    """Cases of two or three stages and several microbatches, none without activation."""
    cases = tiny_cases(seed, 30 * count, ops=20, mem_limit=None)
    many = (
        case
        for case in cases
        if case.pipeline.batches > 2
        and case.pipeline.num_stages > 1
        and min(case.pipeline.ticks.costs.activation)
    )
    return islice(many, count)


def assert_sound(curve: Frontier) -> None:
    """What every frontier promises, whatever its status."""
    for point in curve.points:
        result = point.result
        assert verify(result.schedule) == []
        assert result.schedule.fits_limits
        peak = max(result.schedule.metrics.peak_memory_ticks)
        assert result.schedule.pipeline.ticks.memory(peak) == point.limit
        assert result.lower_bound <= result.value
        assert (result.status is Status.OPTIMAL) == (result.lower_bound == result.value)
    values = [point.result.value for point in curve.points]
    assert values == sorted(values, key=lambda value: -(value or 0))
    assert len(set(values)) == len(values)
    assert [point.limit for point in curve.points] == sorted({p.limit for p in curve.points})
    for limit, bound in curve.bounds:
        best = curve.at(limit)
        assert best is None or (best.result.value or 0) >= bound


@pytest.mark.parametrize(
    ("objective", "seed", "count"),
    [(Objective.MAKESPAN, 51, 3), slow(Objective.MAKESPAN, 51, 15), (Objective.DEVICE_SPAN, 52, 3)],
)
def test_every_point_is_that_of_exhaustive_search(
    objective: Objective, seed: int, count: int
) -> None:
    """Unequal times, links, memory of either sign, chunks, split and fused."""
    several = 0
    for case in with_room(seed, count):
        curve = frontier(
            case.pipeline,
            objective=objective,
            backward_kind=case.backward_kind,
            workers=1,
        )
        assert curve.status is Status.OPTIMAL
        assert steps(curve) == brute(case, objective), case
        assert_sound(curve)
        assert all(point.limit_proved for point in curve.points)
        assert curve.enough_proved
        several += len(curve.points) > 1
    assert several >= count // 2


def test_limits_of_the_pipelines_own_hold_beside_it() -> None:
    """Device 1 has room for one microbatch: whatever device 0 may hold, no more goes through."""
    case = Case(Pipeline(stages=2, batches=3, mem_limit=[9, 1]), fused=False)
    curve = frontier(case.pipeline, workers=1)
    assert steps(curve) == brute(case, Objective.MAKESPAN)
    assert all(
        point.result.schedule is not None and point.result.schedule.peak_memory[1] == 1
        for point in curve.points
    )


def test_strategies_over_the_pipelines_own_limits_are_no_better() -> None:
    """With room for one microbatch on device 0, whatever the others may hold: ZB-1P takes half the
    time, and three times the memory. No ratio to what cannot be."""
    line = "frontier --stages 3 --batches 4 --mem-limit 1,2,3 --placement linear"
    rows = {row["strategy"]: row for row in json_of(line)["strategies"]}
    assert rows["zb-1p"]["fits_limit"] is False
    assert rows["zb-1p"]["ratio_to_best"] is None
    table = done(line).out
    assert re.search(r"3 +14 .*– over the limit zb-1p", table)  # noqa: RUF001


@pytest.fixture(scope="module")
def documented() -> Frontier:
    """The README's."""
    return frontier(Pipeline(stages=4, batches=8), time_limit=2400)


def test_the_documented_frontier(documented: Frontier) -> None:
    """4 x 8 at unit costs. One microbatch at a time: 8 x (4 F + 4 B + W) = 72. From 4 on: the
    last device waits 3 and works 24."""
    curve = documented
    assert curve.status is Status.OPTIMAL
    assert [limit for limit, _ in steps(curve)] == [1, 2, 3, 4]
    assert (steps(curve)[0][1], steps(curve)[-1][1]) == (72, 27)
    for limit, value in steps(curve)[1:3]:
        assert solve(curve.pipeline, mem_limit=limit, time_limit=2400).value == value
    assert (curve.min_memory_point.limit, curve.enough.limit, curve.enough_proved) == (1, 4, True)
    assert curve.proof == "device 0 needs 1 even for one microbatch at a time"
    assert curve.at(Fraction(7, 2)) is curve.points[2]
    assert curve.at(0.5) is None


def test_hand_strategies_stand_beside_it(documented: Frontier) -> None:
    """1F1B holds 4 and takes 33, GPipe holds 8 and takes as long; the best takes 27."""
    baselines = {baseline.schedule.origin.strategy: baseline for baseline in documented.baselines}
    assert (baselines["1f1b"].memory, baselines["1f1b"].value) == (4, 33)
    assert (baselines["gpipe"].memory, baselines["gpipe"].value) == (8, 33)
    assert baselines["1f1b"].ratio == baselines["gpipe"].ratio == 33 / 27
    assert baselines["interleaved"].ratio is None
    for baseline in documented.baselines:
        assert baseline.ratio is None or baseline.ratio >= 1
    memory = [baseline.memory for baseline in documented.baselines]
    assert memory == sorted(memory)


@pytest.mark.parametrize(
    "more",
    [
        # Both slices of a microbatch are held at once, half an activation each.
        {"slices": 2},
        {"routes": 2, "batches": 4},
        {"overlap": 2},
    ],
)
def test_slices_routes_and_pairs(more: dict[str, Any]) -> None:
    """Every point is what a search within its limit proves, and half a unit less gives more."""
    pipeline = Pipeline(**({"stages": 2, "batches": 3} | more))
    curve = frontier(pipeline, time_limit=2400)
    assert curve.status is Status.OPTIMAL
    assert_sound(curve)
    assert len(curve.points) > 1
    for point in curve.points:
        assert solve(pipeline, mem_limit=point.limit, time_limit=2400).value == point.result.value
        tighter = solve(pipeline, mem_limit=point.limit - Fraction(1, 2), time_limit=2400)
        assert tighter.value is None or tighter.value > (point.result.value or 0)
    assert solve(pipeline, time_limit=2400).value == curve.points[-1].result.value


def counted(monkeypatch: pytest.MonkeyPatch, after: Callable[[int], None]) -> list[int]:
    """Note the limit of every search; `after` is told how many there were."""
    searched: list[int] = []
    turn = frontier_search.ParetoSearch._turn

    def note(self: frontier_search.ParetoSearch, index: int, target: int | None = None) -> None:
        searched.append(self.curve.limits[index])
        turn(self, index, target)
        after(len(searched))

    monkeypatch.setattr(frontier_search.ParetoSearch, "_turn", note)
    return searched


def test_runs_of_equal_optimum_are_not_searched_point_by_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched = counted(monkeypatch, lambda _: None)
    pipeline = Pipeline(stages=2, batches=32, forward=2, backward=4, p2p=1)
    curve = frontier(pipeline, time_limit=2400)
    assert curve.status is Status.OPTIMAL
    assert len(candidates(split(pipeline))) == 32
    assert len(searched) <= len(curve.points) + 2 * log2(32)


def test_ctrl_c_keeps_the_points_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(times: int) -> None:
        if times == 2:
            signal.raise_signal(signal.SIGINT)

    searched = counted(monkeypatch, interrupt)
    curve = frontier(Pipeline(stages=4, batches=8), time_limit=2400)
    assert curve.interrupted
    assert len(searched) == 2
    assert curve.points
    assert_sound(curve)


def test_ctrl_c_while_the_points_are_verified_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    point = frontier_module._point

    def pressed(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return point(*arguments)

    monkeypatch.setattr(frontier_module, "_point", pressed)
    curve = frontier(Pipeline(stages=2, batches=3), workers=1)
    assert (curve.interrupted, curve.status) == (True, Status.OPTIMAL)
    assert steps(curve)


def test_what_a_search_gives_up_is_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of 4800 operations that ends after a part of its time, without a proof."""
    searches = []

    def ended_early(start: Any, problem: Any, options: SolveOptions) -> Result:
        searches.append(options.seconds)
        with within(0.1):
            return search_from(start, problem, options.in_scope())

    monkeypatch.setattr(frontier_problem, "search_from", ended_early)
    pipeline = Pipeline(stages=4, batches=200, slices=2, mem_limit=1)
    curve = frontier(pipeline, workers=1, time_limit=1000)
    assert (len(curve.points), curve.status) == (1, Status.FEASIBLE)
    assert len(searches) == 1
    assert searches[0] > 100


def test_the_time_of_a_search_stays_a_number_however_often_it_was_tried() -> None:
    problem = FrontierProblem(split(Pipeline(stages=2, batches=3)))
    explorer = frontier_search.ParetoSearch([problem], checked_options(60, 1))
    assert list(explorer.curve.limits) == [1, 2, 3]
    explorer.turns[1].number = 5000
    with within(60):
        assert 0 < explorer._seconds(1) <= 60


def test_infeasible_is_said_where_only_a_search_proves_it() -> None:
    """A V of one device, B of no length that takes as much as F.

    At the second stage's B one microbatch holds 1 + 1 for its F and 1 for this B, over the limit
    of 2, and nothing can be freed before.
    """
    times = {"forward": 1, "backward": 2, "weight": 2, "activation": 2, "memory_b": 2}
    pipeline = Pipeline(stages=1, chunks=2, placement="v", batches=2, mem_limit=2, **times)
    curve = frontier(pipeline, workers=1, backward_kind="split")
    assert (curve.status, curve.points) == (Status.INFEASIBLE, ())
    assert curve.proof.startswith(
        "all orders were searched, and none is within the pipeline's own limits"
    )
    assert curve.proof.endswith("whose backwards are all split (--backward split)")
    proof = solve(replace(pipeline, mem_limit=1), backward_kind="split").proof
    assert "a limit for all devices must be at least 2" in proof


def test_memory_in_bytes_may_add_up_to_more_than_a_user_may_give() -> None:
    curve = frontier(Pipeline(stages=2, batches=3, activation=5 * 10**11), workers=1)
    assert curve.status is Status.OPTIMAL
    assert candidates(split(curve.pipeline))[-1] == 15 * 10**11
    assert curve.points[-1].limit == 10**12


def test_the_time_limit_is_kept_and_what_is_open_is_said() -> None:
    seen = []
    with work_clock(2 * SHORT):
        curve = frontier(HARD, time_limit=2, workers=1, progress=seen.append)
    assert not late(curve.solve_seconds, 2)
    assert curve.status is Status.FEASIBLE
    assert_sound(curve)
    assert any(point.result.status is Status.FEASIBLE for point in curve.points)
    assert steps(curve)[-1][1] >= int(curve.bounds[-1][1])
    assert any("limit" in state.phase for state in seen)


def test_one_worker_repeats_itself() -> None:
    pipeline = Pipeline(stages=2, batches=3, forward=[3, 5], p2p=1)
    first, second = (frontier(pipeline, workers=1, seed=5, time_limit=2400) for _ in range(2))
    assert [point.result.schedule for point in first.points] == [
        point.result.schedule for point in second.points
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_limit": 0}, "time_limit: 0 is not above 0"),
        ({"workers": 0}, "workers: 0 is not between"),
        ({"objective": "speed"}, "objective: 'speed'"),
    ],
)
def test_misuse_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        frontier(Pipeline(stages=2, batches=2), **options)
    assert str(caught.value).startswith(message)


class TestCandidates:
    @pytest.mark.parametrize(
        ("fields", "limits"),
        [
            ({}, [1, 2, 3]),
            ({"activation": 2, "static": 1}, [3, 5, 7]),
            # Multiples of 2 and of 3, from the least that both need.
            ({"activation": [2, 3]}, [3, 4, 6, 9]),
            # B gives back half: halves too.
            ({"memory_b": -0.5}, [2, 3, 4, 5, 6]),
            ({"chunks": 2}, [2, 3, 4, 5, 6]),
            ({"activation": 0}, [0]),
            # While F runs, half of one more; in halves.
            ({"forward_workspace": 0.5}, [3, 4, 5, 6, 7, 9]),
            # Nothing above the pipeline's own largest limit.
            ({"mem_limit": [2, 1]}, [1, 2]),
        ],
    )
    def test_sums_of_what_devices_hold(self, fields: dict[str, Any], limits: list[int]) -> None:
        assert list(candidates(split(Pipeline(stages=2, batches=3, **fields)))) == limits

    def test_too_many_sums_are_all_ticks(self) -> None:
        """Without a common divisor, up to 18 million ticks: from one microbatch to nine."""
        pipeline = Pipeline(stages=2, placement=[0, 0], batches=9, activation=[1, "1.000001"])
        assert candidates(split(pipeline)) == range(2_000_001, 18_000_010)

    @pytest.mark.parametrize("heavy", [False, True])
    def test_nothing_changes_between_them(self, heavy: bool) -> None:
        """Every peak that the exhaustive optimum changes at is among them, workspace and recompute
        included where they are heavy."""
        for case in tiny_cases(53, 24 if heavy else 12, ops=12, mem_limit=None, heavy=heavy):
            kind = case.backward_kind
            limits = set(candidates(Problem(case.pipeline, Objective.MAKESPAN, kind)))
            assert {limit for limit, _ in brute(case, Objective.MAKESPAN)} <= limits


class TestCurve:
    @staticmethod
    def bound(limit: int, value: int) -> Proved:
        return Proved(limit, Bound(value, "", Certificate(Argument.SEARCH)))

    @staticmethod
    def point(limit: int, value: int) -> ParetoPoint:
        return ParetoPoint(limit, value, None)  # type: ignore[arg-type]

    def curve(self, *bounds: tuple[int, int], top: int = 8) -> Curve:
        """A curve over the limits 1 to 8, for a single placement with these bounds."""
        proved = LimitBounds([self.bound(top, 0)])
        for pair in bounds:
            proved.add(self.bound(*pair))
        return Curve(range(1, 9), [proved])

    def test_only_what_nothing_betters_is_kept(self) -> None:
        curve = self.curve((8, 5), (4, 9), (6, 9), (3, 12))
        growing = []
        for pair in ((4, 20), (8, 10), (6, 20), (5, 10)):
            curve.add(self.point(*pair))
            growing.append([entry[:2] for entry in curve.points])
        assert growing == [[(4, 20)], [(4, 20), (8, 10)], [(4, 20), (8, 10)], [(4, 20), (5, 10)]]
        assert curve.bounds == [(3, 12), (6, 9), (8, 5)]
        assert [curve.lower_bound(limit) for limit in (1, 3, 4, 6, 7, 8)] == [12, 12, 9, 9, 5, 5]

    def test_what_is_open(self) -> None:
        """4 and 5 are open, between the bound 20 at 3 and the next schedule; 6 on are closed."""
        curve = self.curve((1, 40), (3, 20), (8, 10))
        for pair in ((1, 40), (2, 20), (6, 10)):
            curve.add(self.point(*pair))
        (segment,) = curve.open()
        assert segment == (3, 4, 20, 10)
        curve.placements[0].add(self.bound(5, 20))
        assert list(curve.open()) == []

    def test_limits_without_a_schedule_are_open_until_that_is_proved(self) -> None:
        curve = self.curve((8, 7))
        curve.add(self.point(3, 7))
        assert [(s.first, s.last) for s in curve.open()] == [(0, 1)]
        curve.placements[0].impossible = 2
        assert list(curve.open()) == []

    def test_the_bound_over_placements_is_the_minimum_of_each(self) -> None:
        """Limits above the largest of a placement change nothing for it; up to 2 only one has a
        schedule, and up to 1 none."""
        first, second = self.curve((8, 5), (3, 12)), self.curve((6, 8), (2, 10), top=6)
        both = Curve(range(1, 9), [*first.placements, *second.placements])
        assert [both.lower_bound(limit) for limit in range(1, 9)] == [10, 10, 8, 5, 5, 5, 5, 5]
        assert both.bounds == [(2, 10), (3, 8), (8, 5)]
        assert second.lower_bound(8) == 8
        first.placements[0].impossible, second.placements[0].impossible = 1, 2
        assert [both.lower_bound(limit) for limit in (1, 2, 3)] == [inf, 12, 8]
        assert both.bounds == [(2, 12), (3, 8), (8, 5)]
        second.placements[0].impossible = 6
        assert [both.lower_bound(limit) for limit in (3, 4, 8)] == [12, 5, 5]
        assert both.bounds == [(3, 12), (8, 5)]

    def test_a_bound_holds_up_to_the_largest_limit_at_which_another_placement_fails(self) -> None:
        first, second = self.curve((8, 5)), self.curve((8, 9))
        first.placements[0].impossible = 4
        both = Curve(range(1, 9), [*first.placements, *second.placements])
        assert both.bounds == [(4, 9), (8, 5)]


class TestCommand:
    def test_json(self, tmp_path: Path) -> None:
        output = json_of(SMALL, "-o", tmp_path / "a.json")
        assert_types(_non_null(output), FRONTIER)
        for row in output["points"]:
            assert_types(row, POINT)
            assert row["mem_limit"] == [row["limit"]] * 2
            assert row["schedule"]["pipeline"]["mem_limit"] == [row["limit"]] * 2
        for row in output["strategies"]:
            assert_types(_non_null(row), BASELINE)
        limits = [(row["limit"], row["value"]) for row in output["points"]]
        case = Case(Pipeline(stages=2, batches=3), fused=False)
        assert limits == brute(case, Objective.MAKESPAN)
        assert (output["least_limit"], output["useful_limit"]) == (limits[0][0], limits[-1][0])
        written = json.loads((tmp_path / "a.json").read_text())
        assert "solve_seconds" not in written
        assert written["points"][0]["value"] == output["points"][0]["value"]

    def test_table(self) -> None:
        """The last device waits 1 and works 9; one microbatch at a time takes 3 x (2 + 2 + 1)."""
        lines = done(SMALL).out.splitlines()
        assert re.search(r"^ +1 +15 .* optimal +searched, linear", "\n".join(lines), re.MULTILINE)
        assert any("1f1b, linear" in line for line in lines)
        minimum = "minimum memory: 1 (proved); device 0 needs 1 even for one microbatch at a time"
        assert minimum in lines
        useful = r"memory above \d does not help placement linear \(proved\): the .* stays at 10$"
        assert any(re.match(useful, line) for line in lines)

    def test_more_than_the_pipeline_s_own_limits_is_not_promised_to_be_of_no_use(self) -> None:
        """Without them 10, see above."""
        last = (
            "memory above 1 does not help placement linear (proved): the makespan stays at 15 "
            "within the "
        )
        assert f"{last}pipeline's own limits" in done(f"{SMALL} --mem-limit 1").out.splitlines()
        assert json_of(f"{SMALL} --mem-limit 1,2")["mem_limit"] == [1, 2]

    def test_page(self, tmp_path: Path) -> None:
        output = json_of(SMALL, "-o", tmp_path / "a.html")
        page = (tmp_path / "a.html").read_text()
        inside = re.search(r'<script type="application/json" id="frontier">(.*?)</script>', page)
        data = json.loads(inside[1])
        assert [row["section"] for row in data["points"]] == [
            f"schedule-{index}" for index in range(1, len(output["points"]) + 1)
        ]
        for row in data["points"]:
            assert f'id="{row["section"]}"' in page
            assert f'href="#{row["section"]}"' in page
        assert not [tag for tag in Content(page).tags if "src" in tag[1]]
        assert "solve_seconds" not in data

    def test_page_of_a_frontier_that_is_open(self, tmp_path: Path) -> None:
        line = "frontier --stages 8 --batches 16 --forward-times 10 --weight-times 9 --p2p-time 1"
        done(f"{line} --time-limit 0.5 -o", tmp_path / "a.html")
        assert "proved: no schedule is below" in (tmp_path / "a.html").read_text()

    def test_orders_are_refused_before_the_work(self, tmp_path: Path) -> None:
        ran = run(SMALL, "-o", tmp_path / "a.csv")
        message = "error: -o: cannot write a frontier as one order; use .html or .json\n"
        assert (ran.code, ran.out, ran.err) == (2, "", message)

    def test_infeasible(self, tmp_path: Path) -> None:
        """Limits of the pipeline's own that nothing can keep."""
        ran = run(f"{SMALL} --mem-limit 0.5 --json -o", tmp_path / "a.json")
        output = json.loads(ran.out)
        assert ran.code == 3
        assert (output["status"], output["points"]) == ("infeasible", [])
        assert "its limit is 0.5" in output["proof"]
        assert output["least_limit"] is None
        assert list(tmp_path.iterdir()) == []
        assert "infeasible: device 0" in run(f"{SMALL} --mem-limit 0.5").out

    def test_device_span_and_fused(self) -> None:
        output = json_of(f"{SMALL} --objective device-span --fused")
        assert (output["objective"], output["backward_kind"]) == ("device-span", "whole")
        case = Case(Pipeline(stages=2, batches=3), fused=True)
        assert [(row["limit"], row["value"]) for row in output["points"]] == brute(
            case, Objective.DEVICE_SPAN
        )


def _non_null(row: dict[str, Any]) -> dict[str, Any]:
    """A row without a limit or ratio to a frontier of another placement that is null."""
    instead = {"mem_limit": [], "ratio_to_best": 1}
    return {key: instead.get(key) if value is None else value for key, value in row.items()}


def test_the_limit_of_a_point_is_that_of_its_pipeline() -> None:
    curve = frontier(Pipeline(stages=2, batches=3, static=[1, 2]))
    for point in curve.points:
        assert point.result.pipeline == replace(curve.pipeline, mem_limit=point.limit)


@cache
def solved_at_every_limit() -> tuple[Frontier, dict[int, Fraction | None]]:
    """The frontier of three devices, and the value within every limit, solved by itself."""
    pipeline = Pipeline(stages=3, batches=5)
    curve = frontier(pipeline, workers=1, time_limit=600)
    limits = range(1, 6)
    return curve, {
        limit: solve(pipeline, mem_limit=limit, workers=1, time_limit=600).value for limit in limits
    }


@pytest.mark.parametrize("share", [Fraction(0), Fraction(1, 20), Fraction(1, 5), Fraction(10)])
def test_the_least_memory_that_is_almost_as_fast(share: Fraction) -> None:
    curve, values = solved_at_every_limit()
    point, beyond = curve.within(share), curve.beyond(share)
    assert point is not None and curve.status is Status.OPTIMAL
    slowest = (1 + share) * min(values.values())
    fits = [limit for limit, value in values.items() if value <= slowest]
    assert point.limit == min(fits) and point.result.value == values[min(fits)]
    assert beyond is None or beyond < point.limit
    assert (beyond is None) == (min(fits) == 1)


def test_it_is_told_on_the_command_line() -> None:
    """10 with 2 and 15 with 1: see `TestCommand.test_table`."""
    line = f"{SMALL} --workers 1 --within"
    output = json_of(f"{line} 5%")["within"]
    assert output == {"share": 0.05, "limit": 2, "value": 10, "beyond": 1}
    assert "within 5 % of the best: 10 with 2; 1 is not enough (proved)" in done(f"{line} 0.05").out
    assert run(f"{line} fast").code == 2


@pytest.mark.parametrize("seed", first(1, range(3)))
def test_a_frontier_with_moves_has_the_optimum_of_every_limit(seed: int) -> None:
    """Between F and its move out, and from its return on, a device holds all of an activation."""
    rng = Random(seed)

    def row(low: int, high: int) -> list[int]:
        return [rng.randint(low, high) for _ in range(3)]

    pipeline = Pipeline(
        stages=3, placement=rng.choice([(0, 0, 1), (0, 1, 0)]), batches=2,
        forward=row(1, 3), backward_input=row(1, 2), weight=row(1, 2), activation=[2, 3, 2],
        kept=row(1, 2), recompute_time=row(0, 2), offload_memory=[1, 1, 0], offload_time=[1, 1, 0],
        unshard_memory=row(0, 2),
    )  # fmt: skip
    curve = frontier(pipeline, backward_kind="whole", workers=1, time_limit=600)
    assert curve.status is Status.OPTIMAL
    for limit in range(2, 20):
        best = solve(pipeline, mem_limit=limit, backward_kind="whole", workers=1)
        reached = [point.result.value for point in curve.points if point.limit <= limit]
        assert best.value == min(reached, default=None)
