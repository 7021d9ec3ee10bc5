"""Architectures of measured runs: from the dimensions of their rows, or by the model's name."""

from __future__ import annotations

import re
from dataclasses import replace

from benchmarks.derived_measured.runs import BIGSCIENCE, MEGATRON_CI, NotPredictedError, Run
from benchmarks.derived_models import DEEPSEEK_V3, LLAMA_8B, LLAMA_70B, llama
from ppopt.derivation import architecture as arch
from ppopt.derivation.architecture import (
    Architecture,
    Decoder,
    Experts,
    FeedForward,
)
from ppopt.derivation.attention import GroupedQueryAttention, LatentAttention
from ppopt.derivation.config_json import architecture_of as architecture_from_keys

GPT2_VOCABULARY = 50304
"""50257 byte pairs, padded to a multiple of 128 as Megatron-LM does."""


def _layers(name: str, hidden: int, vocabulary: int, decoder: Decoder, count: int) -> Architecture:
    return Architecture(name, hidden, vocabulary, (arch.Run("block", decoder, count),))


def _experts(
    attention: GroupedQueryAttention, width: int, num_experts: int, chosen: int
) -> Decoder:
    return Decoder(attention, Experts(width, num_experts, chosen))


LLAMA_405B = _layers("Llama 3.1 405B", 16384, 128256, llama(16384, 128, 8, 53248), 126)
"""arXiv 2407.21783, Table 3."""
QWEN3_06B = _layers(
    *("Qwen3 0.6B", 1024, 151936),
    Decoder(GroupedQueryAttention(16, 8, 128, normed=True), FeedForward(3072)),
    28,
)
QWEN3_8B = _layers(
    *("Qwen3 8B", 4096, 151936),
    Decoder(GroupedQueryAttention(32, 8, 128, normed=True), FeedForward(12288)),
    36,
)
QWEN3_30B = _layers(
    *("Qwen3 30B-A3B", 2048, 151936),
    _experts(GroupedQueryAttention(32, 4, 128, normed=True), 768, 128, 8),
    48,
)
QWEN3_235B = _layers(
    *("Qwen3 235B-A22B", 4096, 151936),
    _experts(GroupedQueryAttention(64, 4, 128, normed=True), 1536, 128, 8),
    94,
)
"""arXiv 2505.09388, Tables 1 and 2, and the models' config.json."""
MIXTRAL_8X7B = _layers(
    "Mixtral 8x7B", 4096, 32000, _experts(GroupedQueryAttention(32, 8, 128), 14336, 8, 2), 32
)
"""arXiv 2401.04088, Table 1."""
MIXTRAL_8X22B = _layers(
    "Mixtral 8x22B", 6144, 32768, _experts(GroupedQueryAttention(48, 8, 128), 16384, 8, 2), 56
)
"""config.json of mistralai/Mixtral-8x22B-v0.1."""
_KIMI = LatentAttention(64, query_latent=1536, latent=512, plain=128, position=64, value=128)
KIMI_K2 = Architecture(
    "Kimi K2",
    7168,
    163840,
    (
        arch.Run("dense block", Decoder(_KIMI, FeedForward(18432)), 1),
        arch.Run("expert block", Decoder(_KIMI, Experts(2048, 384, 8, shared=2048)), 60),
    ),
)
"""arXiv 2507.20534, Table 2."""
_MOONLIGHT = LatentAttention(16, query_latent=0, latent=512, plain=128, position=64, value=128)
MOONLIGHT = Architecture(
    "Moonlight 16B-A3B",
    2048,
    163840,
    (
        arch.Run("dense block", Decoder(_MOONLIGHT, FeedForward(11264)), 1),
        arch.Run("expert block", Decoder(_MOONLIGHT, Experts(1408, 64, 6, shared=2816)), 26),
    ),
)
"""config.json of moonshotai/Moonlight-16B-A3B."""
LLAMA_7B = _layers("Llama 7B", 4096, 32000, llama(4096, 32, 32, 11008), 32)
"""arXiv 2302.13971, Table 2."""
INTERNLM2_7B = _layers("InternLM2 7B", 4096, 92544, llama(4096, 32, 8, 14336), 32)
"""configs/7B_internlm2.py of InternLM/InternEvo."""

_WINDOW, _WHOLE = (
    arch.Run(
        name,
        Decoder(
            GroupedQueryAttention(64, 8, 64, bias=True, output_bias=True, window=window),
            Experts(2880, 128, 4, bias=True),
        ),
        1,
    )
    for name, window in (("window block", 128), ("block", None))
)
GPT_OSS_120B = Architecture("gpt-oss 120B", 2880, 201088, (_WINDOW, _WHOLE) * 18)
"""config.json of openai/gpt-oss-120b; arXiv 2508.10925."""


def _nemotron(hidden: int, pattern: str, heads: int, width: int, **experts: int) -> Architecture:
    """Nemotron 3: a letter of the pattern for each layer, M for Mamba-2, E for experts."""
    return architecture_from_keys(
        {
            "architectures": ["NemotronHForCausalLM"],
            "hidden_size": hidden,
            "num_hidden_layers": len(pattern),
            "hybrid_override_pattern": pattern,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "mamba_num_heads": heads,
            "mamba_head_dim": 64,
            "ssm_state_size": 128,
            "vocab_size": 131072,
            "moe_intermediate_size": width,
            "moe_shared_expert_intermediate_size": 2 * width,
            **experts,
        }
    )


NEMOTRON_NANO = _nemotron(
    *(2688, "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", 64, 1856),
    n_routed_experts=128,
    num_experts_per_tok=6,
)
"""config.json of nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B."""
NEMOTRON_SUPER = _nemotron(
    4096,
    "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
    *(128, 2688),
    n_routed_experts=512,
    num_experts_per_tok=22,
    moe_latent_size=1024,
    num_nextn_predict_layers=2,
)
"""config.json of nvidia/NVIDIA-Nemotron-3-Super-120B-A12B; two prediction modules (recipes)."""

KNOWN = {
    "nemotron3nano": NEMOTRON_NANO,
    "nemotron3nano30ba3b": NEMOTRON_NANO,
    "nemotron3super": NEMOTRON_SUPER,
    "nemotron3super120ba12b": NEMOTRON_SUPER,
    "llama38b": LLAMA_8B,
    "llama370b": LLAMA_70B,
    "llama3405b": LLAMA_405B,
    "qwen38b": QWEN3_8B,
    "qwen330ba3b": QWEN3_30B,
    "qwen3235ba22b": QWEN3_235B,
    "mixtral8x7b": MIXTRAL_8X7B,
    "mixtral8x22b": MIXTRAL_8X22B,
    "deepseekv3": DEEPSEEK_V3,
    "gptoss120b": GPT_OSS_120B,
    "kimik2": KIMI_K2,
    "moonlight16ba3b": MOONLIGHT,
}
"""By the name in lower case, letters and digits alone, without what stands in parentheses."""
UNSUPPORTED = {
    "nemotron": "no dimensions of this Nemotron",
    "deepseekv4": "no dimensions of DeepSeek V4",
    "glm5": "no dimensions of GLM 5",
    "gemma4": "no dimensions of Gemma 4",
    "qwen36": "no dimensions of Qwen3.6",
    "qwen3827b": "no dimensions of Qwen3.8",
}
"""Beginnings of names, and why they are not predicted."""
CI_FAMILIES = {
    "bert": "an encoder (BERT)",
    "mimo": "a vision model whose encoder is not in the row",
    "multimodal-llava": "a vision model whose encoder is not in the row",
    "hybrid": "the pattern of its layers is not in the row",
    "nemotron": "the pattern of its layers is not in the row",
}
CI_LATENT = ("_mla", "deepseek_proxy", "deepseekv3_proxy", "te_tp2_pp2_ep4_etp1")
"""Parts of the names of cases with --multi-latent-attention (their model_config.yaml)."""


def architecture_of(run: Run) -> Architecture:
    """The architecture of a run; raises NotPredictedError with the reason if there is none."""
    if run.source.startswith(MEGATRON_CI):
        return _of_megatron_ci(run)
    known = _known(run)
    if {"layers", "hidden"} <= run.row.keys() and (known is None or "heads" in run.row):
        return _by_dimensions(run)
    if known is None:
        raise NotPredictedError("no dimensions: neither layers nor a model known by name")
    return known


def _known(run: Run) -> Architecture | None:
    """The architecture that the name of a run says."""
    plain = run.model.partition(" (")[0].lower()
    name = re.sub(r"[^a-z0-9]", "", plain).replace("llama31", "llama3")
    architecture = KNOWN.get(name)
    for beginning, reason in UNSUPPORTED.items():
        if architecture is None and name.startswith(beginning):
            raise NotPredictedError(reason)
    if architecture is not None and "w/o MTP" in run.model:
        return replace(architecture, predictions=0)
    return architecture


def _by_dimensions(run: Run) -> Architecture:
    """An architecture from the dimensions of a row: Llama by its name, a GPT otherwise."""
    row, hidden = run.row, int(run.row["hidden"])
    heads = int(row.get("heads") or _heads(run))
    vocabulary = int(row.get("vocab") or GPT2_VOCABULARY)
    groups, width = int(row.get("kv_heads") or heads), int(row.get("ffn") or 4 * hidden)
    if "llama" in run.model.lower():
        return _layers(
            run.model, hidden, vocabulary, llama(hidden, heads, groups, width), int(row["layers"])
        )
    return gpt(
        run.model, hidden, heads, groups, width, vocabulary, int(row["layers"]), run.sequence
    )


def gpt(
    name: str,
    hidden: int,
    heads: int,
    groups: int,
    width: int,
    vocabulary: int,
    count: int,
    positions: int,
) -> Architecture:
    """A GPT (arXiv 2005.14165, section 2.1): no gate, biases, LayerNorm, learned positions."""
    decoder = Decoder(
        GroupedQueryAttention(
            heads, groups, hidden // heads, bias=True, output_bias=True, rotary=False
        ),
        FeedForward(width, bias=True, gated=False),
        layer_norm=True,
    )
    return replace(
        _layers(name, hidden, vocabulary, decoder, count), tied=True, positions=positions
    )


def _heads(run: Run) -> int:
    """Heads where a row has none; raises NotPredictedError if the source does not say either.

    BigScience: train/tr11-176B-ml/chronicles-prequel.md of bigscience-workshop/bigscience says 32
    and 96 of its first models, and "all NHEADS=64 (above too)" of the tables.
    """
    if run.source != BIGSCIENCE:
        raise NotPredictedError("no dimensions: number of heads not published")
    return {("fp16", "GPT 20B"): 32, ("bf16", "GPT 20B"): 32}.get((run.section, run.model)) or (
        96 if run.section in ("fp16", "bf16") else 64
    )


def _of_megatron_ci(run: Run) -> Architecture:
    """An architecture of Megatron-LM's functional tests, whose defaults are those of GPT-2."""
    family, _, case = run.model.partition("/")
    if family in CI_FAMILIES:
        raise NotPredictedError(CI_FAMILIES[family])
    if any(part in case for part in CI_LATENT):
        raise NotPredictedError("latent attention whose dimensions are not in the row")
    row, hidden = run.row, run.needed("hidden", "no width of the model")
    heads = run.needed("heads", "number of heads not published")
    groups, width = int(row.get("kv_heads") or heads), int(row.get("ffn") or 4 * hidden)
    tensor = run.count("tp")
    vocabulary = -(-int(row.get("vocab") or 50257) // (128 * tensor)) * 128 * tensor
    layers, gated = (
        run.needed("layers", "no number of layers"),
        "swiglu" in case or family == "mixtral",
    )
    tied = not ("untie" in case or case.startswith("gpt3_7b"))
    if "experts" in row:
        inner = width if gated else round(2 * width / 3)
        decoder = _experts(
            GroupedQueryAttention(heads, groups, hidden // heads),
            *(inner, int(row["experts"]), run.needed("topk", "no number of experts of a token")),
        )
    elif gated:
        decoder = llama(hidden, heads, groups, width)
    else:
        plain = gpt(case, hidden, heads, groups, width, vocabulary, layers, run.sequence)
        return replace(plain, tied=tied)
    return replace(_layers(case, hidden, vocabulary, decoder, layers), tied=tied)
