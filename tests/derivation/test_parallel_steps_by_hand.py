"""More steps from first principles: sharded states, experts, exchanges, precision, recompute.

Only rates of a GPU are read, as in `test_steps_by_hand`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import ppopt
from ppopt import derive_model
from tests.derivation.test_steps_by_hand import (
    H100,
    HIDDEN,
    LAYERS,
    MATRICES,
    TOKENS,
    VOCABULARY,
    WIDTH,
    layer,
    product,
    ring,
    traffic_ms,
)
from tests.factories.configs import CONFIGS, DEEPSEEK_V3, LLAMA_8B

MIB = 2**20
LATENT_ATTENTION = 7168 * (1536 + 512 + 64) + 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168
EXPERT = 3 * 7168 * 2048
"""Parameters of DeepSeek-V3 (arXiv 2412.19437, section 4.2)."""
BUS = 450e9
"""Bytes/s of NVLink of an H100, one way."""


def test_flops_of_a_microbatch() -> None:
    """6 a parameter and token; attention 3 x 4 x hidden x half of the tokens."""
    model = derive_model(LLAMA_8B, gpu="h100", sequence=TOKENS)
    matrices = 6 * TOKENS * (LAYERS * MATRICES + HIDDEN * VOCABULARY)
    attention = LAYERS * 3 * TOKENS * 4 * HIDDEN * TOKENS / 2
    assert model.pipeline.flops_per_microbatch == pytest.approx(matrices + attention, rel=1e-9)


def test_flops_of_deepseek_v3_a_token() -> None:
    """37 billion parameters pass a token; heads are 192 wide with position, values 128."""
    model = derive_model(DEEPSEEK_V3, gpu="h100", mtp=False)
    dense, router = 3 * 7168 * 18432, 7168 * 256
    passed = 61 * LATENT_ATTENTION + 3 * dense + 58 * (9 * EXPERT + router) + 7168 * 129280
    attention = 61 * 3 * 2 * 2048 * 128 * (192 + 128)
    assert model.pipeline.flops_per_microbatch == pytest.approx(4096 * (6 * passed + attention))


def test_stashed_memory_of_tensor_parallel_ranks_with_sequence_parallelism() -> None:
    """Everything is divided by the ranks (arXiv 2205.05198, table 2)."""
    model = derive_model(LLAMA_8B, gpu="h100", tensor=8, sequence=TOKENS)
    size = 2 * TOKENS * (6 * HIDDEN + 2 * 1024 + 3 * WIDTH) / 8
    assert model.layers[1].activation == pytest.approx(size / MIB, abs=1)


def test_stashed_memory_of_a_gpt_layer_with_scores_in_memory() -> None:
    """s b h (34 + 5 a s / h) bytes (arXiv 2205.05198, equation 1); GeLU's input is stashed once."""
    gpt2 = CONFIGS["openai-community/gpt2"]
    model = derive_model(
        gpt2, gpu="a100", sequence=1024, microbatch=8, attention="unfused", dropout=True
    )
    size = 1024 * 8 * 768 * (34 + 5 * 12 * 1024 / 768)
    assert model.layers[1].activation == pytest.approx(size / MIB, abs=1)


@pytest.mark.parametrize(("ranks", "share"), [(8, 0.711), (64, None)])
def test_exchange_of_tokens(ranks: int, share: float | None) -> None:
    """8 copies of each token to experts and back; over 8 nodes 7/8 of them pass the adapters."""
    model = derive_model(DEEPSEEK_V3, gpu="h100", devices=1, data=ranks, expert=ranks)
    size = 2 * 4096 * 8 * 7168
    rate = BUS * share if share else 50e9 * 0.7 * 63 / 56
    alpha = H100.collective_fixed + H100.collective_step * (ranks - 1)
    once = 1e3 * (alpha + (ranks - 1) / ranks * size / rate)
    experts = next(row for row in model.layers if row.name == "expert block")
    assert experts.communication.forward == pytest.approx(2 * once, rel=2e-3)


def test_static_memory_of_experts_over_64_ranks() -> None:
    """18 bytes for 4 of 256 experts; 2 + 4 + 12 / 64 for what every rank has."""
    model = derive_model(DEEPSEEK_V3, gpu="h100", data=64, expert=64)
    experts = next(row for row in model.layers if row.name == "expert block")
    everywhere = LATENT_ATTENTION + EXPERT + 7168 * 256
    size = 18 * 4 * EXPERT + (6 + 12 / 64) * everywhere
    assert experts.static == pytest.approx(size / MIB, abs=1)


def test_a_layer_under_fsdp() -> None:
    """With few tokens the gather of BF16 weights over two nodes takes longer than F.

    Weights of two layers are in memory, and BW has the gradients in FP32 besides.
    """
    model = derive_model(
        LLAMA_8B, gpu="h100", devices=1, data=16, zero=3, sequence=512, cuda_graphs=True
    )
    gather = ring(2 * MATRICES, 16, 8 * 50e9 * 0.7)
    reduce = ring(4 * MATRICES, 16, 8 * 50e9 * 0.7)
    assert layer(512)[0] < gather
    assert model.layers[1].forward == pytest.approx(gather, rel=1e-3)
    assert model.layers[1].backward == pytest.approx(gather + reduce, rel=1e-3)
    assert model.layers[1].workspace[0] == pytest.approx(2 * 2 * MATRICES / MIB, abs=1)
    assert model.layers[1].static == pytest.approx((2 + 4 + 12) / 16 * MATRICES / MIB, abs=1)


def test_full_recompute() -> None:
    """A layer stashes its input alone, and BW repeats F."""
    model = derive_model(LLAMA_8B, gpu="h100", sequence=TOKENS, cuda_graphs=True)
    own = model.layers[1]
    assert own.stashed == pytest.approx(2 * TOKENS * HIDDEN / MIB, abs=1)
    assert own.recompute == pytest.approx(layer(TOKENS)[0], rel=1e-3)


def test_low_rank_adapters() -> None:
    """Frozen matrices have no product for W; the adapters of all seven have 42 million parameters.

    16 x (inputs + outputs) of each matrix (arXiv 2106.09685, section 4.1).
    """
    model = derive_model(LLAMA_8B, gpu="h100", devices=1, lora=16)
    sizes = 2 * (HIDDEN + HIDDEN) + 2 * (HIDDEN + 1024) + 3 * (HIDDEN + WIDTH)
    assert sum(part.adapters for part in model.layers[1].parts) == 16 * sizes
    assert LAYERS * 16 * sizes == 41_943_040
    assert model.layers[1].static == pytest.approx((2 * MATRICES + 18 * 16 * sizes) / MIB, abs=1)


def test_transfer_between_nodes() -> None:
    """BF16 vectors over one adapter of 50 GB/s at 0.8, with its latency."""
    model = derive_model(LLAMA_8B, gpu="h100", data=8, sequence=TOKENS)
    time = 1e3 * (H100.network_latency + 2 * TOKENS * HIDDEN / (50e9 * 0.8))
    assert float(model.pipeline.p2p) == pytest.approx(time, abs=1e-3)


def test_optimizer_of_a_layer() -> None:
    """Adam moves 28 bytes a parameter of its shard, the norm 4; gradients are read in FP32."""
    model = derive_model(LLAMA_8B, gpu="h100", data=8)
    traffic = 32 * MATRICES / 8 + 4 * MATRICES
    kernel = 1e3 * H100.kernel_time
    assert model.layers[1].step.optimizer == pytest.approx(traffic_ms(traffic) + kernel, rel=1e-3)


def test_inputs_in_fp8() -> None:
    """A byte for an element of inputs of products; attention, norms and sums stay in BF16.

    The query, key and value product, gate and up, and down have inputs of their own in FP8.
    """
    model = derive_model(LLAMA_8B, gpu="h100", sequence=TOKENS, precision="fp8")
    heads = 2 * HIDDEN + 2 * 1024
    bf16 = 2 * (2 * HIDDEN + heads + 2 * WIDTH)
    fp8 = HIDDEN + HIDDEN + WIDTH
    assert model.layers[1].activation == pytest.approx(TOKENS * (bf16 + fp8) / MIB, abs=1)


def test_head_and_loss() -> None:
    """Logits: a product in BF16, then 24 and 14 bytes each in F and in BW of the loss."""
    model = derive_model(LLAMA_8B, gpu="h100", devices=1, sequence=TOKENS, cuda_graphs=True)
    head, kernel = model.layers[-1], 1e3 * H100.kernel_time
    once, logits = product(2 * TOKENS * HIDDEN * VOCABULARY), TOKENS * VOCABULARY
    norm = traffic_ms(2 * 2 * TOKENS * HIDDEN) + kernel
    assert head.forward == pytest.approx(once + traffic_ms(24 * logits) + 6 * kernel + norm, 1e-3)
    backward = 2 * once + traffic_ms(14 * logits) + traffic_ms(8 * HIDDEN * VOCABULARY)
    backward += traffic_ms(2 * 4 * TOKENS * HIDDEN) + (3 + 1 + 2) * kernel
    assert head.backward == pytest.approx(backward, rel=1e-3)


def test_a_step_of_interleaved_1f1b() -> None:
    """Two chunks a device halve the bubble: (m + (p - 1) / 2) x (F + BW) of a device's layers."""
    config = LLAMA_8B | {"vocab_size": 256}
    model = derive_model(config, gpu="h100", batches=16, sequence=TOKENS, cuda_graphs=True)
    pipeline = replace(
        model.pipeline, p2p=0, mem_limit=None, chunks=2, partition="Et*4|(t*4|)*6t*4L"
    )
    schedule = ppopt.evaluate(pipeline, "interleaved")
    whole = (16 + 3 / 2) * 8 * sum(layer(TOKENS))
    ends = 16 * sum(row.forward + row.backward for row in (model.layers[0], model.layers[-1]))
    optimizer = 8 * model.layers[1].step.optimizer
    assert whole <= float(schedule.makespan) * 1.001
    assert float(schedule.makespan) <= 1.001 * whole + ends + optimizer
