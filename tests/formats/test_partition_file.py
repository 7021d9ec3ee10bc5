"""Partitions in files of trainers: what exports write is read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppopt.errors import InputError
from ppopt.formats.partition_file import read_partition
from ppopt.formats.trainer_file import value_of
from tests.cli.cli_run import done, json_of

MODEL = """
stages: 2
batches: 4
layers:
- {role: embedding, forward: 1}
- {forward: 2, count: 5}
- {role: head, forward: 1}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.yaml"
    path.write_text(MODEL)
    return path


@pytest.mark.parametrize(
    ("to", "name"),
    [("torchtitan", "t.toml"), ("primus", "p.yaml"), ("megatron-arguments", "m.txt")],
)
@pytest.mark.parametrize("counts", ["1,2,3,1", "2,2,2,1"])
def test_exports_are_read_back(counts: str, to: str, name: str, model: Path) -> None:
    best, file = model.with_name("best.json"), model.with_name(name)
    done("eval interleaved --quiet --config", model, "--partition", counts, "-o", best)
    done(f"export --to {to}", best, "-o", file)
    output = json_of("eval interleaved --config", model, "--partition", file)
    assert output["partition"] == [int(count) for count in counts.split(",")]


def test_a_list_of_names_is_typed_as_json_or_as_python(model: Path) -> None:
    for quote in "\"'":
        names = '[["embedding","decoder"],["decoder","decoder","decoder","decoder","loss"]]'
        text = names.replace('"', quote)
        output = json_of("eval 1f1b --config", model, "--partition", text)
        assert output["partition"] == [2, 5]


def test_names_in_a_config_file(model: Path) -> None:
    model.write_text(MODEL + "partition: [[E, t, t, t], [t, t, L]]\n")
    assert json_of("eval 1f1b --config", model)["partition"] == [4, 3]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "model: {pipeline: 2}", "a.yaml has no partition; give a file with one of mod"),
        ("a.txt", "--num-layers 5", "a.txt has no partition; .* --pipeline-model-parallel-layout"),
        (
            "a.json",
            '[{"pipeline_model_parallel_layout": "E|tL"}, {"hybrid_layer_pattern": "M|M"}]',
            "a.json has 2 partitions",
        ),
    ],
)
def test_files_without_a_partition_are_refused(
    name: str, text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_partition(path)


@pytest.mark.parametrize(
    ("text", "partition"),
    [
        ('torchrun x.py --pipeline-model-parallel-layout "Et|tL" --bf16', "Et|tL"),
        ("--hybrid-layer-pattern=M-|M*", "M-|M*"),
        ("--pipeline-model-parallel-layout Et*2|tL\n", "Et*2|tL"),
    ],
)
def test_arguments_are_read(text: str, partition: str, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(text)
    assert read_partition(path) == partition


@pytest.mark.parametrize("text", ["Et|tL", "balanced", "3,2", "M-M-"])
def test_a_partition_is_no_file(text: str) -> None:
    assert value_of("partition", text) is None
