"""Windows: CP-SAT reorders the operations of a time interval and keeps the rest.

Large neighbourhood search (Shaw, CP 1998, LNCS 1520; of time windows for scheduling: Godard,
Laborie, Nuijten, ICAPS 2005). All times before the window are fixed, and so is the order on every
resource after it. Each operation of the window has a tail: the longest path from its start to the
end of the schedule. Memory depends only on the order on each device, so only memory that is live in
the window matters. Such a model has some dozen operations per device, however long the schedule is,
and CP-SAT solves most of them to optimality within a tenth of a second.

A window is cut from the topological order of the operations by start: it is a stretch of time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from ortools.sat.python import cp_model

from ppopt.problem.arrays import Ints
from ppopt.problem.instance import ABSENT
from ppopt.solver.budget import SolverLimits
from ppopt.solver.cp_sat import cpsat
from ppopt.solver.cp_sat.no_overlap import NoOverlap, OperationIntervals
from ppopt.solver.cp_sat.parts import Memory, MemoryInterval, ObjectiveCuts, Precedence
from ppopt.solver.cp_sat.variables import ModelPart, Task, TaskMode, Variables
from ppopt.solver.heuristics.operation_network import OperationNetwork
from ppopt.solver.relaxation.device_relaxation import ObjectiveCut


class WindowResult(NamedTuple):
    """Result of the optimisation of a window."""

    order: list[int] | None
    """Operations of the window in a better order; None: no better order is known."""
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
        """Create the schedule in the order and modes of starts (`OperationNetwork.starts`)."""
        chosen = network.in_modes(network.table.modes_of(start))
        schedule = cls(chosen, chosen.with_absent(start))
        return schedule.changed(schedule.order, ())

    def changed(self, order: Sequence[int], flips: Collection[int]) -> SemiActiveSchedule:
        """Return the schedule with some operations in another order, and with other modes.

        On every resource, the operations take each other's places. The order must be topological.
        """
        changed = self.joined(order, flips)
        assert changed is not None, "the order is topological"
        return changed

    def joined(self, order: Sequence[int], flips: Collection[int]) -> SemiActiveSchedule | None:
        """Return `changed`, or None if the orders of the resources are then cyclic."""
        network, inside = self.network.with_flips(flips), frozenset(order)
        sequences = []
        for sequence, reordered in zip(self.by_resource, network.by_resource(order), strict=True):
            following = iter(reordered)
            sequences.append([next(following) if op in inside else op for op in sequence])
        start = network.earliest(sequences)
        return None if start is None else SemiActiveSchedule(network, start)

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
    def position(self) -> list[int]:
        """Index of every operation in the order."""
        positions = [0] * len(self.order)
        for index, op in enumerate(self.order):
            positions[op] = index
        return positions

    @cached_property
    def rows(self) -> list[list[int]]:
        """Indices in the order of every resource's operations, ascending."""
        return [[self.position[op] for op in sequence] for sequence in self.by_resource]

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
            for successor, apart in network.successors[op]:
                longest = max(longest, apart + tails[successor])
            tails[op] = following[network.resource[op]] = longest
        return tails

    @cached_property
    def critical(self) -> tuple[Ints, Ints]:
        """Indices in the order of every two consecutive operations on a critical path.

        -1 precedes the first operation of a path; the number of operations follows the last.
        """
        network = self.network
        start, tails = (np.array(row, dtype=np.int64) for row in (self.start, [*self.tails, 0]))
        ops = np.array(self.order, dtype=np.int64)
        by_resource = ops[np.argsort(network.table.resource[ops], kind="stable")]
        resource = network.table.resource[by_resource]
        before, after = (
            by_resource[chosen]
            for chosen in np.nonzero(resource[1:] == resource[:-1])[0] + [[0], [1]]
        )
        ends = np.full_like(ops, network.size)
        flow = network.table.precedence
        first = np.concatenate([flow.before, before, ops])
        second = np.concatenate([flow.after, after, ends])
        apart = network.times[first]
        apart[: len(flow.lag)] += flow.lag
        tight = start[first] + apart + tails[second] == self.value
        begins = ops[(start[ops] == 0) & (tails[ops] == self.value)]
        index = np.array([*self.position, len(ops)], dtype=np.int64)
        return (
            np.append(index[first[tight]], np.full_like(begins, -1)),
            index[np.append(second[tight], begins)],
        )

    @cached_property
    def bottleneck_gaps(self) -> list[list[int | None]]:
        """Operations after idle gaps, per busy resource that has idle gaps.

        Idle time before the first operation does not count. None is the end of the schedule.
        """
        network, gaps = self.network, []
        for resource in network.busy:
            sequence = self.by_resource[resource]
            ends = (self.start[op] + network.time[op] for op in sequence)
            begins = [*(self.start[op] for op in sequence[1:]), self.value]
            nexts = zip([*sequence[1:], None], begins, ends, strict=True)
            gaps.append([op for op, begin, end in nexts if begin > end])
        return [ops for ops in gaps if ops]


@dataclass(frozen=True)
class Window:
    """Consecutive operations of an order, and how the operations around them constrain them."""

    schedule: SemiActiveSchedule
    first: int
    after: int
    """Index after the last operation: the window has the indices first .. after - 1 of the order.
    """
    fixed_modes: bool = False
    """Whether all operations keep their modes."""

    @cached_property
    def inside(self) -> list[int]:
        """Operations of the window, in order."""
        return self.schedule.order[self.first : self.after]

    @cached_property
    def by_resource(self) -> list[list[int]]:
        """Operations of the window on every resource, in order."""
        rows = zip(self.schedule.by_resource, self._ends, strict=True)
        return [sequence[low:high] for sequence, (low, high) in rows]

    @cached_property
    def _ends(self) -> list[tuple[int, int]]:
        """Per resource: number of its operations before the start and the end of the window."""
        return [
            (bisect_left(row, self.first), bisect_left(row, self.after))
            for row in self.schedule.rows
        ]

    @cached_property
    def free(self) -> list[int]:
        """Time at which every resource has ended the operations before the window."""
        schedule = self.schedule
        lasts = [
            sequence[low - 1] if low else None
            for sequence, (low, _) in zip(schedule.by_resource, self._ends, strict=True)
        ]
        return [0 if op is None else schedule.start[op] + schedule.network.time[op] for op in lasts]

    @cached_property
    def following(self) -> list[int]:
        """Longest path to the end from every resource's first operation after the window."""
        schedule = self.schedule
        return [
            schedule.tails[sequence[high]] if high < len(sequence) else 0
            for sequence, (_, high) in zip(schedule.by_resource, self._ends, strict=True)
        ]

    def begun(self, op: int) -> bool:
        """Whether an operation lies before the window."""
        return self.schedule.position[op] < self.first

    def later(self, op: int) -> bool:
        """Whether an operation lies after the window."""
        return self.schedule.position[op] >= self.after

    @cached_property
    def choices(self) -> dict[int, int]:
        """Mode choices of operations that may have another mode in the window."""
        if self.fixed_modes:
            return {}
        return self.schedule.network.open_choices(self.inside)

    @cached_property
    def tasks(self) -> dict[int, Task]:
        """Operations of the window as tasks of the model."""
        return {op: self._task(op) for op in self.inside}

    def _task(self, op: int) -> Task:
        network, max_value = self.schedule.network, self.schedule.value - 1
        choice = self.choices.get(op)
        modes: tuple[TaskMode, ...] = (TaskMode(op, network.time[op]),)
        if choice is not None:
            modes = tuple(
                TaskMode(ABSENT if time is None else op + option * network.size, time or 0)
                for option, time in enumerate(network.table.times(op))
            )
        latest = max_value - self.tails[op]
        return Task(op, network.resource[op], self.heads[op], latest, modes, choice)

    @cached_property
    def min_times(self) -> dict[int, int]:
        """Minimum time of every operation, over the modes that it may have."""
        network, choices = self.schedule.network, self.choices
        return {
            op: min(time or 0 for time in network.table.times(op))
            if op in choices
            else network.time[op]
            for op in self.inside
        }

    @cached_property
    def heads(self) -> dict[int, int]:
        """Earliest starts by operations before the window and by precedence."""
        schedule, position, min_times = self.schedule, self.schedule.position, self.min_times
        network, heads = schedule.network, dict[int, int]()
        for op in self.inside:
            begin = self.free[network.resource[op]]
            for predecessor, apart in network.precedence.predecessors[op]:
                if position[predecessor] < self.first:
                    begin = max(begin, schedule.start[predecessor] + apart)
                else:
                    begin = max(
                        begin,
                        heads[predecessor]
                        + apart
                        - network.time[predecessor]
                        + min_times[predecessor],
                    )
            heads[op] = begin
        return heads

    @cached_property
    def tails(self) -> dict[int, int]:
        """Minimum times from the starts to the end, by precedence and by later operations."""
        schedule, position = self.schedule, self.schedule.position
        network, tails = schedule.network, dict[int, int]()
        for op in reversed(self.inside):
            longest = network.time[op] + self.following[network.resource[op]]
            for successor, apart in network.successors[op]:
                behind = (
                    schedule.tails[successor]
                    if position[successor] >= self.after
                    else tails[successor]
                )
                longest = max(longest, apart + behind)
            tails[op] = longest - network.time[op] + self.min_times[op]
        return tails

    @cached_property
    def lower_bound(self) -> int:
        """Lower bound on the makespan, in ticks, by precedence and by the work of every resource.

        Head, work and tail of one machine (Carlier, "The one-machine sequencing problem", EJOR 11,
        1982, section 2).
        """
        time, heads, tails = self.min_times, self.heads, self.tails
        ways = [heads[op] + tails[op] for op in self.inside]
        for sequence in self.by_resource:
            if sequence:
                work = sum(time[op] for op in sequence)
                rest = min(tails[op] - time[op] for op in sequence)
                ways.append(min(heads[op] for op in sequence) + work + rest)
        return max(ways, default=0)

    @cached_property
    def cannot_improve(self) -> bool:
        """Whether some critical path has at most one operation in the window, and none to flip."""
        first, second = self.schedule.critical
        enters, leaves = first < self.first, second >= self.after
        entered, last_inside = (
            second[enters & (second < self.after)],
            first[leaves & (first >= self.first)],
        )
        fixed = ~np.isin(entered, [self.schedule.position[op] for op in self.choices])
        return bool((enters & leaves).any() or np.isin(entered[fixed], last_inside).any())

    def reoptimise(self, limits: SolverLimits) -> WindowResult:
        """Search for an order, and for modes, that make the schedule shorter."""
        schedule = self.schedule
        network, max_value = schedule.network, schedule.value - 1
        if self.cannot_improve or self.lower_bound > max_value:
            return NO_BETTER_ORDER
        variables = Variables.create(self.tasks.values(), max_value, (self.lower_bound, max_value))
        for part in self.parts():
            part.build(variables)
        for op in self.inside:
            variables.cp.add_hint(variables.start[op], schedule.start[op])
        for choice, first in variables.choices.items():
            variables.cp.add_hint(first, network.in_first_mode(choice))
        variables.cp.minimize(variables.objective)
        solver, result = _run(variables.cp, limits)
        return result if solver is None else self._solution(variables, solver, result)

    def _solution(
        self, variables: Variables, solver: cp_model.CpSolver, result: WindowResult
    ) -> WindowResult:
        """Result with the order and the modes of a solution; instants come first."""
        network = self.schedule.network
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
        network, tasks = self.schedule.network, self.tasks
        yield OperationIntervals([task for task in tasks.values() if task.choice is not None])
        for op in self.inside:
            yield ObjectiveCuts([ObjectiveCut(None, op, self.tails[op] - self.min_times[op])])
            for successor, apart in network.successors[op]:
                if successor in tasks:
                    yield Precedence([(op, successor, apart - network.time[op])])
        for resource, sequence in enumerate(self.by_resource):
            fixed = (op for op in sequence if op not in self.choices and network.time[op])
            yield OperationIntervals([tasks[op] for op in fixed])
            yield NoOverlap(resource)
        yield from map(self._memory, network.tight)

    def _memory(self, device: int) -> Memory:
        """Headroom of a device, minus the memory that is live during the whole window."""
        network = self.schedule.network
        headroom = network.instance.headroom(device)
        assert headroom is not None
        intervals = []
        for (allocating, freeing, amount), when in network.holdings(device, self.choices.values()):
            if self.later(allocating) or self.begun(freeing):
                continue
            if self.begun(allocating) and self.later(freeing):
                headroom -= amount
                continue
            begin, end = (op if op in self.tasks else ABSENT for op in (allocating, freeing))
            intervals.append(MemoryInterval(device, begin, end, amount, when))
        return Memory(intervals, {device: headroom})


def _run(
    cp: cp_model.CpModel, limits: SolverLimits
) -> tuple[cp_model.CpSolver | None, WindowResult]:
    """Solve the model of a window; return its solution, if any, and a result without an order."""
    solver = cpsat.solver(limits)
    solver.parameters.symmetry_level = 0
    solver.parameters.cp_model_probing_level = 0
    status = cpsat.run(solver, cp)
    done = status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    result = WindowResult(None, done, solver.response_proto.deterministic_time)
    return (solver if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None), result
