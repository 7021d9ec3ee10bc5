"""Plain CP-SAT: the interval model that a competent user writes after reading the manual.

    start[o] in [0, horizon]         every operation, horizon = all of them one after the other
    interval(o) of fixed size        every operation
    start[b] >= end[a] + lag         data flow
    start[b] >= end[a]               b next to a in its kind and stage (first in, first out)
    no_overlap(intervals)            every device
    cumulative(holdings) <= room     every device with a limit: one interval of variable size for
                                     what a microbatch holds from F to W (and F to B, or B to W)
    minimize z, z >= end[last W] (- start[first F] for device span)

Memory is a `cumulative` because a reservoir is slower on most pipelines (see the README). No hint,
no bound but its own; all parameters but time, workers and seed at their defaults. `cpsat_order` is
the same with parameters of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from ortools.sat.python import cp_model

from benchmarks.baselines.problem import Jobs, Limits, Outcome, Run, Size
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline


def solve(
    pipeline: Pipeline, objective: Objective, limits: Limits, parameters: str = ""
) -> Outcome:
    """Build the model and run CP-SAT on it until proof or the end of time.

    `parameters` are further ones of CP-SAT, in the text format of protocol buffers.
    """
    run, jobs, model = Run(objective, limits), Jobs.of(pipeline), cp_model.CpModel()
    start = {
        code: model.new_int_var(0, jobs.horizon - time, str(code))
        for code, time in jobs.duration.items()
    }
    for before, after, lag in (*jobs.flow, *jobs.queue):
        model.add(start[after] >= start[before] + jobs.duration[before] + lag)
    for device, group in enumerate(jobs.groups):
        model.add_no_overlap(
            [model.new_fixed_size_interval_var(start[o], jobs.duration[o], "") for o in group]
        )
        _limit_memory(model, jobs, start, device)
    value = model.new_int_var(0, jobs.horizon, "value")
    for last, first in jobs.floors(objective):
        begin = 0 if first is None else start[first]
        model.add(value >= start[last] + jobs.duration[last] - begin)
    model.minimize(value)
    solver = cp_model.CpSolver()
    if not solver.parameters.merge_text_format(parameters):
        raise ValueError(f"CP-SAT does not know these parameters: {parameters}")
    status = search(solver, model, run)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    starts = {code: solver.value(variable) for code, variable in start.items()} if found else {}
    return run.outcome(
        jobs.schedule(starts) if found else None,
        size(model),
        infeasible=status == cp_model.INFEASIBLE,
    )


def _limit_memory(
    model: cp_model.CpModel, jobs: Jobs, start: dict[int, cp_model.IntVar], device: int
) -> None:
    room = jobs.room(device)
    if room is None:
        return
    intervals, amounts = [], []
    for first, last, amount in jobs.holdings(device):
        length = model.new_int_var(0, jobs.horizon, "")
        end = start[last] + jobs.duration[last]
        intervals.append(model.new_interval_var(start[first], length, end, ""))
        amounts.append(amount)
    model.add_cumulative(intervals, amounts, room)


def search(solver: cp_model.CpSolver, model: cp_model.CpModel, run: Run) -> cp_model.CpSolverStatus:
    """Run CP-SAT for the time left; notes every solution and bound."""
    solver.parameters.max_time_in_seconds = run.left
    solver.parameters.num_workers = run.limits.workers
    solver.parameters.random_seed = run.limits.seed
    solver.best_bound_callback = lambda bound: run.note(None, round(bound))
    status = solver.solve(model, _Watch(run.note))
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        run.note(None, round(solver.best_objective_bound))
    return status


class _Watch(cp_model.CpSolverSolutionCallback):
    def __init__(self, note: Callable[[int, int], None]) -> None:
        super().__init__()
        self._note = note

    def on_solution_callback(self) -> None:
        self._note(round(self.objective_value), round(self.best_objective_bound))


def size(model: cp_model.CpModel) -> Size:
    """Variables and constraints; an interval is neither."""
    constraints = [one for one in model.proto.constraints if not one.has_interval()]
    return Size(len(model.proto.variables), len(constraints))
