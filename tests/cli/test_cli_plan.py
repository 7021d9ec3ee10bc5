"""`ppopt plan`: its lists, its JSON, its table, its files and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from types import NoneType
from typing import Any

import pytest

from tests.cli.cli_json import (
    BOUND,
    COMMON,
    HEADLINE,
    INT,
    KNOWN_NUMBER,
    LIST,
    OBJECT,
    PARALLEL_ROW,
    PARALLELISM,
    PLACED,
    ROUTES,
    assert_headline,
    assert_types,
)
from tests.cli.cli_run import done, json_of, run
from tests.factories.configs import SMALL

MODEL = """
stages: 2
batches: 2
layers:
  - {name: block, count: 3, forward: 1, activation: 1}
  - {name: head, role: head, forward: 3, backward: 7, weight: 3, activation: 1}
"""
PLANNED = (
    COMMON
    | PLACED
    | ROUTES
    | {key: (*types, NoneType) for key, types in BOUND.items()}
    | {
        "backward_kind": (str,),
        "strategy": (str,),
        "batches": INT,
        "value_per_microbatch": KNOWN_NUMBER,
        "bound_per_microbatch": KNOWN_NUMBER,
        "least_memory": (dict, NoneType),
        "sufficient_memory": (dict, NoneType),
        "within": (dict, NoneType),
        "more_memory": (dict, NoneType),
        "baselines": (list,),
        "late_baselines": (list,),
        "use": OBJECT,
        "rows": LIST,
        "skipped": LIST,
        "space": OBJECT,
    }
    | HEADLINE
)
"""Keys of `ppopt plan --json`, by section 4 of the design."""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "model.yaml"
    path.write_text(MODEL)
    return path


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a plan's files, and its JSON."""
    folder = tmp_path_factory.mktemp("plan")
    (folder / "model.yaml").write_text(MODEL)
    line = f"plan --workers 1 --mem-limit 8 -o {folder / 'best.json'} -o {folder / 'plan.html'}"
    return folder, json_of(f"{line} --config", folder / "model.yaml")


def test_json_has_the_keys_of_solve_and_a_row_per_configuration(
    planned: tuple[Path, dict[str, Any]],
) -> None:
    _, output = planned
    assert_types(output, PLANNED)
    assert_headline(output)
    assert output["status"] == "optimal" and output["gap"] == 0
    rows = output["rows"]
    assert len(rows) == output["space"]["configurations"] == 9
    assert output["space"]["placement"] == ["linear", "interleaved", "v"]
    assert output["space"]["recompute"] == ["none", "full", "search"]
    assert output["space"]["chunks"] == [1, 2] and output["space"]["partition"] == "search"
    best = rows[0]
    assert best["value"] == output["value"] and best["status"] == "optimal"
    assert best["partition"] == output["partition"] and best["ratio_to_best"] == 1
    assert output["placement"] == best["placement"]
    assert {row["status"] for row in rows} <= {"optimal", "pruned", "feasible", "infeasible"}
    for row in rows:
        if row["status"] == "pruned":
            assert row["lower_bound"] >= output["value"]
            assert "device" in row["proof"] or "partitions" in row["proof"]


def test_rows_say_what_is_exposed(config: Path) -> None:
    line = "plan --chunks 1 --placement linear --recompute none --workers 1 --config"
    assert [row["exposed"] for row in json_of(line, config)["rows"]] == [None]
    text = config.read_text().replace("role: head, forward", "role: head, optimizer: 2, forward")
    config.write_text(text)
    output = json_of(line, config)
    (row,) = output["rows"]
    assert output["exposed"] == row["exposed"] == 2


def test_flags_take_lists_and_override_the_file(config: Path) -> None:
    output = json_of(
        "plan --batches 4,2 --placement linear,V --chunks 1 --recompute none --workers 1 --config",
        config,
    )
    asked = [(row["placement"], row["batches"]) for row in output["rows"]]
    assert sorted(asked) == [("linear", 2), ("linear", 4)]
    assert output["batches"] == 4 and output["value_per_microbatch"] == output["value"] / 4
    assert output["lower_bound"] == output["bound_per_microbatch"] * 4


def test_the_table_says_what_is_best_and_what_the_others_lack(config: Path) -> None:
    out = done("plan --placement linear --workers 1 --mem-limit 8 --details --config", config).out
    lines = out[out.index("\nbest: ") + 1 :].splitlines()
    assert lines[1].startswith("status")
    assert "optimal (proved)" in lines[1]
    assert "over all 3 configurations" in out
    statuses = {"best", "searched", "evaluated", "excluded"}
    rows = [line for line in lines if line.startswith("linear ")]
    assert len(rows) == 3 and {row.split()[-1] for row in rows} <= statuses
    assert rows[0].endswith(" best")


def test_the_best_schedule_is_written_and_its_bound_confirmed(
    planned: tuple[Path, dict[str, Any]],
) -> None:
    folder, output = planned
    checked = json_of("verify --bound", folder / "best.json")
    assert checked["verified"] and checked["bound"]["verdict"] == "confirmed"
    assert checked["makespan"] == output["makespan"]
    assert "<html" in (folder / "plan.html").read_text()


def test_nothing_fits_is_exit_code_3(config: Path) -> None:
    line = "plan --placement linear --mem-limit 1 --recompute none --workers 1"
    ran = run(f"{line} --json --config", config)
    assert ran.code == 3
    assert ran.json["status"] == "infeasible" and ran.json["value"] is None
    assert {row["status"] for row in ran.json["rows"]} == {"infeasible"}
    assert "over the limit" in run(f"{line} --config", config).out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("plan --batches 4,x", "batches: 'x' is not a whole number"),
        ("plan --placement diagonal", "placement: 'diagonal' is unknown"),
        ("plan --recompute half", "recompute: 'half' is unknown"),
        ("plan --chunks 0", "chunks: 0"),
        ("plan --stages 9", "4 layers for 9 stages"),
    ],
)
def test_bad_lists_are_one_line(config: Path, line: str, message: str) -> None:
    ran = run(line, "--config", config)
    assert ran.code == 2 and ran.out == ""
    assert ran.err.startswith(f"error: {message}") or message in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "where"),
    [("plan --stages 4 --batches 8", "layers"), ("plan --model zeropipe-example", "--model")],
)
def test_a_pipeline_without_layers_is_refused(line: str, where: str) -> None:
    """Also a bundled one with times of stages, in one line that says what to do."""
    ran = run(line)
    assert ran.code == 2 and ran.err.count("\n") == 1
    assert ran.err.startswith(f"error: {where}: a plan needs a model in layers: `ppopt init`")


def test_the_least_memory_within_a_share_is_told(config: Path) -> None:
    line = f"plan --config {config} --placement linear --recompute none --workers 1"
    output = json_of(f"{line} --within 50%")
    assert output["within"]["memory"] <= output["least_memory"]["value"]
    assert output["within"]["value"] <= 1.5 * output["value"]
    for share, fault in (
        ("fast", "not a number"),
        ("1", "1 is 100 %; write 1% or 0.01"),
        ("2", "2 is 200 %; write 2% or 0.02"),
        ("101%", "not a percentage from 0 to 100"),
    ):
        refused = run(f"{line} --within {share}")
        assert refused.code == 2 and fault in refused.err


ON_EIGHT = (
    "plan --from config.json --gpu h100 --gpus 8 --global-batch 16 --placement linear --chunks 1 "
    "--recompute none --workers 1"
)


ON_TWELVE = ON_EIGHT.replace("--gpus 8", "--gpus 12 --sequence 4608")


class TestOverTheParallelism:
    """Six small layers on eight H100, sixteen sequences of 4096 tokens."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("config.json").write_text(json.dumps(SMALL))

    def test_json_has_the_keys_of_a_plan_and_every_combination(self) -> None:
        """Half of the efficiency for tensor 2: its work alone takes longer than the best step."""
        sizes = "--tensor 1,2,3 --data 1 --microbatch 1"
        line = f"{ON_EIGHT} {sizes} --efficiency 0.4,0.2,0.4 --strategies 1f1b -o best.json"
        output = json_of(line)
        assert_types(output, PLANNED | {"parallelism": OBJECT})
        assert_types(output["parallelism"], PARALLELISM)
        best, beaten = output["parallelism"]["rows"]
        for row in (best, beaten):
            assert_types(row, PARALLEL_ROW)
        assert (best["tensor"], best["devices"], best["batches"]) == (1, 8, 16)
        assert best["value"] == output["value"] == output["makespan"]
        rate = 16 * 4096 / (output["value"] / 1000) / 8
        assert output["parallelism"]["tokens_per_second_per_gpu"] == pytest.approx(rate)
        assert beaten["value"] is None and beaten["lower_bound"] > best["value"]
        assert output["proof"].startswith("over all 2 combinations: 1 searched, 1 ruled out by")
        assert "the minimum bound is that of tensor 1, " in output["proof"]
        (skipped,) = output["parallelism"]["skipped"]
        assert skipped["combination"] == "tensor 3, microbatch 1, data 1"
        assert done("verify best.json").out.startswith("best.json: verified")

    def test_lengths_of_documents_and_their_order(self) -> None:
        """Four microbatches per rank, so that four ranks of two devices remain."""
        lengths = "--microbatch-tokens=[4096,[1024,1024],2048,2048] --order search"
        line = f"{ON_EIGHT} --tensor 1 --context 1 {lengths} --strategies 1f1b --time-limit 1"
        output = json_of(line)
        (row,) = output["parallelism"]["rows"]
        assert (row["data"], row["batches"], row["microbatch"]) == (4, 4, 1)
        rate = 16 * 2560 / (output["value"] / 1000) / 8
        assert output["parallelism"]["tokens_per_second_per_gpu"] == pytest.approx(rate)
        assert "microbatch_times" in output["schedule"]["pipeline"]

    def test_the_table_and_the_page(self) -> None:
        stdout = done(
            f"{ON_EIGHT} --tensor 8 --data 1 --microbatch 1 --strategies 1f1b -o plan.html"
        ).out
        assert stdout.startswith("1 device of 8 GPUs (tensor 8), 16 microbatches, memory limit ")
        assert "\nbest: tensor 8, microbatch 1, data 1: " in stdout
        assert "no combination above" in stdout
        assert "parts of a step (ms):" in stdout and "optimizer" in stdout
        assert "plotly" in Path("plan.html").read_text()

    def test_without_lists_every_size_is_a_combination(self) -> None:
        """Eight GPUs as pipelines of 1 to 8 devices: every tensor times data up to 8."""
        output = json_of(f"{ON_EIGHT} --microbatch 1 --strategies 1f1b --time-limit 60")
        rows = output["parallelism"]["rows"]
        assert sorted((row["tensor"], row["data"]) for row in rows) == sorted(
            (tensor, data) for tensor in (1, 2, 4, 8) for data in (1, 2, 4, 8) if tensor * data <= 8
        )
        assert output["parallelism"]["skipped"] == []
        assert ["--tensor" in command for command in output["parallelism"]["not_searched"]] == [
            True,
            False,
        ]
        assert output["lower_bound"] <= min(row["lower_bound"] for row in rows)

    def test_skipped_combinations_are_told_by_reason(self) -> None:
        """Three ranks share no eight heads, whatever the microbatch; nor do six."""
        line = f"{ON_TWELVE} --tensor 2,3,6 --data 2 --microbatch 1,2 --strategies 1f1b"
        output = json_of(line)["parallelism"]
        assert len(output["skipped"]) == 4
        assert [group["combinations"] for group in output["skipped_by_reason"]] == [2, 2]
        stdout = done(line).out
        assert "skipped: 4 combinations: tensor: 3 ranks cannot share 8 heads" in stdout
        assert "(1 similar)" in stdout

    def test_a_stored_plan_continues(self) -> None:
        """The second command has all states of the first, and searches nothing."""
        line = f"{ON_EIGHT} --tensor 1,2 --data 2 --microbatch 1 --strategies 1f1b"
        first = json_of(f"{line} --storage sqlite:///a.db --study-name mine")
        repeated = json_of(f"{line} --storage sqlite:///a.db --study-name mine")
        states = [
            [(row["tensor"], row["status"], row["value"]) for row in plan["parallelism"]["rows"]]
            for plan in (first, repeated)
        ]
        assert states[0] == states[1]
        storage = repeated["parallelism"]["storage"]
        assert (storage["study"], storage["storage"]) == ("mine", "sqlite:///a.db")
        searched = sum(row["searches"] > 0 for row in first["parallelism"]["rows"])
        assert storage["loaded"] == searched > 0
        assert "mine" in done("studies --storage sqlite:///a.db").out
        assert "tensor" in done("studies show mine --storage sqlite:///a.db").out
        assert done("studies show mine --storage sqlite:///a.db -o mine.html").code == 0

    @pytest.mark.slow
    def test_processes_have_the_same_best(self) -> None:
        line = f"{ON_EIGHT} --tensor 1,2 --data 1,2 --microbatch 1 --strategies 1f1b"
        alone, together = json_of(line), json_of(f"{line} --jobs 2")
        assert alone["value"] == together["value"]
        assert together["workers"] == 1

    def test_calibrated_by_a_file(self) -> None:
        """One measured step, twice as long as derived: all steps are longer."""
        line = f"{ON_EIGHT} --tensor 1 --data 1 --microbatch 1 --strategies 1f1b"
        step = json_of(line)["value"]
        measured = "- {step: %s, devices: 8, batches: 16}"
        Path("steps.yaml").write_text(measured % (2 * step))
        ran = done(f"{line} --json --calibrate steps.yaml")
        assert json.loads(ran.out)["value"] > 1.5 * step
        assert "calibrated: kernels take" in ran.err

    def test_nothing_fits(self) -> None:
        ran = run(f"{ON_EIGHT} --mem-limit 10MiB --strategies 1f1b")
        assert ran.code == 3 and "over the limit" in ran.out

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ("plan --gpus 8 --context 2", "gpus, context: only with --from config.json"),
            ("plan --from config.json --gpus 8 --global-batch 8", "gpu: missing"),
            ("plan --microbatch-tokens=[4096]", "microbatch-tokens: only with --from config.json"),
            (f"{ON_EIGHT} --microbatch-tokens=[0]", "--microbatch-tokens: microbatch 0: 0 is no"),
            (f"{ON_EIGHT} --microbatch-tokens=[4096", "--microbatch-tokens: line 1: not JSON"),
            (f"{ON_EIGHT} --stages 4", "--stages: --from config.json derives it"),
            (f"{ON_EIGHT} --mem-limit", "give a number, 72GiB"),
            (f"{ON_EIGHT} --objective device-span", "objective: not of a plan over the"),
            (f"{ON_EIGHT} --unshard-ahead 2", "unshard-ahead: not of a plan over the"),
            (f"{ON_EIGHT} --backward whole", "not of a plan over the parallelism"),
            (f"{ON_EIGHT} --within 1%", "within: not of a plan over the parallelism"),
            (f"{ON_EIGHT} --batches 4", "batches: --global-batch and --microbatch decide it"),
            (f"{ON_EIGHT} --tensor 3", "no parallelism is left: gpus: 8 is no multiple"),
            ("plan --stages 4 --batches 8 --jobs 2", "jobs: only with --from config.json"),
            ("plan --stages 4 --batches 8 --study-name a", "study-name: only with --from"),
            (f"{ON_EIGHT} --jobs 0", "jobs: 0 is below 1"),
            (f"{ON_EIGHT} --jobs 2 --dask tcp://a:1", "dask: excludes --jobs"),
            (f"{ON_EIGHT} --storage here.db", "storage"),
            (f"{ON_EIGHT} --data 0", "data: 0 is below 1"),
            (f"{ON_EIGHT} --zero 4", "zero: 4 is not within 0 .. 3"),
            (f"{ON_EIGHT} --framework jax", "framework: 'jax' is unknown"),
            (f"{ON_EIGHT} --context-type star", "--context-type: 'star' is unknown"),
            (f"{ON_EIGHT} --freeze tail", "freeze: 'tail' is unknown"),
            (f"{ON_EIGHT} --calibrate none.yaml", "none.yaml"),
            (f"{ON_EIGHT} --efficiency 0.4 --calibrate a.yaml", "efficiency: --calibrate scales"),
            (f"{ON_EIGHT} --tensor 1,x", "tensor: 'x' is not a whole number"),
            (f"{ON_EIGHT} --efficiency much", "efficiency"),
        ],
    )
    def test_refused(self, options: str, message: str) -> None:
        ran = run(f"{options} -o best.json")
        assert (ran.code, ran.out) == (2, "")
        assert message in ran.err and ran.err.count("\n") == 1
        assert not Path("best.json").exists()
