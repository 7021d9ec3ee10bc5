"""Really run a schedule on small stages: gradients against a reference, time against prediction."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import distributed
from torch.distributed.pipelining import PipelineStage

from ppopt.errors import VerificationError
from ppopt.formats import torch_csv
from ppopt.profiles.records import Record
from ppopt.schedule import timing
from ppopt.schedule.origin import Origin
from ppopt.schedule.schedule import Schedule
from ppopt.torch.building import as_run, load, placement, runtime
from ppopt.torch.links import Links, links
from ppopt.torch.profiler import Profiler
from ppopt.torch.stages import WIDTH, Stage, Times, batch, loss, reference
from ppopt.torch.world import World

TOLERANCE = 1e-12
"""Largest difference of a gradient or a loss from the reference, in float64: the microbatches'
shares are added up in another order."""


class Run(NamedTuple):
    """What came of running a schedule."""

    steps: tuple[float, ...]
    """Seconds of every measured step, from the first start to the last end of an operation."""
    gradients: int
    """Gradients that were compared with the reference."""
    difference: float
    """Largest difference of a gradient or a loss from the reference."""
    records: tuple[Record, ...]
    """Every operation of the measured steps; microbatches are numbered as in the schedule."""


class _Rank(NamedTuple):
    """What one rank gives back."""

    losses: list[float]
    gradients: dict[str, Any]
    records: list[Record]


def run(world: World, schedule: Schedule, *, steps: int = 1, seconds_per_unit: float = 0.0) -> Run:
    """Run a schedule: one step to warm up, then `steps` measured ones.

    With `seconds_per_unit` above 0 the stages sleep for the pipeline's times, each unit of which
    lasts so long, and wait for their inputs as long as its links take. Raises InputError where
    PyTorch cannot run the schedule, VerificationError where a gradient or a loss differs from the
    reference.
    """
    hosted = placement(schedule)
    torch_csv.dumps(schedule)
    times = _times(schedule, seconds_per_unit)
    with TemporaryDirectory(prefix="ppopt-") as folder:
        between = links(schedule, seconds_per_unit, Path(folder) / "ends")
        given = [(schedule, times, between, steps)] * len(hosted)
        ranks: list[_Rank] = world.run(_step_rank, given)
    found, difference = compare(ranks, schedule.pipeline.num_stages, schedule.pipeline.batches)
    if not difference <= TOLERANCE:
        raise VerificationError(
            f"run: gradients or losses differ from the reference by {difference:.3g}"
        )
    records = _renumbered(schedule, [record for rank in ranks for record in rank.records])
    return Run(_steps(records, steps), found, difference, records)


def run_text(world: World, text: str, hosts: Sequence[int], batches: int, **options: Any) -> float:
    """Run the text of an order, unchecked; the largest difference from the reference."""
    ranks = world.run(_text_rank, [(text, tuple(hosts), batches, options)] * world.size)
    return compare(ranks, len(hosts), batches)[1]


def prediction(schedule: Schedule) -> Schedule:
    """Time a schedule's order as PyTorch runs it, from the earliest starts on.

    Stage 0 splits as it really does (`as_run`).
    """
    pipeline = as_run(schedule.pipeline)
    origin = Origin(strategy=schedule.origin.strategy or "schedule", status="feasible")
    return timing.schedule(pipeline, schedule.orders, origin=origin)


def predicted(schedule: Schedule) -> Fraction:
    """Makespan of `prediction`, in the user's unit."""
    made = prediction(schedule)
    return made.pipeline.ticks.time(made.metrics.makespan)


def compare(ranks: Sequence[_Rank], stages: int, batches: int) -> tuple[int, float]:
    """Count the gradients, and find the largest difference from the reference."""
    wanted = reference(stages, batches)
    given = {name: gradient for rank in ranks for name, gradient in rank.gradients.items()}
    losses = [value for rank in ranks for value in rank.losses]
    if given.keys() != wanted.gradients.keys() or len(losses) != batches:
        return len(given), float("inf")
    differences = [
        (given[name] - gradient).abs().max().item() for name, gradient in wanted.gradients.items()
    ]
    differences += [abs(a - b) for a, b in zip(losses, wanted.losses, strict=True)]
    return len(given), max(differences)


def _times(schedule: Schedule, seconds_per_unit: float) -> list[Times]:
    costs = schedule.pipeline.costs
    columns = (costs.forward, costs.backward_input, costs.weight, costs.backward)
    return [
        Times(*(float(time) * seconds_per_unit for time in row))
        for row in zip(*columns, strict=True)
    ]


def _build(rank: int, hosts: Sequence[int], times: Sequence[Times]) -> list[PipelineStage]:
    tensor = torch.zeros(2, WIDTH, dtype=torch.float64)
    between = tensor.clone().requires_grad_(True)
    last = len(hosts) - 1
    stages = []
    for index in (index for index, host in enumerate(hosts) if host == rank):
        module = Stage(index, times[index])
        stage = PipelineStage(
            module,
            index,
            len(hosts),
            torch.device("cpu"),
            input_args=between if index else tensor,
            output_args=between if index < last else tensor,
        )
        stages.append(_telling(stage, module))
    return stages


def _telling(stage: Any, module: Stage) -> PipelineStage:
    """Let the module know which backward runs; the whole one takes the time of BW."""
    backward, weight = stage.backward_one_chunk, stage.backward_weight_one_chunk

    def backward_one_chunk(*args: Any, **options: Any) -> Any:
        module.whole = bool(options.get("full_backward", True))
        return backward(*args, **options)

    def backward_weight_one_chunk(*args: Any, **options: Any) -> Any:
        module.whole = stage.is_first
        return weight(*args, **options)

    stage.backward_one_chunk = backward_one_chunk
    stage.backward_weight_one_chunk = backward_weight_one_chunk
    return stage


def _step_rank(
    rank: int, schedule: Schedule, times: Sequence[Times], between: Links | None, steps: int
) -> _Rank:
    stages = _build(rank, schedule.pipeline.hosts[0], times)
    made = runtime(stages, schedule, loss)
    with Profiler(stages) as profiler:
        if between is not None:
            between.on(stages)
        for _ in range(1 + steps):
            distributed.barrier()
            found = _steps_of(made, stages, schedule.pipeline.batches)
            profiler.next_step()
    return found._replace(records=profiler.records)


def _text_rank(
    rank: int, text: str, hosts: Sequence[int], batches: int, options: dict[str, Any]
) -> _Rank:
    stages = _build(rank, hosts, [Times()] * len(hosts))
    return _steps_of(load(stages, text, batches, loss, **options), stages, batches)


def _steps_of(made: Any, stages: Sequence[Any], batches: int) -> _Rank:
    """Run one step; losses (of the last stage's rank) and gradients."""
    inputs, targets = batch(batches)
    for stage in stages:
        stage.submod.zero_grad()
    first = any(stage.is_first for stage in stages)
    last = any(stage.is_last for stage in stages)
    losses: list[Any] = []
    given = (inputs,) if first else ()
    made.step(*given, target=targets if last else None, losses=losses if last else None)
    return _Rank(
        [value.item() for value in losses],
        {
            f"{stage.stage_index}.{name}": weight.grad.clone()
            for stage in stages
            for name, weight in stage.submod.named_parameters()
            if weight.grad is not None
        },
        [],
    )


def _renumbered(schedule: Schedule, records: Sequence[Record]) -> tuple[Record, ...]:
    """Give microbatches their numbers in the schedule back (see `torch_csv`)."""
    numbers = torch_csv.microbatch_numbers(schedule)
    own = {number: microbatch for microbatch, number in numbers.items()}
    return tuple(record._replace(microbatch=own[record.microbatch]) for record in records)


def _steps(records: Sequence[Record], steps: int) -> tuple[float, ...]:
    seconds = []
    for step in range(steps):
        ran = [record for record in records if record.step == step]
        first, last = min(r.start for r in ran), max(r.end for r in ran)
        seconds.append((last - first) / 1e9)
    return tuple(seconds)
