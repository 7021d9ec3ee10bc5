"""`ppopt run`: a schedule in real processes, and what it refuses before any of them starts."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pytest

from tests.clock import HANGS, wait_until
from tests.packages import needed

torch = needed("torch")

from ppopt.cli.running import RunFigures, contradictions
from ppopt.errors import InputError
from ppopt.formats.schedule_json import read_schedule
from ppopt.torch import pipeline_runtime, require
from ppopt.torch.world import PATIENCE, World
from tests.cli.cli_run import done, run
from tests.cli.terminal import of_session, on_terminal, read_until


@pytest.fixture
def native(tmp_path: Path) -> Path:
    path = tmp_path / "a.json"
    done("eval zb-h1 --stages 2 --batches 3 --quiet -o", path)
    return path


def test_an_own_model_runs_no_work_around_the_microbatches(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    done("eval 1f1b --stages 2 --batches 3 --optimizer 1 --quiet -o", path)
    ran = run("run --stages-from model.py:job", path)
    assert ran.code == 2
    assert ran.err == (
        "error: run: with your own model only compute and transfers run as scheduled; "
        "make the schedule without unshard, gradient sync and optimizer\n"
    )


@pytest.mark.slow
def test_sleeping_stages(native: Path, tmp_path: Path) -> None:
    """ZB-H1 of 2 x 3 at unit times ends at 10: F, F, B, W, ... of 9 on device 0 and one gap."""
    line = "run --sleep 0.01 --steps 2 --json"
    ran = done(line, native, "-o", tmp_path / "m.json", "-o", tmp_path / "m.html")
    output = ran.json
    assert output["gradients"] == 4
    assert output["losses"] == 3
    assert output["largest_difference"] <= 1e-12
    assert output["predicted"] == 10
    assert output["time_unit"] is None
    assert output["predicted_seconds"] == pytest.approx(0.1)
    assert output["p2p_seconds"] == 0
    assert output["measured_seconds"] >= 0.1
    assert output["ratio"] == pytest.approx(output["measured_seconds"] / 0.1, rel=1e-3)
    assert len(output["steps"]) == 2
    assert output["versions"] == {"torch": metadata.version("torch")}
    measured, _ = read_schedule(tmp_path / "m.json")
    assert measured.origin.strategy == "measured"
    assert len(measured) == len(read_schedule(native)[0])
    page = (tmp_path / "m.html").read_text(encoding="utf-8")
    assert "zb-h1" in page
    assert "measured" in page


@pytest.mark.slow
def test_links_are_slept_for_and_told(tmp_path: Path) -> None:
    """1F1B of 2 x 1 at unit times ends at 6, and at 10 over links of 2."""
    done("eval 1f1b --stages 2 --batches 1 --p2p-time 2 --quiet -o", tmp_path / "a.json")
    stdout = done("run --sleep 0.01 --steps 1", tmp_path / "a.json").out
    assert "predicted  100.0 ms a step, transfers of up to 20 ms\n" in stdout
    assert float(stdout.split("measured   ")[1].split()[0]) >= 100


@pytest.mark.slow
def test_without_a_length_of_the_unit_the_prediction_stays_in_it(native: Path) -> None:
    stdout = done("run --steps 1", native).out
    assert "predicted  10 units a step by the times of the file, as PyTorch hands over" in stdout
    assert "of the prediction" not in stdout


@pytest.mark.slow
def test_a_measured_step_is_drawn_beside_the_predicted_one(native: Path, tmp_path: Path) -> None:
    """Its operations take their own times: `view` draws it, `verify` says that it is measured."""
    path = tmp_path / "m.json"
    stdout = done("run --steps 1", native, "-o", path).out
    assert "4 gradients and 3 losses as in one process" in stdout
    ran = run("verify", path)
    assert ran.code == 5
    assert "a measured step, not a planned schedule" in ran.out.splitlines()[-1]
    assert run("verify --json", path).json["measured"] is True
    assert run("verify --json", native).json["measured"] is False
    done("view", native, path, "-o", tmp_path / "both.html")
    done("export --to perfetto", path, "-o", tmp_path / "trace.json")
    for line in ("run", "check", f"export --to torch-csv -o {tmp_path}/a.csv"):
        ran = run(line, path)
        assert (ran.code, ran.out) == (2, "")
        assert "a measured step is no planned schedule; give the schedule that ran" in ran.err
    file = json.loads(path.read_text())
    file["ops"].pop()
    path.write_text(json.dumps(file))
    ran = run("view", native, path, "-o", tmp_path / "broken.html")
    assert (ran.code, ran.out) == (2, "")
    assert "missing: " in ran.err


def test_ranks_wait_as_long_as_others_sleep(native: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of 10 units take 1000 s; what ranks wait for each other is set as they start."""
    patiences: list[float] = []

    def begin(_: World, size: int, patience: float, device: str) -> None:
        patiences.extend((size, patience))
        raise InputError("seen")

    monkeypatch.setattr(World, "__init__", begin)
    assert run("run --sleep 50 --steps 1", native).code == 2
    assert patiences[0] == 2
    assert patiences[1] >= PATIENCE + 2 * 10 * 50


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["starting 2 processes", "running 4 steps"])
def test_ctrl_c_ends_every_process(moment: str, native: Path) -> None:
    """One line, and soon nothing left of it; the signal goes to all its processes, as a terminal
    sends it. The steps would take 1000 s."""
    command, terminal = on_terminal(f"run {native} --sleep 100", start_new_session=True)
    try:
        seen = read_until(terminal, moment)
        wait_until(lambda: len(of_session(command.pid)) >= 2)
        os.killpg(command.pid, signal.SIGINT)
        out, _ = command.communicate(timeout=HANGS)
        wait_until(lambda: not of_session(command.pid))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)
    seen += read_until(terminal, None)
    assert (command.returncode, out) == (4, "")
    lines = [line for line in seen.splitlines() if not line.startswith("[Gloo]")]  # PyTorch 2.9
    assert lines[1:] == [
        *(["running 4 steps of 1e+03 s each at least"] if "running" in moment else []),
        "error: interrupted before there was a result",
    ]


class TestRefused:
    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("run nowhere.json", "cannot be read"),
            ("run {native} --sleep fast", "'fast' is not a number"),
            ("run {native} --sleep 0", "give seconds per unit"),
            ("run {native} --steps 0", "--steps"),
            ("run {native} -o a.csv", "cannot write a measured step as an order"),
            ("run {native} -o nowhere/a.json", "the folder nowhere does not exist"),
        ],
    )
    def test_usage(self, line: str, message: str, native: Path) -> None:
        ran = run(line.format(native=native))
        assert (ran.code, ran.out) == (2, "")
        assert message in ran.err
        assert ran.err.count("\n") == 1

    def test_a_pytorch_without_the_runtime(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pipeline_runtime, "_RUNTIME", None)
        monkeypatch.setattr(pipeline_runtime, "PipelineStage", object)
        fault = (
            "has no _PipelineScheduleRuntime._load_csv and no "
            "PipelineStage.backward_weight_one_chunk; schedules run through it. Tested: torch 2.9.1"
        )
        with pytest.raises(InputError, match=fault):
            pipeline_runtime._check_pytorch()

    def test_no_pytorch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing(_: str) -> str:
            raise metadata.PackageNotFoundError

        monkeypatch.setattr(metadata, "version", missing)
        with pytest.raises(InputError, match=r"PyTorch is not installed; install ppopt-pipeline"):
            require()


def figures(predicted: float, steps: tuple[float, ...], measured: float) -> RunFigures:
    """Figures of a run in ms."""
    return RunFigures(
        devices=2, strategy="1f1b", gradients=0, losses=0, largest_difference=None,
        predicted=predicted, time_unit="ms", predicted_seconds=None, p2p_seconds=None,
        measured_seconds=measured, steps=steps, ratio=None, versions={},
    )  # fmt: skip


def test_a_measured_order_that_contradicts_the_predicted_one_is_said() -> None:
    """Every step of a was longer than every step of b; those of c overlap with both."""
    measured = {
        "a.json": figures(10.0, (0.013, 0.012), 0.0125),
        "b.json": figures(11.0, (0.010, 0.011), 0.010),
        "c.json": figures(12.0, (0.010, 0.013), 0.0115),
    }
    assert list(contradictions(measured)) == [
        "measured against predicted: a.json is predicted faster than b.json, and every step of it "
        "took longer (median: 20 % less throughput); `ppopt profile` reads times of a run"
    ]
    measured["b.json"] = measured["b.json"]._replace(time_unit="us")
    assert list(contradictions(measured)) == []
