"""PyJobShop (github.com/PyJobShop/PyJobShop), a modelling layer over CP-SAT.

    a machine             every device
    a task on it          every operation, with one mode of its duration
    end before start      data flow with its lag; first in, first out per kind and stage
    a renewable resource  every device with a limit, its capacity the limit less static memory
    a task on that        what a microbatch holds from one operation's start to another's end: start
                          at start, end at end, no work of its own, idle allowed (`allow_idle`)
    makespan              its own objective; device span cannot be stated in it

Its own model is built and solved with the parameters that its own `solve` sets (time and workers),
here with a callback besides, for the history.
"""

from __future__ import annotations

from ortools.sat.python import cp_model
from pyjobshop import Model, Task  # type: ignore[import-untyped]
from pyjobshop.solvers.ortools.CPModel import CPModel  # type: ignore[import-untyped]

from benchmarks.baselines.cpsat import search, size
from benchmarks.baselines.problem import Jobs, Limits, Outcome, Run
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline


def solve(pipeline: Pipeline, objective: Objective, limits: Limits) -> Outcome:
    """Build PyJobShop's model and run it; raises ValueError for device span."""
    if objective is not Objective.MAKESPAN:
        raise ValueError("PyJobShop has no objective for device span")
    run, jobs, model = Run(objective, limits), Jobs.of(pipeline), Model()
    tasks = _add_operations(model, jobs)
    fits = all(_add_memory(model, jobs, tasks, device) for device in range(pipeline.num_devices))
    built = CPModel(model.data())
    solver = cp_model.CpSolver()
    status = search(solver, built.model, run) if fits else cp_model.INFEASIBLE
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    starts = {
        code: solver.value(built.variables.task_vars[place].start)
        for place, code in enumerate(tasks if found else ())
    }
    return run.outcome(
        jobs.schedule(starts) if found else None,
        size(built.model),
        infeasible=status == cp_model.INFEASIBLE,
    )


def _add_operations(model: Model, jobs: Jobs) -> dict[int, Task]:
    tasks = {code: model.add_task(latest_end=jobs.horizon) for code in jobs.duration}
    for group in jobs.groups:
        machine = model.add_machine()
        for code in group:
            model.add_mode(tasks[code], machine, jobs.duration[code])
    for before, after, lag in (*jobs.flow, *jobs.queue):
        model.add_end_before_start(tasks[before], tasks[after], lag)
    return tasks


def _add_memory(model: Model, jobs: Jobs, tasks: dict[int, Task], device: int) -> bool:
    """Add the memory of a device; False if one holding alone is more than there is.

    PyJobShop refuses such a task.
    """
    room = jobs.room(device)
    if room is None:
        return True
    holdings = list(jobs.holdings(device))
    if room < 0 or any(amount > room for _, _, amount in holdings):
        return False
    memory = model.add_renewable(room)
    for first, last, amount in holdings:
        held = model.add_task(allow_idle=True, latest_end=jobs.horizon)
        model.add_mode(held, memory, 0, amount)
        model.add_start_at_start(tasks[first], held)
        model.add_end_at_end(held, tasks[last])
    return True
