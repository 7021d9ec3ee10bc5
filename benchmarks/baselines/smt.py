"""Z3 with binary search on the value.

    start[o] >= 0, integers                           every operation
    start[b] >= start[a] + time[a] + lag              data flow; first in, first out
    O[a, b]     => start[b] >= start[a] + time[a]     pairs of one device left open by these,
    not O[a, b] => start[a] >= start[b] + time[b]     one Boolean each
    sum of the changes of all before b <= room - change[b]     b takes memory; pseudo-Boolean
    end[last W] (- start[first F]) <= target          assumed anew for every target

The first check asks for any schedule, the next ones halve the interval between the best bound (at
first the work of the busiest device) and the best value; one solver learns through all of them.
Z3 has one thread.
"""

from __future__ import annotations

from typing import Any

import z3  # type: ignore[import-untyped]

from benchmarks.baselines.order import Orders
from benchmarks.baselines.problem import Jobs, Limits, Outcome, Run, Size
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule


def solve(pipeline: Pipeline, objective: Objective, limits: Limits) -> Outcome:
    """State the problem and search its value by halving until proof or the end of time."""
    run, jobs = Run(objective, limits), Jobs.of(pipeline)
    model = _Model(Orders(jobs), objective, limits.seed)
    run.note(None, jobs.busiest())
    answer, schedule = model.check(run, None), None
    infeasible = answer == z3.unsat
    while answer == z3.sat:
        schedule = model.schedule()
        run.note(schedule.metrics.value_ticks(objective), None)
        answer = model.below(run)
    return run.outcome(schedule, model.size, infeasible=infeasible)


class _Model:
    def __init__(self, orders: Orders, objective: Objective, seed: int) -> None:
        self.orders = orders
        self.solver = z3.Solver()
        self.solver.set("random_seed", seed)
        self.start = {code: z3.Int(f"s{code}") for code in orders.jobs.duration}
        self.first = {pair: z3.Bool(f"o{pair}") for pair in orders.free_pairs()}
        self._add_links()
        self._add_pairs()
        self._add_memory()
        self.value = z3.Int("value")
        for last, first in orders.jobs.floors(objective):
            begin = 0 if first is None else self.start[first]
            self.solver.add(self.value >= self._end(last) - begin)
        self.size = Size(len(self.start) + len(self.first) + 1, len(self.solver.assertions()))

    def check(self, run: Run, target: int | None) -> Any:
        """Whether a schedule within the target exists: sat, unsat, or unknown out of time."""
        if not run.left:
            return z3.unknown
        self.solver.set("timeout", max(1, int(1000 * run.left)))
        return self.solver.check(*([] if target is None else [self.value <= target]))

    def below(self, run: Run) -> Any:
        """Raise the bound or find a better schedule (sat), by halving; else unsat or unknown."""
        assert run.value is not None
        while run.bound < run.value:
            target = (run.bound + run.value) // 2
            answer = self.check(run, target)
            if answer != z3.unsat:
                return answer
            run.note(None, target + 1)
        return z3.unsat

    def schedule(self) -> Schedule:
        """The schedule of the last check."""
        found = self.solver.model()
        return self.orders.jobs.schedule(
            {code: found.eval(start).as_long() for code, start in self.start.items()}
        )

    def _end(self, code: int) -> Any:
        return self.start[code] + self.orders.jobs.duration[code]

    def _add_links(self) -> None:
        for start in self.start.values():
            self.solver.add(start >= 0)
        for before, after, lag in self.orders.links:
            self.solver.add(self.start[after] >= self._end(before) + lag)

    def _add_pairs(self) -> None:
        for (a, b), first in self.first.items():
            self.solver.add(z3.Implies(first, self.start[b] >= self._end(a)))
            self.solver.add(z3.Implies(z3.Not(first), self.start[a] >= self._end(b)))

    def _add_memory(self) -> None:
        jobs = self.orders.jobs
        for device, group in enumerate(jobs.groups):
            room = jobs.room(device)
            if room is None:
                continue
            self.solver.add(z3.BoolVal(room >= 0))
            for code in group:
                if jobs.change(code) > 0:
                    self._add_level(code, group, room)

    def _add_level(self, code: int, group: tuple[int, ...], room: int) -> None:
        """Add the changes before an operation; a negative one counts as given, and back if not."""
        jobs, terms = self.orders.jobs, []
        for other in group:
            change = jobs.change(other)
            before = self._before(other, code)
            if before is True:
                room -= change
            elif before is not None and change > 0:
                terms.append((before, change))
            elif before is not None and change < 0:
                room -= change
                terms.append((z3.Not(before), -change))
        room -= jobs.change(code)
        self.solver.add(z3.PbLe(terms, room) if terms else z3.BoolVal(room >= 0))

    def _before(self, other: int, code: int) -> Any:
        """Whether `other` runs before `code`: True, a Boolean to be found, or None for no."""
        if (other, code) in self.first:
            return self.first[other, code]
        if (code, other) in self.first:
            return z3.Not(self.first[code, other])
        return True if self.orders.surely_before(other, code) else None
