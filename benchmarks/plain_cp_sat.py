"""Plain CP-SAT: the interval model that a competent user writes after reading the manual.

    start[o] in [0, horizon]         every operation, horizon = all of them one after the other
    interval(o) of fixed size        every operation
    start[b] >= end[a] + lag         data flow
    start[b] >= end[a]               b next to a in its kind and stage (first in, first out)
    no_overlap(intervals)            every device
    cumulative(holdings) <= room     every device with a limit: one interval of variable size for
                                     what a microbatch holds from F to W (and F to B, or B to W)
    minimize z, z >= end[last W] (- start[first F] for device span)

Memory is a `cumulative` because a reservoir is slower on most pipelines. No hint, no bound but its
own; all parameters but time, workers and seed at their defaults. The problem is that of
`ppopt.solve` with every backward split, on one route. Data flow and durations come from where the
project states them; the solver of ppopt has no part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from ortools.sat.python import cp_model

from benchmarks.outcome import Limits, Outcome, Run, Size
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule
from ppopt.verifier import checked

KINDS = (OpKind.F, OpKind.B, OpKind.W)


class Holding(NamedTuple):
    """Memory that is held from the start of one operation to the end of another."""

    first: int
    last: int
    amount: int


class Floor(NamedTuple):
    """The objective is at least end of `last` - start of `first`, or - 0 without a first."""

    last: int
    first: int | None


class Link(NamedTuple):
    """`after` starts at the end of `before` + `lag` or later."""

    before: int
    after: int
    lag: int


@dataclass(frozen=True)
class Jobs:
    """The operations of a pipeline, by their numbers (`Pipeline.code`), as plain integers."""

    pipeline: Pipeline
    duration: Mapping[int, int]
    groups: tuple[tuple[int, ...], ...]
    """Operations of every device."""
    flow: tuple[Link, ...]
    """The data flow."""
    queue: tuple[Link, ...]
    """First in, first out: operations of one kind and stage run in the order of microbatches,
    without loss (see the docstring of `ppopt.solver.cp_sat.model`)."""
    horizon: int
    """Time in which all operations fit one after the other."""

    @classmethod
    def of(cls, pipeline: Pipeline) -> Jobs:
        """List the operations of a pipeline with one route."""
        assert pipeline.routes == pipeline.num_slices == 1, "the model has one route, no slices"
        stages, batches = range(pipeline.num_stages), range(pipeline.batches)
        rows = [[pipeline.code(kind, s, j) for j in batches] for kind in KINDS for s in stages]
        times = [pipeline.ticks.durations[kind][s] for kind in KINDS for s in stages]
        duration = {code: time for row, time in zip(rows, times, strict=True) for code in row}
        groups: list[list[int]] = [[] for _ in range(pipeline.num_devices)]
        for row in rows:
            groups[pipeline.device(pipeline.op(row[0]).stage, 0)] += row
        flow = Instance(pipeline, BackwardKind.SPLIT).operation_flow
        links = zip(*(column.tolist() for column in flow), strict=True)
        return cls(
            pipeline=pipeline,
            duration=duration,
            groups=tuple(map(tuple, groups)),
            flow=tuple(Link(*link) for link in links),
            queue=tuple(Link(*pair, 0) for row in rows for pair in pairwise(row)),
            horizon=sum(duration.values()) + int(flow.lag.sum()),
        )

    def holdings(self, device: int) -> Iterator[Holding]:
        """Memory that microbatches hold on a device, by intervals with fixed positive amounts.

        With memory_b < 0, B gives that part back and W the rest; with memory_b > 0, B takes more.
        """
        ticks, code = self.pipeline.ticks, self.pipeline.code
        for stage in self.pipeline.hosted[0][device]:
            taken, at_b = ticks.costs.activation[stage], ticks.costs.memory_b[stage]
            parts = (
                (OpKind.F, OpKind.W, taken + min(at_b, 0)),
                (OpKind.F, OpKind.B, max(-at_b, 0)),
                (OpKind.B, OpKind.W, max(at_b, 0)),
            )
            for first, last, amount in parts:
                for j in range(self.pipeline.batches) if amount else ():
                    yield Holding(code(first, stage, j), code(last, stage, j), amount)

    def change(self, code: int) -> int:
        """Signed change of memory by an operation, in ticks."""
        op = self.pipeline.op(code)
        return self.pipeline.ticks.memory_change(op.kind, op.stage)

    def memory_limit(self, device: int) -> int | None:
        """Memory limit less static memory, in ticks; None: no limit."""
        ticks = self.pipeline.ticks
        return None if ticks.limits is None else ticks.limits[device] - ticks.static[device]

    def floors(self, objective: Objective) -> Iterator[Floor]:
        """The objective, stated by the last W of every stage (W run in order).

        A device's first operation is the first forward of its first stage.
        """
        pipeline = self.pipeline
        for hosted in pipeline.hosted[0]:
            first = pipeline.code(OpKind.F, hosted[0], 0) if hosted else None
            for stage in hosted:
                last = pipeline.code(OpKind.W, stage, pipeline.batches - 1)
                yield Floor(last, None if objective is Objective.MAKESPAN else first)

    def busiest(self) -> int:
        """Longest work of a device: a lower bound that needs no thought."""
        return max(sum(self.duration[code] for code in group) for group in self.groups)

    def schedule(self, start: Mapping[int, int]) -> Schedule:
        """The schedule with these starts, verified; raises VerificationError."""
        rows = []
        for code, begin in start.items():
            kind, stage, microbatch, *_ = op = self.pipeline.op(code)
            device = self.pipeline.device(op.stage, op.microbatch)
            rows.append((kind, stage, microbatch, device, begin, begin + self.duration[code]))
        return checked(Schedule.from_rows(self.pipeline, rows))


def solve(pipeline: Pipeline, objective: Objective, limits: Limits) -> Outcome:
    """Build the model and run CP-SAT on it until proof or the end of time."""
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
    status = _search(solver, model, run)
    is_solved = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    starts = {code: solver.value(variable) for code, variable in start.items()} if is_solved else {}
    return run.outcome(
        jobs.schedule(starts) if is_solved else None,
        size(model),
        infeasible=status == cp_model.INFEASIBLE,
    )


def _limit_memory(
    model: cp_model.CpModel, jobs: Jobs, start: dict[int, cp_model.IntVar], device: int
) -> None:
    limit = jobs.memory_limit(device)
    if limit is None:
        return
    intervals, amounts = [], []
    for first, last, amount in jobs.holdings(device):
        length = model.new_int_var(0, jobs.horizon, "")
        end = start[last] + jobs.duration[last]
        intervals.append(model.new_interval_var(start[first], length, end, ""))
        amounts.append(amount)
    model.add_cumulative(intervals, amounts, limit)


def _search(
    solver: cp_model.CpSolver, model: cp_model.CpModel, run: Run
) -> cp_model.CpSolverStatus:
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
    constraints = [
        constraint for constraint in model.proto.constraints if not constraint.has_interval()
    ]
    return Size(len(model.proto.variables), len(constraints))
