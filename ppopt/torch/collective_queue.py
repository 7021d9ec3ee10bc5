"""Unshard, gradient sync and optimizer of processes that sleep.

Every rank has a collective queue, a thread that runs one collective at a time, in the order in
which they are given to it. A collective sleeps for its time. UNSHARDs are given as the step begins,
in the order of the schedule; the first F of a stage waits for its own. GRADIENT_SYNC of a stage is
given when its last W or BW has ended. When all of a rank have ended, and with a barrier those of
all ranks, its OPTIMIZER sleeps.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from torch import distributed

from ppopt.problem.kinds import RECORDS, Kind, Per
from ppopt.problem.operation import ONCE
from ppopt.profiles.estimate import StepRecord
from ppopt.schedule.schedule import Schedule

_CLOSING = ("backward_one_chunk", "backward_weight_one_chunk")
"""Methods of a stage that may run its last W or BW."""


class Collective(NamedTuple):
    """An operation of a rank that sleeps."""

    kind: Kind
    stage: int
    seconds: float


class GradientWork(NamedTuple):
    """What a rank runs around its microbatches."""

    batches: int
    unshards: tuple[Collective, ...]
    """In the order in which they run."""
    syncs: dict[int, Collective]
    """By stage."""
    optimizer: Collective | None
    barrier: bool
    """Whether the optimizer waits for the collectives of all ranks."""


def gradient_work(schedule: Schedule, seconds_per_unit: float) -> list[GradientWork]:
    """What every rank runs; nothing if the pipeline has no such work."""
    pipeline = schedule.pipeline
    unit = seconds_per_unit / pipeline.ticks.per_unit
    mine: list[list[Collective]] = [[] for _ in range(pipeline.num_devices)]
    table = schedule.operations
    for row in table.where(table.microbatch == ONCE).rows():
        seconds = (row.end - row.start) * unit
        mine[row.device].append(Collective(row.kind, row.stage, seconds))
    return [
        GradientWork(
            pipeline.batches,
            tuple(operation for operation in given if RECORDS[operation.kind].opens),
            {
                operation.stage: operation
                for operation in given
                if RECORDS[operation.kind].per is Per.STAGE and not RECORDS[operation.kind].opens
            },
            next(
                (operation for operation in given if RECORDS[operation.kind].per is Per.DEVICE),
                None,
            ),
            pipeline.optimizer_barrier,
        )
        for given in mine
    ]


class CollectiveQueue:
    """The collective queue of a rank, in force for its stages while it is entered."""

    def __init__(self, work: GradientWork, rank: int, stages: Sequence[Any]) -> None:
        self._work, self._rank = work, rank
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._unshards: dict[int, Future[StepRecord]] = {}
        self._given: list[Future[StepRecord]] = []
        self._closed: Counter[int] = Counter()
        self._step = -1
        for stage in stages:
            stage.forward_one_chunk = self._opening(stage, stage.forward_one_chunk)
            for name in _CLOSING:
                setattr(stage, name, self._closing(stage, name, getattr(stage, name)))

    def __enter__(self) -> CollectiveQueue:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def begin_step(self, step: int) -> None:
        """Begin a step of this number: unshard."""
        self._step = step
        self._closed.clear()
        self._given = [self._thread.submit(self._run, unshard) for unshard in self._work.unshards]
        stages = (unshard.stage for unshard in self._work.unshards)
        self._unshards = dict(zip(stages, self._given, strict=True))

    def end_step(self) -> list[StepRecord]:
        """Wait for what was given, and run the optimizer; returns all that ran in this step."""
        records = [future.result() for future in self._given]
        if self._work.barrier:
            distributed.barrier()
        optimizer = self._work.optimizer
        return records if optimizer is None else [*records, self._run(optimizer)]

    def _run(self, operation: Collective) -> StepRecord:
        start = time.perf_counter_ns()
        time.sleep(operation.seconds)
        end = time.perf_counter_ns()
        return StepRecord(operation.kind, operation.stage, self._rank, start, end, self._step)

    def _opening(self, stage: Any, method: Callable[..., Any]) -> Callable[..., Any]:
        def opening(*args: Any, **options: Any) -> Any:
            if stage.stage_index in self._unshards:
                self._unshards[stage.stage_index].result()
            return method(*args, **options)

        return opening

    def _closing(self, stage: Any, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        index = stage.stage_index

        def closing(*args: Any, **options: Any) -> Any:
            found = method(*args, **options)
            if name != "backward_one_chunk" or options.get("full_backward", True):
                self._closed[index] += 1
                if self._closed[index] == self._work.batches and index in self._work.syncs:
                    self._given.append(self._thread.submit(self._run, self._work.syncs[index]))
            return found

        return closing
