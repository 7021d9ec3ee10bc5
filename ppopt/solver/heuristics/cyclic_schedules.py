"""Cyclic schedules: the operations of a few microbatches, repeated once per period.

The building blocks of arXiv 2405.15362, section 2, are cycles of one microbatch. In tight memory a
cycle of two microbatches often needs less time for each: the operations of one fill the idle time
of the other. The model is that of periodic event scheduling (Serafini and Ukovich, "A mathematical
model for periodic scheduling problems", SIAM J. Discrete Math. 2, 1989; on machines: Hanen and
Munier, "A study of the cyclic scheduling problem on parallel processors", 1995). Its variables are
the starts of the operations of one cycle and, for every two operations a and b of a device,

    cycles(a, b) = floor((start(b) - start(a)) / period), hence
    time(a) <= start(b) - start(a) - period * cycles(a, b) <= period - time(b),

so no copies of two operations overlap. Up to the start of b, cycles(a, b) + 1 copies of a have
started since the first cycle began. Live memory is linear in these numbers. The size of the model
does not depend on the number of microbatches.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import inf
from random import Random
from typing import NamedTuple

from ortools.sat.python import cp_model

from ppopt.problem.instance import Instance
from ppopt.problem.operation import OpKind
from ppopt.problem.problem import Problem
from ppopt.problem.traits import ArgumentClass, handled
from ppopt.schedule.generation import class_orders
from ppopt.schedule.orders import Orders
from ppopt.solver.budget import Budget, SolverLimits
from ppopt.solver.cp_sat import cpsat
from ppopt.solver.heuristics.pool import Pool
from ppopt.solver.heuristics.window_lns import windows_apply
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Outcome
from ppopt.solver.parameters import CyclicParams

CycleOp = tuple[int, int]
"""Class of an operation of a cycle, and its microbatch, counted from the first of the cycle."""


class Cycle(NamedTuple):
    """A cyclic schedule, in coarse units of time."""

    size: int
    """Number of microbatches per period."""
    period: int
    start: dict[CycleOp, int]

    def orders(self, instance: Instance) -> Orders:
        """Orders of a run of all microbatches, each at its place in the cycle.

        They keep the memory limits of the cycle: an absent microbatch has no live memory, and a
        present one never less than none.
        """
        return class_orders(
            instance,
            [
                [class_id for _, class_id in sorted(self._starts(class_ids, instance.batches))]
                for class_ids in instance.hosted[: instance.pipeline.num_devices]
            ],
        )

    def _starts(self, class_ids: Sequence[int], batches: int) -> list[tuple[int, int]]:
        return [
            (self.start_of(class_id, batch), class_id)
            for class_id in class_ids
            for batch in range(batches)
        ]

    def start_of(self, class_id: int, batch: int) -> int:
        """Start of an operation of any microbatch."""
        return self.start[class_id, batch % self.size] + batch // self.size * self.period


class CycleSearch(NamedTuple):
    """Result of the search for a cycle of some size and period."""

    cycle: Cycle | None
    refuted: bool
    """Whether CP-SAT proved that no cycle exists, in coarse units of time."""
    work: float
    """Deterministic units spent."""


class CyclicSchedules:
    """Unroll cyclic schedules of ever shorter periods to the whole run.

    The last one is an alternative for window LNS, which improves its warm-up and cool-down.
    """

    name = "cyclic schedules"
    handles = handled(ArgumentClass.EQUAL_COMPUTE)

    def __init__(self, pool: Pool, rng: Random, params: CyclicParams) -> None:
        self._pool = pool
        self._rng = rng
        self._params = params
        self._searches = [(effort, size) for effort in params.efforts for size in params.sizes]
        """Effort for one period, and number of microbatches per period, of what is still to be
        searched."""
        self._low = 0.0
        """Ticks per microbatch for which the present search has no cycle; 0: none tried."""
        self._refuted = dict.fromkeys(params.sizes, 0.0)
        """Ticks per microbatch for which CP-SAT refuted cycles, by size."""
        self._high = inf
        """Ticks per microbatch of the best cycle, or of the best schedule."""
        self._best: Cycle | None = None

    def supports(self, problem: Problem) -> bool:
        """Whether memory is limited, the run is long enough, and window LNS applies."""
        min_batches = self._params.min_cycles * max(self._params.sizes)
        limited = problem.instance.costs.ticks.limits is not None
        return limited and problem.pipeline.batches >= min_batches and windows_apply(problem)

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Bisect the period for one size after the other, first with little work; resumable."""
        if incumbent.value is None:
            return Outcome()
        instance = self._pool.problem.instance
        self._high = min(self._high, incumbent.value / instance.batches)
        shortest = min_period(instance)
        while self._searches and not self._pool.out_of_time(budget) and not budget.over:
            low = max(self._low, self._refuted[self._searches[0][1]])
            if self._high <= self._params.close * (low or shortest):
                del self._searches[0]
                self._low = 0.0
            else:
                self._search((low + self._high) / 2 if low else shortest, incumbent, budget)
        exhausted = not self._searches or self._pool.out_of_time(budget)
        return Outcome(budget.spent, exhausted=exhausted)

    def _search(self, ticks: float, incumbent: Incumbent, budget: Budget) -> None:
        """Search for a cycle of this period per microbatch; submit its unrolled schedule."""
        params, problem = self._params, self._pool.problem
        effort, size = self._searches[0]
        limits = budget.single_worker_limits(2 * effort, effort, self._rng.getrandbits(31))
        cycle, refuted, work = search(problem.instance, size, ticks, limits, params, self._best)
        budget.spent += work + params.overhead
        if cycle is None:
            self._low = ticks
            if refuted:
                self._refuted[size] = ticks
            return
        self._high, self._best = ticks, cycle
        orders = cycle.orders(problem.instance)
        justified = self._pool.justify_orders(orders, incumbent, budget)
        assert incumbent.value is not None
        self._pool.alternative = justified if justified[0] > incumbent.value else None


def min_period(instance: Instance) -> int:
    """Largest work of a device for one microbatch, in ticks."""
    return max(
        sum(instance.classes[class_id].duration for class_id in class_ids)
        for class_ids in instance.hosted
    )


def search(
    instance: Instance,
    size: int,
    ticks: float,
    limits: SolverLimits,
    params: CyclicParams,
    hint: Cycle | None = None,
) -> CycleSearch:
    """Search for a cycle of `size` microbatches.

    Its period is about `ticks` per microbatch: times are rounded to coarse units, because only the
    order is used and CP-SAT is slow on fine ones. `hint` is a cycle of any size, near which most
    shorter ones lie.
    """
    tick = max(1, int(ticks / params.fineness))
    model = _CycleModel(instance, size, tick, int(size * ticks / tick), params.max_delay)
    if hint is not None:
        model.add_hint(hint)
    solver = cpsat.solver(limits)
    status = cpsat.run(solver, model.cp, enough=limits.enough)
    work = solver.response_proto.deterministic_time
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return CycleSearch(None, status == cp_model.INFEASIBLE, work)
    start = {op: solver.value(variable) for op, variable in model.start.items()}
    return CycleSearch(Cycle(size, model.period, start), refuted=False, work=work)


class _CycleModel:
    """CP-SAT model of a cycle, in coarse units of time."""

    def __init__(
        self, instance: Instance, size: int, unit: int, period: int, max_delay: int
    ) -> None:
        """`unit`: ticks of a coarse unit; `period`: coarse units of a whole period."""
        self.instance, self.size, self.period = instance, size, period
        self.cp = cp_model.CpModel()
        self._unit = unit
        self._classes = [
            class_id for class_id, op_class in enumerate(instance.classes) if op_class.size
        ]
        self._time = {
            class_id: max(1, self._rounded(instance.classes[class_id].duration))
            for class_id in self._classes
        }
        """Duration by class, at least 1: so order keeps precedence."""
        lags = sum(self._rounded(lag) for links in instance.predecessors for _, lag in links)
        self._latest = max_delay * (lags + sum(self._time.values())) + period
        self.start = {
            (class_id, batch): self.cp.new_int_var(0, self._latest, "")
            for class_id in self._classes
            for batch in range(size)
        }
        self.cp.add(self.start[instance.class_id(OpKind.F, 0), 0] == 0)
        self._add_precedence()
        self._add_symmetry()
        for device in range(instance.pipeline.num_devices):
            self._add_device(device)

    def add_hint(self, cycle: Cycle) -> None:
        """Hint at the starts of a cycle, in proportion to the periods."""
        ratio = self.period * cycle.size / (cycle.period * self.size)
        for (class_id, batch), start in self.start.items():
            self.cp.add_hint(start, min(self._latest, int(cycle.start_of(class_id, batch) * ratio)))

    def _rounded(self, ticks: int) -> int:
        return (ticks + self._unit // 2) // self._unit

    def _add_precedence(self) -> None:
        for (class_id, batch), start in self.start.items():
            for before, lag in self.instance.predecessors[class_id]:
                end = self.start[before, batch] + self._time[before]
                self.cp.add(start >= end + self._rounded(lag))

    def _add_symmetry(self) -> None:
        """The microbatches of a class in order, the first of the next cycle after the last."""
        for class_id in self._classes:
            starts = [self.start[class_id, batch] for batch in range(self.size)]
            for first, second in zip(starts, [*starts[1:], starts[0] + self.period], strict=True):
                self.cp.add(first < second)

    def _add_device(self, device: int) -> None:
        """One operation at a time, and memory within the limit."""
        ops = [
            (class_id, batch)
            for class_id in self.instance.hosted[device]
            for batch in range(self.size)
        ]
        cycles: dict[tuple[CycleOp, CycleOp], cp_model.LinearExprT] = {}
        max_cycles = self._latest // self.period + 1
        for first, second in combinations(ops, 2):
            count = self.cp.new_int_var(-max_cycles, max_cycles, "")
            rest = self.start[second] - self.start[first] - self.period * count
            self.cp.add(rest >= self._time[first[0]])
            self.cp.add(rest <= self.period - self._time[second[0]])
            cycles[first, second], cycles[second, first] = count, -1 - count
        headroom = self.instance.headroom(device)
        if headroom is not None:
            self._limit_memory(ops, cycles, headroom)
            self._limit_mean_memory(ops, headroom)

    def _limit_memory(
        self,
        ops: Sequence[CycleOp],
        cycles: dict[tuple[CycleOp, CycleOp], cp_model.LinearExprT],
        headroom: int,
    ) -> None:
        """Limit live memory at every start of an operation that allocates memory.

        By then every other operation has changed it cycles + 1 times, and this one has allocated
        once more than freed. The changes of a cycle add up to 0.
        """
        classes = self.instance.classes
        for at in ops:
            if classes[at[0]].allocates:
                live = sum(classes[op[0]].change * cycles[op, at] for op in ops if op != at)
                self.cp.add(live + classes[at[0]].frees <= headroom)

    def _limit_mean_memory(self, ops: Sequence[CycleOp], headroom: int) -> None:
        """Limit mean memory (arXiv 2405.15362, section 2): implied, but CP-SAT does not infer it.

        An amount that is allocated at a start and freed at an end is live between them.
        """
        classes = self.instance.classes
        area = sum(
            classes[class_id].frees * (self.start[class_id, batch] + self._time[class_id])
            - classes[class_id].allocates * self.start[class_id, batch]
            for class_id, batch in ops
        )
        self.cp.add(area <= headroom * self.period)
