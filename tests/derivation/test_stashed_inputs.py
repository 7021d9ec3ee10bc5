"""Inputs and weights of matrices in memory: shared, in FP8, frozen, with adapters."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Any

import pytest

import ppopt
from ppopt import derive_model
from ppopt.derivation.derived_layer import DerivedLayer
from ppopt.derivation.derived_model import DerivedModel
from ppopt.derivation.explanation import explain
from tests.factories.configs import CONFIGS, DEEPSEEK_V3, LLAMA_8B, LLAMA_70B, Config

MIB = 2**20


def layer(config: Config, index: int, **training: Any) -> DerivedLayer:
    return derive_model(config, gpu="h100", **training).layers[index]


def mib(size: float | Fraction) -> int:
    return ceil(size / MIB)


FP8_COPIES = 2 * 8192 + 28672
"""Of a layer of Llama 3.1 70B, elements per token: the outputs of norms and of the activation."""
IN_BF16 = 2 * 8192 + 2 * (64 + 8) * 128 + 2 * 28672
"""Residual stream twice; queries, keys, values, attention's output; gate and up."""


@pytest.mark.parametrize(
    ("precision", "recipe", "size"),
    [
        ("bf16", "tensorwise", 2),
        ("fp8", "tensorwise", 1),
        ("fp8", "mxfp8", Fraction(33, 32)),
        ("fp8", "blockwise", Fraction(33, 32)),
    ],
)
def test_inputs_of_matrices_are_kept_in_fp8(precision: str, recipe: str, size: Fraction) -> None:
    block = layer(LLAMA_70B, 1, tensor=4, sequence=8192, precision=precision, fp8_recipe=recipe)
    assert block.activation == mib(2048 * (2 * IN_BF16 + size * FP8_COPIES))


def test_delayed_scaling_keeps_a_copy_of_the_output_of_attention() -> None:
    block = layer(LLAMA_70B, 1, tensor=4, sequence=8192, precision="fp8", fp8_recipe="delayed")
    assert block.activation == mib(2048 * (2 * IN_BF16 + FP8_COPIES + 8192))


def test_pytorch_keeps_inputs_and_weights_in_its_own_precision() -> None:
    for framework in ("torch", "torch-compile"):
        bf16, fp8 = (
            layer(LLAMA_8B, 1, framework=framework, precision=name) for name in ("bf16", "fp8")
        )
        assert (bf16.activation, bf16.static) == (fp8.activation, fp8.static)


def test_the_published_fp8_run_of_llama_70b_fits_its_gpus() -> None:
    """64 H100 with 80 GB, tensor 4, pipeline 8, virtual 5: `llama3_70b_pretrain_64gpu_h100_fp8cs`
    in src/megatron/bridge/perf_recipes/llama/h100/llama3.py of Megatron-Bridge, 067f987."""
    fits = {}
    for precision in ("bf16", "fp8"):
        model = derive_model(
            LLAMA_70B, gpu="h100", devices=8, tensor=4, data=2, batches=16, sequence=8192,
            precision=precision, partition="Et*2|(t*2|)*34,t*3|(t*2|)*3,tL",
        )  # fmt: skip
        schedule = ppopt.evaluate(model.pipeline, "interleaved")
        fits[precision] = max(schedule.peak_memory) <= model.pipeline.limits[0]
    assert fits == {"bf16": False, "fp8": True}


@pytest.mark.parametrize(
    ("recipe", "weight", "gathered"),
    [
        ("tensorwise", 2, 1),
        ("delayed", 2, 1),
        ("mxfp8", Fraction(33, 16), 33 / 32),
        ("blockwise", 4, 2),
    ],
)
def test_weights_and_their_copies_follow_the_recipe(
    recipe: str, weight: Fraction, gathered: float
) -> None:
    """A layer of Llama 3.1 8B, without norms; 8 ranks share the states."""
    parameters = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    bf16, fp8 = (
        derive_model(LLAMA_8B, gpu="h100", data=8, precision=name, fp8_recipe=recipe).layers
        for name in ("bf16", "fp8")
    )
    assert fp8[1].static == mib(parameters * (weight + 4 + Fraction(12, 8)))
    assert (fp8[0].static, fp8[2].static) == (bf16[0].static, bf16[2].static)
    assert fp8[1].step.unshard / bf16[1].step.unshard == pytest.approx(gathered / 2, rel=0.08)
    assert fp8[1].step.gradient_sync == bf16[1].step.gradient_sync


@pytest.mark.parametrize("gpu", ["b200", "b300", "gb200", "gb300"])
@pytest.mark.parametrize(
    ("recipe", "saved"), [("tensorwise", 1), ("delayed", 1), ("mxfp8", 0), ("blockwise", 0)]
)
def test_blackwell_needs_no_transpose_of_weights_with_a_common_scale(
    gpu: str, recipe: str, saved: int
) -> None:
    """Its products read a weight by rows and by columns; scales of blocks differ between them."""
    parameters = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    hopper, blackwell = (
        derive_model(LLAMA_8B, gpu=name, data=8, precision="fp8", fp8_recipe=recipe).layers
        for name in ("h100", gpu)
    )
    assert hopper[1].static - blackwell[1].static == pytest.approx(saved * parameters / MIB, abs=1)


def test_without_a_distributed_optimizer_weights_in_fp8_are_copies() -> None:
    """`--fp8-param-gather` of Megatron-LM needs one: BF16 and two copies are 4 bytes."""
    bf16, fp8 = (layer(LLAMA_8B, 1, zero=0, precision=name) for name in ("bf16", "fp8"))
    assert fp8.static == pytest.approx(bf16.static * (4 + 16) / (2 + 16), rel=1e-3)


EXPERTS = {"tensor": 8, "sequence": 4096}
"""DeepSeek-V3: 8 copies of each token, experts 2048 / 8 wide."""
ROWS = 8 * 4096


def test_frozen_experts_do_not_keep_their_inputs() -> None:
    """Neither copies of tokens, 7168 wide, nor what their activation function returns."""
    trained, tuned, frozen = (
        layer(DEEPSEEK_V3, 2, **EXPERTS, **training)
        for training in ({}, {"lora": 16}, {"freeze": ("decoder",)})
    )
    assert trained.activation - tuned.activation == pytest.approx(
        2 * ROWS * (7168 + 256) / MIB, abs=1
    )
    assert tuned.activation == 151
    assert frozen.activation < tuned.activation


def test_a_tensor_that_several_matrices_read_is_kept_once_in_bf16() -> None:
    """DeepSeek-V3, a dense layer: queries and keys start from the same vectors, in FP8 from a copy
    each; latents of 1536 and 512 are normed. Only the copies differ in size."""
    bf16, fp8 = (layer(DEEPSEEK_V3, 1, precision=name) for name in ("bf16", "fp8"))
    in_bf16 = 7168 + 1536 + 512 + 7168 + 18432
    in_fp8 = 2 * 7168 + 1536 + 512 + 7168 + 18432
    assert bf16.activation - fp8.activation == pytest.approx(
        4096 * (2 * in_bf16 - in_fp8) / MIB, abs=1
    )


def test_the_router_reads_in_bf16() -> None:
    """Its input is kept besides the copy of the shared expert, and is no other in BF16."""
    bf16, fp8 = (layer(DEEPSEEK_V3, 2, precision=name) for name in ("bf16", "fp8"))
    attention = 7168 + 1536 + 512, 2 * 7168 + 1536 + 512
    rows = 8 * (7168 + 2048)
    in_bf16, in_fp8 = attention[0] + 2048 + rows, attention[1] + 7168 + 2048 + rows
    assert bf16.activation - fp8.activation == pytest.approx(
        4096 * (2 * in_bf16 - in_fp8) / MIB, abs=1
    )


@pytest.mark.parametrize(("recipe", "text"), [("mxfp8", "1.031 bytes"), ("blockwise", "4 for a")])
def test_the_file_says_what_fp8_keeps(recipe: str, text: str) -> None:
    def model(**training: Any) -> DerivedModel:
        return derive_model(LLAMA_8B, gpu="h100", fp8_recipe=recipe, **training)

    assert text in model(precision="fp8").text
    assert "in place of 2" not in model().text
    assert "in place of 2" not in model(precision="fp8", framework="torch").text


@pytest.mark.parametrize(
    ("framework", "loss", "stashed", "workspace"),
    [
        # Log-probabilities in FP32; logits in FP32 and the gradient in both precisions: 12 bytes
        ("torch", "default", 4, 8),
        ("torch", "fused", 2, 2),
        ("torch", "chunked", 0, Fraction(12, 8)),
        ("megatron", "default", 2, 4),
        ("megatron", "chunked", 0, Fraction(6, 8)),
    ],
)
def test_logits_in_memory(
    framework: str, loss: str, stashed: int, workspace: int | Fraction
) -> None:
    """Of 4096 tokens and 128,256 words, besides the input of the head and its gradient."""
    logits, vector = 4096 * 128256, 4096 * 4096
    head = layer(LLAMA_8B, 2, framework=framework, loss=loss)
    assert head.activation == mib(stashed * logits + 2 * 1 * vector)
    assert head.workspace == (mib(workspace * logits),) * 2


def test_a_fused_loss_moves_logits_three_times() -> None:
    """F reads them, B reads and writes them, in BF16; F and B of PyTorch's loss move 36 bytes."""
    default, fused = (
        layer(LLAMA_8B, 2, framework="torch", loss=loss) for loss in ("default", "fused")
    )
    gpu = derive_model(LLAMA_8B, gpu="h100").gpu
    saved = 1000 * (36 - 6) * 4096 * 128256 / (gpu.memory_speed * gpu.memory_efficiency)
    kernels = 1000 * 4 * gpu.kernel_time
    before, after = (each.forward + each.backward for each in (default, fused))
    assert before - after == pytest.approx(saved + kernels, rel=0.001)


def test_learned_positions_need_no_rotary_embedding() -> None:
    """GPT-2 has learned positions, Pythia rotary embeddings."""
    names = [
        {item.name for item in explain(derive_model(CONFIGS[name], gpu="h100", framework="torch"))}
        for name in ("openai-community/gpt2", "EleutherAI/pythia-6.9b")
    ]
    assert ["rotary embedding" in each for each in names] == [False, True]
