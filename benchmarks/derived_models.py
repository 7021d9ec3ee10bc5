"""The models of `models/` in layers, derived from published configurations; nothing is measured.

    python -m benchmarks.derived_models models

writes the files; the tests compare them with what it writes, and its parameters with those that
the sources state. `ppopt.derivation` has every formula with its source, and `ppopt init --from
config.json` offers them for other models. Here are the published dimensions, and how each
model is trained.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ppopt.derivation.architecture import (
    Architecture,
    Decoder,
    Encoder,
    Experts,
    FeedForward,
    Run,
)
from ppopt.derivation.attention import (
    GroupedQueryAttention,
    LatentAttention,
    Matrix,
    Shard,
)
from ppopt.derivation.derived_layer import NO_STEP_COSTS
from ppopt.derivation.gpus import gpu_named
from ppopt.derivation.layer_costs import Costing
from ppopt.derivation.megatron_arguments import sizes_of
from ppopt.derivation.model_file import ModelFile
from ppopt.derivation.training import Training
from ppopt.formats.files import write

H100 = replace(gpu_named("h100"), matrix_efficiency=0.748, launch_time=0)
"""An H100 whose products run as fast as alone, at 0.748 of the peak, and that never waits for the
CPU; in steps products reach 0.64. The models are instances of records: their figures stay."""
MEASUREMENTS = H100.origins["attention_efficiency"].source
LINK = {"link": {"bandwidth": "50GB/s"}}
"""One 400 Gb/s adapter a GPU, no latency."""
SLOW_LINK = {"link": {"bandwidth": "25GB/s"}}
"""Half an adapter a GPU, as A100 nodes have."""
LLAMA = (
    "derived from dim, n_layers, n_heads, n_kv_heads, ffn_dim_multiplier, multiple_of and "
    "VOCAB_SIZE in models/sku_list.py of github.com/meta-llama/llama-models at commit 084b88e"
)
VOCABULARY = 128256


def llama(hidden: int, heads: int, groups: int, width: int) -> Decoder:
    """A layer of Llama (arXiv 2302.13971, section 2): grouped queries, a gated feed-forward."""
    return Decoder(GroupedQueryAttention(heads, groups, hidden // heads), FeedForward(width))


LLAMA_8B = Architecture(
    "Llama 3.1 8B", 4096, VOCABULARY, (Run("block", llama(4096, 32, 8, 14336), 32),)
)
LLAMA_70B = Architecture(
    "Llama 3.1 70B", 8192, VOCABULARY, (Run("block", llama(8192, 64, 8, 28672), 80),)
)

LATENT = LatentAttention(128, query_latent=1536, latent=512, plain=128, position=64, value=128)
DEEPSEEK_V3 = Architecture(
    "DeepSeek-V3",
    7168,
    129280,
    (
        Run("dense block", Decoder(LATENT, FeedForward(18432)), 3),
        Run(
            "expert block",
            Decoder(
                LATENT,
                Experts(
                    2048,
                    256,
                    chosen=8,
                    shared=2048,
                    routing_bias=True,
                    groups=8,
                    chosen_groups=4,
                ),
            ),
            58,
        ),
    ),
    predictions=1,
)
"""arXiv 2412.19437, sections 2.1 and 4.2."""


VISION = Decoder(GroupedQueryAttention(25, 25, 128, causal=False), FeedForward(12800, gated=False))
"""A layer of InternViT-6B: attention without a mask, a feed-forward without a gate."""
INTERN_VIT = Encoder(
    hidden=3200,
    runs=(Run("vision block", VISION, 45),),
    patch=Matrix("patch", 588, 3200, Shard.NONE),
    projections=(
        (Matrix("up", 12800, 6144, Shard.COLUMNS), Matrix("down", 6144, 6144, Shard.ROWS, "up")),
    ),
    patches=1025,
    merge=4,
)
"""448 x 448 pixels in patches of 14 x 14 x 3, and the token of the class; four patches become a
token of 4 x 3200."""
INTERNVL2 = Architecture(
    "InternVL2-26B", 6144, 92544, (Run("block", llama(6144, 48, 8, 16384), 48),), encoder=INTERN_VIT
)


def gpus(training: Training) -> str:
    """Say how many H100 train a model, and how the parallelism divides them."""
    sizes = (
        ("pipeline stages", training.devices),
        ("tensor-parallel", training.tensor),
        ("context-parallel", training.context),
        ("data-parallel", training.data),
    )
    factors = " x ".join(f"{size} {name}" for name, size in sizes if size > 1)
    return f"{math.prod(size for _, size in sizes)} H100 ({factors})"


def model_file(
    model: str, source: str, training: Training, architecture: Architecture
) -> ModelFile:
    """A model file on H100; its comments name the ranks that share optimizer states `data`."""
    description = f"{model} on {gpus(training)}"
    ranks = (("tensor", training.tensor), ("context", training.context), ("data", training.ranks))
    shared = ", ".join(f"{name} {size}" for name, size in ranks if size > 1)
    comments = (
        "All figures are computed from the dimensions by `python -m benchmarks.derived_models`;",
        "nothing was measured on this model.",
        f"Efficiencies of the GPU: {MEASUREMENTS}.",
        f"A microbatch is a sequence of {training.sequence} tokens; parallelism: {shared}.",
        "Left out: work once per step (unshard, gradient_sync, optimizer). `ppopt init` adds it.",
    )
    layers = [
        replace(layer, step=NO_STEP_COSTS, modules=(), offload=0)
        for layer in Costing.of(training, H100).layers(architecture)
    ]
    sizes = sizes_of(training, architecture)
    return ModelFile(description, source, training, H100, layers, sizes, LINK, comments=comments)


def llama_8b() -> ModelFile:
    """Llama 3.1 8B, its context of training."""
    training = Training(devices=4, batches=16, data=8, sequence=8192)
    return model_file("Llama 3.1 8B", LLAMA, training, LLAMA_8B)


def llama_70b() -> ModelFile:
    """Llama 3.1 70B."""
    training = Training(devices=8, batches=32, tensor=8, data=4, sequence=8192)
    return model_file("Llama 3.1 70B", LLAMA, training, LLAMA_70B)


def llama_8b_long() -> ModelFile:
    """Llama 3.1 8B at 128K tokens, as its last stage of training has them (arXiv 2407.21783)."""
    training = Training(devices=4, batches=8, tensor=2, context=8, sequence=131072)
    return model_file("Llama 3.1 8B at 131072 tokens", LLAMA, training, LLAMA_8B)


def llama_8b_mixed() -> ModelFile:
    """Llama 3.1 8B on two stages of H100 and two of A100, 80 GiB each."""
    slow = round(gpu_named("a100").bf16 / H100.bf16, 3)
    settings = {**SLOW_LINK, "device_speed": [1, 1, slow, slow], "mem_limit": 81920}
    remarks = {
        "device_speed": "312 / 989.4: dense BF16 peaks of A100 and H100",
        "mem_limit": "80 GiB",
    }
    description = "Llama 3.1 8B on 16 H100 and 16 A100 (2 + 2 pipeline stages x 8 data-parallel)"
    return replace(llama_8b(), description=description, settings=settings, remarks=remarks)


def deepseek_v3() -> ModelFile:
    """DeepSeek-V3 on 16 stages; 2048 devices: 128 data-parallel ranks, experts over 64 of them."""
    training = Training(devices=16, batches=24, data=128, expert=64, sequence=4096)
    return model_file(
        "DeepSeek-V3 671B with its MTP module",
        "derived from arXiv 2412.19437, sections 2.1, 2.2, 3.2 and 4.2 (24 x 128 = 3072 sequences, "
        "its first batch size); words and the feed-forward of dense layers from "
        "inference/configs/config_671B.json of github.com/deepseek-ai/DeepSeek-V3",
        training,
        DEEPSEEK_V3,
    )


def internvl2() -> ModelFile:
    """InternVL2-26B: a vision encoder of 6 tiles in front of InternLM2-20B, all trained."""
    training = Training(devices=8, batches=16, tensor=2, data=8, sequence=8192, images=6)
    return model_file(
        "InternVL2-26B with its vision encoder, 6 tiles of 448 x 448,",
        "derived from the encoder of examples/multimodal/config.py (`internvit`) of "
        "github.com/NVIDIA/Megatron-LM at commit d98e8a6, tiles and projector of arXiv 2404.16821, "
        "section 3, and the published config.json of InternLM2-20B (arXiv 2403.17297)",
        training,
        INTERNVL2,
    )


FILES: dict[str, Callable[[], ModelFile]] = {
    "deepseek-v3": deepseek_v3,
    "internvl2-26b": internvl2,
    "llama-3.1-8b": llama_8b,
    "llama-3.1-8b-128k": llama_8b_long,
    "llama-3.1-8b-mixed": llama_8b_mixed,
    "llama-3.1-70b": llama_70b,
}


def texts() -> Iterator[tuple[str, str]]:
    """Every file by its name, and its text."""
    for name, model_of in FILES.items():
        yield f"{name}.yaml", model_of().text()


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description="write the derived models")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    for name, text in texts():
        write(folder / name, text)


if __name__ == "__main__":
    main()
