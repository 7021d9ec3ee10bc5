"""The outcome of a job: computes it, stores it, and validates a stored one.

A stored outcome is checked when it is read: its schedule has the pipeline of the job, the verifier
accepts it with its claims, and value, bound and status agree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any, NamedTuple

from ppopt.errors import InputError
from ppopt.formats import origin_json, schedule_json
from ppopt.formats.fields import section, shown, text, within
from ppopt.formats.figures import ScheduleFigures, limits
from ppopt.problem.exact import plain, plain_or_none
from ppopt.schedule.origin import Argument, Certificate
from ppopt.schedule.schedule import Schedule
from ppopt.solver.bound import Bound
from ppopt.solver.bounds.proof_scope import delay_scope, proof_scope
from ppopt.solver.choices.search import ConfigurationSearch
from ppopt.solver.deadline import Callback, Deadline
from ppopt.solver.open_choices import choice_of
from ppopt.solver.options import checked_options, versions
from ppopt.solver.result import Provenance, Result, Status
from ppopt.solver.search import problem_of, search_from
from ppopt.solver.solve import solve
from ppopt.solver.warm_start import WarmStart
from ppopt.studies.best_choice import best_choice, has_open_choices
from ppopt.studies.evaluate import objective_value
from ppopt.studies.job import SolveJob, instance_of, version
from ppopt.studies.records import StoredResult, damage, packed, unpacked
from ppopt.verifier import checked, verify

SCHEMA = 1
"""Version of the document in a stored result."""
PLAN = "plan"
"""Key of a document that holds a plan beside its best schedule; see `ppopt.studies.plan_record`."""
DOCUMENT = ("schema", "lower_bound", "proof", "certificate", "versions", "schedule")
_FRACTION = re.compile(r"([0-9]{1,40})(?:/([1-9][0-9]{0,39}))?")


@dataclass(frozen=True)
class JobOutcome:
    """Outcome of a job: schedule, bound and proof, or why there is no schedule, and the effort."""

    status: Status
    schedule: Schedule | None
    lower_bound: Fraction | None
    """Lower bound in the user's unit; None: nothing is claimed, or infeasible."""
    proof: str
    certificate: Certificate | None
    time_limit: float
    """Time limit in seconds; if interrupted, the seconds that the job took."""
    workers: int
    versions: dict[str, str]
    seconds: float
    interrupted: bool = False

    @property
    def value(self) -> Fraction | None:
        """Objective of the schedule in the user's unit; None without a schedule."""
        schedule = self.schedule
        if schedule is None:
            return None
        return objective_value(schedule, schedule.objective)

    @property
    def closed(self) -> bool:
        """Whether more effort cannot improve the outcome."""
        if self.status in (Status.OPTIMAL, Status.INFEASIBLE):
            return True
        return self.schedule is not None and self.lower_bound in (None, self.value)

    def covers(self, job: SolveJob) -> bool:
        """Whether the outcome makes running a job unnecessary.

        It is closed, or had at least the time limit and the workers of the job.
        """
        return self.closed or (self.time_limit >= job.time_limit and self.workers >= job.workers)

    def result(self, job: SolveJob) -> Result:
        """Result of a search, as the search itself would return it."""
        schedule = self.schedule
        result = Result(
            pipeline=job.pipeline if schedule is None else schedule.pipeline,
            objective=job.objective,
            backward_kind=job.backward_kind,
            status=self.status,
            schedule=None,
            value=self.value,
            lower_bound=self.lower_bound,
            proof=self.proof,
            certificate=self.certificate or Certificate(Argument.SEARCH),
            provenance=Provenance(job.seed, self.workers, self.time_limit, self.versions),
            solve_seconds=self.seconds,
            interrupted=self.interrupted,
        )
        if schedule is None:
            return result
        return replace(result, schedule=checked(replace(schedule, origin=result.origin())))


def of_result(result: Result) -> JobOutcome:
    """Outcome of a search."""
    limit = result.provenance.time_limit
    return JobOutcome(
        status=result.status,
        schedule=result.schedule,
        lower_bound=result.lower_bound,
        proof=result.proof,
        certificate=result.certificate,
        time_limit=min(limit, result.solve_seconds) if result.interrupted else limit,
        workers=result.provenance.workers,
        versions=result.provenance.versions,
        seconds=result.solve_seconds,
        interrupted=result.interrupted,
    )


def run_job(
    job: SolveJob,
    earlier: JobOutcome | None = None,
    progress: Callback | None = None,
    began: float | None = None,
) -> JobOutcome:
    """Search or evaluate, continuing from an earlier outcome of less effort.

    The time limit of a search counts from `began` (of `time.monotonic`), or else from now. The
    outcome is never worse than `earlier`. Raises InputError if the job cannot be run.
    """
    if not job.searched:
        return _evaluated(job.checked)
    outcome = of_result(_searched(job, earlier, progress, began))
    return outcome if earlier is None else _better(earlier, outcome)


def _searched(
    job: SolveJob, earlier: JobOutcome | None, progress: Callback | None, began: float | None
) -> Result:
    pipeline = job.pipeline
    if earlier is None or earlier.lower_bound is None:
        return solve(
            pipeline,
            objective=job.objective,
            backward_kind=job.backward_kind,
            time_limit=job.time_limit,
            workers=job.workers,
            seed=job.seed,
            progress=progress,
            began=began,
        )
    problem = problem_of(pipeline, job.objective, job.backward_kind)
    options = checked_options(job.time_limit, job.workers, job.seed, progress=progress, began=began)
    schedules = () if earlier.schedule is None else (earlier.schedule,)
    candidates = choice_of(problem, options.deadline)
    if candidates is not None:
        return ConfigurationSearch(
            candidates, problem, options, start_schedules=schedules, lower_bound=earlier.lower_bound
        ).run()
    ticks = ceil(earlier.lower_bound * pipeline.ticks.per_unit)
    proof = earlier.proof.removesuffix(delay_scope(problem)).removesuffix(proof_scope(problem))
    start = WarmStart(
        schedules=schedules,
        bound=Bound(ticks, proof, earlier.certificate or Certificate(Argument.SEARCH)),
    )
    return search_from(start, problem, options)


def _better(old: JobOutcome, new: JobOutcome) -> JobOutcome:
    """Combine the better schedule and the better bound of two outcomes of one job.

    Of equal bounds the old one is kept: a search that starts from a bound repeats it. The time
    limit and the workers are those of the run that had more of both together.
    """
    better = new
    if old.value is not None and (new.value is None or old.value < new.value):
        better = replace(better, schedule=old.schedule, status=Status.FEASIBLE)
    if (
        new.status is not Status.INFEASIBLE
        and old.lower_bound is not None
        and (new.lower_bound is None or old.lower_bound >= new.lower_bound)
    ):
        better = replace(
            better, lower_bound=old.lower_bound, proof=old.proof, certificate=old.certificate
        )
    if better.value is not None and better.value == better.lower_bound:
        better = replace(better, status=Status.OPTIMAL)
    longer = max(old, new, key=lambda outcome: outcome.time_limit * outcome.workers)
    return replace(
        better,
        time_limit=longer.time_limit,
        workers=longer.workers,
        seconds=old.seconds + new.seconds,
    )


def _evaluated(job: SolveJob) -> JobOutcome:
    time, pipeline, limit = Deadline.after(), job.pipeline, job.time_limit
    choice = best_choice(pipeline, job.strategy, job.objective, job.options, time_limit=limit)
    interrupted, bound = choice.interrupted, None
    if has_open_choices(pipeline) and not choice.proved:
        bound = choice.lower_bound or Fraction(0)
    seconds = time.spent
    return JobOutcome(
        status=Status.FEASIBLE,
        schedule=choice.schedule,
        lower_bound=bound,
        proof="",
        certificate=None,
        time_limit=min(limit, seconds) if interrupted else limit,
        workers=1,
        versions=versions(),
        seconds=seconds,
        interrupted=interrupted,
    )


# Stored, and read back.


def stored(job: SolveJob, outcome: JobOutcome) -> StoredResult:
    """Stored form of an outcome: compressed JSON."""
    return StoredResult(
        key=job.key,
        strategy=job.strategy,
        status=outcome.status,
        closed=outcome.closed,
        time_limit=outcome.time_limit,
        workers=outcome.workers,
        seconds=outcome.seconds,
        version=version(),
        record=packed(to_document(outcome)),
    )


def to_document(outcome: JobOutcome) -> dict[str, Any]:
    """Schedule in its native form, bound and proof of an outcome, as an object of JSON."""
    bound, certificate, schedule = outcome.lower_bound, outcome.certificate, outcome.schedule
    return {
        "schema": SCHEMA,
        "lower_bound": None if bound is None else str(bound),
        "proof": outcome.proof,
        "certificate": certificate and origin_json.certificate_to_object(certificate),
        "versions": outcome.versions,
        "schedule": None if schedule is None else schedule_json.schedule_to_object(schedule),
    }


def read(record: StoredResult, job: SolveJob) -> JobOutcome:
    """Read a stored outcome of a job and check it; raises DamagedError if it is wrong."""
    with damage("a stored result"):
        effort = Effort(
            record.status, record.time_limit or 0.0, record.workers or 1, record.seconds
        )
        return from_document(document(record), job, effort)


class Effort(NamedTuple):
    """What is stored of an outcome beside its document."""

    status: str
    time_limit: float
    workers: int
    seconds: float


def from_document(document: Mapping[str, Any], job: SolveJob, effort: Effort) -> JobOutcome:
    """Outcome of a job in a document of `to_document`; raises InputError if it is wrong."""
    native, certificate = document["schedule"], document["certificate"]
    outcome = JobOutcome(
        status=Status(effort.status),
        schedule=None if native is None else _schedule(native, job),
        lower_bound=within("lower_bound", fraction, document["lower_bound"]),
        proof=within("proof", text, document["proof"]),
        certificate=None
        if certificate is None
        else within("certificate", origin_json.certificate_from_object, certificate),
        time_limit=effort.time_limit,
        workers=effort.workers,
        versions=within("versions", origin_json.versions_from_object, document["versions"]),
        seconds=effort.seconds,
    )
    _check(outcome, job)
    return outcome


def schedule_of(record: StoredResult, mem_limit: Sequence[float] | None) -> Schedule | None:
    """Schedule of a stored outcome on the pipeline it was made for, verified with its claims.

    Memory limits, one per device, are recorded but not enforced: hand strategies may exceed them.
    Raises DamagedError if the record is wrong.
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
    """Object of JSON in a stored result; raises InputError if it is none."""
    document = section(unpacked(record.record), DOCUMENT, (PLAN,))
    if document["schema"] != SCHEMA:
        raise InputError(f"schema: {shown(document['schema'])} is not {SCHEMA}")
    return document


def fraction(value: object) -> Fraction | None:
    """Parse an exact fraction of at least 0 as text; None for null."""
    if value is None:
        return None
    parts = _FRACTION.fullmatch(text(value))
    if parts is None:
        raise InputError(f"{shown(value)} is no fraction")
    return Fraction(int(parts[1]), int(parts[2] or 1))


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


def _check(outcome: JobOutcome, job: SolveJob) -> None:
    """Raise InputError if status, value, bound and limit contradict each other."""
    value, bound, status = outcome.value, outcome.lower_bound, outcome.status
    with_schedule = status in (Status.OPTIMAL, Status.FEASIBLE)
    if with_schedule != (value is not None):
        raise InputError(f"it is {status} and has {'no ' * (value is None)}schedule")
    if status is Status.INFEASIBLE and job.pipeline.limits is None:
        raise InputError("it is infeasible, without a memory limit")
    if value is not None and bound is not None and bound > value:
        raise InputError(f"the bound {bound} is above the value {value}")
    if status is Status.OPTIMAL and bound != value:
        raise InputError(f"it is optimal, its bound {bound} is not its value {value}")


# Shown.


def row(job: SolveJob, outcome: JobOutcome) -> ScheduleFigures:
    """Figures of an outcome."""
    schedule, value, bound = outcome.schedule, outcome.value, outcome.lower_bound
    gap = None
    if value is not None and bound is not None:
        gap = plain((value - bound) / value) if value else 0
    return ScheduleFigures.of(
        schedule,
        job.pipeline if schedule is None else schedule.pipeline,
        strategy=job.strategy,
        status=outcome.status.value,
        objective=job.objective.value,
        value=plain_or_none(value),
        lower_bound=plain_or_none(bound),
        gap=gap,
        proof=outcome.proof or None,
        mem_limit=limits(job.pipeline),
        backward_kind=job.backward_kind.value,
        seed=job.seed,
        workers=outcome.workers,
        time_limit=outcome.time_limit,
        solve_seconds=round(outcome.seconds, 3),
    )
