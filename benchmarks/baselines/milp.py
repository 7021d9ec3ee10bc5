"""The MILP of the zero-bubble paper on HiGHS (arXiv 2401.10241, appendix G).

    E[o]  end of every operation, continuous;   O[a, b] = 1 if a runs before b, binary
    E[b] >= E[a] + lag + time[b]                     data flow                        (3), (4)
    E[b] >= E[a] + time[b] - M (1 - O[a, b])         pairs of one device              (5)
    E[a] >= E[b] + time[a] - M O[a, b]
    change[b] + sum over a of change[a] O[a, b] <= room     b takes memory            (6)
    minimize the longest device span, or the makespan                                 (2)

As in the authors' code, operations of one kind and stage run first in, first out, only pairs that
the data flow and this leave open get a binary, and the search starts from a hand-made schedule:
here the best strategy that keeps the limit, if any. Beyond the paper, M is not one large number:
for makespan, earliest starts and latest ends by longest path within the known makespan give every
pair its own. Times are handed over in the user's unit. What HiGHS returns is read as an order,
timed exactly and verified; its bound is rounded up to whole ticks.
"""

from __future__ import annotations

from math import ceil, inf, isfinite
from typing import Any

import highspy
import numpy as np

from benchmarks import hand
from benchmarks.baselines.order import Orders
from benchmarks.baselines.problem import Jobs, Limits, Outcome, Run, Size
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule import timing
from ppopt.schedule.schedule import Schedule
from ppopt.verifier import checked

TOLERANCE = 1e-6
"""HiGHS's own tolerance on feasibility, which its bounds may be off by."""


def solve(pipeline: Pipeline, objective: Objective, limits: Limits) -> Outcome:
    """Build the model and run HiGHS on it until proof or the end of time."""
    run, orders = Run(objective, limits), Orders(Jobs.of(pipeline))
    known = _by_hand(orders, objective)
    model = _Model(orders, objective, known)
    if known is not None:
        run.note(known.metrics.value_ticks(objective), None)
    _run(model, run)
    status = model.highs.getModelStatus()
    found = _schedule(model) or known
    return run.outcome(
        found,
        Size(model.highs.numVariables, model.highs.numConstrs),
        infeasible=status == highspy.HighsModelStatus.kInfeasible and found is None,
    )


def _by_hand(orders: Orders, objective: Objective) -> Schedule | None:
    """The best hand strategy that keeps the limit, and still does with its backwards split."""
    pipeline = orders.jobs.pipeline
    made = hand.fitting(pipeline, objective).values()
    timed = [_timed(orders, _starts(one), objective) for one in made]
    kept = (one for one in timed if one.fits_limits)
    return min(kept, key=lambda one: one.metrics.value_ticks(objective), default=None)


def _starts(schedule: Schedule) -> dict[int, float]:
    """Starts by operation, backwards split, each kind and stage first in, first out."""
    pipeline, starts = schedule.pipeline, dict[int, float]()
    b_times = pipeline.ticks.durations[OpKind.B]
    slots: dict[tuple[int, int], list[int]] = {}
    for row in schedule.rows():
        split = row.kind is OpKind.BW
        slots.setdefault((OpKind.B if split else row.kind, row.stage), []).append(row.start)
        if split:
            later = row.start + b_times[row.stage]
            slots.setdefault((OpKind.W, row.stage), []).append(later)
    for (kind, stage), begins in slots.items():
        for microbatch, begin in enumerate(sorted(begins)):
            starts[pipeline.code(kind, stage, microbatch)] = begin
    return starts


def _timed(orders: Orders, start: dict[int, float], objective: Objective) -> Schedule:
    turns = [np.array(turn, dtype=np.int64) for turn in orders.in_turn(start)]
    return timing.schedule(orders.jobs.pipeline, turns, objective)


class _Model:
    """Columns: the value, then the start of every operation, then one binary per free pair."""

    def __init__(self, orders: Orders, objective: Objective, known: Schedule | None) -> None:
        self.orders = orders
        self.objective = objective
        self.per_unit = orders.jobs.pipeline.ticks.per_unit
        value = None if known is None else known.metrics.value_ticks(objective)
        most = orders.jobs.horizon if value is None else value
        self.latest = most if objective is Objective.MAKESPAN else 2 * most
        self.highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        self.highs.setOptionValue("log_to_console", False)
        self.head, self.tail = orders.heads(), orders.tails()
        if objective is not Objective.MAKESPAN:
            self.tail = dict.fromkeys(self.tail, 0)
        self.column: dict[Any, int] = {}
        self._add_columns(most)
        self._add_links()
        self._add_pairs()
        self._add_memory()
        self._add_objective()
        if known is not None:
            self._start_from(known)

    def _add_columns(self, most: int) -> None:
        self._column("value", 0, most, 1.0)
        for code, time in self.orders.jobs.duration.items():
            self._column(code, self.head[code], self.latest - time - self.tail[code])
        for pair in self.orders.free_pairs():
            self.column[pair] = self.highs.numVariables
            self.highs.addCol(0.0, 0.0, 1.0, 0, [], [])
            self.highs.changeColIntegrality(self.column[pair], highspy.HighsVarType.kInteger)

    def _column(self, name: Any, low: int, high: int, cost: float = 0.0) -> None:
        self.column[name] = self.highs.numVariables
        self.highs.addCol(cost, low / self.per_unit, high / self.per_unit, 0, [], [])

    def _row(self, low: float, high: float, terms: dict[Any, float]) -> None:
        columns = np.array([self.column[name] for name in terms], dtype=np.int32)
        self.highs.addRow(low, high, len(terms), columns, np.array(list(terms.values())))

    def _after(self, before: int, after: int, ticks: int, terms: dict[Any, float]) -> None:
        """start[after] - start[before] + terms >= ticks."""
        self._row(ticks / self.per_unit, inf, {after: 1.0, before: -1.0, **terms})

    def _add_links(self) -> None:
        for before, after, lag in self.orders.links:
            self._after(before, after, self.orders.jobs.duration[before] + lag, {})

    def _add_pairs(self) -> None:
        time = self.orders.jobs.duration
        for pair in self.orders.free_pairs():
            a, b = pair
            slack = [self._most(*pair), self._most(*pair[::-1])]
            self._after(a, b, time[a] - slack[0], {pair: -slack[0] / self.per_unit})
            self._after(b, a, time[b], {pair: slack[1] / self.per_unit})

    def _most(self, a: int, b: int) -> int:
        """The M of `b after a`: latest end of a less earliest start of b."""
        return self.latest - self.tail[a] - self.head[b]

    def _add_memory(self) -> None:
        jobs = self.orders.jobs
        for device, group in enumerate(jobs.groups):
            room = jobs.room(device)
            if room is None:
                continue
            self._row(-room, inf, {})
            for code in group:
                if jobs.change(code) > 0:
                    self._add_level(code, group, room)

    def _add_level(self, code: int, group: tuple[int, ...], room: int) -> None:
        jobs, terms = self.orders.jobs, dict[Any, float]()
        fixed = jobs.change(code)
        for other in group:
            if (other, code) in self.column:
                terms[other, code] = jobs.change(other)
            elif (code, other) in self.column:
                terms[code, other] = -jobs.change(other)
                fixed += jobs.change(other)
            elif self.orders.surely_before(other, code):
                fixed += jobs.change(other)
        unit = jobs.pipeline.ticks.memory_per_unit
        self._row(-inf, (room - fixed) / unit, {name: x / unit for name, x in terms.items()})

    def _add_objective(self) -> None:
        for last, first in self.orders.jobs.floors(self.objective):
            terms = {"value": 1.0, last: -1.0}
            if first is not None:
                terms[first] = terms.get(first, 0.0) + 1.0
            self._row(self.orders.jobs.duration[last] / self.per_unit, inf, terms)

    def _start_from(self, known: Schedule) -> None:
        start = _starts(known)
        values = dict[Any, float](start)
        values["value"] = known.metrics.value_ticks(self.objective)
        hint = highspy.HighsSolution()
        hint.col_value = [
            values[name] / self.per_unit
            if name in values
            else float(start[name[0]] < start[name[1]])
            for name in self.column
        ]
        self.highs.setSolution(hint)


def _run(model: _Model, run: Run) -> None:
    highs = model.highs
    options = {
        "threads": run.limits.workers,
        "random_seed": run.limits.seed,
        "time_limit": run.left,
        "mip_rel_gap": 0.0,
        "mip_abs_gap": 0.9 / model.per_unit,
        "mip_min_logging_interval": 0.1,
    }
    for name, value in options.items():
        highs.setOptionValue(name, value)

    def follow(event: Any) -> None:
        out = event.data_out
        value = out.mip_primal_bound
        ticks = round(value * model.per_unit) if isfinite(value) else None
        run.note(ticks, _whole(out.mip_dual_bound, model))

    highs.cbMipLogging.subscribe(follow)
    highs.cbMipImprovingSolution.subscribe(follow)
    highs.run()
    run.note(None, _whole(_bound(model), model))


def _bound(model: _Model) -> float:
    """The bound at the end; a model without pairs is an LP, whose optimum is its bound."""
    info = model.highs.getInfo()
    optimal = model.highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
    linear = not any(isinstance(name, tuple) for name in model.column)
    return float(info.objective_function_value if linear and optimal else info.mip_dual_bound)


def _whole(bound: float, model: _Model) -> int | None:
    """A bound in ticks: the least whole number that is not below it."""
    return ceil((bound - TOLERANCE) * model.per_unit - TOLERANCE) if isfinite(bound) else None


def _schedule(model: _Model) -> Schedule | None:
    """What HiGHS found, as an order timed exactly."""
    found = model.highs.getInfo().primal_solution_status
    if found != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None
    values = model.highs.getSolution().col_value
    start = {
        code: values[model.column[code]] * model.per_unit for code in model.orders.jobs.duration
    }
    return checked(_timed(model.orders, start, model.objective))
