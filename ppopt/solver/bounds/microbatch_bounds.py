"""Lower bounds by one large microbatch, if all stages run all kinds in one common order.

Consider a stage and a microbatch j. The device first runs the forwards of all microbatches before
j. It then runs F of j and waits for the round trip of j: it can run no backward of a later
microbatch before that of j. So the schedule ends no earlier than

    head + (F before j) + F(j) + round trip of j + BW(j) + (BW after j) + tail

where BW may also be B and W. The head is that of the first microbatch. The tail is that of the last
microbatch if backwards are whole. In any order, every other microbatch runs before or after j,
and the first and the last microbatch are different.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ppopt.problem.instance import Instance
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver.arguments import ROUND_TRIPS
from ppopt.solver.bound import TRIVIAL, Bound
from ppopt.solver.relaxation.route_times import RouteTimes

Times = Any
"""An array of ticks by microbatch, of whole numbers or floats."""


class MicrobatchTimes(NamedTuple):
    """Minimum times of the microbatches at one stage, each an array by microbatch, in ticks.

    They include this stage and the lower stages of its device.
    """

    device: int
    head: Times
    """From 0 to the first F."""
    forward: Times
    way: Times
    """From the end of F of the stage to the start of its backward."""
    backward: Times
    """With W."""
    tail: Times
    """From the end of the last backward to the end of the schedule, if the microbatch is last."""

    def in_order(self) -> list[tuple[float, int | None]]:
        """Bounds in the order of the arrays: by a microbatch, and by the work of the device."""
        before = np.cumsum(self.forward)
        behind = np.cumsum(self.backward[::-1])[::-1]
        values = self.head[0] + before + self.way + behind + self.tail[-1]
        work = self.head[0] + before[-1] + behind[0] + self.tail[-1]
        return [(float(work), None), (float(values.max()), int(values.argmax()))]

    def in_any_order(self) -> list[tuple[float, int | None]]:
        """The same bounds in any order: two microbatches come first and last."""
        if len(self.head) == 1:
            return self.in_order()
        work = self.forward.sum() + self.backward.sum() + min_distinct_sum(self.head, self.tail)
        largest = int((self.forward + self.way + self.backward).argmax())
        return [(float(work), None), (self._around(largest), largest)]

    def _around(self, microbatch: int) -> float:
        """Bound by one microbatch of several, at any position of the order."""
        forward, backward, head, tail = (
            np.delete(times, microbatch)
            for times in (self.forward, self.backward, self.head, self.tail)
        )
        own = self.forward[microbatch] + self.way[microbatch] + self.backward[microbatch]
        ways = [
            head.min() + forward.sum() + self.tail[microbatch],
            self.head[microbatch] + backward.sum() + tail.min(),
        ]
        if forward.size > 1:
            shorter = np.minimum(forward, backward)
            ends = min_distinct_sum(head + forward - shorter, tail + backward - shorter)
            ways.append(shorter.sum() + ends)
        return float(own + min(ways))


def min_distinct_sum(first: Times, second: Times) -> float:
    """Minimum sum of an entry of each array, at different indices."""
    smallest = np.argsort(first, kind="stable")[:2], np.argsort(second, kind="stable")[:2]
    return float(min(first[i] + second[j] for i in smallest[0] for j in smallest[1] if i != j))


def microbatch_bound(problem: Problem, *, any_order: bool) -> Bound:
    """Bound by one microbatch, in the given order or in any; the trivial one if it is not known.

    The problem has one kind of backwards, and unlimited memory.
    """
    if not ROUND_TRIPS.applies(problem.traits):
        return TRIVIAL
    instance, best = problem.instance, TRIVIAL
    rows = rows_of(instance)
    for stage in range(problem.pipeline.num_stages):
        if not problem.pipeline.has_operations[OpKind.B][stage]:
            continue
        times = times_of_stage(instance, problem.objective, rows, stage)
        for value, microbatch in times.in_any_order() if any_order else times.in_order():
            if value > best.value:
                proof = _proof(problem.pipeline, stage, times.device, microbatch)
                proof = proof if any_order else f"in the given order, {proof}"
                best = Bound(int(value), proof, Certificate(Argument.ROUND_TRIP, (times.device,)))
    return best


def _proof(pipeline: Pipeline, stage: int, device: int, microbatch: int | None) -> str:
    if microbatch is None:
        return (
            f"device {device} is the bottleneck: the way of the first microbatch to it, its work, "
            "and the way of the last gradient back to stage 0"
        )
    name = pipeline.order[microbatch] if isinstance(pipeline.order, tuple) else microbatch
    return (
        f"device {device} is the bottleneck: microbatch {name} travels from stage {stage} to the "
        "last stage and back, and the device runs all others before or after that"
    )


Rows = list[list[list[Times]]]
"""Times of operations: [slice][stage][kind of `Instance.rows`], each an array by microbatch."""


def rows_of(instance: Instance) -> Rows:
    """Times of all compute of an instance of one route, in ticks."""
    pipeline, none = instance.pipeline, (0,) * instance.batches
    return [
        [
            [
                np.array(instance.times(class_id) or none, dtype=np.int64)
                for class_id in instance.class_ids(stage, 0, slice_index)
            ]
            for stage in range(pipeline.num_stages)
        ]
        for slice_index in range(pipeline.num_slices)
    ]


def times_of_stage(
    instance: Instance, objective: Objective, rows: Rows, stage: int
) -> MicrobatchTimes:
    """Minimum times of the microbatches at a stage.

    The first slice runs first, and its backward last. The last slice leaves the stage last.
    """
    times = RouteTimes(instance)
    none = np.zeros_like(rows[0][0][0])
    first, last, top = rows[0], rows[-1], len(times.host) - 1
    device = times.host[stage]
    hosted = [lower for lower in times.hosted[device] if lower <= stage]
    lowest = hosted[0]
    links = times.head(top) - times.head(stage) - sum(times.forward[stage:top])
    links += times.round_trip(top)
    if stage < top:
        links += times.up(top, stage) - sum(times.backward[stage + 1 : top])
    way = sum((row for numbers in last[stage + 1 :] for row in numbers[:2]), none) + links
    head = tail = none
    if objective is Objective.MAKESPAN:
        head = sum((first[lower][0] for lower in range(lowest)), none)
        head = head + times.head(lowest) - sum(times.forward[:lowest])
        if instance.fused and lowest:
            tail = sum((first[lower][1] for lower in range(lowest)), none)
            tail = tail + times.tail(lowest) - sum(times.backward[:lowest])
    forward = sum((slice_times[lower][0] for slice_times in rows for lower in hosted), none)
    backward = sum(
        (row for slice_times in rows for lower in hosted for row in slice_times[lower][1:]), none
    )
    return MicrobatchTimes(device, head, forward, way, backward, tail)
