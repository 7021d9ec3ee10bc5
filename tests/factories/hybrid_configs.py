"""Dimensions of published models of further families: hybrids, parallel blocks, and experts.

`PARAMETERS` are the totals of their safetensors files where huggingface.co states them (BLOOM,
Ling, ERNIE, Hunyuan, OLMoE, EXAONE, Nemotron Super 49B; dots.llm1; LongCat, whose total of
561,862,880,256 has a prediction module and its embedding), and of the classes of transformers 5.24
that are built of the configurations otherwise. That of Step3 is derived from its modeling_step3.py:
arXiv 2507.19427 says 316B.
"""

from __future__ import annotations

from typing import Any

from tests.factories.config_dimensions import Config, config_of, latent_attention


def _nemotron_h(hidden: int, pattern: str, heads: int, groups: int, **more: Any) -> Config:
    return config_of(
        *("NemotronHForCausalLM", hidden, len(pattern), heads),
        num_key_value_heads=groups,
        head_dim=128,
        hybrid_override_pattern=pattern,
        n_groups=8,
        ssm_state_size=128,
        conv_kernel=4,
        mlp_hidden_act="relu2",
        vocab_size=131072,
        **more,
    )


def _granite(hidden: int, width: int, experts: int, shared: int, heads: int) -> Config:
    return config_of(
        *("GraniteMoeHybridForCausalLM", hidden, 40, 32),
        num_key_value_heads=8,
        intermediate_size=width,
        num_local_experts=experts,
        num_experts_per_tok=10 if experts else 0,
        shared_intermediate_size=shared,
        layer_types=["attention" if layer in (5, 15, 25, 35) else "mamba" for layer in range(40)],
        mamba_n_heads=heads,
        mamba_d_head="auto",
        mamba_expand=2,
        mamba_d_state=128,
        mamba_n_groups=1,
        mamba_d_conv=4,
        vocab_size=100352,
    ) | {"tie_word_embeddings": True}


def _bailing(version: str, hidden: int, layers: int, heads: int, **more: Any) -> Config:
    return config_of(
        *(f"BailingMoe{version}ForCausalLM", hidden, layers, heads), head_dim=128, **more
    )


def _cohere(version: str, hidden: int, layers: int, heads: int, **more: Any) -> Config:
    config = config_of(f"Cohere{version}ForCausalLM", hidden, layers, heads, vocab_size=256000)
    return {name: value for name, value in config.items() if "tie" not in name} | more


def _falcon(hidden: int, layers: int, heads: int, **more: Any) -> Config:
    config = config_of("FalconForCausalLM", hidden, layers, heads, vocab_size=65024, **more)
    return {name: value for name, value in config.items() if "tie" not in name}


Block = tuple[int | None, float | None]
"""Heads of a group and `ffn_mult` of a layer; None: the part is left out."""
WHOLE: Block = (8, 5.25)


def _decilm(blocks: list[Block]) -> Config:
    return config_of(
        *("DeciLMForCausalLM", 8192, len(blocks), 64),
        num_key_value_heads=None,
        vocab_size=128256,
        block_configs=[
            {
                "attention": {"n_heads_in_group": group, "no_op": group is None},
                "ffn": {"ffn_mult": factor, "no_op": factor is None},
            }
            for group, factor in blocks
        ],
    )


NANO = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
SUPER = "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"
CONFIGS: dict[str, Config] = {
    "nvidia/Nemotron-H-4B": _nemotron_h(
        *(3136, "M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M-", 40, 8),
        intermediate_size=12544,
        mamba_num_heads=96,
        mamba_head_dim=80,
    ),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B": _nemotron_h(
        *(2688, NANO, 32, 2),
        mamba_num_heads=64,
        mamba_head_dim=64,
        moe_intermediate_size=1856,
        moe_shared_expert_intermediate_size=3712,
        n_routed_experts=128,
        num_experts_per_tok=6,
    ),
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B": _nemotron_h(
        *(4096, SUPER, 32, 2),
        mamba_num_heads=128,
        mamba_head_dim=64,
        moe_intermediate_size=2688,
        moe_shared_expert_intermediate_size=5376,
        moe_latent_size=1024,
        n_routed_experts=512,
        num_experts_per_tok=22,
    ),
    "ibm-granite/granite-4.0-h-small": _granite(4096, 768, 72, 1536, 128),
    "ibm-granite/granite-4.0-h-micro": _granite(2048, 8192, 0, 8192, 64),
    "moonshotai/Kimi-Linear-48B-A3B-Base": config_of(
        *("KimiLinearForCausalLM", 2304, 27, 32),
        intermediate_size=9216,
        moe_intermediate_size=1024,
        num_experts=256,
        num_experts_per_token=8,
        num_shared_experts=1,
        first_k_dense_replace=1,
        moe_layer_freq=1,
        kv_lora_rank=512,
        q_lora_rank=None,
        **latent_attention(),
        vocab_size=163840,
        linear_attn_config={
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
            "kda_layers": [layer for layer in range(1, 27) if layer % 4],
            "num_heads": 32,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
        },
    ),
    "XiaomiMiMo/MiMo-V2-Flash": config_of(
        *("MiMoV2FlashForCausalLM", 4096, 48, 64),
        num_key_value_heads=4,
        head_dim=192,
        v_head_dim=128,
        swa_num_attention_heads=64,
        swa_num_key_value_heads=8,
        swa_head_dim=192,
        swa_v_head_dim=128,
        sliding_window=128,
        add_swa_attention_sink_bias=True,
        add_full_attention_sink_bias=False,
        hybrid_layer_pattern=[int(layer > 0 and (layer + 1) % 6 > 0) for layer in range(48)],
        moe_layer_freq=[0] + [1] * 47,
        intermediate_size=16384,
        moe_intermediate_size=2048,
        n_routed_experts=256,
        num_experts_per_tok=8,
        vocab_size=152576,
    ),
    "meituan-longcat/LongCat-Flash-Chat": {
        "architectures": ["LongcatFlashForCausalLM"],
        "hidden_size": 6144,
        "num_layers": 28,
        "num_attention_heads": 64,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        **latent_attention(),
        "ffn_hidden_size": 12288,
        "expert_ffn_hidden_size": 2048,
        "n_routed_experts": 512,
        "zero_expert_num": 256,
        "moe_topk": 12,
        "num_nextn_predict_layers": 1,
        "vocab_size": 131072,
    },
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1": _decilm(
        [
            *((8, 2.625), *[WHOLE] * 5, (None, 2.625), (None, 2.625), *[WHOLE] * 3),
            *((None, 3.28125), *[WHOLE] * 30, (None, 1.3125), (None, 2.625), (None, 2.625)),
            *((None, 1.3125), (None, 5.25), (None, 1.3125), (None, 2.625)),
            *(*[(None, 1.3125)] * 3, WHOLE, (None, 1.3125), *[(None, 1.0)] * 2),
            *((None, 1.3125), *[(None, 1.0)] * 3, *[(None, 1.3125)] * 2, *[(None, 0.5)] * 2),
            *(*[(None, 1.0)] * 2, *[(None, 0.5)] * 2, (None, 1.0), *[(None, 0.5)] * 2),
            *[WHOLE] * 9,
        ]
    ),
    "baidu/ERNIE-4.5-21B-A3B-PT": config_of(
        *("Ernie4_5_MoeForCausalLM", 2560, 28, 20),
        num_key_value_heads=4,
        head_dim=128,
        intermediate_size=12288,
        moe_intermediate_size=1536,
        moe_num_experts=64,
        moe_num_shared_experts=2,
        moe_k=6,
        moe_layer_start_index=1,
        moe_layer_end_index=27,
        moe_layer_interval=1,
        use_bias=False,
        vocab_size=103424,
    )
    | {"tie_word_embeddings": True},
    "tencent/Hunyuan-A13B-Instruct": config_of(
        *("HunYuanMoEV1ForCausalLM", 4096, 32, 32),
        num_key_value_heads=8,
        attention_head_dim=128,
        intermediate_size=3072,
        moe_intermediate_size=[3072] * 32,
        moe_topk=[8] * 32,
        num_experts=64,
        num_shared_expert=[1] * 32,
        use_qk_norm=True,
        vocab_size=128167,
    )
    | {"tie_word_embeddings": True},
    "rednote-hilab/dots.llm1.base": config_of(
        *("Dots1ForCausalLM", 4096, 62, 32),
        num_key_value_heads=32,
        intermediate_size=10944,
        moe_intermediate_size=1408,
        n_routed_experts=128,
        n_shared_experts=2,
        num_experts_per_tok=6,
        first_k_dense_replace=1,
        vocab_size=152064,
    ),
    "inclusionAI/Ling-mini-2.0": _bailing(
        *("V2", 2048, 20, 16),
        num_key_value_heads=4,
        intermediate_size=5120,
        moe_intermediate_size=512,
        num_experts=256,
        num_shared_experts=1,
        num_experts_per_tok=8,
        first_k_dense_replace=1,
        moe_router_enable_expert_bias=True,
        use_qk_norm=True,
        vocab_size=157184,
    ),
    "inclusionAI/Ling-lite-1.5": _bailing(
        *("", 2048, 28, 16),
        num_key_value_heads=4,
        intermediate_size=5632,
        moe_intermediate_size=1408,
        num_experts=64,
        num_shared_experts=2,
        num_experts_per_tok=6,
        first_k_dense_replace=0,
        vocab_size=126464,
    ),
    "allenai/OLMoE-1B-7B-0924": config_of(
        *("OlmoeForCausalLM", 2048, 16, 16),
        intermediate_size=1024,
        num_experts=64,
        num_experts_per_tok=8,
        vocab_size=50304,
    ),
    "LGAI-EXAONE/EXAONE-4.0-32B": config_of(
        *("Exaone4ForCausalLM", 5120, 64, 40),
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=27392,
        sliding_window=4096,
        sliding_window_pattern="LLLG",
        vocab_size=102400,
    ),
    "stepfun-ai/step3": {
        "architectures": ["Step3VLForConditionalGeneration"],
        "text_config": config_of(
            *("Step3TextForCausalLM", 7168, 61, 64),
            num_attention_groups=1,
            head_dim=256,
            share_q_dim=2048,
            intermediate_size=18432,
            moe_intermediate_size=5120,
            moe_num_experts=48,
            moe_top_k=3,
            share_expert_dim=5120,
            moe_layers_enum=",".join(map(str, range(4, 60))),
            vocab_size=128815,
        ),
    },
    "CohereLabs/c4ai-command-r-v01": _cohere(
        "", 8192, 40, 64, num_key_value_heads=64, intermediate_size=22528
    ),
    "CohereLabs/c4ai-command-r-plus": _cohere(
        *("", 12288, 64, 96), num_key_value_heads=8, intermediate_size=33792, use_qk_norm=True
    ),
    "CohereLabs/c4ai-command-r7b-12-2024": _cohere(
        *("2", 4096, 32, 32),
        num_key_value_heads=8,
        intermediate_size=14336,
        sliding_window=4096,
        sliding_window_pattern=4,
    ),
    "nvidia/Nemotron-4-340B-Base": config_of(
        *("NemotronForCausalLM", 18432, 96, 96),
        num_key_value_heads=8,
        head_dim=192,
        intermediate_size=73728,
        hidden_act="relu2",
        vocab_size=256000,
    ),
    "tiiuae/falcon-7b": _falcon(4544, 32, 71, multi_query=True, parallel_attn=True),
    "tiiuae/falcon-40b": _falcon(8192, 60, 128, num_kv_heads=8, new_decoder_architecture=True),
    "bigscience/bloom": {
        "architectures": ["BloomForCausalLM"],
        "hidden_size": 14336,
        "n_layer": 70,
        "num_attention_heads": 112,
        "vocab_size": 250880,
    },
}
PARAMETERS = {
    "nvidia/Nemotron-H-4B": 3_973_556_832,
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B": 31_577_940_288,
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B": 120_668_707_840,
    "ibm-granite/granite-4.0-h-small": 32_207_337_984,
    "ibm-granite/granite-4.0-h-micro": 3_191_396_096,
    "moonshotai/Kimi-Linear-48B-A3B-Base": 49_122_681_728,
    "XiaomiMiMo/MiMo-V2-Flash": 308_778_780_864,
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1": 49_867_145_216,
    "baidu/ERNIE-4.5-21B-A3B-PT": 21_825_437_888,
    "tencent/Hunyuan-A13B-Instruct": 80_393_183_232,
    "rednote-hilab/dots.llm1.base": 142_774_381_696,
    "inclusionAI/Ling-mini-2.0": 16_255_643_392,
    "inclusionAI/Ling-lite-1.5": 16_801_974_272,
    "allenai/OLMoE-1B-7B-0924": 6_919_161_856,
    "LGAI-EXAONE/EXAONE-4.0-32B": 32_003_216_384,
    "stepfun-ai/step3": 2 * 128815 * 7168
    + 7168
    + 61 * (7168 * 2048 + 2048 + 2048 * 64 * 256 + 7168 * 2 * 256 + 64 * 256 * 7168 + 2 * 7168)
    + 5 * 3 * 7168 * 18432
    + 56 * (48 * 7168 + 49 * 3 * 7168 * 5120),
    "CohereLabs/c4ai-command-r-v01": 34_980_831_232,
    "CohereLabs/c4ai-command-r-plus": 103_810_674_688,
    "CohereLabs/c4ai-command-r7b-12-2024": 8_028_033_024,
    "nvidia/Nemotron-4-340B-Base": 341_029_195_776,
    "tiiuae/falcon-7b": 6_921_720_704,
    "tiiuae/falcon-40b": 41_303_293_952,
    "bigscience/bloom": 176_247_271_424,
}
WITH_PREDICTIONS = {"meituan-longcat/LongCat-Flash-Chat": (561_862_880_256, 1)}
