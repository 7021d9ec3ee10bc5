"""How many processors this process may use, and the options of a run on them."""

from __future__ import annotations

import os
import sys

from ppopt.errors import InputError

MAX_WORKERS = 1024


def available() -> int:
    """Processors that the system grants this process; if it does not say, those there are."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def checked_workers(time_limit: float, workers: int | None, seed: int) -> int:
    """Number of workers of a run, by default the processors available.

    Raises InputError if the number, the time limit in seconds or the seed is out of its range.
    """
    workers = available() if workers is None else workers
    if not 0 < time_limit < float("inf"):
        raise InputError(f"time_limit: {time_limit} is not above 0 seconds, or not finite")
    if not 1 <= workers <= MAX_WORKERS:
        raise InputError(f"workers: {workers} is not between 1 and {MAX_WORKERS}")
    if not 0 <= seed < 2**31:
        raise InputError(f"seed: {seed} is not between 0 and 2^31 - 1")
    return workers
