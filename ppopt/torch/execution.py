"""Execute schedules on synthetic stages and compare gradients with a reference."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import distributed
from torch.distributed.pipelining import PipelineStage

from ppopt.errors import NotApplicableError, VerificationError
from ppopt.formats.loader_order import microbatch_numbers
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.objective import Objective
from ppopt.problem.operation import NUM_KINDS
from ppopt.problem.pipeline import Pipeline
from ppopt.profiles.estimate import Record, StepRecord
from ppopt.schedule import communication, timing
from ppopt.schedule.origin import Origin
from ppopt.schedule.schedule import Schedule
from ppopt.torch.collective_queue import CollectiveQueue, GradientWork, gradient_work
from ppopt.torch.pipeline_runtime import (
    as_run,
    first_announced,
    load,
    order_text,
    placement,
)
from ppopt.torch.profiler import Profiler
from ppopt.torch.stream_links import StreamDelays, stream_delays
from ppopt.torch.synthetic import (
    WIDTH,
    P2PDelays,
    SleepTimes,
    Stage,
    batch,
    loss,
    p2p_delays,
    reference,
)
from ppopt.torch.world import World

TOLERANCE = 1e-12
"""Allowed difference of a gradient or a loss from the reference, in float64. Results differ because
microbatches are summed in another order."""


class RunResult(NamedTuple):
    """Result of running a schedule."""

    steps: tuple[float, ...]
    """Seconds of every measured step, from the first start to the last end of an operation."""
    gradients: int
    """Number of gradients that were compared with the reference."""
    difference: float
    """Largest difference of a gradient or a loss from the reference."""
    records: tuple[Record, ...]
    """Operations of the measured steps, with the schedule's numbers of microbatches."""
    around: tuple[StepRecord, ...] = ()
    """Unshard, gradient sync and optimizer of the measured steps."""


class RankResult(NamedTuple):
    """Result of one rank."""

    losses: list[float]
    gradients: dict[str, Any]
    records: list[Record]
    around: list[StepRecord]
    """Unshard, gradient sync and optimizer."""


def run_synthetic(
    world: World,
    schedule: Schedule,
    *,
    steps: int = 1,
    seconds_per_unit: float = 0.0,
    text: str | None = None,
) -> RunResult:
    """Run a schedule: one warm-up step, then `steps` measured ones.

    With `seconds_per_unit` above 0, stages sleep for the pipeline's times and transfers take its
    p2p times, as delays, or as streams where links are resources; a unit of time lasts
    `seconds_per_unit`. Unshard, gradient sync and optimizer sleep, too (`CollectiveQueue`). `text`
    replaces the order that PyTorch is given (`order_text`). Raises InputError if PyTorch cannot
    run the schedule, and VerificationError if a gradient or a loss differs from the reference.
    """
    placement(schedule)
    given = order_text(schedule) if text is None else text
    times = sleep_times(schedule, seconds_per_unit)
    with TemporaryDirectory(prefix="ppopt-") as folder:
        delays = _delays(schedule, seconds_per_unit, Path(folder) / "ends")
        around = gradient_work(schedule, seconds_per_unit)
        arguments = [(schedule, given, times, delays, mine, steps) for mine in around]
        ranks: list[RankResult] = world.run(_run_schedule, arguments)
    found, difference = compare_with_reference(
        ranks,
        schedule.pipeline.num_stages,
        schedule.pipeline.batches,
        frozen_stages(schedule.pipeline),
    )
    if not difference <= TOLERANCE:
        raise VerificationError(
            f"run: gradients or losses differ from the reference by {difference:.3g}"
        )
    records = renumbered(schedule, [record for rank in ranks for record in rank.records])
    once = tuple(record for rank in ranks for record in rank.around)
    return RunResult(step_lengths([*records, *once], steps), found, difference, records, once)


def _delays(
    schedule: Schedule, seconds_per_unit: float, path: Path
) -> P2PDelays | StreamDelays | None:
    if schedule.pipeline.has_links:
        return stream_delays(communication.as_streams(schedule), seconds_per_unit, path)
    return p2p_delays(schedule, seconds_per_unit, path)


def predicted_schedule(schedule: Schedule) -> Schedule:
    """Time a schedule's order with earliest starts and PyTorch's operation times (`as_run`).

    If links are resources, they are streams that carry their transfers in the order of the
    schedule, or as `communication.as_streams` does.
    """
    made = communication.as_streams(schedule) if schedule.pipeline.has_links else schedule
    origin = Origin(strategy=schedule.origin.strategy or "schedule", status="feasible")
    ran = replace(made, pipeline=as_run(made.pipeline), origin=origin)
    return timing.retimed(ran, Objective.MAKESPAN)


def predicted_makespan(schedule: Schedule) -> Fraction:
    """Makespan of `predicted_schedule`, in the user's unit."""
    made = predicted_schedule(schedule)
    return made.pipeline.ticks.time(made.metrics.makespan_ticks)


def compare_with_reference(
    ranks: Sequence[RankResult], stages: int, batches: int, frozen: Collection[int] = ()
) -> tuple[int, float]:
    """Count the gradients, and find the largest difference of a gradient or loss."""
    wanted = reference(stages, batches, frozen)
    given = {name: gradient for rank in ranks for name, gradient in rank.gradients.items()}
    losses = [value for rank in ranks for value in rank.losses]
    if given.keys() != wanted.gradients.keys() or len(losses) != batches:
        return len(given), float("inf")
    differences = [
        (given[name] - gradient).abs().max().item() for name, gradient in wanted.gradients.items()
    ]
    differences += [abs(a - b) for a, b in zip(losses, wanted.losses, strict=True)]
    return len(given), max(differences)


def sleep_times(schedule: Schedule, seconds_per_unit: float) -> list[SleepTimes]:
    """Sleep times of every stage; raises NotApplicableError if its microbatches differ."""
    pipeline = schedule.pipeline
    instance = Instance.of(pipeline, BackwardKind.MIXED)
    if not instance.alike:
        raise NotApplicableError("batches: sleeping stages take the same time for all microbatches")
    seconds = seconds_per_unit / pipeline.ticks.per_unit
    stages, kinds = np.arange(pipeline.num_stages)[:, None], np.arange(NUM_KINDS)
    times = seconds * instance.durations[pipeline.code(kinds, stages, 0)]
    return [SleepTimes(*row) for row in times.tolist()]


def frozen_stages(pipeline: Pipeline) -> frozenset[int]:
    """The stages of a pipeline that are frozen."""
    return frozenset(stage for stage, frozen in enumerate(pipeline.frozen_stages) if frozen)


def build_synthetic_stages(
    rank: int, hosts: Sequence[int], times: Sequence[SleepTimes], frozen: Collection[int] = ()
) -> list[PipelineStage]:
    """Build the synthetic stages of a rank; `hosts` is the device of every stage.

    The first stages, as long as they are `frozen`, hand on tensors that need no gradient.
    """
    tensor = torch.zeros(2, WIDTH, dtype=torch.float64)
    between = tensor.clone().requires_grad_(True)
    last = len(hosts) - 1
    first = next(stage for stage in range(len(hosts) + 1) if stage not in frozen)
    announced = first_announced(hosts, first)
    stages = []
    for index in (index for index, host in enumerate(hosts) if host == rank):
        module = Stage(index, times[index], frozen=index in frozen)
        stage = PipelineStage(
            module,
            index,
            len(hosts),
            torch.device("cpu"),
            input_args=between if index and index >= first else tensor,
            output_args=between if announced <= index < last else tensor,
        )
        _announce_backward(stage, module)
        stages.append(stage)
    return stages


def _announce_backward(stage: Any, module: Stage) -> None:
    """Wrap the backwards of a stage so that its module knows whether BW runs."""
    backward, weight = stage.backward_one_chunk, stage.backward_weight_one_chunk

    def backward_one_chunk(*args: Any, **options: Any) -> Any:
        module.full_backward = bool(options.get("full_backward", True))
        return backward(*args, **options)

    def backward_weight_one_chunk(*args: Any, **options: Any) -> Any:
        module.full_backward = stage.is_first
        return weight(*args, **options)

    stage.backward_one_chunk = backward_one_chunk
    stage.backward_weight_one_chunk = backward_weight_one_chunk


def _run_schedule(
    rank: int,
    schedule: Schedule,
    text: str,
    times: Sequence[SleepTimes],
    delays: P2PDelays | StreamDelays | None,
    work: GradientWork,
    steps: int,
) -> RankResult:
    pipeline = schedule.pipeline
    stages = build_synthetic_stages(rank, pipeline.hosts[0], times, frozen_stages(pipeline))
    made = load(stages, text, pipeline.batches, loss)
    around: list[StepRecord] = []
    with Profiler(stages) as profiler, CollectiveQueue(work, rank, stages) as queue:
        links = None
        if isinstance(delays, StreamDelays):
            links = delays.of_rank(rank, stages)
        elif delays is not None:
            delays.apply_to(stages)
        for step in range(-1, steps):
            distributed.barrier()
            if links is not None:
                links.begin_step()
                distributed.barrier()
            queue.begin_step(step)
            found = run_synthetic_step(made, stages, schedule.pipeline.batches)
            around += queue.end_step()
            profiler.next_step()
    measured = [record for record in around if record.step >= 0]
    return found._replace(records=profiler.records, around=measured)


def run_synthetic_step(made: Any, stages: Sequence[Any], batches: int) -> RankResult:
    """Run one step; return gradients and, on the last stage's rank, losses."""
    inputs, targets = batch(batches)
    for stage in stages:
        stage.submod.zero_grad()
    first = any(stage.is_first for stage in stages)
    last = any(stage.is_last for stage in stages)
    losses: list[Any] = []
    given = (inputs,) if first else ()
    made.step(*given, target=targets if last else None, losses=losses if last else None)
    return RankResult(
        [value.item() for value in losses],
        {
            f"{stage.stage_index}.{name}": weight.grad.clone()
            for stage in stages
            for name, weight in stage.submod.named_parameters()
            if weight.grad is not None
        },
        [],
        [],
    )


def renumbered(schedule: Schedule, records: Sequence[Record]) -> tuple[Record, ...]:
    """Restore the schedule's numbers of the microbatches (see `microbatch_numbers`)."""
    numbers = microbatch_numbers(schedule)
    original = {number: microbatch for microbatch, number in numbers.items()}
    return tuple(record._replace(microbatch=original[record.microbatch]) for record in records)


def step_lengths(records: Sequence[Record | StepRecord], steps: int) -> tuple[float, ...]:
    """Seconds of every step, from the first start to the last end of an operation."""
    seconds = []
    for step in range(steps):
        ran = [record for record in records if record.step == step]
        first, last = min(r.start for r in ran), max(r.end for r in ran)
        seconds.append((last - first) / 1e9)
    return tuple(seconds)
