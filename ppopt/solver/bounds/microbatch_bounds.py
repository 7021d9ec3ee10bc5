"""Lower bounds by one large microbatch, where all stages run all kinds in one common order.

Take a stage and a microbatch j. Its device runs the forwards of all microbatches before j first. It
then runs F of j and waits for j to come back: of the microbatches after j, it can run no backward
before that of j. So it is done no earlier than

    head + (F before j) + F(j) + way of j + BW(j) + (BW behind j) + tail

where BW may also be B and W. The head is that of the first microbatch, and the tail, if backwards
are whole, that of the last one. In any order, every other microbatch comes before j or behind it,
and the first and the last one are two.
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
from ppopt.solver.relaxation.delays import Delays

Times = Any
"""An array of ticks by microbatch, of whole numbers or floats."""


class MicrobatchTimes(NamedTuple):
    """Least times of the microbatches at one stage, each an array by microbatch, in ticks.

    Of the device they count this stage and those of it that are below.
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
    """From the end of the last backward to the end of all, for a last microbatch."""

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
        work = self.forward.sum() + self.backward.sum() + least_of_two(self.head, self.tail)
        largest = int((self.forward + self.way + self.backward).argmax())
        return [(float(work), None), (self._around(largest), largest)]

    def _around(self, microbatch: int) -> float:
        """Bound by one microbatch of several, at any place of the order."""
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
            ends = least_of_two(head + forward - shorter, tail + backward - shorter)
            ways.append(shorter.sum() + ends)
        return float(own + min(ways))


def least_of_two(first: Times, second: Times) -> float:
    """The least sum of an entry of one array and another entry of the second array."""
    places = np.argsort(first, kind="stable")[:2], np.argsort(second, kind="stable")[:2]
    return float(
        min(first[one] + second[two] for one in places[0] for two in places[1] if one != two)
    )


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
                np.array(instance.times(number) or none, dtype=np.int64)
                for number in instance.numbers(stage, 0, part)
            ]
            for stage in range(pipeline.num_stages)
        ]
        for part in range(pipeline.num_slices)
    ]


def times_of_stage(
    instance: Instance, objective: Objective, rows: Rows, stage: int
) -> MicrobatchTimes:
    """Least times of the microbatches at a stage, whose operations have these times.

    The first slice comes first, and its backward last; the last slice is the last to leave.
    """
    delays = Delays(instance)
    none = np.zeros_like(rows[0][0][0])
    first, last, top = rows[0], rows[-1], len(delays.host) - 1
    device = delays.host[stage]
    hosted = [other for other in delays.hosted[device] if other <= stage]
    lowest = hosted[0]
    links = delays.head(top) - delays.head(stage) - sum(delays.forward[stage:top])
    links += delays.round_trip(top)
    if stage < top:
        links += delays.up(top, stage) - sum(delays.backward[stage + 1 : top])
    way = sum((row for numbers in last[stage + 1 :] for row in numbers[:2]), none) + links
    head = tail = none
    if objective is Objective.MAKESPAN:
        head = sum((first[other][0] for other in range(lowest)), none)
        head = head + delays.head(lowest) - sum(delays.forward[:lowest])
        if instance.fused and lowest:
            tail = sum((first[other][1] for other in range(lowest)), none)
            tail = tail + delays.tail(lowest) - sum(delays.backward[:lowest])
    forward = sum((part[other][0] for part in rows for other in hosted), none)
    backward = sum((row for part in rows for other in hosted for row in part[other][1:]), none)
    return MicrobatchTimes(device, head, forward, way, backward, tail)
