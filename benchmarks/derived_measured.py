"""Steps predicted from derived costs, beside steps that others measured and published.

    python -m benchmarks.derived_measured > benchmarks/records/DATE-derived-measured.md

Nothing is measured here. Three sources, each at its table below: Megatron-LM on eight B200, Llama
3 405B, DeepSeek-V3. If an efficiency is set, it is set by the row that says so, and every other
row is predicted with it. What the models leave out (collective communication, gradient reduction,
the optimizer, the exchange of tokens between experts) is in what was measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from benchmarks.derived_models import DEEPSEEK_V3, LLAMA_70B, llama
from benchmarks.record import heading, table
from ppopt import DerivedModel, Schedule, calibrate, evaluate
from ppopt.derivation.architecture import Architecture, Run
from ppopt.derivation.gpus import Precision, gpu_named
from ppopt.derivation.layer_costs import EFFICIENCY
from ppopt.derivation.training import Training

NVLINK = "bandwidth=900GB/s"
"""Of a B200 within a node, one way (NVIDIA DGX B200 data sheet: 14.4 TB/s of eight, both ways)."""
MIB_PER_GIB = 1024


class Measured(NamedTuple):
    """A run of Megatron-LM: its parallelism, a step, and memory."""

    tensor: int
    context: int
    pipeline: int
    data: int
    sequence: int
    batches: int
    step: float
    """ms."""
    allocated: tuple[float, ...]
    """The most that PyTorch allocated, in MiB, on a GPU of every stage."""

    @property
    def name(self) -> str:
        """Its parallelism in words."""
        ranks = f"tp{self.tensor} cp{self.context} pp{self.pipeline} dp{self.data}"
        return f"{ranks}, {self.sequence} tokens"


TWO_STAGES = (68149.2, 64479.5)
B200 = (
    *(
        Measured(1, 1, 2, 4, 4096, batches, step, TWO_STAGES)
        for batches, step in ((4, 843.0), (8, 1476.8), (32, 5436.5))
    ),
    *(
        Measured(2, 1, 1, 4, 4096, batches, step, (62136.3,))
        for batches, step in ((4, 725.5), (8, 1387.0), (32, 5376.5))
    ),
    *(
        Measured(4, 1, 1, 2, 4096, batches, step, (40009.8,))
        for batches, step in ((4, 409.8), (8, 765.6), (32, 2964.6))
    ),
    *(
        Measured(8, 1, 1, 1, 4096, batches, step, (28965.4,))
        for batches, step in ((4, 280.9), (8, 556.7), (32, 2073.7))
    ),
    Measured(2, 4, 1, 1, 32768, 4, 1758.0, (70070.5,)),
    Measured(1, 8, 1, 1, 32768, 4, 1768.1, (107014.2,)),
    Measured(2, 4, 1, 1, 131072, 4, 11315.7, (115371.9,)),
    Measured(1, 8, 1, 1, 131072, 4, 11301.9, (151538.4,)),
)
"""github.com/MooreThreads/SimuMax at 4dcaae5, docs/b200/b200_release_v1.2_summary.json: `real_ms`
and `real_max_allocated_mb` of every run; twelve layers of Llama 3 70B, a sequence a microbatch."""
TWELVE_LAYERS = replace(LLAMA_70B, runs=(replace(LLAMA_70B.runs[0], count=12),))
CALIBRATED_ON = 8
"""Microbatches of the run that sets the efficiency of its parallelism."""


def b200_model(run: Measured) -> DerivedModel:
    """The derived model of a run, its layers cut evenly, as Megatron-LM does."""
    training = Training(
        devices=run.pipeline,
        batches=run.batches,
        tensor=run.tensor,
        context=run.context,
        data=run.data,
        sequence=run.sequence,
    )
    return DerivedModel(
        TWELVE_LAYERS,
        training,
        gpu_named("b200"),
        partition="Et*6|t*6L" if run.pipeline == 2 else None,
        link=NVLINK,
    )


def step(model: DerivedModel) -> Schedule:
    """1F1B, as the runs did."""
    return evaluate(model.pipeline, "1f1b")


def milliseconds(schedule: Schedule) -> float:
    """Makespan."""
    return float(schedule.pipeline.ticks.time(schedule.metrics.makespan_ticks))


def derived_memory(run: Measured) -> list[float]:
    """The peak of every stage, in MiB."""
    return list(map(float, step(b200_model(run)).peak_memory))


def b200_efficiencies() -> dict[str, float]:
    """Efficiency of every parallelism that has a run to calibrate on, by its name."""
    return {
        run.name: calibrate(b200_model(run), run.step).efficiency
        for run in B200
        if run.batches == CALIBRATED_ON
    }


def b200_rows() -> Iterator[list[object]]:
    """Every run: measured; predicted by its own efficiency, and by that of two stages; memory."""
    own = b200_efficiencies()
    two_stages = own[B200[0].name]
    for run in B200:
        shares = (own.get(run.name), two_stages)
        found = [
            None if e is None else step(replace(b200_model(run), efficiency=e)) for e in shares
        ]
        memory = derived_memory(run)
        yield [
            run.name,
            run.batches,
            f"{run.step:.1f}",
            *(_against(schedule, run.step) for schedule in found),
            f"{shares[0]:.3f}" if shares[0] else "–",  # noqa: RUF001
            " ".join(f"{size / MIB_PER_GIB:.1f}" for size in run.allocated),
            " ".join(f"{size / MIB_PER_GIB:.1f}" for size in memory),
            _percent(memory[0] / run.allocated[0] - 1),
        ]


def _against(schedule: Schedule | None, measured: float) -> str:
    if schedule is None:
        return "–"  # noqa: RUF001
    found = milliseconds(schedule)
    return f"{found:.1f} ({_percent(found / measured - 1)})"


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


LLAMA_405B = Architecture(
    "Llama 3 405B", 16384, 128256, (Run("block", llama(16384, 128, 8, 53248), 126),)
)


class Published(NamedTuple):
    """A row of Table 4 of arXiv 2407.21783."""

    context: int
    data: int
    sequence: int
    batches: int
    """Sequences of a step per data-parallel rank, one a microbatch."""
    teraflops: float
    """Per GPU."""


LLAMA_3 = (
    Published(1, 64, 8192, 32, 430),
    Published(1, 128, 8192, 16, 400),
    Published(16, 8, 131072, 16, 380),
)
"""405B on H100, tensor 8, pipeline 16: 126 layers, and embedding and head as one layer each
(section 3.3.2). Interleaved 1F1B; how many chunks is not published: eight of a layer each here."""
CHUNKS = 8


def llama_3_model(run: Published) -> DerivedModel:
    """The derived model of a row."""
    training = Training(
        devices=16,
        batches=run.batches,
        tensor=8,
        context=run.context,
        data=run.data,
        sequence=run.sequence,
    )
    return DerivedModel(LLAMA_405B, training, gpu_named("h100"), partition=[1] * 128)


def interleaved(model: DerivedModel) -> Schedule:
    """Interleaved 1F1B on chunks of one layer."""
    return evaluate(replace(model.pipeline, chunks=CHUNKS), "interleaved")


def teraflops(model: DerivedModel, schedule: Schedule) -> float:
    """TFLOP/s that the model needs, per GPU."""
    pipeline = model.pipeline
    needed = float(pipeline.flops_per_microbatch) * pipeline.batches
    gpus = model.training.devices * model.training.tensor * model.training.context
    return needed / (milliseconds(schedule) / 1000) / gpus / 1e12


def llama_3_rows() -> Iterator[list[object]]:
    """Published and derived, the efficiency set by the first row."""
    first = llama_3_model(LLAMA_3[0])
    reached = teraflops(first, interleaved(first))
    efficiency = EFFICIENCY * LLAMA_3[0].teraflops / reached
    for run in LLAMA_3:
        model = replace(llama_3_model(run), efficiency=efficiency)
        found = teraflops(model, interleaved(model))
        yield [
            f"cp{run.context} dp{run.data}, {run.sequence} tokens",
            run.batches,
            f"{run.teraflops:.0f}",
            f"{found:.0f} ({_percent(found / run.teraflops - 1)})",
            f"{efficiency:.3f}",
        ]


DEEPSEEK_TOKENS = 14.8e12 / (2664e3 * 3600)
"""Tokens/s of an H800: 14.8T tokens in 2664K GPU hours (arXiv 2412.19437, section 1)."""


def deepseek_rows() -> Iterator[list[object]]:
    """Published and derived at the efficiency that is assumed, DualPipe."""
    for precision in Precision:
        training = Training(*(16, 120), data=128, expert=64, sequence=4096, precision=precision)
        model = DerivedModel(DEEPSEEK_V3, training, gpu_named("h800"))
        pipeline = replace(model.pipeline, mem_limit=None)
        schedule = evaluate(pipeline, "dualpipe")
        found = 120 * 4096 / (milliseconds(schedule) / 1000) / training.devices
        yield [
            precision,
            f"{DEEPSEEK_TOKENS:.0f}",
            f"{found:.0f} ({_percent(found / DEEPSEEK_TOKENS - 1)})",
            f"{EFFICIENCY:g}",
        ]


def main() -> None:
    """Print the record."""
    print(heading("Steps predicted from derived costs, beside published ones"))
    print("\n## Megatron-LM on eight B200\n\nTwelve layers of Llama 3 70B, 1F1B, one sequence a")
    print("microbatch (SimuMax, docs/b200). `own`: the efficiency of the run of eight microbatches")
    print("of the same parallelism; `two stages`: that of two stages for all. Memory in GiB per")
    print("stage: allocated at most, and derived.\n")
    rows = b200_rows()
    columns = (
        *("run", "microbatches", "measured (ms)", "own (ms)", "two stages (ms)"),
        *("efficiency", "allocated", "derived", "memory"),
    )
    print(*table(columns, rows), sep="\n")
    print("\n## Llama 3 405B on H100\n\nTable 4 of arXiv 2407.21783: TFLOP/s per GPU. Interleaved")
    print("1F1B on eight chunks of a layer each; the first row sets the efficiency.\n")
    print(
        *table(["run", "microbatches", "published", "derived", "efficiency"], llama_3_rows()),
        sep="\n",
    )
    print("\n## DeepSeek-V3 on H800\n\nTokens/s per GPU: 14.8T tokens in 2664K GPU hours (arXiv")
    print(
        "2412.19437). DualPipe, 120 microbatches of 4096 tokens (15360 sequences over 128 ranks),"
    )
    print("no exchange of tokens between experts, nothing calibrated.\n")
    print(*table(["precision", "published", "derived", "efficiency"], deepseek_rows()), sep="\n")


if __name__ == "__main__":
    main()
