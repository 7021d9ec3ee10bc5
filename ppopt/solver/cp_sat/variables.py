"""Variables of a CP-SAT model of operations, and the parts that constrain them.

A model is a list of parts. A part is a small record of data with a constraint, which its docstring
states. The scope of a model (all devices, a subset, a time window) selects its parts and their
data: `ppopt.solver.cp_sat.model`, `ppopt.solver.heuristics.window`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ortools.sat.python import cp_model
from ortools.sat.python.cp_model_helper import Literal

from ppopt.cancellation import each
from ppopt.problem.instance import ABSENT
from ppopt.solver.relaxation.pairs import Pair


class TaskMode(NamedTuple):
    """One way to run an operation."""

    code: int
    """Number of the operation in this mode; ABSENT: it is an instant without effect."""
    duration: int
    """Duration in ticks."""


class Task(NamedTuple):
    """An operation of a model."""

    code: int
    """Number by which parts name the operation."""
    resource: int
    earliest: int
    """Earliest start, in ticks."""
    latest: int
    """Latest start, in ticks."""
    modes: tuple[TaskMode, ...]
    """One mode, or two alternatives."""
    choice: int | None = None
    """Choice that selects the mode of all of its tasks; None: there is one mode."""
    name: str = ""

    @property
    def names(self) -> tuple[int, ...]:
        """Numbers by which parts name the operation; some may occur twice."""
        if self.choice is None:
            return self.code, self.modes[0].code
        return self.code, *(mode.code for mode in self.modes if mode.code != ABSENT)


@dataclass(frozen=True)
class Variables:
    """Variables of a model, by numbers of operations in any of their modes."""

    cp: cp_model.CpModel
    latest: int
    """Last instant of the model, in ticks."""
    objective: cp_model.IntVar
    start: dict[int, cp_model.IntVar] = field(default_factory=dict)
    end: dict[int, cp_model.LinearExpr] = field(default_factory=dict)
    choices: dict[int, cp_model.IntVar] = field(default_factory=dict)
    """Literal that the tasks of a choice run in their first modes."""
    present: dict[int, Literal | None] = field(default_factory=dict)
    """Literal that an optional operation is in the schedule; None: it always is."""
    absent: dict[int, Literal] = field(default_factory=dict)
    """Literal that an operation is absent in the chosen mode."""
    pairs: dict[Pair, cp_model.IntVar] = field(default_factory=dict)
    """Literal that two operations run as one."""
    intervals: dict[int, list[cp_model.IntervalVar]] = field(default_factory=dict)
    """Intervals of a resource, which must not overlap."""

    @classmethod
    def create(
        cls,
        tasks: Collection[Task],
        latest: int,
        objective: tuple[int, int],
        name: str = "",
    ) -> Variables:
        """Create a model with starts and choices of tasks; `objective`: its minimum and maximum."""
        cp = cp_model.CpModel()
        begins = [cp.new_int_var(task.earliest, task.latest, task.name) for task in each(tasks)]
        variables = cls(cp, latest, cp.new_int_var(*objective, name))
        for task, begin in each(zip(tasks, begins, strict=True)):
            variables.start.update(dict.fromkeys(task.names, begin))
            variables.set_end(task, begin + task.modes[0].duration)
            if task.choice is None:
                variables.present[task.modes[0].code] = None
            else:
                variables._add_choice(task, task.choice)
        return variables

    def _add_choice(self, task: Task, choice: int) -> None:
        """Add the literals of a task, and of its choice if no other task has added them."""
        if choice not in self.choices:
            self.choices[choice] = self.cp.new_bool_var("")
        for mode, first in zip(task.modes, (True, False), strict=True):
            if mode.code == ABSENT:
                self.absent[task.code] = self.chosen(choice, first=first)
            else:
                self.present[mode.code] = self.chosen(choice, first=first)

    def set_end(self, task: Task, end: cp_model.LinearExpr) -> None:
        """Record the end of a task."""
        self.end.update(dict.fromkeys(task.names, end))

    def chosen(self, choice: int, *, first: bool) -> Literal:
        """Literal that the tasks of a choice run in their first modes, or in their second ones."""
        return self.choices[choice] if first else self.choices[choice].negated()


class ModelPart(Protocol):
    """Constraints of one kind, with their data."""

    def build(self, variables: Variables) -> None:
        """Add the constraints to the model of these variables."""
        ...
