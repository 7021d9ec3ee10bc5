"""Cyclic schedules: one microbatch again and again, every period the same, as a place to start.

Repeating building blocks are the method of arXiv 2405.15362 (section 2: peak memory is the sum of
lifespans over the period); here CP-SAT finds them. The model is that of periodic event scheduling
(Serafini, Ukovich, "A mathematical model for periodic scheduling problems", SIAM J. Discrete Math.
2, 1989; cyclic scheduling on machines: Hanen, Munier 1995): starts of the operations of one
microbatch, and for every two of a device how many periods apart they fall,

    q(a, b) = floor((start(b) - start(a)) / period), hence
    time(a) <= start(b) - start(a) - period q(a, b) <= period - time(b),

so that neither runs while any copy of the other does. Memory is linear in these counts: when an
operation x begins, q(taker, x) - q(giver, x) copies of a holding are there. The number of
microbatches is nowhere in it, so that it stays small. A run of any length holds no more than the
cycle without end does, and its ends are left to local search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations, pairwise
from typing import NamedTuple

from ortools.sat.python import cp_model

from ppopt.problem.operation import OpKind
from ppopt.problem.problem import Problem
from ppopt.solver import interrupts
from ppopt.solver.budget import Budget, Limits
from ppopt.solver.cp_sat import cpsat
from ppopt.solver.heuristics.double_justification import Shop
from ppopt.solver.heuristics.window import timed

Step = tuple[OpKind, int]
"""Kind and stage of an operation."""
CLOSE = 1.01
"""Ratio of a period that no cycle was found for to one that has a cycle, at which to stop."""
EFFORT = 0.2
"""Deterministic units of CP-SAT for one period at most."""
LONGEST = 2.0
"""Seconds for one period at most, where the clock rules."""
OVERHEAD = 0.2
"""What a period costs beside CP-SAT, in its deterministic units."""
FINENESS = 256
"""Coarse units of a period, at least: times are rounded to them, as only the order is kept."""
REACH = 3
"""Longest time of a microbatch through the pipeline, as a multiple of the least."""


class Cycle(NamedTuple):
    """Starts of one microbatch's operations, and when the next one's follow, in ticks, rounded."""

    period: int
    start: dict[Step, int]

    def unrolled(self, shop: Shop) -> list[int]:
        """Earliest starts of all operations of a run in the order of the cycle."""
        steps = zip(shop.kind.tolist(), shop.stage.tolist(), shop.microbatch.tolist(), strict=True)
        places = [
            self.start[OpKind(kind), stage] + microbatch * self.period
            for kind, stage, microbatch in steps
        ]
        return timed(shop, sorted(range(shop.size), key=places.__getitem__))


def cycles(problem: Problem, most: int, budget: Budget, seed: Callable[[], int]) -> Iterator[Cycle]:
    """Cycles of ever shorter periods, up to `most` ticks, by bisection, while the budget lasts.

    For one route, whole microbatches, and operations that all take time. Raises KeyboardInterrupt
    on Ctrl-C.
    """
    low, high, period = least_period(problem), most, least_period(problem)
    while low <= high and not budget.over:
        found, work = cycle(problem, period, budget.alone(LONGEST, EFFORT, seed()))
        budget.spent += work + OVERHEAD
        if found is None:
            low = period + 1
        else:
            yield found
            high = period - 1
        if high < CLOSE * low:
            return
        period = (low + high) // 2


def least_period(problem: Problem) -> int:
    """The longest work of a device for one microbatch, in ticks."""
    pipeline = problem.pipeline
    return max(
        sum(pipeline.ticks.durations[kind][stage] for kind, stage in mine)
        for mine in _by_device(problem)
    )


def _by_device(problem: Problem) -> list[list[Step]]:
    kinds = (OpKind.F, OpKind.BW) if problem.fused else (OpKind.F, OpKind.B, OpKind.W)
    return [
        [(kind, stage) for stage in mine for kind in kinds] for mine in problem.pipeline.hosted[0]
    ]


class _Grid(NamedTuple):
    """A problem in coarse units of so many ticks: CP-SAT creeps through fine ones."""

    problem: Problem
    grain: int
    period: int
    """In coarse units."""

    def time(self, step: Step) -> int:
        """Time of an operation, at least 1, so that order alone keeps the data flow."""
        ticks = self.problem.pipeline.ticks
        return max(1, self._rounded(ticks.durations[step[0]][step[1]]))

    def lag(self, here: int, there: int) -> int:
        """Delay between two stages' devices."""
        pipeline = self.problem.pipeline
        hosts = pipeline.hosts[0]
        return self._rounded(pipeline.ticks.p2p[hosts[here]][hosts[there]])

    def _rounded(self, ticks: int) -> int:
        return (ticks + self.grain // 2) // self.grain

    @property
    def backward(self) -> OpKind:
        """Kind of the backward passes."""
        return OpKind.BW if self.problem.fused else OpKind.B

    @property
    def latest(self) -> int:
        """Latest start of a microbatch's operations."""
        stages = range(self.problem.pipeline.num_stages)
        kinds = (OpKind.F, self.backward)
        way = sum(self.time((kind, stage)) for kind in kinds for stage in stages)
        way += sum(self.lag(a, b) + self.lag(b, a) for a, b in pairwise(stages))
        return REACH * way + self.period


@interrupts.held()
def cycle(problem: Problem, period: int, limits: Limits) -> tuple[Cycle | None, float]:
    """A cycle of about this period, and CP-SAT's deterministic units spent; None: none found."""
    grain = max(1, period // FINENESS)
    grid = _Grid(problem, grain, period // grain)
    cp = cp_model.CpModel()
    start = _add_microbatch(cp, grid)
    for device, mine in enumerate(_by_device(problem)):
        room = problem.pipeline.ticks.room(device)
        apart = _add_device(cp, grid, start, mine)
        if room is not None:
            held = _held(problem, device)
            _add_memory(cp, held, apart, room)
            _add_lifespans(cp, grid, held, start, room)
    solver = cpsat.solver(limits)
    status, interrupted = cpsat.run(solver, cp)
    if interrupted:
        raise KeyboardInterrupt
    work = solver.response_proto.deterministic_time
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, work
    found = {step: grain * solver.value(begin) for step, begin in start.items()}
    return Cycle(grain * grid.period, found), work


def _add_microbatch(cp: cp_model.CpModel, grid: _Grid) -> dict[Step, cp_model.IntVar]:
    """Starts of one microbatch's operations, in the order of the data flow."""
    latest, backward, stages = grid.latest, grid.backward, grid.problem.pipeline.num_stages
    start = {
        step: cp.new_int_var(0, latest, "") for mine in _by_device(grid.problem) for step in mine
    }

    def follow(before: Step, after: Step, lag: int = 0) -> None:
        cp.add(start[after] >= start[before] + grid.time(before) + lag)

    cp.add(start[OpKind.F, 0] == 0)
    follow((OpKind.F, stages - 1), (backward, stages - 1))
    for here, there in pairwise(range(stages)):
        follow((OpKind.F, here), (OpKind.F, there), grid.lag(here, there))
        follow((backward, there), (backward, here), grid.lag(there, here))
    if not grid.problem.fused:
        for stage in range(stages):
            follow((OpKind.B, stage), (OpKind.W, stage))
    return start


Apart = dict[tuple[Step, Step], cp_model.LinearExpr]


def _add_device(
    cp: cp_model.CpModel, grid: _Grid, start: dict[Step, cp_model.IntVar], mine: list[Step]
) -> Apart:
    """No operation runs while a copy of another does: their counts q, 0 of one with itself."""
    apart: Apart = {(step, step): cp.new_constant(0) for step in mine}
    most = 1 + grid.latest // grid.period
    for a, b in combinations(mine, 2):
        count = cp.new_int_var(-most, most, "")
        rest = start[b] - start[a] - grid.period * count
        cp.add(rest >= grid.time(a))
        cp.add(rest <= grid.period - grid.time(b))
        apart[a, b], apart[b, a] = count, -1 - count
    return apart


class Held(NamedTuple):
    """Memory that one operation takes and another gives back."""

    taker: Step
    giver: Step
    amount: int


def _held(problem: Problem, device: int) -> list[Held]:
    classes = problem.instance.classes
    return [
        Held(classes[taker][:2], classes[giver][:2], amount)
        for taker, giver, amount in problem.instance.holdings
        if classes[taker].device == device
    ]


def _add_memory(cp: cp_model.CpModel, held: list[Held], apart: Apart, room: int) -> None:
    """Whenever something is taken, what is held then has room."""
    for at in dict.fromkeys(item.taker for item in held):
        copies = [amount * (apart[taker, at] - apart[giver, at]) for taker, giver, amount in held]
        cp.add(sum(copies) <= room)


def _add_lifespans(
    cp: cp_model.CpModel,
    grid: _Grid,
    held: list[Held],
    start: dict[Step, cp_model.IntVar],
    room: int,
) -> None:
    """What is held on average has room: amounts times lifespans over the period.

    arXiv 2405.15362, section 2. The limit of the peak implies it, but CP-SAT does not see that.
    """
    spans = [
        amount * (start[giver] + grid.time(giver) - start[taker]) for taker, giver, amount in held
    ]
    cp.add(sum(spans) <= room * grid.period)
