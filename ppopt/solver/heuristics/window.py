"""Windows: CP-SAT reorders the operations of a time interval and keeps the rest.

Large neighbourhood search (Shaw, CP 1998, LNCS 1520; of time windows for scheduling: Godard,
Laborie, Nuijten, ICAPS 2005). All times before the window are kept, and after it the order on every
resource. Each operation of the window has a tail: the longest path from its start to the end of the
schedule. Memory depends only on the order on each device, so only memory held in the window
matters. Such a model has some dozen operations per device, however long the schedule is, and CP-SAT
solves most of them to optimality within a tenth of a second.

A window is cut from the topological order of the operations by start: it is a stretch of time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from ortools.sat.python import cp_model

from ppopt.problem.arrays import Ints
from ppopt.problem.instance import ABSENT
from ppopt.solver import interrupts
from ppopt.solver.budget import SolverLimits
from ppopt.solver.cp_sat import cpsat
from ppopt.solver.cp_sat.no_overlap import NoOverlap, Operations
from ppopt.solver.cp_sat.parts import Held, Memory, ObjectiveCuts, Precedence
from ppopt.solver.cp_sat.variables import ModelPart, Task, TaskMode, Variables
from ppopt.solver.heuristics.operation_network import OperationNetwork
from ppopt.solver.relaxation.device_relaxation import ObjectiveCut


class WindowResult(NamedTuple):
    """Result of the optimisation of a window."""

    order: list[int] | None
    """Operations of the window in a better order; None if none was found."""
    complete: bool
    """Whether the window is proved to have no better order."""
    work: float
    """CP-SAT's deterministic units spent."""
    flips: tuple[int, ...] = ()
    """Mode choices that change."""


NO_BETTER_ORDER = WindowResult(None, True, 0.0)
"""Result if bounds alone show that the window has no better order."""


@dataclass(frozen=True)
class SemiActiveSchedule:
    """A schedule in which every operation is as early as the order on its resource allows."""

    network: OperationNetwork
    start: list[int]
    """Starts of all operations, in ticks."""

    @classmethod
    def of(cls, network: OperationNetwork, start: list[int]) -> SemiActiveSchedule:
        """Make the schedule in the order and the modes of starts (`OperationNetwork.starts`)."""
        chosen = network.in_modes(network.table.modes_of(start))
        given = cls(chosen, chosen.with_absent(start))
        return given.changed(given.order, ())

    def changed(self, order: list[int], flips: Collection[int]) -> SemiActiveSchedule:
        """Return the schedule in another order, with other modes of some choices."""
        network = self.network.with_flips(flips)
        return SemiActiveSchedule(network, network.earliest_starts(order))

    @cached_property
    def value(self) -> int:
        """Makespan, in ticks."""
        return self.network.value(self.start)

    @cached_property
    def order(self) -> list[int]:
        """All operations by their starts; absent ones come first among equal starts."""
        network = self.network
        return sorted([*network.absent, *network.present], key=self.start.__getitem__)

    @cached_property
    def by_resource(self) -> list[list[int]]:
        """Operations of every resource, in order."""
        return self.network.by_resource(self.order)

    @cached_property
    def tails(self) -> list[int]:
        """Longest path from the start of every operation to the end of the schedule."""
        network, tails = self.network, [0] * self.network.size
        following = [0] * len(self.by_resource)
        for op in reversed(self.order):
            longest = network.time[op] + following[network.resource[op]]
            for other, apart in network.successors[op]:
                longest = max(longest, apart + tails[other])
            tails[op] = following[network.resource[op]] = longest
        return tails

    @cached_property
    def critical(self) -> list[tuple[int, int]]:
        """Every two consecutive operations on a critical path.

        -1 precedes the first operation of a path; the number of operations follows the last.
        """
        network, value = self.network, self.value
        ways = [
            (op, other, apart)
            for op, links in enumerate(network.successors)
            for other, apart in links
        ]
        for mine in self.by_resource:
            ways += [(op, other, network.time[op]) for op, other in pairwise(mine)]
        ways += [(op, network.size, network.time[op]) for op in self.order]
        tails = [*self.tails, 0]
        found = [
            (op, other)
            for op, other, apart in ways
            if self.start[op] + apart + tails[other] == value
        ]
        return found + [(-1, op) for op in self.order if not self.start[op] and tails[op] == value]

    @cached_property
    def bottleneck_gaps(self) -> list[list[int | None]]:
        """Operations before which a busy resource is idle, per busy resource with idle gaps.

        Idle time before the first operation does not count; None is the end of the schedule.
        """
        network, found = self.network, []
        for resource in network.busy:
            mine = self.by_resource[resource]
            ends = (self.start[op] + network.time[op] for op in mine)
            begins = [*(self.start[op] for op in mine[1:]), self.value]
            nexts = zip([*mine[1:], None], begins, ends, strict=True)
            found.append([op for op, begin, end in nexts if begin > end])
        return [ops for ops in found if ops]


@dataclass(frozen=True)
class TopologicalOrder:
    """The topological order of all operations by start, from which windows are cut."""

    schedule: SemiActiveSchedule

    @property
    def order(self) -> list[int]:
        """All operations by start."""
        return self.schedule.order

    @cached_property
    def place(self) -> list[int]:
        """Index of every operation in the order."""
        found = [0] * len(self.order)
        for place, op in enumerate(self.order):
            found[op] = place
        return found

    @cached_property
    def critical(self) -> tuple[Ints, Ints]:
        """Indices of the first and of the second operation of every critical pair."""
        places = np.array([*self.place, len(self.order), -1], dtype=np.int64)
        first, second = places[np.array(self.schedule.critical, dtype=np.int64).T]
        return first, second

    @cached_property
    def rows(self) -> list[list[int]]:
        """Indices of every resource's operations, ascending."""
        return [[self.place[op] for op in mine] for mine in self.schedule.by_resource]


@dataclass(frozen=True)
class Window:
    """Consecutive operations of an order, and how the operations around them constrain them."""

    whole: TopologicalOrder
    first: int
    after: int
    """Index after the last operation: the window has the indices first .. after - 1 of the order.
    """

    @cached_property
    def inside(self) -> list[int]:
        """Operations of the window, in order."""
        return self.whole.order[self.first : self.after]

    @cached_property
    def by_resource(self) -> list[list[int]]:
        """Operations of the window on every resource, in order."""
        rows = zip(self.whole.schedule.by_resource, self._ends, strict=True)
        return [mine[low:high] for mine, (low, high) in rows]

    @cached_property
    def _ends(self) -> list[tuple[int, int]]:
        """Per resource: number of its operations before the start and the end of the window."""
        return [
            (bisect_left(row, self.first), bisect_left(row, self.after)) for row in self.whole.rows
        ]

    @cached_property
    def free(self) -> list[int]:
        """Time at which every resource has ended the operations before the window."""
        schedule = self.whole.schedule
        lasts = [
            mine[low - 1] if low else None
            for mine, (low, _) in zip(schedule.by_resource, self._ends, strict=True)
        ]
        return [0 if op is None else schedule.start[op] + schedule.network.time[op] for op in lasts]

    @cached_property
    def following(self) -> list[int]:
        """Longest path to the end from every resource's first operation after the window."""
        schedule = self.whole.schedule
        return [
            schedule.tails[mine[high]] if high < len(mine) else 0
            for mine, (_, high) in zip(schedule.by_resource, self._ends, strict=True)
        ]

    def begun(self, op: int) -> bool:
        """Whether an operation lies before the window."""
        return self.whole.place[op] < self.first

    def later(self, op: int) -> bool:
        """Whether an operation lies after the window."""
        return self.whole.place[op] >= self.after

    @cached_property
    def choices(self) -> dict[int, int]:
        """Mode choices of operations that may have another mode in the window."""
        return self.whole.schedule.network.open_choices(self.inside)

    @cached_property
    def tasks(self) -> dict[int, Task]:
        """Operations of the window as tasks of the model."""
        return {op: self._task(op) for op in self.inside}

    def _task(self, op: int) -> Task:
        network, most = self.whole.schedule.network, self.whole.schedule.value - 1
        choice = self.choices.get(op)
        modes: tuple[TaskMode, ...] = (TaskMode(op, network.time[op]),)
        if choice is not None:
            modes = tuple(
                TaskMode(ABSENT if time is None else op + option * network.size, time or 0)
                for option, time in enumerate(network.table.times(op))
            )
        latest = most - self.tails[op]
        return Task(op, network.resource[op], self.heads[op], latest, modes, choice)

    @cached_property
    def least(self) -> dict[int, int]:
        """Least time of every operation, in any mode that it may have."""
        network, choices = self.whole.schedule.network, self.choices
        return {
            op: min(time or 0 for time in network.table.times(op))
            if op in choices
            else network.time[op]
            for op in self.inside
        }

    @cached_property
    def heads(self) -> dict[int, int]:
        """Earliest starts by operations before the window and by precedence."""
        schedule, place, least = self.whole.schedule, self.whole.place, self.least
        network, heads = schedule.network, dict[int, int]()
        for op in self.inside:
            begin = self.free[network.resource[op]]
            for other, apart in network.precedence.predecessors[op]:
                if place[other] < self.first:
                    begin = max(begin, schedule.start[other] + apart)
                else:
                    begin = max(begin, heads[other] + apart - network.time[other] + least[other])
            heads[op] = begin
        return heads

    @cached_property
    def tails(self) -> dict[int, int]:
        """Least times from the starts to the end, by precedence and by later operations."""
        schedule, place = self.whole.schedule, self.whole.place
        network, tails = schedule.network, dict[int, int]()
        for op in reversed(self.inside):
            longest = network.time[op] + self.following[network.resource[op]]
            for other, apart in network.successors[op]:
                behind = schedule.tails[other] if place[other] >= self.after else tails[other]
                longest = max(longest, apart + behind)
            tails[op] = longest - network.time[op] + self.least[op]
        return tails

    @cached_property
    def lower_bound(self) -> int:
        """Lower bound on the makespan, in ticks, by precedence and by the work of every resource.

        Head, work and tail of one machine (Carlier, "The one-machine sequencing problem", EJOR 11,
        1982, section 2).
        """
        time, heads, tails = self.least, self.heads, self.tails
        ways = [heads[op] + tails[op] for op in self.inside]
        for mine in self.by_resource:
            if mine:
                work = sum(time[op] for op in mine)
                rest = min(tails[op] - time[op] for op in mine)
                ways.append(min(heads[op] for op in mine) + work + rest)
        return max(ways, default=0)

    @cached_property
    def cannot_improve(self) -> bool:
        """Whether some critical path has neither two operations in the window nor one to flip."""
        first, second = self.whole.critical
        enters, leaves = first < self.first, second >= self.after
        entered, left = (
            second[enters & (second < self.after)],
            first[leaves & (first >= self.first)],
        )
        fixed = ~np.isin(entered, [self.whole.place[op] for op in self.choices])
        return bool((enters & leaves).any() or np.isin(entered[fixed], left).any())

    @interrupts.deferred()
    def reoptimise(self, limits: SolverLimits) -> WindowResult:
        """Search for an order, and for modes, that make the schedule shorter.

        Raises KeyboardInterrupt on Ctrl-C.
        """
        schedule = self.whole.schedule
        network, most = schedule.network, schedule.value - 1
        if self.cannot_improve or self.lower_bound > most:
            return NO_BETTER_ORDER
        variables = Variables.create(self.tasks.values(), most, (self.lower_bound, most))
        for part in self.parts():
            part.build(variables)
        for op in self.inside:
            variables.cp.add_hint(variables.start[op], schedule.start[op])
        for choice, first in variables.choices.items():
            variables.cp.add_hint(first, network.in_first_mode(choice))
        variables.cp.minimize(variables.objective)
        solver, result = _run(variables.cp, limits)
        return result if solver is None else self._found(variables, solver, result)

    def _found(
        self, variables: Variables, solver: cp_model.CpSolver, result: WindowResult
    ) -> WindowResult:
        """Result with the order and the modes of a solution; instants come first."""
        network = self.whole.schedule.network
        start = {op: solver.value(variables.start[op]) for op in self.inside}
        lasts = {op: solver.value(variables.end[op]) > start[op] for op in self.inside}
        order = sorted(self.inside, key=lambda op: (start[op], lasts[op]))
        flips = tuple(
            choice
            for choice, first in variables.choices.items()
            if solver.boolean_value(first) != network.in_first_mode(choice)
        )
        return result._replace(order=order, flips=flips)

    def parts(self) -> Iterator[ModelPart]:
        """Constraints of the operations of the window."""
        network, tasks = self.whole.schedule.network, self.tasks
        yield Operations([task for task in tasks.values() if task.choice is not None])
        for op in self.inside:
            yield ObjectiveCuts([ObjectiveCut(None, op, self.tails[op] - self.least[op])])
            for other, apart in network.successors[op]:
                if other in tasks:
                    yield Precedence([(op, other, apart - network.time[op])])
        for resource, mine in enumerate(self.by_resource):
            fixed = (op for op in mine if op not in self.choices and network.time[op])
            yield Operations([tasks[op] for op in fixed])
            yield NoOverlap(resource)
        yield from map(self._memory, network.tight)

    def _memory(self, device: int) -> Memory:
        """Memory limit of a device, reduced by what is held across the whole window."""
        network = self.whole.schedule.network
        room = network.instance.headroom(device)
        assert room is not None
        held = []
        for (taker, giver, amount), when in network.held(device, self.choices.values()):
            if self.later(taker) or self.begun(giver):
                continue
            if self.begun(taker) and self.later(giver):
                room -= amount
                continue
            begin, end = (op if op in self.tasks else ABSENT for op in (taker, giver))
            held.append(Held(device, begin, end, amount, when))
        return Memory(held, {device: room})


def _run(
    cp: cp_model.CpModel, limits: SolverLimits
) -> tuple[cp_model.CpSolver | None, WindowResult]:
    """Solve the model of a window; return its solution, if any, and a result without an order.

    Raises KeyboardInterrupt on Ctrl-C.
    """
    solver = cpsat.solver(limits)
    solver.parameters.symmetry_level = 0
    solver.parameters.cp_model_probing_level = 0
    status, interrupted = cpsat.run(solver, cp)
    if interrupted:
        raise KeyboardInterrupt
    done = status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    result = WindowResult(None, done, solver.response_proto.deterministic_time)
    return (solver if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None), result
