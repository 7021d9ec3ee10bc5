"""Architectures read from configurations: parameters are those published, exactly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ppopt import InputError, derive_model
from ppopt.derivation.architecture import Experts
from ppopt.derivation.config_families import FAMILIES
from ppopt.derivation.config_json import architecture_of, read_architecture
from tests.factories.configs import (
    CONFIGS,
    DEEPSEEK_V3,
    LLAMA_8B,
    PARAMETERS,
    WITH_PREDICTIONS,
    Config,
)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_published(name: str) -> None:
    assert architecture_of(CONFIGS[name]).parameters == PARAMETERS[name]


@pytest.mark.parametrize("name", WITH_PREDICTIONS)
def test_parameters_with_the_prediction_module_are_those_published(name: str) -> None:
    architecture = architecture_of(CONFIGS[name])
    total, copies = WITH_PREDICTIONS[name]
    words = copies * architecture.vocabulary * architecture.hidden
    assert architecture.parameters + architecture.prediction_parameters + words == total


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
    found = architecture_of(DEEPSEEK_V3)
    assert found.predictions == 1
    assert found.prediction_parameters == pytest.approx(11.5e9, rel=0.01)
    assert [(run.name, run.count) for run in found.runs] == [
        ("dense block", 3),
        ("expert block", 58),
    ]


def test_layers_without_experts_stand_where_the_configuration_has_them() -> None:
    config = CONFIGS["Qwen/Qwen3-30B-A3B"] | {"num_hidden_layers": 6, "mlp_only_layers": [0, 3]}
    runs = architecture_of(config).runs
    assert [(isinstance(run.decoder.feed_forward, Experts), run.count) for run in runs] == [
        *((False, 1), (True, 2), (False, 1), (True, 2)),
    ]


def test_mtp_modules_can_be_removed() -> None:
    architecture = architecture_of(DEEPSEEK_V3)
    removed = architecture.without_predictions()
    assert (architecture.predictions, removed.predictions) == (1, 0)
    assert removed.parameters == architecture.parameters


def without(key: str) -> Config:
    return {name: value for name, value in LLAMA_8B.items() if name != key}


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (without("hidden_size"), "hidden_size is missing"),
        (without("architectures"), "architectures is missing"),
        (
            LLAMA_8B | {"architectures": ["X\nY"]},
            r"architectures: \['X\\nY'\] is not a list of names",
        ),
        (LLAMA_8B | {"architectures": 3}, "architectures: 3 is not a list of names"),
        ({"architectures": ["MambaForCausalLM"]}, "'MambaForCausalLM'.*known are Llama"),
        (LLAMA_8B | {"hidden_size": "big"}, "hidden_size: 'big' is not a whole number"),
        (LLAMA_8B | {"num_hidden_layers": 0}, "num_hidden_layers: 0 is not within"),
        (LLAMA_8B | {"num_hidden_layers": 10**9}, "num_hidden_layers: 1000000000 is not within"),
        (LLAMA_8B | {"num_attention_heads": 5000}, "hidden_size has no room for 5000 heads"),
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
        ({"architectures": ["LlamaForCausalLM"], "text_config": 3}, "text_config: 3 is not an"),
        (
            {"architectures": ["LlamaForCausalLM"], "text_config": {}},
            "text_config: num_hidden_layers is missing",
        ),
    ],
)
def test_what_cannot_be_derived_is_one_clear_line(config: Config, told: str) -> None:
    with pytest.raises(InputError, match=told) as raised:
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
