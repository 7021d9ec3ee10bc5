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

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ppopt.derivation.architecture import Decoder, Experts, FeedForward
from ppopt.derivation.attention import (
    Attention,
    GroupedQueryAttention,
    LatentAttention,
    Matrix,
    Recurrent,
    Shard,
    StateSpace,
    attention_flops,
    pairs_of_source,
)
from ppopt.derivation.collectives import Collective, Group, Pattern
from ppopt.derivation.frameworks import PassTraffic
from ppopt.derivation.gpus import UNFUSED
from ppopt.derivation.kernels import BLOCK, Kernel, KernelBound
from ppopt.derivation.layer_part import (
    NO_COLLECTIVES,
    LayerPart,
    ModuleCosts,
    PerKind,
    summed,
)
from ppopt.derivation.rank_products import RankProducts, product_groups
from ppopt.derivation.training import ELEMENT, MEGATRON, ContextType, Dispatcher

LOGIT = 4
"""Bytes of a logit in FP32."""
ATTENTION_BACKWARD = 2.5
"""FLOPs of attention in B, in those of F."""
STATE_BACKWARD = 2.75
"""FLOPs of attention with a state in B, in those of F: B computes states and scores of chunks
again, and of each product of F the gradients of both factors (ssd_combined.py of
github.com/state-spaces/mamba; kernels of fla-org/flash-linear-attention are alike)."""
SCAN = 1.47
"""Time per FLOP of Mamba-2, relative to the gated delta rule: on a B200 4 x 8192 tokens with 64
heads of 64 x 128 take 1.435 ms (AIConfigurator, mamba_chunk_scan_combined, TensorRT-LLM
1.3.0rc15)."""
ALIGNED = 8
"""Elements of 16 bytes, of which rows of matrices are multiples for fast products (NVIDIA's Matrix
Multiplication Background User's Guide, "Tensor Core Requirements")."""
UNALIGNED = 20
"""Time of products of heads whose width is no multiple of `ALIGNED`: four runs of BigScience with
heads 108 wide take as long; thirteen with heads 225 wide, not used, are 6 % too fast on average."""
STATE_KERNELS = 5
"""Kernels of attention with a state: sums of decays, states, their sequence, scores, outputs."""
CONVOLUTION = PassTraffic(2, 3)
"""The convolution with its activation function, per element of its input."""
CONVOLUTION_AGAIN = PassTraffic(2, 5, 1, 2)
"""The same of Mamba-2, whose backward computes the convolution again
(mamba_split_conv1d_scan_combined)."""
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


MASK = 1
"""Bytes of an element of a mask of dropout."""
SOFTMAX = PassTraffic(2, 3, 2, 2, stashed=1)
"""The softmax, per score: F reads and writes, B reads gradients and scores, and writes."""
DROPOUT = 2 + MASK / ELEMENT
"""Elements that dropout of a score reads and writes, with its mask."""
SOFTMAX_AND_DROPOUT = SOFTMAX._replace(
    forward=SOFTMAX.forward + DROPOUT,
    backward=SOFTMAX.backward + DROPOUT,
    stashed=SOFTMAX.stashed + 1 + MASK / ELEMENT,
)
SCORE_PRODUCTS = 2
"""Times that F passes a score through memory for its products: it is written, and read for the
product with values. B does so twice as often: it is read for values, written, and read for queries
and for keys."""
DISPATCHES = 2
"""Exchanges of tokens in F, and in B: dispatch and combine."""
TOKENS = "tokens"


@dataclass(frozen=True)
class Rank(RankProducts):
    """A rank of a training on a GPU: it divides layers into its parts of them."""

    def decoder(self, decoder: Decoder, hidden: int) -> list[LayerPart]:
        """Parts of a decoder layer."""
        blocks = (self._block(block, hidden) for block in decoder.blocks)
        return [part for parts in blocks for part in parts]

    def _block(self, block: Decoder, hidden: int) -> list[LayerPart]:
        """Parts of an attention and a feed-forward with their norms, or of one of them.

        If both read the same normed vectors, only attention stashes them.
        """
        parts = []
        if block.attention:
            parts.append(self.attention(block.attention, hidden))
        if block.feed_forward:
            read = set(parts[0].inputs) if block.is_parallel else set()
            parts += (
                replace(part, inputs=tuple(each for each in part.inputs if each not in read))
                for part in self.feed_forward(block.feed_forward, hidden)
            )
        added = 1 if block.is_parallel else len(block.attentions + block.feed_forwards)
        norms = self.norm(hidden, block.norms, stashed=block.norms - added)
        is_read = self.storage().element == ELEMENT and not self.fixed
        outputs = added * self.hidden_bytes(hidden) if is_read else 0.0
        modules = (ModuleCosts.of("layernorm", norms, outputs, number=added),)
        return [replace(norms, modules=modules), *parts, self.residual(hidden, added)]

    def norm(self, hidden: int, count: int = 1, *, stashed: int = 0) -> LayerPart:
        """Norms of the vectors of a rank's tokens; their output is the input of matrices.

        They stash the inputs of `stashed` of them: the others read the residual stream, whose
        additions stash it.
        """
        size = self.local_tokens * hidden
        norms = self._pointwise("norm", self._trained(self.style.norm), size, count)
        return norms + LayerPart("", stashed_otherwise=ELEMENT * size * stashed)

    def residual(self, hidden: int, number: int = 2) -> LayerPart:
        """The additions behind attention and feed-forward, and dropout in front of them."""
        size = self.local_tokens * hidden
        added = self._pointwise("residual", self.style.residual, size, number)
        if not self.training.dropout:
            return added
        masks = number * MASK * size
        mask = Kernel("mask", KernelBound.MEMORY, 0, masks, launches=0)
        return added + LayerPart("", (mask,), (mask,), stashed_otherwise=masks)

    def attention(self, attention: Attention, hidden: int) -> LayerPart:
        """Projections and attention; a rank has its share of the heads."""
        tokens, ranks = self.tokens, self.training.tensor
        products = self._products(attention.matrices(hidden))
        width = attention.heads * attention.value / ranks
        merge = self._pointwise("layouts of heads", self.style.merge, tokens * width)
        own = self.attention_itself(attention)
        stashed = ELEMENT * tokens * attention.stashed / ranks + self._beyond(attention)
        positions = self._positions(attention)
        modules = self._attention_modules(attention, own, products, positions)
        rest = LayerPart("", stashed_otherwise=stashed, modules=modules)
        return summed("attention", [*products, *positions, merge, own, rest])

    def _beyond(self, attention: Attention) -> float:
        """Bytes of keys and values of tokens of the encoder beyond as many as the decoder has."""
        beyond = self.source.tokens - self.tokens
        return ELEMENT * beyond * pairs_of_source(attention) / self.training.tensor

    def context_of(self, attention: Attention) -> int:
        """Tokens of a sequence of keys."""
        return self.source.sequence if pairs_of_source(attention) else self.sequence

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
        offloaded = self._beyond(attention)
        if isinstance(attention, GroupedQueryAttention):
            offloaded += each * attention.read
        core = ModuleCosts.of("core_attn", own, own.stashed_otherwise + output, offloaded=offloaded)
        if not isinstance(attention, LatentAttention):
            return (core,)
        up = [part for part in products if part.name.endswith(" up")]
        heads = each * attention.heads * (2 * attention.query + attention.value)
        return core, ModuleCosts.of("mla_up_proj", summed("", [*up, *positions]), heads)

    def _positions(self, attention: Attention) -> list[LayerPart]:
        """Rotary embedding of queries and keys, and their norms.

        With a state: the convolution, and the norm of the output with its gate.
        """
        if isinstance(attention, Recurrent):
            return self._around_state(attention)
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
            norm = self._trained(self.style.norm)
            parts.append(self._pointwise("norm of heads", norm, size * attention.width, 2))
        return parts

    def _around_state(self, attention: Recurrent) -> list[LayerPart]:
        """The norm with its gate, the convolution, and copies to its layout of tokens, and back.

        Megatron-LM stores the tokens of all sequences of a position together, so that several
        sequences are copied (megatron/core/ssm/mamba_mixer.py, d98e8a6).
        """
        each = self.tokens / self.training.tensor
        gate = self._trained(self.style.gated)._replace(stashed=0)
        parts = [self._pointwise("gated norm", gate, each * attention.heads * attention.value)]
        if attention.kernel:
            is_scan = isinstance(attention, StateSpace)
            convolution = self._trained(CONVOLUTION_AGAIN if is_scan else CONVOLUTION)
            parts.append(self._pointwise("convolution", convolution, each * attention.mixed))
        if self.training.framework == MEGATRON and self.sequences > 1:
            copied = attention.mixed + 2 * attention.heads * attention.value
            parts.append(self._pointwise("layouts of tokens", PassTraffic(2, 2), each * copied))
        return parts

    def attention_itself(self, attention: Attention) -> LayerPart:
        """Scores and values, or a state, without projections."""
        share = self.tokens / self.training.tensor
        flops = attention.scores(self.context_of(attention)) * share
        if isinstance(attention, Recurrent):
            slower = SCAN if isinstance(attention, StateSpace) else 1
            forward = Kernel(
                "chunks", KernelBound.STATE, flops, launches=STATE_KERNELS, slower=slower
            )
            back = forward._replace(flops=STATE_BACKWARD * flops, launches=3 * STATE_KERNELS)
        elif self.training.attention == UNFUSED:
            return self._scores_in_memory(attention)
        else:
            blocks = attention.heads * share / BLOCK
            forward = Kernel("attention", KernelBound.ATTENTION, flops, blocks=blocks)
            back = forward._replace(
                bound=KernelBound.ATTENTION_BACKWARD, flops=ATTENTION_BACKWARD * flops, launches=3
            )
        collectives = self._context(attention, forward, back)
        return LayerPart("attention", (forward,), (back,), collectives=collectives)

    def _scores_in_memory(self, attention: Attention) -> LayerPart:
        """Attention with its scores in memory, without regard to the mask.

        With dropout 5 bytes a score are stashed: scores after the softmax and after dropout, and
        its mask (arXiv 2205.05198, section 4.1).
        """
        share, keys = self.tokens / self.training.tensor, self.context_of(attention)
        flops = share * attention_flops(keys, attention.heads, attention.query, attention.value)
        scores = share * keys * attention.heads
        slower = UNALIGNED if attention.query % ALIGNED else 1
        passes = SOFTMAX_AND_DROPOUT if self.training.dropout else SOFTMAX
        traffic = SCORE_PRODUCTS * ELEMENT * scores
        forward = Kernel(
            "scores and values", KernelBound.PRODUCT, flops, traffic, 2, in_bf16=True, slower=slower
        )
        back = forward._replace(flops=2 * flops, traffic=2 * traffic, launches=4)
        softmax = self._pointwise("softmax and dropout", passes, scores)
        return LayerPart("attention", (forward,), (back,)) + softmax

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

    def feed_forward(self, feed_forward: FeedForward | Experts, hidden: int) -> list[LayerPart]:
        """A feed-forward network, or a router with its experts."""
        if isinstance(feed_forward, Experts):
            return self._experts(feed_forward, hidden)
        matrices = feed_forward.matrices(hidden)
        network = self._network("mlp", matrices, feed_forward.width, feed_forward.gated)
        freed = network.stashed - self.hidden_bytes(hidden)
        return [replace(network, modules=(ModuleCosts.of("mlp", network, freed),))]

    def _network(self, name: str, matrices: Sequence[Matrix], width: int, gated: bool) -> LayerPart:
        """A network with its activation function, over all tokens."""
        size = self.tokens * width / self.training.tensor
        passes = self._trained(self.style.gated if gated else self.style.plain)
        stashed = ELEMENT * size * (2 if gated else 1)
        activation = self._pointwise("activation function", passes, size)
        products = self._products(matrices)
        return summed(name, [*products, activation, LayerPart("", stashed_otherwise=stashed)])

    def _experts(self, experts: Experts, hidden: int) -> list[LayerPart]:
        training = self.training
        copies = self.local_tokens * experts.chosen * training.imbalance
        ranks, of_expert = training.expert, training.of_expert
        rows, width = copies * of_expert, experts.width / of_expert
        sorts_twice = ranks > 1 and training.dispatcher is Dispatcher.ALL_TO_ALL
        passes = PassTraffic(8, 8, 4, 4) if sorts_twice else PassTraffic(4, 4, 2, 2)
        router = self._product([experts.router(hidden)], adapted=False, in_bf16=True)
        inputs = experts.inputs(hidden)
        permutation = self._pointwise("permutation", passes, copies * inputs)
        projections = self._products(experts.projections(hidden))
        local = experts.number / ranks
        matrices = experts.matrices(hidden)
        products = [
            self._grouped(group, rows, local, of_expert) for group in product_groups(matrices)
        ]
        gated = self._trained(self.style.gated if experts.gated else self.style.plain)
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
        computed = summed("experts", [*products, activation, *biases, rest])
        parts = [
            summed("router", [router, *projections, permutation, exchange]),
            replace(computed, between_exchanges=True),
        ]
        discarded = 0.0 if self.fixed else self.storage().element * rows * width
        modules = [ModuleCosts.of("moe_act", activation, discarded, "moe", offloaded=stashed)]
        if products[0].stashed:
            modules.append(
                ModuleCosts("expert_fc1", (), inside="moe", offloaded=products[0].stashed)
            )
        if experts.shared:
            matrices = experts.shared_matrices(hidden)
            shared = self._network("shared expert", matrices, experts.shared, experts.gated)
            own = tuple(tensor for tensor in shared.inputs if tensor not in router.inputs)
            freed = shared.stashed - self.hidden_bytes(hidden)
            modules.append(ModuleCosts.of("shared_experts", shared, freed, "moe"))
            parts.append(replace(shared, inputs=own))
        every = summed("moe", parts)
        modules.insert(0, ModuleCosts.of("moe", every, every.stashed - self.hidden_bytes(hidden)))
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

    def embedding(self, hidden: int, vocabulary: int, *, shared: bool = False) -> LayerPart:
        """The table of word vectors: F reads and writes each token's once, W as much.

        `shared`: another part of the same device holds the table.
        """
        training = self.training
        size = ELEMENT * self.tokens * hidden / training.tensor
        lookup = Kernel("lookup", KernelBound.MEMORY, traffic=2 * size)
        add = () if self.fixed else (lookup._replace(name="gradient"),)
        parameters = hidden * vocabulary / training.tensor
        stored, added = (0.0, parameters) if shared else (parameters, 0.0)
        whole = size * training.tensor
        scatter, gather = self._row_collectives(whole)
        weight = () if self.fixed else gather
        collectives = PerKind(scatter, (), weight, weight)
        return LayerPart(
            "embedding", (lookup,), (), add, collectives,
            parameters=stored, trained=not self.fixed, in_bf16=True, shared=added,
        )  # fmt: skip

    def head(self, hidden: int, vocabulary: int, *, shared: bool = False) -> list[LayerPart]:
        """The norm, the output matrix in BF16, and the loss.

        `shared`: another part of the same device holds the matrix.
        """
        matrix = Matrix("head", hidden, vocabulary, Shard.COLUMNS)
        product = self._product([matrix], adapted=False, in_bf16=True)
        if shared:
            product = replace(product, parameters=0.0, shared=product.parameters)
        norm = self.norm(hidden)
        return [norm, summed("head", [product, self.loss(vocabulary)])]

    def loss(self, vocabulary: int) -> LayerPart:
        """The loss over a rank's part of the vocabulary."""
        training = self.training
        logits = self.tokens * vocabulary / training.tensor
        loss = self._pointwise("loss", training.loss_costs.passes, logits / ELEMENT)
        if training.tensor == 1:
            return loss
        size, group = LOGIT * self.tokens, training.tensor_group
        reduce = Collective("loss", Pattern.ALL_REDUCE, size, group, LOSS_REDUCTIONS)
        return replace(loss, collectives=PerKind((reduce,)))

    def prediction(self, decoder: Decoder, hidden: int, vocabulary: int) -> list[LayerPart]:
        """A module that predicts a further token (DeepSeek-V3, arXiv 2412.19437, section 2.2).

        A copy of the embedding, norms and a projection of two vectors, and a decoder layer. Its
        logits and loss are computed by the head.
        """
        matrix = Matrix("projection", 2 * hidden, hidden, Shard.COLUMNS)
        projection = summed("projection", [self._product([matrix])])
        layer = self.decoder(decoder, hidden)
        embedding = self.embedding(hidden, vocabulary)
        norms = self.norm(hidden, 3, stashed=1)
        return [embedding, norms, projection, *layer]

    def projection(self, matrices: Sequence[Matrix]) -> LayerPart:
        """Matrices between an encoder and the layers of words."""
        return summed("projection", self._products(matrices))


def _exchanged_heads(before: float, behind: float, group: Group) -> PerKind:
    """All-to-alls of these bytes, in front of attention and behind it."""
    heads = tuple(Collective("heads", Pattern.ALL_TO_ALL, size, group) for size in (before, behind))
    return PerKind(heads, heads, (), heads)
