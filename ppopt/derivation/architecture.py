"""Dimensions of a transformer: its layers, and their numbers of parameters.

Parameters belong to matrices, which products use, or to vectors (norms and biases). Both count as
parameters of a model; times and memory are those of the matrices alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ppopt.derivation.attention import Attention, LatentAttention, Matrix, Shard, parameters_of


def feed_forward_matrices(hidden: int, width: int, *, gated: bool) -> tuple[Matrix, ...]:
    """Matrices of a feed-forward network in order of execution."""
    gate = (Matrix("gate", hidden, width, Shard.COLUMNS),) if gated else ()
    return (
        *gate,
        Matrix("up", hidden, width, Shard.COLUMNS),
        Matrix("down", width, hidden, Shard.ROWS, "activated"),
    )


@dataclass(frozen=True)
class FeedForward:
    """A feed-forward network: gate, up and down, or without a gate, up and down."""

    width: int
    bias: bool = False
    gated: bool = True
    """Whether the product with a gate is passed on (SwiGLU, GeGLU; arXiv 2002.05202)."""

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """Its matrices in order of execution."""
        return feed_forward_matrices(hidden, self.width, gated=self.gated)

    def passed(self, hidden: int) -> int:
        """Parameters of matrices that a token passes."""
        return parameters_of(self.matrices(hidden))

    def stored(self, hidden: int) -> int:
        """Parameters of all matrices."""
        return self.passed(hidden)

    def vectors(self, hidden: int) -> int:
        """Parameters of biases."""
        return self.bias * ((1 + self.gated) * self.width + hidden)

    def stashed(self, _: int) -> int:
        """Elements per token: up and its output, and the gate."""
        return (2 + self.gated) * self.width


@dataclass(frozen=True)
class Experts:
    """Feed-forward networks, some of which a router selects per token."""

    width: int
    number: int
    chosen: int
    """Number of experts of a token."""
    shared: int = 0
    """Width of the network that every token passes in addition."""
    shared_gate: bool = False
    """Whether a gate weighs the shared part (Qwen2-MoE)."""
    routing_bias: bool = False
    """Whether the router has a bias per expert (DeepSeek-V3, arXiv 2412.19437, section 2.1.2)."""
    bias: bool = False
    """Whether every expert has biases (gpt-oss, arXiv 2508.10925)."""
    groups: int = 1
    """Groups of experts, of which a token passes `chosen_groups` (DeepSeek-V3, arXiv
    2412.19437, section 2.1.2: routing that is limited to some nodes)."""
    chosen_groups: int = 1
    gated: bool = True
    """Whether experts and the shared part have a gate."""
    latent: int = 0
    """Width of the vectors that experts read and write, which two matrices project (Nemotron 3
    Super); 0: hidden vectors."""
    identities: int = 0
    """Experts that return their input (zero-computation experts, arXiv 2509.01322). `chosen` does
    not count them."""

    def nodes_of_token(self, nodes: int) -> float:
        """Mean number of nodes with experts of a token, if experts are spread over `nodes` evenly.

        Of m reachable nodes, k selected experts leave out each with probability (1 - 1/m)^k.
        """
        reachable = max(1, round(nodes * self.chosen_groups / self.groups))
        return reachable * (1 - (1 - 1 / reachable) ** self.chosen)

    def router(self, hidden: int) -> Matrix:
        """The matrix that scores the experts for a token."""
        return Matrix("router", hidden, self.number + self.identities, Shard.NONE)

    def inputs(self, hidden: int) -> int:
        """Width of the vectors that experts read and write."""
        return self.latent or hidden

    def projections(self, hidden: int) -> tuple[Matrix, ...]:
        """Matrices to and from the latent vectors of experts."""
        if not self.latent:
            return ()
        return (
            Matrix("latent down", hidden, self.latent, Shard.NONE),
            Matrix("latent up", self.latent, hidden, Shard.NONE, "latent"),
        )

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """Matrices of a single expert in order of execution."""
        return feed_forward_matrices(self.inputs(hidden), self.width, gated=self.gated)

    def shared_matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """Matrices that every token passes in addition to the experts, without the router."""
        if not self.shared:
            return ()
        gate = (Matrix("shared gate", hidden, 1, Shard.NONE),) if self.shared_gate else ()
        return (*gate, *feed_forward_matrices(hidden, self.shared, gated=self.gated))

    def passed(self, hidden: int) -> int:
        """Parameters of matrices that a token passes, the router among them."""
        return self._everywhere(hidden) + self.chosen * parameters_of(self.matrices(hidden))

    def stored(self, hidden: int) -> int:
        """Parameters of all matrices."""
        return self._everywhere(hidden) + self.number * parameters_of(self.matrices(hidden))

    def vectors(self, hidden: int) -> int:
        """Parameters of the routing bias and of biases of experts."""
        biases = self.bias * self.number * ((1 + self.gated) * self.width + self.inputs(hidden))
        return self.routing_bias * (self.number + self.identities) + biases

    def stashed(self, hidden: int) -> int:
        """Elements per token: the copies that go to experts; gate, up and product of each."""
        widths = self.chosen * self.width + self.shared
        return self.chosen * self.inputs(hidden) + (2 + self.gated) * widths

    def _everywhere(self, hidden: int) -> int:
        matrices = (*self.projections(hidden), *self.shared_matrices(hidden))
        return self.router(hidden).parameters + parameters_of(matrices)


Network = FeedForward | Experts


@dataclass(frozen=True)
class Decoder:
    """A decoder layer: attention and feed-forward, each behind a norm.

    A layer of a hybrid model may have only one of them.
    """

    attention: Attention | None
    feed_forward: Network | None
    norms: int = 2
    """Norms over the hidden vector; 4: behind attention and feed-forward, too (Gemma 2 and 3)."""
    layer_norm: bool = False
    """Whether norms subtract the mean and have a bias (LayerNorm); otherwise RMSNorm."""
    before: Decoder | None = None
    """Attention and feed-forward in front of these in the same layer (LongCat-Flash)."""

    @property
    def blocks(self) -> tuple[Decoder, ...]:
        """The layer as blocks with at most one attention and one feed-forward each."""
        if self.before is None:
            return (self,)
        return (*self.before.blocks, replace(self, before=None))

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """Attention of every block that has one."""
        return tuple(block.attention for block in self.blocks if block.attention)

    @property
    def feed_forwards(self) -> tuple[Network, ...]:
        """Feed-forward or experts of every block that has one."""
        return tuple(block.feed_forward for block in self.blocks if block.feed_forward)

    @property
    def is_empty(self) -> bool:
        """Whether it has neither attention nor feed-forward."""
        return not (self.attentions or self.feed_forwards)

    @property
    def has_experts(self) -> bool:
        """Whether a block has experts."""
        return any(isinstance(network, Experts) for network in self.feed_forwards)

    @property
    def is_parallel(self) -> bool:
        """Whether attention and feed-forward read the output of one norm (arXiv 2204.02311)."""
        return self.norms == 1 and None not in (self.attention, self.feed_forward)

    def stored(self, hidden: int) -> int:
        """Parameters of all matrices."""
        attention = sum(parameters_of(each.matrices(hidden)) for each in self.attentions)
        return attention + sum(each.stored(hidden) for each in self.feed_forwards)

    def passed(self, hidden: int) -> int:
        """Parameters of matrices that a token passes."""
        attention = sum(parameters_of(each.matrices(hidden)) for each in self.attentions)
        return attention + sum(each.passed(hidden) for each in self.feed_forwards)

    def parameters(self, hidden: int) -> int:
        """Parameters of matrices, biases and norms."""
        vectors = sum(part.vectors(hidden) for part in (*self.attentions, *self.feed_forwards))
        norms = sum(block.norms for block in self.blocks)
        return self.stored(hidden) + vectors + norms * self.norm(hidden)

    def norm(self, hidden: int) -> int:
        """Parameters of a norm over the hidden vector."""
        return hidden * (2 if self.layer_norm else 1)


@dataclass(frozen=True)
class Run:
    """Equal decoder layers in a row."""

    name: str
    decoder: Decoder
    count: int

    def parameters(self, hidden: int) -> int:
        """Parameters of all of them."""
        return self.count * self.decoder.parameters(hidden)


@dataclass(frozen=True)
class Encoder:
    """Layers in front of a model's, which turn images into vectors of its embedding.

    A matrix turns patches into vectors, layers follow, and `merge` patches each become a token by
    every projection. That of the first is a token of the sequence. Those of the others read inner
    layers and are added to the outputs of the first decoder layers (DeepStack, arXiv 2406.04334).
    """

    hidden: int
    runs: tuple[Run, ...]
    patch: Matrix
    """The embedding of a patch."""
    projections: tuple[tuple[Matrix, ...], ...]
    patches: int
    """Patches of an image; each sees those of its image."""
    merge: int = 1
    """Patches that become a token."""
    vectors: int = 0
    """Parameters of learned positions, biases and norms outside the layers."""

    @property
    def tokens(self) -> int:
        """Tokens of an image."""
        return self.patches // self.merge

    @property
    def parameters(self) -> int:
        """Parameters of patches, positions, layers and projections."""
        layers = sum(run.parameters(self.hidden) for run in self.runs)
        projections = sum(map(parameters_of, self.projections))
        return layers + self.patch.parameters + projections + self.vectors


@dataclass(frozen=True)
class SourceEncoder:
    """Layers of words with a norm behind them, whose output every decoder layer reads (T5).

    They have the embedding of the decoder's words.
    """

    runs: tuple[Run, ...]
    vectors: int
    """Parameters of positions, of the decoder's too, and of the norm."""

    def parameters(self, hidden: int) -> int:
        """Parameters of layers, positions and the norm."""
        return self.vectors + sum(run.parameters(hidden) for run in self.runs)


@dataclass(frozen=True)
class Architecture:
    """A model: an embedding, decoder layers, a norm, and a head."""

    name: str
    """Its name in the configuration."""
    hidden: int
    vocabulary: int
    runs: tuple[Run, ...]
    """The decoder layers in forward order."""
    tied: bool = False
    """Whether embedding and head are one matrix."""
    predictions: int = 0
    """Modules behind the layers that predict further tokens, each with a decoder layer like the
    last one (DeepSeek-V3, arXiv 2412.19437, section 2.2). They share embedding and head."""
    prediction: Decoder | None = None
    """The decoder layer of a prediction module, if it is not like the last one."""
    positions: int = 0
    """Learned positions, each a vector that is added to that of its token."""
    embedding_norm: bool = False
    """Whether a norm follows the embedding (BLOOM)."""
    encoder: Encoder | None = None
    """Layers in front of the embedding's output."""
    source: SourceEncoder | None = None
    """The encoder of a model with cross attention."""
    notes: tuple[str, ...] = ()
    """Remarks for a reader of the derived model: parts left out, and assumptions."""

    @property
    def last(self) -> Decoder:
        """The last decoder layer."""
        return self.runs[-1].decoder

    @property
    def source_runs(self) -> tuple[Run, ...]:
        """Layers of the encoder that cross attention reads."""
        return self.source.runs if self.source else ()

    @property
    def has_experts(self) -> bool:
        """Whether any decoder layer has experts."""
        return any(run.decoder.has_experts for run in self.runs)

    @property
    def parameters(self) -> int:
        """Parameters of the model, norms and biases included, prediction modules left out."""
        layers = sum(run.parameters(self.hidden) for run in self.runs)
        tables = self.vocabulary * (1 if self.tied else 2) + self.positions
        encoder = self.encoder.parameters if self.encoder else 0
        encoder += self.source.parameters(self.hidden) if self.source else 0
        norms = (1 + self.embedding_norm) * self.last.norm(self.hidden)
        return layers + norms + tables * self.hidden + encoder

    @property
    def expert_parameters(self) -> int:
        """Parameters of the matrices of experts that a router selects."""
        return sum(
            run.count * network.number * parameters_of(network.matrices(self.hidden))
            for run in self.runs
            for network in run.decoder.feed_forwards
            if isinstance(network, Experts)
        )

    @property
    def prediction_layer(self) -> Decoder:
        """The decoder layer of a prediction module: the last one, with an indexer of its own."""
        if self.prediction is not None:
            return self.prediction
        attention = self.last.attention
        if not isinstance(attention, LatentAttention) or attention.indexer is None:
            return self.last
        indexer = replace(attention.indexer, shared=False)
        return replace(self.last, attention=replace(attention, indexer=indexer))

    @property
    def prediction_parameters(self) -> int:
        """Parameters of one prediction module: a layer, a projection, and three norms."""
        layer, projection = self.prediction_layer, 2 * self.hidden * self.hidden
        return layer.parameters(self.hidden) + projection + 3 * layer.norm(self.hidden)
