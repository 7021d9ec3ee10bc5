"""Predicts a run: dimensions, training, derived model, schedule, step and memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from benchmarks.derived_measured.architectures import architecture_of
from benchmarks.derived_measured.machines import gpu_of, link_of
from benchmarks.derived_measured.runs import LLAMA_3, SC21, NotPredictedError, Run
from ppopt import DerivedModel, InputError, evaluate
from ppopt.derivation.architecture import Architecture
from ppopt.derivation.gpus import Gpu, Precision
from ppopt.derivation.training import Training

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
    link: str | None = None
    full_recompute: bool = False


@dataclass(frozen=True)
class Prediction:
    """A step in ms, its parts on the busiest device, and memory in MiB per device."""

    step: float
    memory: tuple[float, ...]
    compute: float
    bubble: float
    flops: float
    """FLOPs that the model needs for a step, of all GPUs of a copy of the pipeline."""
    hidden: int


def setup_of(run: Run) -> Setup:
    """How a run is predicted; raises NotPredictedError with the reason if it is not."""
    if run.row.get("mem_kind") == "out of memory":
        raise NotPredictedError("out of memory: nothing measured")
    gpu = gpu_of(run)
    architecture = architecture_of(run)
    if run.shards_weights and run.source != LLAMA_3:
        raise NotPredictedError("FSDP: weights are sharded")
    if run.row.get("task") == "lora":
        raise NotPredictedError("LoRA: frozen weights")
    if run.precision == "fp4":
        raise NotPredictedError("FP4")
    strategy, chunks = _schedule(run)
    layers = sum(layer.count for layer in architecture.runs)
    return Setup(
        architecture=architecture,
        training=_training(run),
        gpu=gpu,
        strategy=strategy,
        chunks=chunks,
        partition=_partition(layers, run.count("pp") * chunks, strategy),
        link=link_of(run),
        full_recompute=run.full_recompute,
    )


def _training(run: Run) -> Training:
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
        )
    except InputError as error:
        raise NotPredictedError(_first_words(error)) from error


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
        model = DerivedModel(
            setup.architecture,
            setup.training,
            setup.gpu,
            partition=setup.partition if setup.chunks == 1 else None,
            link=setup.link,
        )
        pipeline = replace(
            model.pipeline,
            mem_limit=None,
            chunks=setup.chunks if setup.chunks > 1 else None,
            partition=setup.partition,
            recompute="full" if setup.full_recompute else None,
        )
        schedule = evaluate(pipeline, setup.strategy)
    except InputError as error:
        raise NotPredictedError(_first_words(error)) from error
    busy = max(map(float, schedule.metrics.busy))
    step = float(schedule.makespan)
    flops = float(pipeline.flops_per_microbatch or 0) * pipeline.batches
    return Prediction(
        step=step,
        memory=tuple(map(float, schedule.peak_memory)),
        compute=busy,
        bubble=step - busy,
        flops=flops,
        hidden=setup.architecture.hidden,
    )


def _first_words(error: InputError) -> str:
    """The first sentence of an error, without its numbers' remedy."""
    return str(error).partition(";")[0]
