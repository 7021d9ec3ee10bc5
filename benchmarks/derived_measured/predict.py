"""Predicts a run: dimensions, training, derived model, schedule, step and memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from benchmarks.derived_measured import recipes
from benchmarks.derived_measured.architectures import architecture_of
from benchmarks.derived_measured.machines import gpu_of
from benchmarks.derived_measured.runs import (
    BIGSCIENCE,
    KORTHIKANTI,
    LLAMA_3,
    LLM_FOUNDRY,
    MEGATRON_CI,
    SC21,
    NotPredictedError,
    Run,
)
from ppopt import DerivedModel, InputError, Pipeline, Schedule, evaluate
from ppopt.derivation.architecture import Architecture
from ppopt.derivation.gpus import FUSED, UNFUSED, Gpu, Precision
from ppopt.derivation.layer_costs import AS_DERIVED, Scale
from ppopt.derivation.training import ContextType, Loss, Overlap, Training
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.objective import Objective
from ppopt.schedule.orders import codes

STRATEGIES = {
    "1f1b": "1f1b",
    "interleaved": "interleaved",
    "1f1b-i": "interleaved",
    "zb-1p": "zb-1p",
    "zb-2p": "zb-2p",
    "zb-v": "zbv",
    "zb-h1": "zb-h1",
    "dualpipe": "dualpipe",
}
"""Strategies by the first word of a row's schedule in lower case."""
COMBINED = {"1f1b": "1f1b-overlap", "interleaved": "interleaved-overlap"}
"""Strategies whose F and BW run as one where exchanges of experts overlap."""
SPLIT = ("zb-h1", "zb-1p", "zb-2p", "zbv")
"""Strategies whose backwards are split."""
VALIDATED_LATER = ("zb-1p", "zb-2p", "zbv")
LLAMA_3_CHUNKS = 8
"""Not published; 126 layers, embedding and head count as a layer each on 16 ranks."""


@dataclass(frozen=True)
class Setup:
    """All that a prediction depends on."""

    architecture: Architecture
    training: Training
    gpu: Gpu
    strategy: str = "1f1b"
    chunks: int = 1
    partition: str | tuple[int, ...] | None = "even"
    recompute: str = "none"
    scale: Scale = AS_DERIVED

    @property
    def objective(self) -> Objective:
        """What a step is: the device span where optimizers do not wait for each other.

        The zero-bubble paper's strategies validate the gradients' norm behind the optimizer step
        (arXiv 2401.10241, section 4), so that steps follow each other at the device span.
        """
        return Objective.DEVICE_SPAN if self.strategy in VALIDATED_LATER else Objective.MAKESPAN


@dataclass(frozen=True)
class Prediction:
    """A step in ms, its parts on the busiest device, and memory in MiB per device."""

    step: float
    memory: tuple[float, ...]
    compute: float
    communication: float
    """Exposed collectives of F and the backwards."""
    bubble: float
    around: float
    """Before the first F and after the last backward: gathering weights, reduction of gradients,
    optimizer."""
    optimizer: float
    flops: float
    """FLOPs that the model needs for a step, of all GPUs of a copy of the pipeline."""
    hidden: int


def setup_of(run: Run) -> Setup:
    """How a run is predicted; raises NotPredictedError with the reason if it is not."""
    run.check()
    if run.row.get("mem_kind") == "out of memory":
        raise NotPredictedError("out of memory: nothing measured")
    gpu = gpu_of(run)
    architecture = architecture_of(run)
    if run.row.get("task") == "lora":
        raise NotPredictedError("LoRA: frozen weights")
    training = _training(run)
    strategy, chunks = _schedule(run)
    if Overlap.DISPATCH in training.overlap:
        strategy = COMBINED.get(strategy, strategy)
    layers = sum(layer.count for layer in architecture.runs)
    return Setup(
        architecture=architecture,
        training=training,
        gpu=gpu,
        strategy=strategy,
        chunks=chunks,
        partition=_partition(layers, run.count("pp") * chunks, strategy),
        recompute=recipes.recompute(run),
    )


def _training(run: Run) -> Training:
    """The training of a run.

    Recipes of Megatron-Bridge set an expert tensor size of 1 and a dispatcher by GPU, DeepEP or
    HybridEP (`apply_flex_dispatcher_backend` in src/megatron/bridge at 067f987).
    The loss of MPT is fused (llmfoundry/models/mpt/modeling_mpt.py of mosaicml/llm-foundry).
    """
    bf16_start, bf16_end = recipes.ends_in_bf16(run)
    bridge, foundry = run.source.startswith("Megatron-Bridge"), run.source == LLM_FOUNDRY
    try:
        return Training(
            devices=run.count("pp"),
            batches=run.batches,
            tensor=run.count("tp"),
            context=run.count("cp"),
            data=run.data,
            expert=run.count("ep"),
            sequence=run.sequence,
            microbatch=run.microbatch,
            precision=Precision(run.precision),
            fp8_recipe=run.fp8_recipe,
            bf16_start=bf16_start,
            bf16_end=bf16_end,
            zero=_zero(run),
            expert_tensor=run.row.get("etp", 1 if bridge else None),
            dispatcher=recipes.dispatcher(run),
            sequence_parallel=_sequence_parallel(run),
            attention=_attention_kernel(run),
            dropout=_dropout(run),
            context_type=ContextType.ALL_GATHER if run.source == LLAMA_3 else ContextType.RING,
            loss=Loss.FUSED if bridge or foundry else Loss.DEFAULT,
            overlap=recipes.overlap(run),
            gradient_bytes=recipes.gradient_bytes(run),
            cuda_graphs=recipes.uses_cuda_graphs(run),
            framework=_framework(run),
        )
    except InputError as error:
        raise NotPredictedError(_first_sentence(error)) from error


def _zero(run: Run) -> int:
    """Stage of ZeRO: 3 where weights are sharded; 1 if the row does not say it.

    SC21's Megatron-LM had no distributed optimizer yet.
    """
    if run.shards_weights and run.source != LLAMA_3:
        return 3
    return int(run.row.get("zero", 0 if run.source == SC21 else 1))


def _sequence_parallel(run: Run) -> bool:
    """Whether tensor-parallel ranks share the tokens between matrices.

    Megatron-LM does since arXiv 2205.05198, whose rows say so; its functional tests say so, too.
    """
    if run.source in (BIGSCIENCE, SC21):
        return False
    if run.source == KORTHIKANTI or run.source.startswith(MEGATRON_CI):
        return "sequence parallel" in f"{run.note} {run.row.get('recompute')}"
    return True


def scores_in_memory(run: Run) -> bool:
    """Whether attention writes its scores: before FlashAttention was in Megatron-LM.

    The zero-bubble paper does not say it; its memory does, which has room for 5 bytes a score.
    """
    return run.source in (BIGSCIENCE, SC21, KORTHIKANTI) or run.source.startswith("Zero-bubble")


def _framework(run: Run) -> str:
    """The framework: PyTorch for MPT, Megatron-DeepSpeed for BigScience, Megatron-LM otherwise."""
    return {LLM_FOUNDRY: "torch", BIGSCIENCE: "deepspeed"}.get(run.source, "megatron")


def _attention_kernel(run: Run) -> str:
    """The kernel of attention; llm-foundry's runs are of 2023."""
    if scores_in_memory(run):
        return UNFUSED
    return "fa2" if run.source == LLM_FOUNDRY else FUSED


def _dropout(run: Run) -> bool:
    """Whether a run has Megatron-LM's default, dropout of 0.1; recipes of later models set 0."""
    ci = run.source.startswith(MEGATRON_CI) and run.model.startswith("gpt/")
    return ci or scores_in_memory(run)


def _schedule(run: Run) -> tuple[str, int]:
    """Strategy and chunks per device."""
    stages, chunks = run.count("pp"), run.count("vp")
    if stages == 1:
        return "1f1b", 1
    if run.source == LLAMA_3:
        return "interleaved", LLAMA_3_CHUNKS
    if run.source == SC21:
        cut = int(run.row["layers"]) % (2 * stages) or run.batches % stages
        return ("1f1b", 1) if cut else ("interleaved", 2)
    named = str(run.row.get("schedule") or "").lower().partition(" ")[0]
    if not named:
        named = "interleaved" if chunks > 1 else "1f1b"
    if named not in STRATEGIES:
        raise NotPredictedError(f"schedule {named} is not predicted")
    strategy = STRATEGIES[named]
    return ("1f1b", 1) if strategy == "interleaved" and chunks == 1 else (strategy, chunks)


def _partition(layers: int, stages: int, strategy: str) -> str | tuple[int, ...] | None:
    """Layers per stage: embedding and head count as a layer each where only this is even."""
    if strategy == "dualpipe":
        return None
    if layers % stages and not (layers + 2) % stages:
        return ((layers + 2) // stages,) * stages
    return "even"


def predict(run: Run) -> Prediction:
    """Predict a run; raises NotPredictedError with the reason if it cannot be."""
    return predicted(setup_of(run))


@cache
def predicted(setup: Setup) -> Prediction:
    """Predict a setup; raises NotPredictedError if the model or the strategy refuses it."""
    try:
        model = model_of(setup)
        schedule = evaluate(pipeline_of(setup), setup.strategy, setup.objective)
    except InputError as error:
        raise NotPredictedError(_first_sentence(error)) from error
    return _prediction(setup, model, schedule)


@cache
def model_of(setup: Setup) -> DerivedModel:
    """The derived model of a setup; raises InputError if its ranks cannot share it."""
    return DerivedModel(
        setup.architecture,
        setup.training,
        setup.gpu,
        scale=setup.scale,
        partition=setup.partition if setup.chunks == 1 else None,
    )


def pipeline_of(setup: Setup) -> Pipeline:
    """The pipeline of a setup, without a memory limit."""
    return replace(
        model_of(setup).pipeline,
        mem_limit=None,
        chunks=setup.chunks if setup.chunks > 1 else None,
        partition=setup.partition,
        recompute=None if setup.recompute == "none" else setup.recompute,
    )


def _prediction(setup: Setup, model: DerivedModel, schedule: Schedule) -> Prediction:
    """Step, memory and parts of a schedule."""
    pipeline, metrics = schedule.pipeline, schedule.metrics
    step = float(metrics.value(setup.objective))
    device = metrics.busy_ticks.index(max(metrics.busy_ticks))
    stages = [stage for stage, host in enumerate(pipeline.hosts[0]) if host == device]
    computing = int(schedule.end.max() - schedule.start.min())
    around = float(schedule.makespan) - float(pipeline.ticks.time(computing))
    optimizer = float(sum(pipeline.costs.optimizer[stage] for stage in stages))
    communication = pipeline.batches * sum(
        _communication(setup, model, pipeline, stage) for stage in stages
    )
    busy = float(metrics.busy[device])
    communication -= float(pipeline.ticks.time(_hidden(schedule, device)))
    return Prediction(
        step=step,
        memory=tuple(map(float, schedule.peak_memory)),
        compute=busy - communication - optimizer,
        communication=communication,
        bubble=step - around - (busy - optimizer),
        around=around,
        optimizer=optimizer,
        flops=float(pipeline.flops_per_microbatch or 0) * pipeline.batches,
        hidden=setup.architecture.hidden,
    )


def _hidden(schedule: Schedule, device: int) -> int:
    """Ticks that overlapped pairs of a device save."""
    durations = Instance.of(schedule.pipeline, BackwardKind.MIXED).durations
    alone = int(durations[codes(schedule.orders[device])].sum())
    own = (schedule.device == device) & ~schedule.seconds
    return alone - int((schedule.end - schedule.start)[own].sum())


def _communication(setup: Setup, model: DerivedModel, pipeline: Pipeline, stage: int) -> float:
    """Exposed communication of a microbatch in a stage, in ms."""
    layers = [layer for layer in model.layers for _ in range(layer.count)]
    first = sum(pipeline.counts[:stage])
    split = setup.strategy in SPLIT
    times = [layer.communication for layer in layers[first : first + pipeline.counts[stage]]]
    forwards = 1 + (setup.recompute == "full")
    return sum(
        forwards * time.forward + (time.input + time.weight if split else time.backward)
        for time in times
    )


def _first_sentence(error: InputError) -> str:
    """The first sentence of an error, without its numbers' remedy."""
    return str(error).partition(";")[0]
