"""A task: one row of a sweep as it is handed to a process, and what comes back."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from ppopt.errors import InputError, NotApplicableError, VerificationError
from ppopt.studies import outcome
from ppopt.studies.job import SolveJob
from ppopt.studies.outcome import JobOutcome
from ppopt.studies.records import DamagedError, StoredResult

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task:
    """A job, and what is stored of it."""

    job: SolveJob
    stored: StoredResult | None = None


@dataclass(frozen=True)
class Done:
    """A task that has ended: its figures, or why it failed."""

    row: dict[str, Any] | None = None
    """Figures; see `ppopt.studies.outcome.row`."""
    result: StoredResult | None = None
    """What is to be stored; None where it was stored before, and where the task failed."""
    failed: str | None = None
    """Why there are no figures, in one line."""
    damaged: str | None = None
    """Why what was stored could not be used, in one line."""
    interrupted: bool = False


def perform(task: Task) -> Done:
    """Do a task: read what is stored of it and check that, else search or evaluate."""
    job = task.job
    known, damaged = _known(task)
    if known is not None and known.covers(job):
        return Done(outcome.row(job, known))
    try:
        found = outcome.run_job(job, known)
    except (InputError, NotApplicableError, VerificationError) as error:
        return Done(failed=" ".join(str(error).split()), damaged=damaged)
    shown, result = outcome.row(job, found), outcome.stored(job, found)
    return Done(shown, result, damaged=damaged, interrupted=found.interrupted)


def _known(task: Task) -> tuple[JobOutcome | None, str | None]:
    """What is stored, checked; or why it is not used."""
    if task.stored is None:
        return None, None
    try:
        return outcome.read(task.stored, task.job), None
    except DamagedError as error:
        _LOG.warning("%s: %s", task.job.key, error)
        return None, " ".join(str(error).split())
