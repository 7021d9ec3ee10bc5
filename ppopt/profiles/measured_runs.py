"""Measured runs as schedules, to compare with predicted ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain
from typing import Any

from ppopt.errors import InputError
from ppopt.formats.origin_json import members_of
from ppopt.problem import units
from ppopt.problem.kinds import ResourceKind
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.settings import COUNTS
from ppopt.profiles.estimate import Record, grouped, profile
from ppopt.schedule import timing
from ppopt.schedule.origin import Origin
from ppopt.schedule.schedule import Schedule
from ppopt.verifier import checked
from ppopt.verifier.measured_steps import MEASURED, is_measured

SAME_ORDER = "same order"
"""Strategy of the order of a measured step at the times of its pipeline."""


def measured(records: Iterable[Record], pipeline: Pipeline, unit: int) -> Schedule:
    """Turn records into a schedule that starts at 0, in units of `unit` nanoseconds.

    If there are several steps, the result is that of median length; see `measured_steps`.
    """
    return median_step(measured_steps(records, pipeline, unit))


def median_step(steps: Sequence[Schedule]) -> Schedule:
    """The step of median length; of an even number of steps, the shorter of the two middle ones."""
    return sorted(steps, key=lambda step: step.metrics.makespan_ticks)[(len(steps) - 1) // 2]


def measured_steps(records: Iterable[Record], pipeline: Pipeline, unit: int) -> list[Schedule]:
    """Turn the records of every step into a schedule that starts at 0, in the order of steps.

    The pipeline's times are replaced by the medians of the records, in units of `unit` nanoseconds.
    Placement, microbatches and memory do not change. Raises InputError if the records are not of
    this pipeline.
    """
    steps = grouped(records, lambda record: record.step)
    estimated = profile(chain.from_iterable(steps.values()))
    if (estimated.hosts,) != pipeline.hosts or estimated.batches != pipeline.batches:
        raise InputError("measured: the run has other stages, devices or microbatches")
    costs = pipeline.costs
    timed = Pipeline(
        stages=pipeline.num_stages,
        placement=estimated.hosts,
        mem_limit=pipeline.limits,
        time_unit=_name(unit),
        **members_of(pipeline, "batches", "name", "memory_unit", "optimizer_barrier"),
        **members_of(pipeline, *(setting.field for setting in COUNTS)),
        **{field: costs[field] for field in costs.memory_fields},
        **estimated.costs(unit),
    )
    return [_schedule(steps[step], timed, unit) for step in sorted(steps)]


def predicted(step: Schedule, pipeline: Pipeline | None = None) -> Schedule:
    """The order of a measured step, re-timed with the pipeline's times of operations.

    `pipeline` replaces the step's own; it has the same stages, devices and microbatches.
    """
    origin = Origin(strategy=SAME_ORDER, objective=Objective.MAKESPAN, status="feasible")
    timed = timing.schedule(pipeline or step.pipeline, step.orders, origin=origin)
    return checked(timed, enforce_limit=False)


def with_equal_stages(pipeline: Pipeline) -> Pipeline:
    """The pipeline if all stages took the mean time of every kind of operation."""
    per_unit = pipeline.ticks.per_unit
    fields = ("forward", "backward", "weight", "backward_input")
    columns = {field: pipeline.costs[field] for field in fields}
    means: dict[str, Any] = {
        field: Fraction(round(sum(column) * per_unit / len(column)), per_unit)
        for field, column in columns.items()
    }
    return replace(pipeline, name=f"{pipeline.name}, equal stages", **means)


def _name(nanoseconds: int) -> str | None:
    """The unit of time of that length; None if there is no such unit."""
    sizes = units.SCALES["time"].items()
    return next((name for name, seconds in sizes if seconds * 10**9 == nanoseconds), None)


def _schedule(records: list[Record], pipeline: Pipeline, unit: int) -> Schedule:
    begin, per_unit = min(record.start for record in records), pipeline.ticks.per_unit
    rows = [
        (*record[:4], *(round((t - begin) * per_unit / unit) for t in (record.start, record.end)))
        for record in records
    ]
    origin = Origin(strategy=MEASURED, objective=Objective.MAKESPAN, status="feasible")
    return Schedule.from_rows(pipeline, rows, origin)


def records_of(schedule: Schedule) -> list[Record]:
    """Turn a measured schedule into records; a time without a unit counts in milliseconds.

    Raises InputError for a schedule that was not measured.
    """
    if not is_measured(schedule):
        raise InputError("the file holds no measured step; `ppopt run -o x.json` writes one")
    seconds = units.SCALES["time"][schedule.pipeline.time_unit or "ms"]
    per_tick = seconds * 10**9 / schedule.pipeline.ticks.per_unit
    table = schedule.operations
    return [
        Record(
            *(row.kind, row.stage, row.microbatch, row.device),
            *(round(row.start * per_tick), round(row.end * per_tick)),
        )
        for row in table.where(~table.on(ResourceKind.LINK, ResourceKind.HOST)).rows()
    ]
