"""The models that come with ppopt say what their sources say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from ppopt.errors import InputError
from ppopt.formats import models
from ppopt.formats.config import parse_config, pipeline_of
from ppopt.formats.models import model_names, read_pipeline, read_settings
from ppopt.problem.pipeline import Pipeline

FOLDER = Path(__file__).parents[2] / "models"

SIZES = {
    "1.5b": (8, 22, 24, 2304, 6),
    "6.2b": (8, 30, 32, 4096, 3),
    "14.6b": (16, 46, 40, 5120, 1),
    "28.3b": (32, 62, 48, 6144, 1),
}
"""arXiv 2401.10241, Table 3: devices, layers, attention heads, hidden size, microbatch size."""
SEQUENCE = 1024
"""The same: sequence length of all four."""

TIMES = {
    ("1.5b", 24): ("18.522", "18.086", "9.337", "0.601"),
    ("1.5b", 32): ("18.513", "18.086", "9.331", "0.626"),
    ("1.5b", 64): ("18.546", "18.097", "9.321", "0.762"),
    ("6.2b", 24): ("29.718", "29.444", "19.927", "0.527"),
    ("6.2b", 32): ("29.802", "29.428", "19.530", "0.577"),
    ("6.2b", 64): ("29.935", "29.621", "19.388", "0.535"),
    ("14.6b", 48): ("11.347", "11.248", "8.132", "0.377"),
    ("14.6b", 64): ("11.307", "11.254", "8.101", "0.379"),
    ("14.6b", 128): ("11.325", "11.308", "8.109", "0.378"),
    ("28.3b", 96): ("10.419", "10.207", "7.715", "0.408"),
    ("28.3b", 128): ("10.408", "10.204", "7.703", "0.408"),
    ("28.3b", 256): ("10.402", "10.248", "7.698", "0.460"),
}
"""The same, Table 9: F, B, W and p2p time in ms, by model and number of microbatches."""

RATES_1F1B = {24: "0.2431", 32: "0.1985", 64: "0.1240"}
"""The same, Table 5: bubble rate of 1F1B on the 1.5B model, by number of microbatches."""

PAPER = [f"zb-{model}-m{batches}" for model, batches in TIMES]
DERIVED = (
    *("deepseek-v3", "internvl2-26b", "llama-3.1-70b"),
    *("llama-3.1-8b", "llama-3.1-8b-128k", "llama-3.1-8b-mixed"),
)
"""Models in layers: `tests/benchmarks/test_derived_models.py` has their numbers."""


@pytest.fixture
def fresh() -> Iterator[None]:
    """Forget where the models were found, before a test and after it."""
    models.model_names.cache_clear()
    models._folder.cache_clear()
    yield
    models.model_names.cache_clear()
    models._folder.cache_clear()


def test_names() -> None:
    assert set(model_names()) == {*PAPER, "zeropipe-example", *DERIVED}


def test_names_are_sorted_by_the_value_of_their_numbers() -> None:
    measured = tuple(name for name in model_names() if name in PAPER)
    assert measured[:4] == ("zb-1.5b-m24", "zb-1.5b-m32", "zb-1.5b-m64", "zb-6.2b-m24")
    assert model_names()[-3:] == ("zb-28.3b-m128", "zb-28.3b-m256", "zeropipe-example")


@pytest.mark.parametrize("name", model_names())
def test_every_model_is_a_pipeline_and_says_where_it_comes_from(name: str) -> None:
    settings = read_settings(name)
    pipe = pipeline_of(settings)
    assert pipe.name == name
    assert pipe.rounded == ()
    assert {"source", "description"} <= set(settings["about"])
    measured = name != "zeropipe-example"  # its source names no units
    assert (pipe.time_unit, pipe.memory_unit) == (("ms", "MiB") if measured else (None, None))


@pytest.mark.parametrize(("model", "batches"), TIMES)
def test_times_of_the_paper(model: str, batches: int) -> None:
    pipe = pipeline_of(read_settings(f"zb-{model}-m{batches}"))
    forward, backward_input, weight, p2p = map(Fraction, TIMES[model, batches])
    devices = SIZES[model][0]
    assert (pipe.stages, pipe.batches, pipe.p2p) == (devices, batches, p2p)
    assert pipe.forward == (forward,) * devices
    assert pipe.backward_input == (backward_input,) * devices
    assert pipe.weight == (weight,) * devices
    assert pipe.backward == (backward_input + weight,) * devices


@pytest.mark.parametrize(("model", "batches"), TIMES)
def test_memory_of_the_paper(model: str, batches: int) -> None:
    """Table 1: sb(34h + 5as) bytes per layer after F, of which 32sbh are left after B."""
    pipe = pipeline_of(read_settings(f"zb-{model}-m{batches}"))
    devices, layers, heads, hidden, size = SIZES[model]
    share = (layers + 2) // devices
    tokens = SEQUENCE * size
    after_forward = share * tokens * (34 * hidden + 5 * heads * SEQUENCE)
    after_backward = share * tokens * 32 * hidden
    assert share * devices == layers + 2
    assert {value * 2**20 for value in pipe.activation} == {after_forward}
    assert {(pipe.activation[0] + value) * 2**20 for value in pipe.memory_b} == {after_backward}


@pytest.mark.parametrize("batches", RATES_1F1B)
def test_published_rate_of_1f1b_follows(batches: int) -> None:
    """Device span of 1F1B, where the devices p divide the microbatches m:
    m (F + B + W) + (p - 1)(F + B + W) + c (2 (p - 1) m / p + 2 (p - 2))."""
    pipe = pipeline_of(read_settings(f"zb-1.5b-m{batches}"))
    p, m = pipe.stages, pipe.batches
    work = pipe.forward[0] + pipe.backward[0]
    idle = (p - 1) * work + pipe.p2p * (2 * (p - 1) * m // p + 2 * (p - 2))
    rate = idle / (m * work + idle)
    assert f"{float(rate):.4f}" == RATES_1F1B[batches]


def test_zeropipe_example() -> None:
    pipe = pipeline_of(read_settings("zeropipe-example"))
    hidden, heads, sequence = 4096, 8, 4096
    assert (pipe.stages, pipe.batches, pipe.p2p) == (4, 8, Fraction("2.17"))
    assert pipe.forward == (Fraction("44.180"),) * 4
    assert pipe.backward_input == (Fraction("40.265"),) * 4
    assert pipe.weight == (Fraction("38.0"),) * 4
    activation = 34 * hidden + 5 * heads * sequence
    assert pipe.activation == (activation,) * 4
    assert pipe.memory_b == (-(activation - 32 * hidden),) * 4


def test_chunks_apply_to_a_model() -> None:
    settings = read_settings("zb-1.5b-m24") | {"chunks": 3}
    pipe = pipeline_of(settings)
    assert pipe.num_stages == 24
    assert pipe.costs.forward[0] == Fraction("18.522") / 3


def test_models_are_one_line_each() -> None:
    assert tuple(models.models()) == model_names()
    assert not any("\n" in line for line in models.models().values())
    assert re.fullmatch(
        r" +8 stages +24 microbatches +1.5B GPT on 8 A100, microbatches of 6 sequences",
        models.models()["zb-1.5b-m24"],
    )


def test_read_pipeline_takes_a_model_or_a_file(tmp_path: Path) -> None:
    assert read_pipeline("zb-1.5b-m24") == pipeline_of(read_settings("zb-1.5b-m24"))
    path = tmp_path / "mine.toml"
    path.write_text("stages = 2\nbatches = 3\np2p_time = 0.5\n")
    assert read_pipeline(path) == read_pipeline(str(path)) == Pipeline(2, 3, p2p=0.5)
    path.write_text("stages = 2\n")
    with pytest.raises(InputError, match=r"mine.toml: batches: missing"):
        read_pipeline(path)
    with pytest.raises(InputError, match="model: 'mine' is unknown"):
        read_pipeline("mine")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("zb-1.5b-24", "zb-1.5b-m24"),
        ("ZB-28.3b-m256", "zb-28.3b-m256"),
        ("zeropipe", "zeropipe-example"),
        ("", ""),
        ("../models/zb-1.5b-m24", "zb-1.5b-m24"),
        ("zb-1.5b-m24.yaml", "zb-1.5b-m24"),
        (str(FOLDER / "zb-1.5b-m24"), ""),
        ("README", ""),
        ("x\ny\0z", ""),
    ],
)
def test_unknown_names(name: str, near: str) -> None:
    with pytest.raises(InputError) as caught:
        read_settings(name)
    message = str(caught.value)
    assert message.startswith("model: ")
    assert f"did you mean {near}" in message
    assert message.isprintable()


def test_models_of_an_installed_package_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None
) -> None:
    (tmp_path / "_models").mkdir()
    (tmp_path / "_models" / "mine.yaml").write_text("stages: 2\nbatches: 3\n", encoding="utf-8")
    monkeypatch.setattr(models, "files", lambda _: tmp_path)
    assert model_names() == ("mine",)
    assert read_settings("mine") == {"name": "mine", "stages": 2, "batches": 3}


def test_a_checkout_falls_back_to_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None
) -> None:
    monkeypatch.setattr(models, "files", lambda _: tmp_path)
    assert "zeropipe-example" in model_names()


class TestReadme:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")

    def test_its_example_is_a_pipeline(self) -> None:
        example = re.search(r"```yaml\n(.*?)```", self.text, re.DOTALL)
        pipe = pipeline_of(parse_config(example[1], ".yaml", "README.md"))
        assert (pipe.stages, pipe.batches) == (4, 16)

    def test_its_model_in_layers_is_a_pipeline(self) -> None:
        """F + BW: embedding 0.9, blocks 4.2, head 6.3. Below 37.8 the stages have room for 8, 8, 8
        and 7 of 32 blocks; with it for one more in the middle."""
        _, example = re.findall(r"```yaml\n(.*?)```", self.text, re.DOTALL)
        pipe = pipeline_of(parse_config(example, ".yaml", "README.md"))
        assert pipe.counts == (9, 9, 8, 8)
