"""The time of a search, and the shares of it that methods get."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from ppopt.solver.incumbent import Incumbent


@dataclass(frozen=True)
class Limits:
    """How long and how wide to search."""

    seconds: float
    workers: int
    seed: int
    work: float = inf
    """The same in CP-SAT's deterministic units, near to seconds: what one worker does within
    them does not depend on how fast the machine is."""
    presolve: bool = True
    """Whether CP-SAT simplifies the model first: of a tight small one it takes most of the time."""
    focus: tuple[str, ...] = ()
    """CP-SAT's subsolvers to use, or to add where there are more workers; none: its own choice."""
    linear: bool = False
    """Whether CP-SAT solves linear relaxations too."""
    enough: Callable[[], bool] = lambda: False
    """Asked now and then whether to stop before."""

    def turned(self, turn: int) -> Limits:
        """The same with another seed: what one is unlucky with, the next may not be."""
        return replace(self, seed=(self.seed + turn) % 2**31)


class Clock:
    """The time limit of a search, and whether it was interrupted."""

    def __init__(self, seconds: float, began: float | None = None) -> None:
        """Start now, or at an instant of `time.monotonic`."""
        self.began = time.monotonic() if began is None else began
        self.seconds = seconds
        self.interrupted = False
        self.stopped: Callable[[], bool] = lambda: False
        """The caller's stop criterion."""
        self.poll: Callable[[], None] = lambda: None
        """Called at every stop check: takes what another process has found."""

    @property
    def deadline(self) -> float:
        """The instant of `time.monotonic` at which time is up."""
        return self.began + self.seconds

    @property
    def left(self) -> float:
        """Seconds left; 0 after an interruption."""
        return 0.0 if self.interrupted else self.deadline - time.monotonic()

    @property
    def over(self) -> bool:
        """Whether time is up, or the search was interrupted or stopped."""
        self.poll()
        return self.left <= 0 or self.stopped()


class Budget:
    """A share of a search's time.

    With several workers CP-SAT does not repeat itself and the clock rules. With one, shares are in
    CP-SAT's deterministic units and in steps of local search, and the clock ends only the search
    as a whole: a run that ends by proof leads to the same schedule on a slow machine.
    """

    def __init__(
        self, incumbent: Incumbent, clock: Clock, workers: int, seed: int, seconds: float = inf
    ) -> None:
        """Share so many seconds of the time left, or with one worker so many units of work."""
        self.incumbent = incumbent
        self.clock = clock
        self.workers = workers
        self.seed = seed
        self.by_clock = workers > 1
        self.seconds = min(seconds, clock.left) if self.by_clock else seconds
        self.spent = 0.0
        """Deterministic units used; not counted where the clock rules."""
        self._until = time.monotonic() + self.seconds if self.by_clock else inf

    @property
    def search_over(self) -> bool:
        """Whether the search ends here: closed, out of time, stopped, or interrupted."""
        return self.clock.over or self.incumbent.closed

    @property
    def over(self) -> bool:
        """Whether the share is used up, or the search is over."""
        return self.search_over or self.left <= 0

    @property
    def left(self) -> float:
        """Seconds, or deterministic units, left of the share."""
        if self.by_clock:
            return min(self._until - time.monotonic(), self.clock.left)
        return self.seconds - self.spent

    def limits(self, part: float = 1.0, focus: tuple[str, ...] = ()) -> Limits:
        """Limits of one run of CP-SAT: at most this part of the whole share."""
        most = min(self.left, part * self.seconds)
        if self.by_clock:
            return Limits(
                most, self.workers, self.seed, focus=focus, enough=lambda: self.search_over
            )
        return Limits(self.clock.left, self.workers, self.seed, work=most, focus=focus)

    def alone(self, seconds: float, work: float, seed: int) -> Limits:
        """Limits of one small run by one worker: seconds count only where the clock rules."""
        limits = self.limits()
        return replace(
            limits,
            seconds=min(limits.seconds, seconds) if self.by_clock else limits.seconds,
            workers=1,
            work=min(limits.work, work),
            seed=seed,
        )

    def part(self, share: float) -> Budget:
        """At most this part of the whole share; what it spends is to be paid here."""
        seconds = min(self.left, share * self.seconds)
        return Budget(self.incumbent, self.clock, self.workers, self.seed, seconds)

    def pay(self, work: float, *, interrupted: bool = False) -> None:
        """Count what a run of CP-SAT has used; note where Ctrl-C ended it."""
        self.spent += work
        self.clock.interrupted |= interrupted
