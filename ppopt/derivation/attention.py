"""Attention of a layer: its matrices, its FLOPs, and what it stashes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Shard(Enum):
    """How tensor-parallel ranks divide a matrix (Megatron-LM, arXiv 1909.08053, section 3)."""

    COLUMNS = "columns"
    """By outputs."""
    ROWS = "rows"
    """By inputs."""
    NONE = "none"
    """Every rank has all of it."""


HIDDEN = "hidden"
"""The tensor that a norm passes on."""


class Matrix(NamedTuple):
    """A matrix of parameters.

    Consecutive matrices with the same inputs and shard can run as a single product.
    """

    name: str
    inputs: int
    outputs: int
    shard: Shard
    reads: str = HIDDEN
    """The tensor that it multiplies: those with the same name, in a part of a layer, are one."""

    @property
    def parameters(self) -> int:
        """Number of elements."""
        return self.inputs * self.outputs


SOURCE = "encoder's output"
"""The tensor of the encoder that cross attention reads."""
ATTENDED = "attention's output"
"""The tensor that attention itself stashes, whatever the matrix behind it needs."""


def parameters_of(matrices: Iterable[Matrix]) -> int:
    """Parameters of several matrices."""
    return sum(matrix.parameters for matrix in matrices)


def _query_matrices(hidden: int, latent: int, queries: int) -> tuple[Matrix, ...]:
    """The projections of queries, by way of a latent vector unless its width is 0."""
    if not latent:
        return (Matrix("query", hidden, queries, Shard.COLUMNS),)
    return (
        Matrix("query down", hidden, latent, Shard.NONE),
        Matrix("query up", latent, queries, Shard.COLUMNS, "query latent"),
    )


def mean_keys(
    context: int, window: int | None = None, *, causal: bool = True, chunked: bool = False
) -> float:
    """Number of keys that a query sees, averaged over a sequence of `context` tokens.

    A causal mask leaves half of them (FlashAttention-2, arXiv 2307.08691, section 4.1). With a
    causal window of w tokens, queries from the w-th on see w keys. In chunks, a query sees its own
    chunk of w tokens.
    """
    seen = context if window is None else min(context, window)
    if not causal:
        return seen
    if chunked:
        chunks, rest = divmod(context, seen)
        return (chunks * seen**2 + rest**2) / (2 * context)
    return seen - seen**2 / (2 * context)


@dataclass(frozen=True)
class GroupedQueryAttention:
    """Attention whose heads of queries share heads of keys and values (arXiv 2305.13245)."""

    heads: int
    groups: int
    """Heads of keys, and of values."""
    width: int
    """Of a head of queries and keys."""
    value_width: int | None = None
    """Of a head of values; None: `width`."""
    query_latent: int = 0
    """Width of a normed vector from which the queries come (arXiv 2412.19255); 0: they come from
    the hidden vector."""
    bias: bool = False
    """Whether queries, keys and values have a bias."""
    output_bias: bool = False
    normed: bool = False
    """Whether every head of queries and keys is normed, by one norm each (arXiv 2505.09388)."""
    normed_together: bool = False
    """Whether the norms span all heads, with a weight for each of their elements (OLMo 2)."""
    gated: bool = False
    """Whether a gate as wide as the queries scales the output (arXiv 2505.06708)."""
    sinks: bool = False
    """Whether every head has a learned score that attends to nothing (gpt-oss)."""
    window: int | None = None
    """Maximum number of keys that a query sees; None: all before it."""
    chunked: bool = False
    """Whether the window is a chunk of the sequence and does not slide (Llama 4)."""
    causal: bool = True
    rotary: bool = True
    """Whether queries and keys have rotary embeddings; otherwise positions are learned (GPT-2), or
    add to the scores (ALiBi)."""
    crossed: bool = False
    """Whether keys and values come from the output of an encoder (arXiv 1706.03762, section
    3.2.3)."""

    @property
    def query(self) -> int:
        """Width of a head of queries and keys."""
        return self.width

    @property
    def value(self) -> int:
        """Width of a head of values."""
        return self.width if self.value_width is None else self.value_width

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """The projections of queries, keys, values and the output, in order of execution."""
        outputs = self.heads * self.value
        gate = (Matrix("gate", hidden, outputs, Shard.COLUMNS),) if self.gated else ()
        read = SOURCE if self.crossed else HIDDEN
        return (
            *_query_matrices(hidden, self.query_latent, self.heads * self.width),
            *gate,
            Matrix("key", hidden, self.groups * self.width, Shard.COLUMNS, read),
            Matrix("value", hidden, self.groups * self.value, Shard.COLUMNS, read),
            Matrix(
                "output", outputs, hidden, Shard.ROWS, "gated output" if self.gated else ATTENDED
            ),
        )

    def vectors(self, hidden: int) -> int:
        """Parameters of biases, norms and sinks."""
        keys, values = self.groups * self.width, self.groups * self.value
        queries, gate = self.heads * self.width, self.gated * self.heads * self.value
        biases = self.bias * (queries + gate + keys + values)
        norms = queries + keys if self.normed_together else 2 * self.width
        vectors = self.sinks * self.heads + self.normed * norms + self.query_latent
        return biases + self.output_bias * hidden + vectors

    @property
    def read(self) -> int:
        """Elements per token of queries, keys and values."""
        return self.width * self.heads + self.pairs

    @property
    def pairs(self) -> int:
        """Elements per token of keys and values."""
        return self.groups * (self.width + self.value)

    @property
    def stashed(self) -> int:
        """Elements per token: queries, keys, values, output, the gate, and inputs of norms."""
        normed = self.normed * self.width * (self.heads + self.groups)
        gated = self.gated * self.value * self.heads
        return self.read + self.value * self.heads + normed + gated + self.query_latent

    def keys(self, context: int) -> float:
        """Keys that a query sees, averaged over a sequence of `context` tokens."""
        return mean_keys(context, self.window, causal=self.causal, chunked=self.chunked)

    def scores(self, context: int) -> float:
        """FLOPs per token of F; see `attention_flops`."""
        return attention_flops(self.keys(context), self.heads, self.width, self.value)


@dataclass(frozen=True)
class Indexer:
    """Scores of all keys that select the keys of each query (DeepSeek-V3.2, arXiv 2512.02556).

    Heads of queries come from the latent of queries. All heads share a key.
    """

    heads: int
    width: int
    """Of a head."""
    keys: int
    """Number of keys that it selects for a query."""
    shared: bool = False
    """Whether the layer reuses the selection of an earlier layer, and computes none (GLM-5.2)."""

    def matrices(self, hidden: int, latent: int) -> tuple[Matrix, ...]:
        """The projections of queries, of the key and of the weights of heads."""
        if self.shared:
            return ()
        return (
            Matrix("index query", latent, self.heads * self.width, Shard.NONE, "query latent"),
            Matrix("index key", hidden, self.width, Shard.NONE),
            Matrix("index weights", hidden, self.heads, Shard.NONE),
        )

    @property
    def stashed(self) -> int:
        """Elements per token: queries, the key before and after its norm, and weights."""
        return 0 if self.shared else self.heads * (self.width + 1) + 2 * self.width

    @property
    def vectors(self) -> int:
        """Parameters of the norm of the key, which has a bias."""
        return 0 if self.shared else 2 * self.width

    def scores(self, context: int) -> float:
        """FLOPs per token of F: products of every query with all keys before it."""
        return 0 if self.shared else 2 * mean_keys(context) * self.heads * self.width


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
    """Width of a head of values."""
    bias: bool = False
    """Whether the projections down and of the output have a bias."""
    indexer: Indexer | None = None
    """Selects the keys that a query sees."""
    causal: bool = True

    @property
    def query(self) -> int:
        """Width of a head of queries and keys."""
        return self.plain + self.position

    @property
    def groups(self) -> int:
        """Heads of keys and values, to which the latent is expanded."""
        return self.heads

    @property
    def window(self) -> int | None:
        """Maximum number of keys that a query sees; None: all before it."""
        return self.indexer.keys if self.indexer else None

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """The projections down to latents, up to heads, and of the output."""
        latent, values = self.query_latent, self.heads * (self.plain + self.value)
        return (
            *_query_matrices(hidden, latent, self.heads * self.query),
            Matrix("key-value down", hidden, self.latent + self.position, Shard.NONE),
            Matrix("key-value up", self.latent, values, Shard.COLUMNS, "key-value latent"),
            *(self.indexer.matrices(hidden, latent) if self.indexer else ()),
            Matrix("output", self.heads * self.value, hidden, Shard.ROWS, ATTENDED),
        )

    def vectors(self, hidden: int) -> int:
        """Parameters of the norms of latents, of biases, and of the indexer's norm."""
        latents = self.query_latent + self.latent
        biases = self.bias * (latents + self.position + hidden)
        return latents + biases + (self.indexer.vectors if self.indexer else 0)

    @property
    def stashed(self) -> int:
        """Elements per token: latents, queries, keys, values and the output."""
        latents = self.query_latent + self.latent + self.position
        index = self.indexer.stashed if self.indexer else 0
        return latents + 2 * self.heads * (self.query + self.value) + index

    def keys(self, context: int) -> float:
        """Keys that a query sees, averaged over a sequence of `context` tokens."""
        return mean_keys(context, self.window, causal=self.causal)

    def scores(self, context: int) -> float:
        """FLOPs per token of F, those of the indexer included; see `attention_flops`."""
        index = self.indexer.scores(context) if self.indexer else 0
        return attention_flops(self.keys(context), self.heads, self.query, self.value) + index


CHUNK = 64
"""Tokens of a chunk of linear attention, as in kernels of
github.com/fla-org/flash-linear-attention."""


@dataclass(frozen=True)
class Recurrence:
    """A state of `query` x `value` per head in place of keys; it runs in chunks of tokens."""

    heads: int
    """Heads of values, and of the output."""
    groups: int
    """Heads of queries and keys, which several heads of values share."""
    query: int
    """Width of a head of queries and keys: the size of the state."""
    value: int
    """Width of a head of values."""
    chunk: int
    """Tokens of a chunk."""

    @property
    def window(self) -> int | None:
        """Maximum number of keys that a query sees; None: all before it."""
        return None

    @property
    def mixed(self) -> int:
        """Elements per token of queries, keys and values, over which the convolution runs."""
        return 2 * self.groups * self.query + self.heads * self.value


@dataclass(frozen=True)
class LinearAttention(Recurrence):
    """Attention without a softmax: a state of query x value per head, updated token by token.

    It runs in chunks of tokens (gated delta rule, arXiv 2412.06464, section 3.3).
    """

    chunk: int = CHUNK
    kernel: int = 0
    """Tokens that a convolution over queries, keys and values spans; 0: there is none."""
    delta: bool = True
    """Whether a token replaces the state's value for its key, with a rate and a decay per head."""
    latent: int = 0
    """Width of the vectors from which the output gate, and a decay for each element of a key, come
    (Kimi Linear, arXiv 2510.26692); 0: the gate comes from the hidden vector."""
    causal: bool = True

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """The projections of queries, keys, values, output gate, rates, and the output."""
        keys, values, latent = self.groups * self.query, self.heads * self.value, self.latent
        gate: tuple[Matrix, ...] = (Matrix("gate", hidden, values, Shard.COLUMNS),)
        if latent:
            gate = (
                Matrix("decay down", hidden, latent, Shard.NONE),
                Matrix("decay up", latent, keys, Shard.COLUMNS, "decay latent"),
                Matrix("gate down", hidden, latent, Shard.NONE),
                Matrix("gate up", latent, values, Shard.COLUMNS, "gate latent"),
            )
        number = self.delta * (1 if latent else 2) * self.heads
        rates = (Matrix("rates", hidden, number, Shard.COLUMNS),) if number else ()
        return (
            Matrix("query", hidden, keys, Shard.COLUMNS),
            Matrix("key", hidden, keys, Shard.COLUMNS),
            Matrix("value", hidden, values, Shard.COLUMNS),
            *gate,
            *rates,
            Matrix("output", values, hidden, Shard.ROWS, "gated output"),
        )

    def vectors(self, _: int) -> int:
        """Parameters of the convolution, of the decay, and of the norm of the output."""
        norm = self.value if self.delta else self.heads * self.value
        biases = self.groups * self.query if self.latent else self.heads
        return self.kernel * self.mixed + self.delta * (self.heads + biases) + norm

    @property
    def stashed(self) -> int:
        """Elements per token: queries, keys, values, gate and output; before the convolution, too.

        The states of chunks are recomputed.
        """
        around = 2 * (self.heads * self.value + self.latent)
        return self.mixed * (2 if self.kernel else 1) + around

    def scores(self, _: int) -> float:
        """FLOPs per token of F in chunks, half of a chunk under the mask.

        Of a chunk: scores and their product with values; of the state: its update and its reading.
        The delta rule solves a triangular system, too: scores of keys with keys, products of
        its solution with keys and values, and one more reading of the state (arXiv 2406.06484,
        equations 8 to 11).
        """
        chunk, state = self.chunk, 4 * self.query * self.value
        inner = chunk * (self.query + self.value)
        if self.delta:
            inner += chunk * (2 * self.query + self.value) + chunk * chunk // 3
            state += 2 * self.query * self.value
        return self.heads * (inner + state)


@dataclass(frozen=True)
class StateSpace(Recurrence):
    """A Mamba-2 layer: a state of `query` x `value` per head (arXiv 2405.21060, section 7.1).

    It is linear attention whose keys, queries and values are B, C and x of the paper. It runs in
    chunks of tokens (section 6).
    """

    kernel: int = 4
    """Tokens that the convolution over queries, keys and values spans."""
    chunk: int = 128
    convolution_bias: bool = True
    bias: bool = False
    """Whether the projections have a bias."""
    causal: bool = True

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """The projections of gate, values, keys, queries and time steps, and of the output."""
        keys, values = self.groups * self.query, self.heads * self.value
        return (
            Matrix("gate", hidden, values, Shard.COLUMNS),
            Matrix("value", hidden, values, Shard.COLUMNS),
            Matrix("key", hidden, keys, Shard.COLUMNS),
            Matrix("query", hidden, keys, Shard.COLUMNS),
            Matrix("steps", hidden, self.heads, Shard.COLUMNS),
            Matrix("output", values, hidden, Shard.ROWS, "gated output"),
        )

    def vectors(self, hidden: int) -> int:
        """Parameters of the convolution, of decay, step and skip per head, of the norm, biases."""
        values = self.heads * self.value
        biases = self.bias * (values + self.mixed + self.heads + hidden)
        return (self.kernel + self.convolution_bias) * self.mixed + 3 * self.heads + values + biases

    @property
    def stashed(self) -> int:
        """Elements per token: inputs and outputs of the convolution, gate, output and time steps.

        The states of chunks are recomputed.
        """
        return 2 * self.mixed + 2 * self.heads * self.value + self.heads

    def scores(self, _: int) -> float:
        """FLOPs per token of F in chunks, half of a chunk under the mask.

        Scores of a group, their product with values, the state's update and its reading.
        """
        inner = self.chunk * (self.groups * self.query + self.heads * self.value)
        return inner + 4 * self.heads * self.query * self.value


def attention_flops(keys: float, heads: int, query: int, value: int) -> float:
    """FLOPs of attention per token in F: scores of `query` wide heads, values of `value`.

    A token sees `keys` others (`mean_keys`); a product of matrices takes 2 FLOPs an element.
    """
    return 2 * keys * heads * (query + value)


Recurrent = LinearAttention | StateSpace
"""Attention with a state."""
Attention = GroupedQueryAttention | LatentAttention | Recurrent


def pairs_of_source(attention: Attention) -> int:
    """Elements of keys and values per token of an encoder; 0 unless it is cross attention."""
    if isinstance(attention, GroupedQueryAttention) and attention.crossed:
        return attention.pairs
    return 0
