"""Parts that relate starts and ends in a CP-SAT model: precedence, objective and memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ortools.sat.python import cp_model

from ppopt.cancellation import each
from ppopt.problem.instance import ABSENT
from ppopt.solver.cp_sat.variables import Task, Variables
from ppopt.solver.relaxation.device_relaxation import ObjectiveCut


class Precedence(NamedTuple):
    """start(after) >= end(before) + lag."""

    rows: Iterable[tuple[int, int, int]]
    """Before, after, and lag in ticks."""
    if_present: bool = False
    """Whether the constraint holds only if `after` is present; else also for the instant that
    replaces it."""

    def build(self, variables: Variables) -> None:
        """Add the constraints."""
        cp, start, end = variables.cp, variables.start, variables.end
        absent = variables.absent if self.if_present else {}
        for before, after, lag in each(self.rows):
            row = cp.add(start[after] >= end[before] + lag)
            if after in absent:
                row.only_enforce_if(absent[after].negated())


class MicrobatchOrder(NamedTuple):
    """start(after) >= end(before), for the next microbatch; equality if `after` is absent.

    The end of an absent operation is then the end of the previous operation of its class.
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
        for operation, earliest in each(self.rows):
            variables.cp.add(variables.start[operation] >= earliest)


class ObjectiveCuts(NamedTuple):
    """objective >= end(last) - start(first) + rest; without `first`, its start counts as 0."""

    cuts: Iterable[ObjectiveCut]

    def build(self, variables: Variables) -> None:
        """Add the constraints."""
        cp, objective = variables.cp, variables.objective
        for first, last, rest in each(self.cuts):
            end = variables.end[last] + rest
            cp.add(objective >= (end if first is None else end - variables.start[first]))


class Origin(NamedTuple):
    """The earliest start of some operations is 0: the origin of time.

    Without an origin CP-SAT may refute a cycle of waits only by shifting all starts tick by tick to
    the end of the model.
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


class MemoryInterval(NamedTuple):
    """Memory that is live from the start of one operation to the end of another."""

    resource: int
    """Resource on which the memory is live."""
    first: int
    """Operation that allocates it; ABSENT: it is live from the beginning."""
    last: int
    """Operation that frees it; ABSENT: it is live until the end."""
    amount: int
    """Amount in ticks of memory."""
    when: tuple[int, bool] | None = None
    """Choice, and whether the memory is live in the first modes of its tasks, or in the second."""


class Memory(NamedTuple):
    """The live memory of a resource never exceeds its headroom: cumulative intervals."""

    intervals: Iterable[MemoryInterval]
    headroom: Mapping[int, int]
    """Headroom of every limited resource, in ticks of memory."""

    def build(self, variables: Variables) -> None:
        """Add an interval for every memory interval, and a constraint for every resource."""
        cp, latest = variables.cp, variables.latest
        groups: dict[int, tuple[list[cp_model.IntervalVar], list[int]]]
        groups = {resource: ([], []) for resource in self.headroom}
        for resource, first, last, amount, when in each(self.intervals):
            begin = 0 if first == ABSENT else variables.start[first]
            end = latest if last == ABSENT else variables.end[last]
            size = cp.new_int_var(0, latest, "")
            items, amounts = groups[resource]
            if when is None:
                items.append(cp.new_interval_var(begin, size, end, ""))
            else:
                choice, in_first_mode = when
                presence = variables.chosen(choice, first=in_first_mode)
                items.append(cp.new_optional_interval_var(begin, size, end, presence, ""))
            amounts.append(amount)
        for resource, (items, amounts) in groups.items():
            cp.add_cumulative(items, amounts, self.headroom[resource])
