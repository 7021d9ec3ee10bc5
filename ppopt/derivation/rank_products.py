"""Products of matrices and memory-bound functions of a rank, of which layers consist."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Self

from ppopt.derivation.attention import (
    ATTENDED,
    HIDDEN,
    SOURCE,
    Matrix,
    Shard,
    parameters_of,
)
from ppopt.derivation.collectives import Collective, Pattern
from ppopt.derivation.frameworks import Framework, PassTraffic, ProductStorage
from ppopt.derivation.gpus import Gpu, Precision
from ppopt.derivation.kernels import Kernel, KernelBound
from ppopt.derivation.layer_part import NO_COLLECTIVES, LayerPart, PerKind, StashedInput
from ppopt.derivation.training import ELEMENT, Overlap, Training

CAST = {Precision.FP8: 2 + 1 + 1, Precision.NVFP4: 2 + 2 + 0.5 + 0.5}
"""Bytes of an element that casts move: they read BF16, in NVFP4 for the largest value of a tensor
first, and write two layouts."""


@dataclass(frozen=True)
class RankProducts:
    """A rank of a training on a GPU: its parts of matrices, and the functions between them."""

    training: Training
    gpu: Gpu
    sequence: int
    """Tokens of a sequence, on all ranks."""
    sequences: int
    """Sequences of a microbatch."""
    frozen: bool = False
    """Whether the layers are not trained."""

    @property
    def fixed(self) -> bool:
        """Whether matrices are not trained: their layers are frozen, or adapters alone are."""
        return self.frozen or bool(self.training.lora)

    @cached_property
    def style(self) -> Framework:
        """The framework."""
        return self.training.style

    @property
    def node(self) -> int:
        """GPUs of a node."""
        return self.training.gpus_per_node or self.gpu.gpus_per_node

    def storage(self, *, in_bf16: bool = False) -> ProductStorage:
        """What products of matrices keep on this GPU, those in BF16 or the others."""
        return self.training.storage(self.gpu.fp8_layouts, in_bf16=in_bf16)

    @property
    def tokens(self) -> float:
        """Tokens of a microbatch on a rank, before tensor parallelism."""
        return self.sequences * self.sequence / self.training.context

    @property
    def local_tokens(self) -> float:
        """Tokens of a microbatch on a rank between the matrices."""
        ranks = self.training.tensor if self.training.sequence_parallel else 1
        return self.tokens / ranks

    @property
    def source(self) -> Self:
        """The rank with the tokens of the encoder, which cross attention reads."""
        return replace(self, sequence=self.training.encoder_tokens)

    def hidden_bytes(self, hidden: int) -> float:
        """Bytes of the hidden vectors of a rank's tokens."""
        return ELEMENT * self.local_tokens * hidden

    def _trained(self, passes: PassTraffic) -> PassTraffic:
        """The passes of a function with weights: frozen ones have no gradient."""
        return passes._replace(weight=0) if self.fixed else passes

    def _row_collectives(
        self, size: float
    ) -> tuple[tuple[Collective, ...], tuple[Collective, ...]]:
        """Collectives after a matrix divided by rows: in F, and in B."""
        training = self.training
        if training.tensor == 1:
            return (), ()
        reduce = Collective("output", Pattern.REDUCE_SCATTER, size, training.tensor_group)
        if not training.sequence_parallel:
            return (reduce._replace(pattern=Pattern.ALL_REDUCE),), ()
        gather = Collective("gradient", Pattern.ALL_GATHER, size, training.tensor_group)
        return (reduce,), (gather,)

    def _products(self, matrices: Iterable[Matrix]) -> list[LayerPart]:
        """Products in order of execution; those of the same inputs run as one."""
        return [
            (self.source if group[0].reads == SOURCE else self)._product(group)
            for group in product_groups(matrices)
        ]

    def _product(
        self, matrices: Sequence[Matrix], *, adapted: bool = True, in_bf16: bool = False
    ) -> LayerPart:
        """The product of tokens with matrices of the same inputs, that may have adapters."""
        training, first = self.training, matrices[0]
        whole = first.shard is Shard.NONE
        ranks = 1 if whole else training.tensor
        many = self.local_tokens if whole else self.tokens
        parameters = parameters_of(matrices) / ranks
        name = " + ".join(matrix.name for matrix in matrices)
        kernel = Kernel(name, KernelBound.PRODUCT, 2 * many * parameters, in_bf16=in_bf16)
        fixed = self.fixed
        weight = () if fixed else (kernel,)
        collectives = self._tensor_collectives(matrices, many, trained=not fixed)
        if Overlap.TENSOR in training.overlap:
            seconds = kernel.seconds(self.gpu, training.precision)
            collectives = collectives.hidden_behind(seconds)
        elements = self.local_tokens * first.inputs
        if first.shard is Shard.ROWS:
            elements = self.tokens * first.inputs / training.tensor
        read = self._stashed_input(name, first.reads, elements, in_bf16=in_bf16)
        outputs = sum(matrix.outputs for matrix in matrices)
        results = many * outputs / (ranks if first.shard is Shard.COLUMNS else 1)
        casts = () if in_bf16 else self._casts(first.reads, elements, parameters)
        casts_back = () if in_bf16 else self._casts("gradient", results, parameters)
        part = LayerPart(
            name, (kernel, *casts), (kernel, *casts_back), weight, collectives,
            inputs=() if fixed else read, parameters=parameters, trained=not fixed, in_bf16=in_bf16,
        )  # fmt: skip
        if training.lora and adapted and not self.frozen:
            inputs = self._stashed_input(name, first.reads, elements, in_bf16=True)
            part += replace(self._adapters(matrices, many), inputs=inputs)
        return part

    def _casts(self, tensor: str, elements: float, parameters: float) -> tuple[Kernel, ...]:
        """Casts of the input of a product, and of its weights unless those are stored as they run.

        Transformer Engine fuses the cast of normed vectors with their norm. Grouped products are
        left out: their kernels quantize the copies of tokens, as steps of Megatron-Bridge suggest.
        """
        training = self.training
        if training.precision is Precision.BF16:
            return ()
        is_fused = training.style.stores_fp8 and tensor == HIDDEN
        size = 0.0 if is_fused else elements
        if not training.stores_fp8_weights:
            size += parameters
        traffic = CAST[training.precision] * size
        return (Kernel("casts", KernelBound.MEMORY, traffic=traffic, launches=0),) if size else ()

    def _stashed_input(
        self, product: str, tensor: str, elements: float, *, in_bf16: bool = False
    ) -> tuple[StashedInput, ...]:
        """The input that a product keeps for W: in BF16 the tensor, in FP8 its own copy of it."""
        storage = self.storage(in_bf16=in_bf16)
        if tensor == ATTENDED and not storage.copies_attended:
            return ()
        if storage.element != ELEMENT:
            tensor = f"{tensor} of {product}"
        return (StashedInput(tensor, storage.element * elements),)

    def _adapters(self, matrices: Sequence[Matrix], tokens: float) -> LayerPart:
        """Two narrow matrices for each (arXiv 2106.09685, section 4.1)."""
        rank, tensor = self.training.lora, self.training.tensor
        size = 0.0
        for matrix in matrices:
            inputs = matrix.inputs / (tensor if matrix.shard is Shard.ROWS else 1)
            outputs = matrix.outputs / (tensor if matrix.shard is Shard.COLUMNS else 1)
            size += rank * (inputs + outputs)
        kernel = Kernel(
            "adapters", KernelBound.PRODUCT, 2 * tokens * size, launches=2 * len(matrices)
        )
        stashed = ELEMENT * tokens * rank * len(matrices)
        return LayerPart(
            "adapters", (kernel,), (kernel,), (kernel,), stashed_otherwise=stashed, adapters=size
        )

    def _tensor_collectives(
        self, matrices: Sequence[Matrix], tokens: float, *, trained: bool
    ) -> PerKind:
        """Collectives of tensor-parallel ranks around a product."""
        training, first = self.training, matrices[0]
        if training.tensor == 1 or first.shard is Shard.NONE:
            return NO_COLLECTIVES
        if first.shard is Shard.ROWS:
            outputs = sum(matrix.outputs for matrix in matrices)
            reduce, gather = self._row_collectives(ELEMENT * tokens * outputs)
            return PerKind(reduce, gather, gather if trained else (), gather)
        size, group = ELEMENT * tokens * first.inputs, training.tensor_group
        reduce = (Collective("gradient", Pattern.ALL_REDUCE, size, group),)
        if not training.sequence_parallel:
            return PerKind((), reduce, (), reduce)
        gather = (Collective("input", Pattern.ALL_GATHER, size, group),)
        scatter = (reduce[0]._replace(pattern=Pattern.REDUCE_SCATTER),)
        regather = gather if trained else ()
        return PerKind(gather, scatter, regather, scatter + regather)

    def _grouped(
        self, matrices: Sequence[Matrix], rows: float, experts: float, ranks: int
    ) -> LayerPart:
        """The product of rows, each with the matrices of its expert, and of `experts` in all."""
        each = parameters_of(matrices) / ranks
        name = " + ".join(matrix.name for matrix in matrices)
        traffic = ELEMENT * (experts * each + rows * each * (1 / matrices[0].inputs))
        kernel = Kernel(name, KernelBound.GROUPED, 2 * rows * each, traffic)
        fixed = self.fixed
        weight = () if fixed else (kernel,)
        first = matrices[0]
        elements = rows * first.inputs / (ranks if first.shard is Shard.ROWS else 1)
        return LayerPart(
            name, (kernel,), (kernel,), weight,
            inputs=() if fixed else self._stashed_input(name, first.reads, elements),
            routed=experts * each, trained=not fixed,
        )  # fmt: skip

    def _pointwise(self, name: str, passes: PassTraffic, size: float, count: int = 1) -> LayerPart:
        """`count` memory-bound functions of `size` elements."""
        traffic, launches = ELEMENT * count * size, count
        kernels = [
            Kernel(name, KernelBound.MEMORY, 0, traffic * passed, launches * number)
            for passed, number in (
                (passes.forward, passes.forward_launches),
                (passes.backward, passes.backward_launches),
            )
        ]
        if not passes.forward:
            return LayerPart(name)
        weight = (
            (Kernel(name, KernelBound.MEMORY, 0, traffic * passes.weight, 0),)
            if passes.weight
            else ()
        )
        return LayerPart(
            name, (kernels[0],), (kernels[1],), weight, stashed_otherwise=traffic * passes.stashed
        )


def product_groups(matrices: Iterable[Matrix]) -> list[list[Matrix]]:
    """Consecutive matrices with the same inputs and shard."""
    return [list(group) for _, group in groupby(matrices, attrgetter("inputs", "shard", "reads"))]
