"""The result of a job: computes it, stores it, and validates a stored one.

A stored result is checked when it is read: its schedule has the pipeline of the job, the verifier
accepts it with its claims, and value, bound and status agree.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Annotated, Any, NamedTuple

from ppopt.cancellation import driven
from ppopt.errors import InputError
from ppopt.formats import origin_json, schedule_json
from ppopt.formats.fields import abbreviated, section, text, within
from ppopt.formats.figures import ScheduleFigures, limits
from ppopt.problem.decisions import Decisions
from ppopt.problem.exact import plain_or_none
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.origin import Argument, Certificate
from ppopt.schedule.schedule import Schedule
from ppopt.solver.options import checked_options
from ppopt.solver.result import Callback, Provenance, Result, Status
from ppopt.solver.search import problem_of
from ppopt.solver.solve import earlier_bound, search_decisions, solve_problem
from ppopt.solver.warm_start import WarmStart
from ppopt.studies.best_choice import best_choice
from ppopt.studies.records import (
    STATUS,
    DamagedError,
    StoredResult,
    damage,
    one_line,
    packed,
    seconds,
    unpacked,
    workers,
)
from ppopt.studies.solve_job import SolveJob, instance_of
from ppopt.verifier import verify
from ppopt.versions import version, versions

SCHEMA = 1
"""Version of the document in a stored result."""
PLAN = "plan"
"""Key of a plan in the document of its best schedule; see `ppopt.studies.plan_record`."""
DOCUMENT = ("schema", "lower_bound", "proof", "certificate", "versions", "schedule")
_FRACTION = re.compile(r"([0-9]{1,40})(?:/([1-9][0-9]{0,39}))?")


def is_closed(result: Result) -> bool:
    """Whether more effort cannot improve a result."""
    if result.status in (Status.OPTIMAL, Status.INFEASIBLE):
        return True
    return result.schedule is not None and result.lower_bound in (None, result.value)


def covers(result: Result, job: SolveJob) -> bool:
    """Whether a result makes running a job unnecessary.

    It is closed, or had at least the time limit and the workers of the job.
    """
    effort = result.provenance
    enough = effort.time_limit >= job.time_limit and effort.workers >= job.workers
    return is_closed(result) or enough


def with_spent_time(result: Result) -> Result:
    """Result whose time limit is the time that it took, if Ctrl-C ended it."""
    if not result.interrupted:
        return result
    spent = min(result.provenance.time_limit, result.solve_seconds)
    return replace(result, provenance=replace(result.provenance, time_limit=spent))


def with_origin(result: Result) -> Result:
    """Result whose schedule has it as its origin, verified again."""
    schedule = result.schedule
    return result if schedule is None else result.with_schedule(schedule)


def reused_or_run(
    job: SolveJob,
    stored: StoredResult | None,
    damaged: list[str],
    progress: Callback | None = None,
    began: float | None = None,
) -> tuple[Result, bool]:
    """Reuse a stored result, continue from it, or run the job; also return whether it was reused.

    A damaged stored result is ignored; the reason is added to `damaged`. The other arguments and
    the errors are those of `run_job`.
    """
    earlier = None
    if stored is not None:
        try:
            earlier = read(stored, job)
        except DamagedError as error:
            damaged.append(one_line(error))
    if earlier is not None and covers(earlier, job):
        return earlier, True
    return run_job(job, earlier, progress, began), False


def run_job(
    job: SolveJob,
    earlier: Result | None = None,
    progress: Callback | None = None,
    began: float | None = None,
) -> Result:
    """Search or evaluate, continuing from an earlier result of less effort.

    The time limit of a search counts from `began` (of `time.monotonic`), or else from now. The
    result is never worse than `earlier`. Raises InputError if the job cannot be run.
    """
    if not job.searched:
        return _evaluated(job.checked)
    result = with_spent_time(_searched(job, earlier, progress, began))
    return result if earlier is None else _better(earlier, result)


@driven
def _searched(
    job: SolveJob, earlier: Result | None, progress: Callback | None, began: float | None
) -> Result:
    problem = problem_of(job.pipeline, job.objective, job.backward_kind)
    options = checked_options(job.time_limit, job.workers, job.seed, progress=progress, began=began)
    if earlier is None or earlier.bound_ticks is None:
        return solve_problem(problem, options)
    schedules = () if earlier.schedule is None else (earlier.schedule,)
    start = WarmStart(schedules=schedules, bound=earlier_bound(problem, earlier))
    return search_decisions(start, problem, options)


def _better(old: Result, new: Result) -> Result:
    """Combine the better schedule and the better bound of two results of one job.

    Of equal bounds the old one is used: a search that starts from a bound repeats it. The time
    limit and the workers are those of the run with the larger product of both.
    """
    better = new
    known, value = old.value_ticks, new.value_ticks
    if known is not None and (value is None or known < value):
        better = replace(
            better,
            pipeline=old.pipeline,
            schedule=old.schedule,
            value_ticks=known,
            status=Status.FEASIBLE,
        )
    if (
        new.status is not Status.INFEASIBLE
        and old.bound_ticks is not None
        and (new.bound_ticks is None or old.bound_ticks >= new.bound_ticks)
    ):
        better = replace(
            better, bound_ticks=old.bound_ticks, proof=old.proof, certificate=old.certificate
        )
    if better.value_ticks is not None and better.value_ticks == better.bound_ticks:
        better = replace(better, status=Status.OPTIMAL)
    longer = max(
        old.provenance, new.provenance, key=lambda effort: effort.time_limit * effort.workers
    )
    effort = replace(new.provenance, time_limit=longer.time_limit, workers=longer.workers)
    seconds = old.solve_seconds + new.solve_seconds
    return replace(better, provenance=effort, solve_seconds=seconds)


def _evaluated(job: SolveJob) -> Result:
    began, pipeline, limit = time.monotonic(), job.pipeline, job.time_limit
    choice = best_choice(pipeline, job.strategy, job.objective, job.options, time_limit=limit)
    bound = None
    if pipeline.open_decisions & Decisions.OF_STRATEGY and not choice.proved:
        bound = choice.bound_ticks or 0
    result = Result(
        pipeline=choice.schedule.pipeline,
        objective=job.objective,
        backward_kind=job.backward_kind,
        status=Status.FEASIBLE,
        schedule=choice.schedule,
        value_ticks=choice.schedule.metrics.value_ticks(job.objective),
        bound_ticks=bound,
        proof="",
        certificate=Certificate(Argument.SEARCH),
        provenance=Provenance(job.seed, 1, limit, versions()),
        solve_seconds=time.monotonic() - began,
        interrupted=choice.interrupted,
    )
    return with_spent_time(result)


# Stored, and read back.


def stored(job: SolveJob, result: Result) -> StoredResult:
    """Stored form of a result: compressed JSON."""
    return StoredResult(
        key=job.key,
        strategy=job.strategy,
        status=result.status,
        closed=is_closed(result),
        time_limit=result.provenance.time_limit,
        workers=result.provenance.workers,
        seconds=result.solve_seconds,
        version=version(),
        record=packed(to_document(result)),
    )


def to_document(result: Result) -> dict[str, Any]:
    """Schedule in its native form, bound and proof of a result, as an object of JSON."""
    bound, schedule = result.lower_bound, result.schedule
    return {
        "schema": SCHEMA,
        "lower_bound": None if bound is None else str(bound),
        "proof": result.proof,
        "certificate": origin_json.json_form(result.certificate),
        "versions": result.provenance.versions,
        "schedule": None if schedule is None else schedule_json.schedule_to_object(schedule),
    }


def read(record: StoredResult, job: SolveJob) -> Result:
    """Read a stored result of a job and check it; raises DamagedError if it is wrong."""
    with damage("a stored result"):
        effort = StoredEffort(
            record.status, record.time_limit or 0.0, record.workers or 1, record.seconds
        )
        return from_document(document(record), job, effort)


class StoredEffort(NamedTuple):
    """The columns of a stored result that are not in its document."""

    status: Annotated[str, STATUS]
    time_limit: Annotated[float, seconds]
    workers: Annotated[int, workers]
    seconds: Annotated[float, seconds]

    @classmethod
    def of(cls, result: Result) -> StoredEffort:
        """Effort of a result."""
        provenance = result.provenance
        return cls(
            result.status.value, provenance.time_limit, provenance.workers, result.solve_seconds
        )


def from_document(document: Mapping[str, Any], job: SolveJob, effort: StoredEffort) -> Result:
    """Result of a job in a document of `to_document`; raises InputError if it is wrong."""
    native, certificate = document["schedule"], document["certificate"]
    schedule = None if native is None else _schedule(native, job)
    status = Status(effort.status)
    pipeline = job.pipeline if schedule is None else schedule.pipeline
    value = None if schedule is None else schedule.metrics.value_ticks(job.objective)
    bound = in_ticks(within("lower_bound", fraction, document["lower_bound"]), pipeline)
    _check(status, value, bound, job)
    read_versions = within("versions", origin_json.VERSIONS.read, document["versions"])
    return Result(
        pipeline=pipeline,
        objective=job.objective,
        backward_kind=job.backward_kind,
        status=status,
        schedule=schedule,
        value_ticks=value,
        bound_ticks=bound,
        proof=within("proof", text, document["proof"]),
        certificate=Certificate(Argument.SEARCH)
        if certificate is None
        else within("certificate", origin_json.certificate_from_object, certificate),
        provenance=Provenance(job.seed, effort.workers, effort.time_limit, read_versions),
        solve_seconds=effort.seconds,
    )


def schedule_of(record: StoredResult, mem_limit: Sequence[float] | None) -> Schedule | None:
    """Schedule of a stored result on its own pipeline, verified with its claims.

    Memory limits, one per device, are recorded but not enforced: strategies may exceed them. Raises
    DamagedError if the record is wrong.
    """
    with damage("a stored result"):
        native = document(record)["schedule"]
        if native is None:
            return None
        schedule, claims = schedule_json.schedule_from_object(native)
        _verified(schedule, claims, enforce_limit=False)
        pipeline = replace(schedule.pipeline, mem_limit=mem_limit)
    return replace(schedule, pipeline=pipeline, origin=replace(schedule.origin, from_file=False))


def document(record: StoredResult) -> dict[str, Any]:
    """JSON object in a stored result; raises InputError if there is none."""
    document = section(unpacked(record.record), DOCUMENT, (PLAN,))
    if document["schema"] != SCHEMA:
        raise InputError(f"schema: {abbreviated(document['schema'])} is not {SCHEMA}")
    return document


def fraction(value: object) -> Fraction | None:
    """Parse an exact fraction of at least 0 as text; None for null."""
    if value is None:
        return None
    parts = _FRACTION.fullmatch(text(value))
    if parts is None:
        raise InputError(f"{abbreviated(value)} is no fraction")
    return Fraction(int(parts[1]), int(parts[2] or 1))


def in_ticks(bound: Fraction | None, pipeline: Pipeline) -> int | None:
    """A stored bound in ticks of a pipeline, rounded up: values are whole."""
    return None if bound is None else ceil(bound * pipeline.grid.time)


def _schedule(native: object, job: SolveJob) -> Schedule:
    """Schedule on the pipeline of the job, verified with its claims."""
    schedule, claims = schedule_json.schedule_from_object(native, job.fixed_pipeline)
    pipeline = job.resolved_pipeline(schedule.pipeline)
    limited = job.limited
    if instance_of(pipeline, limited=limited) != instance_of(schedule.pipeline, limited=limited):
        raise InputError("it is of another pipeline")
    schedule = replace(
        schedule, pipeline=pipeline, origin=replace(schedule.origin, from_file=False)
    )
    _verified(schedule, claims, enforce_limit=job.searched)
    return schedule


def _verified(schedule: Schedule, claims: dict[str, Any], *, enforce_limit: bool) -> None:
    """Raise InputError if a schedule or a claim is wrong."""
    violations = verify(schedule, claims, enforce_limit=enforce_limit)
    if violations:
        raise InputError(str(violations[0]))


def _check(status: Status, value: int | None, bound: int | None, job: SolveJob) -> None:
    """Raise InputError if status, value, bound and limit contradict each other."""
    with_schedule = status in (Status.OPTIMAL, Status.FEASIBLE)
    if with_schedule != (value is not None):
        raise InputError(f"it is {status} and has {'no ' * (value is None)}schedule")
    if status is Status.INFEASIBLE and job.pipeline.limits is None:
        raise InputError("it is infeasible, without a memory limit")
    if value is not None and bound is not None and bound > value:
        raise InputError(f"the bound {bound} is above the value {value}, in ticks")
    if status is Status.OPTIMAL and bound != value:
        raise InputError(f"it is optimal, its bound {bound} is not its value {value}, in ticks")


# Shown.


def row(job: SolveJob, result: Result) -> ScheduleFigures:
    """Figures of a result."""
    schedule = result.schedule
    return ScheduleFigures.of(
        schedule,
        job.pipeline if schedule is None else schedule.pipeline,
        strategy=job.strategy,
        status=result.status.value,
        objective=job.objective.value,
        value=plain_or_none(result.value),
        lower_bound=plain_or_none(result.lower_bound),
        gap=result.gap,
        proof=result.proof or None,
        mem_limit=limits(job.pipeline),
        backward_kind=job.backward_kind.value,
        seed=job.seed,
        workers=result.provenance.workers,
        time_limit=result.provenance.time_limit,
        solve_seconds=round(result.solve_seconds, 3),
    )
