"""`ppopt eval` and `ppopt compare`, end to end."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_json import (
    EVALUATED,
    HEADLINE,
    PLACED,
    RATED,
    SOLVED,
    TEXT,
    assert_headline,
    assert_types,
)
from tests.cli.cli_run import done, json_of, run

UNIT = "--stages 4 --batches 8"


class TestEval:
    def test_keys_and_types(self) -> None:
        output = json_of(f"eval zb-h1 {UNIT} --mem-limit")
        assert_types(output, EVALUATED)
        assert (output["strategy"], output["status"]) == ("zb-h1", "feasible")

    @pytest.mark.parametrize(
        ("line", "makespan"),
        [
            (f"1f1b {UNIT}", 33),
            (f"zb-1p {UNIT}", 27),
            (f"interleaved {UNIT} --chunks 2 --forward-times 2 --backward-times 4", 57),
            ("1f1b --stages 16 --batches 512", 1581),
            ("zb-1p --stages 16 --batches 512", 1551),
            ("interleaved --stages 16 --batches 512 --forward-times 2 --backward-times 4", 3117),
        ],
    )
    def test_figures_of_the_starting_systems(self, line: str, makespan: int) -> None:
        """Recomputed by running them (notes on the strategies)."""
        assert json_of(f"eval {line}")["value"] == makespan

    def test_exposed_work_around_the_microbatches(self) -> None:
        """The gather of 2 delays all, the sync of 3 and the optimizer of 1 follow device 0."""
        work = "--unshard 2 --gradient-sync 3 --optimizer 1"
        output = json_of(f"eval 1f1b {UNIT} {work}")
        assert (output["makespan"], output["exposed"]) == (39, 6)
        assert "exposed   6 of the makespan" in run(f"eval 1f1b {UNIT} {work}").out
        assert json_of(f"eval 1f1b {UNIT}")["exposed"] is None

    def test_device_span(self) -> None:
        """ZB-H2 leaves no device idle within its own span, 8 x 3."""
        output = json_of(f"eval zb-h2 {UNIT} --objective device-span")
        assert output["value"] == output["device_span"] == 24
        assert output["bubble_rate"] == 0

    @pytest.mark.parametrize(
        ("flag", "key", "value"),
        [
            ("--forward-times 2,3", "forward_times", [2, 3]),
            ("--forward-times 2,3", "backward_times", [4, 6]),
            ("--backward-times 5", "backward_times", [5, 5]),
            ("--backward-times 5", "weight_times", [2.5, 2.5]),
            ("--backward-times 5 --weight-times 2,1", "input_times", [3, 4]),
            ("--p2p-time 0.25", "p2p_time", 0.25),
            ("--activation 3,4", "activation", [3, 4]),
            ("--memory-b -0.5", "memory_b", [-0.5, -0.5]),
            ("--static 7", "static", [7, 7]),
            ("--mem-limit 9,8", "mem_limit", [9, 8]),
        ],
    )
    def test_flags_reach_the_pipeline(self, flag: str, key: str, value: Any) -> None:
        schedule = json_of(f"eval zb-h1 --stages 2 --batches 3 {flag}")["schedule"]
        memory = key in ("activation", "memory_b", "static", "mem_limit")
        unit = schedule["memory_ticks_per_unit" if memory else "ticks_per_unit"]
        ticks = schedule["pipeline"][key]
        in_units = [tick / unit for tick in ticks] if isinstance(ticks, list) else ticks / unit
        assert in_units == value

    def test_group_size(self) -> None:
        output = json_of("eval interleaved --stages 2 --batches 4 --group-size 4")
        first = [op[:3] for op in output["schedule"]["ops"] if op[3] == 0][:4]
        assert first == [
            [
                "F",
                0,
                microbatch,
            ]
            for microbatch in range(4)
        ]

    def test_the_group_size_chosen_is_said(self) -> None:
        """5 devices, 7 microbatches: groups of 5 or 6 leave 2 or 1, fewer than the devices."""
        line = "eval interleaved --stages 5 --batches 7"
        assert json_of(line)["options"] == {"group_size": 7}
        assert "interleaved, group size 7" in done(line).out
        assert "group" not in done(f"eval 1f1b {UNIT}").out
        refused = run(f"{line} --group-size 5")
        assert refused.code == 2
        assert "the least that works is 7" in refused.err

    def test_pairs_that_lose_time_are_noted(self) -> None:
        """F + BW = 3: a pair of 4 is taken as it is, in one line; 3 and less are as expected."""
        line = "eval 1f1b-overlap --stages 2 --batches 3 --overlap-times"
        slow = done(f"{line} 3,4 --json")
        assert slow.err.count("\n") == 1
        assert "overlap_times: stage 1: 4 is above F + BW = 3:" in slow.err
        assert json.loads(slow.out)["value"] > json_of(f"{line} 3")["value"]
        assert "as in 1 more" in done(f"{line} 4").err
        assert done(f"{line} 4 --quiet").err == done(f"{line} 2,3").err == ""

    def test_help_says_how_pairs_of_two_stages_last(self) -> None:
        stdout = " ".join(done("eval --help").out.split())
        assert "For two stages, the smaller saving counts." in stdout

    def test_routes(self) -> None:
        """DualPipe has two, 1F1B one: a flag that says so changes nothing, another is refused."""
        line = "--stages 2 --batches 4"
        assert json_of(f"eval dualpipe {line} --routes 2")["value"] == 12
        assert json_of(f"eval 1f1b {line} --routes 1")["value"] == 15
        for name, routes in (("dualpipe", 1), ("1f1b", 2)):
            refused = run(f"eval {name} {line} --routes {routes}")
            assert (refused.code, refused.out) == (2, "")
            assert f"routes: {routes} contradicts strategy {name}" in refused.err

    def test_two_routes_are_searched(self) -> None:
        """Each of two devices has a stage to begin with: 12, the work alone, where one route
        needs 13."""
        line = "solve --stages 2 --batches 4"
        assert json_of(f"{line} --routes 2")["value"] == 12
        assert json_of(line)["value"] == 13
        assert "routes: 3 is neither 1 nor 2" in run(f"{line} --routes 3").err

    def test_chunks(self) -> None:
        output = json_of("eval interleaved --stages 2 --batches 4 --chunks 3")
        assert (output["chunks"], output["placement"]) == (3, "interleaved")
        assert output["schedule"]["pipeline"]["placement"] == [0, 1, 0, 1, 0, 1]


class TestCompare:
    LINE = "compare --stages 2 --batches 4"

    def test_rows(self) -> None:
        """By hand: 1F1B and GPipe 3 (m + p - 1) = 15, the optimum 3 m + p - 1 = 13.

        In a V device 1 waits for half a forward: 12.5, which ZB-V needs. On two routes of two
        devices each has a stage to begin with and DualPipe's idle time is 0: 12, the work alone.
        """
        output = json_of(f"{self.LINE} --mem-limit")
        rows = {row["strategy"]: row for row in output["rows"]}
        assert (output["status"], output["value"]) == ("optimal", 13)
        assert rows["searched"]["value"] == 13
        assert rows["1f1b"]["value"] == rows["gpipe"]["value"] == 15
        assert rows["zbv"]["value"] == 12.5
        assert rows["dualpipe"]["value"] == 12
        assert rows["1f1b"]["ratio_to_best"] == 15 / 12
        assert rows["1f1b"]["ratio_to_optimum"] == 15 / 13
        assert rows["gpipe"]["fits_limit"] is False
        assert rows["gpipe"]["peak_memory"] == [4, 4]
        assert (rows["interleaved"]["chunks"], rows["interleaved"]["placement"]) == (
            2,
            "interleaved",
        )
        assert output["skipped"] == []

    def test_keys_and_types(self) -> None:
        output = json_of(f"{self.LINE} --mem-limit")
        for row in output["rows"]:
            own = SOLVED | PLACED | {"strategy": TEXT}
            assert_types(row, (own if row["strategy"] == "searched" else EVALUATED) | RATED)
        assert output.keys() == {
            *("schema", "status", "objective", "value", "lower_bound", "gap", "proof"),
            *("time_unit", "memory_unit", "link_mode", "rows", "skipped"),
            *HEADLINE,
        }
        assert_headline(output)

    def test_ratios(self) -> None:
        """Against the best row that fits, and against the optimum of the same placement."""
        line = "--stages 2 --batches 4 --forward-times 3,4 --p2p-time 1 --mem-limit 3"
        compared = done(f"compare {line} --placement linear,interleaved,v --json").out
        rows = json.loads(compared)["rows"]
        optimum = {
            (name, chunks): json_of(f"solve {line} --placement {name} --chunks {chunks} --quiet")[
                "value"
            ]
            for name, chunks in (("linear", 1), ("interleaved", 2), ("v", 2))
        }
        best = min(row["value"] for row in rows if row["fits_limit"])
        for row in rows:
            assert row["fits_limit"] == (max(row["peak_memory"]) <= 3)
            assert row["ratio_to_best"] == pytest.approx(row["value"] / best)
            row_pipeline = row["schedule"]["pipeline"]
            searched = (row["placement"], row["chunks"]) in optimum
            if row_pipeline["routes"] > 1 or "slices" in row_pipeline or not searched:
                assert (row["ratio_to_optimum"], row["optimum_proved"]) == (None, False)
                continue
            assert row["optimum_proved"] is True
            assert row["ratio_to_optimum"] == pytest.approx(
                row["value"] / optimum[row["placement"], row["chunks"]]
            )
        ranks = [(not row["fits_limit"], row["value"]) for row in rows]
        assert ranks == sorted(ranks) and ranks[0][0] < ranks[-1][0], "those that fit come first"
        values = [(row["placement"], row["value"]) for row in rows if row["strategy"] == "searched"]
        assert sorted(values) == sorted((name, value) for (name, _), value in optimum.items())

    def test_strategies(self) -> None:
        """Only those that are named, and the search; an unknown one is refused by its name."""
        rows = json_of(f"{self.LINE} --strategies 1f1b,GPipe")["rows"]
        assert sorted(row["strategy"] for row in rows) == ["1f1b", "gpipe", "searched"]
        refused = run(f"{self.LINE} --strategies 1f1b,gipe")
        assert (refused.code, refused.err) == (
            2,
            "error: --strategies: 'gipe' is unknown; did you mean gpipe?\n",
        )

    def test_no_placement_is_searched_that_nobody_asked_for(self) -> None:
        rows = json_of(f"{self.LINE} --mem-limit")["rows"]
        assert [row["placement"] for row in rows if row["strategy"] == "searched"] == ["linear"]
        ratios = {row["placement"] for row in rows if row["ratio_to_optimum"] is not None}
        assert ratios == {"linear"}
        ran = done(f"{self.LINE} --mem-limit --placement v,linear").out.splitlines()
        assert "v/2, one route: optimal (proved)" in ran
        assert "linear, one route: optimal (proved)" in ran

    def test_the_table_fits_and_details_are_asked_for(self) -> None:
        line = f"{self.LINE} --time-unit ms --memory-unit MiB --mem-limit"
        short, long = (done(f"{line}{more}").out.splitlines() for more in ("", " --details"))
        assert all(len(row) <= 80 for row in short)
        assert any("cool-down" in row for row in long)
        assert not any("cool-down" in row for row in short)

    def test_idle_time_and_communication(self) -> None:
        """Causes add up to the idle time; a tensor per boundary, direction and microbatch."""
        rows = {row["strategy"]: row for row in json_of(f"{self.LINE} --mem-limit")["rows"]}
        for row in rows.values():
            idle = sum(map(sum, row["idle"].values()))
            assert idle == pytest.approx(row["bubble_rate"] * 2 * row["makespan"])
        assert rows["1f1b"]["communication"] == rows["searched"]["communication"] == 2 * 4
        assert rows["interleaved"]["communication"] == 3 * 2 * 4
        assert rows["zbv"]["communication"] == 2 * 2 * 4

    def test_jitter(self) -> None:
        output = json_of(f"{self.LINE} --mem-limit --jitter 0.2 --seed 3")
        for row in output["rows"]:
            spread = row["jitter"]
            assert (spread["deviation"], spread["samples"], spread["seed"]) == (0.2, 1000, 3)
            assert row["value"] < spread["mean"] < spread["p95"]
            assert spread["degradation"] == pytest.approx(
                spread["mean"] / row["value"] - 1, abs=1e-6
            )
        fitting = [row for row in output["rows"] if row["fits_limit"]]
        minimum = min(fitting, key=lambda row: row["jitter"]["degradation"])
        assert output["steadiest"] == minimum["strategy"]
        text = done(f"{self.LINE} --mem-limit --jitter 0.2 --seed 3").out
        assert f"degrades least: {minimum['strategy']}, with " in text

    def test_skipped(self) -> None:
        output = json_of("compare --batches 2 --placement 0,1,1,0")
        skipped = {entry["strategy"]: entry["reason"] for entry in output["skipped"]}
        strategies = {row["strategy"] for row in output["rows"]}
        assert strategies == {"searched", "1f1b-v", "v-half", "v-min", "zbv"}
        assert all(row["placement"] == [0, 1, 1, 0] for row in output["rows"])
        assert "the list contradicts strategy 1f1b" in skipped["1f1b"]
        line = "compare --batches 2 --placement 0,1,1,0"
        assert "not applicable: 1f1b, " in done(line).out
        assert "skipped 1f1b: " in done(f"{line} --details").out

    def test_infeasible(self) -> None:
        ran = run(f"{self.LINE} --mem-limit 0.5 --json")
        output = ran.json
        assert ran.code == 3
        assert output["status"] == "infeasible"
        assert "is 1" in output["proof"]
        assert output["rows"] != []
        for row in output["rows"]:
            assert row["fits_limit"] is False
            assert row["ratio_to_best"] is None
            assert row["ratio_to_optimum"] is None
        stdout = run(f"{self.LINE} --mem-limit 0.5").out
        assert "linear, one route: infeasible (proved); device 0 needs 1" in stdout

    def test_table_and_files(self, tmp_path: Path) -> None:
        ran = done(f"{self.LINE} -o", tmp_path / "a.html", "-o", tmp_path / "a.json")
        assert "zb-h1" in ran.out
        assert ran.err == ""
        written = json.loads((tmp_path / "a.json").read_text())
        assert written["value"] == 13
        assert "solve_seconds" not in written["rows"][0]
        assert "zb-h1" in (tmp_path / "a.html").read_text()


class TestPartitionSearch:
    MODEL = "layers: [{forward: 1, activation: 1, count: 5}, {forward: 3, activation: 1}]\n"

    def test_solve_and_eval_choose_the_partition(self, tmp_path: Path) -> None:
        """Eight units of F on two devices: (5, 1) needs 15 a microbatch on device 0, (4, 2) 12."""
        file = tmp_path / "model.yaml"
        file.write_text(self.MODEL + "stages: 2\nbatches: 2\npartition: search\n")
        output = json_of(f"solve --config {file} --workers 1")
        assert output["status"] == "optimal" and sum(output["partition"]) == 6
        assert "all 5 partitions of 6 layers into 2 stages" in output["proof"]
        evaluated = json_of(f"eval 1f1b --config {file}")
        chosen = evaluated["partition_search"]
        assert chosen["proved"] and chosen["partitions"] == 5
        assert chosen["lower_bound"] == evaluated["value"] >= output["value"]
        assert "best partition" in done(f"eval 1f1b --config {file}").out


class TestDetails:
    def test_causes_of_idle_time_of_every_device(self) -> None:
        """GPipe, two devices, F = 1, BW = 2: 9 in all; each is busy 6 of it.

        Device 1 waits 1 for its first input and 2 at the end. Device 0 waits for the first backward
        from 2 to 5, which ends on device 1 at 5.
        """
        lines = done("eval gpipe --stages 2 --batches 2 --details").out.splitlines()
        table = lines.index(next(line for line in lines if line.startswith("device busy")))
        assert lines[table].split() == ["device", "busy", "warm-up", "input", "cool-down", "idle"]
        assert lines[table + 2].split() == ["0", "6", "3", "33.3", "%"]
        assert lines[table + 3].split() == ["1", "6", "1", "2", "33.3", "%"]
        assert lines[table + 4] == "input: waiting for an input"

    def test_a_file_of_operations_is_named_where_it_loses(self) -> None:
        line = "eval 1f1b --stages 4 --batches 8 --details --p2p-time"
        assert "for PyTorch" in done(f"{line} 0.1").out
        single = "eval gpipe --stages 2 --batches 1 --details --p2p-time 1"
        assert json_of(single)["operations_alone"]["loss"] == 0
        assert "for PyTorch" not in done(single).out


@pytest.mark.parametrize(
    "line",
    [
        "solve --workers 1",
        "eval 1f1b --jitter 0.1",
        "compare --strategies 1f1b,zb-1p --workers 1",
        "frontier --placement linear --workers 1",
    ],
)
def test_links_are_named(line: str) -> None:
    """`--link-mode` in the table where it is not the default, and in JSON always."""
    line += " --stages 2 --batches 2 --p2p-time 1"
    assert json_of(line)["link_mode"] == "delay"
    assert "links" not in done(line).out
    assert json_of(f"{line} --link-mode streams")["link_mode"] == "streams"
    stdout = " ".join(done(f"{line} --link-mode streams").out.split())
    assert re.search("links:? streams: transfers of two devices run one at a time", stdout)


def test_a_plan_names_its_links() -> None:
    line = "plan --config {} --stages 2 --batches 4 --time-limit 1 --p2p-time 1 --link-mode streams"
    model = Path(__file__).parents[2] / "models" / "llama-3.1-8b.yaml"
    output = json_of(line.format(model))
    assert output["link_mode"] == "streams"
    assert output["schedule"]["pipeline"]["link_mode"] == "streams"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("chimera --stages 2 --batches 3", "--batches: 3 is odd; two routes need an even number"),
        ("chimera --stages 3 --batches 4", "--stages: 3 devices are odd; strategy chimera needs"),
        ("dualpipe-v --stages 2 --batches 3", "--batches: 3 do not fill strategy dualpipe-v on 2"),
        ("interleaved --stages 2 --batches 3 --group-size 1", "--group-size: 1 deadlocks on 2"),
        ("zbv --stages 2 --batches 3 --chunks 3", "--chunks: 3 contradicts strategy zbv"),
    ],
)
def test_a_strategy_that_does_not_apply_is_one_line_and_exit_code_2(
    asked: str, message: str
) -> None:
    refused = run(f"eval {asked}")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith(f"error: {message}")
    assert refused.err.count("\n") == 1
