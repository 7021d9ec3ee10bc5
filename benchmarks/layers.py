"""Transformer layers of a 7B-class and a 70B-class model, timed on one accelerator, as a pipeline.

Three stages run in PyTorch's pipeline runtime on one device: the first with the embedding, one
from the middle, the last with the head; each with as many layers as a device of the pipeline has.
The profiler times F, B, W and BW of each and counts what they keep. The file repeats the middle
stage for all devices between. Needs the extra `torch`, and room for three stages with their
gradients and two microbatches (70b on 16 devices: some 90 GB; more devices take less):

    python -m benchmarks.layers 7b --devices 8 -o models/llama-7b-gpu.yaml
    python -m benchmarks.layers 70b --devices 16 -o models/llama-70b-gpu.yaml

One device tells nothing of links: p2p is 0 in the file. The forward of the loss is not timed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage

import ppopt.torch
from ppopt.formats.files import write
from ppopt.profiles.estimate import Profile, StageMemory
from ppopt.profiles.pipeline_file import dumps

MICROBATCHES = 2
"""Of the probing steps: one whole, one split."""


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


SIZES = {
    "7b": Size("7B-class (Llama 2)", 32, 4096, 32, 32, 11008, 32000, 4096),
    "70b": Size("70B-class (Llama 2)", 80, 8192, 64, 8, 28672, 32000, 4096),
    "tiny": Size("tiny", 6, 64, 4, 2, 128, 96, 32),
}
"""Layers, sizes and heads: LLaMA (arXiv 2302.13971, Table 2; 65B for 70B). Context, eight groups
of the 70B and its wider feed-forward: Llama 2 (arXiv 2307.09288, section 2.2 and appendix A.2.1);
the widths are those that its released code computes (`multiple_of`, `ffn_dim_multiplier`)."""


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

    def forward(self, tensor: Any) -> Any:
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


class Part(nn.Module):
    """A stage: layers, with the embedding before or the head after them."""

    def __init__(self, size: Size, layers: int, place: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.words, size.hidden) if place == 0 else None
        self.layers = nn.Sequential(*(Layer(size) for _ in range(layers)))
        head = nn.Linear(size.hidden, size.words, bias=False)
        self.head = nn.Sequential(nn.RMSNorm(size.hidden), head) if place == 2 else None

    def forward(self, tensor: Any) -> Any:
        """Run the stage on one sequence."""
        inner = self.layers(tensor if self.embedding is None else self.embedding(tensor))
        return inner if self.head is None else self.head(inner)


def measure(size: Size, layers: int, device: str, kind: Any, steps: int) -> Profile:
    """Measure the first, a middle and the last stage of so many layers each."""
    with _alone():
        stages = [_stage(size, layers, place, device, kind) for place in range(3)]
        schedule = ppopt.torch.probe(MICROBATCHES, [0, 0, 0])
        runtime = ppopt.torch.runtime(stages, schedule, _loss)
        words = torch.randint(size.words, (MICROBATCHES, size.sequence), device=device)
        with ppopt.torch.Profiler(stages, warm_up=2) as profiler:
            for _ in range(2 + steps):
                for stage in stages:
                    stage.submod.zero_grad()
                runtime.step(words, target=words, losses=[])
                profiler.next_step()
        return profiler.gather()


@contextmanager
def _alone() -> Iterator[None]:
    """A process group of this process."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    with TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        try:
            yield
        finally:
            distributed.destroy_process_group()


def _stage(size: Size, layers: int, place: int, device: str, kind: Any) -> PipelineStage:
    words = torch.zeros(1, size.sequence, dtype=torch.int64, device=device)
    between = torch.zeros(
        1, size.sequence, size.hidden, dtype=kind, device=device, requires_grad=True
    )
    logits = torch.zeros(1, size.sequence, size.words, dtype=kind, device=device)
    with torch.device(device):
        module = Part(size, layers, place).to(kind)
    given, made = between if place else words, logits if place == 2 else between
    return PipelineStage(module, place, 3, torch.device(device), input_args=given, output_args=made)


def _loss(logits: Any, words: Any) -> Any:
    """Mean cross entropy of the next word."""
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), words[:, 1:].flatten())


def repeated(found: Profile, devices: int, batches: int, between: int) -> Profile:
    """The pipeline of three stages as one of many devices: the middle one repeated.

    On devices of their own, stages have a buffer of `between` bytes for every microbatch and
    neighbour, where those of one device hand tensors over.
    """
    source = [0, *([1] * (devices - 2)), 2]
    times = {
        (kind, device): found.times[kind, stage]
        for device, stage in enumerate(source)
        for kind in {kind for kind, where in found.times if where == stage}
    }
    held = {
        device: _apart(found.memory[stage], stage, between) for device, stage in enumerate(source)
    }
    return Profile(tuple(range(devices)), batches, times, None, found.steps, held)


def _apart(held: StageMemory, stage: int, between: int) -> StageMemory:
    return held._replace(per_microbatch=held.per_microbatch + between * (2 if stage == 1 else 1))


def text(size: Size, device: str, devices: int, batches: int, steps: int) -> str:
    """Measure, and write the pipeline file."""
    kind = torch.float32 if device == "cpu" else torch.bfloat16
    layers = size.layers // devices
    found = measure(size, layers, device, kind, steps)
    tensor = size.sequence * size.hidden * torch.zeros((), dtype=kind).element_size()
    chip = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    return dumps(
        repeated(found, devices, batches, tensor),
        description=f"{size.name}: {layers} of {size.layers} layers a device, "
        f"hidden {size.hidden}, one sequence of {size.sequence} a microbatch, {str(kind)[6:]}",
        source=f"benchmarks/layers.py on one {chip}, torch {torch.__version__}; first, middle and "
        "last stage measured, the middle one repeated; no tensor parallelism, no link, the forward "
        "of the loss not timed",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description="measure transformer layers as a pipeline")
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("--device", help="cuda, or another of PyTorch's (default: what there is)")
    parser.add_argument("--devices", type=int, default=8, help="of the pipeline (default 8)")
    parser.add_argument("--batches", type=int, default=32, help="microbatches (default 32)")
    parser.add_argument("--steps", type=int, default=10, help="measured steps (default 10)")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the pipeline file")
    given = parser.parse_args(arguments)
    size = SIZES[given.size]
    if given.devices < 3 or size.layers % given.devices:
        parser.error(f"--devices: 3 or more that share {size.layers} layers equally")
    device = given.device or str(torch.accelerator.current_accelerator() or "cpu")
    write(given.output, text(size, device, given.devices, given.batches, given.steps))


if __name__ == "__main__":
    main()
