"""Variables of a CP-SAT model of operations, and the parts that constrain them.

A model is a list of parts. A part is a small record: its data, and the constraint on them, which
its docstring states. What lies in a model (all devices, a subset of them, a window of a schedule)
decides only which parts there are and with which data: `ppopt.solver.cp_sat.model`,
`ppopt.solver.heuristics.window`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ortools.sat.python import cp_model
from ortools.sat.python.cp_model_helper import Literal

from ppopt.problem.instance import ABSENT
from ppopt.solver.relaxation.pairs import Pair


class TaskMode(NamedTuple):
    """One way to run an operation."""

    code: int
    """Number of the operation in this mode; ABSENT: it is then an instant that does nothing."""
    duration: int
    """In ticks."""


class Task(NamedTuple):
    """An operation of a model."""

    code: int
    """The number by which parts name it."""
    resource: int
    earliest: int
    """First start, in ticks."""
    latest: int
    """Last start, in ticks."""
    modes: tuple[TaskMode, ...]
    """One, or two to choose from."""
    choice: int | None = None
    """What chooses its mode, with those of other tasks of the same choice; None: there is one."""
    name: str = ""

    @property
    def names(self) -> tuple[int, ...]:
        """All numbers that parts know it by, some of them twice."""
        if self.choice is None:
            return self.code, self.modes[0].code
        return self.code, *(mode.code for mode in self.modes if mode.code != ABSENT)


@dataclass(frozen=True)
class Variables:
    """The variables of a model, by numbers of operations in any of their modes."""

    cp: cp_model.CpModel
    latest: int
    """Last instant of the model, in ticks."""
    objective: cp_model.IntVar
    start: dict[int, cp_model.IntVar] = field(default_factory=dict)
    end: dict[int, cp_model.LinearExpr] = field(default_factory=dict)
    choices: dict[int, cp_model.IntVar] = field(default_factory=dict)
    """Whether the tasks of a choice run in their first modes."""
    there: dict[int, Literal | None] = field(default_factory=dict)
    """Operations that may be in the schedule, and whether they are; None: always."""
    absent: dict[int, Literal] = field(default_factory=dict)
    """Operations that one of their modes leaves out, and whether it does."""
    pairs: dict[Pair, cp_model.IntVar] = field(default_factory=dict)
    """Whether two operations run as one."""
    intervals: dict[int, list[cp_model.IntervalVar]] = field(default_factory=dict)
    """What a resource runs, one at a time."""

    @classmethod
    def create(
        cls, tasks: Collection[Task], latest: int, objective: tuple[int, int], name: str = ""
    ) -> Variables:
        """A new model with starts and choices of tasks; `objective`: its least and most ticks."""
        cp = cp_model.CpModel()
        begins = [cp.new_int_var(task.earliest, task.latest, task.name) for task in tasks]
        made = cls(cp, latest, cp.new_int_var(*objective, name))
        for task, begin in zip(tasks, begins, strict=True):
            made.start.update(dict.fromkeys(task.names, begin))
            made.set_end(task, begin + task.modes[0].duration)
            if task.choice is None:
                made.there[task.modes[0].code] = None
            else:
                made._add_choice(task, task.choice)
        return made

    def _add_choice(self, task: Task, choice: int) -> None:
        """Add the literals of a task, and of its choice if they are its first."""
        if choice not in self.choices:
            self.choices[choice] = self.cp.new_bool_var("")
        for mode, first in zip(task.modes, (True, False), strict=True):
            if mode.code == ABSENT:
                self.absent[task.code] = self.chosen(choice, first=first)
            else:
                self.there[mode.code] = self.chosen(choice, first=first)

    def set_end(self, task: Task, end: cp_model.LinearExpr) -> None:
        """Record the end of a task."""
        self.end.update(dict.fromkeys(task.names, end))

    def chosen(self, choice: int, *, first: bool) -> Literal:
        """Whether the tasks of a choice run in their first modes, or in their second ones."""
        return self.choices[choice] if first else self.choices[choice].negated()


class ModelPart(Protocol):
    """Constraints of one kind, with what they constrain."""

    def build(self, variables: Variables) -> None:
        """Add the constraints to the model of these variables."""
        ...
