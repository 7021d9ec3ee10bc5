"""Small models of a few tasks and parts, solved."""

from __future__ import annotations

from collections.abc import Sequence

from ortools.sat.python import cp_model

from ppopt.solver.cp_sat.no_overlap import NoOverlap, OperationIntervals
from ppopt.solver.cp_sat.variables import ModelPart, Task, TaskMode, Variables


def task(code: int, duration: int, *, resource: int = 0, horizon: int = 20) -> Task:
    """A task of one mode that ends by `most`."""
    return Task(code, resource, 0, horizon - duration, (TaskMode(code, duration),))


def alone(tasks: Sequence[Task]) -> list[ModelPart]:
    """What runs tasks on their resources, one at a time."""
    resources = sorted({task.resource for task in tasks})
    return [OperationIntervals(tasks), *map(NoOverlap, resources)]


def variables(tasks: Sequence[Task], horizon: int = 20) -> Variables:
    """Variables of tasks that end by `most`, with an objective of at most that."""
    return Variables.create(tasks, horizon, (0, horizon))


def solved(built: Variables, parts: Sequence[ModelPart]) -> cp_model.CpSolver | None:
    """A solution of least objective; None where there is none."""
    for part in parts:
        part.build(built)
    built.cp.minimize(built.objective)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(built.cp)
    assert status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    return solver if status == cp_model.OPTIMAL else None


def feasible(tasks: Sequence[Task], parts: Sequence[ModelPart], horizon: int = 20) -> bool:
    """Whether the tasks have times up to `most` that satisfy the parts."""
    return solved(variables(tasks, horizon), parts) is not None
