"""The headline of a comparison and of a plan: what the user runs, what a runtime runs, the best."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppopt import (
    InputError,
    Layer,
    Model,
    NotApplicableError,
    Objective,
    Options,
    Origin,
    Pipeline,
    Plan,
    Schedule,
    compare,
    evaluate,
    plan,
    solve,
    verify,
)
from ppopt.formats.schedule_json import dumps, loads
from ppopt.problem.grid import Grid
from ppopt.report.headline_table import describe_headline, headline_section
from ppopt.studies.compare import Comparison
from ppopt.studies.current_schedule import can_start_from, current_schedule, parse_strategy
from ppopt.studies.evaluate import objective_value
from ppopt.studies.headline import (
    BEST,
    CURRENT,
    OPTIMUM,
    RUNNABLE,
    BestSchedule,
    Headline,
    changed_decisions,
    headline,
    runs_on,
)
from tests.clock import work_clock

SPAN = Objective.MAKESPAN
UNEQUAL = Pipeline(stages=3, batches=5, forward=[2, 3, 4], p2p=1)
"""Three stages of different lengths: 1F1B is not optimal."""
EVEN = Pipeline(stages=2, batches=4, forward=[2, 3], p2p=1)
"""Two stages, so that strategies of two routes apply."""
TOY = Model(
    [Layer(forward=time, activation=4, recompute_time=1, kept=1) for time in (3, 1, 4, 1, 5, 2, 2)],
    name="toy",
)
"""Seven layers of different lengths, each of which may recompute."""


class Study(NamedTuple):
    """Schedules of a study, one of them the best, and a current schedule."""

    current: Schedule | None
    schedules: list[Schedule]
    lower_bound: Fraction | None


def labels(result: Headline) -> list[str]:
    return [row.label for row in result.rows]


def on(pipeline: Pipeline, strategy: str) -> Schedule:
    return evaluate(replace(pipeline, placement=None, chunks=None), strategy)


# The rows.


@st.composite
def studies(draw: st.DrawFn) -> Study:
    """Some strategies of a tiny pipeline, in any number of microbatches."""
    pipeline = replace(EVEN, batches=draw(st.sampled_from((4, 6))))
    names = st.sampled_from(("1f1b", "gpipe", "zb-h1", "zbv", "interleaved", "dualpipe"))
    schedules = [on(pipeline, name) for name in draw(st.lists(names, min_size=1, unique=True))]
    current = None
    if draw(st.booleans()):
        current = on(replace(EVEN, batches=draw(st.sampled_from((4, 6)))), draw(names))
    bound = draw(st.none() | st.fractions(0, 1))
    best = min(objective_value(schedule, SPAN) for schedule in schedules)
    return Study(current, schedules, None if bound is None else bound * best)


@settings(max_examples=40, deadline=None)
@given(studies())
def test_gains_are_those_of_the_exact_times_per_microbatch(study: Study) -> None:
    """Rows come in their order, each with the throughput over that of the first."""
    best = min(study.schedules, key=lambda schedule: objective_value(schedule, SPAN))
    result = headline(
        study.current, study.schedules, BestSchedule(best, study.lower_bound), SPAN, "torch"
    )
    proved = study.lower_bound == objective_value(best, SPAN)
    runs = any(runs_on("torch", schedule) for schedule in study.schedules)
    assert labels(result) == [
        *([] if study.current is None else [CURRENT]),
        *([RUNNABLE["torch"]] if runs else []),
        OPTIMUM if proved else BEST,
    ]
    for index, row in enumerate(result.rows):
        assert row.value == objective_value(row.schedule, SPAN)
        if study.current is None or row.label == CURRENT:
            assert row.gain is None
        else:
            rates = [
                schedule.pipeline.batches / objective_value(schedule, SPAN)
                for schedule in (row.schedule, study.current)
            ]
            assert row.gain == pytest.approx(float(rates[0] / rates[1] - 1))
        above = None if index == 0 else result.rows[index - 1].schedule
        assert row.changes == (() if above is None else changed_decisions(above, row.schedule))
    if result.runnable is not None:
        runnable = [schedule for schedule in study.schedules if runs_on("torch", schedule)]
        assert result.runnable.value == min(objective_value(each, SPAN) for each in runnable)
        assert result.runnable.value >= objective_value(best, SPAN)


def test_the_best_schedule_is_the_one_that_runs_if_it_can() -> None:
    """Of equal values the searched schedule comes first, and nothing changes below it."""
    pipeline = replace(UNEQUAL, batches=4)
    schedules = [on(pipeline, "1f1b"), on(pipeline, "1f1b")]
    value = objective_value(schedules[1], SPAN)
    result = headline(None, schedules, BestSchedule(schedules[1], value), SPAN)
    assert result.runnable is not None and result.best is not None
    assert result.runnable.schedule is schedules[1]
    assert result.runnable.proved and result.best.proved
    assert result.best.changes == ()


def test_a_bound_over_more_schedules_proves_less() -> None:
    schedule = on(replace(UNEQUAL, batches=4), "1f1b")
    value = objective_value(schedule, SPAN)
    result = headline(None, [], BestSchedule(schedule, value), SPAN)
    assert result.within_bound(value) is result
    for bound in (value - 1, None):
        wider = result.within_bound(bound)
        assert labels(wider) == [RUNNABLE["torch"], BEST]
        assert not any(row.proved for row in wider.rows)
        assert wider.best is not None and wider.best.lower_bound == bound


def test_only_a_row_below_another_is_the_same_schedule() -> None:
    """Without a current schedule the first row changes nothing, either."""
    schedule = on(replace(UNEQUAL, batches=4), "1f1b")
    rows = headline(None, [], BestSchedule(schedule, None), SPAN)
    _, _, *lines = describe_headline(rows)
    assert lines == [""]
    assert headline_section(rows).count("same schedule") == 1


def test_two_routes_run_on_no_runtime_and_megatron_runs_its_own_orders() -> None:
    pipeline = Pipeline(stages=4, batches=8)
    schedules = {name: on(pipeline, name) for name in ("1f1b", "zbv", "interleaved", "dualpipe")}
    runs = {
        runtime: {name for name, schedule in schedules.items() if runs_on(runtime, schedule)}
        for runtime in ("torch", "megatron")
    }
    assert runs == {"torch": {"1f1b", "zbv", "interleaved"}, "megatron": {"1f1b", "interleaved"}}
    result = headline(None, [schedules["dualpipe"]], None, SPAN)
    assert result.rows == ()


def test_pytorch_does_not_run_a_pair_of_stated_duration() -> None:
    """It runs the two one after the other, which takes longer than the schedule says."""
    pairs = evaluate(Pipeline(stages=2, batches=4, overlap=2), "1f1b-overlap")
    sums = evaluate(Pipeline(stages=2, batches=4), "1f1b-overlap")
    assert not runs_on("torch", pairs)
    assert runs_on("torch", sums)


# What differs.


def test_every_decision_that_differs_is_named() -> None:
    """One schedule after the other differs from the one before in these decisions."""
    base = TOY.pipeline(devices=2, batches=4)
    steps: list[tuple[Pipeline, str, tuple[str, ...]]] = [
        (base, "1f1b", ()),
        (base, "gpipe", ("order",)),
        (replace(base, partition=(2, 5)), "gpipe", ("partition",)),
        (replace(base, partition=(2, 5), recompute="full"), "gpipe", ("recompute",)),
        (
            replace(base, batches=5, recompute="full"),
            "interleaved",
            ("microbatches", "placement", "chunks", "partition", "order"),
        ),
        (replace(base, batches=5, recompute="full"), "zbv", ("placement", "order")),
        (
            replace(base, batches=6),
            "dualpipe",
            ("microbatches", "placement", "chunks", "routes", "partition", "recompute", "order"),
        ),
    ]
    schedules = [evaluate(pipeline, name) for pipeline, name, _ in steps]
    before = schedules[0]
    for schedule, (_, name, expected) in zip(schedules, steps, strict=True):
        assert changed_decisions(before, schedule) == expected, name
        before = schedule


def test_the_name_of_a_placement_alone_is_no_change() -> None:
    """Interleaved stages, one per device, sit where linear ones do."""
    linear = evaluate(Pipeline(stages=2, batches=2), "1f1b")
    listed = evaluate(Pipeline(stages=2, batches=2, placement=(0, 1)), "1f1b")
    assert changed_decisions(linear, listed) == ()


# The current schedule.


def test_a_strategy_may_have_its_partition_chunks_and_recompute() -> None:
    assert parse_strategy("1F1B") == ("1f1b", {})
    text = "interleaved chunks=2 partition=2,1,1,1,1,1 recompute=full"
    assert parse_strategy(text) == (
        "interleaved",
        {"chunks": 2, "partition": [2, 1, 1, 1, 1, 1], "recompute": "full"},
    )
    assert parse_strategy("1f1b partition=tt|t*3|tt").settings == {"partition": "tt|t*3|tt"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "strategy: '' is unknown"),
        ("1f2b", "did you mean 1f1b"),
        ("1f1b chunk=2", "'chunk=2' does not follow a strategy; did you mean chunks=...?"),
        ("1f1b partition", "'partition' names no value; write partition=VALUE"),
        ("1f1b partition=search", "names no value"),
        ("1f1b chunks=two", "chunks: 'two' is not a whole number"),
        ("1f1b recompute=some", "recompute: 'some' is unknown"),
    ],
)
def test_what_is_no_strategy_is_an_error_of_one_line(text: str, message: str) -> None:
    pipeline = TOY.pipeline(devices=3, batches=4)
    with pytest.raises(InputError) as error:
        current_schedule(text, pipeline, SPAN)
    assert str(error.value).startswith("given: ") and message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1f1b partition=2,5", "given: partition: has 2 stages, the placement 3"),
        ("1f1b chunks=2", "given: chunks: 2 contradicts strategy 1f1b"),
    ],
)
def test_a_strategy_that_does_not_apply_is_an_error_of_one_line(text: str, message: str) -> None:
    with pytest.raises(NotApplicableError, match=message) as error:
        current_schedule(text, TOY.pipeline(devices=3, batches=4), SPAN)
    assert "\n" not in str(error.value)


def test_a_strategy_is_evaluated_with_what_the_text_says() -> None:
    open_pipeline = TOY.pipeline(devices=3, batches=4, partition="search", recompute="search")
    closed = TOY.pipeline(devices=3, batches=4, partition=(2, 2, 3), recompute="full")
    schedule = current_schedule("1f1b partition=2,2,3 recompute=full", open_pipeline, SPAN)
    assert schedule == evaluate(closed, "1f1b")
    interleaved = current_schedule(
        "interleaved chunks=2", open_pipeline, SPAN, Options(group_size=4)
    )
    assert interleaved is not None and interleaved.pipeline.num_chunks == 2
    assert interleaved.origin.options == {"group_size": 4}


def test_the_default_is_1f1b_within_the_limit_if_recompute_allows_it() -> None:
    balanced = evaluate(TOY.pipeline(devices=3, batches=4), "1f1b")
    recomputing = evaluate(TOY.pipeline(devices=3, batches=4, recompute="full"), "1f1b")
    for limit, recompute, expected in (
        (max(balanced.peak_memory), "search", balanced),
        (max(recomputing.peak_memory), "search", recomputing),
        (max(recomputing.peak_memory), None, balanced),
        (1, "search", balanced),
    ):
        pipeline = TOY.pipeline(
            devices=3, batches=4, mem_limit=limit, partition="search", recompute=recompute
        )
        schedule = current_schedule(None, pipeline, SPAN)
        assert schedule is not None
        assert schedule.pipeline.recomputed == expected.pipeline.recomputed
        assert schedule.makespan == expected.makespan


def test_the_default_is_balanced_if_the_partition_is_of_other_stages() -> None:
    pipeline = TOY.pipeline(
        devices=3, batches=4, placement="v", chunks=2, partition=(1, 1, 1, 1, 1, 2)
    )
    schedule = current_schedule(None, pipeline, SPAN)
    assert schedule == evaluate(TOY.pipeline(devices=3, batches=4), "1f1b")


def test_there_is_no_default_where_1f1b_does_not_apply() -> None:
    listed = Pipeline(stages=4, batches=4, placement=(0, 1, 1, 0))
    assert current_schedule(None, listed, SPAN) is None
    with pytest.raises(NotApplicableError, match="given: placement"):
        current_schedule("1f1b", listed, SPAN)


# A schedule of a file.


def stored(schedule: Schedule) -> Schedule:
    """The schedule as its file has it."""
    return loads(dumps(schedule), "a.json")[0]


@pytest.mark.parametrize("strategy", ["1f1b", "interleaved", "zbv", "dualpipe", "seq-1f1b"])
@pytest.mark.parametrize("model", [None, TOY])
def test_a_file_has_the_costs_and_limits_of_the_study(strategy: str, model: Model | None) -> None:
    """Figures, placement and partition are its own; what its file claims is dropped."""
    pipeline = EVEN if model is None else model.pipeline(devices=2, batches=4)
    own = evaluate(pipeline, strategy)
    study = replace(pipeline, mem_limit=1, name="study")
    schedule = current_schedule(stored(own), study, SPAN)
    assert schedule is not None and not schedule.fits_limits
    assert (schedule.makespan, schedule.peak_memory) == (own.makespan, own.peak_memory)
    assert schedule.pipeline.layout == own.pipeline.layout
    assert schedule.pipeline.counts == own.pipeline.counts
    assert changed_decisions(own, schedule) == ()
    assert schedule.pipeline.name == "study" and schedule.origin.strategy == strategy
    assert verify(schedule, enforce_limit=False) == []


def test_partition_and_recompute_of_a_file_are_its_own() -> None:
    closed = TOY.pipeline(devices=3, batches=4, partition=(2, 2, 3), recompute="full")
    study = TOY.pipeline(devices=3, batches=4, partition="search", recompute="search")
    schedule = current_schedule(stored(evaluate(closed, "zb-h1")), study, SPAN)
    assert schedule is not None
    assert schedule.pipeline.counts == (2, 2, 3)
    assert schedule.pipeline.recomputed == (2, 2, 3)


def test_a_file_with_starts_between_the_ticks_keeps_them() -> None:
    base = evaluate(Pipeline(stages=1, batches=1, forward=1, backward=2), "1f1b")
    finer = replace(base.pipeline, grid=Grid(2, 1))
    late = Schedule.from_rows(finer, [(0, 0, 0, 0, 0, 2), (3, 0, 0, 0, 3, 7)], base.origin)
    schedule = current_schedule(stored(late), base.pipeline, SPAN)
    assert schedule is not None
    assert objective_value(schedule, SPAN) == Fraction(7, 2)
    assert not can_start_from(schedule)


def test_a_measured_step_keeps_its_own_times() -> None:
    """Its operations run in the order of the rules, but each takes its own time."""
    pipeline = Pipeline(stages=1, batches=1, forward=1, backward=2)
    rows = [(0, 0, 0, 0, 0, 3), (3, 0, 0, 0, 3, 7)]
    step = Schedule.from_rows(pipeline, rows, Origin(strategy="measured"))
    schedule = current_schedule(stored(step), pipeline, SPAN)
    assert schedule is not None and schedule.makespan == 7
    assert not can_start_from(schedule)
    with pytest.raises(InputError, match="it is no schedule of this pipeline: duration"):
        current_schedule(replace(step, origin=Origin(strategy="1f1b")), pipeline, SPAN)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batches": 6}, "microbatches 5, not 6"),
        ({"stages": 4}, "devices 3, not 4"),
        ({"time_unit": "ms"}, "unit of time None, not ms"),
        ({"forward": 3}, "it is no schedule of this pipeline: duration"),
        ({"p2p": 9}, "it is no schedule of this pipeline: forward-order"),
    ],
)
def test_a_file_of_another_pipeline_is_an_error(changes: dict[str, object], message: str) -> None:
    schedule = stored(evaluate(Pipeline(stages=3, batches=5, forward=2, p2p=1), "1f1b"))
    pipeline = Pipeline(**{"stages": 3, "batches": 5, "forward": 2, "p2p": 1} | changes)
    with pytest.raises(InputError, match="given: ") as error:
        current_schedule(schedule, pipeline, SPAN)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_file_of_another_model_is_an_error() -> None:
    schedule = stored(evaluate(TOY.pipeline(devices=3, batches=5), "1f1b"))
    longer = Model([*TOY.layers[:-1], replace(TOY.layers[-1], activation=5)])
    for pipeline in (longer.pipeline(devices=3, batches=5), replace(UNEQUAL, batches=5)):
        with pytest.raises(InputError, match="given: it is of another model"):
            current_schedule(schedule, pipeline, SPAN)


# Comparisons and plans.


def compared(**more: object) -> Comparison:
    with work_clock():
        return compare(UNEQUAL, workers=1, time_limit=20, **more)  # type: ignore[arg-type]


def test_a_comparison_opens_with_1f1b_and_the_optimum() -> None:
    result = compared(strategies=["1f1b", "zb-h1"], mem_limit="1f1b")
    rows = result.headline.rows
    assert [row.label for row in rows] == [CURRENT, RUNNABLE["torch"], OPTIMUM]
    assert rows[0].schedule.origin.strategy == "1f1b"
    assert rows[2].value == rows[2].lower_bound == result.optimum.value
    assert rows[1].schedule is rows[2].schedule and rows[2].changes == ()


def test_a_strategy_of_a_placement_that_is_not_searched_is_no_optimum() -> None:
    result = compared(strategies=["zbv"])
    best = result.headline.best
    assert best is not None and best.schedule.origin.strategy == "zbv"
    assert best.label == BEST and best.lower_bound is None


def test_an_optimum_of_split_backwards_bounds_no_whole_ones() -> None:
    """Where BW is shorter than B + W, 1F1B may be better than all that split."""
    pipeline = Pipeline(stages=2, batches=4, forward=1, backward=1, backward_input=1, weight=1)
    with work_clock():
        result = compare(
            pipeline, strategies=["1f1b"], backward_kind="split", workers=1, time_limit=20
        )
    best = result.headline.best
    assert best is not None and best.schedule.origin.strategy == "1f1b"
    assert best.label == BEST and best.lower_bound is None


def test_a_search_starts_from_the_current_schedule() -> None:
    """No time is left to find it: without it the best row is worse."""
    pipeline = replace(UNEQUAL, batches=6, mem_limit=3)
    with work_clock():
        optimum = solve(pipeline, workers=1, time_limit=60).schedule
        assert optimum is not None
        result = compare(
            pipeline, strategies=["gpipe"], current=optimum, workers=1, time_limit=0.001
        )
    assert result.headline.current is not None and result.headline.best is not None
    assert result.headline.best.value <= result.headline.current.value
    assert result.optimum.hint is not None


def planned(**more: object) -> Plan:
    """A plan of three layers on two devices that is proved at once."""
    model = Model([Layer(forward=1, activation=4)] * 3, name="three")
    with work_clock():
        return plan(model, devices=2, workers=1, time_limit=5, **more)  # type: ignore[arg-type]


def test_a_plan_opens_with_its_rows_and_starts_from_the_current_schedule() -> None:
    first = planned(batches=2, placement="linear", chunks=1)
    rows = first.headline.rows
    assert first.schedule is not None
    assert [row.label for row in rows] == [CURRENT, RUNNABLE["torch"], OPTIMUM]
    assert rows[2].schedule is first.schedule and rows[2].lower_bound == first.lower_bound
    second = planned(
        batches=(1, 2), placement="linear", chunks=1, current=stored(first.schedule)
    ).headline
    assert second.current is not None and second.current.value == first.value
    assert second.best is not None
    assert second.best.per_microbatch <= second.current.per_microbatch


def test_a_plan_without_time_is_no_worse_than_the_current_schedule() -> None:
    """Baselines with the balanced partition take half as long again within this limit."""
    pipeline = TOY.pipeline(devices=3, batches=6, partition=(2, 2, 3), mem_limit=21)
    with work_clock():
        optimum = solve(pipeline, workers=1, time_limit=60).schedule
        assert optimum is not None
        result = plan(
            TOY, devices=3, batches=6, mem_limit=21, placement="linear", chunks=1,
            recompute="none", current=optimum, workers=1, time_limit=0.001,
        ).headline  # fmt: skip
    assert result.current is not None and result.best is not None
    assert result.current.value == objective_value(optimum, SPAN)
    assert result.best.value <= result.current.value


def test_a_plan_of_baselines_names_what_runs_and_no_optimum() -> None:
    """It is proved of these baselines alone: other orders may be better."""
    best_plan = planned(batches=2, runtime="megatron")
    result = best_plan.headline
    assert best_plan.status == "optimal"
    assert result.runtime == "Megatron-LM"
    assert result.runnable is not None and result.best is not None
    assert result.runnable.schedule is result.best.schedule
    assert result.best.label == BEST and result.best.lower_bound is None


def test_a_plan_refuses_a_current_schedule_of_other_microbatches() -> None:
    schedule = evaluate(TOY.pipeline(devices=2, batches=5), "1f1b")
    with pytest.raises(InputError, match="given: it is of another pipeline: microbatches 5, not 4"):
        plan(TOY, devices=2, batches=(4, 6), current=schedule)
