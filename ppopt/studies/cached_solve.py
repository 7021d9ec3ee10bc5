"""A search whose result is kept in a storage, and taken from there."""

from __future__ import annotations

from typing import NamedTuple

from ppopt.solver.deadline import Callback
from ppopt.solver.result import Result
from ppopt.studies import outcome
from ppopt.studies.job import SolveJob
from ppopt.studies.outcome import JobOutcome
from ppopt.studies.records import DamagedError
from ppopt.studies.storage import Storage, StorageError


class StoredSolve(NamedTuple):
    """A result, and what the storage had to do with it."""

    result: Result
    cached: bool
    """Whether it was in the storage."""
    damaged: str | None
    """Why what was stored could not be used."""
    not_stored: str | None
    """Why it could not be stored."""


def solve_stored(
    job: SolveJob,
    storage: Storage,
    progress: Callback | None = None,
    began: float | None = None,
) -> StoredSolve:
    """Take the result of a search from the storage, or search and store it.

    Its time limit counts from `began` (of `time.monotonic`), or else from now. What is stored is
    verified again. Where it was given less effort, the search goes on from it. Raises InputError on
    misuse, and where the storage cannot be read.
    """
    known, damaged = _known(job, storage)
    if known is not None and known.covers(job):
        return StoredSolve(known.result(job), cached=True, damaged=None, not_stored=None)
    found = outcome.run_job(job, known, progress, began)
    not_stored = None
    try:
        storage.put(outcome.stored(job, found))
    except StorageError as error:
        not_stored = str(error)
    return StoredSolve(found.result(job), cached=False, damaged=damaged, not_stored=not_stored)


def _known(job: SolveJob, storage: Storage) -> tuple[JobOutcome | None, str | None]:
    try:
        stored = storage.result(job.key)
        return stored and outcome.read(stored, job), None
    except DamagedError as error:
        return None, str(error)
