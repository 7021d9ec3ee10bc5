"""Transformer layers of a 7B-class and a 70B-class model, timed by PyTorch, as a model in layers.

The embedding, one decoder layer, and the head with its loss run as three stages of PyTorch's
pipeline runtime in one process, on a GPU or on the CPU, as `ppopt profile` runs a model of one's
own. The file has the decoder layer as often as the model has it, and says what was measured,
derived and assumed. Needs the extra `torch`, and room for the three layers with their gradients and
three microbatches:

    python -m benchmarks.layers 7b -o llama-7b.yaml
    python -m benchmarks.layers 70b --devices 16 --compile inductor -o llama-70b.yaml
    ppopt solve --config llama-7b.yaml --partition search --mem-limit 70GiB

PyTorch cannot split the backward of a compiled layer: with `--compile`, backwards are whole.
One process tells nothing of links: p2p is 0 in the file, which has the size of each output for
`link`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks.derived_models import llama
from ppopt.derivation.layer_work import decoder_work, head_work
from ppopt.formats.files import write
from ppopt.profiles.estimate import Profile
from ppopt.profiles.pipeline_file import MeasuredLayer, Training, dumps_layers
from ppopt.torch import job_execution
from ppopt.torch.job import Job
from ppopt.torch.world import PATIENCE, World

MICROBATCHES = 3
"""Of the measured steps: the second is split, the others are whole. Memory is that of the last:
PyTorch keeps what a split backward of the loss has saved until the step ends."""


class Size(NamedTuple):
    """A model's geometry; one microbatch is one sequence."""

    name: str
    layers: int
    hidden: int
    heads: int
    groups: int
    """Heads of keys and values."""
    wide: int
    """Width of the feed-forward layers."""
    words: int
    sequence: int

    @property
    def flops(self) -> int:
        """FLOPs that F and BW of a microbatch need; the embedding has no matrix product."""
        decoder = llama(self.hidden, self.heads, self.groups, self.wide)
        block = decoder_work(decoder, self.hidden, self.sequence)
        head = head_work(self.hidden, self.words)
        return round(self.sequence * (self.layers * block.flops + head.flops))


SIZES = {
    "7b": Size("7B-class (Llama 2)", 32, 4096, 32, 32, 11008, 32000, 4096),
    "70b": Size("70B-class (Llama 2)", 80, 8192, 64, 8, 28672, 32000, 4096),
    "tiny": Size("tiny", 6, 64, 4, 2, 128, 96, 32),
}
"""Layers, sizes and heads: LLaMA (arXiv 2302.13971, Table 2; 65B for 70B). Context, eight groups
of the 70B and its wider feed-forward: Llama 2 (arXiv 2307.09288, section 2.2 and appendix A.2.1);
the widths are those that its released code computes (`multiple_of`, `ffn_dim_multiplier`)."""


class Embedding(nn.Module):
    """The table of word vectors."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.table = nn.Embedding(size.words, size.hidden)

    def forward(self, numbers: Any, words: Any) -> Any:  # noqa: ARG002  the head takes them
        """Look words up; [1, sequence] to [1, sequence, hidden]."""
        return self.table(numbers)


class Layer(nn.Module):
    """Attention with rotary positions and a gated feed-forward, each on a normed residual."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.groups, self.width = size.heads, size.groups, size.hidden // size.heads
        inner = self.groups * self.width
        self.before, self.between = nn.RMSNorm(size.hidden), nn.RMSNorm(size.hidden)
        self.query = nn.Linear(size.hidden, size.hidden, bias=False)
        self.key = nn.Linear(size.hidden, inner, bias=False)
        self.value = nn.Linear(size.hidden, inner, bias=False)
        self.out = nn.Linear(size.hidden, size.hidden, bias=False)
        self.gate = nn.Linear(size.hidden, size.wide, bias=False)
        self.up = nn.Linear(size.hidden, size.wide, bias=False)
        self.down = nn.Linear(size.wide, size.hidden, bias=False)
        for name, table in zip(("cosine", "sine"), _angles(size.sequence, self.width), strict=True):
            self.register_buffer(name, table, persistent=False)

    def forward(self, tensor: Any, words: Any) -> Any:  # noqa: ARG002  the head takes them
        """Run the layer; [1, sequence, hidden] to the same shape."""
        tensor = tensor + self.out(self._attend(self.before(tensor)))
        normed = self.between(tensor)
        return tensor + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))

    def _attend(self, tensor: Any) -> Any:
        query, key, value = (
            layer(tensor).unflatten(-1, (heads, self.width)).transpose(1, 2)
            for layer, heads in (
                (self.query, self.heads), (self.key, self.groups), (self.value, self.groups)
            )
        )  # fmt: skip
        found = nn.functional.scaled_dot_product_attention(
            self._turned(query),
            self._turned(key),
            value,
            is_causal=True,
            enable_gqa=self.groups < self.heads,
        )
        return found.transpose(1, 2).flatten(2)

    def _turned(self, tensor: Any) -> Any:
        left, right = tensor.chunk(2, -1)
        return tensor * self.cosine + torch.cat((-right, left), -1) * self.sine


def _angles(sequence: int, width: int) -> tuple[Any, Any]:
    """Cosine and sine of rotary positions (arXiv 2104.09864), [sequence, width]."""
    speeds = 10000.0 ** (-torch.arange(0, width, 2) / width)
    angles = torch.outer(torch.arange(sequence), speeds).repeat(1, 2)
    return angles.cos(), angles.sin()


class Head(nn.Module):
    """The output matrix on a norm, and the loss: mean cross entropy of the next word."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(size.hidden)
        self.matrix = nn.Linear(size.hidden, size.words, bias=False)

    def forward(self, tensor: Any, words: Any) -> Any:
        """The loss of one sequence; [1, sequence, hidden] to [1]."""
        logits = self.matrix(self.norm(tensor))[:, :-1].flatten(0, 1).float()
        return nn.functional.cross_entropy(logits, words[:, 1:].flatten()).reshape(1)


class Transformer(NamedTuple):
    """One layer of each kind, as `ppopt.torch.job_execution.measure` takes a model."""

    size: Size
    kind: torch.dtype
    """Of weights and activations."""
    backend: str | None = None
    """Of torch.compile; None: eager."""
    batches: int = MICROBATCHES

    def load(self) -> Job:
        """Make the job; a process makes the layers of its own stages."""
        words = torch.randint(self.size.words, (self.batches, self.size.sequence))
        layers = (Embedding, Layer, Head)
        made = [partial(_made, layer, self.size, self.kind) for layer in layers]
        return Job(made, inputs=words, target=words, loss=_mean, kwargs={"words": words})


def _made(layer: type[nn.Module], size: Size, kind: torch.dtype) -> nn.Module:
    return layer(size).to(kind)


def _mean(losses: Any, _: Any) -> Any:
    """The loss is the head's output already."""
    return losses.mean()


def measure(model: Transformer, device: str, steps: int) -> tuple[Profile, list[MeasuredLayer]]:
    """Profile the layers of a model in one process; the decoder layer counts for all."""
    patience = PATIENCE * (1 if model.backend is None else 10)
    with World(1, patience, device) as world:
        found, (embedding, layer, head) = job_execution.measure(world, model, steps=steps)
    return found, [
        embedding._replace(name="embedding", role="embedding"),
        layer._replace(name="block", copies=model.size.layers),
        head._replace(name="head", role="head", output=0),
    ]


def text(
    size: Size, device: str, devices: int, batches: int, steps: int, backend: str | None
) -> str:
    """Measure, and write the model file."""
    kind = torch.float32 if device == "cpu" else torch.bfloat16
    found, layers = measure(Transformer(size, kind, backend), device, steps)
    chip = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    how = "eager" if backend is None else f"torch.compile with {backend}"
    return dumps_layers(
        found,
        layers,
        Training(devices, batches, size.sequence, size.flops),
        description=f"{size.name}: hidden {size.hidden}, one sequence of {size.sequence} tokens a "
        f"microbatch, {str(kind)[6:]}",
        source=f"benchmarks/layers.py on one {chip}, torch {torch.__version__}, {how}; embedding, "
        f"one decoder layer, which stands for {size.layers} equal ones, and head with loss "
        "measured; FLOPs derived from the sizes; no tensor parallelism, no link",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description="measure transformer layers as a model in layers")
    parser.add_argument("size", choices=SIZES)
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], help="where to measure (default: cuda if there is one)"
    )
    parser.add_argument("--compile", metavar="BACKEND", help="of torch.compile (default: eager)")
    parser.add_argument("--devices", type=int, default=8, help="of the pipeline (default 8)")
    parser.add_argument("--batches", type=int, default=32, help="microbatches (default 32)")
    parser.add_argument("--steps", type=int, default=10, help="measured steps (default 10)")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the model file (.yaml)")
    given = parser.parse_args(arguments)
    for name in ("devices", "batches", "steps"):
        if getattr(given, name) < 1:
            parser.error(f"--{name}: 1 or more")
    device = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    made = text(SIZES[given.size], device, given.devices, given.batches, given.steps, given.compile)
    write(given.output, made)


if __name__ == "__main__":
    main()
