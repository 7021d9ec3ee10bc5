"""Profile a real run: times and memory of the operations of this rank's stages.

The methods of the stages are wrapped, so times do not include the wait for receives. The ranges
that PyTorch itself records for torch.profiler (`PP:1F0`) do include it.

The loss belongs to F of the last stage, as in those ranges; its gradient is computed in B or BW.
PyTorch's runtime computes the loss after the forward, outside of the stage's methods, so
`ppopt.torch.runtime` gives the last stage a method for it (`pipeline_runtime.LOSS_METHOD`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import distributed

from ppopt.errors import InputError
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.profiles.estimate import Profile, Record, StageMemory, profile
from ppopt.schedule import timing
from ppopt.schedule.origin import Origin
from ppopt.schedule.schedule import Schedule
from ppopt.torch.memory_meter import MemoryMeter
from ppopt.torch.pipeline_runtime import LOSS_METHOD

_METHODS = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")


class HostClock:
    """The clock of the CPU, on which operations run in the thread that starts them."""

    def anchor(self) -> None:
        """Begin a step."""

    def mark(self) -> Any:
        """Record the current instant."""
        return time.perf_counter_ns()

    def nanoseconds(self, mark: Any) -> int:
        """The instant of a mark, on the clock of `perf_counter_ns`."""
        return int(mark)


class StreamClock:
    """The clock of an accelerator: events on the current stream, without synchronization.

    The runtime lets the stream wait for a receive before it starts the operation, so an event
    before the operation comes after the wait. The device is synchronized once per step, between
    steps. The time of the host is recorded there; all events of the step are relative to it.
    """

    def __init__(self, device: Any) -> None:
        self._device = torch.device(device)
        self._anchor: Any = None
        self._host = 0

    def anchor(self) -> None:
        """Begin a step: wait until the device is idle, and record an event and the host's time."""
        torch.accelerator.synchronize()
        self._host = time.perf_counter_ns()
        self._anchor = self.mark()

    def mark(self) -> Any:
        """Record an event on the current stream."""
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event

    def nanoseconds(self, mark: Any) -> int:
        """The instant of an event on the clock of `perf_counter_ns`; it must have passed."""
        return self._host + round(1e6 * float(self._anchor.elapsed_time(mark)))


class Profiler:
    """Records the operations of this rank's stages while it is entered.

        with Profiler(stages) as profiler:
            for _ in range(4):
                runtime.step(batch)
                profiler.next_step()
        profile = profiler.gather()

    F of the last stage includes the loss if `ppopt.torch.runtime` built the runtime.

    The first `warm_up` steps measure no times; the first of them measures memory, unless
    `memory=False`. On an accelerator, times are those of events on its stream (`StreamClock`);
    otherwise the clock is `perf_counter_ns`, which all ranks on one machine share.
    """

    def __init__(self, stages: Sequence[Any], *, memory: bool = True, warm_up: int = 1) -> None:
        self._stages = list(stages)
        self._step = -max(warm_up, 1)
        self._originals: list[dict[str, Any]] = []
        self.records: list[Record] = []
        """Operations of the measured steps that `next_step` ended."""
        self.memory: dict[int, StageMemory] = {}
        """Memory of this rank's stages."""
        self._meter = MemoryMeter() if memory else None
        self._marks: list[tuple[tuple[OpKind, int, int, int], Any, Any]] = []
        self._clock = _clock(self._stages)
        self._forward: dict[int, int] = {}
        """Stage -> microbatch of its last F in this step."""

    def __enter__(self) -> Profiler:
        self._originals = []
        for stage in self._stages:
            names = [*_METHODS, LOSS_METHOD] if hasattr(stage, LOSS_METHOD) else _METHODS
            self._originals.append({name: vars(stage).get(name) for name in names})
            for name in names:
                wrap = self._timed_loss if name == LOSS_METHOD else partial(self._timed, name=name)
                setattr(stage, name, wrap(stage, method=getattr(stage, name)))
        return self

    def __exit__(self, *_: object) -> None:
        for stage, originals in zip(self._stages, self._originals, strict=True):
            for name, method in originals.items():
                if method is None:
                    delattr(stage, name)
                else:
                    setattr(stage, name, method)

    def next_step(self) -> None:
        """End a training step and start a new one."""
        if self._meter is not None:
            self.memory = self._meter.stage_memory(self._stages)
            self._meter = None
        self._end_step()
        self._step += 1
        self._forward.clear()
        self.begin_step()

    def begin_step(self) -> None:
        """Restart the clock of a step, if other work ran since the last step ended."""
        self._clock.anchor()

    def _end_step(self) -> None:
        """Turn the marks of a step into records."""
        if not self._marks:
            return
        if isinstance(self._clock, StreamClock):
            torch.accelerator.synchronize()
        clock = self._clock.nanoseconds
        self.records += [
            Record(*operation, clock(start), clock(end), self._step)
            for operation, start, end in self._marks
        ]
        self._marks.clear()

    def gather(self, group: Any = None) -> Profile:
        """Combine the measurements of all ranks; every rank gets the result.

        A collective call of `group` (default: the world). Raises InputError if nothing was
        measured after the first step or operations are missing.
        """
        self._end_step()
        own = (self.records, self.memory)
        gathered: list[Any] = [None] * distributed.get_world_size(group)
        distributed.all_gather_object(gathered, own, group)
        memory = {
            stage: sizes
            for _, sizes_by_stage in gathered
            for stage, sizes in sizes_by_stage.items()
        }
        return profile([record for records, _ in gathered for record in records], memory)

    def _timed(self, stage: Any, *, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(microbatch: int, *args: Any, **options: Any) -> Any:
            kind = _kind(name, options)
            if kind is OpKind.F:
                self._forward[stage.stage_index] = microbatch
            run = partial(method, microbatch, *args, **options)
            if self._step < 0:
                return self._meter.run(stage, kind, microbatch, run) if self._meter else run()
            start = self._clock.mark()
            output = run()
            operation = (kind, stage.stage_index, microbatch, stage.group_rank)
            self._marks.append((operation, start, self._clock.mark()))
            return output

        return timed

    def _timed_loss(self, stage: Any, *, method: Callable[..., Any]) -> Callable[..., Any]:
        """Let the loss extend the preceding F; without an F, PyTorch is inferring metadata."""

        def timed(loss_fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
            run = partial(method, loss_fn, *args, **options)
            microbatch = self._forward.get(stage.stage_index)
            if microbatch is None:
                return run()
            if self._step < 0:
                return self._meter.run_loss(stage, microbatch, args, run) if self._meter else run()
            loss = run()
            operation, start, _ = self._marks.pop()
            self._marks.append((operation, start, self._clock.mark()))
            return loss

        return timed


def _clock(stages: Sequence[Any]) -> HostClock | StreamClock:
    """The clock of the stages' device."""
    devices = {torch.device(stage.device) for stage in stages}
    device = next(iter(devices), torch.device("cpu"))
    return HostClock() if device.type == "cpu" else StreamClock(device)


def _kind(method: str, options: dict[str, Any]) -> OpKind:
    if method == "forward_one_chunk":
        return OpKind.F
    if method == "backward_weight_one_chunk":
        return OpKind.W
    return OpKind.BW if options.get("full_backward", True) else OpKind.B


def probe(batches: int, placement: Sequence[int], *, split: bool = True) -> Schedule:
    """Make a schedule to profile with, in which every stage runs every kind of operation.

    All forwards come first, then all backwards. Even microbatches run BW, odd ones B and W, so one
    run measures the whole pipeline; without `split` all run BW. All activations are live at once.
    `placement` is the device of every stage. Raises InputError for fewer than 2 microbatches.
    """
    if split and batches < 2:
        raise InputError("batches: profiling takes 2 microbatches or more: one whole, one split")
    pipeline = Pipeline(stages=len(placement), batches=batches, placement=list(placement))
    orders = []
    for hosted in pipeline.hosted[0]:
        forwards = [(OpKind.F, stage, m) for stage in hosted for m in range(batches)]
        backwards = [
            (kind, stage, m)
            for stage in reversed(hosted)
            for m in range(batches)
            for kind in ((OpKind.B, OpKind.W) if split and m % 2 else (OpKind.BW,))
        ]
        orders.append(np.array([pipeline.code(*op) for op in forwards + backwards], dtype=np.int64))
    origin = Origin(strategy="probe", objective=Objective.MAKESPAN, status="feasible")
    return timing.schedule(pipeline, orders, origin=origin)
