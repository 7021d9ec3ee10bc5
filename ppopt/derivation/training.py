"""How a model is trained: its parallelism and the shape of a microbatch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from ppopt.derivation.architecture import Architecture, Experts
from ppopt.derivation.attention import Attention
from ppopt.derivation.collectives import Group
from ppopt.derivation.expert_loads import ExpertLoads
from ppopt.derivation.frameworks import (
    BOTH_LAYOUTS,
    FP8_RECIPES,
    FUSED_LOSS,
    LOSS_CHUNKS,
    NVFP4,
    Fp8Recipe,
    Framework,
    LossCosts,
    ProductStorage,
    framework_named,
)
from ppopt.derivation.gpus import FUSED, UNFUSED, Precision
from ppopt.errors import ConflictError, InputError
from ppopt.formats.fields import abbreviated, whole, within

MAX_COUNT = 2**31
MAX_IMBALANCE = 1000
GRADIENT_BYTES = (2, 4)
MEGATRON = "megatron"
SHARDED_PARAMETERS = 3
"""Stage of ZeRO from which parameters are sharded."""
ELEMENT = 2
"""Bytes of an element in BF16."""
COUNTS = (
    *("devices", "batches", "tensor", "context", "data", "expert", "sequence", "microbatch"),
    *("expert_tensor", "gpus_per_node", "images", "shard", "encoder_sequence"),
)
"""Fields that are whole numbers from 1 on, or None."""


class ContextType(StrEnum):
    """How context-parallel ranks exchange keys and values."""

    RING = "ring"
    """From rank to rank, in parallel with the attention of a block (arXiv 2310.01889)."""
    ALL_GATHER = "all-gather"
    """All of them before attention (Llama 3, arXiv 2407.21783, section 3.3.2)."""
    ALL_TO_ALL = "all-to-all"
    """Every rank gets some heads of all tokens (DeepSpeed-Ulysses, arXiv 2309.14509)."""


class Dispatcher(StrEnum):
    """How tokens get to their experts, by the names of Megatron-LM's dispatchers."""

    ALL_TO_ALL = "alltoall"
    """Every copy of a token passes the network."""
    FLEX = "flex"
    """A token passes the network once for every node that it goes to (DeepEP)."""


class Loss(StrEnum):
    """How the loss of the vocabulary is computed."""

    DEFAULT = "default"
    """As the framework does."""
    FUSED = "fused"
    """In one kernel, and its gradient in another, on logits in BF16."""
    CHUNKED = "chunked"
    """Part by part, so that no logits are stashed."""


class Overlap(StrEnum):
    """Exchanges that overlap with compute."""

    TENSOR = "tp"
    """Of tensor-parallel ranks, with the product that they belong to (`--tp-comm-overlap` of
    Megatron-LM, asynchronous tensor parallelism of torchtitan)."""
    DISPATCH = "dispatch"
    """Of tokens with their experts, with compute of another microbatch, in an overlapped pair of F
    and BW (`--overlap-moe-expert-parallel-comm` of Megatron-LM; DualPipe, arXiv 2412.19437, section
    3.2.1)."""
    WEIGHT = "wgrad"
    """Of these, with W, too, which is delayed (`--delay-wgrad-compute` of Megatron-LM)."""
    GRADIENTS = "grads"
    """Reduction of gradients, with the last backward (`--overlap-grad-reduce` of Megatron-LM)."""
    PARAMETERS = "params"
    """Gathers of weights, with the first F (`--overlap-param-gather` of Megatron-LM)."""


class Reshard(StrEnum):
    """When weights are sharded again, by the names of torchtitan's `reshard_after_forward`."""

    DEFAULT = "default"
    """`always` without pipeline parallelism, else `never`."""
    ALWAYS = "always"
    """After F of a layer; every backward gathers them again, and reduces its gradients."""
    NEVER = "never"
    """At the end of the step: weights are gathered, and gradients are reduced, once."""


class Frozen(StrEnum):
    """Parts of a model that may be frozen."""

    EMBEDDING = "embedding"
    ENCODER = "encoder"
    DECODER = "decoder"
    HEAD = "head"


@dataclass(frozen=True)
class Training:
    """A training, in Megatron-LM's terms. Raises InputError on anything that is no training.

    A device of the pipeline stands for tensor x context GPUs; data copies of the pipeline run side
    by side.
    """

    devices: int = 4
    """Pipeline ranks."""
    batches: int = 16
    """Microbatches of a step, per copy of the pipeline."""
    tensor: int = 1
    """Ranks that share every matrix, with sequence parallelism (arXiv 2205.05198)."""
    context: int = 1
    """Ranks that share every sequence."""
    data: int = 1
    """Copies of the pipeline. Optimizer states are sharded over data x context ranks."""
    expert: int = 1
    """Ranks, of the data x context ones, over which experts are spread."""
    sequence: int = 4096
    """Tokens of a sequence."""
    microbatch: int = 1
    """Sequences of a microbatch."""
    precision: Precision = Precision.BF16
    """Of the products of matrices; all other tensors are in BF16, optimizer states in FP32."""
    fp8_recipe: str = "tensorwise"
    """Scaling of products in FP8 (`ppopt.derivation.frameworks.FP8_RECIPES`)."""
    bf16_start: int = 0
    """Layers at the start whose products stay in BF16 in a training of lower precision."""
    bf16_end: int = 0
    """The same at the end."""
    framework: str = "megatron"
    """Name of the framework (`ppopt.derivation.frameworks`)."""
    sequence_parallel: bool = True
    """Whether tensor-parallel ranks share the tokens between matrices (arXiv 2205.05198)."""
    attention: str = FUSED
    """Kernel of attention: `fused`, that of today's trainers, or another whose time the GPU has
    (`attention_kernels`), as FlashAttention-2, arXiv 2307.08691. With `unfused` scores pass
    the GPU's memory, causal or not, and are stashed (`--attention-backend unfused` of
    Megatron-LM)."""
    dropout: bool = False
    """Whether outputs of attention and feed-forward, and scores of attention, pass dropout, whose
    masks are stashed: Megatron-LM's default, but not of its recipes for Llama and later models."""
    overlap: tuple[Overlap, ...] = ()
    loss: Loss = Loss.DEFAULT
    cuda_graphs: bool = False
    """Whether CUDA graphs launch the kernels, so that the GPU never waits for the CPU."""
    context_type: ContextType = ContextType.RING
    zero: int = 1
    """Stage of ZeRO (arXiv 1910.02054), over ranks of data x context: 0 shards nothing, 1 optimizer
    states, 2 gradients too, 3 parameters too."""
    shard: int | None = None
    """Ranks of data x context over which `zero` shards; groups of them hold copies (HSDP: arXiv
    2304.11277, section 3.2.2). None: all."""
    gradient_bytes: int | None = None
    """Bytes of an element of gradients, in memory and in their reduction; None: those of the
    framework."""
    reshard_after_forward: Reshard = Reshard.DEFAULT
    """Whether sharded parameters (`zero` 3) are sharded again after every F."""
    expert_tensor: int | None = None
    """Tensor parallel size of experts; None: that of the rest. The experts' ranks are then of
    tensor x context x data / expert_tensor."""
    expert_imbalance: float | ExpertLoads = 1.0
    """Tokens of the experts of the rank with the largest load, relative to the mean of ranks; or
    the loads of experts, from which it follows."""
    dispatcher: Dispatcher = Dispatcher.ALL_TO_ALL
    gpus_per_node: int | None = None
    """None: that of the GPU."""
    lora: int = 0
    """Rank of the adapters of a low-rank adaptation (arXiv 2106.09685), which alone are trained; 0:
    no adapters."""
    freeze: tuple[Frozen, ...] = ()
    """Parts that are not trained."""
    mtp: bool = True
    """Whether modules that predict further tokens are trained, where the model has any."""
    images: int = 1
    """Images of a sequence, where the model has an encoder of images."""
    encoder_sequence: int | None = None
    """Tokens of a sequence of the encoder, where cross attention reads its output; None:
    `sequence`, which is that of the decoder."""

    def __post_init__(self) -> None:
        for name in COUNTS:
            number = getattr(self, name)
            if number is not None:
                within(name, whole, number, 1, MAX_COUNT)
        for name in ("lora", "bf16_start", "bf16_end"):
            within(name, whole, getattr(self, name), 0, MAX_COUNT)
        within("zero", whole, self.zero, 0, 3)
        if not isinstance(self.expert_imbalance, ExpertLoads):
            check_imbalance(self.expert_imbalance)
        vars(self).update(
            {field: _named(kind, field, getattr(self, field)) for field, kind in _NAMES.items()}
        )
        framework_named(self.framework)
        if self.fp8_recipe not in FP8_RECIPES:
            raise _unknown("fp8_recipe", self.fp8_recipe, FP8_RECIPES)
        self._check_sequences()
        if self.context > 1 and self.attention == UNFUSED:
            raise ConflictError(
                f"context: {self.context} ranks share a sequence with fused attention only; leave "
                "attention at fused"
            )
        if self.reshard_after_forward is not Reshard.DEFAULT and self.zero < SHARDED_PARAMETERS:
            raise ConflictError(
                f"reshard_after_forward: {self.reshard_after_forward} needs sharded parameters; "
                f"give --zero {SHARDED_PARAMETERS} too"
            )
        if self.gradient_bytes not in (None, *GRADIENT_BYTES):
            raise InputError(
                f"gradient_bytes: {abbreviated(self.gradient_bytes)} is none of "
                f"{', '.join(map(str, GRADIENT_BYTES))}"
            )
        if self.shard is not None and self.ranks % self.shard:
            raise ConflictError(
                f"shard: {self.shard} does not divide data x context = {self.ranks}; give a divisor"
            )
        self._check_experts()

    def _check_sequences(self) -> None:
        for name in ("sequence", "encoder_sequence"):
            if (getattr(self, name) or 0) % (self.context * self.tensor):
                raise ConflictError(
                    f"{name}: {getattr(self, name)} tokens cannot be shared by {self.context} x "
                    f"{self.tensor} ranks of context and tensor; give a multiple"
                )

    def _check_experts(self) -> None:
        if Overlap.WEIGHT in self.overlap and Overlap.DISPATCH not in self.overlap:
            raise ConflictError(
                "overlap: wgrad delays W behind the exchanges of dispatch; give --overlap "
                "dispatch,wgrad"
            )
        ranks, remainder = divmod(self.tensor * self.ranks, self.of_expert)
        if remainder:
            raise ConflictError(
                f"expert_tensor: {self.of_expert} does not divide tensor x context x data = "
                f"{self.tensor * self.ranks}; give a divisor"
            )
        if ranks % self.expert:
            product = (
                "data x context"
                if self.of_expert == self.tensor
                else ("tensor x context x data / expert_tensor")
            )
            raise ConflictError(
                f"expert: {self.expert} does not divide {product} = {ranks}, the ranks over which "
                "experts are spread"
            )

    @cached_property
    def in_bf16(self) -> Training:
        """The training of layers whose products stay in BF16."""
        return replace(self, precision=Precision.BF16)

    @cached_property
    def style(self) -> Framework:
        """The framework, with gradients of `gradient_bytes`."""
        style, size = framework_named(self.framework), self.gradient_bytes
        if size is None:
            return style
        accumulated = style.accumulated * size / style.gradient
        return style._replace(gradient=size, accumulated=accumulated)

    @property
    def bucket(self) -> float:
        """Parameters whose gradients are reduced in a single collective."""
        bucket = self.style.bucket
        return max(bucket, 1e6 * self.ranks) if self.framework == MEGATRON else bucket

    @property
    def loss_costs(self) -> LossCosts:
        """What the loss costs per logit."""
        passes, workspace = self.style.loss, self.style.loss_workspace
        if self.loss is Loss.FUSED:
            return FUSED_LOSS
        if self.loss is Loss.CHUNKED:
            chunk = (passes.stashed + workspace) / LOSS_CHUNKS
            return LossCosts(passes._replace(stashed=0), chunk)
        return LossCosts(passes, workspace)

    def storage(self, fp8_layouts: int, *, in_bf16: bool = False) -> ProductStorage:
        """What products of matrices keep, those in BF16 or the others.

        `fp8_layouts` is that of the GPU.
        """
        parameter = self.style.parameter
        if in_bf16 or not self.keeps_fp8:
            return ProductStorage(ELEMENT, parameter, ELEMENT)
        recipe = self.recipe
        copies = recipe.weight * (BOTH_LAYOUTS if recipe.scales_blocks else fp8_layouts)
        if self.stores_fp8_weights:
            return ProductStorage(recipe.element, copies, recipe.weight, recipe.copies_attended)
        return ProductStorage(recipe.element, parameter + copies, ELEMENT, recipe.copies_attended)

    @property
    def recipe(self) -> Fp8Recipe:
        """Scaling of products in FP8 or NVFP4."""
        return NVFP4 if self.precision is Precision.NVFP4 else FP8_RECIPES[self.fp8_recipe]

    @property
    def keeps_fp8(self) -> bool:
        """Whether products keep their inputs in FP8 or NVFP4."""
        return self.precision is not Precision.BF16 and self.style.stores_fp8

    @property
    def stores_fp8_weights(self) -> bool:
        """Whether weights are stored in FP8: Megatron-LM then needs a distributed optimizer."""
        return self.keeps_fp8 and self.recipe.stores_weights and self.zero > 0

    @property
    def shards_weights(self) -> bool:
        """Whether parameters are sharded over data-parallel ranks."""
        return self.zero == SHARDED_PARAMETERS and self.shard_of(self.data_group).ranks > 1

    @property
    def reshards(self) -> bool:
        """Whether parameters are gathered for every F and every backward of a microbatch."""
        mode = self.reshard_after_forward
        always = self.devices == 1 if mode is Reshard.DEFAULT else mode is Reshard.ALWAYS
        return self.shards_weights and always

    @property
    def imbalance(self) -> float:
        """Tokens of the rank with the largest load of experts, relative to the mean of ranks."""
        loads = self.expert_imbalance
        return loads.imbalance(self.expert) if isinstance(loads, ExpertLoads) else loads

    @property
    def of_expert(self) -> int:
        """Tensor parallel size of experts."""
        return self.tensor if self.expert_tensor is None else self.expert_tensor

    @property
    def tensor_group(self) -> Group:
        """Ranks that share every matrix, the innermost in Megatron-LM's order."""
        return Group(self.tensor)

    @property
    def context_group(self) -> Group:
        """Ranks that share every sequence."""
        return Group(self.context, self.tensor)

    @property
    def expert_group(self) -> Group:
        """Ranks over which experts are spread."""
        return Group(self.expert, self.of_expert)

    @property
    def data_group(self) -> Group:
        """Ranks that have the same parameters, but for experts."""
        return Group(self.ranks, self.tensor)

    @property
    def expert_data_group(self) -> Group:
        """Ranks that have the same experts."""
        inner = self.of_expert * self.expert
        return Group(self.tensor * self.ranks // inner, inner)

    @property
    def ranks(self) -> int:
        """Ranks that have the same parameters, but for experts."""
        return self.data * self.context

    @property
    def copies(self) -> int:
        """Groups of ranks each of which has all shards."""
        return 1 if self.shard is None else self.ranks // self.shard

    def shard_of(self, group: Group) -> Group:
        """The ranks of a data-parallel group over which states are sharded."""
        return group._replace(ranks=max(1, group.ranks // self.copies))

    def copies_of(self, group: Group) -> Group:
        """The ranks of a data-parallel group that have the same shard."""
        shard = self.shard_of(group)
        return Group(group.ranks // shard.ranks, group.stride * shard.ranks)

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.devices * self.tensor * self.context * self.data

    @property
    def encoder_tokens(self) -> int:
        """Tokens of a sequence of the encoder that cross attention reads."""
        return self.encoder_sequence or self.sequence

    @property
    def all_tokens(self) -> int:
        """Tokens of a microbatch on all ranks."""
        return self.microbatch * self.sequence

    def check(self, architecture: Architecture) -> None:
        """Raise ConflictError if the ranks cannot share the architecture."""
        decoders = [run.decoder for run in (*architecture.source_runs, *architecture.runs)]
        for attention in (each for decoder in decoders for each in decoder.attentions):
            if attention.heads % self.tensor:
                raise ConflictError(
                    f"tensor: {self.tensor} ranks cannot share {attention.heads} heads; give a "
                    "divisor"
                )
            if attention.groups % self.tensor:
                raise ConflictError(
                    f"tensor: {self.tensor} ranks would copy {attention.groups} heads of keys and "
                    f"values, which is not derived; give a divisor of {attention.groups}"
                )
            self._check_context(attention)
        networks = (each for decoder in decoders for each in decoder.feed_forwards)
        experts = [each for each in networks if isinstance(each, Experts)]
        if self.expert > 1 and not experts:
            raise ConflictError("expert: the model has no experts; leave it out")
        for each in experts:
            self._check_shares(each)
        self._check_encoder(architecture)
        layers = sum(run.count for run in architecture.runs)
        if self.bf16_start + self.bf16_end > layers:
            raise ConflictError(
                f"bf16_start: {self.bf16_start} + {self.bf16_end} layers (bf16_end) of {layers}; "
                "give fewer"
            )
        if self.lora and Frozen.DECODER in self.freeze:
            raise ConflictError(
                "lora: the adapters are in decoder layers, which are frozen; leave out one of them"
            )
        if self.lora > architecture.hidden:
            raise ConflictError(
                f"lora: {self.lora} is above the width of the model, {architecture.hidden}"
            )

    def _check_shares(self, experts: Experts) -> None:
        """Raise ConflictError if the ranks cannot share some experts."""
        if experts.number % self.expert:
            raise ConflictError(
                f"expert: {self.expert} ranks cannot share {experts.number} experts; give a divisor"
            )
        if experts.width % self.of_expert:
            raise ConflictError(
                f"expert_tensor: {self.of_expert} ranks cannot share experts {experts.width} wide; "
                "give a divisor"
            )
        if isinstance(self.expert_imbalance, ExpertLoads):
            self.expert_imbalance.check(experts.number)
        if self.tensor > 1 and not self.sequence_parallel:
            raise ConflictError(
                "no_sequence_parallel: experts under tensor parallelism need sequence parallelism, "
                "as in Megatron-LM; leave it out"
            )

    def _check_encoder(self, architecture: Architecture) -> None:
        """Raise ConflictError if an encoder does not go with the sequences of the training."""
        encoder = architecture.encoder
        if self.encoder_sequence and architecture.source is None:
            raise ConflictError("encoder_sequence: the model has no encoder of words; leave it out")
        if self.context > 1 and architecture.source is not None:
            raise ConflictError(
                f"context: {self.context} ranks share the sequence of a decoder alone, and the "
                "model has an encoder of words too; leave it at 1"
            )
        if encoder is not None and self.images * encoder.tokens > self.sequence:
            raise ConflictError(
                f"images: {self.images} x {encoder.tokens} tokens do not fit into a sequence of "
                f"{self.sequence}; give fewer, or a longer --sequence"
            )

    def _check_context(self, attention: Attention) -> None:
        """Raise ConflictError if the ranks of context cannot share an attention."""
        if self.context == 1 or self.context_type is not ContextType.ALL_TO_ALL:
            return
        for heads in (attention.heads, attention.groups):
            if heads // self.tensor % self.context:
                raise ConflictError(
                    f"context: {self.context} ranks cannot share {heads // self.tensor} heads; "
                    "give a divisor, or --context-type ring"
                )

    def describe_parallelism(self) -> str:
        """The kinds of parallelism with more than one rank, as text."""
        ranks = {name: getattr(self, name) for name in ("tensor", "context", "data", "expert")}
        return ", ".join(f"{name} {size}" for name, size in ranks.items() if size > 1) or "none"


_NAMES: Mapping[str, type[StrEnum]] = {
    "precision": Precision,
    "context_type": ContextType,
    "dispatcher": Dispatcher,
    "reshard_after_forward": Reshard,
    "overlap": Overlap,
    "loss": Loss,
    "freeze": Frozen,
}
"""Field -> its names, of which it has one or several."""


def check_imbalance(factor: float) -> None:
    """Raise InputError if a factor of imbalance is out of range."""
    if not 1 <= factor <= MAX_IMBALANCE:
        raise InputError(
            f"expert_imbalance: {abbreviated(factor)} is not within 1 .. {MAX_IMBALANCE}; it is "
            "the largest load of a rank relative to the mean, about 1.1"
        )


def _named(kind: type[StrEnum], field: str, name: str | Iterable[str]) -> Any:
    """A member by its name, or several; raises InputError if there is none of a name."""
    if not isinstance(name, str):
        return tuple(_named(kind, field, each) for each in name)
    if name not in tuple(kind):
        raise _unknown(field, name, kind)
    return kind(name)


def _unknown(field: str, name: str, known: Iterable[str]) -> InputError:
    return InputError(f"{field}: {abbreviated(name)} is unknown; known are {', '.join(known)}")
