"""Weight passes placed by the real times of the stages, around a fixed order of F and B."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ppopt.problem import microbatches
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.generation import EventSimulation
from ppopt.schedule.orders import Orders
from ppopt.strategies.base import equal_times

SAMPLE = 4
"""Microbatches per device on which rules are compared."""


class GapRule(NamedTuple):
    """When W goes into a gap that is shorter than W."""

    percent: int
    """Share of its time that must fit before the next arrival."""
    level: bool = False
    """Also where the gap would make the idle time of its device the largest of all (zero-bubble
    paper, arXiv 2401.10241, section 3.1)."""


RULES = (GapRule(100), GapRule(100, level=True), GapRule(50), GapRule(1))

Sequences = Sequence[Sequence[int]]
"""For every device, the class of every operation in order; microbatches of a class follow."""
Source = Callable[[Instance], Sequences]
"""Builds an order for an instance with any number of microbatches."""


class Filled(NamedTuple):
    """Complete orders, and their figures when every operation starts as early as it can."""

    orders: Orders
    span: int
    """Largest device span, in ticks."""
    makespan: int
    """In ticks."""
    in_flight: int
    """Maximum number of activations on a device, counted from F to W."""

    def rank(self, max_in_flight: int) -> tuple[bool, int, int]:
        """Key for comparing fillings: the smaller, the better."""
        return self.in_flight > max_in_flight, self.span, self.makespan


class FillingVariant(NamedTuple):
    """A way to build complete orders."""

    source: Source
    rule: GapRule | None
    """The placement of W; None: the source builds complete orders."""

    def filled(self, pipeline: Pipeline, max_in_flight: int) -> Filled:
        """Simulate the plan on a pipeline."""
        instance = Instance.of(pipeline, BackwardKind.SPLIT)
        return _Filling(instance, self.source(instance), max_in_flight, self.rule).result()


def best(
    pipeline: Pipeline, backbones: Sequence[Source], complete: Sequence[Source], max_in_flight: int
) -> Orders:
    """The order of minimum device span, then of minimum makespan, within the memory.

    A backbone has F and B, and every rule fills it with W; complete orders are used as they are. No
    device has more than `max_in_flight` activations, counted from F to W, if any order allows that.
    A long run uses the order that is best for its first `SAMPLE` microbatches per device, or the
    next best if that one, repeated, exceeds the limit.
    """
    sample = _first_microbatches(pipeline, min(pipeline.batches, SAMPLE * pipeline.num_devices))
    rules = RULES[:1] if equal_times(pipeline) else RULES  # equal times leave no gap below W
    plans = [FillingVariant(source, rule) for source in backbones for rule in rules]
    plans += [FillingVariant(source, None) for source in complete]
    tried = [(plan, plan.filled(sample, max_in_flight)) for plan in plans]
    ranked = sorted(tried, key=lambda pair: pair[1].rank(max_in_flight))
    if sample.batches == pipeline.batches:
        return ranked[0][1].orders
    whole: list[Filled] = []
    for plan, _ in ranked:
        whole.append(plan.filled(pipeline, max_in_flight))
        if whole[-1].in_flight <= max_in_flight:
            break
    return min(whole, key=lambda filled: filled.rank(max_in_flight)).orders


def _first_microbatches(pipeline: Pipeline, count: int) -> Pipeline:
    """The pipeline with its first microbatches alone."""
    if count == pipeline.batches:
        return pipeline
    stated = (getattr(pipeline, field) for field in (microbatches.TIMES, microbatches.MEMORY))
    times, memory = (factors and factors[:count] for factors in stated)
    return replace(
        pipeline,
        batches=count,
        microbatch_times=times,
        microbatch_memory=memory,
        order=microbatches.GIVEN_ORDER,
    )


class _Filling:
    """One simulation: every device runs its order, and W by the rule, if there is one."""

    def __init__(
        self, instance: Instance, sequences: Sequences, max_in_flight: int, rule: GapRule | None
    ) -> None:
        self.run, self.classes = EventSimulation(instance), instance.classes
        self.times = instance.amounts("duration")
        self.sequences, self.max_in_flight, self.rule = sequences, max_in_flight, rule
        numbers = map(instance.class_ids, range(instance.pipeline.num_stages))
        present = [[class_id for class_id in row if self.classes[class_id].size] for row in numbers]
        self.closing = {row[-1] for row in present}
        """The last class of every stage."""
        self.weight = {row[-2]: row[-1] for row in present if len(row) == len(instance.rows)}
        self.in_flight = [0 for _ in sequences]
        self.peak_in_flight = 0
        self.pending: list[deque[int]] = [deque() for _ in sequences]

    def result(self) -> Filled:
        """Run all devices in turn, each as far as its inputs are known."""
        reached = [0 for _ in self.sequences]
        while any(at < len(row) for at, row in zip(reached, self.sequences, strict=True)):
            before = sum(reached)
            reached = [self._advance(device, at) for device, at in enumerate(reached)]
            assert sum(reached) > before, "the order of F and B waits in a circle"
        for device, waiting in enumerate(self.pending):
            while waiting:
                self._append(device, waiting.popleft(), 0)
        run = self.run
        return Filled(run.orders(), run.span, run.makespan, self.peak_in_flight)

    def _advance(self, device: int, at: int) -> int:
        """Run a device until an input is unknown; returns how far its order has come."""
        sequence, rule, arrivals = self.sequences[device], self.rule, self.run.arrival
        while at < len(sequence):
            class_id = sequence[at]
            arrival = arrivals(class_id)
            if arrival is None:
                break
            if rule is not None and self.pending[device]:
                self._fill(rule, device, class_id, arrival)
            self._append(device, class_id, arrival)
            at += 1
        return at

    def _fill(self, rule: GapRule, device: int, class_id: int, arrival: int) -> None:
        """Run W before an operation: those that fit, and those that memory requires."""
        waiting, forward = self.pending[device], self.classes[class_id].kind is OpKind.F
        while waiting:
            full = forward and self.in_flight[device] >= self.max_in_flight
            if not (full or self._fits(rule, device, arrival)):
                return
            self._append(device, waiting.popleft(), 0)

    def _fits(self, rule: GapRule, device: int, arrival: int) -> bool:
        gap, weight = arrival - self.run.free[device], self.pending[device][0]
        if 100 * gap >= rule.percent * self.times[weight][self.run.done[weight]]:
            return True
        return rule.level and gap > self.run.max_idle - self.run.idle[device]

    def _append(self, device: int, class_id: int, arrival: int) -> None:
        self.run.append(class_id, arrival)
        kind = self.classes[class_id].kind
        if kind is OpKind.F:
            self.in_flight[device] += 1
            self.peak_in_flight = max(self.peak_in_flight, self.in_flight[device])
        if class_id in self.closing:
            self.in_flight[device] -= 1
        elif kind is OpKind.B and self.rule is not None:
            self.pending[device].append(self.weight[class_id])
