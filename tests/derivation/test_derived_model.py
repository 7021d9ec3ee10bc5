"""Models derived from a configuration: their costs, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import ppopt
from ppopt import InputError, derive_model
from ppopt.derivation.collectives import Collective, Group, Pattern
from ppopt.derivation.derived_layer import NO_STEP_COSTS
from ppopt.derivation.explanation import explain
from ppopt.derivation.gpus import gpu_named
from ppopt.derivation.training import Training
from ppopt.errors import ConflictError
from ppopt.problem.cost_table import STEP_FIELDS
from tests.factories.configs import CONFIGS, DEEPSEEK_V3, LLAMA_8B, LLAMA_70B, Config


@pytest.mark.parametrize(
    ("config", "training", "name"),
    [
        (LLAMA_8B, {"data": 8, "sequence": 8192}, "llama-3.1-8b"),
        (LLAMA_8B, {"tensor": 2, "context": 8, "sequence": 131072}, "llama-3.1-8b-128k"),
        (LLAMA_70B, {"tensor": 8, "data": 4, "sequence": 8192}, "llama-3.1-70b"),
        (DEEPSEEK_V3, {"data": 128, "expert": 64, "devices": 16}, "deepseek-v3"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_layers_are_those_of_the_models_that_come_along(
    config: Config, training: dict[str, int], name: str, tmp_path: Path
) -> None:
    """They are derived from the same dimensions, published elsewhere, at the rate of products alone
    (`benchmarks.derived_models`)."""
    gpu = tmp_path / "h100.toml"
    gpu.write_text('like = "h100"\nmatrix_efficiency = 0.748\nlaunch_time = 0\n')
    derived = derive_model(config, gpu=str(gpu), **training)
    stored_model = ppopt.read_pipeline(name)
    assert stored_model.model is not None
    unshipped: dict[str, Any] = {"modules": (), "offload_time": 0, "offload_memory": 0}
    for layer, shipped in zip(derived.model.layers, stored_model.model.layers, strict=True):
        once = dict.fromkeys(STEP_FIELDS, 0)
        assert replace(layer, **once, **unshipped) == replace(shipped, **once)
    for figure in ("tokens_per_microbatch", "flops_per_microbatch", "peak_flops"):
        assert getattr(derived.pipeline, figure) == getattr(stored_model, figure)


def test_a_file_says_what_it_is_and_reads_back() -> None:
    model = derive_model(LLAMA_8B, gpu="H100", devices=2, batches=4, tensor=2, data=3)
    assert "nothing was measured on this model" in model.text and "8,030,261,248" in model.text
    assert "of 989.4 TFLOP/s (h100, bf16)" in model.text
    assert repr(model) == ("<DerivedModel LlamaForCausalLM, 8,030,261,248 parameters, 12 x h100>")
    assert (model.pipeline.num_devices, model.pipeline.batches) == (2, 4)
    assert model.pipeline.limits == (75366,) * 2  # 0.92 x 80 GiB


def test_two_sequences_a_microbatch_take_less_than_twice_as_much() -> None:
    """Activations double; times less, for kernels start and gradients add up once in each."""
    single, two = (derive_model(LLAMA_8B, gpu="h100", microbatch=size) for size in (1, 2))
    for before, after in zip(single.layers[1:], two.layers[1:], strict=True):
        assert 1.7 * before.forward < after.forward < 2 * before.forward
        assert 1.7 * before.backward < after.backward < 2 * before.backward
        assert (after.activation, after.static) == (2 * before.activation, before.static)


def test_fp8_is_faster_in_products_alone() -> None:
    """1978.9 TFLOP/s where BF16 has 989.4; attention and memory traffic take as long.

    Casts move 4 bytes an element: in F of the inputs of output and down, which no norm casts; in B
    of the gradients of all outputs.
    """
    bf16, fp8 = (
        derive_model(LLAMA_8B, gpu="h100", precision=name).layers[1] for name in ("bf16", "fp8")
    )
    gpu = gpu_named("h100")
    work = 2 * 218_103_808 * 4096 + 4 * gpu.matrix_overhead
    products = 1000 * work / (gpu.bf16 * gpu.matrix_efficiency)
    saved = products * (1 - 989.4 / 1978.9)
    cast = 1000 * 4 * 4096 / (gpu.memory_speed * gpu.memory_efficiency)
    outputs = 6144 + 4096 + 2 * 14336 + 4096
    assert bf16.forward - fp8.forward == pytest.approx(saved - cast * (4096 + 14336), abs=0.003)
    assert bf16.backward - fp8.backward == pytest.approx(2 * saved - cast * outputs, abs=0.003)


def test_weights_that_are_not_stored_in_fp8_are_cast_in_every_microbatch() -> None:
    """PyTorch's Float8Linear casts inputs, gradients and weights, in F and in B."""
    model = derive_model(LLAMA_8B, gpu="h100", precision="fp8", framework="torch-compile")
    mlp = next(part for part in model.layers[1].parts if part.name == "mlp")
    casts = [
        sum(k.traffic for k in kernels if k.name == "casts") for kernels in (mlp.forward, mlp.input)
    ]
    weights, tokens = 3 * 4096 * 14336, 4096
    assert casts == [
        4 * (weights + tokens * (4096 + 14336)),
        4 * (weights + tokens * (2 * 14336 + 4096)),
    ]


def test_layers_at_the_ends_in_bf16() -> None:
    """They are as in a model in BF16, of which they are layers."""
    fields = {"gpu": "b200", "devices": 1, "sequence": 8192}
    plain, mixed, low = (
        derive_model(LLAMA_8B, **fields, **more).layers[1:-1]
        for more in (
            {},
            {"precision": "nvfp4", "bf16_start": 1, "bf16_end": 14},
            {"precision": "nvfp4"},
        )
    )
    assert [layer.count for layer in mixed] == [1, 17, 14]
    for layer, likewise in zip(mixed, (plain[0], low[0], plain[0]), strict=True):
        assert replace(layer, count=32) == likewise
    every = derive_model(LLAMA_8B, **fields, precision="nvfp4", bf16_end=32).layers[1:-1]
    assert every == plain
    with pytest.raises(ConflictError, match=r"bf16_start: 20 \+ 13 layers"):
        derive_model(LLAMA_8B, **fields, bf16_start=20, bf16_end=13)


def test_nvfp4() -> None:
    """Products at the FP4 peak; an input has 0.5625 bytes an element, a weight two such copies."""
    graphs = {"fp8_recipe": "mxfp8", "cuda_graphs": True}
    fp8, fp4 = (
        derive_model(LLAMA_8B, gpu="b200", data=8, precision=name, **graphs).layers[1]
        for name in ("fp8", "nvfp4")
    )
    assert fp4.forward < fp8.forward and fp4.activation < fp8.activation
    weights = 4096 * (4096 + 2 * 1024 + 4096) + 3 * 4096 * 14336
    assert fp4.static == pytest.approx((2 + 2 * 0.5625 + 4 + 12 / 8) * weights / 2**20, abs=1)
    text = derive_model(LLAMA_8B, gpu="b200", precision="nvfp4").text
    assert "NVFP4: 0.5625 bytes for an element" in text and "--fp4-recipe nvfp4" in text
    with pytest.raises(InputError, match="h100 has no nvfp4"):
        derive_model(LLAMA_8B, gpu="h100", precision="nvfp4")


@pytest.mark.parametrize(
    ("config", "launches"),
    # Dense F: 2 norms, 2 products and attention, 2 rotary embeddings, 2 products and an activation
    # function, 2 additions; BW: 4 of norms, 3 of attention, W of 4 products, 2 of accumulation
    [(LLAMA_8B, (12, 22)), (CONFIGS["Qwen/Qwen3-30B-A3B"], (29, 43))],
    ids=["dense", "experts"],
)
def test_a_short_layer_is_as_long_as_its_launches(
    config: Config, launches: tuple[int, ...]
) -> None:
    """256 tokens: 140 us a kernel; half under torch-compile; none with CUDA graphs."""
    eager, compiled, graphs = (
        derive_model(config, gpu="h100", sequence=256, **options).layers[1]
        for options in ({}, {"framework": "torch-compile"}, {"cuda_graphs": True})
    )
    assert [eager.forward, eager.backward] == pytest.approx([0.14 * each for each in launches])
    assert compiled.forward == pytest.approx(eager.forward / 2)
    assert graphs.forward < 0.2 * eager.forward


def test_deepspeed_takes_a_millisecond_more_for_every_operation() -> None:
    """F, B and W of a layer each; BW two, as B and W."""
    megatron, deepspeed = (
        derive_model(LLAMA_8B, gpu="h100", sequence=8192, framework=name).layers[1]
        for name in ("megatron", "deepspeed")
    )
    for kind, more in (("forward", 1), ("input", 1), ("weight", 1), ("backward", 2)):
        assert getattr(deepspeed, kind) == pytest.approx(getattr(megatron, kind) + more)
    assert deepspeed.activation == megatron.activation


def test_a_long_layer_does_not_wait_for_launches() -> None:
    """The CPU is ahead of the GPU: 8192 tokens take as long with and without CUDA graphs."""
    eager, graphs = (
        derive_model(LLAMA_8B, gpu="h100", sequence=8192, cuda_graphs=on).layers[1]
        for on in (False, True)
    )
    assert eager.forward == graphs.forward and eager.backward == graphs.backward


def test_an_older_kernel_of_attention_takes_longer() -> None:
    """FlashAttention-2 on an H100: 2.6 times the time of attention, in F and in B, and no more."""
    today, older = (derive_model(LLAMA_8B, gpu="h100", attention=name) for name in ("fused", "fa2"))
    forward, backward = (item.milliseconds for item in explain(today) if item.name == "attention")
    before, after = (model.layers[1] for model in (today, older))
    assert after.forward - before.forward == pytest.approx(1.6 * forward, abs=0.002)
    split = today.training.style.split
    assert after.backward - before.backward == pytest.approx(1.6 * backward / split, abs=0.002)
    assert after.activation == before.activation
    with pytest.raises(
        InputError, match="'fa3' is unknown for a100; known are fused, unfused, fa2"
    ):
        derive_model(LLAMA_8B, gpu="a100", attention="fa3")


def test_a_split_backward_is_longer() -> None:
    """1.05 times the kernels of parts with weights; with tensor parallelism two gathers of 2 x 4096
    x 4096 bytes more."""
    alone, shared = (derive_model(LLAMA_8B, gpu="h100", tensor=n, cuda_graphs=True) for n in (1, 4))
    gather = Collective("x", Pattern.ALL_GATHER, 2 * 4096 * 4096, Group(4))
    twice = 2000 * gather.seconds(gpu_named("h100"), 8)
    for model, gathered in ((alone, 0), (shared, twice)):
        layer, costing = model.layers[1], model.costing
        weighty = [part for part in layer.parts if part.weight]
        kernels = costing.computing(weighty).backward
        longer = layer.input + layer.weight - layer.backward
        assert longer == pytest.approx(0.05 * kernels + gathered, abs=0.003)
        assert [part.name for part in weighty] == ["attention", "mlp"]
    assert shared.layers[1].communication.forward == pytest.approx(2 * twice, abs=0.002)
    assert alone.layers[1].communication == (0, 0, 0, 0)
    assert alone.layers[0].weight == alone.layers[0].backward  # it has no B


@pytest.mark.parametrize(
    ("zero", "bytes_per_parameter"),
    [(0, 2 + 4 + 12), (1, 2 + 4 + 12 / 8), (2, 2 + 4 / 8 + 12 / 8), (3, 2 / 8 + 4 + 12 / 8)],
)
def test_zero_shards_memory(zero: int, bytes_per_parameter: float) -> None:
    """A layer of 218,103,808 parameters over 8 ranks (arXiv 1910.02054, figure 1)."""
    layer = derive_model(LLAMA_8B, gpu="h100", data=8, zero=zero).layers[1]
    assert layer.static == -(-218_103_808 * bytes_per_parameter // 2**20)
    assert bool(layer.step.unshard) == (zero > 0)
    assert layer.step.unshard_memory == (2 * 218_103_808 / 2**20 if zero == 3 else 0)


def test_weights_that_are_resharded_are_gathered_in_parallel_with_compute() -> None:
    """FSDP: F takes max(F, gather), BW max(BW, gather + scatter); the first gather is exposed."""
    unsharded, resharded = (
        derive_model(
            LLAMA_8B,
            gpu="h100",
            devices=1,
            data=16,
            zero=3,
            sequence=1024,
            cuda_graphs=True,
            reshard_after_forward=mode,
        )
        for mode in ("never", "default")
    )
    costing, parameters = resharded.costing, 218_103_808
    group, gpu = Group(16), gpu_named("h100")
    gather = Collective("x", Pattern.ALL_GATHER, 2 * parameters, group).seconds(gpu, 8)
    scatter = Collective("x", Pattern.REDUCE_SCATTER, 4 * parameters, group).seconds(gpu, 8)
    compute, layer = unsharded.layers[1], resharded.layers[1]
    assert compute.forward < 1000 * gather < 1000 * scatter
    assert layer.forward == pytest.approx(1000 * gather, abs=1e-3)
    assert layer.input == max(compute.input, layer.forward)
    assert layer.weight == pytest.approx(1000 * scatter, abs=1e-3)
    assert layer.backward == pytest.approx(1000 * (gather + scatter), abs=1e-3)
    assert layer.communication.backward == pytest.approx(layer.backward - compute.backward)
    embedding = 1000 * sum(
        each.seconds(gpu, 8) for each in costing.data_parallel.gathers(resharded.layers[0].parts)
    )
    exposed = resharded.layers[0].forward - unsharded.layers[0].forward
    assert exposed == pytest.approx(embedding, abs=1e-3)
    long = {"gpu": "h100", "data": 16, "zero": 3, "devices": 1, "sequence": 16384}
    never = derive_model(LLAMA_8B, reshard_after_forward="never", **long).layers[1]
    always = derive_model(LLAMA_8B, **long).layers[1]
    assert (always.forward, always.backward) == (never.forward, never.backward)


def test_two_layers_are_gathered_at_a_time() -> None:
    """Of 416 MiB each in BF16, while one runs; in the backward its gradients in FP32, too."""
    unsharded, resharded = (
        derive_model(LLAMA_8B, gpu="h100", devices=1, data=16, zero=3, reshard_after_forward=mode)
        for mode in ("never", "always")
    )
    before, after = unsharded.layers[1], resharded.layers[1]
    assert before.step.unshard_memory == 416 and before.step.unshard > 0
    assert after.step._replace(optimizer=0) == NO_STEP_COSTS and after.step.optimizer > 0
    added = [large - small for small, large in zip(before.workspace, after.workspace, strict=True)]
    assert added == [2 * 416, 2 * 416 + 832]
    assert before.static - after.static == pytest.approx(832 * 15 / 16, abs=1)
    embedding = resharded.layers[0].workspace[0]  # 1002 MiB, and the first of the blocks
    assert embedding == 1002 + 416


def test_recompute_gathers_once_in_a_backward() -> None:
    """BW that recomputes takes max(F + BW, gather + scatter)."""
    for sequence in (1024, 4096):
        training = {"devices": 1, "data": 16, "zero": 3, "batches": 1, "sequence": sequence}
        unsharded, resharded = (
            derive_model(LLAMA_8B, gpu="h100", reshard_after_forward=mode, **training)
            for mode in ("never", "always")
        )
        compute, layer = unsharded.layers[1], resharded.layers[1]
        exchange = layer.backward if layer.communication.backward else 0
        whole = max(compute.forward + compute.backward, exchange)
        (full, none) = (
            replace(resharded.pipeline, recompute=mode, mem_limit=None) for mode in ("full", None)
        )
        longer, short = (ppopt.evaluate(each, "1f1b").makespan for each in (full, none))
        assert float(longer - short) == pytest.approx(32 * (whole - layer.backward), abs=0.1)


def test_resharding_needs_sharded_parameters() -> None:
    with pytest.raises(ConflictError, match=r"reshard_after_forward: always needs .* --zero 3"):
        Training(reshard_after_forward="always")


def test_once_in_a_step_by_hand() -> None:
    """Eight ranks in a node: gradients in FP32 are reduced, parameters in BF16 gathered; Adam."""
    gpu, parameters = gpu_named("h100"), 218_103_808
    step = derive_model(LLAMA_8B, gpu="h100", data=8).layers[1].step
    alpha = gpu.collective_fixed + 7 * gpu.collective_step
    bandwidth = gpu.node_bandwidth * gpu.all_gather[8]
    assert step.gradient_sync == pytest.approx(
        1000 * (alpha + 7 / 8 * 4 * parameters / bandwidth), abs=1e-3
    )
    assert step.unshard == pytest.approx(
        1000 * (alpha + 7 / 8 * 2 * parameters / bandwidth), abs=1e-3
    )
    traffic = parameters * (32 / 8 + 4)
    speed = gpu.memory_speed * gpu.memory_efficiency
    assert step.optimizer == pytest.approx(1000 * (traffic / speed + gpu.kernel_time), abs=1e-3)


def test_low_rank_adaptation() -> None:
    """Nothing but adapters is trained: static is little more than 2 bytes a parameter."""
    whole, tuned = (
        derive_model(LLAMA_8B, gpu="h100", lora=rank, cuda_graphs=True) for rank in (0, 16)
    )
    assert tuned.layers[0].frozen and tuned.layers[2].frozen and not tuned.layers[1].frozen
    layer, before = tuned.layers[1], whole.layers[1]
    assert layer.weight < 0.2 * before.weight and layer.step.optimizer < before.step.optimizer / 50
    assert 2 < layer.static * 2**20 / 218_103_808 < 2.2
    assert (
        ppopt.evaluate(tuned.pipeline, "1f1b").makespan
        < ppopt.evaluate(whole.pipeline, "1f1b").makespan
    )


def test_sharded_parameters_are_gathered_whether_trained_or_not() -> None:
    """ZeRO 3: of a frozen layer 2 bytes a parameter; of one with adapters these, too."""
    whole, frozen, tuned = (
        derive_model(LLAMA_8B, gpu="h100", data=8, zero=3, freeze=freeze, lora=lora).layers[1].step
        for freeze, lora in (((), 0), (("decoder",), 0), ((), 16))
    )
    assert frozen.unshard == whole.unshard > 0 and frozen.unshard_memory == whole.unshard_memory
    assert frozen.gradient_sync == frozen.optimizer == 0
    assert tuned.unshard > whole.unshard and tuned.gradient_sync < whole.gradient_sync / 2


def test_a_frozen_layer_has_no_weight_gradients_and_keeps_less() -> None:
    """Of 1088 MiB without the inputs of its matrices: 2 x 4096 and 14336 of 69632 elements."""
    trained, frozen = (
        derive_model(LLAMA_8B, gpu="h100", sequence=8192, freeze=freeze).layers[1]
        for freeze in ((), ("decoder",))
    )
    assert trained.activation == 1088
    assert frozen.activation == 1088 - 2 * 8192 * (2 * 4096 + 14336) // 2**20
    for framework in ("megatron", "torch", "torch-compile"):
        layer = derive_model(LLAMA_8B, gpu="h100", framework=framework, freeze=("decoder",))
        assert layer.layers[1].weight == 0
        assert layer.layers[1].backward == layer.layers[1].input


@pytest.mark.parametrize(
    ("training", "says"),
    [({}, True), ({"devices": 1}, False), ({"freeze": ("head",)}, False), ({"lora": 8}, False)],
)
def test_the_file_says_where_the_gradient_of_a_tied_matrix_is_reduced(
    training: dict[str, Any], *, says: bool
) -> None:
    """As the head's `gradient_sync`, also without data parallelism."""
    model = derive_model(LLAMA_8B | {"tie_word_embeddings": True}, gpu="h100", **training)
    assert (model.layers[-1].step.gradient_sync > 0) is says
    assert ("# head: its matrix is that of the embedding (tied)" in model.text) is says
    assert "(tied)" not in derive_model(LLAMA_8B, gpu="h100", **training).text


def test_a_tied_matrix_is_held_once_on_a_single_stage() -> None:
    """GPT-2: 50257 x 768 parameters of words. Two stages reduce their gradient together."""
    config = CONFIGS["openai-community/gpt2"]
    alone = derive_model(config, gpu="h100", devices=1, sequence=1024)
    two = derive_model(config, gpu="h100", devices=2, sequence=1024)
    embedding = 50257 * 768 * 18 / 2**20
    assert alone.layers[-1].static == 0 and two.layers[-1].static == pytest.approx(embedding, abs=1)
    assert alone.layers[-1].weight == two.layers[-1].weight
    assert two.layers[-1].step.gradient_sync > 0 == alone.layers[-1].step.gradient_sync


def test_the_head_stays_in_bf16() -> None:
    models = (derive_model(LLAMA_8B, gpu="h100", precision=name) for name in ("bf16", "fp8"))
    bf16, fp8 = (model.layers[-1] for model in models)
    kinds = ("forward", "input", "weight", "backward")
    assert all(getattr(bf16, kind) == getattr(fp8, kind) for kind in kinds)


def test_a_module_that_predicts_has_its_own_embedding() -> None:
    """DeepSeek-V3: 129280 x 7168 parameters."""
    model = derive_model(DEEPSEEK_V3, gpu="h200", devices=16, data=8, expert=8)
    embedding, _, block, prediction, _ = model.layers
    assert prediction.static - block.static > embedding.static


@pytest.mark.parametrize("modules", [1, 2])
def test_logits_of_predictions_are_computed_by_the_head(modules: int) -> None:
    """As in Megatron-LM: a head has as many products and losses as there are tokens to predict."""
    config = {**DEEPSEEK_V3, "num_nextn_predict_layers": modules}
    model, without = (derive_model(config, gpu="h200", devices=8, mtp=mtp) for mtp in (True, False))
    head, single = model.layers[-1], without.layers[-1]
    for figure in ("forward", "input", "backward", "activation", "flops"):
        assert getattr(head, figure) == pytest.approx((1 + modules) * getattr(single, figure), 1e-4)
    assert (head.static, head.workspace) == (single.static, single.workspace)
    block, *predictions = model.layers[-2 - modules : -1]
    assert predictions[0].workspace == block.workspace
    assert predictions[0].forward - block.forward < 0.2 * single.forward


def test_hidden_vectors_of_predictions_are_transferred_too() -> None:
    """Megatron-LM concatenates them, so that a cut behind one module passes on two."""
    config = {**DEEPSEEK_V3, "num_nextn_predict_layers": 2}
    partition = "Et*20|t*20|t*20|tm|m|L"
    model = derive_model(config, gpu="h100", devices=6, tensor=8, partition=partition)
    latency, *delays = (model.costing.transfer(states * 56 / 8) for states in range(4))
    delays = [delays[0]] * 3 + delays[1:]
    assert latency == 0.01 and model.pipeline.p2p == pytest.approx(delays, rel=1e-3)
    without = derive_model(config, gpu="h100", devices=6, tensor=8, mtp=False)
    assert float(without.pipeline.p2p) == pytest.approx(delays[0], abs=5e-4)


def test_frozen_matrices_need_two_thirds_of_the_flops() -> None:
    whole, tuned = (derive_model(LLAMA_8B, gpu="h100", lora=rank).pipeline for rank in (0, 16))
    scores = 32 * 3 * 0.5 * 4096 * 2 * 4096 * 32 * 256
    assert whole.flops_per_microbatch is not None and tuned.flops_per_microbatch is not None
    assert float(tuned.flops_per_microbatch) - scores == pytest.approx(
        4 / 6 * (float(whole.flops_per_microbatch) - scores)
    )


def test_frozen_parts() -> None:
    model = derive_model(LLAMA_8B, gpu="h100", freeze=("embedding", "decoder"))
    assert [layer.frozen for layer in model.layers] == [True, True, False]
    assert model.layers[1].weight == 0 and model.layers[1].step.optimizer == 0
    assert ppopt.evaluate(model.pipeline, "1f1b").makespan > 0


def test_modules_that_predict_further_tokens_may_be_left_out() -> None:
    with_them, without = (
        derive_model(DEEPSEEK_V3, gpu="h200", devices=8, mtp=mtp) for mtp in (True, False)
    )
    assert [layer.role for layer in with_them.layers][-2:] == ["mtp", "head"]
    assert "mtp" not in [layer.role for layer in without.layers]


def test_experts_are_spread_over_ranks() -> None:
    """Qwen3-30B-A3B, a layer: 128 experts of 3 x 2048 x 768, 8 a rank of 16; r = 16 / 16 for them.

    The rest: 2048 x 128 x 72 of attention and 2048 x 128 of the router; r = 16.
    """
    model = derive_model(CONFIGS["Qwen/Qwen3-30B-A3B"], gpu="h100", data=16, expert=16)
    own_experts, rest = 8 * 3 * 2048 * 768, 2 * 2048 * 128 * 36 + 2048 * 128
    static_bytes = own_experts * (6 + 12) + rest * (6 + Fraction(12, 16))
    assert model.layers[1].static == -(-static_bytes // 2**20)


def test_efficiency_scales_the_work() -> None:
    fast, slow = (derive_model(LLAMA_8B, gpu="h100", efficiency=e) for e in (0.5, 0.25))
    memory = 2 * fast.layers[1].forward - slow.layers[1].forward
    assert 0 < memory < 0.1 * fast.layers[1].forward  # norms, activation functions
    assert slow.layers[0] == fast.layers[0]  # memory traffic


REFUSED: dict[str, tuple[Config, dict[str, Any], str]] = {
    "gpu": (LLAMA_8B, {"gpu": "h10"}, "gpu: 'h10' is unknown; did you mean h100"),
    "fp8": (LLAMA_8B, {"gpu": "a100", "precision": "fp8"}, "a100 has no fp8"),
    "precision": (LLAMA_8B, {"precision": "int4"}, "'int4' is unknown; known are bf16, fp8"),
    "efficiency": (LLAMA_8B, {"efficiency": 1.5}, "1.5 is not within 0 .. 1"),
    "heads": (LLAMA_8B, {"tensor": 64}, "64 ranks cannot share 32 heads"),
    "keys": (LLAMA_8B, {"tensor": 16}, "16 ranks would copy 8 heads of keys and values"),
    "sequence": (LLAMA_8B, {"tensor": 8, "sequence": 100}, "100 tokens cannot be shared by 1 x 8"),
    "no experts": (LLAMA_8B, {"data": 2, "expert": 2}, "the model has no experts"),
    "experts": (DEEPSEEK_V3, {"data": 96, "expert": 96}, "96 ranks cannot share 256 experts"),
    "ranks": (DEEPSEEK_V3, {"data": 2, "expert": 4}, "4 does not divide data x context = 2"),
    "microbatch": (LLAMA_8B, {"microbatch": 0}, "microbatch: 0 is not within"),
    "zero": (LLAMA_8B, {"zero": 4}, "zero: 4 is not within 0 .. 3"),
    "recipe": (LLAMA_8B, {"fp8_recipe": "fast"}, "fp8_recipe: .fast. is unknown; known are tensor"),
    "framework": (LLAMA_8B, {"framework": "jax"}, "'jax' is unknown; known are megatron"),
    "context type": (LLAMA_8B, {"context_type": "rings"}, "'rings' is unknown; known are ring"),
    "heads of context": (
        LLAMA_8B,
        {"context": 16, "context_type": "all-to-all"},
        "context: 16 ranks cannot share 8 heads",
    ),
    "lora and frozen": (LLAMA_8B, {"lora": 8, "freeze": ("decoder",)}, "which are frozen"),
    "lora": (LLAMA_8B, {"lora": 5000}, "5000 is above the width of the model, 4096"),
    "no sequence parallelism": (
        DEEPSEEK_V3,
        {"tensor": 2, "sequence_parallel": False},
        "experts under tensor parallelism need sequence parallelism",
    ),
    "width of experts": (
        DEEPSEEK_V3,
        {"data": 3, "expert_tensor": 3},
        "3 ranks cannot share experts 2048 wide",
    ),
    "tensor of experts": (DEEPSEEK_V3, {"expert_tensor": 3}, "3 does not divide tensor x context"),
    "images": (
        CONFIGS["Qwen/Qwen3-VL-235B-A22B-Instruct"],
        {"images": 8},
        "8 x 576 tokens do not fit into a sequence of 4096",
    ),
    "freeze": (LLAMA_8B, {"freeze": ("all",)}, "'all' is unknown; known are embedding"),
    "expert ranks": (
        DEEPSEEK_V3,
        {"data": 4, "tensor": 2, "expert": 16, "expert_tensor": 1},
        "16 does not divide tensor x context x data / expert_tensor = 8",
    ),
    "devices": (LLAMA_8B, {"devices": 40}, "34 layers"),
    "link": (LLAMA_8B, {"link": "fast"}, "link"),
    "partition": (LLAMA_8B, {"partition": "Et*6|t*6L"}, "partition"),
}


@pytest.mark.parametrize(("config", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(config: Config, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        derive_model(config, **({"gpu": "h100"} | options))


def test_gpus_of_a_training() -> None:
    training = Training(devices=2, tensor=4, context=2, data=3, expert=6, sequence=8192)
    assert (training.gpus, training.ranks, training.all_tokens) == (48, 6, 8192)
    assert training.describe_parallelism() == "tensor 4, context 2, data 3, expert 6"
