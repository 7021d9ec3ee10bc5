"""A search whose result is read from a storage, or else computed and stored."""

from __future__ import annotations

from typing import NamedTuple

from ppopt.solver.deadline import Callback
from ppopt.solver.result import Result
from ppopt.studies import outcome
from ppopt.studies.job import SolveJob
from ppopt.studies.records import DamagedError
from ppopt.studies.storage import Storage, StorageError


class StoredSolve(NamedTuple):
    """A result, and whether it was cached, damaged or not stored."""

    result: Result
    cached: bool
    """Whether the result was in the storage."""
    damaged: str | None
    """Why the stored result could not be used; None if there was none, or it was used."""
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
    stored_outcome, damaged = _stored_outcome(job, storage)
    if stored_outcome is not None and outcome.covers(stored_outcome, job):
        return StoredSolve(
            outcome.with_origin(stored_outcome), cached=True, damaged=None, not_stored=None
        )
    new_outcome = outcome.run_job(job, stored_outcome, progress, began)
    not_stored = None
    try:
        storage.put(outcome.stored(job, new_outcome))
    except StorageError as error:
        not_stored = str(error)
    return StoredSolve(
        outcome.with_origin(new_outcome), cached=False, damaged=damaged, not_stored=not_stored
    )


def _stored_outcome(job: SolveJob, storage: Storage) -> tuple[Result | None, str | None]:
    try:
        stored = storage.result(job.key)
        return stored and outcome.read(stored, job), None
    except DamagedError as error:
        return None, str(error)
