"""User options of a search: time, workers, seed and tuning constants."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import inf

from ppopt import processors
from ppopt.cancellation import Item, Scope, equal_part, part, scope, seconds_left
from ppopt.solver.parameters import SolveParams
from ppopt.solver.result import Callback, Progress, Provenance, Stop
from ppopt.versions import versions

TIME_LIMIT = 60.0
"""Default time limit of a search, in seconds."""
USUAL_START = 1.0
"""Seconds in which a program usually starts and reads its input; a slow machine needs more."""
_report_seconds: ContextVar[float] = ContextVar("report_seconds", default=0.7)
"""Seconds that results and reports usually take."""
MIN_SECONDS = 0.01
"""Time limit of a search for which no time is left: it still has a first schedule and a bound."""


@dataclass(frozen=True)
class SolveOptions:
    """Options that all searches of one request share; only their times differ."""

    began: float = 0.0
    """Instant of `time.monotonic` from which the seconds count."""
    seconds: float = inf
    """Seconds of the search."""
    workers: int = 1
    seed: int = 0
    params: SolveParams = SolveParams()
    time_limit: float = inf
    """Seconds that the request allows; a search that is part of it has fewer."""
    progress: Callback | None = None
    """Called with the state of the work."""
    stop: Stop | None = None
    """Stop criterion of the caller (`ppopt.stop`): whether the work ends now."""

    @property
    def provenance(self) -> Provenance:
        """Settings and versions that reproduce the request."""
        return Provenance(self.seed, self.workers, self.time_limit, versions())

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    @property
    def end(self) -> float:
        """Instant of `time.monotonic` at which time is up."""
        return self.began + self.seconds

    def scope(self) -> AbstractContextManager[Scope]:
        """Limit the work of a block to the time of the search; see `ppopt.cancellation`."""
        return scope(self.end)

    def announce(self, state: Progress) -> None:
        """Report the state of the work."""
        if self.progress is not None:
            self.progress(state)

    def tell(self, phase: str) -> None:
        """Report the phase of work that has no value and no bound."""
        self.announce(Progress(self.spent, phase, None, 0, 1))

    def in_scope(self, progress: Callback | None = None, stop: Stop | None = None) -> SolveOptions:
        """Options of a search for the time left in the enclosing scopes."""
        seconds = max(MIN_SECONDS, seconds_left())
        return replace(self, began=time.monotonic(), seconds=seconds, progress=progress, stop=stop)

    def turns(self, work: Sequence[Item]) -> Iterator[tuple[Item, SolveOptions]]:
        """Pieces of work, each with options for an equal part of the time left at its turn."""
        for waiting, item in zip(reversed(range(len(work))), work, strict=True):
            with self.scope(), part(equal_part(waiting)):
                own = self.in_scope(self.progress, self.stop)
            yield item, own

    @property
    def detached(self) -> SolveOptions:
        """Options for another process: without time limit and callbacks."""
        return replace(self, began=0.0, seconds=inf, progress=None, stop=None)

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

    The time limit counts from `began` (of `time.monotonic`), or else from now. If the program
    started slowly, the search ends earlier, because its reports (`reporting`) will be slow, too.
    """
    workers = processors.checked_workers(time_limit, workers, seed)
    began = time.monotonic() if began is None else began
    options = SolveOptions(began, time_limit, workers, seed, params, time_limit, progress, stop)
    spent = options.spent
    reserved = min(_report_seconds.get() * (spent / USUAL_START - 1), (time_limit - spent) / 2)
    return replace(options, seconds=time_limit - max(0.0, reserved))


@contextmanager
def reporting(seconds: float) -> Iterator[None]:
    """A block whose requests reserve time for reports that usually take so many seconds."""
    outer = _report_seconds.set(seconds)
    try:
        yield
    finally:
        _report_seconds.reset(outer)
