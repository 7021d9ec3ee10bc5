"""Tables: every figure in words, nothing shown that is not there, 80 columns."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console
from rich.table import Table

import ppopt
from ppopt.report.frontier_words import what_if
from ppopt.report.jitter_words import robustness_words
from ppopt.report.layout_words import recompute_words
from ppopt.report.objects import of_evaluation
from ppopt.report.search_words import best_words, searched_words
from ppopt.report.table import (
    compare_table,
    jitter_table,
    partitions_table,
    peaks_table,
    result_table,
    why_table,
)

SOLVED: dict[str, Any] = {
    "status": "optimal",
    "objective": "makespan",
    "value": 27,
    "lower_bound": 27,
    "gap": 0,
    "proof": "device 0 alone needs 27: its first backward starts at 7 [or later], 20 follow",
    "makespan": 27,
    "device_span": 27.0,
    "bubble_rate": 3 / 27,
    "bubble_overhead": 0.125,
    "peak_memory": [4, 4, 3, 2.5],
    "mem_limit": [4, 4, 4, 4],
    "solve_seconds": 0.02,
}
ROW: dict[str, Any] = {
    "strategy": "1f1b",
    "status": "feasible",
    "value": 33,
    "makespan": 33,
    "device_span": 30.5,
    "bubble_rate": 0.2727,
    "peak_memory": [4, 3, 2, 1],
    "fits_limit": True,
    "ratio_to_best": 33 / 27,
    "ratio_to_optimum": 33 / 26.5,
    "chunks": 1,
    "placement": "linear",
}


def printed(table: Table, width: int = 80) -> list[str]:
    """Lines of a table as a terminal of that width shows them, without colours."""
    console = Console(file=StringIO(), width=width)
    console.print(table)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_a_proved_result() -> None:
    assert printed(result_table(SOLVED)) == [
        "status           proved optimal",
        "makespan         27",
        "device span      27",
        "lower bound      27 for the makespan, gap 0 %",
        "bubble rate      11.11 % of the makespan",
        "bubble overhead  12.5 % of busy time",
        "peak memory      max 4 (4 4 3 2.5), limit 4 each",
        "proof            device 0 alone needs 27: its first backward starts at 7 [or",
        "                 later], 20 follow",
        "time taken       0.02 s",
    ]


def test_an_unproved_result_over_the_device_span() -> None:
    shown = printed(
        result_table(SOLVED | {"status": "feasible", "gap": 0.0234, "objective": "device-span"})
    )
    assert shown[0] == "status           not proved optimal, gap 2.34 %"
    assert shown[3] == "lower bound      27 for the device span, gap 2.34 %"
    assert shown[4] == "bubble rate      11.11 % of the device span"


def test_a_result_without_a_schedule() -> None:
    nothing = dict.fromkeys(SOLVED) | {"status": "infeasible", "proof": "device 2 needs 5"}
    assert printed(result_table(nothing)) == [
        "status  proved infeasible",
        "proof   device 2 needs 5",
    ]
    assert printed(result_table({"status": "unknown", "lower_bound": 20})) == [
        "status       nothing found in time",
        "lower bound  20 for the makespan",
    ]


def test_a_hand_strategy_claims_nothing() -> None:
    shown = printed(result_table(ROW | {"mem_limit": [2] * 4, "fits_limit": False}))
    assert shown[0] == "strategy     1f1b"
    assert "peak memory  max 4 (4 3 2 1), limit 2 each, over the limit" in shown
    assert not any("optimal" in line for line in shown)


def test_exposed_work_around_the_microbatches() -> None:
    shown = printed(result_table(SOLVED | {"exposed": 1.5, "time_unit": "ms"}))
    assert shown[3] == "exposed          1.5 ms of the makespan, for unshard, gradient sync and"
    rows = [ROW | {"exposed": 6}, ROW | {"strategy": "zb-2p", "exposed": 0.5}]
    assert printed(compare_table(rows)) == [
        "strategy placement makespan exposed  bubble memory x best x opt.",
        "────────────────────────────────────────────────────────────────",
        "1f1b     linear          33       6 27.27 %      4  1.222  1.245",
        "zb-2p    linear          33     0.5 27.27 %      4  1.222  1.245",
    ]


def test_peaks_of_many_devices_are_shortened() -> None:
    (line,) = printed(result_table({"peak_memory": list(range(64, 0, -1))}))
    assert line == "peak memory  max 64 (64 63 62 .. 3 2 1)"


def test_strategies_side_by_side() -> None:
    no_optimum = {"ratio_to_optimum": None}
    rows = [
        ROW,
        ROW | {"strategy": "zbv", "placement": "v", "chunks": 2, "bubble_rate": 0.1} | no_optimum,
        ROW | {"strategy": "gpipe", "peak_memory": [8, 8, 8, 8], "fits_limit": False},
        ROW | {"strategy": "zb-2p", "placement": [0, 1, 1, 0], "ratio_to_best": None},
    ]
    assert printed(compare_table(rows)) == [
        "strategy placement makespan  bubble memory x best x opt.",
        "────────────────────────────────────────────────────────",
        "1f1b     linear          33 27.27 %      4  1.222  1.245",
        "zbv      v/2             33    10 %      4  1.222",
        "gpipe    linear          33 27.27 % 8 over  1.222  1.245",
        "zb-2p    explicit        33 27.27 %      4      –  1.245",  # noqa: RUF001
    ]


def test_a_search_is_named_by_its_placement_where_there_are_several() -> None:
    optimal = ROW | {"strategy": "optimal", "status": "optimal", "lower_bound": 27}
    other = optimal | {"placement": "v", "chunks": 2}
    assert printed(compare_table([optimal, ROW]))[2].startswith("optimal  linear")
    rows = printed(compare_table([optimal, other, ROW]))
    assert [line.split("  ")[0] for line in rows[2:]] == [
        "optimal, linear linear",
        "optimal, v/2",
        "1f1b",
    ]


def test_the_best_of_all_is_named_where_its_placement_is_not_searched() -> None:
    optimal = ROW | {"strategy": "optimal", "status": "optimal", "time_unit": "ms"}
    zbv = ROW | {"strategy": "zbv", "placement": "v", "chunks": 2, "value": 26, "time_unit": "ms"}
    zbv |= {"ratio_to_optimum": None}
    over = zbv | {"strategy": "zb-2p", "fits_limit": False}
    words = ["best of all: zbv, v/2, 26 ms; this placement is not searched"]
    assert best_words([over, zbv, optimal]) == words
    assert best_words([optimal, zbv]) == []
    assert best_words([zbv, optimal, optimal | {"placement": "v", "chunks": 2}]) == []
    assert best_words([over]) == []


def test_every_strategy_has_its_partition_and_recompute() -> None:
    rows = [
        ROW | {"partition": [4, 2], "recompute": [0, 0], "layout": "Et*3|tL"},
        ROW | {"strategy": "zbv", "partition": [2, 1, 1, 2], "recompute": [1, 0, 0, 2]}
        | {"layout": "Et|t|t|tL"},
    ]  # fmt: skip
    assert [line.split() for line in printed(partitions_table(rows))[2:]] == [
        ["1f1b", "4", "2", "0", "each", "Et*3|tL"],
        ["zbv", "2", "1", "1", "2", "1", "0", "0", "2", "Et|t|t|tL"],
    ]
    assert "recompute" not in printed(partitions_table(rows[:1]))[0]


def test_the_row_of_the_search_says_what_it_is() -> None:
    optimal = ROW | {"strategy": "optimal", "lower_bound": 27}
    rows = [
        optimal | {"status": "optimal", "gap": 0},
        optimal | {"status": "feasible", "gap": 0.0123},
        dict.fromkeys(ROW)
        | {"strategy": "optimal", "status": "infeasible", "placement": "linear"}
        | {"proof": "device 0 needs 4"},
    ]
    names = [line.split(" linear")[0] for line in printed(compare_table(rows))[2:]]
    assert names == ["optimal,", "best found,", "optimal,"]
    words = [searched_words(row) for row in rows]
    assert words == [
        "best found, linear: proved optimal",
        "best found, linear: not proved optimal, gap 1.23 %",
        "best found, linear: proved infeasible; device 0 needs 4",
    ]
    two = rows[0] | {"strategy": "dualpipe", "routes": 2}
    assert (
        searched_words(rows[0] | {"routes": 1}, [two])
        == "best found, linear, one route: proved optimal"
    )
    assert "dualpipe linear x2" in " ".join(printed(compare_table([two]))[2].split())


def test_the_longest_names_fit_80_columns() -> None:
    """Strategies of the longest names, in chunks: no line is broken."""
    names = ("interleaved-overlap", "1f1b-overlap", "looped-bfs")
    rows = [ROW | {"strategy": name, "placement": "interleaved", "chunks": 2} for name in names]
    assert len(printed(compare_table(rows))) == 2 + len(rows)
    assert all(len(line) <= 80 for line in printed(compare_table(rows)))


def test_markup_in_names_is_shown_as_it_is() -> None:
    (line,) = printed(result_table({"strategy": "[bold red]x[/]"}))
    assert line == "strategy  [bold red]x[/]"


IDLE = {label: [0] * 4 for label in ("warm-up", "input", "link", "memory", "order", "cool-down")}


def test_why_devices_idle() -> None:
    """Shares of 4 x 33 of device time: 13.2 is 10 %, of which 4 % are imbalance."""
    idle = IDLE | {"warm-up": [0, 3.3, 3.3, 6.6], "link": [0.132, 0, 0, 0]}
    row = ROW | {"idle": idle, "communication": 48, "imbalance": {"idle_share": 0.04}}
    assert printed(why_table([row])) == [
        "% idle in warm-up input link memory order cool-down imbalance sent",
        "──────────────────────────────────────────────────────────────────",
        "1f1b         10.0        0.1                              4.0   48",
    ]


def test_peaks_of_strategies() -> None:
    rows = [ROW, ROW | {"strategy": "zbv", "peak_memory": [4, 4, 4, 4]}]
    assert [line.split(maxsplit=1) for line in printed(peaks_table(rows))[2:]] == [
        ["1f1b", "4 3 2 1"],
        ["zbv", "4 each"],
    ]


SPREAD = {
    "deviation": 0.1,
    "samples": 1000,
    "seed": 0,
    "mean": 34.65,
    "p95": 36,
    "degradation": 0.05,
}


def test_random_times() -> None:
    assert printed(jitter_table([ROW | {"value": 33, "jitter": SPREAD}])) == [
        "jitter as planned  mean 95 % below degrades",
        "───────────────────────────────────────────",
        "1f1b           33 34.65         36      5 %",
    ]
    shown = printed(result_table(ROW | {"jitter": SPREAD}))
    assert "under jitter  mean 34.65 (5 % more), 95 % below 36; 1000 samples of 10 %" in shown


def test_a_fragile_optimum_is_named() -> None:
    rows = [
        ROW | {"strategy": "optimal", "status": "optimal", "jitter": SPREAD | {"mean": 35.5}},
        ROW | {"strategy": "zb-h2", "jitter": SPREAD},
    ]
    found = {"rows": rows, "steadiest": "zb-h2", "fragile": None}
    least = "degrades least: zb-h2, by 5 % on average (1000 samples, seed 0)"
    assert robustness_words(found) == [least]
    fragile = {"best": "optimal", "rival": "zb-h2"}
    assert robustness_words(found | {"fragile": fragile}) == [
        least,
        "fragile: optimal is best on paper, but takes 35.5 on average, and zb-h2 34.65",
    ]
    assert robustness_words({"rows": rows}) == []


def test_a_faster_strategy_of_two_routes_is_named_beside_the_frontier() -> None:
    """Its devices hold the weights twice; named where it betters what one route reaches."""
    point = {"value": 20, "placement": "linear", "chunks": 1, "routes": 1, "gap": 0}
    point |= {"limit": 4, "limit_proved": True, "status": "optimal"}
    hand = {"strategy": "zbv", "placement": "v", "chunks": 2, "routes": 1, "value": 19}
    hand |= {"fits_limit": True, "memory": 4}
    two = hand | {"strategy": "dualpipe", "placement": "linear", "chunks": 1, "routes": 2}
    found = {"points": [point], "least_limit": 1, "least_limit_proved": True, "proof": "so"}
    found |= {"time_unit": "ms", "memory_unit": "GiB", "mem_limit": None, "useful_limit": 4}
    point |= {"tokens_per_second": None}
    found |= {"searched": ()}
    found |= {"useful_limit_proved": True, "objective": "makespan"}

    def faster(*hands: dict[str, object]) -> list[str]:
        lines = what_if(found | {"strategies": list(hands)})
        return [line for line in lines if line.startswith("faster")]

    one = "faster in another placement: zbv, v/2, 19 ms in 4 GiB"
    assert faster(hand, two | {"value": 19}) == [one]
    assert faster(hand, two | {"value": 18}) == [
        one,
        "faster with two routes: dualpipe, linear x2, 18 ms in 4 GiB",
    ]
    assert len(faster(two | {"value": 18})) == 1
    assert faster(two | {"value": 18, "fits_limit": False}) == []


def test_layers_that_recompute_are_named_with_their_places() -> None:
    layer = {"forward": 1, "activation": 2, "recompute": {"time": 1, "activation": 1}}
    again = [{**layer, "name": name, "count": count} for name, count in (("a", 2), ("b", 1))]
    kept = {"forward": 1, "activation": 2, "name": "b", "count": 2}
    model = ppopt.Model([kept, *again, kept, again[0]])
    pipeline = model.pipeline(devices=2, batches=2, partition=[4, 5])
    figures = of_evaluation(ppopt.evaluate(pipeline, "1f1b"), 0.0)
    assert figures["recomputed_layers"] == [
        {"name": "a", "first": 2, "last": 3},
        {"name": "b", "first": 4, "last": 4},
        {"name": "a", "first": 7, "last": 8},
    ]
    assert recompute_words(figures) == "2 3 layers of the stages: a 2-3, b 4, a 7-8"
