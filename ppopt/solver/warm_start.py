"""Warm starts: a schedule of the user (the hint), and known schedules and bounds.

A hint must have the stages, microbatches and placement of the searched pipeline. If its durations
and delays are those of that pipeline, its starts are used; else its order is timed again. A hint
outside the search space is converted: whole backwards are split, or split backwards are joined. A
hint over the memory limit is repaired, because its order exceeds the limit at any starts: list
scheduling follows it as closely as the limit allows (`ppopt.solver.heuristics.repair`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

from ppopt.cancellation import scope
from ppopt.errors import InputError
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.cost_table import STAGE_COSTS
from ppopt.problem.instance import Instance
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.problem.units import Unit
from ppopt.schedule import timing
from ppopt.schedule.orders import Orders, convert_backwards, is_of_kind, portable
from ppopt.schedule.origin import HintRecord
from ppopt.schedule.schedule import Schedule
from ppopt.solver.bound import Bound
from ppopt.solver.heuristics.repair import converted
from ppopt.solver.incumbent import Incumbent
from ppopt.verifier import verify

RETIMED = "its times are not those of this pipeline: its order is timed again"
OTHER_MEMORY = "its memory is not that of this pipeline: it is judged by the memory given here"
SPLIT = "its whole backwards are split into B and W"
JOINED = "its split backwards are made whole, each at the place of its B"
OVER = "it is over the memory limit: followed as closely as the limit allows"


class Hint(NamedTuple):
    """A checked hint on the searched pipeline."""

    schedule: Schedule
    """The hint on the searched pipeline, at its own starts or timed again; it may exceed the
    limits."""
    orders: Orders | None = None
    """Orders of the hint, converted to the search space; None: no conversion is needed."""
    notes: tuple[str, ...] = ()
    """Text on the conversions."""

    @property
    def fits(self) -> bool:
        """Whether the hint is within the memory limits."""
        return self.schedule.fits_limits

    def record(self, problem: Problem, *, followed: bool) -> HintRecord:
        """The hint as the result reports it; `followed`: whether the search started from it."""
        figures, ticks = self.schedule.metrics, problem.pipeline.ticks
        notes = self.notes if self.fits or not followed else (*self.notes, OVER)
        return HintRecord(
            value=ticks.time(figures.value_ticks(problem.objective)),
            peak_memory=tuple(map(ticks.memory, figures.peak_memory_ticks)),
            fits_limit=self.fits,
            notes=notes,
        )


def read_hint(problem: Problem, schedule: Schedule) -> Hint:
    """Check a hint and convert it to the pipeline and the search space.

    Raises InputError if it is of another pipeline or breaks a rule other than the memory limit.
    """
    _check(problem.pipeline, schedule)
    schedule, notes = _on(problem, schedule)
    orders = None
    kind = problem.reduced.backward_kind
    if not is_of_kind(schedule.kind, kind):
        orders = convert_backwards(problem.pipeline, schedule.orders, kind)
        notes.append(JOINED if kind is BackwardKind.WHOLE else SPLIT)
    return Hint(schedule, orders, tuple(notes))


class WarmStart(NamedTuple):
    """Schedules and bounds known before a search starts."""

    hint: Hint | None = None
    """Hint of the user."""
    schedules: tuple[Schedule, ...] = ()
    """Other schedules of the same pipeline and search space; they may exceed the limits."""
    bound: Bound | None = None
    """Lower bound proved earlier, for this problem or for larger limits."""

    def record(self, problem: Problem, *, followed: bool) -> HintRecord | None:
        """The hint as the result reports it; None without a hint."""
        return None if self.hint is None else self.hint.record(problem, followed=followed)


def apply_warm_start(incumbent: Incumbent, view: Incumbent | None, start: WarmStart) -> None:
    """Submit a warm start to the incumbent, even after the time limit.

    `view` is the view of compute alone, or None. Only the repair of schedules over the limits
    depends on the time limit.
    """
    if start.bound is not None:
        incumbent.raise_bound(start.bound)
    known = [
        Hint(replace(schedule, pipeline=incumbent.problem.pipeline)) for schedule in start.schedules
    ]
    for hint in ([start.hint] if start.hint else []) + known:
        if not incumbent.closed:
            with scope(inf):
                _submit(incumbent, view or incumbent, hint)


def _submit(incumbent: Incumbent, view: Incumbent, hint: Hint) -> None:
    """Submit a hint at its own and at its earliest starts, repaired if over the limits."""
    pipeline, objective = incumbent.problem.pipeline, incumbent.problem.objective
    schedule = hint.schedule
    if hint.orders is not None:
        schedule = timing.schedule(pipeline, hint.orders, objective)
    if schedule.fits_limits:
        incumbent.submit(schedule)
        view.submit_orders(schedule.orders)
    else:
        for restriction in incumbent.problem.restrictions:
            repaired = converted(schedule, restriction)
            view.submit_orders(None if repaired is None else repaired.orders)


def _check(pipeline: Pipeline, schedule: Schedule) -> None:
    """Raise InputError unless the schedule is of this pipeline; costs may differ."""
    theirs = schedule.pipeline
    sizes = (
        ("devices", theirs.num_devices, pipeline.num_devices),
        ("stages", theirs.num_stages, pipeline.num_stages),
        ("microbatches", theirs.batches, pipeline.batches),
        ("routes", theirs.routes, pipeline.routes),
        ("slices", theirs.num_slices, pipeline.num_slices),
    )
    for what, actual, wanted in sizes:
        if actual != wanted:
            raise InputError(
                f"hint: it is of another pipeline: {actual} {what}, not {wanted}; "
                "give one of the same stages, microbatches and placement"
            )
    for stage, (actual, wanted) in enumerate(zip(theirs.hosts[0], pipeline.hosts[0], strict=True)):
        if actual != wanted:
            raise InputError(
                f"hint: it is of another placement: stage {stage} sits on device {actual}, not "
                f"{wanted}; give one of the same placement"
            )
    violations = verify(schedule, enforce_limit=False)
    if violations:
        raise InputError(f"hint: {violations[0]}; `ppopt verify` lists all violations")


def _on(problem: Problem, schedule: Schedule) -> tuple[Schedule, list[str]]:
    """Schedule on the searched pipeline, and notes on the conversions."""
    notes = []
    retargeted = replace(schedule, pipeline=problem.pipeline)
    if _times(problem.pipeline) != _times(schedule.pipeline):
        retargeted = timing.schedule(problem.pipeline, portable(schedule), problem.objective)
        notes.append(RETIMED)
    if _memory(problem.pipeline) != _memory(schedule.pipeline):
        notes.append(OTHER_MEMORY)
    return retargeted, notes


def _times(pipeline: Pipeline) -> object:
    """Data that the starts of a schedule depend on: operations, ticks, times on devices, lags."""
    lags = Instance.of(pipeline, BackwardKind.MIXED).flow.lag.tolist()
    rules = pipeline.link_mode, pipeline.host_link, pipeline.optimizer_barrier
    costs = pipeline.ticks.costs
    operations = any(costs.unshard_memory), pipeline.frozen_stages
    times = _of_unit(costs, Unit.TIME), pipeline.factors, pipeline.slice_times
    return pipeline.grid.time, times, lags, rules, operations


def _memory(pipeline: Pipeline) -> object:
    """Data that the memory of a schedule depends on."""
    return _of_unit(pipeline.costs, Unit.MEMORY), [memory for _, memory in pipeline.factors]


def _of_unit(costs: Mapping[str, Any], unit: Unit) -> list[object]:
    return [costs[cost.field] for cost in STAGE_COSTS if cost.unit is unit]
