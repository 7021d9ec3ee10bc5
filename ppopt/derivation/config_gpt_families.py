"""Families whose layers are like those of GPT-2: LayerNorm, and feed-forward without a gate.

Keys and defaults are those of `configuration_*.py`, and layers those of `modeling_*.py`, of the
model type in github.com/huggingface/transformers.
"""

from __future__ import annotations

from dataclasses import replace

from ppopt.derivation.architecture import Decoder, FeedForward
from ppopt.derivation.config_families import mistral_window
from ppopt.derivation.config_family import (
    GELU,
    biased_attention,
    feed_forward,
    grouped_attention,
    layer_window,
    register,
)
from ppopt.derivation.config_keys import Keys
from ppopt.errors import InputError


def _plain(
    keys: Keys, width: int, *, bias: bool = True, window: int | None = None, rotary: bool = False
) -> Decoder:
    """A layer of GPT-2 and its kin: LayerNorm, and a feed-forward network without a gate."""
    attention = grouped_attention(keys, bias=bias, output_bias=bias, window=window, rotary=rotary)
    return Decoder(attention, FeedForward(width, bias=bias, gated=False), layer_norm=True)


@register(
    "GPT2LMHeadModel",
    types=("gpt2",),
    tied=True,
    aliases={
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
    },
    positions=lambda keys: keys.count("n_positions"),
    ignored=(
        *("activation_function", "layer_norm_epsilon", "n_ctx", "reorder_and_upcast_attn"),
        *("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "summary_activation"),
        *("summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"),
    ),
)
def _gpt2(keys: Keys, _: int) -> Decoder:
    return _plain(keys, keys.count("intermediate_size", 4 * keys.count("n_embd")))


@register(
    "GPTNeoXForCausalLM",
    types=("gpt_neox",),
    defaults={"use_parallel_residual": True},
    ignored=("layer_norm_eps",),
)
def _gpt_neox(keys: Keys, _: int) -> Decoder:
    """Pythia; biases of the feed-forward network, and of attention if they are not switched off."""
    keys.ignore("hidden_act", *GELU)
    if keys.value("use_parallel_residual") is None:
        raise InputError("use_parallel_residual is missing")
    attention = biased_attention(keys, True)
    return replace(_plain(keys, keys.count("intermediate_size")), attention=attention)


@register(
    "OPTForCausalLM",
    types=("opt",),
    tied=True,
    positions=lambda keys: keys.count("max_position_embeddings") + 2,
    ignored=("activation_function", "layer_norm_elementwise_affine", "layerdrop"),
)
def _opt(keys: Keys, _: int) -> Decoder:
    hidden = keys.count("hidden_size")
    if keys.count("word_embed_proj_dim", hidden) != hidden:
        raise InputError("word_embed_proj_dim: a projection of the embedding is not derived")
    if not keys.switch("do_layer_norm_before", True) or keys.switch("_remove_final_layer_norm"):
        raise InputError("do_layer_norm_before: a model without a norm in front of its head")
    return _plain(keys, keys.count("ffn_dim"), bias=keys.switch("enable_bias", True))


@register("Starcoder2ForCausalLM", types=("starcoder2",), tied=True, ignored=("norm_epsilon",))
def _starcoder2(keys: Keys, index: int) -> Decoder:
    keys.ignore("hidden_act", *GELU)
    for key in ("norm_type", "mlp_type"):
        keys.ignore(key, "layer_norm", "default")
    window, bias = mistral_window(keys, index), keys.switch("use_bias", True)
    return _plain(keys, keys.count("intermediate_size"), bias=bias, window=window, rotary=True)


@register(
    "BloomForCausalLM",
    types=("bloom",),
    tied=True,
    embedding_norm=True,
    aliases={
        "hidden_size": "n_embed",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
    },
)
def _bloom(keys: Keys, _: int) -> Decoder:
    """Positions are added to the scores (ALiBi)."""
    return _plain(keys, 4 * keys.count("hidden_size"))


@register(
    *("FalconForCausalLM", "RWForCausalLM"),
    types=("falcon", "RefinedWeb", "RefinedWebModel"),
    tied=True,
    aliases={
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "num_kv_heads": "n_head_kv",
    },
)
def _falcon(keys: Keys, _: int) -> Decoder:
    """Attention and feed-forward in parallel, with a norm each or a common one."""
    new, parallel = keys.switch("new_decoder_architecture"), keys.switch("parallel_attn", True)
    heads, bias = keys.count("num_attention_heads"), keys.switch("bias")
    groups = 1 if keys.switch("multi_query", True) else heads
    if new:
        groups = keys.count("num_kv_heads", heads)
    rotary = not keys.switch("alibi")
    attention = grouped_attention(keys, bias=bias, output_bias=bias, groups=groups, rotary=rotary)
    width = keys.count("ffn_hidden_size", 4 * keys.count("hidden_size"))
    norms = 2 if new or not parallel else 1
    if new or parallel:
        norms = keys.count("num_ln_in_parallel_attn", norms, maximum=2)
    return Decoder(attention, FeedForward(width, bias, gated=False), norms, layer_norm=True)


@register("NemotronForCausalLM", types=("nemotron",))
def _nemotron(keys: Keys, _: int) -> Decoder:
    """Nemotron-4 and Minitron: a squared ReLU."""
    keys.ignore("hidden_act", "relu2")
    plain = _plain(keys, keys.count("intermediate_size"), bias=keys.switch("mlp_bias"))
    return replace(plain, attention=biased_attention(keys))


@register("CohereForCausalLM", types=("cohere",), tied=True, ignored=("layer_norm_eps",))
def _cohere(keys: Keys, _: int) -> Decoder:
    """Command-R: attention and feed-forward in parallel behind a norm without a bias."""
    normed = keys.switch("use_qk_norm")
    attention = biased_attention(keys, normed=normed, normed_together=normed)
    return Decoder(attention, feed_forward(keys), norms=1)


@register("Cohere2ForCausalLM", types=("cohere2",), tied=True, ignored=("layer_norm_eps",))
def _cohere2(keys: Keys, index: int) -> Decoder:
    """Command-R7B and Command A: windows but for every fourth layer."""
    is_full = (index + 1) % keys.count("sliding_window_pattern", 4) == 0
    window = layer_window(keys, index, slides=not is_full)
    return Decoder(biased_attention(keys, window=window), feed_forward(keys), norms=1)
