"""What the costs of a derived model assume of Megatron-LM: arguments, and what no argument says.

Names and defaults are those of megatron/training/arguments.py and
megatron/core/transformer/transformer_config.py of Megatron-LM, d98e8a6. Arguments that
`ppopt.formats.trainer_partition` writes by the pipeline are left out: sizes, layout, recompute, and
the overlap of gradient reduction and of parameter gathers.
"""

from __future__ import annotations

from collections.abc import Iterator

from ppopt.derivation.architecture import Architecture
from ppopt.derivation.expert_loads import ExpertLoads
from ppopt.derivation.gpus import FUSED, UNFUSED, Precision
from ppopt.derivation.training import (
    ELEMENT,
    MEGATRON,
    ContextType,
    Dispatcher,
    Loss,
    Overlap,
    Training,
)
from ppopt.problem.training_sizes import TEXTS, TrainingSizes

EXCHANGES = {
    ContextType.RING: "p2p",
    ContextType.ALL_GATHER: "all_gather",
    ContextType.ALL_TO_ALL: "a2a",
}
SHARDED = {2: "optim_grads", 3: "optim_grads_params"}
"""`--data-parallel-sharding-strategy` by the stage of ZeRO."""


def sizes_of(training: Training, architecture: Architecture) -> TrainingSizes:
    """The sizes of a training, with the arguments and assumptions of its costs."""
    return TrainingSizes(
        **{name: getattr(training, name) for name in TrainingSizes._fields if name not in TEXTS},
        arguments=tuple(_arguments(training, architecture)),
        assumes=tuple(_assumptions(training, architecture)) or None,
    )


def _arguments(training: Training, architecture: Architecture) -> Iterator[str]:
    if training.framework != MEGATRON:
        return
    yield from _precision(training)
    yield from ["--sequence-parallel"] * (training.tensor > 1 and training.sequence_parallel)
    yield from ["--tp-comm-overlap"] * (Overlap.TENSOR in training.overlap)
    yield from ["--overlap-moe-expert-parallel-comm"] * (Overlap.DISPATCH in training.overlap)
    yield from ["--delay-wgrad-compute"] * (Overlap.WEIGHT in training.overlap)
    yield from ["--cross-entropy-loss-fusion"] * (training.loss is Loss.FUSED)
    yield from ["--cuda-graph-impl local"] * training.cuda_graphs
    yield from _sharding(training)
    yield from _attention(training)
    if architecture.has_experts:
        yield from _experts(training)


def _precision(training: Training) -> Iterator[str]:
    yield "--bf16"
    if not training.keeps_fp8:
        return
    if training.bf16_start or training.bf16_end:
        yield "--first-last-layers-bf16"
        yield f"--num-layers-at-start-in-bf16 {training.bf16_start}"
        yield f"--num-layers-at-end-in-bf16 {training.bf16_end}"
    if training.precision is Precision.NVFP4:
        yield "--fp4-format e2m1"
        yield "--fp4-recipe nvfp4"
        return
    is_mxfp8 = training.fp8_recipe == "mxfp8"
    yield f"--fp8-format {'e4m3' if is_mxfp8 else 'hybrid'}"
    yield f"--fp8-recipe {training.fp8_recipe}"
    if training.stores_fp8_weights:
        yield "--fp8-param-gather"
        yield from ["--reuse-grad-buf-for-mxfp8-param-ag"] * is_mxfp8


def _sharding(training: Training) -> Iterator[str]:
    if training.zero and (training.ranks > 1 or training.stores_fp8_weights):
        yield "--use-distributed-optimizer"
    if training.zero in SHARDED and training.ranks > 1:
        yield "--use-megatron-fsdp"
        yield f"--data-parallel-sharding-strategy {SHARDED[training.zero]}"
        yield "--ckpt-format fsdp_dtensor"
    if training.copies > 1:
        yield f"--num-distributed-optimizer-instances {training.copies}"
    if training.gradient_bytes == ELEMENT:
        yield "--grad-reduce-in-bf16"


def _attention(training: Training) -> Iterator[str]:
    if training.context > 1:
        yield f"--cp-comm-type {EXCHANGES[training.context_type]}"
    if training.attention != FUSED:
        yield f"--attention-backend {UNFUSED if training.attention == UNFUSED else 'flash'}"
    if not training.dropout:
        yield "--attention-dropout 0"
        yield "--hidden-dropout 0"


def _experts(training: Training) -> Iterator[str]:
    yield "--moe-grouped-gemm"
    yield f"--moe-token-dispatcher-type {training.dispatcher}"
    if training.dispatcher is Dispatcher.FLEX:
        yield "--moe-flex-dispatcher-backend deepep"
    yield f"--expert-tensor-parallel-size {training.of_expert}"


def _spread(training: Training) -> str:
    """How tokens are spread over experts."""
    factor, loads = training.imbalance, training.expert_imbalance
    if factor == 1:
        return "tokens that are spread evenly over the experts"
    source = f" ({loads})" if isinstance(loads, ExpertLoads) else ""
    return f"experts of the largest load with {factor:.4g} times the mean of tokens{source}"


def _assumptions(training: Training, architecture: Architecture) -> Iterator[str]:
    if training.framework != MEGATRON:
        yield f"the kernels and the memory of {training.framework}, not those of Megatron-LM"
    if architecture.has_experts:
        yield _spread(training)
    if training.lora:
        yield f"adapters of rank {training.lora}, which Megatron-Bridge adds to Megatron-LM"
    if training.freeze:
        yield f"frozen parts: {', '.join(training.freeze)}"
    if training.zero in SHARDED and training.ranks > 1 and not training.reshards:
        yield "weights that are gathered, and gradients that are reduced, once in a step"
