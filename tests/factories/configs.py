"""Dimensions of published models: what is read of their config.json on huggingface.co.

`PARAMETERS` are the totals of their safetensors files, as huggingface.co/api/models/NAME states
them under `safetensors`. That of DeepSeek-V3 is of the main model alone, FP8 scales and MTP module
left out: README_WEIGHTS.md of github.com/deepseek-ai/DeepSeek-V3 says 671B, and 11.5B unique ones
of the MTP module.
"""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]


def _config(architecture: str, hidden: int, layers: int, heads: int, **more: Any) -> Config:
    return {
        "architectures": [architecture],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "tie_word_embeddings": False,
        **more,
    }


def _llama(hidden: int, layers: int, heads: int, width: int) -> Config:
    return _config(
        *("LlamaForCausalLM", hidden, layers, heads),
        intermediate_size=width,
        num_key_value_heads=8,
        vocab_size=128256,
        attention_bias=False,
        mlp_bias=False,
        max_position_embeddings=131072,
    )


def _mixtral(hidden: int, layers: int, heads: int, width: int, words: int) -> Config:
    return _config(
        *("MixtralForCausalLM", hidden, layers, heads),
        intermediate_size=width,
        num_key_value_heads=8,
        num_local_experts=8,
        num_experts_per_tok=2,
        sliding_window=None,
        vocab_size=words,
    )


def _qwen3_moe(hidden: int, layers: int, heads: int, width: int) -> Config:
    return _config(
        *("Qwen3MoeForCausalLM", hidden, layers, heads),
        attention_bias=False,
        decoder_sparse_step=1,
        head_dim=128,
        intermediate_size=8 * width,
        mlp_only_layers=[],
        moe_intermediate_size=width,
        num_experts=128,
        num_experts_per_tok=8,
        num_key_value_heads=4,
        sliding_window=None,
        use_sliding_window=False,
        vocab_size=151936,
    )


def _deepseek(architecture: str, hidden: int, layers: int, heads: int, **more: Any) -> Config:
    return _config(
        *(architecture, hidden, layers, heads),
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        moe_layer_freq=1,
        num_key_value_heads=heads,
        **more,
    )


CONFIGS: dict[str, Config] = {
    "meta-llama/Llama-3.1-8B": _llama(4096, 32, 32, 14336),
    "meta-llama/Llama-3.1-70B": _llama(8192, 80, 64, 28672),
    "meta-llama/Llama-3.1-405B": _llama(16384, 126, 128, 53248),
    "mistralai/Mixtral-8x7B-v0.1": _mixtral(4096, 32, 32, 14336, 32000),
    "Qwen/Qwen2.5-7B": _config(
        *("Qwen2ForCausalLM", 3584, 28, 28),
        intermediate_size=18944,
        num_key_value_heads=4,
        sliding_window=131072,
        use_sliding_window=False,
        vocab_size=152064,
    ),
    "Qwen/Qwen2.5-0.5B": _config(
        *("Qwen2ForCausalLM", 896, 24, 14),
        intermediate_size=4864,
        num_key_value_heads=2,
        sliding_window=32768,
        use_sliding_window=False,
        vocab_size=151936,
    )
    | {"tie_word_embeddings": True},
    "Qwen/Qwen3-8B": _config(
        *("Qwen3ForCausalLM", 4096, 36, 32),
        attention_bias=False,
        head_dim=128,
        intermediate_size=12288,
        num_key_value_heads=8,
        sliding_window=None,
        use_sliding_window=False,
        vocab_size=151936,
    ),
    "Qwen/Qwen3-30B-A3B": _qwen3_moe(2048, 48, 32, 768),
    "Qwen/Qwen3-235B-A22B": _qwen3_moe(4096, 94, 64, 1536),
    "deepseek-ai/DeepSeek-V2-Lite": _deepseek(
        *("DeepseekV2ForCausalLM", 2048, 27, 16),
        q_lora_rank=None,
        first_k_dense_replace=1,
        intermediate_size=10944,
        moe_intermediate_size=1408,
        n_routed_experts=64,
        n_shared_experts=2,
        num_experts_per_tok=6,
        vocab_size=102400,
    ),
    "deepseek-ai/DeepSeek-V2": _deepseek(
        *("DeepseekV2ForCausalLM", 5120, 60, 128),
        q_lora_rank=1536,
        first_k_dense_replace=1,
        intermediate_size=12288,
        moe_intermediate_size=1536,
        n_routed_experts=160,
        n_shared_experts=2,
        num_experts_per_tok=6,
        vocab_size=102400,
    ),
    "deepseek-ai/DeepSeek-V3": _deepseek(
        *("DeepseekV3ForCausalLM", 7168, 61, 128),
        q_lora_rank=1536,
        first_k_dense_replace=3,
        intermediate_size=18432,
        moe_intermediate_size=2048,
        n_routed_experts=256,
        n_shared_experts=1,
        num_experts_per_tok=8,
        num_nextn_predict_layers=1,
        vocab_size=129280,
    ),
}

PARAMETERS = {
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Llama-3.1-405B": 405_853_388_800,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-235B-A22B": 235_093_634_560,
    "deepseek-ai/DeepSeek-V2-Lite": 15_706_484_224,
    "deepseek-ai/DeepSeek-V2": 235_741_434_880,
    "deepseek-ai/DeepSeek-V3": 671_026_419_200,
}
LLAMA_8B = CONFIGS["meta-llama/Llama-3.1-8B"]
LLAMA_70B = CONFIGS["meta-llama/Llama-3.1-70B"]
DEEPSEEK_V3 = CONFIGS["deepseek-ai/DeepSeek-V3"]
SMALL: Config = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 8,
    "num_hidden_layers": 6,
    "vocab_size": 8192,
}
"""Made up: six layers that eight GPUs train in many ways."""
