"""Profile a real run: times and memory of the operations of this rank's stages.

The methods of the stages are wrapped, so times do not include the wait for receives. The ranges
that PyTorch itself records for torch.profiler (`PP:1F0`) do include it.
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
from ppopt.torch.memory import MemoryMeter

_METHODS = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")


class Profiler:
    """Records the operations of this rank's stages while it is entered.

        with Profiler(stages) as profiler:
            for _ in range(4):
                runtime.step(batch)
                profiler.next_step()
        profile = profiler.gather()

    The first step is a warm-up; it measures memory but no times. On an accelerator, the device is
    synchronized before and after each operation, which makes a step slower. The clock is
    `perf_counter_ns`, which all ranks on one machine share.
    """

    def __init__(self, stages: Sequence[Any]) -> None:
        self._stages = list(stages)
        self._step = -1
        self._originals: list[dict[str, Any]] = []
        self.records: list[Record] = []
        """Operations of the measured steps."""
        self.memory: dict[int, StageMemory] = {}
        """Memory of this rank's stages."""
        self._meter = MemoryMeter()

    def __enter__(self) -> Profiler:
        self._originals = [
            {name: vars(stage).get(name) for name in _METHODS} for stage in self._stages
        ]
        for stage in self._stages:
            for name in _METHODS:
                setattr(stage, name, self._timed(stage, name, getattr(stage, name)))
        return self

    def __exit__(self, *_: object) -> None:
        for stage, originals in zip(self._stages, self._originals, strict=True):
            for name, method in originals.items():
                if method is None:
                    delattr(stage, name)
                else:
                    setattr(stage, name, method)

    def next_step(self) -> None:
        """Start a new training step."""
        if self._step < 0:
            self.memory = self._meter.stage_memory(self._stages)
        self._step += 1

    def gather(self, group: Any = None) -> Profile:
        """Combine the measurements of all ranks; every rank gets the result.

        A collective call of `group` (default: the world). Raises InputError where nothing was
        measured after the first step or operations are missing.
        """
        mine = (self.records, self.memory)
        found: list[Any] = [None] * distributed.get_world_size(group)
        distributed.all_gather_object(found, mine, group)
        memory = {stage: sizes for _, part in found for stage, sizes in part.items()}
        return profile([record for records, _ in found for record in records], memory)

    def _timed(self, stage: Any, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(microbatch: int, *args: Any, **options: Any) -> Any:
            kind = _kind(name, options)
            if self._step < 0:
                run = partial(method, microbatch, *args, **options)
                return self._meter.run(stage, kind, microbatch, run)
            _synchronize(stage)
            start = time.perf_counter_ns()
            found = method(microbatch, *args, **options)
            _synchronize(stage)
            end = time.perf_counter_ns()
            operation = (kind, stage.stage_index, microbatch)
            self.records.append(Record(*operation, stage.group_rank, start, end, self._step))
            return found

        return timed


def _kind(method: str, options: dict[str, Any]) -> OpKind:
    if method == "forward_one_chunk":
        return OpKind.F
    if method == "backward_weight_one_chunk":
        return OpKind.W
    return OpKind.BW if options.get("full_backward", True) else OpKind.B


def _synchronize(stage: Any) -> None:
    if torch.device(stage.device).type != "cpu":
        torch.accelerator.synchronize()


def probe(batches: int, placement: Sequence[int]) -> Schedule:
    """Make a schedule to profile with, in which every stage runs every kind of operation.

    All forwards come first, then all backwards. Even microbatches run BW, odd ones B and W, so one
    run measures the whole pipeline. All activations are kept at once. `placement` is the device of
    every stage. Raises InputError for fewer than 2 microbatches.
    """
    if batches < 2:
        raise InputError("batches: profiling takes 2 microbatches or more: one whole, one split")
    pipeline = Pipeline(stages=len(placement), batches=batches, placement=list(placement))
    orders = []
    for hosted in pipeline.hosted[0]:
        forwards = [(OpKind.F, stage, m) for stage in hosted for m in range(batches)]
        backwards = [
            (kind, stage, m)
            for stage in reversed(hosted)
            for m in range(batches)
            for kind in ((OpKind.B, OpKind.W) if m % 2 else (OpKind.BW,))
        ]
        orders.append(np.array([pipeline.code(*op) for op in forwards + backwards], dtype=np.int64))
    origin = Origin(strategy="probe", objective=Objective.MAKESPAN, status="feasible")
    return timing.schedule(pipeline, orders, origin=origin)
