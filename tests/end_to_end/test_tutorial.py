"""Everything that docs/tutorial.md shows is run, in one folder, from top to bottom."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ppopt import evaluate
from ppopt.formats.config import pipeline_of, read_config
from ppopt.formats.schedule_json import read_schedule
from ppopt.strategies import registry
from tests.packages import needed

torch = needed("torch")

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```(python|console)\n(.*?)```", re.DOTALL)
FILE = re.compile(r"# file: (\w+\.py)\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder after everything ran; outputs of the commands in `outputs.txt`."""
    tutorial = tmp_path_factory.mktemp("tutorial")
    script = ["set -euo pipefail"]
    for kind, body in BLOCK.findall(TEXT):
        if kind == "python":
            name = FILE.match(body)
            assert name is not None, body
            (tutorial / name[1]).write_text(body, encoding="utf-8")
        else:
            lines = body.splitlines()
            assert all(line.startswith("$ ") for line in lines), "write no output: times differ"
            script += [f"echo '{line}'\n{line[2:]}" for line in lines]
    (tutorial / "all.sh").write_text("\n".join(script))
    ran = subprocess.run(
        ["bash", "all.sh"],
        cwd=tutorial,
        env={**os.environ, "PATH": f"{_tools(tutorial)}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:]
    (tutorial / "outputs.txt").write_text(ran.stdout)
    return tutorial


def _tools(folder: Path) -> Path:
    """Commands of this environment, whether or not it is activated."""
    tools = folder / "bin"
    tools.mkdir()
    code = {
        "python": "",
        "ppopt": " -c 'from ppopt.cli import main; main()'",
        "torchrun": " -m torch.distributed.run",
    }
    for name, rest in code.items():
        (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable}{rest} "$@"\n')
        (tools / name).chmod(0o755)
    return tools


def losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^step \d: loss ([\d.]+)$", output, re.MULTILINE)]


def test_the_pipeline_file_is_measured(folder: Path) -> None:
    """Stage 0 splits as PyTorch does it; the last stage has three times the layers of the second;
    F keeps the output of every layer but the last, of 64 x 512 floats, B (but of stage 0) the
    gradient of every layer's output, and weights are there twice."""
    pipeline = pipeline_of(read_config(folder / "pipeline.yaml"))
    assert pipeline.hosts == ((0, 1, 1, 0),)
    costs = pipeline.costs
    assert costs.backward_input[0] < costs.weight[0] / 4
    assert costs.forward[3] > costs.forward[1]
    mebibyte = 2**20
    tensor = 64 * 512 * 4 / mebibyte
    for stage, layers in enumerate((1, 1, 3, 3)):
        assert abs(costs.activation[stage] - (layers - 1) * tensor) < 1e-5
        assert abs(costs.memory_b[stage] - (layers * tensor if stage else 0)) < 1e-5
        assert costs.static[stage] >= 2 * 4 * layers * (512 * 512 + 512) / mebibyte - 1e-5


def test_the_trained_losses_are_those_of_one_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    import model  # type: ignore[import-not-found]  # noqa: PLC0415  of the tutorial

    parts = [model.module(index) for index in range(4)]
    network = torch.nn.Sequential(*parts)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    expected = []
    for _ in range(3):
        optimizer.zero_grad()
        inputs, targets = model.batch()
        loss = torch.nn.functional.mse_loss(network(inputs), targets)
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    trained = losses((folder / "outputs.txt").read_text())
    assert trained == pytest.approx(expected, abs=2e-5)
    assert trained == sorted(trained, reverse=True)


def test_the_schedule_and_its_run(folder: Path) -> None:
    stored, _ = read_schedule(folder / "again.json")
    measured, _ = read_schedule(folder / "measured.json")
    assert len(measured) == len(stored)
    output = (folder / "outputs.txt").read_text()
    assert "8 gradients and 6 losses as in one process" in output
    assert (folder / "references" / "v-2x6.json").exists()
    for name in ("best.html", "beside.html", "best.csv", "best.trace.json"):
        assert (folder / name).stat().st_size > 0


def test_it_ends_with_the_best_beside_every_hand_strategy(folder: Path) -> None:
    """Within the limit no baseline is better; those that need other placements are named."""
    comparison = json.loads((folder / "all.json").read_text())
    rows = {row["strategy"]: row for row in comparison["rows"]}
    assert {"searched", "zbv", "v-min", "v-half", "1f1b-v"} <= rows.keys()
    left_out = {row["strategy"] for row in comparison["skipped"]}
    assert rows.keys() - {"searched"} | left_out == set(registry())
    fitting = [row["value"] for row in rows.values() if row["fits_limit"]]
    assert len(fitting) > 1
    assert rows["searched"]["value"] == min(fitting)


def test_what_was_measured_by_hand_is_solved_and_runs(folder: Path) -> None:
    """Devices 0 and 1 have four layers each; V-Min lets them wait, the solved order hardly does:
    it is shorter at the very times that the run by hand took, however busy the machine was."""
    best, _ = read_schedule(folder / "again.json")
    pipeline = replace(pipeline_of(read_config(folder / "again.yaml")), mem_limit=14)
    assert best.pipeline.costs == pipeline.costs
    assert best.metrics.makespan_ticks < evaluate(pipeline, "v-min").metrics.makespan_ticks
    output = (folder / "outputs.txt").read_text()
    predicted = re.findall(r"^predicted +([\d.]+) ms a step", output, re.MULTILINE)
    measured = re.findall(r"^measured +([\d.]+) ms a step", output, re.MULTILINE)
    assert (len(predicted), len(measured)) == (2, 2)
    assert float(predicted[1]) == pytest.approx(
        10 * float(best.pipeline.ticks.time(best.metrics.makespan_ticks)), abs=0.06
    )
