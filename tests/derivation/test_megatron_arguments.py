"""Arguments of Megatron-LM that derived costs assume, and what no argument says."""

from __future__ import annotations

from typing import Any

import pytest

from ppopt import InputError, Layer, Model, Pipeline, derive_model
from ppopt.formats.trainer_partition import megatron_arguments
from tests.factories.configs import DEEPSEEK_V3, LLAMA_8B, Config

PLAIN = ["--bf16", "--attention-dropout 0", "--hidden-dropout 0"]
SHARDED = "--use-distributed-optimizer"
FP8 = ["--bf16", "--fp8-format hybrid", "--fp8-recipe tensorwise", "--fp8-param-gather", SHARDED]
EXPERTS = ["--moe-grouped-gemm", "--moe-token-dispatcher-type alltoall"]


@pytest.mark.parametrize(
    ("config", "training", "arguments"),
    [
        (LLAMA_8B, {}, PLAIN),
        (LLAMA_8B, {"data": 2}, ["--bf16", SHARDED, *PLAIN[1:]]),
        (LLAMA_8B, {"data": 2, "zero": 0}, PLAIN),
        (LLAMA_8B, {"tensor": 2}, ["--bf16", "--sequence-parallel", *PLAIN[1:]]),
        (LLAMA_8B, {"tensor": 2, "sequence_parallel": False}, PLAIN),
        (LLAMA_8B, {"precision": "fp8"}, [*FP8, *PLAIN[1:]]),
        (
            LLAMA_8B,
            {"precision": "fp8", "zero": 0, "bf16_end": 2},
            [
                *("--bf16", "--first-last-layers-bf16", "--num-layers-at-start-in-bf16 0"),
                *("--num-layers-at-end-in-bf16 2", "--fp8-format hybrid"),
                *("--fp8-recipe tensorwise", *PLAIN[1:]),
            ],
        ),
        (
            LLAMA_8B,
            {"precision": "fp8", "zero": 0},
            ["--bf16", "--fp8-format hybrid", "--fp8-recipe tensorwise", *PLAIN[1:]],
        ),
        (
            LLAMA_8B,
            {"precision": "fp8", "fp8_recipe": "blockwise"},
            ["--bf16", "--fp8-format hybrid", "--fp8-recipe blockwise", *PLAIN[1:]],
        ),
        (
            LLAMA_8B,
            {"context": 2, "context_type": "all-to-all"},
            ["--bf16", SHARDED, "--cp-comm-type a2a", *PLAIN[1:]],
        ),
        (LLAMA_8B, {"dropout": True}, ["--bf16"]),
        (
            LLAMA_8B,
            {"attention": "unfused"},
            ["--bf16", "--attention-backend unfused", *PLAIN[1:]],
        ),
        (LLAMA_8B, {"cuda_graphs": True}, ["--bf16", "--cuda-graph-impl local", *PLAIN[1:]]),
        (LLAMA_8B, {"attention": "fa2"}, ["--bf16", "--attention-backend flash", *PLAIN[1:]]),
        (
            LLAMA_8B,
            {"data": 2, "zero": 2},
            ["--bf16", SHARDED, "--use-megatron-fsdp",
             "--data-parallel-sharding-strategy optim_grads", "--ckpt-format fsdp_dtensor",
             *PLAIN[1:]],
        ),
        (DEEPSEEK_V3, {}, [*PLAIN, *EXPERTS, "--expert-tensor-parallel-size 1"]),
        (
            DEEPSEEK_V3,
            {"dispatcher": "flex"},
            [*PLAIN, EXPERTS[0], "--moe-token-dispatcher-type flex",
             "--moe-flex-dispatcher-backend deepep", "--expert-tensor-parallel-size 1"],
        ),
        (
            DEEPSEEK_V3,
            {"overlap": ("dispatch", "wgrad")},
            [*PLAIN[:1], "--overlap-moe-expert-parallel-comm", "--delay-wgrad-compute", *PLAIN[1:],
             *EXPERTS, "--expert-tensor-parallel-size 1"],
        ),
        (LLAMA_8B, {"framework": "torch", "data": 2}, []),
    ],
)  # fmt: skip
def test_arguments_that_the_costs_assume(
    config: Config, training: dict[str, Any], arguments: list[str]
) -> None:
    pipeline = derive_model(config, gpu="h100", devices=2, **training).pipeline
    assert pipeline.training is not None
    assert list(pipeline.training.arguments or ()) == arguments
    written = megatron_arguments(pipeline).splitlines()
    assert set(arguments) <= set(written)
    assert len(written) == len(set(written))


def test_overlap_is_what_costs_around_the_microbatches_assume() -> None:
    """Megatron-LM gathers parameters in parallel only with a distributed optimizer."""
    overlaps = ("--overlap-grad-reduce", "--overlap-param-gather", SHARDED)

    def written(**costs: float) -> list[bool]:
        layers = [Layer(1, role=role, **costs) for role in ("embedding", "decoder", "head")]
        lines = megatron_arguments(Model(tuple(layers)).pipeline(devices=1, batches=1))
        return [argument in lines.splitlines() for argument in overlaps]

    assert written() == [False, False, False]
    assert written(gradient_sync=1) == [True, False, False]
    assert written(gradient_sync=1, unshard=1) == written(unshard=1) == [True, True, True]
    derived = derive_model(LLAMA_8B, gpu="h100", devices=2, data=2).pipeline
    lines = megatron_arguments(derived).splitlines()
    assert all(lines.count(argument) == 1 for argument in overlaps)


@pytest.mark.parametrize(
    ("config", "training", "assumed"),
    [
        (LLAMA_8B, {}, None),
        (DEEPSEEK_V3, {}, ("tokens that are spread evenly over the experts",)),
        (
            LLAMA_8B,
            {"lora": 8},
            ("adapters of rank 8, which Megatron-Bridge adds to Megatron-LM",),
        ),
        (LLAMA_8B, {"freeze": ("embedding", "head")}, ("frozen parts: embedding, head",)),
        (
            LLAMA_8B,
            {"framework": "torch"},
            ("the kernels and the memory of torch, not those of Megatron-LM",),
        ),
        (
            LLAMA_8B,
            {"zero": 3, "data": 2},
            ("weights that are gathered, and gradients that are reduced, once in a step",),
        ),
    ],
)
def test_assumptions_without_an_argument(
    config: Config, training: dict[str, Any], assumed: tuple[str, ...] | None
) -> None:
    pipeline = derive_model(config, gpu="h100", devices=2, **training).pipeline
    assert pipeline.training is not None and pipeline.training.assumes == assumed


@pytest.mark.parametrize("lines", ["--bf16", [1], ["--a\n--b"], {"--bf16": True}])
def test_what_is_no_list_of_lines_is_refused(lines: object) -> None:
    with pytest.raises(InputError, match=r"training: arguments: .* is no list of lines"):
        Pipeline(stages=2, batches=2, training={"arguments": lines})
