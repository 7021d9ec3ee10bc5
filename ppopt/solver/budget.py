"""How a search shares out its time: by the clock, or by work that repeats itself."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from math import inf

from ppopt.solver.cp_sat.cpsat import Limits, Outcome
from ppopt.solver.incumbent import Search


@dataclass
class Budget:
    """A share of a search's time.

    With several workers CP-SAT does not repeat itself and the clock rules. With one, shares are in
    CP-SAT's deterministic units and in steps of local search, and the clock ends only the search
    as a whole: a run that ends by proof leads to the same schedule on a slow machine.
    """

    search: Search
    workers: int
    seed: int
    seconds: float
    spent: float = 0.0
    """Deterministic units used; by the clock: not counted."""
    until: float = inf
    """Instant at which the share ends, by the clock."""

    @classmethod
    def of(cls, search: Search, workers: int, seed: int, seconds: float) -> Budget:
        """So many seconds of the time left, or with one worker so many units of work."""
        if workers > 1:
            seconds = min(seconds, search.left)
            return cls(search, workers, seed, seconds, until=time.monotonic() + seconds)
        return cls(search, workers, seed, seconds)

    @property
    def over(self) -> bool:
        """Whether the share is used up, or the search over."""
        return self.search.over or self.left <= 0

    @property
    def left(self) -> float:
        """Seconds, or deterministic units, left of the share."""
        if self.workers > 1:
            return min(self.until - time.monotonic(), self.search.left)
        return self.seconds - self.spent

    def limits(self, part: float = 1.0, focus: tuple[str, ...] = ()) -> Limits:
        """Limits of one run of CP-SAT: at most this part of the whole share."""
        most = min(self.left, part * self.seconds)
        if self.workers > 1:
            return Limits(
                most, self.workers, self.seed, focus=focus, enough=lambda: self.search.over
            )
        return Limits(self.search.left, self.workers, self.seed, work=most, focus=focus)

    def alone(self, seconds: float, work: float, seed: int) -> Limits:
        """Limits of one small run by one worker: seconds count only where the clock rules."""
        limits = self.limits()
        by_clock = limits.workers > 1
        return replace(
            limits,
            seconds=min(limits.seconds, seconds) if by_clock else limits.seconds,
            workers=1,
            work=min(limits.work, work),
            seed=seed,
        )

    def part(self, share: float) -> Budget:
        """At most this part of the whole share; what it spends is to be paid here."""
        seconds = min(self.left, share * self.seconds)
        return Budget.of(self.search, self.workers, self.seed, seconds)

    def pay(self, outcome: Outcome) -> None:
        """Count what a run has used."""
        self.spent += outcome.work
