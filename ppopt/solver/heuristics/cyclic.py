"""Cyclic schedules: the operations of one microbatch, repeated once per period.

Repeating building blocks are the method of arXiv 2405.15362 (section 2: peak memory is the sum of
lifespans over the period); here CP-SAT finds them. The model is that of periodic event scheduling
(Serafini, Ukovich, "A mathematical model for periodic scheduling problems", SIAM J. Discrete Math.
2, 1989; cyclic scheduling on machines: Hanen, Munier 1995): starts of the operations of one
microbatch, and for every two of a device how many periods apart they fall,

    q(a, b) = floor((start(b) - start(a)) / period), hence
    time(a) <= start(b) - start(a) - period q(a, b) <= period - time(b),

so that neither runs while any copy of the other does. Memory is linear in these counts: when an
operation x starts, q(taker, x) - q(giver, x) copies of a holding exist, where q(x, x) is 0 of the
taker and -1 of the giver. The size of the model does
not depend on the number of microbatches. A schedule of any length needs no more memory than the
endless cycle. Local search improves its warm-up and its cool-down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import NamedTuple

import numpy as np
from ortools.sat.python import cp_model

from ppopt.problem.instance import Instance
from ppopt.problem.operation import OpKind
from ppopt.problem.operation_classes import Holding
from ppopt.problem.problem import Problem
from ppopt.solver import interrupts
from ppopt.solver.budget import Budget, SolverLimits
from ppopt.solver.cp_sat import cpsat
from ppopt.solver.heuristics.operation_network import OperationNetwork
from ppopt.solver.parameters import CyclicParams


class Cycle(NamedTuple):
    """Starts of the operations of one microbatch and the period, in rounded ticks."""

    period: int
    start: list[int]
    """Start per class of operations."""

    def unroll(self, network: OperationNetwork) -> list[int]:
        """Earliest starts of all operations of the whole run, in the order of the cycle."""
        instance = network.problem.instance
        present = [number for number, op_class in enumerate(instance.classes) if op_class.size]
        starts = np.array(self.start, dtype=np.int64)[present, None]
        places = (starts + self.period * np.arange(instance.batches)).ravel()
        by_code = places[np.argsort(np.concatenate(instance.codes))].tolist()
        return network.earliest_starts(sorted(range(network.size), key=by_code.__getitem__))


def cycles(
    problem: Problem,
    max_period: int,
    budget: Budget,
    seed: Callable[[], int],
    params: CyclicParams = CyclicParams(),
) -> Iterator[Cycle]:
    """Cycles of ever shorter periods, at most `max_period` ticks, by bisection, within the budget.

    Assumes one route, no slices, and no operations of no length. Raises KeyboardInterrupt on
    Ctrl-C.
    """
    low, high, period = least_period(problem), max_period, least_period(problem)
    while low <= high and not budget.over:
        limits = budget.single_worker_limits(params.longest, params.effort, seed())
        found, work = cycle(problem, period, limits, params)
        budget.spent += work + params.overhead
        if found is None:
            low = period + 1
        else:
            yield found
            high = period - 1
        if high < params.close * low:
            return
        period = (low + high) // 2


def least_period(problem: Problem) -> int:
    """Largest work of a device for one microbatch, in ticks."""
    times = problem.instance.times
    return max(sum(max(times(i)) for i in mine) for mine in problem.instance.hosted)


@interrupts.deferred()
def cycle(
    problem: Problem, period: int, limits: SolverLimits, params: CyclicParams = CyclicParams()
) -> tuple[Cycle | None, float]:
    """Find a cycle of about this period (None: none found), and the deterministic units spent."""
    instance = problem.instance
    grain = max(1, period // params.fineness)
    model = _CycleModel(instance, grain, period // grain, params.reach)
    for device, mine in enumerate(instance.hosted):
        model.add_device(device, sorted(mine, key=lambda i: instance.classes[i].stage))
    solver = cpsat.solver(limits)
    status, interrupted = cpsat.run(solver, model.cp)
    if interrupted:
        raise KeyboardInterrupt
    work = solver.response_proto.deterministic_time
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, work
    start = [grain * solver.value(model.start[i]) for i in range(len(model.time))]
    return Cycle(grain * model.period, start), work


Counts = dict[tuple[int, int], cp_model.LinearExpr]
"""q(a, b) of the module docstring, for two classes of a device."""


class _CycleModel:
    """CP-SAT model in coarse units of time: CP-SAT is slow on fine ones."""

    def __init__(self, instance: Instance, grain: int, period: int, reach: int) -> None:
        """`grain` is the number of ticks of a coarse unit; `period` counts coarse units."""
        self.instance, self.period = instance, period
        self.cp = cp_model.CpModel()
        numbers = range(len(instance.classes))
        self.time = [max(1, _rounded(max(instance.times(i), default=0), grain)) for i in numbers]
        """Largest durations, at least 1, so that the order alone keeps the data flow."""
        flow = [
            (before, after, _rounded(lag, grain))
            for after, links in enumerate(instance.predecessors)
            for before, lag in links
        ]
        way = sum(lag for _, _, lag in flow) + sum(
            time
            for time, op_class in zip(self.time, instance.classes, strict=True)
            if op_class.kind is not OpKind.W
        )
        self.latest = reach * way + period
        """Latest start of a microbatch's operations."""
        order = sorted(
            range(len(self.time)),
            key=lambda i: (instance.classes[i].device, instance.classes[i].stage, i),
        )
        self.start = {i: self.cp.new_int_var(0, self.latest, "") for i in order}
        self.cp.add(self.start[instance.number(OpKind.F, 0)] == 0)
        for before, after, lag in flow:
            self.cp.add(self.start[after] >= self.start[before] + self.time[before] + lag)

    def add_device(self, device: int, mine: list[int]) -> None:
        """Add a device: one operation at a time, and memory within the limit."""
        counts = self._counts(mine)
        room = self.instance.room(device)
        if room is not None:
            classes = self.instance.classes
            held = sorted(
                Holding(taker, giver, max(amounts))
                for taker, giver, amounts in self.instance.holdings
                if classes[taker].device == device
            )
            held.sort(key=lambda holding: classes[holding.taker].stage)
            self._add_peak(held, counts, room)
            self._add_lifespans(held, room)

    def _counts(self, mine: list[int]) -> Counts:
        """Constrain operations of a device not to overlap; return their q, with q(a, a) = 0."""
        counts: Counts = {(i, i): self.cp.new_constant(0) for i in mine}
        most = 1 + self.latest // self.period
        for a, b in combinations(mine, 2):
            count = self.cp.new_int_var(-most, most, "")
            rest = self.start[b] - self.start[a] - self.period * count
            self.cp.add(rest >= self.time[a])
            self.cp.add(rest <= self.period - self.time[b])
            counts[a, b], counts[b, a] = count, -1 - count
        return counts

    def _add_peak(self, held: list[Holding], counts: Counts, room: int) -> None:
        """Add the memory limit at the start of every operation that takes memory.

        The operation itself gives back memory at its end, so it is held then.
        """
        for at in dict.fromkeys(holding.taker for holding in held):
            copies = [
                amount * (counts[taker, at] - (counts[giver, at] if giver != at else -1))
                for taker, giver, amount in held
            ]
            self.cp.add(sum(copies) <= room)

    def _add_lifespans(self, held: list[Holding], room: int) -> None:
        """Add the memory limit on average: the sum of amount times lifespan over the period.

        arXiv 2405.15362, section 2. The limit of the peak implies it, but CP-SAT does not infer it.
        """
        spans = [
            amount * (self.start[giver] + self.time[giver] - self.start[taker])
            for taker, giver, amount in held
        ]
        self.cp.add(sum(spans) <= room * self.period)


def _rounded(ticks: int, grain: int) -> int:
    return (ticks + grain // 2) // grain
