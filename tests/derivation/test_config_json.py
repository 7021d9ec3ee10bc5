"""Configurations of multimodal models and of models that are not known."""

from __future__ import annotations

import pytest

from ppopt import InputError, derive_model
from ppopt.derivation.architecture import Experts
from ppopt.derivation.attention import Shard
from ppopt.derivation.config_json import architecture_of
from tests.factories.configs import (
    CONFIGS,
    DEEPSEEK_V3,
    LLAMA_8B,
    PARAMETERS,
    WITH_PREDICTIONS,
    Config,
)
from tests.tiers import first

QWEN3_VL = CONFIGS["Qwen/Qwen3-VL-30B-A3B-Instruct"]


def renamed(config: Config, name: str = "XForCausalLM", **more: object) -> Config:
    return config | {"architectures": [name], **more}


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("meta-llama/Llama-3.1-8B", "LlamaForCausalLM"),
        ("mistralai/Mixtral-8x7B-v0.1", "MixtralForCausalLM"),
        ("Qwen/Qwen3-30B-A3B", "Qwen3ForCausalLM"),
        ("deepseek-ai/DeepSeek-V3.2", "DeepseekV32ForCausalLM"),
        ("zai-org/GLM-4.5", "Glm4MoeForCausalLM"),
        ("openai-community/gpt2", "GPT2LMHeadModel"),
    ],
)
def test_a_name_that_is_not_known_is_read_by_its_keys(name: str, family: str) -> None:
    """Values that name no dimension do not matter."""
    known = architecture_of(CONFIGS[name])
    config = renamed(
        CONFIGS[name],
        rope_theta=5e5,
        rope_scaling={"factor": 8},
        bos_token_id=1,
        use_cache=True,
        attention_dropout=0.0,
        initializer_range=0.02,
        torch_dtype="bfloat16",
        memory=None,
        memory_layers=[],
        memory_parts={},
    )
    architecture = architecture_of(config)
    assert architecture.name == "XForCausalLM"
    assert architecture.runs[-1].decoder.feed_forward == known.runs[-1].decoder.feed_forward
    assert architecture.parameters == pytest.approx(known.parameters, rel=1e-4)  # norms, biases
    assert architecture.notes == (f"XForCausalLM is not known; its keys are those of {family}",)


def test_the_model_type_decides_between_families_with_the_same_keys() -> None:
    """Heads are normed in Qwen3, and queries, keys and values have a bias in Qwen2."""
    name = "Qwen/Qwen3-8B"
    config = renamed(CONFIGS[name], "Qwen3ForSequenceClassification", model_type="qwen3")
    assert architecture_of(config).parameters == PARAMETERS[name]


@pytest.mark.parametrize(
    ("keys", "unknown"),
    [
        ({"num_memory_layers": 3}, "num_memory_layers"),
        ({"hidden_act": "xielu"}, "hidden_act"),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps"),
        ({"size\nof": 3}, r"'size\nof'"),
        ({f"size_{index}": 1 for index in range(9)}, "size_0, size_1, size_2, size_3, size_4"),
    ],
)
def test_keys_that_may_change_the_dimensions_are_named(keys: Config, unknown: str) -> None:
    with pytest.raises(InputError) as raised:
        architecture_of(renamed(LLAMA_8B, **keys))
    assert str(raised.value) == (
        "architectures: 'XForCausalLM' is not known; its keys are those of LlamaForCausalLM, but "
        f"not {unknown}: remove keys that do not change the dimensions, or write its layers by "
        "hand (`ppopt init`), or measure them (`ppopt profile`)"
    )


@pytest.mark.parametrize(
    "keys",
    [
        {"num_memory_experts": 8},
        {"moe_every": 2, "size": 1},
        {"linear_attn_config": {"kernel": 4}},
        {"mamba_width": 3},
        {"hybrid_layout": "M*"},
    ],
)
def test_no_message_advises_to_remove_keys_of_experts_or_of_kinds_of_layers(keys: Config) -> None:
    with pytest.raises(InputError) as raised:
        architecture_of(renamed(LLAMA_8B, **keys))
    assert f"but not {', '.join(keys)}: write its layers by hand" in str(raised.value)


def test_encoder_and_decoder_are_refused_with_the_reason() -> None:
    """BART, whose layers are not those of T5."""
    bart = {"architectures": ["BartForConditionalGeneration"], "d_model": 1024}
    with pytest.raises(InputError, match="an encoder whose output every decoder layer reads"):
        architecture_of(bart | {"is_encoder_decoder": True})


def test_a_known_name_may_have_further_keys() -> None:
    """As transformers ignores them."""
    assert architecture_of(LLAMA_8B | {"num_memory_layers": 3}) == architecture_of(LLAMA_8B)


def test_names_of_keys_that_transformers_5_writes() -> None:
    """Its `attribute_map` renames experts of Qwen3; DeepSeek V3.2 lists kinds of layers."""
    config = dict(CONFIGS["Qwen/Qwen3-30B-A3B"])
    config["num_local_experts"] = config.pop("num_experts")
    assert architecture_of(config) == architecture_of(CONFIGS["Qwen/Qwen3-30B-A3B"])
    deepseek = {k: v for k, v in DEEPSEEK_V3.items() if k != "first_k_dense_replace"}
    kinds = ["dense"] * 3 + ["sparse"] * 58
    assert architecture_of(deepseek | {"mlp_layer_types": kinds}) == architecture_of(DEEPSEEK_V3)
    with pytest.raises(InputError, match="first_k_dense_replace is missing"):
        architecture_of(deepseek)


def test_defaults_of_a_class_are_those_of_models_that_are_named() -> None:
    """The configuration of Gemma 3 4B leaves out heads and vocabulary."""
    config = CONFIGS["google/gemma-3-4b-it"]
    attention = architecture_of(config).runs[0].decoder.attention
    assert (attention.heads, attention.groups, attention.query) == (8, 4, 256)
    with pytest.raises(InputError, match="'XForCausalLM' is not known; did you mean"):
        architecture_of(renamed(config))


def test_the_text_of_a_multimodal_model_is_read_and_the_rest_is_named() -> None:
    config = {
        "architectures": ["XForConditionalGeneration"],
        "text_config": LLAMA_8B | {"model_type": "llama"},
        "audio_config": {"hidden_size": 1280},
        "vision_config": {"hidden_size": 1024},
        "quantization_config": {"bits": 4},
    }
    architecture = architecture_of(config)
    assert architecture.parameters == PARAMETERS["meta-llama/Llama-3.1-8B"]
    assert architecture.notes == (  # the text names LlamaForCausalLM
        "audio_config is left out: only the layers of the language model are derived",
        "vision_config is left out: only the layers of the language model are derived",
    )
    text = derive_model(config, gpu="h100").text
    assert "# audio_config is left out" in text


def test_dimensions_beside_parts_of_a_multimodal_model() -> None:
    """Qwen2.5-VL has those of its language model at the top."""
    name = "Qwen2_5_VLForConditionalGeneration"
    vision = {"depth": 32, "hidden_size": 1280}
    config = CONFIGS["Qwen/Qwen2.5-7B"] | {"vision_config": vision, "model_type": "qwen2_5_vl"}
    architecture = architecture_of(renamed(config, name))
    assert architecture.parameters == PARAMETERS["Qwen/Qwen2.5-7B"]
    assert architecture.notes == (
        f"{name} is not known; its keys are those of Qwen2ForCausalLM",
        "vision_config is left out: only the layers of the language model are derived",
    )


def test_the_top_of_a_configuration_says_whether_embedding_and_head_are_tied() -> None:
    tied = architecture_of(QWEN3_VL | {"tie_word_embeddings": True})
    embedding = 151936 * 2048
    assert tied.parameters == PARAMETERS["Qwen/Qwen3-VL-30B-A3B-Instruct"] - embedding


def test_the_encoder_of_qwen3_vl() -> None:
    """2304 patches of 16 x 16 pixels, two frames; mergers behind layers 8, 16, 24 and the last."""
    encoder = architecture_of(QWEN3_VL).encoder
    assert encoder is not None
    assert (encoder.patches, encoder.tokens, encoder.patch.inputs) == (2304, 576, 3 * 2 * 256)
    assert [(run.name, run.count) for run in encoder.runs] == [("vision block", 27)]
    attention = encoder.runs[0].decoder.attention
    assert not attention.causal and attention.heads == 16
    shards = {tuple(matrix.shard for matrix in merger) for merger in encoder.projections}
    assert shards == {(Shard.COLUMNS, Shard.ROWS)}
    assert [projection[-1].outputs for projection in encoder.projections] == [2048] * 4
    vision = encoder.parameters
    assert vision + PARAMETERS["Qwen/Qwen3-30B-A3B"] == architecture_of(QWEN3_VL).parameters


@pytest.mark.parametrize(
    ("vision", "message"),
    [
        ({"depth": None}, "vision_config: depth is missing"),
        ({"num_heads": 7}, "vision_config: hidden_size: 1152 cannot be divided by 7 heads"),
        ({"num_position_embeddings": 2303}, "2303 patches, which cannot be merged by 4"),
        ({"out_hidden_size": 9}, "vision_config: out_hidden_size: the hidden_size of the language"),
    ],
)
def test_an_encoder_that_cannot_be_read(vision: Config, message: str) -> None:
    config = QWEN3_VL | {"vision_config": QWEN3_VL["vision_config"] | vision}
    with pytest.raises(InputError, match=message):
        architecture_of(config)


def test_patches_that_cannot_be_averaged() -> None:
    config = CONFIGS["google/gemma-3-4b-it"] | {"mm_tokens_per_image": 300}
    with pytest.raises(InputError, match="300 does not divide 4096 patches"):
        architecture_of(config)


@pytest.mark.parametrize("name", first(8, [*PARAMETERS, *WITH_PREDICTIONS]))
def test_every_published_model_is_derived(name: str) -> None:
    model = derive_model(CONFIGS[name], gpu="h100", devices=2)
    assert model.pipeline.num_devices == 2
    assert all(layer.forward > 0 and layer.static > 0 for layer in model.layers)
    for note in model.architecture.notes:
        assert f"# {note}" in model.text


def test_llama4_interleaves_dense_layers_and_experts() -> None:
    """Maverick: experts in every second layer; every fourth layer sees the whole sequence."""
    runs = architecture_of(CONFIGS["meta-llama/Llama-4-Maverick-17B-128E"]).runs
    kinds = [(run.name, isinstance(run.decoder.feed_forward, Experts)) for run in runs[:4]]
    assert kinds == [
        ("window dense block", False),
        ("window expert block", True),
        ("window dense block", False),
        ("full expert block", True),
    ]


def test_layers_of_glm_5_2_share_an_indexer() -> None:
    """`index_topk_freq` 4 behind the third layer: full, full, full, shared x 3, full, ..."""
    config = CONFIGS["zai-org/GLM-5.2"]
    listed = ["full"] * 3 + (["shared"] * 3 + ["full"]) * 18 + ["shared"] * 3
    by_list = CONFIGS["zai-org/GLM-5"] | {"indexer_types": listed}
    assert architecture_of(config) == architecture_of(by_list)
    indexer = 2048 * 32 * 128 + 6144 * (128 + 32) + 2 * 128
    full = architecture_of(CONFIGS["zai-org/GLM-5"]).parameters
    assert full - architecture_of(config).parameters == listed.count("shared") * indexer
