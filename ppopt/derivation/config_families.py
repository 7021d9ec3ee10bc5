"""The supported model families, each a function from the keys of a config.json to a decoder layer.

Keys and defaults are those of `configuration_*.py`, and layers those of `modeling_*.py`, of the
model type in github.com/huggingface/transformers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ppopt.derivation.architecture import Decoder, Experts, FeedForward
from ppopt.derivation.attention import Attention, Indexer, LinearAttention
from ppopt.derivation.config_encoders import llama4_vision, qwen3_vision, siglip
from ppopt.derivation.config_family import (
    FAMILIES,
    GELU,
    biased_attention,
    expect_full_attention,
    feed_forward,
    grouped_attention,
    late_window,
    latent_attention,
    layer_window,
    read_experts,
    register,
    shared_experts,
)
from ppopt.derivation.config_keys import Keys
from ppopt.errors import InputError
from ppopt.formats.fields import abbreviated

__all__ = ["FAMILIES", "mistral_window"]


def mistral_window(keys: Keys, index: int) -> int | None:
    """A window over every layer, or over the last ones, unless it is switched off."""
    return late_window(keys, index, 0, switched=True)


def _qwen_window(keys: Keys, index: int) -> int | None:
    """A window over the last layers if it is switched on."""
    return late_window(keys, index, 28, switched=False)


@register("LlamaForCausalLM", "MistralForCausalLM", types=("llama", "mistral"))
def _llama(keys: Keys, index: int) -> Decoder:
    bias = keys.switch("attention_bias")
    return Decoder(
        grouped_attention(
            keys,
            bias=bias,
            output_bias=keys.switch("attention_out_bias", bias),
            window=mistral_window(keys, index),
        ),
        FeedForward(keys.count("intermediate_size"), keys.switch("mlp_bias")),
    )


@register("MixtralForCausalLM", types=("mixtral",))
def _mixtral(keys: Keys, index: int) -> Decoder:
    return Decoder(
        grouped_attention(keys, window=mistral_window(keys, index)), _local_experts(keys)
    )


def _local_experts(keys: Keys, **fields: Any) -> Experts:
    return read_experts(keys, keys.count("intermediate_size"), "num_local_experts", **fields)


QWEN_ALIASES = {
    "num_experts": "num_local_experts",
    "num_nextn_predict_layers": "mtp_num_hidden_layers",
}
QWEN_IGNORED = (
    *("intermediate_size", "moe_intermediate_size", "num_experts_per_tok"),
    *("mtp_use_dedicated_embeddings", "output_gate_type"),
)
"""Dimensions of experts in a model without them, and of dense layers in one that has none."""


@register(
    *("Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "MiMoForCausalLM"),
    types=(
        "mimo",
        "qwen2",
        "qwen2_moe",
        "qwen2_vl",
        "qwen2_vl_text",
        "qwen2_5_vl",
        "qwen2_5_vl_text",
    ),
    aliases=QWEN_ALIASES,
    ignored=(*QWEN_IGNORED, "shared_expert_intermediate_size"),
)
def _qwen2(keys: Keys, index: int) -> Decoder:
    """Biases of queries, keys and values; feed-forward or experts."""
    bias = keys.switch("qkv_bias", True)
    attention = grouped_attention(keys, bias=bias, window=_qwen_window(keys, index))
    return Decoder(attention, _qwen_feed_forward(keys, index, shared=True))


def _qwen3(keys: Keys, index: int) -> Decoder:
    """Norms of heads; feed-forward or experts."""
    attention = biased_attention(keys, normed=True, window=_qwen_window(keys, index))
    return Decoder(attention, _qwen_feed_forward(keys, index, shared=False))


register(
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    types=("qwen3", "qwen3_moe"),
    aliases=QWEN_ALIASES,
    ignored=QWEN_IGNORED,
)(_qwen3)


def _qwen_feed_forward(keys: Keys, index: int, *, shared: bool) -> FeedForward | Experts:
    sparse = (index + 1) % keys.count("decoder_sparse_step", 1) == 0
    dense = not keys.count("num_experts", 0, minimum=0) or not sparse
    if dense or index in (keys.numbers("mlp_only_layers") or ()):
        return feed_forward(keys)
    return read_experts(
        keys,
        keys.count("moe_intermediate_size"),
        "num_experts",
        shared=keys.count("shared_expert_intermediate_size") if shared else 0,
        shared_gate=shared,
    )


register(
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    types=("qwen3_vl", "qwen3_vl_moe", "qwen3_vl_text", "qwen3_vl_moe_text"),
    aliases=QWEN_ALIASES,
    ignored=QWEN_IGNORED,
    encoder=qwen3_vision,
)(_qwen3)


@register(
    "Qwen3NextForCausalLM",
    *("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"),
    *("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"),
    types=("qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text"),
    aliases=QWEN_ALIASES,
    defaults={"head_dim": 256},
    ignored=QWEN_IGNORED,
    encoder=qwen3_vision,
)
def _qwen3_next(keys: Keys, index: int) -> Decoder:
    """Gated delta rule, and every fourth layer gated attention; experts and a shared one."""
    full = (index + 1) % keys.count("full_attention_interval", 4) == 0
    kind = keys.layer_kind(index, "full_attention" if full else "linear_attention")
    attention: Attention
    if kind == "linear_attention":
        heads, groups = keys.count("linear_num_value_heads"), keys.count("linear_num_key_heads")
        if heads % groups:
            raise InputError(f"linear_num_key_heads: {heads} heads of values cannot share {groups}")
        attention = LinearAttention(
            heads=heads,
            groups=groups,
            query=keys.count("linear_key_head_dim"),
            value=keys.count("linear_value_head_dim"),
            kernel=keys.count("linear_conv_kernel_dim"),
        )
    else:
        expect_full_attention(kind)
        gated = keys.switch("attn_output_gate", True)
        attention = biased_attention(keys, normed=True, gated=gated)
    return Decoder(attention, _qwen_feed_forward(keys, index, shared=True))


DENSE_IGNORED = ("first_k_dense_replace", "moe_layer_freq", "intermediate_size")
LATENT_IGNORED = (*DENSE_IGNORED, "num_key_value_heads", "head_dim", "qk_head_dim", "mlp_bias")


@register("DeepseekV2ForCausalLM", types=("deepseek_v2",), ignored=LATENT_IGNORED)
def _deepseek2(keys: Keys, index: int) -> Decoder:
    return Decoder(latent_attention(keys), shared_experts(keys, index, routing_bias=False))


@register("DeepseekV3ForCausalLM", types=("deepseek_v3", "kimi_k2"), ignored=LATENT_IGNORED)
def _deepseek3(keys: Keys, index: int) -> Decoder:
    return Decoder(latent_attention(keys), shared_experts(keys, index, routing_bias=True))


@register(
    "DeepseekV32ForCausalLM",
    "GlmMoeDsaForCausalLM",
    types=("deepseek_v32", "glm_moe_dsa"),
    ignored=(*LATENT_IGNORED, "layer_types", "index_share_for_mtp_iteration"),
)
def _deepseek32(keys: Keys, index: int) -> Decoder:
    """DeepSeek V3 with an indexer that chooses keys, in some layers of GLM-5.2 that of another."""
    latent = latent_attention(keys)
    if not latent.query_latent:
        raise InputError("q_lora_rank is missing; the indexer reads the latent of queries")
    indexer = Indexer(
        heads=keys.count("index_n_heads"),
        width=keys.count("index_head_dim"),
        keys=keys.count("index_topk"),
        shared=_shares_indexer(keys, index),
    )
    experts = shared_experts(keys, index, routing_bias=True)
    return Decoder(replace(latent, indexer=indexer), experts)


def _shares_indexer(keys: Keys, index: int) -> bool:
    frequency = keys.count("index_topk_freq", 1)
    offset = keys.count("index_skip_topk_offset", 2, minimum=0)
    kind = keys.listed("indexer_types", index)
    if kind not in (None, "full", "shared"):
        raise InputError(f"indexer_types: {abbreviated(kind)} is neither full nor shared")
    return kind == "shared" if kind else max(index - offset + 1, 0) % frequency > 0


@register(
    "Glm4MoeForCausalLM",
    types=("glm4_moe",),
    aliases={"num_nextn_predict_layers": "num_mtp_layers"},
    ignored=DENSE_IGNORED,
)
def _glm4(keys: Keys, index: int) -> Decoder:
    """GLM-4.5 to 4.7."""
    attention = grouped_attention(
        keys, bias=keys.switch("attention_bias"), normed=keys.switch("use_qk_norm")
    )
    return Decoder(attention, shared_experts(keys, index, routing_bias=True))


@register("Dots1ForCausalLM", types=("dots1",), ignored=DENSE_IGNORED)
def _dots1(keys: Keys, index: int) -> Decoder:
    window = layer_window(keys, index, slides=False)
    attention = biased_attention(keys, normed=True, window=window)
    return Decoder(attention, shared_experts(keys, index, routing_bias=True))


BAILING = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}


@register("BailingMoeForCausalLM", types=("bailing_moe",), aliases=BAILING, ignored=DENSE_IGNORED)
@register(
    *("BailingMoeV2ForCausalLM", "BailingMoeV2_5ForCausalLM"),
    types=("bailing_moe_v2",),
    aliases=BAILING,
    ignored=DENSE_IGNORED,
)
def _bailing(keys: Keys, index: int) -> Decoder:
    """Ling and Ring (modeling_bailing_moe_v2.py of huggingface.co/inclusionAI)."""
    attention = grouped_attention(
        keys,
        bias=keys.switch("use_qkv_bias"),
        output_bias=keys.switch("use_bias"),
        normed=keys.switch("use_qk_norm"),
    )
    routing_bias = keys.switch("moe_router_enable_expert_bias")
    return Decoder(attention, shared_experts(keys, index, routing_bias=routing_bias))


@register(
    "Ernie4_5_MoeForCausalLM",
    types=("ernie4_5_moe",),
    tied=True,
    aliases={"num_experts_per_tok": "moe_k"},
)
def _ernie(keys: Keys, index: int) -> Decoder:
    """Experts in every `moe_layer_interval`-th layer of a range."""
    bias = keys.switch("use_bias")
    attention = grouped_attention(keys, bias=bias, output_bias=bias)
    first = keys.count("moe_layer_start_index", 1, minimum=0)
    last = keys.count("moe_layer_end_index", -1, minimum=-1) % keys.count("num_hidden_layers")
    if not first <= index <= last or (index + 1) % keys.count("moe_layer_interval", 1):
        return Decoder(attention, feed_forward(keys, bias=bias))
    width = keys.count("moe_intermediate_size")
    shared = width * keys.count("moe_num_shared_experts", 0, minimum=0)
    number = "moe_num_experts"
    return Decoder(attention, read_experts(keys, width, number, shared=shared, routing_bias=True))


@register(
    "HunYuanMoEV1ForCausalLM",
    types=("hunyuan_v1_moe",),
    aliases={"num_experts_per_tok": "moe_topk", "head_dim": "attention_head_dim"},
)
def _hunyuan(keys: Keys, index: int) -> Decoder:
    """Hunyuan-A13B."""
    in_layer, normed = keys.of_layer(index), keys.switch("use_qk_norm", True)
    attention = biased_attention(in_layer, normed=normed)
    dense = keys.count("intermediate_size")
    width = in_layer.count("moe_intermediate_size", dense)
    shared = dense * in_layer.count("num_shared_expert", 1, minimum=0)
    return Decoder(attention, read_experts(in_layer, width, "num_experts", shared=shared))


@register("OlmoeForCausalLM", types=("olmoe",))
def _olmoe(keys: Keys, _: int) -> Decoder:
    """Norms over all heads; experts in every layer."""
    attention = biased_attention(keys, normed=True, normed_together=True)
    return Decoder(attention, read_experts(keys, keys.count("intermediate_size"), "num_experts"))


@register("Exaone4ForCausalLM", types=("exaone4",))
def _exaone4(keys: Keys, index: int) -> Decoder:
    """Norms behind attention and feed-forward, and of heads; windows in all but some layers."""
    pattern = keys.value("sliding_window_pattern")
    if isinstance(pattern, str) and pattern:
        is_full = pattern[index % len(pattern)] == "G"
    else:
        is_full = not pattern or (index + 1) % keys.count("sliding_window_pattern") == 0
    window = layer_window(keys, index, slides=not is_full)
    attention = grouped_attention(keys, normed=True, window=window)
    return Decoder(attention, feed_forward(keys))


@register(
    *("Step3VLForConditionalGeneration", "Step3TextForCausalLM"),
    types=("step3_vl", "step3_text"),
    aliases={"num_key_value_heads": "num_attention_groups", "num_experts_per_tok": "moe_top_k"},
)
def _step3(keys: Keys, index: int) -> Decoder:
    """Queries from a latent (arXiv 2412.19255); experts in the layers of `moe_layers_enum`."""
    attention = grouped_attention(keys, query_latent=keys.count("share_q_dim"))
    listed = str(keys.value("moe_layers_enum") or "").split(",")
    if str(index) not in map(str.strip, listed):
        return Decoder(attention, feed_forward(keys))
    width, shared = keys.count("moe_intermediate_size"), keys.count("share_expert_dim", 0)
    return Decoder(attention, read_experts(keys, width, "moe_num_experts", shared=shared))


@register(
    "GptOssForCausalLM",
    types=("gpt_oss",),
    defaults={"head_dim": 64, "sliding_window": 128},
    ignored=("experts_per_token",),
)
def _gpt_oss(keys: Keys, index: int) -> Decoder:
    """Windows in every second layer, biases, and a score per head that attends to nothing."""
    window = layer_window(keys, index, slides=index % 2 == 0)
    attention = biased_attention(keys, True, window=window, sinks=True)
    return Decoder(attention, _local_experts(keys, routing_bias=True, bias=True))


@register(
    "Llama4ForCausalLM",
    "Llama4ForConditionalGeneration",
    types=("llama4", "llama4_text"),
    encoder=llama4_vision,
    defaults={"attention_chunk_size": 8192, "head_dim": 128},
    ignored=(
        *("intermediate_size_mlp", "use_qk_norm", "attn_temperature_tuning", "floor_scale"),
        *("attn_scale", "for_llm_compressor"),
    ),
)
def _llama4(keys: Keys, index: int) -> Decoder:
    """Attention in chunks but for every fourth layer; experts and a shared one, or dense layers."""
    rotary = keys.numbers("no_rope_layers") or ()
    interval = keys.count("no_rope_layer_interval", 4)
    chunked = rotary[index] if index < len(rotary) else (index + 1) % interval
    kind = keys.layer_kind(index, "chunked_attention" if chunked else "full_attention")
    attention = biased_attention(keys)
    chunk = keys.count("attention_chunk_size", 0, minimum=0)
    if kind != "chunked_attention":
        expect_full_attention(kind)
    elif chunk:
        attention = replace(attention, window=chunk, chunked=True)
    return Decoder(attention, _llama4_feed_forward(keys, index))


def _llama4_feed_forward(keys: Keys, index: int) -> FeedForward | Experts:
    listed = keys.numbers("moe_layers")
    step = keys.count("interleave_moe_layer_step", 1)
    sparse = (index + 1) % step == 0 if listed is None else index in listed
    if not sparse:
        return FeedForward(keys.count("intermediate_size_mlp"))
    width = keys.count("intermediate_size")
    return _local_experts(keys, shared=width)


GEMMA_IGNORED = ("use_bidirectional_attention", "cache_implementation")


@register(
    "GemmaForCausalLM",
    types=("gemma",),
    tied=True,
    defaults={"head_dim": 256},
    ignored=GEMMA_IGNORED,
)
def _gemma(keys: Keys, _: int) -> Decoder:
    return _gelu(keys, None, normed=False, norms=2)


@register(
    "Gemma2ForCausalLM",
    types=("gemma2",),
    tied=True,
    defaults={"head_dim": 256, "sliding_window": 4096},
    ignored=GEMMA_IGNORED,
)
def _gemma2(keys: Keys, index: int) -> Decoder:
    """Windows in every second layer; norms behind attention and feed-forward, too."""
    window = layer_window(keys, index, slides=index % 2 == 0)
    return _gelu(keys, window, normed=False, norms=4)


@register(
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    types=("gemma3", "gemma3_text"),
    tied=True,
    encoder=siglip,
    defaults={
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
        "vocab_size": 262208,
    },
    ignored=GEMMA_IGNORED,
)
def _gemma3(keys: Keys, index: int) -> Decoder:
    """Windows but for every sixth layer; norms of heads."""
    pattern = keys.count("sliding_window_pattern", keys.count("_sliding_window_pattern", 6))
    window = layer_window(keys, index, slides=(index + 1) % pattern > 0)
    return _gelu(keys, window, normed=True, norms=4)


def _gelu(keys: Keys, window: int | None, *, normed: bool, norms: int) -> Decoder:
    """A layer whose feed-forward network has a gate with GELU."""
    keys.ignore("hidden_act", *GELU)
    keys.ignore("hidden_activation", *GELU)
    attention = biased_attention(keys, normed=normed, window=window)
    return Decoder(attention, feed_forward(keys), norms=norms)


MINIMAX_PARTS = (
    *("full_attn", "linear_attn", "mlp"),
    *("layernorm_full_attention", "layernorm_linear_attention", "layernorm_mlp"),
)


@register(
    "MiniMaxForCausalLM",
    "MiniMaxM1ForCausalLM",
    "MiniMaxText01ForCausalLM",
    types=("minimax", "minimax_m1", "minimax_text_01"),
    ignored=(
        *("block_size", "postnorm", "shared_moe_mode"),
        *(f"{part}_{factor}_factor" for part in MINIMAX_PARTS for factor in ("alpha", "beta")),
    ),
)
def _minimax(keys: Keys, index: int) -> Decoder:
    """Lightning attention (arXiv 2501.08313), and some layers of softmax attention; experts."""
    softmax = keys.listed("attn_type_list", index)
    softmax = index % 2 == 0 if softmax is None else softmax
    kind = keys.layer_kind(index, "full_attention" if softmax else "linear_attention")
    shared = keys.count("shared_intermediate_size", 0, minimum=0)
    attention: Attention = grouped_attention(keys)
    if kind == "linear_attention":
        heads, width = attention.heads, attention.query
        attention = LinearAttention(heads, heads, width, width, delta=False)
    else:
        expect_full_attention(kind)
    return Decoder(attention, _local_experts(keys, shared=shared))


@register("MiniMaxM2ForCausalLM", types=("minimax_m2",), defaults={"head_dim": 128})
def _minimax2(keys: Keys, _: int) -> Decoder:
    """Norms over all heads; experts with a routing bias."""
    if keys.switch("use_mtp"):
        keys.count("mtp_transformer_layers", 1)
        modules = keys.count("num_mtp_modules", 0, minimum=0)
        keys.note(f"num_mtp_modules: {modules} is left out: these modules are not published")
    normed = keys.switch("use_qk_norm", True)
    attention = grouped_attention(keys, normed=normed, normed_together=True)
    routing_bias = keys.switch("use_routing_bias", True)
    shared = keys.count("shared_intermediate_size", 0, minimum=0)
    return Decoder(attention, _local_experts(keys, routing_bias=routing_bias, shared=shared))
