"""The summary: one fact a line, four significant digits, and no value better than it is."""

from __future__ import annotations

from dataclasses import replace
from decimal import ROUND_CEILING, ROUND_FLOOR
from fractions import Fraction

import pytest

import ppopt
from ppopt import Model
from ppopt.problem.decisions import Decisions
from ppopt.problem.grid import Grid
from ppopt.report.bottleneck import describe_bottleneck
from ppopt.report.numbers import percent, significant
from ppopt.report.plan_objects import report_plan
from ppopt.report.plan_table import plan_columns
from ppopt.report.schedule_report import ScheduleReport, report_evaluation
from ppopt.report.search_text import describe_imbalance
from ppopt.report.summary import describe_size, describe_title, summary_table
from ppopt.schedule.imbalance import Imbalance
from ppopt.schedule.origin import Argument, Certificate
from ppopt.studies.best_choice import best_choice
from ppopt.studies.evaluate import evaluate
from tests.report.test_table import ROW, SOLVED, SPREAD, printed

LIMITED = ppopt.Pipeline(stages=4, batches=8, mem_limit=4)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),  # noqa: RUF001
        (27, "27"),
        (0, "0"),
        (51790, "51,790"),
        (999_999, "999,999"),
        (1_234_567, "1,235,000"),
        (2635.066773, "2,635"),
        (37306.2, "37,310"),
        (0.5, "0.5"),
        (1 / 3, "0.3333"),
        (99.996, "100"),
        (0.000123456, "0.0001235"),
        (-1841.9, "-1,842"),
        (Fraction(5, 4), "1.25"),
        (1e300, "1" + ",000" * 100),
    ],
)
def test_four_significant_digits(value: float, text: str) -> None:
    assert significant(value) == text
    assert significant(value, "ms") == (text if value is None else f"{text} ms")


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0 %"),
        (1, "100 %"),
        (0.1332, "13.3 %"),
        (0.0029, "0.29 %"),
        (0.01, "1 %"),
        (0.00003, "less than 0.01 %"),
        (12.5, "1250 %"),
        (Fraction(1, 8), "12.5 %"),
    ],
)
def test_percentages(share: float, text: str) -> None:
    assert percent(share) == text


def test_bounds_are_rounded_to_the_side_that_claims_less() -> None:
    assert significant(2635.9, rounding=ROUND_FLOOR) == "2,635"
    assert significant(34.9601, "GiB", ROUND_CEILING) == "34.97 GiB"
    assert (percent(0.0921, ROUND_FLOOR), percent(0.0921, ROUND_CEILING)) == ("9.2 %", "9.3 %")
    assert percent(0.07, ROUND_CEILING) == "7 %"
    assert percent(1.162 - 1, ROUND_FLOOR) == "16.2 %"
    assert percent(0.00003, ROUND_CEILING) == "0.01 %"
    assert percent(0.00003, ROUND_FLOOR) == "less than 0.01 %"


def test_a_proved_result() -> None:
    assert printed(summary_table(SOLVED)) == [
        "status    optimal (proved)",
        "makespan  27; lower bound 27",
        "bubble    11.1 % of the makespan",
        "memory    peak 4 on device 0; limit 4",
    ]


def test_a_value_never_reads_better_than_its_bound() -> None:
    """2635.9 is 2,636 to the nearest; as a bound below the value it may only be 2,635."""
    exact = replace(SOLVED, value=2635.9, lower_bound=2635.9, time_unit="ms")
    assert printed(summary_table(exact))[1] == "makespan  2,636 ms; lower bound 2,636 ms"
    worse = replace(exact, lower_bound=2635.8, status="feasible", gap=0.1 / 2635.9)
    assert printed(summary_table(worse))[:2] == [
        "status    feasible, gap 0.01 %",
        "makespan  2,636 ms; lower bound 2,635 ms",
    ]


def gpipe_plan(model: Model, batches: int) -> ppopt.Plan:
    """A plan of GPipe alone on two devices."""
    return ppopt.plan(
        model, devices=2, batches=batches, placement="linear", chunks=1, strategies="gpipe",
        recompute="none", workers=1,
    )  # fmt: skip


def test_a_bound_that_equals_the_value_has_its_digits_in_a_plan() -> None:
    """3722.6 is 3,723 as a value, and 3,722 as a bound of more."""
    model = Model([{"forward": 1, "count": 2}])
    plan = gpipe_plan(model, batches=1)
    pipeline = replace(plan.pipeline, grid=Grid(10, 1))
    result = replace(plan.rows[0].result, pipeline=pipeline, schedule=None, value_ticks=37226)
    for bound, text in ((37226, "3,723"), (37225, "3,722")):
        row = replace(plan.rows[0], result=result, bound_ticks=bound)
        columns = plan_columns(replace(plan, rows=(row,)), exact=False)
        assert (columns["value"].cell(row), columns["bound"].cell(row)) == ("3,723", text)


def test_an_unproved_result_over_the_device_span() -> None:
    """A gap is rounded up."""
    report = replace(SOLVED, status="feasible", gap=0.0234, objective="device-span")
    assert printed(summary_table(report))[:3] == [
        "status       feasible, gap 2.4 %",
        "device span  27; lower bound 27",
        "bubble       11.1 % of the device span",
    ]
    nothing = replace(report, gap=1, lower_bound=0)
    assert printed(summary_table(nothing))[0] == "status       feasible, no useful lower bound"


def test_a_result_without_a_schedule() -> None:
    infeasible = ScheduleReport(status="infeasible", proof="device 2 needs 5")
    assert printed(summary_table(infeasible)) == [
        "status  infeasible (proved)",
        "reason  device 2 needs 5",
    ]
    assert printed(summary_table(ScheduleReport(status="unknown", lower_bound=20))) == [
        "status    unknown: no schedule was found within the time limit",
        "makespan  lower bound 20",
    ]


def test_a_baseline_claims_nothing() -> None:
    lines = printed(summary_table(replace(ROW, mem_limit=[2, 2, 3, 3], fits_limit=False)))
    assert lines[-1] == "memory    peak 4 on device 0; limits 2 to 3, over the limit"
    assert not any("optimal" in line for line in lines)
    equal = replace(ROW, peak_memory=[4, 4], memory_unit="GiB")
    assert printed(summary_table(equal))[-1] == "memory    peak 4 GiB on every device"


def test_a_search_without_a_limit_says_so() -> None:
    assert printed(summary_table(SOLVED))[-1].endswith("; limit 4")
    unlimited = printed(summary_table(replace(SOLVED, mem_limit=None)))
    assert unlimited[-1] == "memory    peak 4 on device 0; no limit"


def test_what_of_the_bubble_is_imbalance() -> None:
    share = Imbalance(3, (3,), 26 / 25, 37 / 1000, 3 / 27, None)
    lines = printed(summary_table(replace(SOLVED, imbalance=share)), 200)
    assert lines[2] == (
        "bubble    11.1 % of the makespan; 3.7 points of it from imbalance "
        "(stage 3 has 1.04x the mean work)"
    )
    span = replace(SOLVED, imbalance=share, objective="device-span")
    assert printed(summary_table(span), 200)[2] == "bubble       11.1 % of the device span"


def test_a_faster_partition_is_named_unless_the_partition_was_searched() -> None:
    """GPipe with layers 1 + 5 takes 33, with 3 + 3 it takes 27: 33 / 27 - 1 = 22.2 %."""
    model = Model([{"forward": 1, "count": 6}])
    pipeline = model.pipeline(devices=2, batches=2, partition=[1, 5])
    expected = "with a balanced partition, this order has 22.2 % more throughput"
    schedule = evaluate(pipeline, "gpipe")
    assert describe_imbalance(report_evaluation(schedule, 0)).endswith(expected)
    searched = best_choice(replace(pipeline, partition="search"), "gpipe")
    choice = replace(searched, schedule=schedule)
    assert "balanced" not in describe_imbalance(report_evaluation(schedule, 0, choice=choice))
    plan = gpipe_plan(model, batches=2)
    row = replace(plan.rows[0], result=replace(plan.rows[0].result, schedule=schedule))
    searched_plan = replace(plan, rows=(row,))
    assert "balanced" not in describe_imbalance(report_plan(searched_plan))
    fixed = replace(plan.space, partition=(1, 5))
    assert describe_imbalance(report_plan(replace(searched_plan, space=fixed))).endswith(expected)


def test_exposed_work_and_random_times() -> None:
    lines = printed(summary_table(replace(SOLVED, exposed=1.5, time_unit="ms")), 200)
    assert "exposed   1.5 ms of the makespan, for unshard, gradient sync and optimizer" in lines
    lines = printed(summary_table(replace(ROW, jitter=SPREAD)), 200)
    text = (
        "mean 34.65 (4.8 % less throughput), 95 % below 36; 1000 samples of 10 % deviation, seed 0"
    )
    assert f"under jitter  {text}" in lines


@pytest.mark.parametrize(
    ("certificate", "text"),
    [
        (Certificate(Argument.WORK, (3,)), "device 3: its work and pipeline latency already need"),
        (
            Certificate(Argument.ENDS, (1,)),
            "device 1: its work, memory limit and pipeline latency already need",
        ),
        (
            Certificate(Argument.DEVICES, (0, 2)),
            "devices 0 and 2 together: their work, memory limit and pipeline latency already need",
        ),
        (
            Certificate(Argument.DEVICES, (0, 1, 2, 3)),
            "all devices together: their work, memory limit and pipeline latency already need",
        ),
        (
            Certificate(Argument.ROUND_TRIP, (2,)),
            "device 2: its work and longest round trip of a microbatch already need",
        ),
        (
            Certificate(Argument.SEARCH),
            "no device alone: all orders of all operations need at least",
        ),
        (
            Certificate(Argument.SEARCH, decisions=Decisions.PARTITION | Decisions.RECOMPUTE_SET),
            "no device alone: all partitions and sets of modules need at least",
        ),
    ],
)
def test_the_bottleneck_is_one_sentence(certificate: Certificate, text: str) -> None:
    report = replace(SOLVED, certificate=certificate, pipeline=LIMITED, lower_bound=26.99999)
    assert describe_bottleneck(report) == f"{text} 26.99"


def test_every_argument_has_its_sentence() -> None:
    for argument in set(Argument) - {Argument.MEMORY}:
        report = replace(SOLVED, certificate=Certificate(argument, (0,)), pipeline=LIMITED)
        assert describe_bottleneck(report).endswith(" 27")
    assert describe_bottleneck(SOLVED) == ""
    work = replace(SOLVED, certificate=Certificate(Argument.WORK, (0,)), objective="device-span")
    assert describe_bottleneck(work) == "device 0: its work already needs 27"


def test_the_title_names_model_size_and_limit() -> None:
    named = replace(LIMITED, name="tiny", memory_unit="GiB")
    size = "4 devices, 8 microbatches, linear, memory limit 4 GiB"
    assert describe_size(named) == size
    assert describe_title(replace(SOLVED, pipeline=named)) == f"tiny: {size}"
    assert describe_title(replace(SOLVED, pipeline=LIMITED)) == (
        "4 devices, 8 microbatches, linear, memory limit 4"
    )
    pipeline = ppopt.Pipeline(stages=2, batches=4, placement="interleaved", chunks=2, name="tiny")
    schedule = ppopt.evaluate(pipeline, "interleaved")
    assert describe_title(report_evaluation(schedule, 0)).startswith("interleaved, group size ")
    assert describe_title(report_evaluation(schedule, 0)).endswith(
        " on tiny: 2 devices, 4 microbatches, interleaved, 2 chunks per device"
    )
    two = replace(ppopt.evaluate(ppopt.Pipeline(stages=2, batches=4), "dualpipe").pipeline)
    assert describe_size(two) == "2 devices, 4 microbatches, linear, two routes"
    unequal = ppopt.Pipeline(
        stages=2, batches=1, placement=(1, 0), mem_limit=(2, 3), training={"tensor": 4}
    )
    assert describe_size(unequal) == (
        "2 devices of 4 GPUs (tensor 4), 1 microbatch, placement 1,0, memory limits 2 to 3"
    )


def test_markup_in_names_is_shown_as_it_is() -> None:
    lines = printed(summary_table(replace(SOLVED, status="infeasible", proof="[bold red]x[/]")))
    assert "reason    [bold red]x[/]" in lines
