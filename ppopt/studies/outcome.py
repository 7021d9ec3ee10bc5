"""What a job came to: made by a search or a strategy, stored, and read back.

Whatever is read back is checked again: the schedule is one of the pipeline that is asked for, the
verifier accepts it with its claims, and value, bound and status agree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any

from ppopt.errors import InputError
from ppopt.formats import figures, origin_json, schedule_json
from ppopt.formats.fields import section, shown, text, within
from ppopt.problem.exact import plain, plain_or_none
from ppopt.schedule.origin import Argument, Certificate
from ppopt.schedule.schedule import Schedule
from ppopt.solver.bound import Bound
from ppopt.solver.bounds.device_bounds import links_scope, proof_scope
from ppopt.solver.choices.search import ConfigurationSearch
from ppopt.solver.deadline import Callback, Deadline
from ppopt.solver.open_choices import choice_of
from ppopt.solver.options import checked_options, versions
from ppopt.solver.result import Provenance, Result, Status
from ppopt.solver.search import problem_of, search_from
from ppopt.solver.solve import solve
from ppopt.solver.warm_start import WarmStart
from ppopt.studies.best_choice import best_choice, is_open
from ppopt.studies.evaluate import objective_value
from ppopt.studies.job import SolveJob, instance_of, version
from ppopt.studies.records import StoredResult, damage, packed, unpacked
from ppopt.verifier import checked, verify

FIGURES = (
    *("makespan", "device_span", "bubble_rate", "bubble_overhead", "peak_memory", "mem_limit"),
    *("exposed", "fits_limit", "time_unit", "memory_unit"),
    *("tokens_per_second", "tokens_per_second_per_device", "mfu"),
)


SCHEMA = 1
"""Of the document in a stored result."""
_DOCUMENT = ("schema", "lower_bound", "proof", "certificate", "versions", "schedule")
_FRACTION = re.compile(r"([0-9]{1,40})(?:/([1-9][0-9]{0,39}))?")


@dataclass(frozen=True)
class JobOutcome:
    """A schedule or why there is none, with what is proved of it, and the effort it took."""

    status: Status
    schedule: Schedule | None
    lower_bound: Fraction | None
    """In the user's unit; None: nothing is claimed, or infeasible."""
    proof: str
    certificate: Certificate | None
    time_limit: float
    """Seconds that were given to it; those it took, where it was interrupted."""
    workers: int
    versions: dict[str, str]
    seconds: float
    interrupted: bool = False

    @property
    def value(self) -> Fraction | None:
        """Objective of the schedule in the user's unit; None without a schedule."""
        made = self.schedule
        if made is None:
            return None
        return objective_value(made, made.objective)

    @property
    def closed(self) -> bool:
        """Whether more effort cannot improve it."""
        if self.status in (Status.OPTIMAL, Status.INFEASIBLE):
            return True
        return self.schedule is not None and self.lower_bound in (None, self.value)

    def covers(self, job: SolveJob) -> bool:
        """Whether it is what the effort of a job would be spent for."""
        return self.closed or (self.time_limit >= job.time_limit and self.workers >= job.workers)

    def result(self, job: SolveJob) -> Result:
        """The result of a search, as the search itself would give it."""
        made = self.schedule
        result = Result(
            pipeline=job.pipeline if made is None else made.pipeline,
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
        if made is None:
            return result
        return replace(result, schedule=checked(replace(made, origin=result.origin())))


def of_result(result: Result) -> JobOutcome:
    """The outcome of a search."""
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
    known: JobOutcome | None = None,
    progress: Callback | None = None,
    began: float | None = None,
) -> JobOutcome:
    """Search or evaluate, from what an earlier outcome of less effort leaves open.

    The time limit of a search counts from `began` (of `time.monotonic`), or else from now. The
    outcome is never worse than the known one. Raises InputError where the job is no problem.
    """
    if not job.searched:
        return _evaluated(job.checked)
    outcome = of_result(_searched(job, known, progress, began))
    return outcome if known is None else _better(known, outcome)


def _searched(
    job: SolveJob, known: JobOutcome | None, progress: Callback | None, began: float | None
) -> Result:
    pipeline = job.pipeline
    if known is None or known.lower_bound is None:
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
    schedules = () if known.schedule is None else (known.schedule,)
    candidates = choice_of(problem, options.deadline)
    if candidates is not None:
        return ConfigurationSearch(
            candidates, problem, options, known=schedules, least=known.lower_bound
        ).run()
    ticks = ceil(known.lower_bound * pipeline.ticks.per_unit)
    proof = known.proof.removesuffix(links_scope(problem)).removesuffix(proof_scope(problem))
    start = WarmStart(
        schedules=schedules,
        bound=Bound(ticks, proof, known.certificate or Certificate(Argument.SEARCH)),
    )
    return search_from(start, problem, options)


def _better(old: JobOutcome, new: JobOutcome) -> JobOutcome:
    """The better schedule and the better bound of two outcomes of one job.

    Of equal bounds the old one is kept: where it was handed in, the new one repeats it.
    """
    found = new
    if old.value is not None and (new.value is None or old.value < new.value):
        found = replace(found, schedule=old.schedule, status=Status.FEASIBLE)
    if (
        new.status is not Status.INFEASIBLE
        and old.lower_bound is not None
        and (new.lower_bound is None or old.lower_bound >= new.lower_bound)
    ):
        found = replace(
            found, lower_bound=old.lower_bound, proof=old.proof, certificate=old.certificate
        )
    if found.value is not None and found.value == found.lower_bound:
        found = replace(found, status=Status.OPTIMAL)
    return replace(
        found,
        time_limit=max(old.time_limit, new.time_limit),
        workers=max(old.workers, new.workers),
        seconds=old.seconds + new.seconds,
    )


def _evaluated(job: SolveJob) -> JobOutcome:
    time, pipeline, limit = Deadline.after(), job.pipeline, job.time_limit
    choice = best_choice(pipeline, job.strategy, job.objective, job.options, time_limit=limit)
    interrupted, bound = choice.interrupted, None
    if is_open(pipeline) and not choice.proved:
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
    """An outcome as it is stored: JSON, compressed; the schedule in its native form."""
    bound, certificate, made = outcome.lower_bound, outcome.certificate, outcome.schedule
    document = {
        "schema": SCHEMA,
        "lower_bound": None if bound is None else str(bound),
        "proof": outcome.proof,
        "certificate": certificate and origin_json.certificate_to_object(certificate),
        "versions": outcome.versions,
        "schedule": None if made is None else schedule_json.schedule_to_object(made),
    }
    return StoredResult(
        key=job.key,
        strategy=job.strategy,
        status=outcome.status,
        closed=outcome.closed,
        time_limit=outcome.time_limit,
        workers=outcome.workers,
        seconds=outcome.seconds,
        version=version(),
        record=packed(document),
    )


def read(found: StoredResult, job: SolveJob) -> JobOutcome:
    """Read a stored outcome of a job and check it again; raises DamagedError where it is wrong."""
    with damage("a stored result"):
        document = _document(found)
        native, certificate = document["schedule"], document["certificate"]
        outcome = JobOutcome(
            status=Status(found.status),
            schedule=None if native is None else _schedule(native, job),
            lower_bound=within("lower_bound", _bound, document["lower_bound"]),
            proof=within("proof", text, document["proof"]),
            certificate=None
            if certificate is None
            else within("certificate", origin_json.certificate_from_object, certificate),
            time_limit=found.time_limit or 0.0,
            workers=found.workers or 1,
            versions=within("versions", origin_json.versions_from_object, document["versions"]),
            seconds=found.seconds,
        )
        _check(outcome, job)
    return outcome


def schedule_of(found: StoredResult, limits: list[float] | None) -> Schedule | None:
    """The schedule of a stored outcome on the pipeline it was made for, verified with its claims.

    Memory limits, one per device, are shown and not enforced: a hand strategy is not held to them.
    Raises DamagedError where it is wrong.
    """
    with damage("a stored result"):
        native = _document(found)["schedule"]
        if native is None:
            return None
        made, claims = schedule_json.schedule_from_object(native)
        _verified(made, claims, enforce_limit=False)
        pipeline = replace(made.pipeline, mem_limit=limits)
    return replace(made, pipeline=pipeline, origin=replace(made.origin, from_file=False))


def _document(found: StoredResult) -> dict[str, Any]:
    document = section(unpacked(found.record), _DOCUMENT)
    if document["schema"] != SCHEMA:
        raise InputError(f"schema: {shown(document['schema'])} is not {SCHEMA}")
    return document


def _bound(value: object) -> Fraction | None:
    """A bound in the user's unit, exactly: the text of a fraction."""
    if value is None:
        return None
    parts = _FRACTION.fullmatch(text(value))
    if parts is None:
        raise InputError(f"{shown(value)} is no bound")
    return Fraction(int(parts[1]), int(parts[2] or 1))


def _schedule(native: object, job: SolveJob) -> Schedule:
    """The schedule on the pipeline that is asked for, verified with its claims."""
    made, claims = schedule_json.schedule_from_object(native, job.given)
    asked = job.settled(made.pipeline)
    limited = job.limited
    if instance_of(asked, limited=limited) != instance_of(made.pipeline, limited=limited):
        raise InputError("it is of another pipeline")
    made = replace(made, pipeline=asked, origin=replace(made.origin, from_file=False))
    _verified(made, claims, enforce_limit=job.searched)
    return made


def _verified(made: Schedule, claims: dict[str, Any], *, enforce_limit: bool) -> None:
    """Raise InputError where a schedule or a claim is wrong."""
    violations = verify(made, claims, enforce_limit=enforce_limit)
    if violations:
        raise InputError(str(violations[0]))


def _check(outcome: JobOutcome, job: SolveJob) -> None:
    """Raise InputError where status, value, bound and limit contradict each other."""
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


def row(job: SolveJob, outcome: JobOutcome) -> dict[str, Any]:
    """The figures of an outcome, under the keys of `ppopt solve --json`, without the schedule."""
    made, value, bound = outcome.schedule, outcome.value, outcome.lower_bound
    found = {} if made is None else figures.of_schedule(made)
    pipeline = job.pipeline if made is None else made.pipeline
    shown = {key: found.get(key) for key in FIGURES}
    limits = {"mem_limit": figures.limits(job.pipeline), **figures.unit_names(job.pipeline)}
    gap = None
    if value is not None and bound is not None:
        gap = plain((value - bound) / value) if value else 0
    return {
        "strategy": job.strategy,
        "status": outcome.status.value,
        "objective": job.objective.value,
        "value": plain_or_none(value),
        "lower_bound": plain_or_none(bound),
        "gap": gap,
        "proof": outcome.proof or None,
        **shown,
        **limits,
        **figures.placed(pipeline),
        "backward_kind": job.backward_kind.value,
        "seed": job.seed,
        "workers": outcome.workers,
        "time_limit": outcome.time_limit,
        "solve_seconds": round(outcome.seconds, 3),
    }
