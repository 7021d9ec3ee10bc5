"""What a layer computes, keeps and hands on, per token: the formulas that costs are made of.

- Work: a matrix of P parameters takes 2 P FLOPs a token in F, in B and in W each. Attention has no
  weights: `architecture.attention_flops` in F, and 2.5 times as much in B, which computes the
  scores again (FlashAttention-2, arXiv 2307.08691, section 3.1).
- Kept for the backward: each element that it reads, as the functions below count them, nothing
  recomputed. B frees none: W reads as many (inputs and output gradients).
- Gradients alive at once in the backward: of the residual stream and of the feed-forward's inner
  vectors; of the head, logits in FP32, as `vocab_parallel_cross_entropy` of Megatron-LM makes them.
"""

from __future__ import annotations

from typing import NamedTuple

from ppopt.derivation.architecture import Decoder, parameters_of

ELEMENT = 2
"""Bytes of an element in BF16."""
LOGIT = 4
"""Bytes of a logit in FP32."""


class LayerWork(NamedTuple):
    """What a layer computes and keeps."""

    passed: int
    """Parameters of matrices that every token passes."""
    scores: float
    """FLOPs of attention per token in F."""
    kept: int
    """Elements kept per token for the backward."""
    gradients: int = 0
    """Bytes per token of the gradients that are alive at once."""
    given: int = 0
    """Elements per token that the layer is handed."""
    stored: int | None = None
    """Parameters of all its matrices; None: `passed`."""
    routed: int = 0
    """Parameters of `stored` that are experts chosen by a router."""
    loss: int = 0
    """Bytes per token that F needs for the loss while it runs."""
    made: int | None = None
    """Elements per token that it hands on; None: as many as `given`."""

    @property
    def parameters(self) -> int:
        """Parameters of matrices that the layer has, experts not passed included."""
        return self.passed if self.stored is None else self.stored

    @property
    def handed_on(self) -> int:
        """Elements per token that it hands on."""
        return self.given if self.made is None else self.made

    @property
    def flops(self) -> float:
        """FLOPs per token of F, and twice as much of BW.

        These are what the model needs (PaLM, arXiv 2204.02311, appendix B): what attention computes
        again does not count.
        """
        return 6 * self.passed + 3 * self.scores


def decoder_work(decoder: Decoder, hidden: int, context: int) -> LayerWork:
    """A decoder layer for sequences of `context` tokens.

    Kept: both residual inputs and their norms (4 hidden), what attention keeps, and what the
    feed-forward keeps: gate, up and product, and the copies of a token that go to experts.
    """
    attention, feed_forward = decoder.attention, decoder.feed_forward
    inner = feed_forward.kept(hidden)
    return LayerWork(
        passed=parameters_of(attention.matrices(hidden)) + feed_forward.passed(hidden),
        scores=attention.scores(context),
        kept=4 * hidden + attention.kept + inner,
        gradients=ELEMENT * (hidden + inner),
        given=hidden,
        stored=decoder.stored(hidden),
        routed=feed_forward.routed(hidden),
    )


def head_work(hidden: int, vocabulary: int) -> LayerWork:
    """The output matrix with its loss; kept: its input, the input of its norm, and the logits."""
    kept, logits = 2 * hidden + vocabulary, LOGIT * vocabulary
    return LayerWork(hidden * vocabulary, 0, kept, given=hidden, loss=logits)


def prediction_work(decoder: Decoder, hidden: int, vocabulary: int, context: int) -> LayerWork:
    """A module that predicts a further token (DeepSeek-V3, arXiv 2412.19437, section 2.2).

    A projection of two vectors, a decoder layer, and the head, whose matrix it shares. Kept beside
    those of the layer: the vectors and their norms, and the logits.
    """
    layer, projection = decoder_work(decoder, hidden, context), 2 * hidden * hidden
    return layer._replace(
        passed=layer.passed + projection + hidden * vocabulary,
        kept=layer.kept + 4 * hidden + vocabulary,
        stored=layer.parameters + projection,
        loss=LOGIT * vocabulary,
    )
