"""User options of a search: time, workers, seed and tuning constants."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from math import inf

from ppopt import processors
from ppopt.cancellation import Scope, seconds_left
from ppopt.solver.deadline import NO_DEADLINE, Deadline
from ppopt.solver.parameters import SolveParams
from ppopt.solver.result import Callback, Provenance, Stop
from ppopt.versions import versions

TIME_LIMIT = 60.0
"""Default time limit of a search, in seconds."""
MIN_SECONDS = 0.01
"""Time limit of a search for which no time is left: it still has a first schedule and a bound."""


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

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return self.deadline.spent

    def scope(self) -> AbstractContextManager[Scope]:
        """Limit the work of a block to the time of the request; see `ppopt.cancellation`."""
        return self.deadline.scope()

    @property
    def stop(self) -> Stop | None:
        """Stop criterion of the caller (`ppopt.stop`)."""
        return self.deadline.stop

    @property
    def tell(self) -> Callable[..., None]:
        """Report the phase of the work, perhaps with its value and bound in the user's unit."""
        return self.deadline.tell

    def in_scope(self, progress: Callback | None = None, stop: Stop | None = None) -> SolveOptions:
        """Options of a search for the time left in the enclosing scopes."""
        seconds = max(MIN_SECONDS, seconds_left())
        return self.with_deadline(Deadline.after(seconds, progress=progress, stop=stop))

    def with_deadline(self, deadline: Deadline) -> SolveOptions:
        """Return the options with another deadline."""
        return replace(self, deadline=deadline)

    def with_max_rounds(self, max_rounds: int | None) -> SolveOptions:
        """Return the options with at most `max_rounds` rounds of all methods; None: any number."""
        rounds = self.params.rounds._replace(max_rounds=max_rounds)
        return replace(self, params=replace(self.params, rounds=rounds))

    def without(self, methods: Iterable[str]) -> SolveOptions:
        """Return the options with further methods left out."""
        without = self.params.without.union(methods)
        return replace(self, params=replace(self.params, without=without))


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
