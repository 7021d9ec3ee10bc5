"""Steps of Mamba-2 and of T5 from first principles.

Only rates of a GPU are read, as in `test_steps_by_hand`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import ppopt
from ppopt import derive_model
from tests.derivation.test_steps_by_hand import H100, attention, product, traffic_ms
from tests.factories.configs import CONFIGS

NANO = CONFIGS["nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B"]
T5_LARGE = CONFIGS["google-t5/t5-large"]
LAUNCH = 1e3 * H100.kernel_time


def test_a_layer_of_mamba_2() -> None:
    """64 heads of 64 x 128, keys and queries in 8 groups, two sequences, which are copied.

    B computes the convolution again, and 2.75 times the FLOPs of the chunks.
    """
    tokens, hidden, inner, keys = 2 * 8192, 2688, 64 * 64, 8 * 128
    parameters = hidden * (2 * inner + 2 * keys + 64) + inner * hidden
    flops = tokens * (128 * (keys + inner) + 4 * inner * 128)
    chunks = 1e3 * 1.47 * flops / (H100.bf16 * 0.074)
    mixed = inner + 2 * keys

    def passes(norm: int, added: int, gated: int, convolution: int) -> float:
        copied = 2 * (mixed + 2 * inner)
        elements = (norm + added) * hidden + gated * inner + convolution * mixed + copied
        return traffic_ms(2 * tokens * elements)

    model = derive_model(NANO, gpu="h100", devices=1, sequence=8192, microbatch=2, cuda_graphs=True)
    forward = product(2 * tokens * parameters, 2) + chunks + passes(2, 3, 3, 2) + 5 * LAUNCH
    backward = product(4 * tokens * parameters, 4) + 2.75 * chunks + passes(4, 1, 5, 5)
    backward += 7 * LAUNCH + traffic_ms(8 * parameters) + LAUNCH
    assert model.layers[1].forward == pytest.approx(forward, rel=1e-3)
    assert model.layers[1].backward == pytest.approx(backward, rel=1e-3)


def decoder_layer() -> tuple[float, float]:
    """F and BW of T5 large: 8 sequences of 512 tokens, which read 2048 of the encoder each.

    Seven products: of its own tokens, and of keys and values of the encoder's.
    """
    tokens, source, hidden, width = 8 * 512, 8 * 2048, 1024, 4096
    flops = 2 * tokens * (4 + 2 + 8) * hidden**2 + 2 * source * 2 * hidden**2
    own, crossed = (tokens * 4 * keys * hidden for keys in (512 / 2, 2048))
    blocks = 16 * tokens / 128

    def scores(share: float) -> float:
        return attention(own, blocks, share) + attention(crossed, blocks, share)

    forward = (
        product(flops, 7)
        + scores(H100.attention_efficiency)
        + traffic_ms(2 * tokens * (3 * (2 + 3) * hidden + 2 * width))
        + 7 * LAUNCH
    )
    backward = (
        product(2 * flops, 14)
        + 2.5 * scores(H100.attention_backward_efficiency)
        + traffic_ms(2 * tokens * (3 * (4 + 1) * hidden + 3 * width))
        + 10 * LAUNCH
        + traffic_ms(8 * 16 * hidden**2)
        + 3 * LAUNCH
    )
    return forward, backward


def test_a_decoder_layer_of_t5() -> None:
    model = derive_model(
        T5_LARGE,
        gpu="h100",
        devices=1,
        sequence=512,
        encoder_sequence=2048,
        microbatch=8,
        cuda_graphs=True,
    )
    forward, backward = decoder_layer()
    assert model.layers[3].forward == pytest.approx(forward, rel=1e-3)
    assert model.layers[3].backward == pytest.approx(backward, rel=1e-3)


def test_a_step_of_1f1b_with_the_encoder_in_front_of_the_decoder() -> None:
    """The first stage has the encoder and works without a break, but for its first backward.

    That waits for F and BW of the decoder, and for the output of the encoder, 8 x 2048 x 1024
    elements, and its gradient, while the F of the second microbatch runs.
    """
    model = derive_model(
        T5_LARGE,
        gpu="h100",
        devices=2,
        batches=4,
        sequence=512,
        encoder_sequence=2048,
        microbatch=8,
        cuda_graphs=True,
        partition=[25, 26],
    )
    first, second = (
        (
            sum(layer.count * layer.forward for layer in layers),
            sum(layer.count * layer.backward for layer in layers),
        )
        for layers in (model.layers[:2], model.layers[2:])
    )
    alpha = H100.collective_fixed + H100.collective_step
    transfer = 1e3 * (alpha + 2 * 8 * 2048 * 1024 / (450e9 * 0.556))
    optimizer = sum(layer.count * layer.step.optimizer for layer in model.layers[:2])
    schedule = ppopt.evaluate(replace(model.pipeline, mem_limit=None), "1f1b")
    whole = 4 * sum(first) + sum(second) + 2 * transfer - first[0] + optimizer
    assert float(schedule.makespan) == pytest.approx(whole, rel=1e-4)
