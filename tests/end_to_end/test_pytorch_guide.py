"""The commands of docs/pytorch.md, in one folder, from top to bottom."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from ppopt.formats.config import pipeline_of, read_config
from ppopt.formats.schedule_json import read_schedule
from ppopt.problem import layout
from tests.cli.cli_run import done, run

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "pytorch.md").read_text(encoding="utf-8")
COMMANDS = [
    line.removeprefix("$ ppopt ")
    for block in re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
    for line in block.splitlines()
]


def test_a_small_transformer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Embedding, six blocks and head become two stages, with exact gradients: 78 weights."""
    monkeypatch.chdir(tmp_path)
    example = DOCS / "examples" / "small_transformer.py"
    Path(example.name).write_text(example.read_text(encoding="utf-8"), encoding="utf-8")
    ran = [done(line) for line in COMMANDS]
    outputs = [each.out for each in ran]
    assert [line.split()[0] for line in COMMANDS] == [
        "profile", "solve", "run", "eval", "run", "profile"
    ]  # fmt: skip
    model = pipeline_of(read_config(Path("model.yaml"))).model
    assert model is not None
    assert [layer.name for layer in model.layers] == ["Embedding", *["Block"] * 6, "Head"]
    assert layout.write(model, [len(model)]) == "Et*6L"
    done("export best.json --to torchtitan -o keys.toml")
    first, last = tomllib.loads(Path("keys.toml").read_text())["parallelism"][
        "module_fqns_per_model_part"
    ]
    blocks = [f"layers.{block}" for block in range(6)]
    assert [*first, *last] == ["tok_embeddings", *blocks, "norm", "lm_head"]
    assert "78 gradients and 8 losses as in one process" in outputs[2]
    assert re.search(
        r"^best.json: .*\n.*\n^predicted .*\n^measured .*\n^hand.json: ", outputs[4], re.M
    )
    begun = r"^ *\d+\.\d s  "
    assert re.search(begun + "loaded the model; building its modules on cpu", ran[0].err, re.M)
    assert re.search(begun + "computing a step of the whole model in one", ran[2].err, re.M)
    assert re.search(begun + "running 6 steps of 2 schedules by turns", ran[4].err, re.M)
    assert done(f"{COMMANDS[2]} --unchecked --quiet").err == ""
    best, _ = read_schedule(Path("best.json"))
    measured = pipeline_of(read_config(Path("stages.yaml")))
    assert measured.hosts == best.pipeline.hosts
    assert measured.costs.backward_input[0] < measured.costs.backward_input[1] / 10
    _refusals()


def _refusals() -> None:
    """What goes wrong is one line, before any process starts."""
    own_model = "--stages-from small_transformer.py:build"
    for line, message in (
        (f"run best.json {own_model} --sleep 1", "your own model takes its own time"),
        ("run best.json --compile inductor", "compile: only with your own model"),
        ("run best.json hand.json", "several schedules run by turns with your own model"),
        (f"run best.json {own_model} --device cuda", "2 ranks need as many GPUs, PyTorch sees 0"),
        (f"run best.json {own_model} --device tpu", "device: tpu is unknown; use cpu or cuda"),
        ("run best.json --stages-from none.py:build", "there is no file none.py"),
        (f"profile {own_model} -o a.yaml", "give both, --stages 4 --batches 8, or a schedule file"),
        (f"profile best.json {own_model} --stages 2 -o a.yaml", "the schedule states them"),
        (
            f"profile {own_model} --stages 2 --batches 2 --from measured -o a.yaml",
            "leave --from and --layers out",
        ),
        (
            f"profile best.json {own_model} --roles Et*6L -o a.yaml",
            "roles: of a schedule, stages are",
        ),
        ("profile a.log --from measured --roles EL -o a.yaml", "roles: only with your own model"),
        (
            f"profile {own_model} --stages 2 --batches 2 --roles E|L -o a.yaml",
            "layers without stages",
        ),
        ("profile -o a.yaml", "nothing to read: give files, of deepspeed"),
    ):
        ran = run(line)
        assert (ran.code, ran.out) == (2, ""), line
        assert message in ran.err
        assert ran.err.count("\n") == 1
    assert not Path("a.yaml").exists()
