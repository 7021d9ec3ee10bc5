"""Units of work for worker processes: their protocol, and the rows of a sweep."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from ppopt.errors import InputError, NotApplicableError, VerificationError
from ppopt.formats.figures import ScheduleFigures
from ppopt.solver.result import Result
from ppopt.studies import outcome
from ppopt.studies.job import SolveJob
from ppopt.studies.records import DamagedError, StoredResult

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Done:
    """The outcome of a task: figures, or why it failed."""

    row: ScheduleFigures | None = None
    result: StoredResult | None = None
    """Result to store; None if it was stored before, and if the task failed."""
    failed: str | None = None
    """Why there are no figures, in one line."""
    damaged: str | None = None
    """Why the stored result could not be used, in one line."""
    interrupted: bool = False


class Work(Protocol):
    """A unit of work that an engine runs, perhaps in another process."""

    @property
    def workers(self) -> int:
        """Number of processors that it uses."""

    @property
    def identity(self) -> str:
        """Text that is equal only for units of work with interchangeable results."""

    def perform(self) -> Done:
        """Run; raises nothing that is no bug."""


@dataclass(frozen=True)
class Task:
    """A job, and its stored result, if there is one."""

    job: SolveJob
    stored: StoredResult | None = None

    @property
    def workers(self) -> int:
        """Number of processors that the job uses."""
        return self.job.workers

    @property
    def identity(self) -> str:
        """Text of everything that the result depends on."""
        return repr((self.job.key, self.job, self.job.pipeline.spelled_out()))

    def perform(self) -> Done:
        """Perform the task; see `perform`."""
        return perform(self)


def perform(task: Task) -> Done:
    """Perform a task: reuse the stored outcome if it is sound, else search or evaluate."""
    job = task.job
    stored_outcome, damaged = _stored_outcome(task)
    if stored_outcome is not None and outcome.covers(stored_outcome, job):
        return Done(outcome.row(job, stored_outcome))
    try:
        new_outcome = outcome.run_job(job, stored_outcome)
    except (InputError, NotApplicableError, VerificationError) as error:
        return Done(failed=" ".join(str(error).split()), damaged=damaged)
    shown, result = outcome.row(job, new_outcome), outcome.stored(job, new_outcome)
    return Done(shown, result, damaged=damaged, interrupted=new_outcome.interrupted)


def _stored_outcome(task: Task) -> tuple[Result | None, str | None]:
    """Stored outcome, checked; or why it is not used."""
    if task.stored is None:
        return None, None
    try:
        return outcome.read(task.stored, task.job), None
    except DamagedError as error:
        _LOG.warning("%s: %s", task.job.key, error)
        return None, " ".join(str(error).split())
