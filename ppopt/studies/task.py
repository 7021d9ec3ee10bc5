"""A row of a sweep as a unit of work, and one stored search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ppopt import interrupts
from ppopt.errors import InputError, NotApplicableError, VerificationError
from ppopt.formats.figures import ScheduleFigures
from ppopt.solver.engines.engine import ALONE, Done, Link
from ppopt.solver.result import Callback, Result
from ppopt.studies import outcome
from ppopt.studies.records import StoredResult, one_line
from ppopt.studies.solve_job import SolveJob
from ppopt.studies.storage import Storage, StorageError


@dataclass(frozen=True)
class SweepDone(Done):
    """The outcome of a row: figures, or why it failed."""

    row: ScheduleFigures | None = None
    result: StoredResult | None = None
    """Result to store; None if it was stored before, and if the task failed."""
    damaged: str | None = None
    """Why the stored result could not be used, in one line."""


@dataclass(frozen=True)
class SweepTask:
    """A job, and its stored result, if there is one."""

    job: SolveJob
    stored: StoredResult | None = None

    @property
    def workers(self) -> int:
        """Number of processors that the job uses."""
        return self.job.workers

    def perform(self, _: Link = ALONE) -> SweepDone:
        """Reuse the stored result if it is sound and enough, else search or evaluate.

        After Ctrl-C there is no result.
        """
        if interrupts.pressed():
            return SweepDone(interrupted=True)
        job, damaged = self.job, list[str]()
        try:
            result, cached = outcome.reused_or_run(job, self.stored, damaged)
        except (InputError, NotApplicableError, VerificationError) as error:
            return SweepDone(failed=one_line(error), damaged=next(iter(damaged), None))
        stored = None if cached else outcome.stored(job, result)
        return SweepDone(
            row=outcome.row(job, result),
            result=stored,
            damaged=next(iter(damaged), None),
            interrupted=result.interrupted and not cached,
        )


class StoredSolve(NamedTuple):
    """A result, and whether it was cached, damaged or not stored."""

    result: Result
    cached: bool
    """Whether the result was in the storage."""
    damaged: tuple[str, ...]
    """Why the stored result could not be used; empty if there was none, or it was used."""
    not_stored: str | None
    """Why the result could not be stored; None if it was stored, or read from the storage."""


def solve_stored(
    job: SolveJob,
    storage: Storage,
    progress: Callback | None = None,
    began: float | None = None,
) -> StoredSolve:
    """Read the result of a search from the storage, or search and store it.

    The time limit counts from `began` (of `time.monotonic`), or else from now. A stored result is
    verified again. If it had less effort than the job, the search continues from it. Raises
    InputError on misuse, and if the storage cannot be read.
    """
    damaged: list[str] = []
    stored, not_stored = storage.sound_result(job.key, damaged), None
    result, cached = outcome.reused_or_run(job, stored, damaged, progress, began)
    try:
        if not cached:
            storage.put(outcome.stored(job, result))
    except StorageError as error:
        not_stored = str(error)
    return StoredSolve(outcome.with_origin(result), cached, tuple(damaged), not_stored)
