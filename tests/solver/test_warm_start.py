"""A search that starts from a schedule of the user's own."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest

from ppopt import (
    InputError,
    NotApplicableError,
    Objective,
    Pipeline,
    Schedule,
    Status,
    evaluate,
    solve,
    verify,
)
from ppopt.cancellation import scope
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.operation import OpKind
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.schedule.list_scheduling import one_at_a_time
from ppopt.schedule.orders import split_whole
from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver import search as solving
from ppopt.solver import warm_start as hints
from ppopt.solver.bound import Bound
from ppopt.solver.bounds.device_bounds import minimum_memory
from ppopt.solver.heuristics.construction import initial_schedules
from ppopt.solver.heuristics.repair import repair
from ppopt.solver.options import SolveOptions
from ppopt.strategies import Options, registry
from ppopt.strategies.base import ADAPTIVE_SECONDS
from tests.cli.cli_json import FLAG, LIST, NUMBER, OF_SOLVE, assert_types
from tests.cli.cli_run import done, json_of, run
from tests.factories import schedules
from tests.factories.instances import tiny_cases
from tests.factories.tables import besides_of, changed
from tests.verifier.verify_fixtures import schedule_of

UNIT = Pipeline(stages=4, batches=8)


def split(pipeline: Pipeline) -> Problem:
    return Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the hint: the search itself finds no schedule and no bound."""
    monkeypatch.setattr(solving.Search, "_run_turns", lambda *_: None)


def slow() -> Schedule:
    """Two microbatches on one device, F B W each, with idle time: 8 where 6 would do."""
    return schedule_of(
        Pipeline(stages=1, batches=2),
        "0: 0F0@0..1 0B0@1..2 0W0@2..3 0F1@4..5 0B1@6..7 0W1@7..8",
    )


def test_by_how_much_a_hand_strategy_can_be_bettered() -> None:
    """1F1B takes 3 (8 + 3) = 33, the optimum 3 + 8 x 3 = 27."""
    result = solve(UNIT, mem_limit=4, hint=evaluate(UNIT, "1f1b"))
    assert (result.status, result.value, result.gain) == (Status.OPTIMAL, 27, 6 / 27)
    assert result.hint.value == 33
    assert result.hint.peak_memory == (4, 3, 2, 1)
    assert result.hint.fits_limit
    assert result.hint.notes == (hints.SPLIT,)


def test_an_optimal_hint_cannot_be_bettered() -> None:
    best = solve(UNIT, mem_limit=4).schedule
    result = solve(UNIT, mem_limit=4, hint=best)
    assert (result.gain, result.value) == (0, 27)
    assert result.hint.notes == ()


def test_without_a_hint_there_is_no_gain() -> None:
    result = solve(UNIT)
    assert (result.hint, result.gain) == (None, None)
    assert result.origin().hint is None


@pytest.mark.usefixtures("alone")
def test_idle_time_of_a_hint_counts_against_it() -> None:
    result = solve(slow().pipeline, hint=slow())
    assert (result.hint.value, result.value, result.gain) == (8, 6, 1 / 3)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("objective", Objective)
def test_never_worse_than_a_hint_that_fits(objective: Objective) -> None:
    """Whatever the search finds: here it finds nothing at all."""
    idle = 0
    for seed, case in enumerate(tiny_cases(seed=41, count=15, mem_limit=None)):
        kind = "fused" if case.fused else "split"
        schedule = schedules.build(case.pipeline, Random(seed), kind)
        limits = schedules.limited(schedule, schedules.peaks(schedule)).pipeline
        result = solve(
            limits,
            objective=objective,
            backward_kind=case.backward_kind,
            hint=schedule,
        )
        assert result.hint.fits_limit
        assert result.hint.notes == ()
        assert result.value <= result.hint.value
        idle += result.gain > 0
    assert 2 < idle < 15


@pytest.mark.usefixtures("alone")
def test_other_times_keep_the_order() -> None:
    """1F1B with F = 2 and BW = 4 takes twice its 33."""
    twice = replace(UNIT, forward=2, backward=4, weight=2, backward_input=None)
    result = solve(twice, backward_kind="whole", hint=evaluate(UNIT, "1f1b"))
    assert result.value == result.hint.value == 66
    assert result.hint.notes == (hints.RETIMED,)


def test_other_speeds_of_devices_change_the_times() -> None:
    """Both pipelines have the same ticks and costs at speed 1; 1F1B takes 6.5 and 7.5."""
    before, after = (Pipeline(stages=2, batches=2, device_speed=pair) for pair in ([1, 2], [2, 1]))
    result = solve(after, backward_kind="whole", hint=evaluate(before, "1f1b"), workers=1)
    assert result.hint is not None and result.hint.notes == (hints.RETIMED,)
    assert result.hint.value == evaluate(after, "1f1b").makespan


@pytest.mark.usefixtures("alone")
def test_other_memory_is_that_of_the_search() -> None:
    heavy = replace(UNIT, activation=3, mem_limit=12)
    result = solve(heavy, backward_kind="whole", hint=evaluate(UNIT, "1f1b"))
    assert result.hint.peak_memory == (12, 9, 6, 3)
    assert result.hint.notes == (hints.OTHER_MEMORY,)
    assert result.value == 33


@pytest.mark.usefixtures("alone")
def test_a_hint_without_an_operation_that_memory_brings_is_timed_again() -> None:
    """Gathered weights are held until a GRADIENT_SYNC, which the hint does not have."""
    plain = Pipeline(stages=2, batches=2, forward=2, activation=2, unshard=[1, 0])
    hint = solve(plain, workers=1).schedule
    result = solve(replace(plain, unshard_memory=1), hint=hint, workers=1)
    assert result.schedule is not None and len(besides_of(result.schedule)) == 4
    assert result.hint is not None and hints.RETIMED in result.hint.notes


def test_split_backwards_are_made_whole_where_all_must_be() -> None:
    """Every BW at the place of its B: F F F BW F BW .. on device 0, that is 1F1B's order."""
    schedule = evaluate(UNIT, "zb-h1")
    result = solve(UNIT, backward_kind="whole", hint=schedule)
    assert result.hint.notes == (hints.JOINED,)
    assert set(result.schedule.kind) == {OpKind.F, OpKind.BW}
    assert result.value == 33


def test_over_the_limit_it_is_followed_as_far_as_the_limit_allows() -> None:
    """3 of 4 activations: 1F1B is over the limit, and still takes less than the best within it."""
    result = solve(UNIT, mem_limit=2, hint=evaluate(UNIT, "1f1b"), workers=1)
    assert not result.hint.fits_limit
    assert result.hint.notes == (hints.SPLIT, hints.OVER)
    assert result.schedule is not None
    assert verify(result.schedule) == []
    assert result.gain is not None
    assert result.gain == float(33 / result.value - 1) < 0


def test_nothing_is_followed_where_no_schedule_is() -> None:
    result = solve(UNIT, mem_limit=0, hint=evaluate(UNIT, "zb-1p"))
    assert result.status == "infeasible"
    assert (result.hint.fits_limit, result.hint.notes) == (False, ())


@pytest.mark.usefixtures("alone")
def test_over_the_limit_alone_it_gives_a_schedule_within_it() -> None:
    """With room for one, one microbatch after the other is all there is: 8 x (4 F + 4 B + W)."""
    for limit, minimum in ((1, 72), (3, 27)):
        result = solve(UNIT, mem_limit=limit, hint=evaluate(UNIT, "zb-2p"))
        assert max(result.schedule.metrics.peak_memory_ticks) <= limit
        assert result.value >= minimum
        assert limit != 1 or result.value == 72


def test_any_order_can_be_followed_within_any_limit_that_works() -> None:
    """Unless a B of no length allocates memory."""
    over = 0
    for seed, case in enumerate(tiny_cases(seed=43, count=40, memory_b=0)):
        kind = "fused" if case.fused else "split"
        schedule = schedules.build(case.pipeline, Random(seed), kind)
        minimum = minimum_memory(Instance.uniform(case.pipeline, fused=case.fused))
        tight = schedules.limited(schedule, minimum)
        orders = repair(tight, Instance.uniform(tight.pipeline, fused=case.fused))
        assert orders is not None, case
        timed = timing.schedule(tight.pipeline, orders)
        assert verify(timed) == [], case
        over += not tight.fits_limits
    assert over > 12


def test_orders_can_be_followed_where_b_and_w_take_memory_too() -> None:
    """Several stages per device, B of either sign, workspace: one at a time always fits."""
    rng, over = Random(1), 0
    for _ in range(40):
        size = rng.randint(1, 3)
        pipeline = Pipeline(
            stages=size,
            chunks=2,
            placement=rng.choice(["v", "interleaved"]),
            batches=rng.randint(2, 5),
            forward=[rng.randint(1, 3) for _ in range(size)],
            backward_input=rng.randint(1, 3),
            weight=rng.randint(1, 3),
            activation=2,
            memory_b=rng.choice([-1, 0, 2]),
            workspace=rng.choice([0, 1, 3]),
            weight_workspace=rng.choice([0, 1, 4]),
        )
        instance = Instance(pipeline, BackwardKind.SPLIT)
        alone = timing.schedule(pipeline, one_at_a_time(instance)).metrics.peak_memory_ticks
        limit = Fraction(max(alone), pipeline.ticks.memory_per_unit)
        tight = replace(
            schedules.build(pipeline, rng, "split"), pipeline=replace(pipeline, mem_limit=limit)
        )
        orders = repair(tight, Instance(tight.pipeline, BackwardKind.SPLIT))
        assert orders is not None, pipeline
        assert verify(timing.schedule(tight.pipeline, orders)) == [], pipeline
        over += not tight.fits_limits
    assert over > 20


def test_what_fits_is_followed_to_the_letter_where_nothing_waits() -> None:
    """An eager schedule of a pipeline whose operations come in turn."""
    schedule = timing.schedule(UNIT, split_whole(UNIT, evaluate(UNIT, "gpipe").orders))
    orders = repair(schedule, Instance(UNIT, BackwardKind.SPLIT))
    assert orders is not None
    assert timing.schedule(UNIT, orders).makespan == schedule.makespan == 30


def test_neither_following_nor_strategies_take_beyond_the_time_of_a_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that are slow on long runs are not begun; the others are, as long as there is time.

    The clock stands still.
    """
    schedule = timing.schedule(UNIT, split_whole(UNIT, evaluate(UNIT, "gpipe").orders))
    past, now = time.monotonic(), time.monotonic()
    with scope(past) as entered:
        repair(schedule, Instance(UNIT, BackwardKind.SPLIT))
    assert entered.ended
    monkeypatch.setattr(time, "monotonic", lambda: now)
    long = Pipeline(stages=4, batches=200)
    tried = len(list(initial_schedules(split(long))))
    slow = [name for name, strategy in registry().items() if strategy.adaptive]
    with scope(now + 0.999 * ADAPTIVE_SECONDS * long.num_codes):
        assert len(list(initial_schedules(split(long)))) == tried - len(slow) > 10
    with scope(now):
        assert len(list(initial_schedules(split(long)))) == 1


@pytest.mark.parametrize(
    "pipeline",
    [
        Pipeline(stages=4, batches=6),
        Pipeline(stages=4, batches=6, forward=[3, 1, 2, 1], p2p=1, mem_limit=3),
        Pipeline(stages=4, batches=6, chunks=2),
        Pipeline(stages=4, batches=6, chunks=2, placement="v", mem_limit="1f1b"),
        Pipeline(stages=4, batches=6, placement=[1, 0, 3, 2]),
        Pipeline(stages=4, batches=6, placement=[0, 1, 1, 0], overlap=3),
        Pipeline(stages=1, batches=2, chunks=2),
        Pipeline(stages=4, batches=6, routes=2),
        Pipeline(stages=4, batches=6, slices=2),
    ],
)
def test_a_search_starts_from_every_strategy_of_its_layout(pipeline: Pipeline) -> None:
    """Without a limit, which has no say in an order."""
    expected = []
    for strategy in registry().values():
        try:
            own = strategy.apply(pipeline, Options())
            orders = strategy.built(own, Options())
        except NotApplicableError:
            continue
        if own.layout == pipeline.layout:
            expected.append(split_whole(pipeline, orders))
    _, *starts = (each.orders for each in initial_schedules(split(pipeline)) if each is not None)
    assert len(starts) == len(expected) > 0
    rows = ([[order.tolist() for order in each] for each in own] for own in (starts, expected))
    assert sorted(next(rows)) == sorted(next(rows))


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        (Pipeline(stages=4, batches=6), "8 microbatches, not 6"),
        (Pipeline(stages=3, batches=8), "4 devices, not 3"),
        (Pipeline(stages=4, batches=8, chunks=2), "4 stages, not 8"),
        (Pipeline(stages=4, batches=8, routes=2), "1 routes, not 2"),
        (Pipeline(stages=4, batches=8, placement=[3, 2, 1, 0]), "stage 0 sits on device 0, not 3"),
    ],
)
def test_a_hint_of_another_pipeline_is_refused(pipeline: Pipeline, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        solve(pipeline, hint=evaluate(UNIT, "1f1b"))
    assert str(caught.value).startswith("hint: it is of another p")


def test_a_hint_that_breaks_a_rule_is_refused() -> None:
    hint = slow()
    early = changed(hint, start=hint.start - (hint.start == 4))
    with pytest.raises(InputError, match=r"hint: duration: .*`ppopt verify` lists all"):
        solve(hint.pipeline, hint=early)


@pytest.mark.usefixtures("alone")
def test_a_bound_known_before_counts() -> None:
    """Proved at a larger limit, say: 72 for one microbatch at a time is 8 x (4 F + 4 B + W)."""
    problem = Problem(replace(UNIT, mem_limit=1), Objective.MAKESPAN, BackwardKind.SPLIT)
    hint = hints.read_hint(problem, evaluate(UNIT, "zb-h1"))
    known = Bound(72, "proved before", Certificate(Argument.SEARCH))
    options = SolveOptions(time.monotonic(), 60)
    for bound, status in ((None, Status.FEASIBLE), (known, Status.OPTIMAL)):
        result = solving.search_from(hints.WarmStart(hint, bound=bound), problem, options)
        assert (result.value, result.status) == (72, status)
    assert result.proof == "proved before"


class TestCommand:
    def test_json(self, tmp_path: Path) -> None:
        done("eval 1f1b --stages 4 --batches 8 --quiet -o", tmp_path / "a.json")
        line = "solve --stages 4 --batches 8 --mem-limit --hint"
        output = json_of(line, tmp_path / "a.json", "-o", tmp_path / "b.json")
        hint = output.pop("hint")
        assert_types(output, OF_SOLVE)
        assert_types(
            hint,
            {
                "value": NUMBER,
                "gain": NUMBER,
                "fits_limit": FLAG,
                "peak_memory": LIST,
                "notes": LIST,
            },
        )
        assert (hint["value"], hint["gain"]) == (33, 6 / 27)
        assert json.loads((tmp_path / "b.json").read_text())["origin"]["hint"] == hint

    def test_words(self, tmp_path: Path) -> None:
        done("eval 1f1b --stages 4 --batches 8 --quiet -o", tmp_path / "a.json")
        ran = done("solve --hint", tmp_path / "a.json", "-o", tmp_path / "a.html")
        assert "33; this schedule has 22.2 % more throughput" in ran.out
        tile = '<dd class="value">33</dd><dd class="note">this schedule has 22.2\u00a0%'
        assert tile in (tmp_path / "a.html").read_text()
        ran = done("solve --fused --mem-limit --hint", tmp_path / "a.json")
        assert "33; no schedule is better" in ran.out
        ran = done("solve --workers 1 --mem-limit 2 --hint", tmp_path / "a.json")
        assert "33, but with peak memory 4;" in " ".join(ran.out.split())

    def test_without_flags_the_pipeline_is_that_of_the_hint(self, tmp_path: Path) -> None:
        times = "--forward-times 1,2 --p2p-time 0.5"
        done(f"eval 1f1b --stages 2 --batches 3 {times} --quiet -o", tmp_path / "a.json")
        own = json_of("solve --hint", tmp_path / "a.json")
        named = json_of(f"solve --stages 2 --batches 3 {times} --hint", tmp_path / "a.json")
        assert own["value"] == named["value"]
        assert own["mem_limit"] is None
        assert json_of("solve --mem-limit --hint", tmp_path / "a.json")["mem_limit"] == [2, 2]

    def test_an_order_of_pytorch(self, tmp_path: Path) -> None:
        """Its pipeline is that of the order, timed by the flags: 1F1B takes 2 x 33 here."""
        done("eval 1f1b --stages 4 --batches 8 --quiet -o", tmp_path / "a.csv")
        times = "--forward-times 2 --mem-limit 4"
        for flags in (times, f"--stages 4 --batches 8 {times}"):
            output = json_of(f"solve {flags} --hint", tmp_path / "a.csv")
            assert (output["hint"]["value"], output["value"]) == (66, 54)
        ran = run("solve --stages 4 --batches 6 --hint", tmp_path / "a.csv")
        assert (ran.code, ran.out) == (2, "")
        assert "8 microbatches" in ran.err

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("solve --hint", "none.json: cannot be read"),
            ("solve --stages 2 --batches 2 --hint", "none.json: cannot be read"),
        ],
    )
    def test_refused(self, line: str, message: str, tmp_path: Path) -> None:
        ran = run(line, tmp_path / "none.json")
        assert (ran.code, ran.out) == (2, "")
        assert message in ran.err
