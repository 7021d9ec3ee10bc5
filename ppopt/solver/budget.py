"""The budget of a search and of the turns of its methods, and limits of one CP-SAT run.

A budget is in seconds or, with one worker, in deterministic units of work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from ppopt.cancellation import over, seconds_left
from ppopt.solver.incumbent import Incumbent


@dataclass(frozen=True)
class SolverLimits:
    """Limits and settings of one run of CP-SAT."""

    seconds: float
    workers: int
    seed: int
    work: float = inf
    """Time limit in CP-SAT's deterministic units, which are close to seconds. The result of one
    worker within this limit does not depend on the speed of the machine."""
    presolve: bool = True
    """Whether CP-SAT simplifies the model first, which takes most of the time of small ones."""
    focus: tuple[str, ...] = ()
    """Subsolvers to use, or to add if there are more workers; empty: CP-SAT chooses."""
    enough: Callable[[], bool] = lambda: False
    """Polled during the run: whether to stop early."""

    def reseeded(self, turn: int) -> SolverLimits:
        """Return the limits with another seed for each turn: results vary with the seed."""
        return replace(self, seed=(self.seed + turn) % 2**31)


class Budget:
    """A share of the time of a search, or of its work.

    The root budget is the whole search, which ends with the enclosing scopes (`ppopt.cancellation`)
    or by its stop criterion. All its portions ask the root.

    With several workers CP-SAT is not deterministic, and portions are seconds. With one worker
    they are CP-SAT's deterministic units, and time ends only the search as a whole: a search that
    ends by proof returns the same schedule on a slow machine.
    """

    def __init__(
        self,
        incumbent: Incumbent,
        seconds: float = inf,
        workers: int = 1,
        seed: int = 0,
        *,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Budget of a whole search; `stopped` is the stop criterion of the caller."""
        self.incumbent = incumbent
        self.seconds = seconds
        """Time limit of the search, of which the scopes know the end."""
        self.workers = workers
        self.seed = seed
        self.by_clock = workers > 1
        self.amount = inf
        """Seconds, or with one worker deterministic units."""
        self.spent = 0.0
        """Deterministic units used; not counted with several workers."""
        self._poll: Callable[[], None] = lambda: None
        self._stopped = stopped
        self._root, self._end = self, inf

    def portion(
        self,
        amount: float = inf,
        *,
        workers: int | None = None,
        seed: int | None = None,
        incumbent: Incumbent | None = None,
    ) -> Budget:
        """A portion of at most `amount`; the caller pays what it spends.

        It is over when `incumbent` (default: that of this budget) is closed.
        """
        portion = Budget(
            incumbent or self.incumbent,
            self.seconds,
            self.workers if workers is None else workers,
            self.seed if seed is None else seed,
        )
        portion._root = self._root
        portion.amount = amount
        if portion.by_clock:
            portion.amount = min(amount, self.search_left)
            portion._end = time.monotonic() + portion.amount
        return portion

    def share(self, share: float, incumbent: Incumbent | None = None) -> Budget:
        """A portion of at most this share of the whole budget; see `portion`."""
        return self.portion(min(self.left, share * self.amount), incumbent=incumbent)

    def poll_by(self, receive: Callable[[], None]) -> None:
        """Call `receive` at every stop check of the search, for news of another process."""
        self._root._poll = receive

    @property
    def search_left(self) -> float:
        """Seconds left of the search; 0 after Ctrl-C."""
        return seconds_left()

    @property
    def search_over(self) -> bool:
        """Whether the search ends now: closed, out of time or stopped."""
        root = self._root
        root._poll()
        return over() or root._stopped() or self.incumbent.closed

    @property
    def over(self) -> bool:
        """Whether the budget is used up or the search is over."""
        return self.search_over or self.left <= 0

    @property
    def left(self) -> float:
        """Seconds or deterministic units left of the budget."""
        if self.by_clock:
            return min(self._end - time.monotonic(), self.search_left)
        return self.amount - self.spent

    def affords(self, seconds: float) -> bool:
        """Whether work that cannot be interrupted ends before the time limit of the search."""
        return seconds < self.search_left

    def limits(self, share: float = 1.0, focus: tuple[str, ...] = ()) -> SolverLimits:
        """Limits of one run of CP-SAT: at most this share of the whole budget."""
        amount = min(self.left, share * self.amount)
        if self.by_clock:
            return SolverLimits(
                amount, self.workers, self.seed, focus=focus, enough=lambda: self.search_over
            )
        return SolverLimits(self.search_left, self.workers, self.seed, work=amount, focus=focus)

    def single_worker_limits(self, seconds: float, work: float, seed: int) -> SolverLimits:
        """Limits of one small run by one worker; `seconds` counts only with several workers."""
        limits = self.limits()
        return replace(
            limits,
            seconds=min(limits.seconds, seconds) if self.by_clock else limits.seconds,
            workers=1,
            work=min(limits.work, work),
            seed=seed,
        )

    def pay(self, work: float) -> None:
        """Count the work of a run of CP-SAT."""
        self.spent += work

    def stop(self) -> None:
        """End the search."""
        self._root._stopped = lambda: True
