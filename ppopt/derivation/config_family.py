"""A family of models with the same keys in config.json, and readers that families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from ppopt.derivation.architecture import Decoder, Experts, FeedForward, SourceEncoder
from ppopt.derivation.attention import GroupedQueryAttention, LatentAttention
from ppopt.derivation.config_encoders import EncoderReader
from ppopt.derivation.config_keys import Keys
from ppopt.errors import InputError
from ppopt.formats.fields import abbreviated

Layer = Callable[[Keys, int], Decoder]
"""The decoder layer of a configuration by its index."""


class Family(NamedTuple):
    """Models with the same keys."""

    name: str
    """The first of its architectures."""
    layer: Layer
    model_types: tuple[str, ...]
    """As configurations name it under `model_type`."""
    tied: bool = False
    """Whether embedding and head are one matrix if the configuration does not say so."""
    aliases: Mapping[str, str] = MappingProxyType({})
    """Names of keys -> their names in this family."""
    positions: Callable[[Keys], int] | None = None
    """Number of learned positions."""
    defaults: Mapping[str, int] = MappingProxyType({})
    """Values of keys that configurations of these models leave out."""
    ignored: tuple[str, ...] = ()
    """Keys that change no dimensions of these models."""
    encoder: EncoderReader | None = None
    """The encoder of a `vision_config`."""
    source: Callable[[Keys], SourceEncoder] | None = None
    """The encoder that cross attention of the decoder reads."""
    prediction: Callable[[Keys], Decoder] | None = None
    """The layer of a prediction module, if it is not like the last layer."""
    embedding_norm: bool = False
    """Whether a norm follows the embedding."""

    def keys(self, config: Mapping[str, object], *, named: bool) -> Keys:
        """The keys of a configuration; defaults are those of models that are `named`."""
        return Keys(config, self.aliases, self.defaults if named else {}, self.ignored)


GELU = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh")
FAMILIES: dict[str, Family] = {}
"""Architecture, as configurations name it under `architectures` -> its family."""


def register(
    *architectures: str, types: tuple[str, ...], **fields: Any
) -> Callable[[Layer], Layer]:
    """Register the decoder layer of architectures; `fields` are further fields of `Family`."""

    def add(layer: Layer) -> Layer:
        family = Family(architectures[0], layer, types, **fields)
        FAMILIES.update(dict.fromkeys(architectures, family))
        return layer

    return add


def grouped_attention(keys: Keys, **fields: Any) -> GroupedQueryAttention:
    """Attention by the keys of nearly all families; `fields` are further fields of it."""
    heads = keys.count("num_attention_heads")
    groups = keys.count("num_key_value_heads", heads)
    if heads % groups:
        raise InputError(f"num_key_value_heads: {heads} heads cannot share {groups}")
    width = keys.count("head_dim", keys.count("hidden_size") // heads)
    if not width:
        raise InputError(f"num_attention_heads: hidden_size has no room for {heads} heads")
    return GroupedQueryAttention(heads, **{"groups": groups, "width": width} | fields)


def biased_attention(keys: Keys, default: bool = False, **fields: Any) -> GroupedQueryAttention:
    """The same if `attention_bias` says whether all its matrices have a bias."""
    bias = keys.switch("attention_bias", default)
    return grouped_attention(keys, bias=bias, output_bias=bias, **fields)


def feed_forward(keys: Keys, *, bias: bool = False) -> FeedForward:
    """A feed-forward network with a gate."""
    return FeedForward(keys.count("intermediate_size"), bias)


def layer_window(keys: Keys, index: int, *, slides: bool) -> int | None:
    """The window of a layer that slides, unless the configuration lists the kinds of layers."""
    kind = keys.layer_kind(index, "sliding_attention" if slides else "full_attention")
    window = keys.count("sliding_window", 0, minimum=0)
    if kind == "sliding_attention":
        return window or None
    expect_full_attention(kind)
    return None


def late_window(keys: Keys, index: int, first: int, *, switched: bool) -> int | None:
    """A window over the last layers, if it is switched on.

    Unless the configuration says so, `first` is the first of them, and `switched` whether it is on.
    """
    slides = index >= keys.count("max_window_layers", first, minimum=0)
    window = layer_window(keys, index, slides=slides)
    return window if keys.switch("use_sliding_window", switched) else None


def expect_full_attention(kind: str) -> None:
    """Raise InputError on a kind of attention that is not read."""
    if kind != "full_attention":
        raise InputError(
            f"layer_types: {abbreviated(kind)} is not a kind of attention that this architecture "
            "has"
        )


def read_experts(keys: Keys, width: int, number: str, **fields: Any) -> Experts:
    """Experts; `number` is the key of their number, and `fields` are further fields of them."""
    experts = keys.count(number)
    chosen = keys.count("num_experts_per_tok")
    if chosen > experts:
        raise InputError(f"num_experts_per_tok: {chosen} of {experts} experts; there are no more")
    groups = keys.count("n_group", 1, minimum=0) or 1
    chosen_groups = keys.count("topk_group", groups, minimum=0) or groups
    spread: dict[str, Any] = {"groups": groups, "chosen_groups": min(groups, chosen_groups)}
    return Experts(width, experts, chosen, **spread, **fields)


def latent_attention(keys: Keys) -> LatentAttention:
    """Latent attention by the keys of DeepSeek."""
    return LatentAttention(
        heads=keys.count("num_attention_heads"),
        query_latent=keys.count("q_lora_rank", 0),
        latent=keys.count("kv_lora_rank"),
        plain=keys.count("qk_nope_head_dim"),
        position=keys.count("qk_rope_head_dim"),
        value=keys.count("v_head_dim"),
        bias=keys.switch("attention_bias"),
    )


def shared_experts(keys: Keys, index: int, *, routing_bias: bool) -> FeedForward | Experts:
    """Dense layers first, then experts, some of which every token passes."""
    kind = keys.listed("mlp_layer_types", index)
    if kind not in (None, "dense", "sparse"):
        raise InputError(f"mlp_layer_types: {abbreviated(kind)} is neither dense nor sparse")
    dense = kind == "dense"
    if kind is None:
        first = keys.count("first_k_dense_replace", minimum=0)
        dense = index < first or index % keys.count("moe_layer_freq", 1) > 0
    if dense:
        return feed_forward(keys)
    width = keys.count("moe_intermediate_size")
    return read_experts(
        keys,
        width,
        "n_routed_experts",
        shared=width * keys.count("n_shared_experts", 0, minimum=0),
        routing_bias=routing_bias,
    )
