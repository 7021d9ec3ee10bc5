"""Architectures read from configurations: parameters are those published, exactly."""

from __future__ import annotations

import json
from math import ceil
from pathlib import Path

import pytest

from ppopt import InputError, derive_model
from ppopt.derivation.architecture import Decoder, Experts
from ppopt.derivation.config_families import FAMILIES
from ppopt.derivation.config_json import architecture_of, read_architecture
from tests.factories.configs import (
    CONFIGS,
    DEEPSEEK_V3,
    LLAMA_8B,
    PARAMETERS,
    WITH_PREDICTIONS,
    WITH_SCALES,
    Config,
)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_published(name: str) -> None:
    assert architecture_of(CONFIGS[name]).parameters == PARAMETERS[name]


@pytest.mark.parametrize("name", WITH_PREDICTIONS)
def test_parameters_with_the_prediction_module_are_those_published(name: str) -> None:
    architecture = architecture_of(CONFIGS[name])
    total, copies = WITH_PREDICTIONS[name]
    word_parameters = copies * architecture.vocabulary * architecture.hidden
    assert architecture.parameters + architecture.prediction_parameters + word_parameters == total


def scales(decoder: Decoder, hidden: int) -> int:
    """Blocks of 128 x 128 of a layer's matrices in FP8."""
    feed_forward = decoder.feed_forward
    matrices = [*decoder.attention.matrices(hidden), *feed_forward.matrices(hidden)]
    if isinstance(feed_forward, Experts):
        matrices = [
            *decoder.attention.matrices(hidden),
            *feed_forward.number * feed_forward.matrices(hidden),
            *feed_forward.shared_matrices(hidden),
        ]
    return sum(
        ceil(matrix.inputs / 128) * ceil(matrix.outputs / 128)
        for matrix in matrices
        if matrix.name != "index weights"
    )


@pytest.mark.parametrize("name", WITH_SCALES)
def test_parameters_with_scales_are_those_published(name: str) -> None:
    model = architecture_of(CONFIGS[name])
    hidden = model.hidden
    blocks = sum(run.count * scales(run.decoder, hidden) for run in model.runs)
    total = model.parameters + model.prediction_parameters + 2 * model.vocabulary * hidden
    assert total + blocks + scales(model.prediction_layer, hidden) == WITH_SCALES[name]


def test_every_family_has_a_published_count() -> None:
    """Qwen2-MoE has a test of its own; the architectures of a family share its layers."""
    tested = {FAMILIES[config["architectures"][0]].name for config in CONFIGS.values()}
    assert tested == {family.name for family in FAMILIES.values()}


def test_a_layer_of_qwen2_moe_by_hand() -> None:
    """Hidden 4, 2 heads of 2, 2 experts of 3 of which 1, shared 5 with a gate, vocabulary 7.

    Attention 4 x 16 + biases 12, router 8, gate 4, experts 2 x 36, shared 60, norms 8: 228; norm 4,
    words 56.
    """
    config = {
        "architectures": ["Qwen2MoeForCausalLM"],
        "hidden_size": 4,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 3,
        "shared_expert_intermediate_size": 5,
        "intermediate_size": 9,
        "vocab_size": 7,
    }
    assert architecture_of(config).parameters == 228 + 4 + 56


def test_the_prediction_module_of_deepseek_v3() -> None:
    """11.5B unique parameters (README_WEIGHTS.md): a layer, 2 x 7168 x 7168, three norms."""
    architecture = architecture_of(DEEPSEEK_V3)
    assert architecture.predictions == 1
    assert architecture.prediction_parameters == pytest.approx(11.5e9, rel=0.01)
    assert [(run.name, run.count) for run in architecture.runs] == [
        ("dense block", 3),
        ("expert block", 58),
    ]


def test_layers_without_experts_stand_where_the_configuration_has_them() -> None:
    config = CONFIGS["Qwen/Qwen3-30B-A3B"] | {"num_hidden_layers": 6, "mlp_only_layers": [0, 3]}
    runs = architecture_of(config).runs
    assert [(isinstance(run.decoder.feed_forward, Experts), run.count) for run in runs] == [
        *((False, 1), (True, 2), (False, 1), (True, 2)),
    ]


def llama4(**more: object) -> Config:
    text = CONFIGS["meta-llama/Llama-4-Maverick-17B-128E"]["text_config"]
    return {**text, "architectures": ["Llama4ForCausalLM"], **more}


MINIMAX = CONFIGS["MiniMaxAI/MiniMax-M2"]
SWITCHES: dict[str, tuple[Config, Config, int]] = {
    "biases of Llama": (LLAMA_8B, {"attention_bias": True}, 32 * (4096 + 2 * 1024 + 4096)),
    "bias of its output": (
        LLAMA_8B | {"attention_bias": True}, {"attention_out_bias": False}, -32 * 4096,
    ),
    "biases of its network": (LLAMA_8B, {"mlp_bias": True}, 32 * (2 * 14336 + 4096)),
    "biases of Qwen2": (CONFIGS["Qwen/Qwen2.5-7B"], {"qkv_bias": False}, -28 * 128 * (28 + 8)),
    "gate of Qwen3-Next": (
        CONFIGS["Qwen/Qwen3-Next-80B-A3B-Instruct"],
        {"attn_output_gate": False},
        -12 * 2048 * 16 * 256,
    ),
    "dense layers of DeepSeek": (
        DEEPSEEK_V3,
        {"moe_layer_freq": 2},  # layers 4, 6, ... 60 are experts
        -29 * (257 * 3 * 7168 * 2048 + 256 * 7169 - 3 * 7168 * 18432),
    ),
    "biases of gpt-oss": (
        CONFIGS["openai/gpt-oss-20b"], {"attention_bias": False}, -24 * (64 * 80 + 2880),
    ),
    "layers of experts": (
        llama4(), {"moe_layers": [1]}, -23 * (129 * 3 * 5120 * 8192
        + 128 * 5120 - 3 * 5120 * 16384),
    ),
    "norms of MiniMax": (MINIMAX, {"use_qk_norm": False}, -62 * 128 * 56),
    "its routing bias": (MINIMAX, {"use_routing_bias": False}, -62 * 256),
    "shared expert of MiniMax M1": (
        CONFIGS["MiniMaxAI/MiniMax-M1-80k"],
        {"shared_intermediate_size": 7},
        80 * 3 * 6144 * 7,
    ),
    "shared expert of MiniMax M2": (MINIMAX, {"shared_intermediate_size": 7}, 62 * 3 * 3072 * 7),
    "biases of GPT-NeoX": (
        CONFIGS["EleutherAI/gpt-neox-20b"], {"attention_bias": False}, -44 * 4 * 6144,
    ),
    "biases of OPT": (CONFIGS["facebook/opt-6.7b"], {"enable_bias": False}, -32 * 9 * 4096),
    "biases of StarCoder2": (
        CONFIGS["bigcode/starcoder2-15b"],
        {"use_bias": False},
        -40 * (6144 + 2 * 4 * 128 + 6144 + 24576 + 6144),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("config", "keys", "more"), SWITCHES.values(), ids=SWITCHES)
def test_keys_that_switch_parameters_on_and_off(config: Config, keys: Config, more: int) -> None:
    before, after = architecture_of(config), architecture_of(config | keys)
    assert after.parameters - before.parameters == more


def without(key: str) -> Config:
    return {name: value for name, value in LLAMA_8B.items() if name != key}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (without("hidden_size"), "hidden_size is missing"),
        (without("architectures"), "architectures is missing"),
        (
            LLAMA_8B | {"architectures": ["X\nY"]},
            r"architectures: \['X\\nY'\] is not a list of names",
        ),
        (LLAMA_8B | {"architectures": 3}, "architectures: 3 is not a list of names"),
        ({"architectures": ["MambaForCausalLM"]}, "'MambaForCausalLM' is not known; did you mean"),
        (LLAMA_8B | {"hidden_size": "big"}, "hidden_size: 'big' is not a whole number"),
        (LLAMA_8B | {"num_hidden_layers": 0}, "num_hidden_layers: 0 is not within"),
        (LLAMA_8B | {"num_hidden_layers": 10**9}, "num_hidden_layers: 1000000000 is not within"),
        (LLAMA_8B | {"num_attention_heads": 5000}, "hidden_size has no room for 5000 heads"),
        (LLAMA_8B | {"head_dim": 0}, "head_dim: 0 is not within"),
        (
            CONFIGS["Qwen/Qwen3-Next-80B-A3B-Instruct"] | {"linear_num_key_heads": 5},
            "linear_num_key_heads: 32 heads of values cannot share 5",
        ),
        (LLAMA_8B | {"sliding_window": -1}, "sliding_window: -1 is not within"),
        (LLAMA_8B | {"layer_types": ["full_attention"]}, "is not a list of 32 layers"),
        (
            LLAMA_8B | {"layer_types": ["linear_attention"] * 32},
            "'linear_attention' is not a kind of attention that this architecture has",
        ),
        (LLAMA_8B | {"num_key_value_heads": 5}, "32 heads cannot share 5"),
        (LLAMA_8B | {"tie_word_embeddings": 1}, "tie_word_embeddings: 1 is neither"),
        (
            CONFIGS["Qwen/Qwen3-30B-A3B"] | {"mlp_only_layers": 3},
            "mlp_only_layers: 3 is not a list",
        ),
        (
            CONFIGS["Qwen/Qwen3-30B-A3B"] | {"num_experts_per_tok": 129},
            "num_experts_per_tok: 129 of 128 experts",
        ),
        (
            CONFIGS["openai/gpt-oss-20b"] | {"layer_types": [1] * 24},
            "layer_types: 1 is not text",
        ),
        (DEEPSEEK_V3 | {"mlp_layer_types": ["moe"] * 61}, "'moe' is neither dense nor sparse"),
        (
            CONFIGS["deepseek-ai/DeepSeek-V3.2"] | {"q_lora_rank": None},
            "q_lora_rank is missing; the indexer",
        ),
        (
            CONFIGS["facebook/opt-6.7b"] | {"word_embed_proj_dim": 512},
            "word_embed_proj_dim: a projection of the embedding",
        ),
        (
            CONFIGS["facebook/opt-6.7b"] | {"do_layer_norm_before": False},
            "do_layer_norm_before: a model without a norm",
        ),
        ({"architectures": ["LlamaForCausalLM"], "text_config": 3}, "text_config: 3 is not an"),
        (
            {"architectures": ["LlamaForCausalLM"], "text_config": {}},
            "text_config: num_hidden_layers is missing",
        ),
    ],
)
def test_what_cannot_be_derived_is_one_clear_line(config: Config, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        architecture_of(config)
    assert "\n" not in str(raised.value)


def test_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("[1]")
    with pytest.raises(InputError, match=r"config\.json: .* is no object"):
        read_architecture(path)
    path.write_text(json.dumps(without("vocab_size")))
    with pytest.raises(InputError, match=r"config\.json: vocab_size is missing"):
        read_architecture(path)


def test_the_folder_of_a_model_stands_for_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B), encoding="utf-8")
    assert read_architecture(tmp_path) == architecture_of(LLAMA_8B)
    assert "derived from config.json" in derive_model(tmp_path, gpu="h100").text
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty.config\.json: cannot be read"):
        read_architecture(tmp_path / "empty")
