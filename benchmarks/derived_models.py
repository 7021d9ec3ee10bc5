"""The models of `models/` in layers, derived from published configurations; nothing is measured.

    python -m benchmarks.derived_models models

writes the files; the tests compare them with what it writes, and its parameters with those that
the sources state. What is derived, per microbatch and device (Megatron-LM's tensor parallelism
`t` with sequence parallelism, context parallelism `c`, data parallelism `d`):

- Work: a matrix of P parameters takes 2 P FLOPs a token in F, in B and in W each. Attention has no
  weights: scores and values take 2 x context x (query and value width) FLOPs a token in F, half of
  it under a causal mask, and 2.5 times as much in B, which computes the scores again
  (FlashAttention-2, arXiv 2307.08691, section 3.1).
- Time: work / (989.4 TFLOP/s x 0.4). 989.4 is the dense BF16 peak of an H100 SXM (NVIDIA's data
  sheet); about 0.4 of it is what Llama 3 reports for its training (38 to 43 %, arXiv 2407.21783,
  Table 4). Norms, activation functions, the loss and collective communication are left out.
- The embedding has no matrix product: F reads and writes each token's vector once at 3.35 TB/s
  (H100's data sheet), W as much; B = 0, for nothing is before it.
- Activations: 2 bytes (BF16) for each element that the backward reads, as the functions below
  count them, nothing recomputed. B frees none: W reads as many (inputs and output gradients).
- Static: 6 + 12 / d bytes a parameter: BF16 parameters, FP32 gradients, optimizer state sharded
  over d (docs/user-guide/features/dist_optimizer.md of Megatron-LM). Norms are left out.
- Output, what a layer hands on: 2 bytes / t for each element of its tokens' vectors. Link: 50 GB/s
  (one 400 Gb/s adapter a GPU), no latency.
- Workspace of B and BW: 2 bytes for each gradient that is alive at once, of the residual stream and
  of the feed-forward's inner vectors. Of the head, F too: logits in FP32, 4 bytes, as
  `vocab_parallel_cross_entropy` of Megatron-LM makes them. W needs none.
- Throughput: a device stands for t x c GPUs, whose peak is `peak_flops`. `flops_per_microbatch` are
  those that the model needs: F, and twice as much in BW (PaLM, arXiv 2204.02311, appendix B); what
  FlashAttention computes again does not count.
- Recompute (off unless `--recompute` says so): F keeps what is handed to the layer, 2 bytes an
  element (`kept`), and the backward repeats F: full recompute, as arXiv 2205.05198 calls it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import NamedTuple

from ppopt.formats.files import write

PEAK = 989.4e12
"""Dense BF16 FLOP/s of an H100 SXM."""
A100_PEAK = 312e12
"""The same of an A100 (NVIDIA's data sheet)."""
EFFICIENCY = 0.4
MEMORY_SPEED = 3.35e12
"""Bytes/s of an H100's memory."""
LINK = 50e9
"""Bytes/s of a link between nodes."""
MIB = 2**20


class Setup(NamedTuple):
    """How a model is trained."""

    devices: int
    batches: int
    tensor: int
    data: int
    """Ranks over which the optimizer state is sharded (with context parallelism, its ranks too)."""
    sequence: int
    """Tokens of a microbatch (one sequence)."""
    context: int = 1
    """Ranks that share a sequence (context parallelism)."""

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch on a rank, before tensor parallelism."""
        return self.sequence // self.context


class Block(NamedTuple):
    """What a layer computes and keeps."""

    weights: int
    """Parameters of matrices that every token passes."""
    scores: float
    """FLOPs of attention per token in F."""
    kept: int
    """Elements kept per token for the backward."""
    passing: int = 0
    """Bytes per token of the gradients that are alive at once."""
    given: int = 0
    """Elements per token that the layer is handed."""
    stored: int | None = None
    """Parameters of all its matrices; None: `weights`."""
    loss: int = 0
    """Bytes per token that F needs for the loss while it runs."""
    made: int | None = None
    """Elements per token that it hands on; None: as many as `given`."""

    @property
    def parameters(self) -> int:
        """Parameters that the layer has, experts not passed included."""
        return self.weights if self.stored is None else self.stored

    @property
    def flops(self) -> float:
        """FLOPs per token of F, and twice as much of BW."""
        return 6 * self.weights + 3 * self.scores


@dataclass(frozen=True)
class Row:
    """A layer as it stands in a file: times in ms, memory in MiB."""

    name: str
    role: str
    count: int
    forward: float
    backward: float
    weight: float
    activation: int
    static: int
    output: float = 0
    workspace: tuple[int, int] = (0, 0)
    """Of F, and of B and BW."""
    kept: int = 0
    """What F keeps with recompute."""
    flops: float = 0
    """FLOPs of F and BW of a microbatch, of all ranks; not in the file, their sum is."""

    def text(self) -> str:
        """Write the layer as an entry of the list, in YAML."""
        fields = [f"name: {self.name}", f"role: {self.role}", f"count: {self.count}"]
        fields = [field for field in fields if field not in ("role: decoder", "count: 1")]
        fields += [f"forward: {self.forward}", f"backward: {self.backward}"]
        fields += [f"weight: {self.weight}"]
        fields += [f"activation: {self.activation}", f"static: {self.static}"]
        if self.output:
            fields.append(f"output: {self.output:g}")
        if any(self.workspace):
            first, back = self.workspace
            fields.append(f"workspace: {{F: {first}, B: {back}, BW: {back}}}")
        if self.kept:
            fields.append(f"kept: {self.kept}")
        return f"  - {{{', '.join(fields)}}}"


def attention(context: int, heads: int, query: int, value: int, *, causal: bool = True) -> float:
    """FLOPs of attention per token in F: scores of `query` wide heads, values of `value`."""
    return 2 * context * heads * (query + value) * (0.5 if causal else 1)


def llama(hidden: int, heads: int, groups: int, wide: int, context: int) -> Block:
    """A layer of Llama (arXiv 2302.13971, section 2): grouped queries and a gated feed-forward.

    Kept: both residual inputs and their norms (4 hidden), queries, keys, values, attention's output
    (2 hidden and two groups' width), gate, up, and their product (3 wide).
    """
    inner = groups * hidden // heads
    weights = 2 * hidden * (hidden + inner) + 3 * hidden * wide
    width = hidden // heads
    scores = attention(context, heads, width, width)
    kept = 6 * hidden + 2 * inner + 3 * wide
    return Block(weights, scores, kept, 2 * (hidden + 3 * wide), hidden)


def deepseek(context: int, *, experts: bool) -> Block:
    """A layer of DeepSeek-V3 (arXiv 2412.19437, sections 2.1 and 4.2).

    Latent attention: 128 heads, queries and keys of 128 + 64, values of 128, latents of 1536 and
    512. Feed-forward 18432 wide in the first three layers, else 256 experts 2048 wide, of which a
    token passes 8, and one that all pass. Kept: residual inputs and norms, latents and their norms,
    queries, keys, values, attention's output, gate, up and product of each expert passed, and the
    8 copies of a token that go to experts.
    """
    hidden, heads, latent_query, latent, wide = 7168, 128, 1536, 512, 2048
    query, value = 128 + 64, 128
    weights = hidden * (latent_query + latent + 64) + latent_query * heads * query
    weights += latent * heads * (128 + value) + heads * value * hidden
    kept = 4 * hidden + 2 * latent_query + 2 * latent + 64 + 2 * heads * (query + value)
    scores = attention(context, heads, query, value)
    if not experts:
        inner = 3 * 18432
        return Block(weights + hidden * inner, scores, kept + inner, 2 * (hidden + inner), hidden)
    router, expert = hidden * 256, 3 * hidden * wide
    return Block(
        weights + router + 9 * expert,
        scores,
        kept + 8 * hidden + 9 * 3 * wide,
        2 * (9 * hidden + 9 * 3 * wide),
        hidden,
        weights + router + 257 * expert,
    )


def vision(hidden: int, heads: int, wide: int, context: int) -> Block:
    """A layer of a vision transformer: attention without a mask, a feed-forward without a gate.

    Kept: residual inputs and norms, queries, keys, values, attention's output, and the feed-forward
    before and after its activation function.
    """
    width = hidden // heads
    scores = attention(context, heads, width, width, causal=False)
    weights, kept = 4 * hidden**2 + 2 * hidden * wide, 8 * hidden + 2 * wide
    return Block(weights, scores, kept, 2 * (hidden + 2 * wide), hidden)


class Writer:
    """Layers of a model under a setup."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def layer(
        self,
        name: str,
        block: Block,
        count: int = 1,
        *,
        role: str = "decoder",
        tokens: int | None = None,
        sharded: Sequence[tuple[int, int]] = (),
    ) -> Row:
        """Costs of a layer; `sharded`: (parameters held, ranks that share their optimizer)."""
        setup = self.setup
        many = (setup.tokens if tokens is None else tokens) / setup.tensor
        matrices, scores = 2 * block.weights * many, block.scores * many
        held = sharded or ((block.parameters // setup.tensor, setup.data),)
        return Row(
            *(name, role, count),
            forward=_ms(matrices + scores),
            backward=_ms(2 * matrices + 2.5 * scores),
            weight=_ms(matrices),
            activation=ceil(2 * block.kept * many / MIB),
            static=ceil(sum(_bytes(number, ranks) for number, ranks in held) / MIB),
            output=0 if role == "head" else _handed_on(block, many),
            workspace=(_mib(block.loss * many), _mib(max(block.passing, block.loss) * many)),
            kept=_mib(2 * block.given * many),
            flops=block.flops * (tokens or setup.sequence),
        )

    def embedding(self, hidden: int, words: int) -> Row:
        """The table of word vectors; its input are numbers."""
        setup = self.setup
        moved = 2 * 2 * hidden * setup.tokens / setup.tensor
        time = _round(1000 * moved / MEMORY_SPEED)
        held = _bytes(hidden * words // setup.tensor, setup.data)
        output = _handed_on(Block(0, 0, 0, given=hidden), setup.tokens / setup.tensor)
        return Row("embedding", "embedding", 1, time, time, time, 0, ceil(held / MIB), output)

    def head(self, hidden: int, words: int) -> Row:
        """The output matrix; kept: its input, the input of its norm, and the logits."""
        block = Block(hidden * words, 0, 2 * hidden + words, given=hidden, loss=4 * words)
        return self.layer("head", block, role="head")


def _handed_on(block: Block, tokens: float) -> float:
    """Size of what a layer hands on, in MiB."""
    made = block.given if block.made is None else block.made
    return round(2 * made * tokens / MIB, 3)


def _mib(size: float) -> int:
    return ceil(size / MIB)


def _ms(work: float) -> float:
    return _round(1000 * work / (PEAK * EFFICIENCY))


def _round(milliseconds: float) -> float:
    return max(0.001, round(milliseconds, 3))


def _bytes(parameters: int, ranks: int) -> float:
    return parameters * (6 + 12 / ranks)


class File(NamedTuple):
    """A model file."""

    description: str
    source: str
    setup: Setup
    layers: Sequence[Row]
    more: str = ""
    """Further settings, as lines of YAML."""
    link: float = LINK
    """Bytes/s between devices."""

    def text(self) -> str:
        """Write the file."""
        setup = self.setup
        ranks = [("tensor", setup.tensor), ("context", setup.context), ("data", setup.data)]
        shared = ", ".join(f"{name} {size}" for name, size in ranks if size > 1)
        return "\n".join(
            [
                f"description: {self.description}",
                f"source: {self.source}",
                "time_unit: ms",
                "memory_unit: MiB",
                "",
                "# Derived, not measured, by `python -m benchmarks.derived_models`: its head says "
                "how.",
                f"# A microbatch is a sequence of {setup.sequence} tokens; parallelism: {shared}.",
                f"stages: {setup.devices}",
                f"batches: {setup.batches}",
                f"tokens_per_microbatch: {setup.sequence}",
                f"flops_per_microbatch: {round(sum(row.count * row.flops for row in self.layers))}",
                f"peak_flops: {round(setup.tensor * setup.context * PEAK)}",
                f"link: {{bandwidth: {self.link / 1e9:g}GB/s}}",
                *([self.more] if self.more else []),
                "",
                "layers:",
                *(row.text() for row in self.layers),
                "",
            ]
        )


LLAMA = (
    "derived from dim, n_layers, n_heads, n_kv_heads, ffn_dim_multiplier, multiple_of and "
    "VOCAB_SIZE in models/sku_list.py of github.com/meta-llama/llama-models at commit 084b88e"
)
WORDS = 128256


def llama_layers(hidden: int, heads: int, layers: int, wide: int, setup: Setup) -> list[Row]:
    """Embedding, layers and head of Llama 3.1."""
    made = Writer(setup)
    block = llama(hidden, heads, 8, wide, setup.sequence)
    return [
        made.embedding(hidden, WORDS),
        made.layer("block", block, layers),
        made.head(hidden, WORDS),
    ]


def llama_8b() -> File:
    """Llama 3.1 8B, its context of training."""
    setup = Setup(devices=4, batches=16, tensor=1, data=8, sequence=8192)
    layers = llama_layers(4096, 32, 32, 14336, setup)
    return File("Llama 3.1 8B on 4 H100", LLAMA, setup, layers)


def llama_70b() -> File:
    """Llama 3.1 70B."""
    setup = Setup(devices=8, batches=32, tensor=8, data=4, sequence=8192)
    layers = llama_layers(8192, 64, 80, 28672, setup)
    return File("Llama 3.1 70B on 8 x 8 H100", LLAMA, setup, layers)


def llama_8b_long() -> File:
    """Llama 3.1 8B at 128K tokens, as its last stage of training has them (arXiv 2407.21783)."""
    setup = Setup(devices=4, batches=8, tensor=2, data=8, sequence=131072, context=8)
    layers = llama_layers(4096, 32, 32, 14336, setup)
    words = "Llama 3.1 8B at 131072 tokens on 4 x 16 H100"
    return File(words, LLAMA, setup, layers)


def llama_8b_mixed() -> File:
    """Llama 3.1 8B on two H100 and two A100, 80 GiB each."""
    plain = llama_8b()
    slow = round(A100_PEAK / PEAK, 3)
    more = (
        f"device_speed: [1, 1, {slow}, {slow}]  # 312 / 989.4: dense BF16 peaks of A100 and H100\n"
        "mem_limit: 81920  # 80 GiB"
    )
    words = "Llama 3.1 8B on 2 H100 and 2 A100"
    return plain._replace(description=words, link=plain.link / 2, more=more)


def deepseek_v3() -> File:
    """DeepSeek-V3 on 16 stages; 2048 devices: 128 data-parallel ranks, experts over 64 of them."""
    hidden, words, experts_apart, data = 7168, 129280, 64, 128
    setup = Setup(devices=16, batches=24, tensor=1, data=data, sequence=4096)
    made, dense = Writer(setup), deepseek(4096, experts=False)
    mixed = deepseek(4096, experts=True)
    routed = 256 * 3 * hidden * 2048
    mine = (routed // experts_apart, data // experts_apart)
    projection = 2 * hidden * hidden
    again = Block(
        mixed.weights + projection + hidden * words,
        mixed.scores,
        mixed.kept + 4 * hidden + words,
        mixed.passing,
        hidden,
        mixed.parameters + projection,
        4 * words,
    )
    layers = [
        made.embedding(hidden, words),
        made.layer("dense block", dense, 3),
        made.layer("expert block", mixed, 58, sharded=[(mixed.parameters - routed, data), mine]),
        made.layer(
            "prediction", again, role="mtp", sharded=[(again.parameters - routed, data), mine]
        ),
        made.head(hidden, words),
    ]
    return File(
        "DeepSeek-V3 671B with its MTP module on 16 x 128 H100",
        "derived from arXiv 2412.19437, sections 2.1, 2.2, 3.2 and 4.2 (24 x 128 = 3072 sequences, "
        "its first batch size); words and the feed-forward of dense layers from "
        "inference/configs/config_671B.json of github.com/deepseek-ai/DeepSeek-V3; no exchange of "
        "tokens between experts",
        setup,
        layers,
    )


def internvl2() -> File:
    """InternVL2-26B: a vision encoder of 6 tiles in front of InternLM2-20B, all trained."""
    hidden, words, tiles, patches = 6144, 92544, 6, 1025
    setup = Setup(devices=8, batches=16, tensor=2, data=8, sequence=8192)
    made = Writer(setup)
    weights, kept = 12800 * hidden + hidden**2, 2 * 12800 + 2 * hidden
    projector = Block(weights, 0, kept, 2 * (12800 + hidden), 12800, made=hidden)
    seen = vision(3200, 25, 12800, patches)
    layers = [
        made.layer("vision block", seen, 45, tokens=tiles * patches),
        made.layer("projector", projector, tokens=tiles * 256),
        made.embedding(hidden, words),
        made.layer("block", llama(hidden, 48, 8, 16384, setup.sequence), 48),
        made.head(hidden, words),
    ]
    return File(
        "InternVL2-26B with its vision encoder, 6 tiles of 448 x 448, on 8 x 2 H100",
        "derived from the encoder of examples/multimodal/config.py (`internvit`) of "
        "github.com/NVIDIA/Megatron-LM at commit d98e8a6, tiles and projector of arXiv 2404.16821, "
        "section 3, and the published config.json of InternLM2-20B (arXiv 2403.17297)",
        setup,
        layers,
    )


FILES = {
    "deepseek-v3": deepseek_v3,
    "internvl2-26b": internvl2,
    "llama-3.1-8b": llama_8b,
    "llama-3.1-8b-128k": llama_8b_long,
    "llama-3.1-8b-mixed": llama_8b_mixed,
    "llama-3.1-70b": llama_70b,
}


def texts() -> Iterator[tuple[str, str]]:
    """Every file by its name, and its text."""
    for name, made in FILES.items():
        yield f"{name}.yaml", made().text()


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description="write the derived models")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    for name, text in texts():
        write(folder / name, text)


if __name__ == "__main__":
    main()
