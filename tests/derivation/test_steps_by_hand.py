"""Steps computed from first principles, with none of the formulas of `ppopt.derivation`.

Only the rates of a GPU are read. Each test multiplies out what a textbook says: products take 2
FLOPs a parameter and token, attention 4 x keys x width, a ring moves (n - 1) / n of its bytes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import ppopt
from ppopt import derive_model
from ppopt.derivation.gpus import gpu_named
from tests.factories.configs import LLAMA_8B, LLAMA_70B, Config

H100 = gpu_named("h100")
TOKENS, HIDDEN, WIDTH, HEADS, VOCABULARY = 8192, 4096, 14336, 32, 128256
LAYERS = 32
MATRICES = HIDDEN * (HIDDEN + 2 * 1024 + HIDDEN) + 3 * HIDDEN * WIDTH
"""Parameters of a layer of Llama 3.1 8B: queries, keys, values, output; gate, up, down."""


def product(flops: float, number: int = 1) -> float:
    """ms of `number` products that have so many FLOPs in all."""
    work = flops + number * H100.matrix_overhead
    return 1e3 * work / (H100.bf16 * H100.matrix_efficiency)


def traffic_ms(size: float) -> float:
    """ms of so many bytes that kernels read and write."""
    return 1e3 * size / (H100.memory_speed * H100.memory_efficiency)


def attention(flops: float, blocks: float, share: float) -> float:
    """ms of attention with pairs of a head and a block of 128 queries."""
    return 1e3 * flops * (1 + H100.attention_blocks / blocks) / (H100.bf16 * share)


def ring(size: float, ranks: int, bus: float) -> float:
    """ms of an all-gather or reduce-scatter of a tensor, at a bus bandwidth."""
    alpha = H100.collective_fixed + H100.collective_step * (ranks - 1)
    return 1e3 * (alpha + (ranks - 1) / ranks * size / bus)


def layer(tokens: int, tensor: int = 1) -> tuple[float, float]:
    """F and BW of kernels of a layer, whose tensor-parallel ranks share heads and tokens."""
    each = tokens * HIDDEN / tensor
    launch = 1e3 * H100.kernel_time
    flops = 2 * tokens * MATRICES / tensor
    scores = 4 * (tokens / 2) * HIDDEN * tokens / tensor  # causal: half of the keys
    blocks = HEADS * tokens / 128 / tensor
    heads = tokens * (HIDDEN + 1024) / tensor
    inner = tokens * WIDTH / tensor
    forward = (
        product(flops, 4)
        + attention(scores, blocks, H100.attention_efficiency)
        + traffic_ms(2 * 2 * 2 * each)  # two norms read and write
        + traffic_ms(2 * 2 * 3 * each)  # two additions read twice and write
        + traffic_ms(2 * 2 * heads)  # rotary embedding
        + traffic_ms(2 * 3 * inner)  # gate and up are read, their product is written
        + (2 + 2 + 2 + 1) * launch
    )
    backward = (
        product(2 * flops, 8)
        + attention(2.5 * scores, blocks, H100.attention_backward_efficiency)
        + traffic_ms(2 * 2 * 4 * each)
        + traffic_ms(2 * 2 * 1 * each)
        + traffic_ms(2 * 2 * heads)
        + traffic_ms(2 * 5 * inner)
        + traffic_ms(8 * MATRICES / tensor)  # gradients are added in FP32
        + (4 + 2 + 2 + 1 + 2) * launch
    )
    return forward, backward


def test_a_layer_on_one_gpu() -> None:
    model = derive_model(LLAMA_8B, gpu="h100", devices=1, sequence=TOKENS, cuda_graphs=True)
    forward, backward = layer(TOKENS)
    assert model.layers[1].forward == pytest.approx(forward, rel=1e-3)
    assert model.layers[1].backward == pytest.approx(backward, rel=1e-3)


def test_a_layer_over_eight_tensor_parallel_ranks() -> None:
    """F and BW gather twice and reduce-scatter twice each; W gathers the inputs once more."""
    model = derive_model(
        LLAMA_8B, gpu="h100", devices=1, tensor=8, sequence=TOKENS, cuda_graphs=True
    )
    forward, backward = layer(TOKENS, 8)
    collective = ring(2 * TOKENS * HIDDEN, 8, 450e9 * 0.733)
    assert model.layers[1].forward == pytest.approx(forward + 4 * collective, rel=1e-3)
    assert model.layers[1].backward == pytest.approx(backward + 6 * collective, rel=1e-3)


def test_gradients_and_weights_over_64_gpus() -> None:
    """Four bytes a parameter are reduced, two gathered, over adapters of 50 GB/s at 0.7."""
    model = derive_model(LLAMA_8B, gpu="h100", devices=1, data=64, sequence=TOKENS)
    bus = 8 * 50e9 * 0.7
    assert model.layers[1].step.gradient_sync == pytest.approx(ring(4 * MATRICES, 64, bus), 1e-3)
    assert model.layers[1].step.unshard == pytest.approx(ring(2 * MATRICES, 64, bus), 1e-3)


def test_a_step_of_1f1b_on_four_devices() -> None:
    """With p stages of equal F and BW a step takes (m + p - 1) of both; the largest stage counts.

    Stages of 8 layers; the last has the head, whose products have a fifth of a stage's FLOPs: its
    16 microbatches follow each other, the other stages fill and drain once.
    """
    model = derive_model(
        LLAMA_8B,
        gpu="h100",
        batches=16,
        sequence=TOKENS,
        cuda_graphs=True,
        partition="Et*8|t*8|t*8|t*8L",
    )
    schedule = ppopt.evaluate(replace(model.pipeline, p2p=0, mem_limit=None), "1f1b")
    forward, backward = layer(TOKENS)
    head = model.layers[-1].forward + model.layers[-1].backward
    whole = 16 * (8 * (forward + backward) + head) + 3 * 8 * (forward + backward)
    embedding = model.layers[0].forward + model.layers[0].backward
    optimizer = max(layer_.step.optimizer for layer_ in model.layers)
    slack = embedding + 12 * optimizer
    assert whole <= float(schedule.makespan) * 1.001
    assert float(schedule.makespan) <= 1.001 * whole + slack


@pytest.mark.parametrize(
    ("config", "parameters", "tensor", "data"),
    [(LLAMA_8B, MATRICES, 1, 8), (LLAMA_70B, 8192 * (2 * 8192 + 2048) + 3 * 8192 * 28672, 8, 4)],
    ids=["8B", "70B"],
)
def test_static_memory_of_a_layer(config: Config, parameters: int, tensor: int, data: int) -> None:
    """BF16 weights, FP32 gradients, and 12 bytes of state over data-parallel ranks."""
    model = derive_model(config, gpu="h100", tensor=tensor, data=data)
    size = (2 + 4 + 12 / data) * parameters / tensor
    assert model.layers[1].static == pytest.approx(size / 2**20, abs=1)


def test_stashed_memory_of_a_layer() -> None:
    """Bytes of a token: input and output of two norms, queries, keys, values, output; MLP.

    2 x (4 x 4096 + 4096 + 2 x 1024 + 4096 + 3 x 14336), as arXiv 2205.05198 counts, with a gate.
    """
    model = derive_model(LLAMA_8B, gpu="h100", sequence=TOKENS)
    size = 2 * TOKENS * (4 * HIDDEN + 2 * HIDDEN + 2 * 1024 + 3 * WIDTH)
    assert model.layers[1].activation == pytest.approx(size / 2**20, abs=1)
