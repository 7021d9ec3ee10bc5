"""Tables: every figure in words, nothing shown that is not there, 80 columns."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import numpy as np
from rich.console import Console
from rich.table import Table

import ppopt
from ppopt.formats.figures import LayerRun, ScheduleFigures
from ppopt.report.comparison_report import ComparisonReport
from ppopt.report.frontier_report import describe_frontier, report_frontier
from ppopt.report.objects import evaluation_object
from ppopt.report.placement_text import describe_choices, describe_layers
from ppopt.report.schedule_report import (
    ScheduleReport,
    report_evaluation,
)
from ppopt.report.search_text import describe_best, describe_robustness, describe_search
from ppopt.report.summary import details_table
from ppopt.report.table import (
    compare_table,
    jitter_table,
    partitions_table,
    peaks_table,
    sweep_table,
    why_table,
)
from ppopt.schedule.imbalance import Imbalance
from ppopt.studies.records import SweepRow
from ppopt.studies.robustness import Jitter

SOLVED = ScheduleReport(
    status="optimal",
    objective="makespan",
    value=27,
    lower_bound=27,
    gap=0,
    proof="device 0 alone needs 27: its first backward starts at 7 [or later], 20 follow",
    makespan=27,
    device_span=27.0,
    bubble_rate=3 / 27,
    bubble_overhead=0.125,
    peak_memory=[4, 4, 3, 2.5],
    mem_limit=[4, 4, 4, 4],
    solve_seconds=0.02,
)
ROW = ScheduleReport(
    strategy="1f1b",
    status="feasible",
    value=33,
    makespan=33,
    device_span=30.5,
    bubble_rate=0.2727,
    peak_memory=[4, 3, 2, 1],
    fits_limit=True,
    ratio_to_best=33 / 27,
    ratio_to_optimum=33 / 26.5,
    chunks=1,
    placement="linear",
)


def printed(table: Table, width: int = 80) -> list[str]:
    """Lines of a table as a terminal of that width shows them, without colours."""
    console = Console(file=StringIO(), width=width)
    console.print(table)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_exact_figures_of_a_result() -> None:
    assert printed(details_table(replace(SOLVED, makespan=2635.066773, time_unit="ms"))) == [
        "makespan         2635.066773 ms",
        "device span      27 ms",
        "lower bound      27 ms for the makespan, gap 0 %",
        "bubble rate      11.111111 % of the makespan",
        "bubble overhead  12.5 % of busy time",
        "peak memory      max 4 (4 4 3 2.5), limit 4 each",
        "proof            device 0 alone needs 27: its first backward starts at 7 [or",
        "                 later], 20 follow",
        "time taken       0.02 s",
    ]
    assert printed(details_table(replace(SOLVED, gap=0.0234, objective="device-span")))[2:4] == [
        "lower bound      27 for the device span, gap 2.34 %",
        "bubble rate      11.111111 % of the device span",
    ]


def test_exposed_work_around_the_microbatches() -> None:
    rows = [replace(ROW, exposed=6), replace(ROW, strategy="zb-2p", exposed=0.5)]
    assert printed(compare_table(rows)) == [
        "strategy placement makespan exposed bubble memory vs best vs opt. status",
        "───────────────────────────────────────────────────────────────────────────",
        "1f1b     linear          33       6 27.3 %      4   1.222   1.245 evaluated",
        "zb-2p    linear          33     0.5 27.3 %      4   1.222   1.245 evaluated",
    ]


def test_a_narrow_terminal_leaves_out_columns_and_breaks_no_line() -> None:
    """First the ratio to the optimum, then the bubble; what is left keeps its figures."""
    long = replace(ROW, strategy="interleaved-overlap", placement="interleaved", chunks=2)
    over = replace(long, value=1234.5, peak_memory=[55998], time_unit="ms", memory_unit="MiB")
    rows = [replace(over, fits_limit=False), over]
    optional = {"vs opt.", "bubble"}
    for width, columns in ((120, optional), (80, {"bubble"}), (75, set())):
        *head, _, first, last = printed(compare_table(rows), width)
        assert {name for name in optional if name in " ".join(head)} == columns
        assert first.endswith("over the limit") and last.endswith("evaluated")
        assert "1,234" in first and "55,998" in first


def test_peaks_of_many_devices_are_shortened() -> None:
    (line,) = printed(details_table(ScheduleReport(peak_memory=list(range(64, 0, -1)))))
    assert line == "peak memory  max 64 (64 63 62 .. 3 2 1)"


def test_strategies_side_by_side() -> None:
    zbv = replace(ROW, strategy="zbv", placement="v", chunks=2, bubble_rate=0.1)
    rows = [
        ROW,
        replace(zbv, ratio_to_optimum=None),
        replace(ROW, strategy="gpipe", peak_memory=[8, 8, 8, 8], fits_limit=False),
        replace(ROW, strategy="zb-2p", placement=[0, 1, 1, 0], ratio_to_best=None),
    ]
    assert printed(compare_table(rows)) == [
        "strategy placement makespan bubble memory vs best vs opt. status",
        "────────────────────────────────────────────────────────────────────────",
        "1f1b     linear          33 27.3 %      4   1.222   1.245 evaluated",
        "zbv      v/2             33   10 %      4   1.222         evaluated",
        "gpipe    linear          33 27.3 %      8   1.222         over the limit",
        "zb-2p    explicit        33 27.3 %      4       –   1.245 evaluated",  # noqa: RUF001
    ]


def test_a_search_is_named_by_its_placement_where_there_are_several() -> None:
    optimal = replace(ROW, strategy="searched", status="optimal", lower_bound=27)
    in_v = replace(optimal, placement="v", chunks=2)
    assert printed(compare_table([optimal, ROW]))[2].startswith("searched linear")
    rows = printed(compare_table([optimal, in_v, ROW]))
    assert [line.split("  ")[0] for line in rows[2:]] == [
        "searched, linear linear",
        "searched, v/2",
        "1f1b",
    ]


def test_the_best_of_all_is_named_where_its_placement_is_not_searched() -> None:
    row = replace(ROW, time_unit="ms", routes=1)
    optimal = replace(row, strategy="searched", status="optimal")
    zbv = replace(row, strategy="zbv", placement="v", chunks=2, value=26, ratio_to_optimum=None)
    over = replace(zbv, strategy="zb-2p", fits_limit=False)
    expected = "best of all: zbv, v/2, 26 ms; --placement linear,v searches this placement, too"
    assert describe_best([over, zbv, optimal]) == [expected]
    two_routes = replace(zbv, strategy="dualpipe-v", routes=2)
    expected = "best of all: dualpipe-v, v/2 x2, 26 ms; this placement is not searched"
    assert describe_best([two_routes, optimal]) == [expected]
    assert describe_best([optimal, zbv]) == []
    assert describe_best([zbv, optimal, replace(optimal, placement="v", chunks=2)]) == []
    assert describe_best([over]) == []


def test_every_strategy_has_its_partition_and_recompute() -> None:
    zbv = replace(ROW, strategy="zbv", partition=[2, 1, 1, 2], recompute=[1, 0, 0, 2])
    rows = [
        replace(ROW, partition=[4, 2], recompute=[0, 0], layout="Et*3|tL"),
        replace(zbv, layout="Et|t|t|tL"),
    ]
    assert [line.split() for line in printed(partitions_table(rows))[2:]] == [
        ["1f1b", "4", "2", "0", "each", "Et*3|tL"],
        ["zbv", "2", "1", "1", "2", "1", "0", "0", "2", "Et|t|t|tL"],
    ]
    assert "recompute" not in printed(partitions_table(rows[:1]))[0]


def test_the_row_of_the_search_says_what_it_is() -> None:
    optimal = replace(ROW, strategy="searched", lower_bound=27)
    nothing = ScheduleReport(strategy="searched", status="infeasible", placement="linear")
    rows = [
        replace(optimal, status="optimal", gap=0),
        replace(optimal, status="feasible", gap=0.0123),
        replace(nothing, proof="device 0 needs 4"),
    ]
    descriptions = [describe_search(row) for row in rows]
    assert descriptions == [
        "linear: optimal (proved)",
        "linear: feasible, gap 1.3 %",
        "linear: infeasible (proved); device 0 needs 4",
    ]
    two = replace(rows[0], strategy="dualpipe", routes=2)
    assert (
        describe_search(replace(rows[0], routes=1), [two]) == "linear, one route: optimal (proved)"
    )
    assert "dualpipe linear x2" in " ".join(printed(compare_table([two]))[2].split())


def test_the_longest_names_fit_80_columns() -> None:
    """Strategies of the longest names, in chunks: no line is broken."""
    names = ("interleaved-overlap", "1f1b-overlap", "looped-bfs")
    rows = [replace(ROW, strategy=name, placement="interleaved", chunks=2) for name in names]
    assert len(printed(compare_table(rows))) == 2 + len(rows)
    assert all(len(line) <= 80 for line in printed(compare_table(rows)))


def test_the_head_of_a_sweep_breaks_no_word() -> None:
    """Its last column has the room: why a row failed."""
    settings = {"batches": 8, "chunks": 2, "strategy": "interleaved", "mem_limit": "72GiB"}
    settings |= {"link_mode": "delay", "p2p_time": 0.5}
    figures = ScheduleFigures(value=1234.5, gap=0.01, time_unit="ms", memory_unit="GiB")
    rows = [
        SweepRow(settings, figures, None, cached=False),
        SweepRow(settings, None, "chunks: 2 contradicts strategy 1f1b", cached=False),
    ]
    assert " ".join(printed(sweep_table(rows))[:2]).split() == [
        *("mem_", "link_", "p2p_", "value", "memory", "batches", "chunks", "strategy"),
        *("limit", "mode", "time", "(ms)", "gap", "bubble", "(GiB)", "status"),
    ]


IDLE = {label: [0] * 4 for label in ("warm-up", "input", "link", "memory", "order", "cool-down")}


def test_why_devices_idle() -> None:
    """Shares of 4 x 33 of device time: 13.2 is 10 %, of which 4 % are imbalance."""
    idle = IDLE | {"warm-up": [0, 3.3, 3.3, 6.6], "link": [0.132, 0, 0, 0]}
    imbalance = Imbalance(3, (3,), 11 / 10, 1 / 25, 1 / 10, None)
    row = replace(ROW, idle=idle, communication=48, imbalance=imbalance)
    assert printed(why_table([row])) == [
        "idle by cause,",
        "% of makespan  warm-up input link memory order cool-down imbalance transfers",
        "────────────────────────────────────────────────────────────────────────────",
        "1f1b              10.0        0.1                              4.0        48",
    ]


def test_peaks_of_strategies() -> None:
    rows = [ROW, replace(ROW, strategy="zbv", peak_memory=[4, 4, 4, 4])]
    assert [line.split(maxsplit=1) for line in printed(peaks_table(rows))[2:]] == [
        ["1f1b", "4 3 2 1"],
        ["zbv", "4 each"],
    ]


def spread(mean: float) -> Jitter:
    """1000 samples of this mean, nominal 33; the largest 51 are 36."""
    values = np.full(1000, (1000 * mean - 51 * 36) / 949)
    values[-51:] = 36
    return Jitter(deviation=0.1, seed=0, nominal=33, values=values)


SPREAD = spread(34.65)


def test_random_times() -> None:
    assert printed(jitter_table([replace(ROW, value=33, jitter=SPREAD)])) == [
        "jitter as planned  mean 95 % below throughput",
        "─────────────────────────────────────────────",
        "1f1b           33 34.65         36 4.8 % less",
    ]


def test_a_fragile_optimum_is_named() -> None:
    longer = spread(35.5)
    optimal = replace(ROW, strategy="searched", status="optimal", jitter=longer)
    baseline = replace(ROW, strategy="zb-h2", jitter=SPREAD)
    comparison = ComparisonReport([optimal, baseline], [optimal], steadiest=baseline)
    expected = "degrades least: zb-h2, with 4.8 % less throughput on average (1000 samples, seed 0)"
    assert describe_robustness(comparison) == [expected]
    assert describe_robustness(comparison._replace(fragile=(optimal, baseline))) == [
        expected,
        "fragile: searched is best on paper, but takes 35.5 on average, and zb-h2 34.65",
    ]
    assert describe_robustness(ComparisonReport([optimal, baseline], [optimal])) == []


def test_a_faster_strategy_of_two_routes_is_named_beside_the_frontier() -> None:
    """Its devices hold the weights twice; named where it betters what one route reaches."""
    pipeline = ppopt.Pipeline(stages=2, batches=2, time_unit="ms", memory_unit="GiB")
    frontier = report_frontier(ppopt.frontier(pipeline, workers=1))
    units = {"time_unit": "ms", "memory_unit": "GiB"}
    point = ScheduleReport(value=20, placement="linear", chunks=1, routes=1, gap=0, limit=4)
    point = replace(point, limit_proved=True, status="optimal", **units)
    baseline = ScheduleReport(strategy="zbv", placement="v", chunks=2, routes=1, value=19, memory=4)
    baseline = replace(baseline, fits_limit=True, **units)
    two = replace(baseline, strategy="dualpipe", placement="linear", chunks=1, routes=2)

    def faster(*baselines: ScheduleReport) -> list[str]:
        lines = describe_frontier(frontier._replace(points=[point], baselines=baselines))
        return [line for line in lines if line.startswith("faster")]

    expected = "faster in another placement: zbv, v/2, 19 ms with 4 GiB"
    assert faster(baseline, replace(two, value=19)) == [expected]
    assert faster(baseline, replace(two, value=18)) == [
        expected,
        "faster with two routes: dualpipe, linear x2, 18 ms with 4 GiB",
    ]
    assert len(faster(replace(two, value=18))) == 1
    assert faster(replace(two, value=18, fits_limit=False)) == []


def test_layers_that_recompute_are_named_with_their_places() -> None:
    layer = {"forward": 1, "activation": 2, "recompute": {"time": 1, "activation": 1}}
    recomputing = [{**layer, "name": name, "count": count} for name, count in (("a", 2), ("b", 1))]
    plain = {"forward": 1, "activation": 2, "name": "b", "count": 2}
    model = ppopt.Model([plain, *recomputing, plain, recomputing[0]])
    pipeline = model.pipeline(devices=2, batches=2, partition=[4, 5])
    report = report_evaluation(ppopt.evaluate(pipeline, "1f1b"), 0.0)
    assert report.recomputed_layers == [
        LayerRun("a", 2, 3),
        LayerRun("b", 4, 4),
        LayerRun("a", 7, 8),
    ]
    assert evaluation_object(report)["recomputed_layers"] == [
        {"name": "a", "first": 2, "last": 3, "modules": None},
        {"name": "b", "first": 4, "last": 4, "modules": None},
        {"name": "a", "first": 7, "last": 8, "modules": None},
    ]
    text = "2 3 layers of the stages: a 2-3, b 4, a 7-8"
    assert describe_layers(report.recompute, report.recomputed_layers) == text


def test_choices_name_the_modules_that_recompute_and_offload() -> None:
    """Several modules have their number in every stage; whole layers are counted alone."""
    modules = ("core_attn", "mlp")
    report = ScheduleReport(
        partition=[2, 1],
        recompute=[2, 0],
        recomputed_layers=[LayerRun("block", 0, 1, modules)],
        offload=[0, 1],
        offloaded_layers=[LayerRun("block", 2, 2, None)],
    )
    searched = ("partition", "recompute", "offload")
    text = describe_choices(report, searched)
    assert text == ": layers 2,1, recompute 2,0 (core_attn 2,0, mlp 2,0), offload 0,1"
