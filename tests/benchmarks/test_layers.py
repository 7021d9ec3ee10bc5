"""`benchmarks.layers`: layers measured as a model in layers, here a tiny one on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packages import needed

torch = needed("torch")

from ppopt.formats.config import read_config
from ppopt.formats.models import read_model
from ppopt.problem.operation import OpKind
from tests.cli.cli_run import shown, words

from benchmarks import layers  # isort: skip  it loads PyTorch

pytestmark = pytest.mark.slow

TINY = layers.SIZES["tiny"]
TENSOR = TINY.sequence * TINY.hidden * 4
"""Bytes of a tensor between layers."""
MIB = 2**20


def weights(size: layers.Size) -> tuple[int, int, int]:
    """Weights of a layer, of the embedding, and of the head with its norm."""
    inner = size.groups * size.hidden // size.heads
    layer = 2 * size.hidden * (size.hidden + inner) + 3 * size.hidden * size.wide + 2 * size.hidden
    return layer, size.words * size.hidden, (size.words + 1) * size.hidden


@pytest.mark.parametrize(("name", "most"), [("7b", 6.74e9), ("70b", 68.98e9)])
def test_the_models_have_the_weights_of_their_class(name: str, most: float) -> None:
    """The released models have 6.74 and 68.98 billion weights. A token takes 6 FLOPs for each that
    multiplies, and attention comes on top: 6 x sequence x hidden a layer, as half is masked."""
    size = layers.SIZES[name]
    layer, embedding, head = weights(size)
    assert size.layers * layer + embedding + head == pytest.approx(most, rel=1e-3)
    scores = 6 * size.layers * size.sequence * size.hidden
    multiply = size.layers * layer + head
    assert size.flops == pytest.approx(size.sequence * (6 * multiply + scores), rel=1e-3)


def test_everything_is_measured() -> None:
    """Weights and gradients. The head keeps its norm's normed input, that times the weights and its
    scales, and for the loss the logarithms of the probabilities and their number."""
    found, named = layers.measure(layers.Transformer(TINY, torch.float32), "cpu", 2)
    runs = {kind: {t.runs for (k, _), t in found.times.items() if k is kind} for kind in OpKind}
    assert runs == {OpKind.F: {6}, OpKind.B: {2}, OpKind.W: {2}, OpKind.BW: {4}}
    layer, embedding, head = weights(TINY)
    assert [found.memory[stage].fixed for stage in range(3)] == [
        8 * number for number in (embedding, layer, head)
    ]
    guesses = (TINY.sequence - 1) * TINY.words
    assert found.memory[0].activation == 0
    assert found.memory[1].activation > 10 * TENSOR
    assert found.memory[2].activation == 2 * TENSOR + 4 * (TINY.sequence + guesses + 1)
    assert [layer.output for layer in named] == [TENSOR, TENSOR, 0]


@pytest.mark.parametrize("more", [(), ("--compile", "aot_eager")])
def test_one_command_writes_a_model_to_solve(more: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    options = words("--device cpu --devices 3 --batches 4 --steps 1")
    layers.main(["tiny", *options, *more, "-o", str(path)])
    model = read_model(path)
    assert [layer.role for layer in model.layers] == ["embedding", *["decoder"] * 6, "head"]
    assert [layer.name for layer in model.layers] == ["embedding", *["block"] * 6, "head"]
    outputs = [float(layer.output) for layer in model.layers]
    assert outputs == [*[pytest.approx(TENSOR / MIB, abs=1e-6)] * 7, 0]
    assert [layer.kept for layer in model.layers] == [layer.output for layer in model.layers]
    about = read_config(path)["about"]
    how = "torch.compile with aot_eager" if more else "eager"
    assert (
        f"on one CPU, torch {torch.__version__}, {how}; embedding, one decoder" in about["source"]
    )
    for said in ("# Measured: ", "# Derived: ", "# Assumed: "):
        assert said in path.read_text()
    found = shown(f"solve --config {path} --partition search --mem-limit --time-limit 3")
    assert sum(found["partition"]) == 8
    assert (found["time_unit"], found["memory_unit"]) == ("ms", "MiB")
    assert found["verified"]
    assert found["tokens_per_second"] == pytest.approx(4 * TINY.sequence / found["value"] * 1000)
    assert shown(f"plan --config {path} --placement linear --time-limit 3")["verified"]


@pytest.mark.parametrize("line", ["tiny --devices 0 -o a", "tiny --device tpu -o a", "13b -o a"])
def test_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        layers.main(line.split())
    assert "error: " in capsys.readouterr().err
