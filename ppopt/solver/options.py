"""User options of a search: time, workers, seed and tuning constants."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from ppopt import processors
from ppopt.solver.deadline import NO_DEADLINE, Callback, Deadline, Stop
from ppopt.solver.parameters import SolveParams
from ppopt.solver.result import Provenance
from ppopt.versions import versions

TIME_LIMIT = 60.0
"""Default time limit of a search, in seconds."""


@dataclass(frozen=True)
class SolveOptions:
    """Options that all searches of one request share; only their deadlines differ."""

    deadline: Deadline = NO_DEADLINE
    workers: int = 1
    seed: int = 0
    params: SolveParams = SolveParams()
    time_limit: float = inf
    """Seconds that the request allows; a search that is part of it has a shorter deadline."""

    @property
    def provenance(self) -> Provenance:
        """Settings and versions that reproduce the request."""
        return Provenance(self.seed, self.workers, self.time_limit, versions())

    def with_deadline(self, deadline: Deadline) -> SolveOptions:
        """Return the options with another deadline."""
        return replace(self, deadline=deadline)

    def with_max_rounds(self, max_rounds: int | None) -> SolveOptions:
        """Return the options with at most `max_rounds` rounds of all methods; None: any number."""
        rounds = self.params.rounds._replace(max_rounds=max_rounds)
        return replace(self, params=replace(self.params, rounds=rounds))


def checked_options(
    time_limit: float,
    workers: int | None = None,
    seed: int = 0,
    *,
    progress: Callback | None = None,
    stop: Stop | None = None,
    params: SolveParams = SolveParams(),
    began: float | None = None,
) -> SolveOptions:
    """Return the options of a request; raises InputError if one is out of its range.

    The time limit counts from `began` (of `time.monotonic`), or else from now.
    """
    workers = processors.checked_workers(time_limit, workers, seed)
    deadline = Deadline.after(time_limit, began, progress, stop)
    return SolveOptions(deadline, workers, seed, params, time_limit)
