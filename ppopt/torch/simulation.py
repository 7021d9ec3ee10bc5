"""Simulates a run: stages, links and the work around the microbatches sleep for their times.

The tensors are real, and gloo delivers each one at once. Every rank records when it posts a send or
a receive, in a file that all ranks on the machine map. An operation waits until the transfer of its
input has ended:

- Links that are delays: a transfer ends its p2p time after its send was posted.
- Links as streams (`ppopt.problem.link_mode`): transfers of two ranks run one at a time, in posted
  order. A transfer starts when both ends are posted and the one before it has ended.

Every rank has a collective queue, a thread that runs one collective at a time, in the order in
which they are submitted. UNSHARDs are submitted as the step begins, in the order of the schedule;
the first F of a stage waits for its own. GRADIENT_SYNC of a stage is submitted when its last W or
BW has ended. When all of a rank have ended, and with a barrier those of all ranks, its OPTIMIZER
runs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import distributed, nn

from ppopt.errors import VerificationError
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.kinds import RECORDS, Per
from ppopt.problem.operation import NUM_KINDS, ONCE, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.profiles.estimate import Record
from ppopt.schedule import communication
from ppopt.schedule.link_queues import MISSING, LinkQueues
from ppopt.schedule.operations import Operation
from ppopt.schedule.schedule import Schedule
from ppopt.torch.job import Job
from ppopt.torch.pipeline_runtime import before
from ppopt.torch.sleeping import WIDTH, SleepingLayer, announce_backwards

SAMPLES = 2
"""Rows of a microbatch."""
_POSTS = {
    "get_fwd_send_ops": (OpKind.F, 0),
    "get_fwd_recv_ops": (OpKind.F, -1),
    "get_bwd_send_ops": (OpKind.B, 0),
    "get_bwd_recv_ops": (OpKind.B, 1),
}
"""Per method of a stage that posts: kind of transfer, and offset of the stage that sends it."""
_NEEDS = {"forward_one_chunk": (OpKind.F, -1), "backward_one_chunk": (OpKind.B, 1)}
"""Per method of a stage that needs an input: the same, for the transfer of that input."""
_CLOSING = ("backward_one_chunk", "backward_weight_one_chunk")
"""Methods of a stage that may run its last W or BW."""


class SleepingModel(NamedTuple):
    """The model of a schedule whose stages sleep; a unit of time lasts `seconds_per_unit`."""

    schedule: Schedule
    seconds_per_unit: float = 0.0
    backend: str | None = None
    """Backend of torch.compile: none."""

    @property
    def batches(self) -> int:
        """Microbatches."""
        return self.schedule.pipeline.batches

    def load(self) -> Job:
        """Build a job with a layer per stage, which sleeps for the times of its microbatch."""
        frozen = self.schedule.pipeline.frozen_stages
        times = _seconds(self.schedule.pipeline, self.seconds_per_unit)
        shape = (SAMPLES * self.batches, WIDTH)
        torch.manual_seed(0)
        return Job(
            modules=[
                partial(SleepingLayer, times[:, stage], frozen=bool(is_frozen))
                for stage, is_frozen in enumerate(frozen)
            ],
            inputs=torch.randn(shape, dtype=torch.float64),
            target=torch.randn(shape, dtype=torch.float64),
            loss=nn.functional.mse_loss,
            kwargs={"position": torch.arange(self.batches).repeat_interleave(SAMPLES)},
        )

    def counts(self, pipeline: Pipeline, _: int) -> tuple[int, ...]:
        """A layer per stage."""
        return (1,) * pipeline.num_stages

    def simulation(self, schedule: Schedule, folder: Path) -> Simulation:
        """Sleep, with the links and the work around the microbatches of the schedule."""
        pipeline, path = schedule.pipeline, folder / "posts"
        if pipeline.has_links:
            pipeline = communication.as_streams(schedule).pipeline
        path.write_bytes(bytes(8 * int(np.prod(_notes_shape(pipeline)))))
        return Simulation(schedule, pipeline, self.seconds_per_unit / pipeline.ticks.per_unit, path)


def _seconds(pipeline: Pipeline, seconds_per_unit: float) -> Any:
    """Seconds of every operation: [kind, stage, index of the microbatch in the user's list]."""
    kinds, stages = np.arange(NUM_KINDS)[:, None, None], np.arange(pipeline.num_stages)[:, None]
    codes = pipeline.code(kinds, stages, np.arange(pipeline.batches))
    durations = Instance.of(pipeline, BackwardKind.MIXED).durations[codes]
    listed = np.argsort(pipeline.order) if isinstance(pipeline.order, tuple) else slice(None)
    return durations[..., listed] * seconds_per_unit / pipeline.ticks.per_unit


class Simulation(NamedTuple):
    """The parameters of a simulated run."""

    schedule: Schedule
    pipeline: Pipeline
    """The schedule's pipeline; links that are resources are streams."""
    unit: float
    """Seconds of a tick."""
    path: Path
    """File in which ranks record their posts."""


class RankSimulation:
    """Sleeping stages, links and collective queue of a rank; active while entered."""

    def __init__(self, simulation: Simulation, rank: int, stages: Sequence[Any]) -> None:
        self._queue = _CollectiveQueue(simulation, rank, stages)
        self._links = (
            _StreamLinks(simulation, rank, stages)
            if simulation.pipeline.has_links
            else _DelayLinks(simulation, stages)
        )
        for stage in stages:
            announce_backwards(stage)

    def __enter__(self) -> RankSimulation:
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.thread.shutdown()

    def begin_step(self, step: int) -> None:
        """Begin a step; all ranks do so after the same barrier."""
        self._links.begin_step()
        distributed.barrier()
        self._queue.begin_step(step)

    def end_step(self) -> list[Record]:
        """Run the work after the microbatches; returns all records around them."""
        return self._queue.end_step()


def _sleep_until(nanoseconds: int) -> None:
    """Sleep until a time of `time.perf_counter_ns`."""
    rest = nanoseconds - time.perf_counter_ns()
    if rest > 0:
        time.sleep(rest / 1e9)


def _notes_shape(pipeline: Pipeline) -> tuple[int, ...]:
    """Shape of the file: time per send; for streams [link, end, position, (transfer + 1, time)]."""
    if not pipeline.has_links:
        return len(_NEEDS), pipeline.num_stages, pipeline.batches
    links = LinkQueues(pipeline)
    return max(1, len(links.pairs)), 2, len(links.numbers), 2


class _DelayLinks:
    """Links that carry any number of transfers, each for its p2p time."""

    def __init__(self, simulation: Simulation, stages: Sequence[Any]) -> None:
        pipeline = simulation.pipeline
        self._notes = np.memmap(
            simulation.path, dtype=np.int64, mode="r+", shape=_notes_shape(pipeline)
        )
        (down,), (up,) = pipeline.ticks.down, pipeline.ticks.up
        unit = simulation.unit * 1e9
        self._down, self._up = ([round(time * unit) for time in way] for way in (down, up))
        for stage in stages:
            for methods, action in ((_POSTS, self._post), (_NEEDS, self._wait)):
                for name, (kind, offset) in methods.items():
                    sender = stage.stage_index + offset
                    if 0 <= sender < pipeline.num_stages:
                        before(stage, name, partial(action, kind, sender, not offset))

    def begin_step(self) -> None:
        """Discard the records of the last step."""

    def _post(self, kind: OpKind, sender: int, sends: bool, microbatch: int) -> None:
        if sends:
            self._notes[kind, sender, microbatch] = time.perf_counter_ns()

    def _wait(
        self, kind: OpKind, sender: int, _: bool, microbatch: int, *__: Any, **___: Any
    ) -> None:
        _sleep_until(self._arrival(kind, sender, microbatch))

    def _arrival(self, kind: OpKind, sender: int, microbatch: int) -> int:
        """End of a transfer whose tensor has arrived; 0 if it takes no time."""
        delay = self._down[sender] if kind is OpKind.F else self._up[sender - 1]
        return delay and int(self._notes[kind, sender, microbatch]) + delay


class _StreamLinks(_DelayLinks):
    """One rank's ends of its links: its posts, and when transfers end."""

    def __init__(self, simulation: Simulation, rank: int, stages: Sequence[Any]) -> None:
        self._links = LinkQueues(simulation.pipeline)
        unit = simulation.unit * 1e9
        self._nanoseconds = [round(time * unit) for time in self._links.duration.tolist()]
        self._end = {
            link: pair.index(rank) for link, pair in enumerate(self._links.pairs) if rank in pair
        }
        self.begin_step()
        super().__init__(simulation, stages)

    def begin_step(self) -> None:
        self._posted = dict.fromkeys(self._end, 0)
        self._positions: dict[int, int] = {}
        self._carried = dict.fromkeys(self._end, 0)
        self._free = dict.fromkeys(self._end, 0)

    def _transfer(self, kind: OpKind, sender: int, microbatch: int) -> tuple[int, int]:
        """Id of a transfer, and its link, which may be `MISSING`."""
        transfer_id = self._links.transfer_id(kind, sender, microbatch)
        return transfer_id, int(self._links.link[transfer_id])

    def _post(self, kind: OpKind, sender: int, _: bool, microbatch: int) -> None:
        transfer_id, link = self._transfer(kind, sender, microbatch)
        if link != MISSING:
            position = self._positions[transfer_id] = self._posted[link]
            self._notes[link, self._end[link], position] = transfer_id + 1, time.perf_counter_ns()
            self._posted[link] += 1

    def _arrival(self, kind: OpKind, sender: int, microbatch: int) -> int:
        """End of a transfer; both ends have recorded all posts up to it."""
        transfer_id, link = self._transfer(kind, sender, microbatch)
        if link == MISSING:
            return 0
        for position in range(self._carried[link], self._positions[transfer_id] + 1):
            (left, left_time), (right, right_time) = self._notes[link, :, position].tolist()
            if left != right:
                posts = (str(self._links.transfer(post - 1)) for post in (left, right))
                raise VerificationError(
                    f"ranks {self._links.pairs[link]}: their post number {position} is of two "
                    f"transfers: {' and '.join(posts)}"
                )
            begin = max(left_time, right_time, self._free[link])
            self._free[link] = begin + self._nanoseconds[left - 1]
            self._carried[link] = position + 1
        return self._free[link]


class _CollectiveQueue:
    """The collective queue of a rank, and its optimizer."""

    def __init__(self, simulation: Simulation, rank: int, stages: Sequence[Any]) -> None:
        table, pipeline = simulation.schedule.operations, simulation.schedule.pipeline
        own = [row for row in table.where(table.microbatch == ONCE).rows() if row.device == rank]
        self._unit, self._rank, self._pipeline = simulation.unit, rank, pipeline
        self._unshards = [row for row in own if RECORDS[row.kind].precedes_compute]
        self._syncs = {
            row.stage: row
            for row in own
            if RECORDS[row.kind].per is Per.STAGE and not RECORDS[row.kind].precedes_compute
        }
        self._optimizers = [row for row in own if RECORDS[row.kind].per is Per.DEVICE]
        self.thread = ThreadPoolExecutor(max_workers=1)
        self._gathered: dict[int, Future[Record]] = {}
        self._submitted: list[Future[Record]] = []
        self._closed: Counter[int] = Counter()
        self._step = -1
        for stage in stages if own else ():
            before(stage, "forward_one_chunk", partial(self._await_weights, stage.stage_index))
            for name in _CLOSING:
                setattr(stage, name, self._closing(stage, name, getattr(stage, name)))

    def begin_step(self, step: int) -> None:
        """Begin a step: submit its UNSHARDs."""
        self._step = step
        self._closed.clear()
        self._submitted = [self.thread.submit(self._run, unshard) for unshard in self._unshards]
        stages = (unshard.stage for unshard in self._unshards)
        self._gathered = dict(zip(stages, self._submitted, strict=True))

    def end_step(self) -> list[Record]:
        """Wait for the submitted collectives, and run the optimizer; returns all records."""
        records = [future.result() for future in self._submitted]
        if self._pipeline.optimizer_barrier:
            distributed.barrier()
        return records + [self._run(optimizer) for optimizer in self._optimizers]

    def _run(self, row: Operation) -> Record:
        start = time.perf_counter_ns()
        time.sleep((row.end - row.start) * self._unit)
        end = time.perf_counter_ns()
        return Record(row.kind, row.stage, ONCE, self._rank, start, end, self._step)

    def _await_weights(self, stage: int, *_: Any, **__: Any) -> None:
        if stage in self._gathered:
            self._gathered[stage].result()

    def _closing(self, stage: Any, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        index = stage.stage_index

        def closing(*args: Any, **options: Any) -> Any:
            gradients = method(*args, **options)
            if name != "backward_one_chunk" or options.get("full_backward", True):
                self._closed[index] += 1
                if self._closed[index] == self._pipeline.batches and index in self._syncs:
                    self._submitted.append(self.thread.submit(self._run, self._syncs[index]))
            return gradients

        return closing
