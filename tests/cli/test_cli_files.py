"""Files in and out of the command line: configs, schedule files, pages."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import ppopt
from ppopt.report.svg import WIDTH, svg
from ppopt.verifier import Rule
from tests.cli.cli_json import VERIFIED, assert_types
from tests.cli.cli_run import done, json_of, process, run
from tests.tiers import first

UNIT = "--stages 4 --batches 8"
SEARCHED = (
    "--stages 3 --batches 3 --forward-times 3,5,4 --backward-times 7,9,11 --weight-times 2,5,4 "
    "--p2p-time 1 --mem-limit 2 --workers 1"
)
"""A pipeline that needs CP-SAT, which proves its optimum in a fraction of a second."""


CONFIGS = {
    ".yaml": """
stages: 2
batches: 3
forward: [1, 2.5]
mem_limit: 1f1b
objective: device-span
""",
    ".json": """
{"stages": 2, "batches": 3, "forward": [1, 2.5], "mem_limit": "1f1b", "objective": "device-span"}
""",
    ".toml": """
stages = 2
batches = 3
forward = [1, 2.5]
mem_limit = "1f1b"
objective = "device-span"
""",
}
"""The same settings in every format."""


class TestConfig:
    @pytest.mark.parametrize("suffix", CONFIGS)
    def test_every_format_says_what_flags_say(self, suffix: str, tmp_path: Path) -> None:
        path = tmp_path / f"a{suffix}"
        path.write_text(CONFIGS[suffix])
        flags = "--stages 2 --batches 3 --forward-times 1,2.5 --mem-limit --objective device-span"
        read, by_flags = json_of("eval 1f1b --config", path), json_of(f"eval 1f1b {flags}")
        assert read.pop("solve_seconds") >= 0 <= by_flags.pop("solve_seconds")
        assert read == by_flags

    def test_flags_override_it(self, tmp_path: Path) -> None:
        path = tmp_path / "a.yaml"
        path.write_text(CONFIGS[".yaml"])
        line = "eval 1f1b --batches 5 --forward-times 3 --objective makespan --mem-limit 9 --config"
        output = json_of(line, path)
        pipeline = output["schedule"]["pipeline"]
        assert (pipeline["batches"], pipeline["forward_times"]) == (5, [3, 3])
        assert (output["objective"], output["mem_limit"]) == ("makespan", [9, 9])

    def test_it_overrides_the_model(self, tmp_path: Path) -> None:
        path = tmp_path / "a.yaml"
        path.write_text("batches: 5\n")
        line = "eval 1f1b --model zeropipe-example --config"
        assert json_of(line, path)["schedule"]["pipeline"]["batches"] == 5
        assert json_of(f"{line} {path} --batches 6")["schedule"]["pipeline"]["batches"] == 6

    def test_a_full_backward_by_flag_makes_an_older_b_void(self, tmp_path: Path) -> None:
        path = tmp_path / "a.yaml"
        path.write_text("stages: 2\nbatches: 2\nbackward_input: 1\nweight: 2\n")
        output = json_of("eval zb-1p --backward-times 6 --config", path)
        assert output["schedule"]["pipeline"]["input_times"] == [4, 4]

    @pytest.mark.parametrize("suffix", [".yaml", ".json"])
    def test_flat_form(self, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The form of the starting systems loads unchanged, and its picture is written."""
        settings = {
            "num_stages": 4,
            "num_batches": 8,
            "forward_times": [1.0, 1.0, 1.0, 1.0],
            "backward_times": [2.0, 2.0, 2.0, 2.0],
            "p2p_time": 0.0,
            "output_file": "picture.png",
        }
        flat = "".join(f"{key}: {value}\n" for key, value in settings.items())
        path = tmp_path / f"a{suffix}"
        path.write_text(flat if suffix == ".yaml" else json.dumps(settings))
        monkeypatch.chdir(tmp_path)
        ran = done("eval 1f1b --config", path)
        assert "33" in ran.out
        assert ran.err == ""
        assert {entry.name for entry in tmp_path.iterdir()} == {path.name, "picture.png"}
        assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG\r\n")

    def test_output_by_flag_replaces_that_of_the_config(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "a.yaml").write_text("stages: 2\nbatches: 2\noutput: [x.json, y.json]\n")
        monkeypatch.chdir(tmp_path)
        done("eval 1f1b --quiet --config a.yaml -o z.json")
        assert {entry.name for entry in tmp_path.iterdir()} == {"a.yaml", "z.json"}
        done("eval 1f1b --quiet --config a.yaml")
        assert {entry.name for entry in tmp_path.iterdir()} == {
            *("a.yaml", "x.json", "y.json", "z.json")
        }


class TestOutput:
    def test_page_and_file(self, tmp_path: Path) -> None:
        line = f"solve {UNIT} --mem-limit --json -o"
        ran = done(line, tmp_path / "a.html", "-o", tmp_path / "a.JSON")
        page = (tmp_path / "a.html").read_text(encoding="utf-8")
        assert json.loads((tmp_path / "a.JSON").read_text()) == ran.json["schedule"]
        assert page.startswith("<!doctype html>")
        assert "optimal (proved)" in page

    def test_the_same_name_twice_is_written_once(self, tmp_path: Path) -> None:
        ran = done(f"eval 1f1b {UNIT} -o", tmp_path / "a.html", "-o", tmp_path / "a.html")
        assert ran.err == ""
        assert [entry.name for entry in tmp_path.iterdir()] == ["a.html"]

    def test_pictures(self, tmp_path: Path) -> None:
        """SVG is that of notebooks; PNG has twice its size. A comparison shows the best that fits:
        ZB-1P, where GPipe holds 8 activations."""
        schedule = ppopt.evaluate(ppopt.Pipeline(stages=4, batches=8), "1f1b")
        done(f"eval 1f1b {UNIT} -o", tmp_path / "a.svg", "-o", tmp_path / "a.png")
        assert (tmp_path / "a.svg").read_text() == svg(schedule)
        data = (tmp_path / "a.png").read_bytes()
        assert data.startswith(b"\x89PNG\r\n")
        assert int.from_bytes(data[16:20]) == 2 * WIDTH
        line = f"compare {UNIT} --mem-limit --strategies gpipe,zb-1p -o"
        done(line, tmp_path / "b.svg")
        assert "27" in (tmp_path / "b.svg").read_text()
        ran = done("frontier --stages 2 --batches 2 --placement linear -o", tmp_path / "c.svg")
        assert "written as a page" in ran.err
        assert (tmp_path / "c.html").exists()

    @pytest.mark.parametrize("line", first(1, [f"solve {SEARCHED}", f"eval zb-2p {UNIT}"]))
    def test_a_second_run_writes_the_same_bytes(self, line: str, tmp_path: Path) -> None:
        """Once here, once in a process with other hashes."""
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
        outputs = "-o {0}/x.json -o {0}/x.html --quiet"
        done(f"{line} {outputs.format(tmp_path / 'a')}")
        assert process(f"{line} {outputs.format(tmp_path / 'b')}").communicate() == ("", "")
        for name in ("x.json", "x.html"):
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()

    def test_it_replaces_what_was_there_and_keeps_its_mode(self, tmp_path: Path) -> None:
        path = tmp_path / "a.json"
        path.write_text("old")
        path.chmod(0o640)
        done(f"eval 1f1b {UNIT} -o", path)
        assert json.loads(path.read_text())["schema"] == 2
        assert path.stat().st_mode & 0o777 == 0o640
        assert list(tmp_path.iterdir()) == [path]


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The optimum of 4 stages and 8 microbatches at the limit of 1F1B, as written by -o."""
    path = tmp_path_factory.mktemp("native") / "best.json"
    done(f"solve {UNIT} --p2p-time 0.5 --mem-limit -o", path)
    return path


Change = Callable[[dict[str, Any]], object]
TAMPERED: dict[str, Change] = {
    "unknown-operation": lambda file: file["ops"][0].__setitem__(1, 7),
    "duplicate": lambda file: file["ops"].append(file["ops"][0]),
    "missing": lambda file: file["ops"].pop(),
    "wrong-device": lambda file: op(file, "W", 3, 7).__setitem__(3, 2),
    "duration": lambda file: op(file, "W", 0, 7).__setitem__(5, op(file, "W", 0, 7)[5] + 1),
    "start": lambda file: shift(op(file, "F", 0, 0), -1),
    "forward-order": lambda file: shift(op(file, "F", 1, 0), -1),
    "backward-order": lambda file: shift(op(file, "B", 2, 0), -1),
    "weight-order": lambda file: op(file, "W", 0, 7).__setitem__(slice(4, 6), [0, 2]),
    "overlap": lambda file: shift(op(file, "F", 0, 1), -1),
    "memory-limit": lambda file: file["pipeline"].update(
        mem_limit=[3, 3, 3, 3], mem_limit_given="number"
    ),
    "claim": lambda file: file["claims"].update(makespan=file["claims"]["makespan"] - 1),
}


def unpair(file: dict[str, Any]) -> None:
    """One of an overlapped pair is said to run with nothing."""
    next(row for row in file["ops"] if row[8] is not None)[8] = 99


def hurry(file: dict[str, Any]) -> None:
    """The second slice of a microbatch starts before the first has ended."""
    move(next(row for row in file["ops"] if (*row[:3], row[7]) == ("F", 0, 0, 1)), -1)


STREAMS = "eval 1f1b --stages 2 --batches 3 --p2p-time 1 --link-mode streams"
"""F(0,0) and F(0,1) end at 1 and 2; their transfers run from 1 to 2 and from 2 to 3. F(1,2) starts
at 10, where the transfer that brings its input ends."""
STEP = "eval zbv --stages 2 --batches 4 --unshard 2 --gradient-sync 2 --optimizer 2"
"""Device 0 gathers stage 0 from 0 to 1 and stage 3 from 1 to 2."""
MOVES = "eval 1f1b --stages 2 --batches 2 --offload-time 1 --offload-memory 1"
TAMPERED_OTHERS: dict[str, tuple[str, Change]] = {
    "pair": ("eval dualpipe --stages 4 --batches 8 --overlap-times 3", unpair),
    "slice-order": ("eval seq-1f1b --stages 2 --batches 2", hurry),
    "transfer": (STREAMS, lambda file: file["ops"].pop()),
    "transfer-time": (STREAMS, lambda file: file["ops"][-1].__setitem__(5, file["ops"][-1][5] + 1)),
    "send-order": (STREAMS, lambda file: move(op(file, "SEND_F", 0, 0), -1)),
    "receive-order": (STREAMS, lambda file: move(op(file, "SEND_F", 0, 2), 1)),
    "link-overlap": (STREAMS, lambda file: move(op(file, "SEND_F", 0, 1), -1)),
    "auxiliary-operation": (STEP, lambda file: file["ops"].remove(once(file, "OPTIMIZER"))),
    "auxiliary-time": (STEP, lambda file: once(file, "OPTIMIZER").__setitem__(5, 99)),
    "unshard-order": (STEP, lambda file: move(once(file, "UNSHARD"), 99)),
    "gradient-sync-order": (STEP, lambda file: move(once(file, "GRADIENT_SYNC"), -1)),
    "optimizer-order": (STEP, lambda file: move(once(file, "OPTIMIZER"), -1)),
    "collective-overlap": (STEP, lambda file: move(once(file, "UNSHARD", 3), -1)),
    "offload-order": (MOVES, lambda file: move(op(file, "OFFLOAD", 0, 0), -1)),
    "reload-order": (MOVES, lambda file: move(op(file, "RELOAD", 0, 0), -99)),
    "host-overlap": (MOVES, lambda file: meet(file, "OFFLOAD")),
}
"""What plain schedules have not: pairs, slices, transfers, gradient work, moves to the host."""


@cache
def verified_file(command: str) -> str:
    """The schedule file of a command, which `verify` accepts."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.json"
        done(f"{command} -o", path)
        assert done("verify", path).code == 0
        return path.read_text()


def op(file: dict[str, Any], kind: str, stage: int, microbatch: int) -> list[Any]:
    (row,) = (row for row in file["ops"] if row[:3] == [kind, stage, microbatch])
    return row


def once(file: dict[str, Any], kind: str, stage: int = 0) -> list[Any]:
    """Work of a stage, or of device 0, around the microbatches."""
    stage_or_none = None if kind == "OPTIMIZER" else stage
    return next(row for row in file["ops"] if row[:3] == [kind, stage_or_none, None])


def meet(file: dict[str, Any], kind: str) -> None:
    """The first two of a kind start together."""
    first, second = (op(file, kind, 0, microbatch) for microbatch in (0, 1))
    move(second, first[4] - second[4])


def move(row: list[Any], ticks: int) -> None:
    """Another start and end; the other fields stay."""
    row[4:6] = [row[4] + ticks, row[5] + ticks]


def shift(row: list[Any], ticks: int) -> None:
    row[4:] = [row[4] + ticks, row[5] + ticks]


class TestVerify:
    def test_verified(self, native: Path) -> None:
        ran = done("verify", native)
        assert ran.out.startswith(f"{native}: verified: 96 operations")
        assert ran.err == ""
        assert done("verify --quiet", native).out == ""

    def test_json(self, native: Path) -> None:
        output = json_of("verify", native)
        assert output["violations"] == []
        assert_types(output, VERIFIED)
        assert output["verified"] is True
        claims = json.loads(native.read_text())["claims"]
        assert output["peak_memory"] == claims["peak_memory"]
        assert output["makespan"] == claims["makespan"] / 2

    @pytest.mark.parametrize("rule", TAMPERED)
    def test_tampered(self, rule: str, native: Path, tmp_path: Path) -> None:
        file = copy.deepcopy(json.loads(native.read_text()))
        TAMPERED[rule](file)
        path = tmp_path / "bad.json"
        path.write_text(json.dumps(file))
        ran = run("verify", path)
        assert (ran.code, ran.err) == (5, "")
        assert f"{rule}: " in ran.out
        assert run("verify --quiet", path) == (5, "", "")
        tampered = run("verify --json", path)
        assert tampered.code == 5
        assert tampered.json["verified"] is False
        assert rule in {entry["rule"] for entry in tampered.json["violations"]}
        for entry in tampered.json["violations"]:
            assert entry.keys() == {"rule", "ops", "device", "time", "message"}

    @pytest.mark.parametrize("rule", TAMPERED_OTHERS)
    def test_tampered_pairs_slices_and_transfers(self, rule: str, tmp_path: Path) -> None:
        command, change = TAMPERED_OTHERS[rule]
        path = tmp_path / "a.json"
        path.write_text(verified_file(command))
        file = json.loads(path.read_text())
        change(file)
        path.write_text(json.dumps(file))
        ran = run("verify", path)
        assert (ran.code, ran.err) == (5, "")
        assert f"{rule}: " in ran.out

    def test_a_file_that_claims_more_than_it_holds(self, native: Path, tmp_path: Path) -> None:
        """Fifty thousand operations of a kind, of which a few are there: the rest is counted."""
        document = json.loads(native.read_text())
        stages = document["pipeline"]["stages"]
        document["pipeline"]["batches"] = 50_000 // stages
        path = tmp_path / "more.json"
        path.write_text(json.dumps(document))
        ran = run("verify", path)
        assert ran.code == 5
        assert len(ran.out) < 200_000
        missing = 2 * stages * (50_000 // stages - 8)
        assert f"\nmissing: {missing - 1000} more, not listed\n" in ran.out
        assert len(run("verify --json", path).json["violations"]) < 1100

    def test_every_rule_is_tried(self) -> None:
        assert {*TAMPERED, *TAMPERED_OTHERS} == {rule.value for rule in Rule}

    def test_a_strategy_over_the_limit_is_no_valid_file(self, tmp_path: Path) -> None:
        path = tmp_path / "a.json"
        done(f"eval gpipe {UNIT} --mem-limit 4 -o", path)
        ran = run("verify", path)
        assert ran.code == 5
        assert "memory-limit: " in ran.out


class TestView:
    def test_several_on_one_page(self, native: Path, tmp_path: Path) -> None:
        gpipe = tmp_path / "gpipe.json"
        done(f"eval gpipe {UNIT} --mem-limit 4 -o", gpipe)
        ran = done("view", native, gpipe, "-o", tmp_path / "page.html")
        assert (ran.out, ran.err) == ("", "")
        page = (tmp_path / "page.html").read_text(encoding="utf-8")
        for text in ("gpipe", "optimal (proved)", "over the memory limit"):
            assert text in page

    @pytest.mark.parametrize("suffix", ["pdf", "jpg"])
    def test_a_kind_of_file_that_is_not_written_is_refused(
        self, native: Path, tmp_path: Path, suffix: str
    ) -> None:
        ran = run("view", native, "-o", tmp_path / f"a.{suffix}")
        assert ran.code == 2 and "end it in .html, .svg, .png, .json, .csv" in ran.err
        assert not list(tmp_path.glob("a.*"))

    def test_it_draws_nothing_that_is_not_a_schedule(self, native: Path, tmp_path: Path) -> None:
        file = json.loads(native.read_text())
        file["ops"].pop()
        path = tmp_path / "bad.json"
        path.write_text(json.dumps(file))
        ran = run("view", path, "-o", tmp_path / "a.html")
        assert (ran.code, ran.out) == (2, "")
        assert "missing: " in ran.err
        assert "lists all violations" in ran.err
        assert not (tmp_path / "a.html").exists()


class TestVerifyBound:
    def test_a_bound_is_proved_again(self, tmp_path: Path) -> None:
        path = tmp_path / "a.json"
        done(f"solve {SEARCHED} --quiet -o", path)
        ran = done("verify --bound", path)
        assert "verified" in ran.out
        assert "confirmed" in ran.out
        output = json_of("verify --bound", path)["bound"]
        assert output["verdict"] == "confirmed"
        assert output["counterexample"] is None
        stated = json.loads(path.read_text())["origin"]
        assert output["lower_bound"] == stated["lower_bound"] == stated["value"]

    def test_a_false_one_is_answered_by_a_better_schedule(self, tmp_path: Path) -> None:
        """With links of length 1 1F1B takes 26, GPipe 22: 6 x 3 and 2 links each way."""
        path = tmp_path / "a.json"
        done("eval 1f1b --stages 3 --batches 4 --p2p-time 1 --quiet -o", path)
        document = json.loads(path.read_text())
        claim = {"status": "optimal", "backward_kind": "whole", "lower_bound": 26, "gap": 0}
        document["origin"] |= claim
        path.write_text(json.dumps(document))
        assert done("verify", path).code == 0
        ran = run("verify --bound", path)
        assert (ran.code, ran.err) == (5, "")
        assert "bound 26 wrong: there is a schedule of" in ran.out
        output = run("verify --bound --json", path).json["bound"]
        assert output["counterexample"]["claims"]["makespan"] <= 22

    def test_out_of_time_is_no_confirmation(self, tmp_path: Path) -> None:
        """The least time that a re-check gets is a small part of what 24 microbatches take."""
        path = tmp_path / "a.json"
        done(f"solve {SEARCHED} --batches 24 --quiet -o", path)
        ran = run("verify --bound --time-limit 1e-6", path)
        assert ran.code == 4
        assert "not confirmed" in ran.out

    def test_without_a_bound_there_is_nothing_to_check(self, tmp_path: Path) -> None:
        path = tmp_path / "a.json"
        done(f"eval 1f1b {UNIT} --quiet -o", path)
        ran = run("verify --bound", path)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith(f"error: {path}: there is no bound to check")
        assert "schedule of the strategy 1f1b" in ran.err and ran.err.count("\n") == 1
        done("solve --time-limit 5 --workers 1 --quiet --hint", path, "-o", path)
        assert run("verify --bound", path).code == 0, "what the message names finds a bound"

    def test_a_broken_certificate_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "a.json"
        done(f"solve {SEARCHED} --quiet -o", path)
        good = path.read_text()
        for wrong, error in (
            ('{"argument": "magic", "devices": []}', "argument: 'magic' is unknown"),
            ('{"argument": "work"}', "devices is missing"),
            ('{"argument": "work", "devices": 3}', "devices: 3 is not a list"),
            ('{"argument": "work", "devices": [-1]}', "devices: entry 0: -1 is not within"),
            ("[]", "is not an object"),
        ):
            document = json.loads(good)
            document["origin"]["certificate"] = json.loads(wrong)
            path.write_text(json.dumps(document))
            ran = run("verify", path)
            assert (ran.code, ran.out) == (2, "")
            assert "origin: certificate: " in ran.err and error in ran.err
