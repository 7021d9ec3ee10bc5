"""Collectives, and the time that a group of GPUs takes for each.

The formulas are those of NCCL's tests (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md). n ranks
take alpha + (n - 1) / n x S / beta for an all-gather, a reduce-scatter or an all-to-all of S bytes.
An all-reduce takes twice the second term. alpha = collective_fixed + collective_step x (n - 1). A
ring over several nodes enters and leaves each once on the adapters of its ranks, so that beta is at
most their sum. What leaves the node in an all-to-all, or in a step of a ring, passes a rank's own
adapter.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from ppopt.derivation.gpus import Gpu

DIRECT_EFFICIENCY = 0.86
"""Share of the adapters' bandwidth that an exchange of tokens reaches without NCCL: 43 to 58 GB/s
of 50 (README.md of github.com/deepseek-ai/DeepEP, H800 with ConnectX-7, 16 to 64 ranks)."""


class Pattern(StrEnum):
    """The communication pattern of a collective."""

    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_REDUCE = "all-reduce"
    ALL_TO_ALL = "all-to-all"
    RING_STEP = "ring step"
    """Every rank sends to the next one."""


class Group(NamedTuple):
    """Ranks that communicate, `stride` apart in the order of all ranks."""

    ranks: int
    stride: int = 1

    def in_node(self, node: int) -> int:
        """Number of its ranks in a node of `node` GPUs."""
        return max(1, min(self.ranks, node // self.stride))

    def nodes(self, node: int) -> int:
        """Number of nodes that it spans."""
        return -(-self.ranks // self.in_node(node))


class Collective(NamedTuple):
    """A collective of a group."""

    name: str
    pattern: Pattern
    size: float
    """Bytes: the gathered tensor of a rank; of an all-to-all, what a rank sends; of a ring step,
    what it passes on."""
    group: Group
    repeats: int = 1
    hidden: float = 0.0
    """Seconds of compute that overlap with each."""
    visible: float = 0.0
    """Share of each that is exposed however long the compute is."""
    network: float = 1.0
    """Of an all-to-all: the share of the data for other nodes that passes the network."""
    direct: bool = False
    """Of an all-to-all: whether ranks send to the nodes, and those to their ranks, by kernels of
    their own (DeepEP), not by NCCL."""

    def seconds(self, gpu: Gpu, node: int) -> float:
        """Time of all `repeats`, in seconds, on nodes of `node` GPUs."""
        return self.repeats * self._once(gpu, node)

    def exposed(
        self, gpu: Gpu, node: int, *, communication: float = 1.0, compute: float = 1.0
    ) -> float:
        """The part of the time that overlaps with no compute, in seconds.

        Both times are multiplied by their factors.
        """
        once = communication * self._once(gpu, node)
        return self.repeats * max(self.visible * once, once - compute * self.hidden)

    def _once(self, gpu: Gpu, node: int) -> float:
        ranks = self.group.ranks
        if ranks == 1:
            return 0.0
        hops = 1 if self.pattern is Pattern.RING_STEP else ranks - 1
        if self.direct:
            hops = self.group.nodes(node) + self.group.in_node(node) - 2
        alpha = gpu.collective_fixed + gpu.collective_step * hops
        return alpha + self._moving(gpu, node)

    def _moving(self, gpu: Gpu, node: int) -> float:
        ranks, near = self.group.ranks, self.group.in_node(node)
        network = gpu.network_bandwidth * gpu.network_efficiency
        inside = gpu.node_bandwidth * _share(gpu, self.pattern, near)
        if self.pattern is Pattern.ALL_TO_ALL:
            if self.direct:
                network = gpu.network_bandwidth * DIRECT_EFFICIENCY
            outside = self.network * (ranks - near) / network
            return self.size / ranks * max((near - 1) / inside, outside)
        if self.pattern is Pattern.RING_STEP:
            between = gpu.network_bandwidth * gpu.network_p2p_efficiency
            return self.size / (inside if near == ranks else min(inside, between))
        bandwidth = inside if near == ranks else min(inside, near * network)
        passes = 2 if self.pattern is Pattern.ALL_REDUCE else 1
        return passes * (ranks - 1) / ranks * self.size / bandwidth


def _share(gpu: Gpu, pattern: Pattern, ranks: int) -> float:
    """The share of bandwidth for the largest known group that is no larger, or the smallest one."""
    known = {Pattern.ALL_REDUCE: gpu.all_reduce, Pattern.ALL_TO_ALL: gpu.all_to_all}
    shares = known.get(pattern, gpu.all_gather)
    return shares[max((size for size in shares if size <= ranks), default=min(shares))]
