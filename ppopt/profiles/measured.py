"""A measured run as a schedule, to stand beside the predicted one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from ppopt.errors import InputError
from ppopt.problem.costs import StageCosts
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.profiles.estimate import profile
from ppopt.profiles.records import Record
from ppopt.schedule.origin import Origin
from ppopt.schedule.schedule import Schedule
from ppopt.verifier.measured import MEASURED, is_measured


def measured(records: Iterable[Record], pipeline: Pipeline, unit: int) -> Schedule:
    """One measured step as a schedule in units of so many nanoseconds, its first start at 0.

    Of several steps it is the one of median length. The pipeline's times become the medians of the
    records; placement, microbatches and memory stay. Raises InputError where the records are not
    of this pipeline.
    """
    steps: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        steps[record.step].append(record)
    found = profile(record for ran in steps.values() for record in ran)
    if (found.hosts,) != pipeline.hosts or found.batches != pipeline.batches:
        raise InputError("measured: the run has other stages, devices or microbatches")
    memory = {
        field: getattr(pipeline.costs, field)
        for field in StageCosts._fields
        if field in ("activation", "memory_b", "static")
    }
    timed = Pipeline(
        stages=pipeline.num_stages,
        batches=pipeline.batches,
        placement=found.hosts,
        mem_limit=pipeline.limits,
        name=pipeline.name,
        **memory,
        **found.costs(unit),
    )
    ran = sorted(steps.values(), key=_length)[(len(steps) - 1) // 2]
    return _schedule(ran, timed, unit)


def _length(records: list[Record]) -> int:
    return max(record.end for record in records) - min(record.start for record in records)


def _schedule(records: list[Record], pipeline: Pipeline, unit: int) -> Schedule:
    begin = min(record.start for record in records)
    per_unit = pipeline.ticks.per_unit
    rows = [
        (*record[:4], *(round((time - begin) * per_unit / unit) for time in times))
        for record in records
        for times in [(record.start, record.end)]
    ]
    origin = Origin(strategy=MEASURED, objective=Objective.MAKESPAN, status="feasible")
    return Schedule.from_rows(pipeline, rows, origin)


def records_of(schedule: Schedule) -> list[Record]:
    """The operations of a measured schedule; a unit of its time counts as a millisecond.

    Raises InputError where it is no measured one.
    """
    if not is_measured(schedule):
        raise InputError("the file holds no measured step; `ppopt run -o x.json` writes one")
    per_unit = schedule.pipeline.ticks.per_unit
    return [
        Record(*row[:4], *(round(time * 10**6 / per_unit) for time in row[4:6]))
        for row in schedule.rows()
    ]
