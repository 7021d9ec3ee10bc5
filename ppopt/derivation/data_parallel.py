"""Ranks that have the same parameters: what each stores of them, and what they exchange.

- Static memory: parameters, gradients and optimizer states of the framework (Megatron-LM: 2, 4 and
  12 bytes a parameter, docs/user-guide/features/dist_optimizer.md), sharded by `zero` (arXiv
  1910.02054); weights of products in FP8 by its recipe (`FP8_RECIPES`). Norms and biases are left
  out. Frozen layers have only parameters.
- Once in a step weights are gathered (ZeRO 1 to 3), and gradients are reduced. They may overlap
  with the first F and the last backward of their stage, in buckets of `Framework.bucket`
  parameters: what is exposed is the part that takes longer than the compute, and one bucket.
- With sharded parameters (`zero` 3) a rank may reshard a layer after its F (`Training.reshards`):
  weights are gathered for every F and every backward of a microbatch, and gradients are reduced in
  every backward, in parallel with the compute of a neighboring layer (FSDP: arXiv 2304.11277,
  section 3.3). Then the weights of two layers are in memory, and the gradients of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ppopt.derivation.collectives import Collective, Group, Pattern
from ppopt.derivation.kernels import Kernel, KernelBound
from ppopt.derivation.layer_part import LayerPart, PerKind
from ppopt.derivation.layer_parts import Rank
from ppopt.derivation.training import Training

ADAM = 28
"""Bytes that Adam moves per parameter in FP32: it reads parameter, gradient and two moments, and
writes all but the gradient."""
NORM = 4
"""Bytes per parameter that the norm of the gradients reads."""


@dataclass(frozen=True)
class DataParallel:
    """A rank among those that have the same parameters."""

    rank: Rank

    @property
    def training(self) -> Training:
        """The training of the rank."""
        return self.rank.training

    def static(self, part: LayerPart) -> float:
        """Bytes of a part's parameters, gradients and optimizer states on a rank."""
        data, experts = self.training.data_group, self.training.expert_data_group
        each = self.rank.storage(in_bf16=part.in_bf16).parameter
        adapter = self.rank.storage(in_bf16=True).parameter
        return (
            self._bytes(part.parameters, each, data, trained=part.trained)
            + self._bytes(part.routed, each, experts, trained=part.trained)
            + self._bytes(part.adapters, adapter, data, trained=True)
        )

    def _bytes(self, parameters: float, each: float, group: Group, *, trained: bool) -> float:
        """Bytes of parameters of `each` bytes, with gradients and states if they are trained.

        Where weights stay gathered, so do gradients: they are reduced at the end of the step.
        """
        style, training = self.training.style, self.training
        ranks = training.shard_of(group).ranks
        weights, gradients, states = (
            ranks if is_sharded else 1
            for is_sharded in (
                training.shards_weights,
                training.zero == 2 or training.reshards,
                training.zero >= 1,
            )
        )
        if not trained:
            return parameters * each / weights
        sizes = each / weights + style.gradient / gradients + style.state / states
        return parameters * sizes

    def gathers(self, parts: Sequence[LayerPart]) -> tuple[Collective, ...]:
        """All-gathers of the weights of a layer; without sharded weights, of the trained ones."""
        if not self.training.zero:
            return ()
        weights = self._sharded(parts, frozen=self.training.shards_weights, each=self._gathered)
        shards = [(size, self.training.shard_of(group)) for size, group in weights]
        return _collectives("weights", Pattern.ALL_GATHER, shards)

    def reductions(self, parts: Sequence[LayerPart]) -> tuple[Collective, ...]:
        """Reductions of the gradients of a layer: to shards, and of shards over their copies."""
        training = self.training
        gradient = training.style.gradient
        gradients = self._sharded(parts, frozen=False, each=lambda _: gradient)
        if not training.zero:
            return _collectives("gradients", Pattern.ALL_REDUCE, gradients)
        groups = [(size, training.shard_of(group), group) for size, group in gradients]
        shards = [(size, shard) for size, shard, _ in groups]
        copies = [(size / shard.ranks, training.copies_of(group)) for size, shard, group in groups]
        return (
            *_collectives("gradients", Pattern.REDUCE_SCATTER, shards),
            *_collectives("copies of gradients", Pattern.ALL_REDUCE, copies),
        )

    def streamed(self, parts: Sequence[LayerPart]) -> PerKind:
        """Collectives of a microbatch, which overlap with compute, if weights are resharded."""
        if not self.training.reshards:
            return PerKind()
        gathers, reductions = self.gathers(parts), self.reductions(parts)
        return PerKind(gathers, gathers, reductions, gathers + reductions)

    def optimizer(self, parts: Sequence[LayerPart]) -> list[Kernel]:
        """Adam and the norm of the gradients, for parameters of each group of ranks."""
        return [
            Kernel("optimizer", KernelBound.MEMORY, traffic=self._optimizing(number, group))
            for number, group in self._sharded(parts, frozen=False)
            if number
        ]

    def _optimizing(self, parameters: float, group: Group) -> float:
        """Bytes that the optimizer moves."""
        training = self.training
        shard = parameters / (training.shard_of(group).ranks if training.zero else 1)
        gradients = shard if training.reshards else parameters
        return (ADAM + NORM) * shard + training.style.gradient * gradients

    def _sharded(
        self,
        parts: Sequence[LayerPart],
        *,
        frozen: bool,
        each: Callable[[bool], float] = lambda _: 1,
    ) -> list[tuple[float, Group]]:
        """Parameters on a rank, those that are not trained included or not, by their group.

        A parameter counts as `each` says of those that stay in BF16, and of others.
        """
        counted = [part for part in parts if frozen or part.trained]
        dense = sum(each(part.in_bf16) * part.parameters for part in counted)
        dense += each(True) * sum(part.adapters for part in parts)
        routed = sum(each(part.in_bf16) * part.routed for part in counted)
        return [(dense, self.training.data_group), (routed, self.training.expert_data_group)]

    def _gathered(self, in_bf16: bool) -> float:
        """Bytes of a parameter that data-parallel ranks gather."""
        return self.rank.storage(in_bf16=in_bf16).gathered


def _collectives(
    name: str, pattern: Pattern, sharded: Sequence[tuple[float, Group]]
) -> tuple[Collective, ...]:
    """A collective for the bytes of every group."""
    return tuple(
        Collective(name, pattern, size, group)
        for size, group in sharded
        if size and group.ranks > 1
    )
