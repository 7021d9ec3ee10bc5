"""Precedence constraints and objective cuts of a problem reduced to some or all devices.

The kept devices remain resources; each dropped device is replaced by the delays that it causes. The
constraints hold in every schedule of the whole pipeline whose microbatches are in order (see
`ppopt.solver.cp_sat.model`). So the minimum objective of the kept devices under these constraints
is a lower bound for all devices. If every device is kept, the constraints are exactly the data flow
of the pipeline.

An F and a backward of an overlapped pair each take as long as the pair, which is at least their own
duration. So the delays remain valid, and so do sums of backwards and W, which never overlap; sums
that contain F do not.

Notation: a and b are kept stages, k is a dropped stage; down(a, b) is the delay from the end of
F(a) to the start of F(b) through the stages between, up(b, a) the same for B. K is the maximum
number of microbatches of stage k between F and B within the memory limit, L the same between F and
W. B is BW if backwards are whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.instance import Instance
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.operation_classes import Constraints
from ppopt.solver.arguments import SUBSETS
from ppopt.solver.relaxation.route_times import RouteTimes


class ObjectiveCut(NamedTuple):
    """objective >= end of `last` - start of `first` (None: 0) + `rest` ticks."""

    first: int | None
    last: int
    rest: int


@dataclass(frozen=True)
class DeviceSubset:
    """One route of an instance with a subset of its devices; stages are ascending."""

    times: RouteTimes
    devices: frozenset[int]

    @property
    def instance(self) -> Instance:
        """The instance of the route."""
        return self.times.instance

    @cached_property
    def retained(self) -> list[int]:
        """Stages on the devices kept."""
        return [stage for stage, host in enumerate(self.times.host) if host in self.devices]

    @cached_property
    def dropped(self) -> list[int]:
        """Stages on the other devices."""
        return [stage for stage, host in enumerate(self.times.host) if host not in self.devices]

    def above(self, stage: int) -> int | None:
        """Nearest kept stage after a dropped one; None: there is none."""
        return min((upper for upper in self.retained if upper > stage), default=None)

    def below(self, stage: int) -> int | None:
        """Nearest kept stage before a dropped one; None: there is none."""
        return max((lower for lower in self.retained if lower < stage), default=None)

    @cached_property
    def flow(self) -> list[tuple[int, int, int]]:
        """Precedence between the classes of the kept stages: (before, after, lag in ticks).

        A path through dropped stages is a lag. The lag from the F of a stage to its backward is 0
        if kept stages above imply a longer delay.
        """
        graph = self.times.graph()
        for stage in reversed(self.dropped):
            for class_id in self.times.numbers[stage]:
                graph.remove(class_id)
        return [
            (before, after, 0 if self._is_implied(before, after, lag) else lag)
            for before, after, lag in graph
        ]

    def _is_implied(self, before: int, after: int, lag: int) -> bool:
        """Whether this is the lag from an F to its backward, and a longer path implies more."""
        stage = self.instance.classes[before].stage
        turns = self.times.numbers[stage][:2] == [before, after]
        return lag > 0 and turns and lag < self.times.round_trip(stage)

    def codes(self, kind: OpKind, stage: int, slice_index: int = 0) -> Ints:
        """Operations of a kind and stage (and slice), in microbatch order."""
        instance = self.instance
        codes: Ints = instance.codes[instance.class_id(kind, stage, self.times.route, slice_index)]
        return codes

    def forwards(self, stage: int) -> Ints:
        """The F of a stage, in microbatch order."""
        return self.codes(OpKind.F, stage)

    def backwards(self, stage: int) -> Ints:
        """The B (or BW) of a stage, in microbatch order."""
        return self.codes(self.instance.backward, stage)

    def closing(self, stage: int) -> Ints:
        """The last operations of a stage, in microbatch order: W, or the last existing kind."""
        classes = self.instance.classes
        numbers = (n for n in reversed(self.times.numbers[stage]) if classes[n].size)
        return self.instance.codes[next(numbers)]

    @property
    def operations(self) -> Ints:
        """Numbers of the operations of the kept stages."""
        parts = [
            self.codes(kind, stage, slice_index)
            for kind in self.instance.kinds
            for stage in self.retained
            for slice_index in range(self.instance.pipeline.num_slices)
        ]
        return np.concatenate(parts)


def implied_precedence(subset: DeviceSubset) -> Constraints:
    """Precedence constraints among the operations of the kept stages."""
    parts = [
        *_microbatch_order(subset),
        *_data_flow(subset),
        *_memory_of_retained_stages(subset),
    ]
    if not parts:
        return Constraints(*(np.empty(0, dtype=np.int64) for _ in range(3)))
    before = np.concatenate([constraint[0] for constraint in parts])
    after = np.concatenate([constraint[1] for constraint in parts])
    lag = np.concatenate([np.full(len(constraint[0]), constraint[2]) for constraint in parts])
    return Constraints(before, after, lag)


Constraint = tuple[Ints, Ints, int]
"""Operations, the operation after each of them, and the common lag in ticks."""


def _microbatch_order(subset: DeviceSubset) -> Iterator[Constraint]:
    """Microbatches in order within each kind and stage."""
    for stage in subset.retained:
        for kind in subset.instance.kinds:
            codes = subset.codes(kind, stage)
            yield codes[:-1], codes[1:], 0


def _data_flow(subset: DeviceSubset) -> Iterator[Constraint]:
    """Data flow between the kept stages; dropped stages are delays."""
    codes = subset.instance.codes
    for before, after, lag in subset.flow:
        yield codes[before], codes[after], lag


def _memory_of_retained_stages(subset: DeviceSubset) -> Iterator[Constraint]:
    """F(a, j) waits for memory at its own stage: after B(a, j - K), and after W(a, j - L)."""
    instance, times = subset.instance, subset.times
    for stage in subset.retained:
        limits = {instance.backward: times.max_until_b[stage]}
        if not instance.fused:
            limits[instance.closing] = times.max_until_w[stage]
        for kind, count in limits.items():
            if count is not None and count < times.batches:
                yield subset.codes(kind, stage)[:-count], subset.forwards(stage)[count:], 0


def needs_cumulative(instance: Instance, device: int) -> bool:
    """Whether the memory limit of a retained device needs more than `_memory_of_retained_stages`.

    It does not if all memory of the device is live from F to W (or BW) of one stage on one route,
    in a single mode. Then the limit is a number of microbatches: exactly F(a, j) after W(a, j - L).
    """
    stages = sum(len(hosted[device]) for hosted in instance.pipeline.hosted)
    if stages > 1 or not (instance.has_uniform_classes and SUBSETS.applies(instance.traits)):
        return True
    classes = instance.classes
    return any(
        (classes[allocating].kind, classes[freeing].kind) != (OpKind.F, instance.closing)
        for allocating, freeing, _ in instance.live_memory_in()
        if classes[allocating].resource == device
    )


def releases(subset: DeviceSubset) -> Iterator[tuple[int, int]]:
    """(operation, earliest start) of the F of the first kept stage, for makespan.

    F(b, j) comes after j + 1 forwards of every dropped stage below b.
    """
    if not subset.retained:
        return
    first, times = subset.retained[0], subset.times
    slowest = max(times.forward[:first], default=0)
    for microbatch, code in enumerate(subset.forwards(first).tolist()):
        yield code, times.head(first) + microbatch * slowest


def objective_cuts(subset: DeviceSubset, objective: Objective) -> Iterator[ObjectiveCut]:
    """Lower bounds on the objective, in terms of the kept operations."""
    yield from _retained_cuts(subset, objective)
    for device in sorted(set(subset.times.host) - subset.devices):
        if objective is Objective.MAKESPAN:
            yield from _dropped_makespan(subset, device)
        else:
            yield from _dropped_span(subset, device)


def _retained_cuts(subset: DeviceSubset, objective: Objective) -> Iterator[ObjectiveCut]:
    """The end of every kept operation, or the span of every kept device."""
    for device in sorted(subset.devices):
        stages = subset.times.hosted[device]
        first = int(subset.forwards(stages[0])[0])
        for stage in stages:
            last = int(subset.closing(stage)[-1])
            yield ObjectiveCut(None if objective is Objective.MAKESPAN else first, last, 0)


def _dropped_makespan(subset: DeviceSubset, device: int) -> Iterator[ObjectiveCut]:
    """A dropped device still has work after B(b, j), or after F(a, j), of the kept stages."""
    times, stages = subset.times, subset.times.hosted[device]
    for k in stages:
        a, b = subset.below(k), subset.above(k)
        if b is not None:
            for j, last in enumerate(subset.backwards(b).tolist()):
                rest = times.up(b, k) + _work_after_b(times, stages, k, j)
                yield ObjectiveCut(None, last, rest)
        if a is not None:
            for j, last in enumerate(subset.forwards(a).tolist()):
                rest = times.down(a, k) + _work_after_f(times, stages, k, j)
                yield ObjectiveCut(None, last, rest)


def _work_after_b(times: RouteTimes, stages: tuple[int, ...], k: int, j: int) -> int:
    """Minimum work of the device after B(k, j) may start.

    B and W of microbatches j and later at stages up to k, and F that wait for memory:
    F(s, i) waits for B(s, i - K), and B(s, i) with s <= k, i >= j comes after B(k, j) starts.
    """
    remaining = times.batches - j
    work = 0
    for stage in stages:
        if stage > k:
            continue
        work += remaining * (times.backward[stage] + times.weight[stage])
        max_live = times.max_until_b[stage]
        if max_live is not None and not times.overlapped:
            work += max(0, remaining - max_live) * times.forward[stage]
    return work


def _work_after_f(times: RouteTimes, stages: tuple[int, ...], k: int, j: int) -> int:
    """Minimum work of the device after F(k, j) may start: all of j and later, without F below k."""
    remaining = times.batches - j
    return remaining * sum(
        times.backward[stage]
        + times.weight[stage]
        + (times.forward[stage] if stage >= k and not times.overlapped else 0)
        for stage in stages
    )


def _dropped_span(subset: DeviceSubset, device: int) -> Iterator[ObjectiveCut]:
    """Span of a dropped device, if the path from its first operation passes kept stages.

    Its first operation is F(k, 0) of its lowest stage k. If b is the kept stage above k, F(b, 0)
    starts at least F(k) + down(k, b) later. If there is none, and a is the kept stage below k,
    B(a, 0) starts at least the round trip of k later. The rest is as for makespan. There is no cut
    if stage k, or a, has no backward.
    """
    times, stages = subset.times, subset.times.hosted[device]
    k = stages[0]
    a, b = subset.below(k), subset.above(k)
    if not len(subset.backwards(k)):
        return
    if b is not None:
        first = int(subset.forwards(b)[0])
        lead = times.forward[k] + times.down(k, b) + times.up(b, k)
        for j, last in enumerate(subset.backwards(b).tolist()):
            yield ObjectiveCut(first, last, lead + _work_after_b(times, stages, k, j))
    elif a is not None and len(subset.backwards(a)):
        first = int(subset.backwards(a)[0])
        lead = times.forward[k] + times.round_trip(k) + times.backward[k] + times.up(k, a)
        lead += times.down(a, k)
        for j, last in enumerate(subset.forwards(a).tolist()):
            yield ObjectiveCut(first, last, lead + _work_after_f(times, stages, k, j))
