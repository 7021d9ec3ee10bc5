"""Measure a real run: when every operation of this rank's stages ran, and what it held.

The stage's own methods are wrapped, so that waiting for receives counts for no operation: the
profiler ranges that PyTorch itself records (`PP:1F0`) include the wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import distributed

from ppopt.problem.operation import OpKind
from ppopt.profiles.estimate import Profile, Record, StageMemory, profile
from ppopt.torch.memory import Meter

_METHODS = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")


class Profiler:
    """Records of what this rank's stages run while it is entered.

        with Profiler(stages) as profiler:
            for _ in range(4):
                runtime.step(batch)
                profiler.next_step()
        profile = profiler.gather()

    The first step warms up: it measures memory and no times. On an accelerator each operation is
    synchronised before and after, so that its time is its own; such a step takes longer. Clocks
    are those of the machine (`perf_counter_ns`), which ranks on one machine share.
    """

    def __init__(self, stages: Sequence[Any]) -> None:
        self._stages = list(stages)
        self._step = -1
        self._kept: list[dict[str, Any]] = []
        self.records: list[Record] = []
        """Operations of the measured steps."""
        self.memory: dict[int, StageMemory] = {}
        """Memory of this rank's stages."""
        self._meter = Meter()

    def __enter__(self) -> Profiler:
        self._kept = [{name: vars(stage).get(name) for name in _METHODS} for stage in self._stages]
        for stage in self._stages:
            for name in _METHODS:
                setattr(stage, name, self._timed(stage, name, getattr(stage, name)))
        return self

    def __exit__(self, *_: object) -> None:
        for stage, kept in zip(self._stages, self._kept, strict=True):
            for name, method in kept.items():
                if method is None:
                    delattr(stage, name)
                else:
                    setattr(stage, name, method)

    def next_step(self) -> None:
        """Begin a new training step."""
        if self._step < 0:
            self.memory = self._meter.stage_memory(self._stages)
        self._step += 1

    def gather(self, group: Any = None) -> Profile:
        """Bring the measurements of all ranks together, on every rank.

        A collective call of `group` (default: the world). Raises InputError where nothing was
        measured after the first step, or operations are missing.
        """
        mine = (self.records, self.memory)
        found: list[Any] = [None] * distributed.get_world_size(group)
        distributed.all_gather_object(found, mine, group)
        held = {stage: memory for _, ours in found for stage, memory in ours.items()}
        return profile([record for records, _ in found for record in records], held)

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
            place = (stage.stage_index, microbatch, stage.group_rank, start, end, self._step)
            self.records.append(Record(kind, *place))
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
