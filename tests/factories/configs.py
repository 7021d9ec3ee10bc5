"""Dimensions of published models: what is read of their config.json on huggingface.co.

`PARAMETERS` are the totals of their safetensors files, as huggingface.co/api/models/NAME states
them under `safetensors`. That of DeepSeek-V3 is of the main model alone, FP8 scales and MTP module
left out: README_WEIGHTS.md of github.com/deepseek-ai/DeepSeek-V3 says 671B, and 11.5B unique ones
of the MTP module. That of DeepSeek-V3.2 adds the tensors of its indexer in inference/model.py of
github.com/deepseek-ai/DeepSeek-V3.2-Exp: 61 layers of 1536 x 64 x 128, 7168 x 128, 7168 x 64, and
2 x 128 of a norm. That of GPT-2 leaves out the masks that its file has: 50257 + 1024 vectors of
768, 12 layers of 12 x 768^2 + 13 x 768, and a norm of 2 x 768 (its modeling_gpt2.py). That of OPT
6.7B is derived from modeling_opt.py alike. Those of Pythia and GPT-NeoX are in their model cards.
"""

from __future__ import annotations

from typing import Any

from tests.factories import hybrid_configs
from tests.factories.config_dimensions import Config, config_of, latent_attention


def _llama(hidden: int, layers: int, heads: int, width: int) -> Config:
    return config_of(
        *("LlamaForCausalLM", hidden, layers, heads),
        intermediate_size=width,
        num_key_value_heads=8,
        vocab_size=128256,
        attention_bias=False,
        mlp_bias=False,
        max_position_embeddings=131072,
    )


def _mixtral(hidden: int, layers: int, heads: int, width: int, vocabulary: int) -> Config:
    return config_of(
        *("MixtralForCausalLM", hidden, layers, heads),
        intermediate_size=width,
        num_key_value_heads=8,
        num_local_experts=8,
        num_experts_per_tok=2,
        sliding_window=None,
        vocab_size=vocabulary,
    )


def _t5(hidden: int, head: int, width: int, heads: int, layers: int) -> Config:
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "is_encoder_decoder": True,
        "d_model": hidden,
        "d_kv": head,
        "d_ff": width,
        "num_heads": heads,
        "num_layers": layers,
        "num_decoder_layers": layers,
        "feed_forward_proj": "relu",
        "relative_attention_num_buckets": 32,
        "vocab_size": 32128,
    }


def _qwen3_moe(hidden: int, layers: int, heads: int, width: int) -> Config:
    return config_of(
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


def _gemma2(hidden: int, layers: int, heads: int, groups: int, width: int, head: int) -> Config:
    return config_of(
        *("Gemma2ForCausalLM", hidden, layers, heads),
        intermediate_size=width,
        num_key_value_heads=groups,
        head_dim=head,
        sliding_window=4096,
        vocab_size=256000,
    ) | {"tie_word_embeddings": True}


def _gemma3(hidden: int, layers: int, width: int, **more: int) -> Config:
    """The configuration leaves out what is the default of its class."""
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "mm_tokens_per_image": 256,
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": hidden,
            "intermediate_size": width,
            "num_hidden_layers": layers,
            "sliding_window": 1024,
            **more,
        },
        "vision_config": {
            "hidden_size": 1152,
            "image_size": 896,
            "intermediate_size": 4304,
            "num_attention_heads": 16,
            "num_hidden_layers": 27,
            "patch_size": 14,
        },
    }


def _gpt_oss(layers: int, experts: int) -> Config:
    return config_of(
        *("GptOssForCausalLM", 2880, layers, 64),
        attention_bias=True,
        head_dim=64,
        intermediate_size=2880,
        layer_types=["sliding_attention", "full_attention"] * (layers // 2),
        num_key_value_heads=8,
        num_local_experts=experts,
        num_experts_per_tok=4,
        sliding_window=128,
        vocab_size=201088,
    )


def _llama4(experts: int, step: int, *, normed: bool) -> Config:
    text = {
        "attention_chunk_size": 8192,
        "head_dim": 128,
        "hidden_size": 5120,
        "interleave_moe_layer_step": step,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_attention_heads": 40,
        "num_experts_per_tok": 1,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "num_local_experts": experts,
        "use_qk_norm": normed,
        "vocab_size": 202048,
    }
    vision = {
        "hidden_size": 1408,
        "image_size": 336,
        "intermediate_size": 5632,
        "num_attention_heads": 16,
        "num_hidden_layers": 34,
        "patch_size": 14,
        "projector_input_dim": 4096,
        "projector_output_dim": 4096,
        "vision_output_dim": 4096,
    }
    return {
        "architectures": ["Llama4ForConditionalGeneration"],
        "text_config": text,
        "vision_config": vision,
    }


def _glm(hidden: int, layers: int, width: int, experts: int, expert: int, **more: Any) -> Config:
    return config_of(
        *("Glm4MoeForCausalLM", hidden, layers, 96),
        attention_bias=True,
        head_dim=128,
        intermediate_size=width,
        moe_intermediate_size=expert,
        n_routed_experts=experts,
        n_shared_experts=1,
        num_experts_per_tok=8,
        num_key_value_heads=8,
        num_nextn_predict_layers=1,
        vocab_size=151552,
        **more,
    )


def _qwen3_vl(kind: str, text: Config, out: int, *, tied: bool = False, **vision: Any) -> Config:
    """A model of Qwen3-VL, whose text has the keys of a model of Qwen3."""
    return {
        "architectures": [f"Qwen3VL{kind}ForConditionalGeneration"],
        "image_token_id": 151655,
        "text_config": {key: value for key, value in text.items() if key != "architectures"},
        "tie_word_embeddings": tied,
        "vision_config": {
            "deepstack_visual_indexes": [8, 16, 24],
            "depth": 27,
            "hidden_size": 1152,
            "in_channels": 3,
            "intermediate_size": 4304,
            "num_heads": 16,
            "num_position_embeddings": 2304,
            "out_hidden_size": out,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            **vision,
        },
    }


def _linear(layers: int, experts: int, chosen: int, vocabulary: int) -> Config:
    """Dimensions that Qwen3-Next and Qwen3.5 share."""
    return config_of(
        *("Qwen3NextForCausalLM", 2048, layers, 16),
        decoder_sparse_step=1,
        full_attention_interval=4,
        head_dim=256,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=128,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        linear_value_head_dim=128,
        mlp_only_layers=[],
        moe_intermediate_size=512,
        num_experts=experts,
        num_experts_per_tok=chosen,
        num_key_value_heads=2,
        shared_expert_intermediate_size=512,
        vocab_size=vocabulary,
    )


def _deepseek(architecture: str, hidden: int, layers: int, heads: int, **more: Any) -> Config:
    return config_of(
        *(architecture, hidden, layers, heads),
        kv_lora_rank=512,
        **latent_attention(),
        moe_layer_freq=1,
        num_key_value_heads=heads,
        **more,
    )


CONFIGS: dict[str, Config] = {
    **hybrid_configs.CONFIGS,
    "meta-llama/Llama-3.1-8B": _llama(4096, 32, 32, 14336),
    "meta-llama/Llama-3.1-70B": _llama(8192, 80, 64, 28672),
    "meta-llama/Llama-3.1-405B": _llama(16384, 126, 128, 53248),
    "mistralai/Mixtral-8x7B-v0.1": _mixtral(4096, 32, 32, 14336, 32000),
    "Qwen/Qwen2.5-7B": config_of(
        *("Qwen2ForCausalLM", 3584, 28, 28),
        intermediate_size=18944,
        num_key_value_heads=4,
        sliding_window=131072,
        use_sliding_window=False,
        vocab_size=152064,
    ),
    "Qwen/Qwen2.5-0.5B": config_of(
        *("Qwen2ForCausalLM", 896, 24, 14),
        intermediate_size=4864,
        num_key_value_heads=2,
        sliding_window=32768,
        use_sliding_window=False,
        vocab_size=151936,
    )
    | {"tie_word_embeddings": True},
    "Qwen/Qwen3-8B": config_of(
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
    "deepseek-ai/DeepSeek-V3.2": _deepseek(
        *("DeepseekV32ForCausalLM", 7168, 61, 128),
        index_head_dim=128,
        index_n_heads=64,
        index_topk=2048,
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
    "openai-community/gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "activation_function": "gelu_new",
        "n_ctx": 1024,
        "n_embd": 768,
        "n_head": 12,
        "n_layer": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
    },
    "google-t5/t5-base": _t5(768, 64, 3072, 12, 12),
    "google-t5/t5-large": _t5(1024, 64, 4096, 16, 24),
    "google-t5/t5-11b": _t5(1024, 128, 65536, 128, 24),
    "google/flan-t5-xxl": _t5(4096, 64, 10240, 64, 24)
    | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "google/mt5-base": _t5(768, 64, 2048, 12, 12)
    | {
        "architectures": ["MT5ForConditionalGeneration"],
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "vocab_size": 250112,
    },
    "EleutherAI/pythia-6.9b": config_of(
        *("GPTNeoXForCausalLM", 4096, 32, 32),
        hidden_act="gelu",
        intermediate_size=16384,
        layer_norm_eps=1e-5,
        use_parallel_residual=True,
        vocab_size=50432,
    ),
    "EleutherAI/gpt-neox-20b": config_of(
        *("GPTNeoXForCausalLM", 6144, 44, 64),
        hidden_act="gelu_fast",
        intermediate_size=24576,
        layer_norm_eps=1e-5,
        use_parallel_residual=True,
        vocab_size=50432,
    ),
    "facebook/opt-6.7b": {
        **config_of("OPTForCausalLM", 4096, 32, 32),
        "do_layer_norm_before": True,
        "ffn_dim": 16384,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "vocab_size": 50272,
        "word_embed_proj_dim": 4096,
    },
    "bigcode/starcoder2-15b": {
        **config_of("Starcoder2ForCausalLM", 6144, 40, 48),
        "hidden_act": "gelu_pytorch_tanh",
        "intermediate_size": 24576,
        "norm_epsilon": 1e-5,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
        "use_bias": True,
        "vocab_size": 49152,
    },
    "mistralai/Mistral-7B-v0.1": config_of(
        *("MistralForCausalLM", 4096, 32, 32),
        intermediate_size=14336,
        num_key_value_heads=8,
        sliding_window=4096,
        vocab_size=32000,
    ),
    "google/gemma-7b": config_of(
        *("GemmaForCausalLM", 3072, 28, 16),
        head_dim=256,
        intermediate_size=24576,
        num_key_value_heads=16,
        vocab_size=256000,
    )
    | {"tie_word_embeddings": True},
    "google/gemma-2-9b": _gemma2(3584, 42, 16, 8, 14336, 256),
    "google/gemma-2-27b": _gemma2(4608, 46, 32, 16, 36864, 128),
    "google/gemma-3-4b-it": _gemma3(2560, 34, 10240),
    "google/gemma-3-12b-it": _gemma3(
        *(3840, 48, 15360), num_attention_heads=16, num_key_value_heads=8
    ),
    "google/gemma-3-27b-it": _gemma3(
        *(5376, 62, 21504), head_dim=128, num_attention_heads=32, num_key_value_heads=16
    ),
    "openai/gpt-oss-20b": _gpt_oss(24, 32),
    "openai/gpt-oss-120b": _gpt_oss(36, 128),
    "meta-llama/Llama-4-Scout-17B-16E": _llama4(16, 1, normed=True),
    "meta-llama/Llama-4-Maverick-17B-128E": _llama4(128, 2, normed=False),
    "MiniMaxAI/MiniMax-M1-80k": config_of(
        *("MiniMaxM1ForCausalLM", 6144, 80, 64),
        attn_type_list=([0] * 7 + [1]) * 10,
        head_dim=128,
        intermediate_size=9216,
        num_experts_per_tok=2,
        num_key_value_heads=8,
        num_local_experts=32,
        vocab_size=200064,
    ),
    "MiniMaxAI/MiniMax-M2": config_of(
        *("MiniMaxM2ForCausalLM", 3072, 62, 48),
        head_dim=128,
        intermediate_size=1536,
        mtp_transformer_layers=1,
        num_experts_per_tok=8,
        num_key_value_heads=8,
        num_local_experts=256,
        num_mtp_modules=3,
        qk_norm_type="per_layer",
        shared_intermediate_size=0,
        use_mtp=True,
        use_qk_norm=True,
        use_routing_bias=True,
        vocab_size=200064,
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

QWEN3_NEXT = _linear(48, 512, 10, 151936)
CONFIGS |= {
    "Qwen/Qwen3-VL-235B-A22B-Instruct": _qwen3_vl("Moe", CONFIGS["Qwen/Qwen3-235B-A22B"], 4096),
    "Qwen/Qwen3-VL-30B-A3B-Instruct": _qwen3_vl("Moe", CONFIGS["Qwen/Qwen3-30B-A3B"], 2048),
    "Qwen/Qwen3-VL-8B-Instruct": _qwen3_vl("", CONFIGS["Qwen/Qwen3-8B"], 4096),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": QWEN3_NEXT,
    "Qwen/Qwen3.5-35B-A3B": _qwen3_vl("", _linear(40, 256, 8, 248320), 2048)
    | {"architectures": ["Qwen3_5MoeForConditionalGeneration"]},
    "zai-org/GLM-4.5": _glm(
        *(5120, 92, 12288, 160, 1536), first_k_dense_replace=3, use_qk_norm=True
    ),
    "zai-org/GLM-4.5-Air": _glm(
        *(4096, 46, 10944, 128, 1408), first_k_dense_replace=1, use_qk_norm=False
    ),
    "zai-org/GLM-5": _deepseek(
        *("GlmMoeDsaForCausalLM", 6144, 78, 64),
        index_head_dim=128,
        index_n_heads=32,
        index_topk=2048,
        q_lora_rank=2048,
        first_k_dense_replace=3,
        intermediate_size=12288,
        moe_intermediate_size=2048,
        n_routed_experts=256,
        n_shared_experts=1,
        num_experts_per_tok=8,
        num_nextn_predict_layers=1,
        vocab_size=154880,
    )
    | {"qk_nope_head_dim": 192, "v_head_dim": 256},
}
CONFIGS["zai-org/GLM-5.2"] = CONFIGS["zai-org/GLM-5"] | {
    "index_skip_topk_offset": 3,
    "index_topk_freq": 4,
}
CONFIGS["Qwen/Qwen3.5-35B-A3B"]["text_config"]["mtp_num_hidden_layers"] = 1
CONFIGS["Qwen/Qwen3.5-35B-A3B"]["vision_config"]["deepstack_visual_indexes"] = []

PARAMETERS = {
    **hybrid_configs.PARAMETERS,
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
    "deepseek-ai/DeepSeek-V3.2": 671_026_419_200 + 61 * (1536 * 8192 + 7168 * 192 + 256),
    "openai-community/gpt2": 124_439_808,
    "google-t5/t5-base": 222_903_552,
    "google-t5/t5-large": 737_668_096,
    "google-t5/t5-11b": 11_307_321_344,
    "google/flan-t5-xxl": 11_135_332_352,
    "google/mt5-base": 582_401_280,
    "EleutherAI/pythia-6.9b": 6_857_302_016,
    "EleutherAI/gpt-neox-20b": 20_554_567_680,
    "facebook/opt-6.7b": (50272 + 2050) * 4096 + 32 * (12 * 4096**2 + 13 * 4096) + 2 * 4096,
    "bigcode/starcoder2-15b": 15_957_889_024,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "google/gemma-7b": 8_537_680_896,
    "google/gemma-2-9b": 9_241_705_984,
    "google/gemma-2-27b": 27_227_128_320,
    "google/gemma-3-4b-it": 4_300_079_472,
    "google/gemma-3-12b-it": 12_187_325_040,
    "google/gemma-3-27b-it": 27_432_406_640,
    "openai/gpt-oss-20b": 20_914_757_184,
    "openai/gpt-oss-120b": 116_829_156_672,
    "meta-llama/Llama-4-Scout-17B-16E": 108_641_793_536,
    "meta-llama/Llama-4-Maverick-17B-128E": 401_583_781_376,
    "MiniMaxAI/MiniMax-M1-80k": 456_089_655_296,
    "MiniMaxAI/MiniMax-M2": 228_689_764_864,
    "Qwen/Qwen3-VL-235B-A22B-Instruct": 235_670_022_896,
    "Qwen/Qwen3-VL-30B-A3B-Instruct": 31_070_754_032,
    "Qwen/Qwen3-VL-8B-Instruct": 8_767_123_696,
}
WITH_SCALES = {
    "deepseek-ai/DeepSeek-V3": 684_531_386_000,
    "deepseek-ai/DeepSeek-V3.2": 685_396_921_376,
}
"""Totals that include the prediction module with copies of embedding and head, and FP8 scales: one
per block of 128 x 128 of every matrix but those of embedding, head, projection of the module,
router, and weights of the indexer."""
WITH_PREDICTIONS = {
    **hybrid_configs.WITH_PREDICTIONS,
    "Qwen/Qwen3-Next-80B-A3B-Instruct": (81_324_862_720, 0),
    "Qwen/Qwen3.5-35B-A3B": (35_951_822_704, 0),
    "zai-org/GLM-4.5": (358_337_791_296, 2),
    "zai-org/GLM-4.5-Air": (110_468_824_832, 2),
    "zai-org/GLM-5": (753_864_139_008, 0),
    "zai-org/GLM-5.2": (753_329_940_480, 0),
}
"""Totals that include a prediction module, and its number of copies of embedding and head."""
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
