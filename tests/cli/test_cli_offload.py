"""Offload on the command line: chosen, shown, written, and refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_run import done, json_of, run
from tests.packages import needed

LAYER = {
    "forward": 2,
    "activation": 1,
    "count": 2,
    "recompute": {"time": 1, "activation": 0},
    "offload_time": 1,
}
STEP = "eval 1f1b --stages 2 --batches 4 --offload-memory 1 --offload-time 1 -o"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A model of two layers alike; each may recompute or offload."""
    file = tmp_path / "model.json"
    layer = LAYER | {"recompute": False, "recompute_time": 1}
    file.write_text(json.dumps({"num_stages": 2, "num_batches": 2, "layers": [layer]}))
    return file


def test_layers_that_offload_are_chosen_and_confirmed(config: Path, tmp_path: Path) -> None:
    """Stage 0 would hold 2 of 1; 1F1B has nothing to move on the last stage."""
    saved = tmp_path / "best.json"
    line = f"solve --config {config} --offload search --mem-limit 1 --time-limit 600 --workers 1"
    output = json_of(f"{line} -o {saved}")
    assert output["status"] == "optimal"
    assert output["offload"][0] > 0
    assert sum(run["last"] - run["first"] + 1 for run in output["offloaded_layers"]) == sum(
        output["offload"]
    )
    assert output["recompute"] == [0, 0]
    checked = done("verify --bound", saved).out
    assert f"and {2 * 2 * sum(map(bool, output['offload']))} to the host and back" in checked
    assert "confirmed: all choices of offload are excluded: " in checked


@pytest.mark.parametrize("flags", ["--offload all", "--recompute full"])
def test_layers_without_backward_do_neither(tmp_path: Path, flags: str) -> None:
    """The first two are frozen: they have nothing to keep for a backward."""
    file = tmp_path / "model.json"
    frozen = {"name": "encoder", "count": 2, "forward": 1, "activation": 1, "frozen": True}
    trained = {"name": "block", "count": 2, "forward": 1, "activation": 1}
    layers = [layer | {"offload_time": 1} for layer in (frozen, trained)]
    file.write_text(json.dumps({"stages": 2, "batches": 2, "layers": layers}))
    output = json_of(f"eval 1f1b --config {file} {flags} --partition 2,2")
    which = "offload" if "offload" in flags else "recompute"
    assert output[which] == [0, 2]
    runs = output["offloaded_layers" if which == "offload" else "recomputed_layers"]
    assert runs == [{"name": "block", "first": 2, "last": 3, "modules": None}]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("solve --recompute full --offload search", "does not go with recompute full"),
        ("solve --recompute full --offload all", "does not go with recompute full"),
        ("solve --routes 2 --offload search", "search knows no routes above 1; give none or all"),
        ("plan --offload search --runtime torch", "search knows no --runtime torch"),
        ("solve --offload some", "'some' is unknown; use none, all or search"),
    ],
)
def test_what_does_not_go_is_refused_in_a_line(config: Path, line: str, message: str) -> None:
    refused = run(f"{line} --config {config} --mem-limit 9")
    assert refused.code == 2
    assert message in refused.err
    assert "Traceback" not in refused.err


def test_a_plan_keeps_the_link_to_the_host(config: Path) -> None:
    """Of two ways with one way each: the plan's schedule has the link of its pipeline."""
    line = f"plan --config {config} --offload all --host-link shared --workers 1"
    line += " --placement linear --recompute none --strategies 1f1b"
    saved = config.with_name("plan.json")
    done(line, "-o", saved)
    assert json.loads(saved.read_text())["pipeline"]["host_link"] == "shared"


@pytest.mark.slow
def test_a_plan_chooses_partition_recompute_and_offload_together(tmp_path: Path) -> None:
    """Recompute alone takes 46, see `solve`; a layer that moves in place of it saves 2."""
    layer = {"forward": 2, "activation": 1, "count": 4, "recompute_time": 2, "offload_time": 1}
    model, saved = tmp_path / "model.json", tmp_path / "best.json"
    model.write_text(json.dumps({"stages": 2, "batches": 3, "layers": [layer]}))
    line = f"plan --config {model} --mem-limit 3 --placement linear --workers 1 --time-limit 600"
    plan = json_of(f"{line} --offload search -o {saved}")
    assert (plan["status"], plan["value"], plan["offload"]) == ("optimal", 44, [1, 0])
    assert plan["space"]["offload"] == "search"
    assert "confirmed" in done("verify", "--bound", saved).out
    assert json_of(f"{line} --offload none")["value"] == 46


def test_an_order_for_pytorch_says_that_nothing_moves(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    done(STEP, path)
    assert "16 operations and 16 to the host and back, every rule" in done("verify", path).out
    for form in ("torch-csv", "torch-comms"):
        exported = done(f"export {path} --to {form} -o {tmp_path / form}.csv")
        assert "note: this order moves no activation to the host" in exported.err
        assert "unshard" not in exported.err


def test_pytorch_does_not_run_moves(tmp_path: Path) -> None:
    needed("torch")
    path = tmp_path / "a.json"
    done(STEP, path)
    assert "run: it moves no activation to the host" in run(f"run {path}").err
