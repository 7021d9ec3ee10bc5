"""Parts that relate starts and ends in a CP-SAT model: precedence, objective and memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ortools.sat.python import cp_model

from ppopt.problem.instance import ABSENT
from ppopt.solver.cp_sat.variables import Task, Variables
from ppopt.solver.relaxation.device_relaxation import ObjectiveCut


class Precedence(NamedTuple):
    """start(after) >= end(before) + lag."""

    rows: Iterable[tuple[int, int, int]]
    """Before, after, and lag in ticks."""
    if_there: bool = False
    """Whether the constraint holds only if `after` is there; else also for the instant in its
    place."""

    def build(self, variables: Variables) -> None:
        """Add the constraints."""
        cp, start, end = variables.cp, variables.start, variables.end
        absent = variables.absent if self.if_there else {}
        for before, after, lag in self.rows:
            row = cp.add(start[after] >= end[before] + lag)
            if after in absent:
                row.only_enforce_if(absent[after].negated())


class MicrobatchOrder(NamedTuple):
    """start(after) >= end(before), for the next microbatch; if `after` is absent they are equal.

    The end of an absent operation is then that of the last operation of its class so far.
    """

    before: int | None
    """Operation before; None: `after` is of the first microbatch."""
    after: int

    def build(self, variables: Variables) -> None:
        """Add the constraints."""
        cp, start = variables.cp, variables.start[self.after]
        end = 0 if self.before is None else variables.end[self.before]
        if self.before is not None:
            cp.add(start >= end)
        if self.after in variables.absent:
            cp.add(start == end).only_enforce_if(variables.absent[self.after])


class Releases(NamedTuple):
    """start(operation) >= earliest."""

    rows: Iterable[tuple[int, int]]
    """Operation, and its earliest start in ticks."""

    def build(self, variables: Variables) -> None:
        """Add the constraints."""
        for operation, earliest in self.rows:
            variables.cp.add(variables.start[operation] >= earliest)


class ObjectiveCuts(NamedTuple):
    """objective >= end(last) - start(first) + rest; without a first one, its start is 0."""

    cuts: Iterable[ObjectiveCut]

    def build(self, variables: Variables) -> None:
        """Add the constraints."""
        cp, objective = variables.cp, variables.objective
        for first, last, rest in self.cuts:
            end = variables.end[last] + rest
            cp.add(objective >= (end if first is None else end - variables.start[first]))


class Origin(NamedTuple):
    """The least start of some operations is 0: time counts from there.

    Without an origin CP-SAT may refute a cycle of waits only by shifting all starts, tick by tick,
    to the end of the model.
    """

    firsts: Sequence[int]

    def build(self, variables: Variables) -> None:
        """Add the constraint."""
        variables.cp.add_min_equality(0, [variables.start[code] for code in self.firsts])


class Work(NamedTuple):
    """objective >= head + the durations of the tasks of a resource, in their modes."""

    head: int
    """Ticks before the first task."""
    tasks: Sequence[Task]

    def build(self, variables: Variables) -> None:
        """Add the constraint."""
        work = sum(task.modes[-1].duration for task in self.tasks)
        saved = sum(
            variables.choices[task.choice] * (task.modes[0].duration - task.modes[1].duration)
            for task in self.tasks
            if task.choice is not None
        )
        variables.cp.add(variables.objective >= self.head + work + saved)


class Held(NamedTuple):
    """Memory held from the start of one operation to the end of another."""

    resource: int
    """Resource that holds the memory."""
    taker: int
    """Operation that takes it; ABSENT: it is held from the beginning."""
    giver: int
    """Operation that gives it back; ABSENT: it is held until the end."""
    amount: int
    """Amount in ticks of memory."""
    when: tuple[int, bool] | None = None
    """Choice, and whether memory is held in the first modes of its tasks, or in the second."""


class Memory(NamedTuple):
    """At no time does a resource hold more than its room: cumulative intervals."""

    held: Iterable[Held]
    room: Mapping[int, int]
    """Room of every limited resource, in ticks of memory."""

    def build(self, variables: Variables) -> None:
        """Add an interval for every holding, and a constraint for every resource."""
        cp, latest = variables.cp, variables.latest
        groups: dict[int, tuple[list[cp_model.IntervalVar], list[int]]]
        groups = {resource: ([], []) for resource in self.room}
        for resource, taker, giver, amount, when in self.held:
            begin = 0 if taker == ABSENT else variables.start[taker]
            end = latest if giver == ABSENT else variables.end[giver]
            size = cp.new_int_var(0, latest, "")
            items, amounts = groups[resource]
            if when is None:
                items.append(cp.new_interval_var(begin, size, end, ""))
            else:
                choice, first = when
                there = variables.chosen(choice, first=first)
                items.append(cp.new_optional_interval_var(begin, size, end, there, ""))
            amounts.append(amount)
        for resource, (items, amounts) in groups.items():
            cp.add_cumulative(items, amounts, self.room[resource])
