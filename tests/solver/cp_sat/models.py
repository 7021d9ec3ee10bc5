"""Small models of a few tasks and parts, solved."""

from __future__ import annotations

from collections.abc import Sequence

from ortools.sat.python import cp_model

from ppopt.solver.cp_sat.no_overlap import NoOverlap, Operations
from ppopt.solver.cp_sat.variables import ModelPart, Task, TaskMode, Variables


def task(code: int, duration: int, *, resource: int = 0, most: int = 20) -> Task:
    """A task of one mode that ends by `most`."""
    return Task(code, resource, 0, most - duration, (TaskMode(code, duration),))


def alone(tasks: Sequence[Task]) -> list[ModelPart]:
    """What runs tasks on their resources, one at a time."""
    resources = sorted({one.resource for one in tasks})
    return [Operations(tasks), *map(NoOverlap, resources)]


def variables(tasks: Sequence[Task], most: int = 20) -> Variables:
    """Variables of tasks that end by `most`, with an objective of at most that."""
    return Variables.create(tasks, most, (0, most))


def solved(made: Variables, parts: Sequence[ModelPart]) -> cp_model.CpSolver | None:
    """A solution of least objective; None where there is none."""
    for part in parts:
        part.build(made)
    made.cp.minimize(made.objective)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(made.cp)
    assert status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    return solver if status == cp_model.OPTIMAL else None


def feasible(tasks: Sequence[Task], parts: Sequence[ModelPart], most: int = 20) -> bool:
    """Whether the tasks have times up to `most` that satisfy the parts."""
    return solved(variables(tasks, most), parts) is not None
