"""Families with an encoder of words whose output every decoder layer reads.

Keys and defaults are those of `configuration_*.py`, and layers those of `modeling_*.py`, of the
model type in github.com/huggingface/transformers.
"""

from __future__ import annotations

from dataclasses import replace

from ppopt.derivation.architecture import Decoder, FeedForward, Run, SourceEncoder
from ppopt.derivation.attention import GroupedQueryAttention
from ppopt.derivation.config_family import grouped_attention, register
from ppopt.derivation.config_keys import Keys
from ppopt.errors import InputError
from ppopt.formats.fields import abbreviated


def _attention(keys: Keys) -> GroupedQueryAttention:
    """Attention with relative positions, which add to its scores."""
    return grouped_attention(keys, rotary=False)


def _feed_forward(keys: Keys) -> FeedForward:
    kind = keys.value("feed_forward_proj") or "relu"
    if not isinstance(kind, str):
        raise InputError(f"feed_forward_proj: {abbreviated(kind)} is no text; it is relu or gated-")
    return FeedForward(keys.count("intermediate_size"), gated=kind.startswith("gated-"))


def _encoder(keys: Keys) -> SourceEncoder:
    """Relative positions are those of the first layer of the encoder, and of the decoder."""
    keys.note("relative positions are left out of the time of attention")
    keys.note(
        "every decoder layer counts the encoder's output that it reads, a single tensor of a stage"
    )
    layer = Decoder(replace(_attention(keys), causal=False), _feed_forward(keys))
    positions = keys.count("relative_attention_num_buckets", 32) * keys.count("num_attention_heads")
    return SourceEncoder(
        (Run("encoder block", layer, keys.count("num_layers")),),
        vectors=2 * positions + keys.count("hidden_size"),
    )


@register(
    *("T5ForConditionalGeneration", "MT5ForConditionalGeneration"),
    types=("t5", "mt5"),
    tied=True,
    aliases={
        "hidden_size": "d_model",
        "head_dim": "d_kv",
        "intermediate_size": "d_ff",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_decoder_layers",
    },
    source=_encoder,
)
def _t5(keys: Keys, _: int) -> Decoder:
    """Attention, then cross attention and a feed-forward network, each behind a norm."""
    attention = _attention(keys)
    crossed = replace(attention, causal=False, crossed=True)
    return Decoder(crossed, _feed_forward(keys), before=Decoder(attention, None, norms=1))
