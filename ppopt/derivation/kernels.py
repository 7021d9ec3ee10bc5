"""Kernels of a layer, and their time on a GPU.

A kernel is bound by products of matrices, by attention, or by its memory traffic. Rates and
fixed times are those of the GPU (`gpus.toml`); every kernel takes at least `kernel_time`.
"""

from __future__ import annotations

from enum import StrEnum
from math import inf
from typing import NamedTuple

from ppopt.derivation.gpus import Gpu, Precision

BLOCK = 128
"""Queries that one thread block of FlashAttention computes (arXiv 2307.08691)."""


class KernelBound(StrEnum):
    """What limits the speed of a kernel."""

    PRODUCT = "product"
    """A product of matrices."""
    GROUPED = "grouped product"
    """Products of several experts' matrices in one kernel."""
    ATTENTION = "attention"
    ATTENTION_BACKWARD = "attention backward"
    STATE = "state"
    """Linear attention with a state, in chunks of tokens."""
    MEMORY = "memory"
    """Bytes that are read and written."""


class Kernel(NamedTuple):
    """A kernel, or several in a row that are equal in everything that costs time."""

    name: str
    bound: KernelBound
    flops: float = 0.0
    traffic: float = 0.0
    """Bytes read and written."""
    launches: float = 1.0
    """Number of kernels."""
    blocks: float = inf
    """Of attention: pairs of a head and a block of queries."""
    in_bf16: bool = False
    """Whether it stays in BF16 in a training of lower precision."""
    slower: float = 1.0
    """Time of its FLOPs, relative to that of kernels with the same bound."""

    def seconds(self, gpu: Gpu, precision: Precision) -> float:
        """Time on a GPU, in seconds."""
        moving = self.traffic / (gpu.memory_speed * gpu.memory_efficiency)
        if self.bound is KernelBound.MEMORY:
            return self.launches * gpu.kernel_time + moving
        return max(self.launches * gpu.kernel_time, moving, self._computing(gpu, precision))

    def _computing(self, gpu: Gpu, precision: Precision) -> float:
        if self.bound in (KernelBound.PRODUCT, KernelBound.GROUPED):
            grouped = self.bound is KernelBound.GROUPED
            share = gpu.grouped_efficiency if grouped else gpu.matrix_efficiency
            work = self.flops + self.launches * gpu.matrix_overhead
            peak = gpu.bf16 if self.in_bf16 else gpu.peak(precision)
            return self.slower * work / (peak * share)
        if self.bound is KernelBound.STATE:
            return self.slower * self.flops / (gpu.bf16 * gpu.state_efficiency)
        forward = self.bound is KernelBound.ATTENTION
        share = gpu.attention_efficiency if forward else gpu.attention_backward_efficiency
        return self.flops * (1 + gpu.attention_blocks / self.blocks) / (gpu.bf16 * share)
