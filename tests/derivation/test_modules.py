"""Modules of derived layers, by hand and compared with runs that NVIDIA measured."""

from __future__ import annotations

from typing import Any

import pytest

import ppopt
from ppopt.derivation.derived_model import DerivedModel, derive_model
from tests.factories.configs import CONFIGS, DEEPSEEK_V3, LLAMA_8B, LLAMA_70B

MOONLIGHT: dict[str, Any] = DEEPSEEK_V3 | {
    "hidden_size": 2048,
    "num_hidden_layers": 27,
    "first_k_dense_replace": 1,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "intermediate_size": 11264,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "n_shared_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "vocab_size": 163840,
    "num_nextn_predict_layers": 0,
}
"""config.json of moonshotai/Moonlight-16B-A3B."""
RANKS: dict[str, Any] = {"tensor": 2, "expert": 8, "expert_tensor": 1, "data": 4}
MEASURED = {
    "core_attn": (3.9, -0.0),
    "mla_up_proj": (5.2, -2.0),
    "mla_up_proj,mlp": (8.7, -1.9),
    "moe_act": (2.0, -1.8),
    "layernorm,moe_act": (10.8, -1.8),
}
"""Modules -> change of time and of peak memory, in percent of a run without recompute: Moonlight on
8 H100 (card.yaml of skills/nemo-mbridge-perf-activation-recompute in NVIDIA-NeMo/Megatron-Bridge,
067f987)."""


def figures(model: DerivedModel, modules: str) -> tuple[float, float]:
    """Time and peak memory of 1F1B in which these modules recompute."""
    chosen = {"recompute_modules": modules.split(",")} if modules else {"recompute": "none"}
    training = model.training
    pipeline = model.model.pipeline(devices=training.devices, batches=training.batches, **chosen)
    schedule = ppopt.evaluate(pipeline, "1f1b")
    return float(schedule.makespan), max(map(float, schedule.peak_memory))


def test_modules_of_a_dense_layer_by_hand() -> None:
    """8192 tokens of 4096 elements in BF16: 64 MiB; the feed-forward has 3 x 14336 a token."""
    block = derive_model(LLAMA_8B, gpu="h100", data=8, sequence=8192).layers[1]
    memory = {module.name: module.memory for module in block.modules}
    assert memory == {"layernorm": 2 * 64, "core_attn": 0, "mlp": 3 * 224}
    unfused = derive_model(LLAMA_8B, gpu="h100", data=8, attention="unfused").layers[1]
    (core,) = (module for module in unfused.modules if module.name == "core_attn")
    assert core.memory == 2 * 32 * 4096**2 / 2**20


def test_modules_of_experts_and_latent_attention_by_hand() -> None:
    """4096 tokens on two ranks, 8192 elements of queries, keys and values a token, 6 experts."""
    block = derive_model(MOONLIGHT, gpu="h100", **RANKS).layers[2]
    by_name = {module.name: module for module in block.modules}
    assert by_name["mla_up_proj"].memory == 2 * 4096 * 8192 // 2 // 2**20
    assert by_name["moe_act"].memory == 2 * 2048 * 6 * 1408 // 2**20
    assert by_name["moe_act"].inside == by_name["shared_experts"].inside == "moe"
    assert by_name["moe"].time > by_name["moe_act"].time + by_name["shared_experts"].time


@pytest.mark.parametrize("modules", MEASURED)
def test_time_and_memory_change_as_nvidia_measured(modules: str) -> None:
    """Time within 3 points but for `mla_up_proj,mlp` (3.4), memory within 1 point."""
    model = derive_model(MOONLIGHT, gpu="h100", **RANKS, devices=1, batches=1)
    (time, memory), (before, without) = figures(model, modules), figures(model, "")
    measured_time, measured_memory = MEASURED[modules]
    allowed = 3.5 if modules == "mla_up_proj,mlp" else 3
    assert abs(100 * (time / before - 1) - measured_time) <= allowed
    assert abs(100 * (memory / without - 1) - measured_memory) <= 1.1


def test_recompute_of_the_feed_forward_costs_what_nvidia_measured() -> None:
    """Llama 3 70B in FP8 on 32 H100: 593.6 in place of 704 TFLOP/s with `core_attn`, 18.6 %.

    Gradients are in BF16, the loss is fused, and exchanges overlap, as in its recipe."""
    model = derive_model(
        LLAMA_70B, gpu="h100", tensor=4, data=2, devices=4, batches=16, precision="fp8",
        gradient_bytes=2, loss="fused", overlap=("tp", "grads", "params"),
    )  # fmt: skip
    (slow, less), (fast, more) = (figures(model, modules) for modules in ("mlp", "core_attn"))
    assert slow / fast == pytest.approx(1.186, abs=0.03)
    assert less < more < 0.92 * 80 * 1024


@pytest.mark.parametrize(
    ("config", "training", "modules"),
    [
        (LLAMA_70B, {"tensor": 4, "data": 2, "devices": 8, "sequence": 8192}, "core_attn"),
        (
            DEEPSEEK_V3,
            {"tensor": 2, "data": 64, "expert": 64, "expert_tensor": 1, "devices": 8},
            "mla_up_proj,mlp",
        ),
    ],
    ids=["llama-70b", "deepseek-v3"],
)
def test_published_recipes_fit_the_card_that_they_ran_on(
    config: dict[str, Any], training: dict[str, Any], modules: str
) -> None:
    """Recipes for H100 of scripts/performance of NVIDIA-NeMo/Megatron-Bridge, 80 GB a card.

    DeepSeek-V3 does not fit without recompute."""
    precision = "fp8" if config is LLAMA_70B else "bf16"
    model = derive_model(config, gpu="h100", precision=precision, batches=32, **training)
    layout = {"partition": "Et|(tt|)*30mL", "chunks": 4} if config is DEEPSEEK_V3 else {"chunks": 5}
    peaks = []
    for chosen in ({"recompute": "none"}, {"recompute_modules": modules}):
        pipeline = model.model.pipeline(
            devices=8, batches=32, placement="interleaved", **layout, **chosen
        )
        schedule = ppopt.evaluate(pipeline, "interleaved")
        peaks.append(max(map(float, schedule.peak_memory)) / 1024)
    assert 0.8 * 73.6 <= peaks[1] <= 73.6
    assert config is LLAMA_70B or peaks[0] > 80


def test_a_recipe_without_recompute_fits_the_card_that_it_ran_on() -> None:
    """Qwen3-30B-A3B on 16 H100, batch 512 in microbatches of 2: 80 GiB a card, no recompute."""
    model = derive_model(
        CONFIGS["Qwen/Qwen3-30B-A3B"], gpu="h100", precision="fp8", devices=2, data=8, expert=8,
        batches=32, microbatch=2,
    )  # fmt: skip
    pipeline = model.model.pipeline(
        devices=2, batches=32, placement="interleaved", chunks=12, recompute="none"
    )
    schedule = ppopt.evaluate(pipeline, "interleaved")
    assert 0.9 * 80 <= max(map(float, schedule.peak_memory)) / 1024 <= 0.95 * 80


def test_moves_to_the_host_by_hand() -> None:
    """Queries, keys and values of 8192 tokens: 6144 elements each, at 0.8 of 64 GB/s."""
    model = derive_model(LLAMA_8B, gpu="h100", data=8, sequence=8192)
    block = model.layers[1]
    core = next(module for module in block.modules if module.name == "core_attn")
    assert core.offload_memory == 96
    assert core.offload_time == pytest.approx(1e3 * 96 * 2**20 / 51.2e9, abs=0.001)
    assert block.offload == pytest.approx(1e3 * block.activation * 2**20 / 51.2e9, abs=0.001)
    layer = model.model.layers[1]
    assert layer.having(offload=("core_attn",)).in_force["offload_memory"] == 96
    assert all(not own.offload for own in model.layers if own.role in ("embedding", "head"))


def test_inputs_of_experts_move_beside_a_recomputed_activation_function() -> None:
    """A rank has 2048 tokens of 6 experts each: 2048 elements in, 2 x 1408 out."""
    model = derive_model(MOONLIGHT, gpu="h100", sequence=4096, **RANKS)
    block = next(layer for layer in model.layers if any(m.name == "moe" for m in layer.modules))
    offloaded = {module.name: module.offload_memory for module in block.modules}
    assert (offloaded["expert_fc1"], offloaded["moe_act"]) == (48, 66)
    index = model.layers.index(block) + 1
    chosen = model.model.layers[index].having(recompute=("moe_act",), offload=("expert_fc1",))
    assert chosen.in_force["kept"] < chosen.activation
