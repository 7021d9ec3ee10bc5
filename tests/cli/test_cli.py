"""The commands, end to end: what they print, what they write, how they exit."""

from __future__ import annotations

import json
import signal
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import ppopt
from ppopt.cli.application import COMMANDS as GROUPS
from ppopt.formats.models import model_names
from ppopt.verifier import Rule, Violation
from tests.cli.cli_json import OF_SOLVE, UNSOLVED, assert_types
from tests.cli.cli_run import done, json_of, run
from tests.clock import SHORT, late, work_clock
from tests.tiers import slow

UNIT = "--stages 4 --batches 8"
SEARCHED = (
    "--stages 3 --batches 4 --forward-times 3,5,4 --backward-times 7,9,11 --weight-times 2,5,4 "
    "--p2p-time 1 --mem-limit 2"
)
"""A pipeline whose optimum list scheduling does not prove, and a search does at once."""


def kinds(output: dict[str, Any]) -> set[str]:
    return {op[0] for op in output["schedule"]["ops"]}


class TestSolve:
    def test_the_users_own_command(self) -> None:
        """The last of 4 devices waits for 3 forwards, then has 8 times F + B + W = 3 of work."""
        output = json_of("solve --stages 4 --batches 8 --mem-limit")
        assert (output["status"], output["value"], output["lower_bound"]) == ("optimal", 27, 27)
        assert output["gap"] == 0
        assert output["makespan"] == 27
        assert output["bubble_rate"] == 3 / 27
        assert output["bubble_overhead"] == 3 / 24
        assert output["mem_limit"] == [4, 4, 4, 4]
        assert [sum(causes) for causes in zip(*output["idle"].values(), strict=True)] == [3] * 4
        assert output["idle"]["warm-up"] == [0, 1, 2, 3]
        assert output["verified"] is True
        assert "24 of work plus 3 until its first input arrives" in output["proof"]

    def test_unequal_times(self) -> None:
        """Proved by CP-SAT and by the single-device bound alike (design, section 7)."""
        times = "--forward-times 10 --backward-times 20 --weight-times 9 --p2p-time 1"
        output = json_of(f"solve {UNIT} {times} --mem-limit 4")
        assert (output["status"], output["value"]) == ("optimal", 288)

    def test_keys_and_types(self) -> None:
        assert_types(json_of(f"solve {UNIT} --mem-limit"), OF_SOLVE)

    def test_without_a_limit_there_is_none(self) -> None:
        assert json_of(f"solve {UNIT}")["mem_limit"] is None

    def test_a_searched_optimum(self) -> None:
        output = json_of(f"solve {SEARCHED} --workers 1")  # with two, either may prove it first
        assert_types(output, OF_SOLVE)
        assert output["status"] == "optimal"
        assert output["proof"].startswith(
            "dynamic programming over all orders of the 36 operations"
        )
        assert max(output["peak_memory"]) <= 2

    def test_table(self) -> None:
        ran = done(f"solve {UNIT} --mem-limit")
        assert ran.err == ""
        for text in (
            "optimal (proved)",
            "27; lower bound 27",
            "peak 4 on every",
            "device 3: its work",
        ):
            assert text in ran.out

    def test_quiet(self, tmp_path: Path) -> None:
        ran = done(f"solve {UNIT} --quiet -o", tmp_path / "a.json")
        assert (ran.out, ran.err) == ("", "")
        assert (tmp_path / "a.json").exists()

    def test_quiet_json(self) -> None:
        assert json_of(f"solve {UNIT} --quiet")["value"] == 27

    def test_device_span(self) -> None:
        """8 activations on 4 devices: devices that do not wait for each other are never idle."""
        output = json_of(f"solve {UNIT} --objective device-span")
        assert output["objective"] == "device-span"
        assert output["value"] == output["device_span"] == 24
        assert output["bubble_rate"] == 0

    def test_fused(self) -> None:
        """1F1B is optimal for whole backwards: 3 F and 3 BW around 8 times F + BW."""
        output = json_of(f"solve {UNIT} --fused --mem-limit")
        assert output["backward_kind"] == "whole"
        assert (output["status"], output["value"]) == ("optimal", 33)
        assert kinds(output) == {"F", "BW"}

    def test_split(self) -> None:
        assert kinds(json_of(f"solve {UNIT}")) == {"F", "B", "W"}

    def test_provenance(self) -> None:
        output = json_of(f"solve {UNIT} --seed 7 --workers 3")
        assert (output["seed"], output["workers"]) == (7, 3)
        assert output["versions"].keys() == {"ppopt", "python", "ortools", "numpy"}

    def test_out_of_time(self) -> None:
        """Unequal stages, W longer than B and a limit below p: what stays open (design, 7)."""
        times = "10,13,9,14,8,11,12,10,9,13,11,14,8,10,12,9"
        line = f"--stages 16 --batches 32 --forward-times {times} --p2p-time 3 --mem-limit 12"
        with work_clock(SHORT):
            output = json_of(f"solve {line} --weight-times 15 --time-limit 0.5 --workers 1")
        assert output["status"] == "feasible"
        assert output["value"] > output["lower_bound"]
        assert output["gap"] == pytest.approx(1 - output["lower_bound"] / output["value"])
        assert output["verified"] is True
        assert not late(output["solve_seconds"], 0.5)


class TestWorkspaceAndRecompute:
    def test_flags_a_file_and_python_give_the_same_ticks(self, tmp_path: Path) -> None:
        fields = {
            "stages": 2, "batches": 3, "workspace": [0.5, 1.25], "weight_workspace": 0.1,
            "input_workspace": [2, 0], "recompute_time": "0.3", "kept": [0.25, 1],
        }  # fmt: skip
        config, by_flags, by_file = (tmp_path / name for name in ("a.json", "b.json", "c.json"))
        config.write_text(json.dumps(fields))
        listed = {
            key: ",".join(map(str, value)) if isinstance(value, list) else value
            for key, value in fields.items()
        }
        flags = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in listed.items())
        done(f"eval 1f1b {flags} -o", by_flags)
        done("eval 1f1b --config", config, "-o", by_file)
        python = ppopt.evaluate(ppopt.Pipeline(**fields), "1f1b")
        assert by_flags.read_text() == by_file.read_text()
        read, _ = ppopt.read_schedule(by_file)
        assert read.pipeline.ticks == python.pipeline.ticks
        assert read.metrics == python.metrics
        assert json_of("verify", by_file)["verified"] is True


class TestMemLimit:
    @pytest.mark.parametrize(
        ("line", "limits"),
        [
            (f"1f1b {UNIT} --mem-limit", [4, 4, 4, 4]),
            ("1f1b --stages 4 --mem-limit --batches 8", [4, 4, 4, 4]),
            (f"--mem-limit {UNIT} 1f1b", [4, 4, 4, 4]),
            (f"1f1b {UNIT} --mem-limit 1f1b", [4, 4, 4, 4]),
            (f"1f1b {UNIT} --mem-limit 5", [5, 5, 5, 5]),
            (f"1f1b {UNIT} --mem-limit=5.5", [5.5, 5.5, 5.5, 5.5]),
            (f"1f1b {UNIT} --mem-limit 7,6,5,4", [7, 6, 5, 4]),
            (f"1f1b {UNIT} --mem-limit ' 7, 6,5 ,4'", [7, 6, 5, 4]),
            (f"1f1b {UNIT} --static 3 --activation 2 --mem-limit", [11, 11, 11, 11]),
            ("1f1b --stages 4 --batches 2 --mem-limit", [2, 2, 2, 2]),
            (f"dualpipe {UNIT} --static 3,4,5,6 --mem-limit", [7, 7, 7, 7]),
            (f"zbv {UNIT} --mem-limit", [4, 4, 4, 4]),
        ],
    )
    def test_forms(self, line: str, limits: list[float]) -> None:
        """Bare: 1F1B holds min(8, 4 - d) activations on device d, most on device 0.

        Its static memory is that of one route even where there are two: 3 + 4, 4 + 3, 5 + 2, 6 + 1.
        """
        assert json_of(f"eval {line}")["mem_limit"] == limits

    def test_bare_before_the_strategy_takes_it_for_its_value(self) -> None:
        ran = run(f"eval --mem-limit 1f1b {UNIT}")
        example = "ppopt eval zb-1p --stages 4 --batches 8"
        assert (ran.code, ran.err) == (
            2,
            f"error: Missing argument 'STRATEGY'; for example `{example}`\n",
        )

    def test_eval_reports_it(self) -> None:
        """1F1B holds 4, 3, 2, 1 activations."""
        output = json_of(f"eval 1f1b {UNIT} --mem-limit 3")
        assert output["peak_memory"] == [4, 3, 2, 1]
        assert output["mem_limit"] == [3, 3, 3, 3]
        assert output["fits_limit"] is False
        assert output["verified"] is True
        assert "over the limit" in done(f"eval 1f1b {UNIT} --mem-limit 3").out
        assert json_of(f"eval 1f1b {UNIT} --mem-limit 4,3,2,1")["fits_limit"] is True

    def test_eval_and_verify_say_the_same_of_it(self, tmp_path: Path) -> None:
        """Over the limit and nothing else: `eval` reports what `verify` enforces."""
        path = tmp_path / "over.json"
        text = done(f"eval 1f1b {UNIT} --mem-limit 3 --details -o", path).out
        assert "every rule but the limit" in " ".join(text.split())
        ran = run("verify", path, "--json")
        assert (ran.code, ran.json["verified"], ran.json["fits_limit"]) == (5, False, False)
        assert {entry["rule"] for entry in ran.json["violations"]} == {"memory-limit"}
        success = "every other rule and every claimed figure holds"
        assert success in run("verify", path).out
        path.write_text(path.read_text().replace('"makespan": 33', '"makespan": 32'))
        assert success not in run("verify", path).out
        fitting = done(f"eval 1f1b {UNIT} --mem-limit 4 --details -o", path).out
        assert "every rule but" not in fitting
        assert json_of("verify", path)["fits_limit"] is True

    def test_infeasible(self, tmp_path: Path) -> None:
        """One microbatch on a device allocates its activation, 2, and the static memory is 3."""
        line = f"solve {UNIT} --activation 2 --static 3 --mem-limit 4.5 -o"
        ran = run(line, tmp_path / "a.json", "-o", tmp_path / "a.html", "--json")
        output = json.loads(ran.out)
        assert ran.code == 3
        assert output["status"] == "infeasible"
        assert "the minimum feasible limit for all devices is 5" in output["proof"]
        assert {key: output[key] for key in UNSOLVED} == dict.fromkeys(UNSOLVED)
        assert output["mem_limit"] == [4.5] * 4
        assert output["verified"] is False
        assert output.keys() == OF_SOLVE.keys()
        assert ran.err.count("not written") == 2
        assert list(tmp_path.iterdir()) == []
        assert json_of(f"solve {UNIT} --activation 2 --static 3 --mem-limit 5")["verified"] is True

    def test_infeasible_in_words(self) -> None:
        ran = run(f"solve {UNIT} --mem-limit 0.5")
        assert ran.code == 3
        assert "infeasible (proved)" in ran.out


class TestExitCodes:
    def test_interrupted_before_there_is_a_schedule(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ppopt.solver.heuristics.construction.priority_rules", interrupt)
        ran = run(f"solve {UNIT} --json")
        output = ran.json
        assert ran.code == 4
        assert output["status"] == "unknown"
        assert output["verified"] is False
        assert output["schedule"] is None
        assert output["lower_bound"] == 27

    def test_interrupted_before_the_search(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ppopt.cli.settings.Settings.pipeline", interrupt)
        ran = run(f"eval 1f1b {UNIT}")
        assert (ran.code, ran.out) == (4, "")
        assert ran.err == "error: interrupted before there was a result\n"

    def test_interrupted_while_the_result_is_verified(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        line = f"eval 1f1b {UNIT}"
        expected = run(line)
        monkeypatch.setattr("ppopt.verifier.verify", interrupt)
        assert run(line) == expected

    def test_a_bug_of_ours(self, monkeypatch: pytest.MonkeyPatch) -> None:
        late = Violation(Rule.START, (), 0, 0, "starts too early")
        monkeypatch.setattr("ppopt.verifier.verify", lambda *_, **__: [late])
        ran = run(f"eval 1f1b {UNIT} --json")
        assert (ran.code, ran.out) == (1, "")
        assert ran.err.startswith("error: a schedule made here breaks its own rules")


def interrupt(*_: object, **__: object) -> tuple[()]:
    """Press Ctrl-C instead of a part of the work."""
    signal.raise_signal(signal.SIGINT)
    return ()


class TestPlacement:
    @pytest.mark.parametrize(
        ("line", "hosts"),
        [
            ("--stages 2 --batches 2", [0, 1]),
            slow("--stages 2 --batches 2 --placement linear", [0, 1]),
            slow("--stages 2 --batches 2 --chunks 2", [0, 1, 0, 1]),
            ("--stages 2 --batches 2 --placement interleaved", [0, 1, 0, 1]),
            ("--stages 2 --batches 2 --placement v", [0, 1, 1, 0]),
            ("--stages 2 --batches 2 --placement v --chunks 3", [0, 1, 1, 0, 0, 1]),
            ("--batches 2 --placement 0,1,1,0", [0, 1, 1, 0]),
            slow("--stages 4 --batches 2 --placement 0,1,1,0", [0, 1, 1, 0]),
            ("--batches 2 --placement ' 1, 0'", [1, 0]),
            slow("--batches 2 --placement 0", [0]),
        ],
    )
    def test_named_and_explicit(self, line: str, hosts: list[int]) -> None:
        output = json_of(f"solve --workers 1 {line}")
        assert output["schedule"]["pipeline"]["placement"] == hosts
        assert len(output["peak_memory"]) == max(hosts) + 1
        assert {(op[1], op[3]) for op in output["schedule"]["ops"]} == set(enumerate(hosts))

    def test_rounding_is_said(self) -> None:
        ran = done("eval 1f1b --stages 2 --batches 2 --forward-times 1.0000001")
        assert ran.err == "note: finer than 10^-6 and rounded to it: forward\n"

    def test_input_that_is_too_fine_is_rounded_and_said(self, tmp_path: Path) -> None:
        """Speeds of six digits, and factors of six digits, need 2 x 10^19 ticks in one unit."""
        line = (
            "--stages 2 --batches 2 --device-speed 1.000003,0.999983 "
            "--microbatch-times 1.000003,0.999983 --forward-times 123456.789012,1"
        )
        page = tmp_path / "page.html"
        ran = done(f"solve {line} -o {page}")
        assert ran.err.startswith(
            "note: too fine to compute exactly, and rounded: forward by at most "
        )
        assert "too fine to compute exactly, and rounded: forward by at most " in page.read_text()
        output = json_of(f"solve {line}")
        rounded_by = output["schedule"]["pipeline"]["rounded_by"]
        assert output["status"] == "optimal"
        assert {"forward", "device_speed", "microbatch_times"} <= set(rounded_by)
        change, per = rounded_by["forward"]
        assert 0.211 < change / per <= 0.5


QUICK = ("zeropipe-example", "llama-3.1-8b", "internvl2-26b")
"""A pipeline of stages, a model in layers, and one with an encoder."""


class TestModels:
    def test_list(self) -> None:
        lines = done("models").out.splitlines()
        assert [line.split()[0] for line in lines] == list(model_names())

    @pytest.mark.parametrize(
        "name", [name if name in QUICK else slow(name) for name in model_names()]
    )
    def test_each_is_solved(self, name: str) -> None:
        output = json_of(f"solve --model {name} --time-limit 0.2")
        assert output["verified"] is True
        assert output["schedule"]["pipeline"]["name"] == name
        assert f"{name} " in done("models").out

    def test_flags_override_it(self) -> None:
        output = json_of("eval 1f1b --model zeropipe-example --batches 3")
        assert output["schedule"]["pipeline"]["batches"] == 3
        assert output["schedule"]["pipeline"]["stages"] == 4


class TestWordsLeftOver:
    def test_a_pipeline_file_has_its_option(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.yaml"
        file.write_text("stages: 2")
        ran = run("frontier", file)
        error = f"{file}: not expected here; --config {file} reads a pipeline; see ppopt frontier "
        assert (ran.code, ran.out, ran.err) == (2, "", f"error: {error}--help\n")

    @pytest.mark.parametrize("line", ["solve --forward-times 1, 2", "strategies 2", "eval gpipe 2"])
    def test_others(self, line: str) -> None:
        ran = run(line)
        error = f"2: not expected here; see ppopt {line.split(maxsplit=1)[0]} --help"
        assert (ran.code, ran.out, ran.err) == (2, "", f"error: {error}\n")


def test_strategies() -> None:
    lines = done("strategies").out.splitlines()
    names = [line.split()[0] for line in lines]
    assert {"1f1b", "gpipe", "interleaved", "zb-1p", "zb-2p", "zb-h1", "zb-h2"} <= set(names)
    for name in names:
        assert json_of(f"eval {name} --stages 4 --batches 8")["verified"] is True


def test_version() -> None:
    assert done("--version").out == f"ppopt {metadata.version('ppopt-pipeline')}\n"


def test_alone_it_helps() -> None:
    ran = done("")
    assert ran == done("--help")
    for command in (name for group in GROUPS.values() for name in group):
        assert f"\n  {command} " in ran.out


def test_a_frontier_without_a_placement_is_that_of_all() -> None:
    """Two devices, two microbatches: with two chunks per device 6.5 instead of 7."""
    line = "frontier --stages 2 --batches 2 --workers 1 --json"
    of_all = json.loads(run(line).out)
    assert of_all["placements"] == ["linear", "interleaved/2", "v/2"]
    assert of_all["points"][-1]["value"] == 6.5
    linear = json.loads(run(f"{line} --placement linear").out)
    assert (linear["placements"], linear["points"][-1]["value"]) == ([], 7)
