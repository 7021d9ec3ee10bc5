"""Weight passes placed by the real times of the stages, around a fixed order of F and B."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.orders import Orders
from ppopt.strategies.base import equal_times

UNKNOWN = -1
SAMPLE = 4
"""Microbatches per device on which rules are compared."""


class Rule(NamedTuple):
    """When W goes into a gap that is shorter than W."""

    percent: int
    """Share of its time that must fit before what comes next arrives."""
    level: bool = False
    """Also where the gap would make the idle time of its device the largest of all (zero-bubble
    paper, arXiv 2401.10241, section 3.1)."""


RULES = (Rule(100), Rule(100, level=True), Rule(50), Rule(1))


@dataclass(frozen=True)
class Filled:
    """Complete orders and what they lead to when every operation starts as early as it can."""

    orders: tuple[list[int], ...]
    """Numbers of the operations per device."""
    span: int
    """Largest device span, in ticks."""
    makespan: int
    """End of the last operation, in ticks."""
    held: int
    """Most activations on a device at once, counted from F to W."""

    def rank(self, most: int) -> tuple[bool, int, int]:
        """What makes one filling better than another: the smaller, the better."""
        return self.held > most, self.span, self.makespan

    def arrays(self) -> Orders:
        """The orders as arrays."""
        return [np.array(order, dtype=np.int64) for order in self.orders]


Numbers = Sequence[Sequence[int]]
"""For every device, the numbers of operations in order."""
Source = Callable[[Pipeline], Numbers]
"""Gives an order for a pipeline of any number of microbatches."""


def best(
    pipeline: Pipeline, backbones: Sequence[Source], complete: Sequence[Source], most: int
) -> Orders:
    """The order of least device span, then of least makespan, that keeps the memory.

    A backbone gives F and B, and is filled with W by every rule; complete orders are taken as they
    are. No device holds more than `most` activations, counted from F to W, if any order keeps
    that. A long run takes the order that is best for its first `SAMPLE` microbatches per device,
    or the next best where that one, repeated, holds more in the end.
    """
    few = replace(pipeline, batches=min(pipeline.batches, SAMPLE * pipeline.num_devices))
    rules = RULES[:1] if equal_times(pipeline) else RULES  # there, a gap below W is none
    plans: list[tuple[Source, Rule | None]] = [(one, rule) for one in backbones for rule in rules]
    plans += [(one, None) for one in complete]
    tried = [_Filling(few, source(few), most, rule).result() for source, rule in plans]
    ranked = sorted(range(len(plans)), key=lambda number: tried[number].rank(most))
    if few.batches == pipeline.batches:
        return tried[ranked[0]].arrays()
    whole: list[Filled] = []
    for number in ranked:
        source, rule = plans[number]
        whole.append(_Filling(pipeline, source(pipeline), most, rule).result())
        if whole[-1].held <= most:
            break
    return min(whole, key=lambda one: one.rank(most)).arrays()


class _Filling:
    """One pass: every device runs its order, and W where the rule, if any, says so."""

    def __init__(self, pipeline: Pipeline, order: Numbers, most: int, rule: Rule | None) -> None:
        ticks, self.batches = pipeline.ticks, pipeline.batches
        self.stages, self.hosts, self.p2p = pipeline.num_stages, pipeline.hosts[0], ticks.p2p
        self.time = [ticks.durations[kind] for kind in (OpKind.F, OpKind.B, OpKind.W)]
        self.order, self.most, self.rule = order, most, rule
        devices = range(pipeline.num_devices)
        self.end = [UNKNOWN] * pipeline.code(OpKind.W, 0, 0)
        self.free, self.idle, self.held = ([0 for _ in devices] for _ in range(3))
        self.begun = [UNKNOWN for _ in devices]
        self.most_idle, self.most_held = 0, 0
        self.pending: list[deque[int]] = [deque() for _ in devices]
        self.made: tuple[list[int], ...] = tuple([] for _ in devices)

    def result(self) -> Filled:
        """Run all devices in turn, each as far as its inputs are known."""
        reached = [0 for _ in self.order]
        while any(at < len(row) for at, row in zip(reached, self.order, strict=True)):
            before = sum(reached)
            reached = [self._advance(device, at) for device, at in enumerate(reached)]
            assert sum(reached) > before, "the order of F and B waits in a circle"
        for device, waiting in enumerate(self.pending):
            while waiting:
                self._weight(device, waiting.popleft())
        spans = [end - begun for end, begun in zip(self.free, self.begun, strict=True)]
        return Filled(self.made, max(spans), max(self.free), self.most_held)

    def _advance(self, device: int, at: int) -> int:
        """Run a device until an input is unknown; returns how far its order has come."""
        row, weights = self.order[device], 2 * self.stages * self.batches
        while at < len(row):
            code = row[at]
            if code >= weights:
                self._weight(device, code)
            else:
                arrival = self._arrival(code, device)
                if arrival == UNKNOWN:
                    break
                if self.rule is not None:
                    self._fill(self.rule, device, code, arrival)
                self._run(device, code, arrival)
            at += 1
        return at

    def _arrival(self, code: int, device: int) -> int:
        """When the input of F or B is there, UNKNOWN where its source has not run yet."""
        kind_stage, microbatch = divmod(code, self.batches)
        kind, stage = divmod(kind_stage, self.stages)
        source = stage + (1 if kind else -1)
        if source < 0:
            return 0
        if source == self.stages:
            return self.end[stage * self.batches + microbatch]
        end = self.end[(kind * self.stages + source) * self.batches + microbatch]
        return end if end == UNKNOWN else end + self.p2p[self.hosts[source]][device]

    def _fill(self, rule: Rule, device: int, code: int, arrival: int) -> None:
        """Run W before an operation: those that fit, and those that memory asks for."""
        waiting, forward = self.pending[device], code < self.stages * self.batches
        while waiting:
            full = forward and self.held[device] >= self.most
            if not (full or self._fits(rule, device, arrival)):
                return
            self._weight(device, waiting.popleft())

    def _fits(self, rule: Rule, device: int, arrival: int) -> bool:
        gap = arrival - self.free[device]
        time = self.time[2][self.pending[device][0] // self.batches % self.stages]
        if 100 * gap >= rule.percent * time:
            return True
        return rule.level and gap > self.most_idle - self.idle[device]

    def _run(self, device: int, code: int, arrival: int) -> None:
        kind, stage = divmod(code // self.batches, self.stages)
        start = max(self.free[device], arrival)
        if self.begun[device] == UNKNOWN:
            self.begun[device] = start
        else:
            self.idle[device] += start - self.free[device]
            self.most_idle = max(self.most_idle, self.idle[device])
        self.free[device] = self.end[code] = start + self.time[kind][stage]
        self.made[device].append(code)
        if kind == 0:
            self.held[device] += 1
            self.most_held = max(self.most_held, self.held[device])
        elif self.rule is not None:
            self.pending[device].append(code + self.stages * self.batches)

    def _weight(self, device: int, code: int) -> None:
        self.free[device] += self.time[2][code // self.batches % self.stages]
        self.held[device] -= 1
        self.made[device].append(code)
