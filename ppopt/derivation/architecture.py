"""Dimensions of a transformer: what its layers are, and how many parameters they have.

Parameters are of matrices, which products pass, or of vectors (norms and biases). Both count as
parameters of a model; times and memory are those of the matrices alone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GroupedQueryAttention:
    """Attention whose heads of queries share heads of keys and values (arXiv 2305.13245)."""

    heads: int
    groups: int
    """Heads of keys, and of values."""
    width: int
    """Of a head."""
    bias: bool = False
    """Whether queries, keys and values have a bias."""
    output_bias: bool = False
    normed: bool = False
    """Whether every head of queries and keys is normed, by one norm each (arXiv 2505.09388)."""

    def matrices(self, hidden: int) -> int:
        """Parameters of the projections of queries, keys, values and the output."""
        return 2 * hidden * self.width * (self.heads + self.groups)

    def vectors(self, hidden: int) -> int:
        """Parameters of biases and norms."""
        biases = self.bias * self.width * (self.heads + 2 * self.groups)
        return biases + self.output_bias * hidden + self.normed * 2 * self.width

    @property
    def kept(self) -> int:
        """Elements per token: queries, keys, values, output, and what norms of heads read."""
        normed = self.normed * self.width * (self.heads + self.groups)
        return 2 * self.width * (self.heads + self.groups) + normed

    def scores(self, context: int) -> float:
        """FLOPs per token of F under a causal mask; see `attention_flops`."""
        return attention_flops(context, self.heads, self.width, self.width)


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    heads: int
    query_latent: int
    """Width of the latent of queries; 0: queries come from the hidden vector."""
    latent: int
    """Width of the latent of keys and values."""
    plain: int
    """Width of queries and keys without position."""
    position: int
    """Width of queries, and of the key that heads share, with rotary position."""
    value: int

    @property
    def query(self) -> int:
        """Width of a head of queries."""
        return self.plain + self.position

    def matrices(self, hidden: int) -> int:
        """Parameters of the projections down to latents, up to heads, and of the output."""
        down = hidden * (self.query_latent + self.latent + self.position)
        queries = (self.query_latent or hidden) * self.heads * self.query
        values = self.latent * self.heads * (self.plain + self.value)
        return down + queries + values + self.heads * self.value * hidden

    def vectors(self, _: int) -> int:
        """Parameters of the norms of latents."""
        return self.query_latent + self.latent

    @property
    def kept(self) -> int:
        """Elements per token: latents and their norms, queries, keys, values and the output."""
        latents = 2 * self.query_latent + 2 * self.latent + self.position
        return latents + 2 * self.heads * (self.query + self.value)

    def scores(self, context: int) -> float:
        """FLOPs per token of F under a causal mask; see `attention_flops`."""
        return attention_flops(context, self.heads, self.query, self.value)


def attention_flops(
    context: int, heads: int, query: int, value: int, *, causal: bool = True
) -> float:
    """FLOPs of attention per token in F: scores of `query` wide heads, values of `value`.

    A product of matrices takes 2 FLOPs an element; a causal mask leaves half of them
    (FlashAttention-2, arXiv 2307.08691, section 4.1).
    """
    return 2 * context * heads * (query + value) * (0.5 if causal else 1)


@dataclass(frozen=True)
class FeedForward:
    """A gated feed-forward network (SwiGLU, arXiv 2002.05202): gate, up and down."""

    width: int
    bias: bool = False

    def passed(self, hidden: int) -> int:
        """Parameters of matrices that a token passes."""
        return 3 * hidden * self.width

    def stored(self, hidden: int) -> int:
        """Parameters of all matrices."""
        return self.passed(hidden)

    def vectors(self, hidden: int) -> int:
        """Parameters of biases."""
        return self.bias * (2 * self.width + hidden)

    def routed(self, _: int) -> int:
        """Parameters of experts that are chosen by a router."""
        return 0

    def kept(self, _: int) -> int:
        """Elements per token: gate, up, and their product."""
        return 3 * self.width


@dataclass(frozen=True)
class Experts:
    """Gated feed-forward networks, some of which a router chooses per token."""

    width: int
    number: int
    chosen: int
    """Experts that a token passes."""
    shared: int = 0
    """Width of what every token passes beside them."""
    shared_gate: bool = False
    """Whether a gate weighs the shared part (Qwen2-MoE)."""
    routing_bias: bool = False
    """Whether the router has a bias per expert (DeepSeek-V3, arXiv 2412.19437, section 2.1.2)."""

    def passed(self, hidden: int) -> int:
        """Parameters of matrices that a token passes, the router among them."""
        return self._router(hidden) + 3 * hidden * (self.chosen * self.width + self.shared)

    def stored(self, hidden: int) -> int:
        """Parameters of all matrices."""
        return self._router(hidden) + self.routed(hidden) + 3 * hidden * self.shared

    def vectors(self, _: int) -> int:
        """Parameters of the routing bias."""
        return self.routing_bias * self.number

    def routed(self, hidden: int) -> int:
        """Parameters of experts that are chosen by a router."""
        return self.number * 3 * hidden * self.width

    def kept(self, hidden: int) -> int:
        """Elements per token: the copies that go to experts; gate, up and product of each."""
        return self.chosen * hidden + 3 * (self.chosen * self.width + self.shared)

    def _router(self, hidden: int) -> int:
        return hidden * (self.number + self.shared_gate)


@dataclass(frozen=True)
class Decoder:
    """A decoder layer: attention and feed-forward, each behind a norm."""

    attention: GroupedQueryAttention | LatentAttention
    feed_forward: FeedForward | Experts

    def stored(self, hidden: int) -> int:
        """Parameters of all matrices."""
        return self.attention.matrices(hidden) + self.feed_forward.stored(hidden)

    def parameters(self, hidden: int) -> int:
        """Parameters of matrices, biases and norms."""
        vectors = self.attention.vectors(hidden) + self.feed_forward.vectors(hidden)
        return self.stored(hidden) + vectors + 2 * hidden


@dataclass(frozen=True)
class Run:
    """Equal decoder layers in a row."""

    name: str
    decoder: Decoder
    count: int


@dataclass(frozen=True)
class Architecture:
    """A model: an embedding, decoder layers, a norm, and a head."""

    name: str
    """As its configuration names it."""
    hidden: int
    vocabulary: int
    runs: tuple[Run, ...]
    """The decoder layers in forward order."""
    tied: bool = False
    """Whether embedding and head are one matrix."""
    predictions: int = 0
    """Modules behind the layers that predict further tokens, each with a decoder layer like the
    last one (DeepSeek-V3, arXiv 2412.19437, section 2.2). They share embedding and head."""

    @property
    def last(self) -> Decoder:
        """The last decoder layer."""
        return self.runs[-1].decoder

    @property
    def parameters(self) -> int:
        """Parameters of the model, norms and biases included, prediction modules left out."""
        layers = sum(run.count * run.decoder.parameters(self.hidden) for run in self.runs)
        words = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return layers + self.hidden + words

    @property
    def prediction_parameters(self) -> int:
        """Parameters of one prediction module: a layer, a projection, and three norms."""
        projection = 2 * self.hidden * self.hidden
        return self.last.parameters(self.hidden) + projection + 3 * self.hidden
