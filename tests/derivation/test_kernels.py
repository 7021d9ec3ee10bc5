"""Times of kernels, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ppopt.derivation.gpus import Precision, gpu_named
from ppopt.derivation.kernels import Kernel, KernelBound

GPU = replace(
    gpu_named("h100"),
    bf16=1000e12,
    fp8=2000e12,
    memory_speed=4e12,
    memory_efficiency=0.5,
    matrix_efficiency=0.8,
    matrix_overhead=40e9,
    grouped_efficiency=0.5,
    attention_efficiency=0.6,
    attention_backward_efficiency=0.4,
    attention_blocks=100,
    state_efficiency=0.05,
    kernel_time=5e-6,
)


@pytest.mark.parametrize(
    ("kernel", "time"),
    [
        (Kernel("x", KernelBound.PRODUCT, 2e12), 2.04e12 / 800e12),
        (Kernel("x", KernelBound.PRODUCT, 2e12, launches=3), 2.12e12 / 800e12),
        (Kernel("x", KernelBound.PRODUCT, 1e9), 41e9 / 800e12),
        # Bound by its matrices: 40 GB at 2 TB/s
        (Kernel("x", KernelBound.GROUPED, 1e12, traffic=40e9), 20e-3),
        (Kernel("x", KernelBound.GROUPED, 1e12, traffic=1e6), 1.04e12 / 500e12),
        (Kernel("x", KernelBound.ATTENTION, 6e12), 10e-3),
        # As many blocks as lose half
        (Kernel("x", KernelBound.ATTENTION, 6e12, blocks=100), 20e-3),
        (Kernel("x", KernelBound.ATTENTION_BACKWARD, 6e12, blocks=300), 15e-3 * 4 / 3),
        (Kernel("x", KernelBound.ATTENTION, 1e6), 5e-6),
        (Kernel("x", KernelBound.MEMORY, traffic=2e9, launches=2), 1e-3 + 10e-6),
    ],
)
def test_time(kernel: Kernel, time: float) -> None:
    assert kernel.seconds(GPU, Precision.BF16) == pytest.approx(time)


def test_fp8_is_of_products_alone() -> None:
    for bound, faster in (
        (KernelBound.PRODUCT, 2),
        (KernelBound.GROUPED, 2),
        (KernelBound.ATTENTION, 1),
    ):
        kernel = Kernel("x", bound, 5e12)
        bf16, fp8 = (kernel.seconds(GPU, name) for name in (Precision.BF16, Precision.FP8))
        assert bf16 == pytest.approx(faster * fp8)
