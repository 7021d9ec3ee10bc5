"""Least makespan or device span of a small pipeline, by PyJobShop: a second opinion.

PyJobShop (github.com/PyJobShop/PyJobShop) models scheduling problems on top of CP-SAT. Here
every device is one of its machines and, where memory is limited, one of its renewable
resources, on which memory that is held is a task of any length from one operation's start to
another's end. Renewable resources count a task from its start to just before its end, which is
the rule that ends come before starts. The model shares no code with the package's solver.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from pyjobshop import (  # type: ignore[import-untyped]
    Machine,
    Model,
    Renewable,
    SolveStatus,
    Task,
)

from ppopt.problem.operation import Op, OpKind
from ppopt.problem.pipeline import Pipeline
from tests.oracles.whole_backward import bw_allocates


class UndecidedError(Exception):
    """PyJobShop ran out of time."""


def best_makespan(
    pipeline: Pipeline, *, fused: bool, symmetry: bool = False, seconds: float = 60.0
) -> int | None:
    """Least makespan in ticks; None where no schedule meets the memory limits.

    `symmetry` keeps only schedules in which the k-th operation of a kind, stage and route is
    that of its k-th microbatch. Raises UndecidedError after `seconds`.
    """
    if not _static_fits(pipeline):
        return None
    return _Build(pipeline, fused, symmetry).solve(seconds)


def best_device_span(pipeline: Pipeline, *, fused: bool, seconds: float = 60.0) -> int | None:
    """Least device span in ticks, by bisection on windows of one length, one per device.

    None where no schedule meets the memory limits; raises UndecidedError after `seconds` for one
    length.
    """
    high = best_makespan(pipeline, fused=fused, seconds=seconds)
    if high is None:
        return None
    low = _busiest(pipeline, fused)
    while low < high:
        middle = (low + high) // 2
        build = _Build(pipeline, fused, symmetry=False)
        build.add_windows(middle)
        if build.solve(seconds) is None:
            low = middle + 1
        else:
            high = middle
    return high


def _busiest(pipeline: Pipeline, fused: bool) -> int:
    """Longest time that one device needs for its operations alone."""
    kinds = (OpKind.F, OpKind.BW) if fused else (OpKind.F, OpKind.B, OpKind.W)
    times = [
        sum(pipeline.ticks.durations[kind][stage] for kind in kinds)
        for stage in range(pipeline.num_stages)
    ]
    busy = [0] * pipeline.num_devices
    for microbatch in range(pipeline.batches):
        for stage, time in enumerate(times):
            busy[pipeline.device(stage, microbatch)] += time
    return max(busy)


def _static_fits(pipeline: Pipeline) -> bool:
    ticks = pipeline.ticks
    return ticks.limits is None or all(map(int.__le__, ticks.static, ticks.limits))


def _one_by_one(pipeline: Pipeline) -> int:
    """Time for one operation after the other: enough for some best schedule."""
    ticks = pipeline.ticks
    times = sum(map(sum, ticks.durations))
    links = max(sum(down) + sum(up) for down, up in zip(ticks.down, ticks.up, strict=True))
    return pipeline.batches * (times + links)


class _Device(NamedTuple):
    machine: Machine
    memory: Renewable | None


class _Build:
    """One model of a pipeline."""

    def __init__(self, pipeline: Pipeline, fused: bool, symmetry: bool) -> None:
        self.pipeline = pipeline
        self.ticks = pipeline.ticks
        self.model = Model()
        self.horizon = _one_by_one(pipeline)
        self.devices = [self._device(device) for device in range(pipeline.num_devices)]
        self.tasks: dict[Op, Task] = {}
        for microbatch in range(pipeline.batches):
            self._add_microbatch(microbatch, fused)
        if symmetry:
            self._keep_order()

    def solve(self, seconds: float) -> int | None:
        """Least makespan of the model, or None where it has no solution."""
        result = self.model.solve(time_limit=seconds, num_workers=1, display=False)
        if result.status == SolveStatus.INFEASIBLE:
            return None
        if result.status != SolveStatus.OPTIMAL:
            raise UndecidedError(result.status)
        return int(result.objective)

    def add_windows(self, length: int) -> None:
        """Let every device run all of its operations within some window of this length."""
        for device in range(len(self.devices)):
            window = self.model.add_task(latest_end=2 * self.horizon)
            self.model.add_mode(window, [], length)
            for op, task in self.tasks.items():
                if self.pipeline.device(op.stage, op.microbatch) == device:
                    self.model.add_start_before_start(window, task)
                    self.model.add_end_before_end(task, window)

    def _keep_order(self) -> None:
        """Run operations of one kind, stage and route in the order of their microbatches."""
        for op, task in self.tasks.items():
            after = op._replace(microbatch=op.microbatch + 1)
            if after in self.tasks and self._route(op) == self._route(after):
                self.model.add_end_before_start(task, self.tasks[after])

    def _route(self, op: Op) -> int:
        return op.microbatch * len(self.pipeline.hosts) // self.pipeline.batches

    def _device(self, device: int) -> _Device:
        memory = None
        if self.ticks.limits is not None:
            room = self.ticks.limits[device] - self.ticks.static[device]
            memory = self.model.add_renewable(room)
        return _Device(self.model.add_machine(), memory)

    def _add_microbatch(self, microbatch: int, fused: bool) -> None:
        stages = range(self.pipeline.num_stages)
        back = OpKind.BW if fused else OpKind.B
        for stage in stages:
            self._add_stage(stage, microbatch, fused)
            if stage:
                self._send(OpKind.F, stage - 1, stage, microbatch)
        for stage in stages[:-1]:
            self._send(back, stage + 1, stage, microbatch)

    def _add_stage(self, stage: int, microbatch: int, fused: bool) -> None:
        """Add the operations of one stage, in their order, and the memory that they hold."""
        kinds = (OpKind.F, OpKind.BW) if fused else (OpKind.F, OpKind.B, OpKind.W)
        tasks = [self._add_op(Op(kind, stage, microbatch)) for kind in kinds]
        for before, after in pairwise(tasks):
            self.model.add_end_before_start(before, after)
        forward, backward, last = tasks[0], tasks[1], tasks[-1]
        device = self.pipeline.device(stage, microbatch)
        if fused:
            allocated = bw_allocates(self.pipeline, stage) + self.ticks.costs.offload_memory[stage]
            self._hold(device, forward, backward, self.ticks.kept[stage])
            self._hold(device, backward, backward, allocated)
            self._hold(device, forward, forward, self.ticks.workspace[OpKind.F][stage])
            return
        whole, at_b = self.ticks.costs.activation[stage], self.ticks.costs.memory_b[stage]
        kept = self.ticks.kept[stage]
        until_w = whole + at_b
        first = min(kept, until_w)
        self._hold(device, forward, last, first)
        self._hold(device, forward, backward, kept - first)
        self._hold(device, backward, last, until_w - first)
        self._hold(device, backward, backward, whole + max(at_b, 0) - kept - until_w + first)
        for kind, task in zip(kinds, tasks, strict=True):
            self._hold(device, task, task, self.ticks.workspace[kind][stage])

    def _add_op(self, op: Op) -> Task:
        task = self.model.add_task(latest_end=self.horizon, name=str(op))
        machine = self.devices[self.pipeline.device(op.stage, op.microbatch)].machine
        self.model.add_mode(task, machine, self.ticks.durations[op.kind][op.stage])
        self.tasks[op] = task
        return task

    def _hold(self, device: int, first: Task, last: Task, amount: int) -> None:
        """Hold memory from the start of `first` to the end of `last`: for no time at all where
        it is more than there is (PyJobShop refuses such a task)."""
        memory = self.devices[device].memory
        if memory is None or not amount:
            return
        if amount > memory.capacity:
            self.model.add_end_before_start(last, first)
            return
        task = self.model.add_task(allow_idle=True, latest_end=self.horizon)
        self.model.add_mode(task, memory, 0, amount)
        self.model.add_start_at_start(first, task)
        self.model.add_end_at_end(last, task)

    def _send(self, kind: OpKind, source: int, target: int, microbatch: int) -> None:
        ways = self.ticks.down if kind is OpKind.F else self.ticks.up
        lag = ways[self.pipeline.route(microbatch)][min(source, target)]
        before, after = (self.tasks[Op(kind, stage, microbatch)] for stage in (source, target))
        self.model.add_end_before_start(before, after, lag)
