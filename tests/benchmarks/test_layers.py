"""`benchmarks.layers`: layers measured as a pipeline, here of a tiny model on the processor."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from ppopt import solve
from ppopt.formats.config import pipeline_of, read_config
from ppopt.problem.operation import OpKind
from ppopt.profiles.estimate import Profile
from tests.torch.torch_world import torch

from benchmarks import layers  # isort: skip  it loads PyTorch

TINY = layers.SIZES["tiny"]
BETWEEN = TINY.sequence * TINY.hidden * 4
"""Bytes of a tensor between stages."""


@pytest.fixture(scope="module")
def measured() -> Iterator[list[Profile]]:
    """Three stages of one layer each, and of two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield [layers.measure(TINY, count, "cpu", torch.float32, 2) for count in (1, 2)]
    torch.set_num_threads(before)


def weights(size: layers.Size) -> tuple[int, int, int]:
    """Weights of a layer, of the embedding, and of the head with its norm."""
    inner = size.groups * size.hidden // size.heads
    layer = 2 * size.hidden * (size.hidden + inner) + 3 * size.hidden * size.wide + 2 * size.hidden
    return layer, size.words * size.hidden, (size.words + 1) * size.hidden


@pytest.mark.parametrize(("name", "most"), [("7b", 6.74e9), ("70b", 68.98e9)])
def test_the_models_have_the_weights_of_their_class(name: str, most: float) -> None:
    """The released models have 6.74 and 68.98 billion weights."""
    size = layers.SIZES[name]
    layer, embedding, head = weights(size)
    assert size.layers * layer + embedding + head == pytest.approx(most, rel=1e-3)


def test_memory(measured: list[Profile]) -> None:
    """Weights twice. A second layer keeps as much as the first, and the first one's output, which
    is the stage's own where it is the last (kept until the step ends); B the same with gradients.
    A stage keeps its output and, but for the first, the gradient of its input; the last one's
    output are logits."""
    one, two = measured
    layer, embedding, head = weights(TINY)
    logits = TINY.sequence * TINY.words * 4
    for stage, (more, each) in enumerate(
        [(embedding, BETWEEN), (0, 2 * BETWEEN), (head, BETWEEN + logits)]
    ):
        assert one.memory[stage].fixed == 8 * (layer + more)
        assert two.memory[stage].fixed == 8 * (2 * layer + more)
        assert one.memory[stage].per_microbatch == two.memory[stage].per_microbatch == each
    middle = one.memory[1], two.memory[1]
    assert middle[1].activation == 2 * middle[0].activation + BETWEEN
    assert middle[0].memory_b is not None
    assert middle[1].memory_b == 2 * middle[0].memory_b + BETWEEN
    assert one.memory[0].memory_b == two.memory[0].memory_b == 0


def test_everything_is_timed(measured: list[Profile]) -> None:
    """Two steps of two microbatches: both run F, one BW, the other B and W."""
    for found in measured:
        assert found.steps == 2
        runs = {kind: {t.runs for (k, _), t in found.times.items() if k is kind} for kind in OpKind}
        assert runs == {OpKind.F: {4}, OpKind.B: {2}, OpKind.W: {2}, OpKind.BW: {2}}


def test_the_middle_is_repeated(measured: list[Profile]) -> None:
    """On devices of their own stages have buffers for what their neighbours send."""
    one, _ = measured
    made = layers.repeated(one, 5, 12, BETWEEN)
    costs = made.costs(10**6)
    assert (made.hosts, made.batches) == ((0, 1, 2, 3, 4), 12)
    assert costs["forward"][1:4] == [Fraction(one.times[OpKind.F, 1].median, 10**6)] * 3
    added = [
        made.memory[device].per_microbatch - one.memory[stage].per_microbatch
        for device, stage in enumerate((0, 1, 1, 1, 2))
    ]
    assert added == [BETWEEN, 2 * BETWEEN, 2 * BETWEEN, 2 * BETWEEN, BETWEEN]


def test_one_command_writes_a_file_to_solve(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    options = ["--device", "cpu", "--devices", "3", "--batches", "4", "--steps", "1"]
    layers.main(["tiny", *options, "-o", str(path)])
    settings = read_config(path)
    assert settings["about"]["description"].startswith("tiny: 2 of 6 layers a device")
    assert "layers.py on one cpu, torch 2.13" in settings["about"]["source"]
    pipeline = pipeline_of(settings)
    assert (pipeline.hosts, pipeline.batches) == (((0, 1, 2),), 4)
    assert solve(pipeline, time_limit=2).schedule is not None


@pytest.mark.parametrize("line", ["tiny --devices 4 -o a", "tiny --devices 2 -o a", "13b -o a"])
def test_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        layers.main(line.split())
    assert "error: " in capsys.readouterr().err
