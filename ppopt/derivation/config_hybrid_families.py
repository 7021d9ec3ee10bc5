"""Families whose layers are of several kinds: with a state, with a window, or without attention.

Keys and defaults are those of `configuration_*.py`, and layers those of `modeling_*.py`, of the
model type in github.com/huggingface/transformers, or of the model on huggingface.co.
"""

from __future__ import annotations

from dataclasses import replace

from ppopt.derivation.architecture import (
    Decoder,
    Experts,
    FeedForward,
    Network,
)
from ppopt.derivation.attention import (
    Attention,
    GroupedQueryAttention,
    LinearAttention,
    StateSpace,
)
from ppopt.derivation.config_family import (
    biased_attention,
    feed_forward,
    grouped_attention,
    latent_attention,
    layer_window,
    read_experts,
    register,
    shared_experts,
)
from ppopt.derivation.config_keys import Keys
from ppopt.errors import InputError
from ppopt.formats.fields import abbreviated

STATE, ATTENTION, EXPERTS, DENSE = "M", "*", "E", "-"
"""Kinds of layers as letters of a pattern."""
KINDS = {
    **dict.fromkeys(("mamba", "linear_attention", STATE), STATE),
    **dict.fromkeys(("attention", "full_attention", ATTENTION), ATTENTION),
    **dict.fromkeys(("moe", EXPERTS), EXPERTS),
    **dict.fromkeys(("mlp", DENSE), DENSE),
}
"""Kinds as letters, and as configurations write them in lists."""


def _kind(key: str, name: object) -> str:
    if name not in KINDS:
        raise InputError(f"{key}: {abbreviated(name)} is none of {', '.join(KINDS)}")
    return KINDS[str(name)]


def _nemotron_h(keys: Keys, index: int) -> Decoder:
    """A layer is a Mamba-2 layer, attention, a feed-forward network, or experts."""
    pattern = keys.value("hybrid_override_pattern")
    listed = list(pattern) if isinstance(pattern, str) else keys.value("layers_block_type")
    if not isinstance(listed, list) or index >= len(listed):
        raise InputError(
            f"hybrid_override_pattern: {abbreviated(pattern)} is not a letter for each layer"
        )
    return _nemotron_layer(keys, _kind("hybrid_override_pattern", listed[index]))


def _nemotron_layer(keys: Keys, kinds: str) -> Decoder:
    """One or two layers of Nemotron-H by their letters, as one."""
    attention: Attention | None = None
    network: Network | None = None
    for kind in kinds:
        if kind == STATE:
            attention = StateSpace(
                heads=keys.count("mamba_num_heads"),
                groups=keys.count("n_groups", 8),
                query=keys.count("ssm_state_size"),
                value=keys.count("mamba_head_dim"),
                kernel=keys.count("conv_kernel", 4),
                chunk=keys.count("chunk_size", 128),
                convolution_bias=keys.switch("use_conv_bias", True),
                bias=keys.switch("use_bias"),
            )
        elif kind == ATTENTION:
            attention = grouped_attention(keys, rotary=False)
        elif kind == EXPERTS:
            network = _nemotron_experts(keys)
        else:
            bias = keys.switch("mlp_bias")
            network = FeedForward(keys.count("intermediate_size"), bias, gated=False)
    return Decoder(attention, network, norms=len(kinds))


def _nemotron_experts(keys: Keys) -> Experts:
    return read_experts(
        keys,
        keys.count("moe_intermediate_size"),
        "n_routed_experts",
        shared=keys.count("moe_shared_expert_intermediate_size"),
        routing_bias=True,
        gated=False,
        latent=keys.count("moe_latent_size", 0, minimum=0),
    )


def _nemotron_prediction(keys: Keys) -> Decoder:
    """Attention and experts, unless the configuration names the kinds."""
    pattern = keys.value("mtp_hybrid_override_pattern") or ATTENTION + EXPERTS
    listed = list(pattern) if isinstance(pattern, str) else []
    return _nemotron_layer(keys, "".join(_kind("mtp_hybrid_override_pattern", k) for k in listed))


register("NemotronHForCausalLM", types=("nemotron_h",), prediction=_nemotron_prediction)(
    _nemotron_h
)


@register("GraniteMoeHybridForCausalLM", types=("granitemoehybrid",), tied=True)
def _granite_hybrid(keys: Keys, index: int) -> Decoder:
    """Granite 4: Mamba-2 layers or attention, then experts and a shared one, or it alone."""
    kind = _kind("layer_types", keys.layer_kind(index, STATE))
    attention: Attention
    if kind == STATE:
        heads = keys.count("mamba_n_heads")
        width = keys.value("mamba_d_head")
        if width in (None, "auto"):
            inner = keys.count("mamba_expand", 2) * keys.count("hidden_size")
            width = inner // heads
        else:
            width = keys.count("mamba_d_head")
        attention = StateSpace(
            heads=heads,
            groups=keys.count("mamba_n_groups", 1),
            query=keys.count("mamba_d_state"),
            value=width,
            kernel=keys.count("mamba_d_conv", 4),
            chunk=keys.count("mamba_chunk_size", 256),
            convolution_bias=keys.switch("mamba_conv_bias", True),
        )
    else:
        rotary = keys.value("position_embedding_type") == "rope"
        attention = biased_attention(keys, rotary=rotary)
    shared = keys.count("shared_intermediate_size")
    if not keys.count("num_local_experts", 0, minimum=0):
        return Decoder(attention, FeedForward(shared))
    width = keys.count("intermediate_size")
    return Decoder(attention, read_experts(keys, width, "num_local_experts", shared=shared))


@register(
    "KimiLinearForCausalLM",
    types=("kimi_linear",),
    aliases={
        "n_routed_experts": "num_experts",
        "n_shared_experts": "num_shared_experts",
        "num_experts_per_tok": "num_experts_per_token",
    },
)
def _kimi_linear(keys: Keys, index: int) -> Decoder:
    """Kimi delta attention (arXiv 2510.26692), and latent attention in some layers."""
    linear = keys.section("linear_attn_config")
    attention: Attention
    if index + 1 in (linear.numbers("kda_layers") or ()):
        heads, width = linear.count("num_heads"), linear.count("head_dim")
        kernel = linear.count("short_conv_kernel_size", 4)
        attention = LinearAttention(heads, heads, width, width, kernel=kernel, latent=width)
    else:
        attention = latent_attention(keys)
    return Decoder(attention, shared_experts(keys, index, routing_bias=True))


@register("MiMoV2FlashForCausalLM", types=("mimo_v2_flash",))
def _mimo(keys: Keys, index: int) -> Decoder:
    """Windows in most layers, with heads and sinks of their own; experts."""
    is_window = keys.listed("hybrid_layer_pattern", index)
    kind = keys.layer_kind(index, "sliding_attention" if is_window else "full_attention")
    prefix = "swa_" if kind == "sliding_attention" else ""
    sinks = "swa" if prefix else "full"
    attention = GroupedQueryAttention(
        heads=keys.count(f"{prefix}num_attention_heads"),
        groups=keys.count(f"{prefix}num_key_value_heads"),
        width=keys.count(f"{prefix}head_dim"),
        value_width=keys.count(f"{prefix}v_head_dim"),
        bias=keys.switch("attention_bias"),
        sinks=keys.switch(f"add_{sinks}_attention_sink_bias", bool(prefix)),
        window=layer_window(keys, index, slides=bool(is_window)),
    )
    if not keys.listed("moe_layer_freq", index):
        return Decoder(attention, feed_forward(keys))
    width = keys.count("moe_intermediate_size")
    return Decoder(attention, read_experts(keys, width, "n_routed_experts", routing_bias=True))


@register(
    "LongcatFlashForCausalLM",
    types=("longcat_flash",),
    prediction=lambda keys: Decoder(
        latent_attention(keys), FeedForward(keys.count("ffn_hidden_size"))
    ),
    aliases={
        "num_hidden_layers": "num_layers",
        "num_experts_per_tok": "moe_topk",
    },
)
def _longcat(keys: Keys, _: int) -> Decoder:
    """Two attentions and feed-forward networks; experts add to the output of the first network.

    Of the experts that a token selects, as many are computed as there are such experts.
    """
    attention, width = latent_attention(keys), keys.count("ffn_hidden_size")
    experts = read_experts(
        keys,
        keys.count("expert_ffn_hidden_size"),
        "n_routed_experts",
        shared=width,
        routing_bias=True,
    )
    identities = keys.count("zero_expert_num", 0, minimum=0)
    chosen = round(experts.chosen * experts.number / (experts.number + identities))
    if identities:
        keys.note(
            f"of {experts.chosen} experts of a token {chosen} are computed, the rest are identities"
        )
    experts = replace(experts, chosen=max(1, chosen), identities=identities)
    return Decoder(attention, FeedForward(width), before=Decoder(attention, experts))


@register("DeciLMForCausalLM", types=("deci", "nemotron-nas"))
def _decilm(keys: Keys, index: int) -> Decoder:
    """Nemotron Super and Ultra: layers without attention or without feed-forward."""
    block = keys.section("block_configs", index)
    heads, networks = block.section("attention"), block.section("ffn")
    for part in (heads, networks):
        if part.switch("replace_with_linear"):
            raise InputError("replace_with_linear: a matrix in place of a part is not derived")
    attention = network = None
    if not heads.switch("no_op"):
        grouped = grouped_attention(keys)
        attention = replace(grouped, groups=grouped.heads // heads.count("n_heads_in_group"))
    if not networks.switch("no_op"):
        network = FeedForward(_rounded_width(keys.count("hidden_size"), networks))
    parts = (attention, network)
    return Decoder(attention, network, norms=sum(part is not None for part in parts))


def _rounded_width(hidden: int, network: Keys) -> int:
    """Two thirds of `ffn_mult` x hidden, as a multiple of 256 (modeling_decilm.py)."""
    width = int(2 * network.number("ffn_mult") * hidden / 3)
    return -(-width // 256) * 256
