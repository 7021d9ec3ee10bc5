"""The parts of a layer: compute, communication and stashed memory for a microbatch on one rank.

- A matrix of P parameters takes 2 P FLOPs a token in F, in B and in W each. Attention has no
  weights: its backward takes 2.5 times the FLOPs of F, because it computes the scores again
  (FlashAttention-2, arXiv 2307.08691, section 3.1).
- Memory-bound functions move what their framework's passes say (`frameworks`).
- F stashes the input of a matrix for W only: not for frozen matrices (`requires_grad` of the weight
  decides in transformer_engine/pytorch/module/linear.py and grouped_linear.py of Transformer
  Engine, d0067d0, as in `torch.nn.functional.linear`), unless adapters read it. Matrices that read
  the same tensor share it, but in FP8 each keeps its own copy (`Training.storage`).
- Tensor-parallel ranks exchange tokens as Megatron-LM's `ColumnParallelLinear` and
  `RowParallelLinear` do (megatron/core/tensor_parallel/layers.py; arXiv 2205.05198, section 4.2.2).
  With sequence parallelism a matrix divided by columns gathers its input in F and reduce-scatters
  the gradient in B; W gathers the input again. One divided by rows reduce-scatters its output, and
  gathers the gradient in B. BW gathers that gradient once, a split backward in W a second time.
  Without sequence parallelism both are all-reduces, and W has none.
- Experts exchange tokens before and behind them, in F and in B (GShard, arXiv 2006.16668).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, reduce
from itertools import groupby
from operator import add, attrgetter
from typing import NamedTuple

from ppopt.derivation.architecture import Decoder, Experts, FeedForward
from ppopt.derivation.attention import (
    ATTENDED,
    HIDDEN,
    Attention,
    GroupedQueryAttention,
    LatentAttention,
    Matrix,
    Recurrent,
    Shard,
    attention_flops,
    parameters_of,
)
from ppopt.derivation.collectives import Collective, Group, Pattern
from ppopt.derivation.frameworks import Framework, PassTraffic, ProductStorage
from ppopt.derivation.gpus import UNFUSED, Gpu, Precision
from ppopt.derivation.kernels import BLOCK, Kernel, KernelBound
from ppopt.derivation.training import ELEMENT, ContextType, Dispatcher, Overlap, Training

LOGIT = 4
"""Bytes of a logit in FP32."""
ATTENTION_BACKWARD = 2.5
"""FLOPs of attention in B, in those of F."""
STATE = 12
"""Bytes of an element of a chunk's state: FP32 is written and read, then BF16 (ssd_combined.py of
github.com/state-spaces/mamba; kernels of fla-org/flash-linear-attention are alike)."""
STATE_KERNELS = 5
"""Kernels of attention with a state: sums of decays, states, their sequence, scores, outputs."""
CONVOLUTION = PassTraffic(2, 3)
"""The convolution with its activation function, per element of its input."""
CAST = {Precision.FP8: 2 + 1 + 1, Precision.NVFP4: 2 + 2 + 0.5 + 0.5}
"""Bytes of an element that casts move: they read BF16, in NVFP4 for the largest value of a tensor
first, and write two layouts."""
EXPERT_BIASES = PassTraffic(14, 20, 4, 8)
"""Addition of an output's bias times its probability, expert by expert in FP32, and their
concatenation: F writes the product, the sum, its copy and the result in BF16, and reads each; B
computes both gradients of the product (TEGroupedMLP in megatron/core/transformer/moe/experts.py of
Megatron-LM, d98e8a6)."""
ROUTING_KERNELS = 12
"""Small kernels of F, and of B, of a router: scores, their largest, a softmax, counts of tokens,
sorted indices, and losses of balance (megatron/core/transformer/moe of Megatron-LM, d98e8a6)."""
LOSS_REDUCTIONS = 3
"""All-reduces of the loss over ranks that share the vocabulary: the largest logit, the logit of the
target, and the sum of exponentials (megatron/core/tensor_parallel/cross_entropy.py)."""


class ScoreBytes(NamedTuple):
    """Bytes per score that attention without FlashAttention reads, writes and stashes, in BF16."""

    products: int
    pointwise: int
    products_back: int
    pointwise_back: int
    stashed: int


SCORES = ScoreBytes(
    products=2 + 2,  # F: they are written, and read for the product with values
    pointwise=2 + 2,  # F: the softmax reads and writes
    products_back=2 + 2 + 2 + 2,  # B: read for values, written, read for queries and for keys
    pointwise_back=2 + 2 + 2,  # B: the softmax reads gradients and scores, and writes
    stashed=2,
)
MASK = 1
"""Bytes of an element of a mask of dropout."""
SCORES_WITH_DROPOUT = SCORES._replace(
    pointwise=SCORES.pointwise + 2 + 2 + MASK,
    pointwise_back=SCORES.pointwise_back + 2 + 2 + MASK,
    stashed=SCORES.stashed + 2 + MASK,
)


VISIBLE = 0.25
"""Share of an exchange that overlaps with compute and is exposed all the same: its first and last
part, and compute that it slows down."""
DISPATCHES = 2
"""Exchanges of tokens in F, and in B: dispatch and combine."""
TOKENS = "tokens"


class PerKind(NamedTuple):
    """Collectives of each kind of operation."""

    forward: tuple[Collective, ...] = ()
    input: tuple[Collective, ...] = ()
    """Of B."""
    weight: tuple[Collective, ...] = ()
    backward: tuple[Collective, ...] = ()
    """Of BW."""

    def __add__(self, addend: PerKind) -> PerKind:  # type: ignore[override]
        """Those of both."""
        return PerKind(*(first + second for first, second in zip(self, addend, strict=True)))

    def hidden_behind(self, seconds: float) -> PerKind:
        """With compute that overlaps with each collective."""
        return PerKind(
            *(
                tuple(each._replace(hidden=seconds, visible=VISIBLE) for each in collectives)
                for collectives in self
            )
        )

    def named(self, name: str) -> PerKind:
        """Those of a name."""
        return PerKind(*(tuple(each for each in kind if each.name == name) for kind in self))


NO_COLLECTIVES = PerKind()


class StashedInput(NamedTuple):
    """An input of matrices that F stashes for their W, and its bytes."""

    tensor: str
    size: float


class ModuleCosts(NamedTuple):
    """A module that recomputes or offloads on its own, in Megatron-LM's names.

    They are those of `--recompute-modules` and of `--offload-modules`, which moves the input of
    `core_attn` (queries, keys and values), of `moe_act` and of `expert_fc1`.
    `core_attn`, `mlp`, `moe` and `shared_experts` keep their input and compute the rest again;
    `layernorm`, `mla_up_proj` and `moe_act` discard their output (megatron/core/transformer/
    transformer_config.py, `recompute_modules`).
    """

    name: str
    forward: tuple[Kernel, ...]
    """Kernels that run again."""
    collectives: tuple[Collective, ...] = ()
    """Collectives that run again."""
    freed: float = 0.0
    """Bytes that F does not stash."""
    inside: str = ""
    """Name of the module that contains it."""
    number: int = 1
    """Number of checkpoints: a norm each."""
    offloaded: float = 0.0
    """Bytes of its input, which move to the host if it offloads; 0: it does not."""

    @classmethod
    def of(
        cls,
        name: str,
        part: LayerPart,
        freed: float,
        inside: str = "",
        number: int = 1,
        offloaded: float = 0.0,
    ) -> ModuleCosts:
        """All of a part."""
        run = part.forward, part.collectives.forward
        return cls(name, *run, max(0.0, freed), inside, number, offloaded)


@dataclass(frozen=True)
class LayerPart:
    """A part of a layer: an attention, a feed-forward network, a norm."""

    name: str
    forward: tuple[Kernel, ...] = ()
    input: tuple[Kernel, ...] = ()
    """Kernels of B."""
    weight: tuple[Kernel, ...] = ()
    """Kernels of W. Those of BW are those of B and of W."""
    collectives: PerKind = NO_COLLECTIVES
    inputs: tuple[StashedInput, ...] = ()
    """Stashed inputs of matrices; equal ones are a single tensor."""
    stashed_otherwise: float = 0.0
    """Bytes of other tensors that F stashes for the backward."""
    parameters: float = 0.0
    """Parameters of matrices on a rank, without `routed`."""
    routed: float = 0.0
    """Parameters on a rank of experts that a router selects."""
    trained: bool = True
    """Whether its parameters are trained."""
    in_bf16: bool = False
    """Whether its products stay in BF16 in a training of lower precision."""
    adapters: float = 0.0
    """Parameters of low-rank adapters, which are trained."""
    shared: float = 0.0
    """Parameters of another layer to whose gradient it adds."""

    modules: tuple[ModuleCosts, ...] = ()
    """What recomputes on its own."""
    between_exchanges: bool = False
    """Whether it computes experts, between two exchanges of tokens."""
    small_kernels: int = 0
    """Further kernels of F, and as many of B, which take time of the CPU alone."""

    @property
    def stashed(self) -> float:
        """Bytes that F stashes for the backward."""
        return self.stashed_otherwise + sum(tensor.size for tensor in set(self.inputs))

    def __add__(self, addend: LayerPart) -> LayerPart:
        """Both as one part, by the name of the first."""
        return _sum(self.name, (self, addend))


NOT_SUMMED = ("name", "trained", "in_bf16", "between_exchanges")
SUMMED = tuple(entry.name for entry in fields(LayerPart) if entry.name not in NOT_SUMMED)
"""Fields of a part that add up."""


@dataclass(frozen=True)
class Rank:
    """A rank of a training on a GPU: it divides layers into its parts of them."""

    training: Training
    gpu: Gpu
    sequence: int
    """Tokens of a sequence, on all ranks."""
    sequences: int
    """Sequences of a microbatch."""

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

    def decoder(self, decoder: Decoder, hidden: int, *, frozen: bool = False) -> list[LayerPart]:
        """Parts of a decoder layer."""
        blocks = (self._block(block, hidden, frozen=frozen) for block in decoder.blocks)
        return [part for parts in blocks for part in parts]

    def _block(self, block: Decoder, hidden: int, *, frozen: bool) -> list[LayerPart]:
        """Parts of an attention and a feed-forward with their norms, or of one of them.

        If both read the same normed vectors, only attention stashes them.
        """
        parts = []
        if block.attention:
            parts.append(self.attention(block.attention, hidden, frozen=frozen))
        if block.feed_forward:
            read = set(parts[0].inputs) if block.is_parallel else set()
            parts += (
                replace(part, inputs=tuple(each for each in part.inputs if each not in read))
                for part in self.feed_forward(block.feed_forward, hidden, frozen=frozen)
            )
        added = 1 if block.is_parallel else len(block.attentions + block.feed_forwards)
        norms = self.norm(hidden, block.norms, stashed=block.norms - added, frozen=frozen)
        is_read = self.storage().element == ELEMENT and not (frozen or self.training.lora)
        outputs = added * self._hidden_bytes(hidden) if is_read else 0.0
        modules = (ModuleCosts.of("layernorm", norms, outputs, number=added),)
        return [replace(norms, modules=modules), *parts, self.residual(hidden, added)]

    def _hidden_bytes(self, hidden: int) -> float:
        """Bytes of the hidden vectors of a rank's tokens."""
        return ELEMENT * self.local_tokens * hidden

    def norm(
        self, hidden: int, count: int = 1, *, stashed: int = 0, frozen: bool = False
    ) -> LayerPart:
        """Norms of the vectors of a rank's tokens; their output is the input of matrices.

        They stash the inputs of `stashed` of them: the others read the residual stream, whose
        additions stash it.
        """
        size = self.local_tokens * hidden
        norms = self._pointwise("norm", self._trained(self.style.norm, frozen), size, count)
        return norms + LayerPart("", stashed_otherwise=ELEMENT * size * stashed)

    def _trained(self, passes: PassTraffic, frozen: bool) -> PassTraffic:
        """The passes of a function with weights: frozen ones have no gradient."""
        return passes._replace(weight=0) if frozen or self.training.lora else passes

    def residual(self, hidden: int, number: int = 2) -> LayerPart:
        """The additions behind attention and feed-forward, and dropout in front of them."""
        size = self.local_tokens * hidden
        added = self._pointwise("residual", self.style.residual, size, number)
        if not self.training.dropout:
            return added
        masks = number * MASK * size
        mask = Kernel("mask", KernelBound.MEMORY, 0, masks, launches=0)
        return added + LayerPart("", (mask,), (mask,), stashed_otherwise=masks)

    def attention(self, attention: Attention, hidden: int, *, frozen: bool = False) -> LayerPart:
        """Projections and attention; a rank has its share of the heads."""
        tokens, ranks = self.tokens, self.training.tensor
        products = self._products(attention.matrices(hidden), frozen=frozen)
        width = attention.heads * attention.value / ranks
        merge = self._pointwise("layouts of heads", self.style.merge, tokens * width)
        own = self.attention_itself(attention)
        stashed = ELEMENT * tokens * attention.stashed / ranks
        positions = self._positions(attention, frozen=frozen)
        modules = self._attention_modules(attention, own, products, positions)
        rest = LayerPart("", stashed_otherwise=stashed, modules=modules)
        return _sum("attention", [*products, *positions, merge, own, rest])

    def _attention_modules(
        self,
        attention: Attention,
        own: LayerPart,
        products: Sequence[LayerPart],
        positions: Sequence[LayerPart],
    ) -> tuple[ModuleCosts, ...]:
        """Attention itself, and the expansion of latents to heads.

        Fused attention stashes its output, which the product behind it stashes as well, unless that
        has a copy in FP8. Its input moves to the host, except that which `mla_up_proj` discards.
        """
        each = ELEMENT * self.tokens / self.training.tensor
        output = each * attention.heads * attention.value if self.storage().copies_attended else 0.0
        offloaded = each * attention.read if isinstance(attention, GroupedQueryAttention) else 0.0
        core = ModuleCosts.of("core_attn", own, own.stashed_otherwise + output, offloaded=offloaded)
        if not isinstance(attention, LatentAttention):
            return (core,)
        up = [part for part in products if part.name.endswith(" up")]
        heads = each * attention.heads * (2 * attention.query + attention.value)
        return core, ModuleCosts.of("mla_up_proj", _sum("", [*up, *positions]), heads)

    def _positions(self, attention: Attention, *, frozen: bool) -> list[LayerPart]:
        """Rotary embedding of queries and keys, and their norms.

        With a state: the convolution, and the norm of the output with its gate.
        """
        if isinstance(attention, Recurrent):
            return self._around_state(attention, frozen=frozen)
        if isinstance(attention, GroupedQueryAttention) and not attention.rotary:
            return []
        each = self.tokens / self.training.tensor
        size = each * (attention.heads + attention.groups)
        width = attention.position if isinstance(attention, LatentAttention) else attention.query
        parts = [
            self._pointwise("rotary embedding", self.style.rotary, each * heads * width)
            for heads in (attention.heads, attention.groups)
        ]
        if isinstance(attention, GroupedQueryAttention) and attention.normed:
            norm = self._trained(self.style.norm, frozen)
            parts.append(self._pointwise("norm of heads", norm, size * attention.width, 2))
        return parts

    def _around_state(self, attention: Recurrent, *, frozen: bool) -> list[LayerPart]:
        each = self.tokens / self.training.tensor
        gate = self._trained(self.style.gated, frozen)._replace(stashed=0)
        parts = [self._pointwise("gated norm", gate, each * attention.heads * attention.value)]
        if attention.kernel:
            convolution = self._trained(CONVOLUTION, frozen)
            parts.append(self._pointwise("convolution", convolution, each * attention.mixed))
        return parts

    def attention_itself(self, attention: Attention) -> LayerPart:
        """Scores and values, or a state, without projections."""
        is_recurrent = isinstance(attention, Recurrent)
        if self.training.attention == UNFUSED and not is_recurrent:
            return self._scores_in_memory(attention)
        share = self.tokens / self.training.tensor
        flops = attention.scores(self.sequence) * share
        traffic = STATE * attention.states * share if isinstance(attention, Recurrent) else 0
        name, launches = ("chunks", STATE_KERNELS) if is_recurrent else ("attention", 1)
        forward = Kernel(
            name, KernelBound.ATTENTION, flops, traffic, launches, attention.heads * share / BLOCK
        )
        back = forward._replace(
            bound=KernelBound.ATTENTION_BACKWARD,
            flops=ATTENTION_BACKWARD * flops,
            traffic=ATTENTION_BACKWARD * traffic,
            launches=3 * launches,
        )
        collectives = self._context(attention, forward, back)
        return LayerPart("attention", (forward,), (back,), collectives=collectives)

    def _scores_in_memory(self, attention: Attention) -> LayerPart:
        """Attention with its scores in memory, without regard to the mask.

        With dropout 5 bytes a score are stashed: scores after the softmax and after dropout, and
        its mask (arXiv 2205.05198, section 4.1).
        """
        share = self.tokens / self.training.tensor
        flops = share * attention_flops(
            self.sequence, attention.heads, attention.query, attention.value
        )
        scores = share * self.sequence * attention.heads
        bytes_per_score = SCORES_WITH_DROPOUT if self.training.dropout else SCORES
        forward = (
            Kernel(
                "scores and values",
                KernelBound.PRODUCT,
                flops,
                bytes_per_score.products * scores,
                2,
                in_bf16=True,
            ),
            Kernel(
                "softmax and dropout", KernelBound.MEMORY, 0, bytes_per_score.pointwise * scores, 2
            ),
        )
        backward = (
            Kernel(
                *(
                    "scores and values",
                    KernelBound.PRODUCT,
                    2 * flops,
                    bytes_per_score.products_back * scores,
                    4,
                ),
                in_bf16=True,
            ),
            Kernel(
                "softmax and dropout",
                KernelBound.MEMORY,
                0,
                bytes_per_score.pointwise_back * scores,
                2,
            ),
        )
        stashed = bytes_per_score.stashed * scores
        return LayerPart("attention", forward, backward, stashed_otherwise=stashed)

    def _context(self, attention: Attention, forward: Kernel, back: Kernel) -> PerKind:
        """Exchange of context-parallel ranks."""
        training = self.training
        group, ranks = training.context_group, training.context
        if ranks == 1:
            return NO_COLLECTIVES
        size = ELEMENT * self.tokens / training.tensor
        values = size * attention.heads * attention.value
        if isinstance(attention, Recurrent):
            return _exchanged_heads(values + size * attention.mixed, values, group)
        width = attention.query + attention.value
        pairs = size * attention.groups * width
        if training.context_type is ContextType.RING:
            steps = [
                Collective(
                    "keys and values", Pattern.RING_STEP, passed, group, ranks - 1,
                    kernel.seconds(self.gpu, training.precision) / ranks,
                )
                for passed, kernel in ((pairs, forward), (2 * pairs, back))
            ]  # fmt: skip
            return PerKind((steps[0],), (steps[1],), (), (steps[1],))
        if training.context_type is ContextType.ALL_GATHER:
            gather = Collective("keys and values", Pattern.ALL_GATHER, pairs * ranks, group)
            reduce = gather._replace(pattern=Pattern.REDUCE_SCATTER)
            return PerKind((gather,), (gather, reduce), (), (gather, reduce))
        return _exchanged_heads(pairs + size * attention.heads * attention.query, values, group)

    def feed_forward(
        self, feed_forward: FeedForward | Experts, hidden: int, *, frozen: bool = False
    ) -> list[LayerPart]:
        """A feed-forward network, or a router with its experts."""
        if isinstance(feed_forward, Experts):
            return self._experts(feed_forward, hidden, frozen=frozen)
        matrices = feed_forward.matrices(hidden)
        network = self._network("mlp", matrices, feed_forward.width, feed_forward.gated, frozen)
        freed = network.stashed - self._hidden_bytes(hidden)
        return [replace(network, modules=(ModuleCosts.of("mlp", network, freed),))]

    def _network(
        self, name: str, matrices: Sequence[Matrix], width: int, gated: bool, frozen: bool
    ) -> LayerPart:
        """A network with its activation function, over all tokens."""
        size = self.tokens * width / self.training.tensor
        passes = self._trained(self.style.gated if gated else self.style.plain, frozen)
        stashed = ELEMENT * size * (2 if gated else 1)
        activation = self._pointwise("activation function", passes, size)
        products = self._products(matrices, frozen=frozen)
        return _sum(name, [*products, activation, LayerPart("", stashed_otherwise=stashed)])

    def _experts(self, experts: Experts, hidden: int, *, frozen: bool) -> list[LayerPart]:
        training = self.training
        copies = self.local_tokens * experts.chosen * training.imbalance
        ranks, of_expert = training.expert, training.of_expert
        rows, width = copies * of_expert, experts.width / of_expert
        sorts_twice = ranks > 1 and training.dispatcher is Dispatcher.ALL_TO_ALL
        passes = PassTraffic(8, 8, 4, 4) if sorts_twice else PassTraffic(4, 4, 2, 2)
        router = self._product([experts.router(hidden)], frozen=frozen, adapted=False, in_bf16=True)
        inputs = experts.inputs(hidden)
        permutation = self._pointwise("permutation", passes, copies * inputs)
        projections = self._products(experts.projections(hidden), frozen=frozen)
        local = experts.number / ranks
        matrices = experts.matrices(hidden)
        products = [
            self._grouped(group, rows, local, of_expert, frozen) for group in _runs(matrices)
        ]
        gated = self._trained(self.style.gated if experts.gated else self.style.plain, frozen)
        activation = self._pointwise("activation function", gated, rows * width)
        added = self._pointwise("biases", EXPERT_BIASES, rows * inputs)
        biases = [added] if experts.bias else []
        stashed = ELEMENT * rows * (1 + experts.gated) * width
        rest = LayerPart("", stashed_otherwise=stashed)
        exchange = LayerPart(
            "exchange",
            collectives=self._exchange(experts, inputs),
            small_kernels=ROUTING_KERNELS,
        )
        computed = _sum("experts", [*products, activation, *biases, rest])
        parts = [
            _sum("router", [router, *projections, permutation, exchange]),
            replace(computed, between_exchanges=True),
        ]
        discarded = 0.0 if frozen or training.lora else self.storage().element * rows * width
        modules = [ModuleCosts.of("moe_act", activation, discarded, "moe", offloaded=stashed)]
        if products[0].stashed:
            modules.append(
                ModuleCosts("expert_fc1", (), inside="moe", offloaded=products[0].stashed)
            )
        if experts.shared:
            matrices = experts.shared_matrices(hidden)
            shared = self._network("shared expert", matrices, experts.shared, experts.gated, frozen)
            own = tuple(tensor for tensor in shared.inputs if tensor not in router.inputs)
            freed = shared.stashed - self._hidden_bytes(hidden)
            modules.append(ModuleCosts.of("shared_experts", shared, freed, "moe"))
            parts.append(replace(shared, inputs=own))
        every = _sum("moe", parts)
        modules.insert(0, ModuleCosts.of("moe", every, every.stashed - self._hidden_bytes(hidden)))
        return [replace(parts[0], modules=tuple(modules)), *parts[1:]]

    def _exchange(self, experts: Experts, width: int) -> PerKind:
        """Exchange of vectors of tokens before and after experts; F and B have the same.

        The rank with the largest load waits for more tokens than the mean.
        """
        training = self.training
        copies = self.local_tokens * experts.chosen * training.imbalance
        size = ELEMENT * copies * width
        exchange = Collective(TOKENS, Pattern.ALL_TO_ALL, size, training.expert_group, DISPATCHES)
        if training.dispatcher is Dispatcher.FLEX:
            share = experts.nodes_of_token(exchange.group.nodes(self.node)) / experts.chosen
            exchange = exchange._replace(network=share, direct=True)
        gathered = size * training.of_expert
        group = Group(training.of_expert)
        gather = Collective("shards of tokens", Pattern.ALL_GATHER, gathered, group)
        scatter = gather._replace(pattern=Pattern.REDUCE_SCATTER)
        both = tuple(each for each in (exchange, gather, scatter) if each.group.ranks > 1)
        return PerKind(both, both, (), both)

    def embedding(self, hidden: int, vocabulary: int, *, frozen: bool = False) -> LayerPart:
        """The table of word vectors: F reads and writes each token's once, W as much."""
        training = self.training
        size = ELEMENT * self.tokens * hidden / training.tensor
        lookup = Kernel("lookup", KernelBound.MEMORY, traffic=2 * size)
        add = () if frozen else (lookup._replace(name="gradient"),)
        parameters = hidden * vocabulary / training.tensor
        whole = size * training.tensor
        scatter, gather = self._row_collectives(whole)
        weight = () if frozen else gather
        collectives = PerKind(scatter, (), weight, weight)
        return LayerPart(
            "embedding", (lookup,), (), add, collectives,
            parameters=parameters, trained=not frozen, in_bf16=True,
        )  # fmt: skip

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

    def head(
        self, hidden: int, vocabulary: int, *, frozen: bool = False, shared: bool = False
    ) -> list[LayerPart]:
        """The norm, the output matrix in BF16, and the loss.

        `shared`: another part of the same device holds the matrix.
        """
        matrix = Matrix("head", hidden, vocabulary, Shard.COLUMNS)
        product = self._product([matrix], frozen=frozen, adapted=False, in_bf16=True)
        if shared:
            product = replace(product, parameters=0.0, shared=product.parameters)
        norm = self.norm(hidden, frozen=frozen)
        return [norm, _sum("head", [product, self.loss(vocabulary)])]

    def loss(self, vocabulary: int) -> LayerPart:
        """The loss over a rank's part of the vocabulary."""
        training, passes = self.training, self.training.loss_costs.passes
        logits = self.tokens * vocabulary / training.tensor
        forward = Kernel(
            "loss", KernelBound.MEMORY, 0, passes.forward * logits, passes.forward_launches
        )
        back = Kernel(
            "loss", KernelBound.MEMORY, 0, passes.backward * logits, passes.backward_launches
        )
        reduce = Collective(
            "loss", Pattern.ALL_REDUCE, LOGIT * self.tokens, training.tensor_group,
            LOSS_REDUCTIONS,
        )  # fmt: skip
        collectives = PerKind((reduce,)) if training.tensor > 1 else NO_COLLECTIVES
        stashed = passes.stashed * logits
        return LayerPart(
            "loss", (forward,), (back,), collectives=collectives, stashed_otherwise=stashed
        )

    def prediction(
        self, decoder: Decoder, hidden: int, vocabulary: int, *, frozen: bool = False
    ) -> list[LayerPart]:
        """A module that predicts a further token (DeepSeek-V3, arXiv 2412.19437, section 2.2).

        A copy of the embedding, norms and a projection of two vectors, and a decoder layer. Its
        logits and loss are computed by the head.
        """
        matrix = Matrix("projection", 2 * hidden, hidden, Shard.COLUMNS)
        fixed = frozen or bool(self.training.lora)
        projection = _sum("projection", [self._product([matrix], frozen=frozen)])
        layer = self.decoder(decoder, hidden, frozen=frozen)
        embedding = self.embedding(hidden, vocabulary, frozen=fixed)
        norms = self.norm(hidden, 3, stashed=1, frozen=frozen)
        return [embedding, norms, projection, *layer]

    def projection(self, matrices: Sequence[Matrix], *, frozen: bool) -> LayerPart:
        """Matrices between an encoder and the layers of words."""
        return _sum("projection", self._products(matrices, frozen=frozen))

    def _products(self, matrices: Iterable[Matrix], *, frozen: bool) -> list[LayerPart]:
        """Products in order of execution; those of the same inputs run as one."""
        return [self._product(group, frozen=frozen) for group in _runs(matrices)]

    def _product(
        self,
        matrices: Sequence[Matrix],
        *,
        frozen: bool,
        adapted: bool = True,
        in_bf16: bool = False,
    ) -> LayerPart:
        """The product of tokens with matrices of the same inputs, that may have adapters."""
        training, first = self.training, matrices[0]
        whole = first.shard is Shard.NONE
        ranks = 1 if whole else training.tensor
        many = self.local_tokens if whole else self.tokens
        parameters = parameters_of(matrices) / ranks
        name = " + ".join(matrix.name for matrix in matrices)
        kernel = Kernel(name, KernelBound.PRODUCT, 2 * many * parameters, in_bf16=in_bf16)
        fixed = frozen or bool(training.lora)
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
        if training.lora and adapted and not frozen:
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
        self, matrices: Sequence[Matrix], rows: float, experts: float, ranks: int, frozen: bool
    ) -> LayerPart:
        """The product of rows, each with the matrices of its expert, and of `experts` in all."""
        each = parameters_of(matrices) / ranks
        name = " + ".join(matrix.name for matrix in matrices)
        traffic = ELEMENT * (experts * each + rows * each * (1 / matrices[0].inputs))
        kernel = Kernel(name, KernelBound.GROUPED, 2 * rows * each, traffic)
        fixed = frozen or bool(self.training.lora)
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


def _exchanged_heads(before: float, behind: float, group: Group) -> PerKind:
    """All-to-alls of these bytes, in front of attention and behind it."""
    heads = tuple(Collective("heads", Pattern.ALL_TO_ALL, size, group) for size in (before, behind))
    return PerKind(heads, heads, (), heads)


def _runs(matrices: Iterable[Matrix]) -> list[list[Matrix]]:
    """Consecutive matrices with the same inputs and shard."""
    return [
        list(group) for _, group in groupby(matrices, lambda matrix: (matrix.inputs, matrix.shard))
    ]


def _sum(name: str, parts: Sequence[LayerPart]) -> LayerPart:
    """Several parts as one."""
    columns = zip(*map(attrgetter(*SUMMED), parts), strict=True)
    sums = (reduce(add, column) for column in columns)
    return replace(parts[0], name=name, **dict(zip(SUMMED, sums, strict=True)))
