"""The clock of a search, the budget of one turn of a method, and limits of one CP-SAT run.

A budget is in seconds or, with one worker, in deterministic units of work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from ppopt.solver import interrupts
from ppopt.solver.deadline import Deadline
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

    def turned(self, turn: int) -> SolverLimits:
        """Return the limits with another seed for each turn: results vary with the seed."""
        return replace(self, seed=(self.seed + turn) % 2**31)


class Clock:
    """The time limit of a search, and whether the search was interrupted."""

    def __init__(self, deadline: Deadline, stopped: Callable[[], bool] = lambda: False) -> None:
        """`stopped` is the stop criterion of the caller."""
        self._deadline, self._stopped = deadline, stopped
        self._interrupted = False
        self.poll: Callable[[], None] = lambda: None
        """Called at every stop check: receives what another process has found."""

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C has ended the search, or was recorded and its exception lost."""
        return self._interrupted or interrupts.pressed()

    @interrupted.setter
    def interrupted(self, interrupted: bool) -> None:
        self._interrupted = interrupted

    @property
    def seconds(self) -> float:
        """Time limit in seconds."""
        return self._deadline.seconds

    @property
    def deadline(self) -> float:
        """Instant of `time.monotonic` at which time is up."""
        return self._deadline.end

    @property
    def left(self) -> float:
        """Seconds left; 0 after an interruption."""
        return 0.0 if self.interrupted else self._deadline.left

    @property
    def over(self) -> bool:
        """Whether time is up, or the search was interrupted or stopped."""
        self.poll()
        return self.left <= 0 or self._stopped()


class Budget:
    """A share of the time of a search.

    With several workers CP-SAT is not deterministic, and budgets are seconds. With one worker,
    budgets are CP-SAT's deterministic units, and the clock ends only the search as a whole: a
    search that ends by proof returns the same schedule on a slow machine.
    """

    def __init__(
        self, incumbent: Incumbent, clock: Clock, workers: int, seed: int, seconds: float = inf
    ) -> None:
        """Budget of at most `seconds` of the time left, or with one worker of units of work."""
        self.incumbent = incumbent
        self.clock = clock
        self.workers = workers
        self.seed = seed
        self.by_clock = workers > 1
        self.seconds = min(seconds, clock.left) if self.by_clock else seconds
        self.spent = 0.0
        """Deterministic units used; not counted with several workers."""
        self._turn = Deadline.after(self.seconds)

    @property
    def search_over(self) -> bool:
        """Whether the search ends now: closed, out of time, stopped or interrupted."""
        return self.clock.over or self.incumbent.closed

    @property
    def over(self) -> bool:
        """Whether the budget is used up or the search is over."""
        return self.search_over or self.left <= 0

    @property
    def left(self) -> float:
        """Seconds or deterministic units left of the budget."""
        if self.by_clock:
            return min(self._turn.left, self.clock.left)
        return self.seconds - self.spent

    def affords(self, seconds: float) -> bool:
        """Whether work that cannot be interrupted ends before the time limit of the search."""
        return seconds < self.clock.left

    def limits(self, share: float = 1.0, focus: tuple[str, ...] = ()) -> SolverLimits:
        """Limits of one run of CP-SAT: at most this part of the whole budget."""
        amount = min(self.left, share * self.seconds)
        if self.by_clock:
            return SolverLimits(
                amount, self.workers, self.seed, focus=focus, enough=lambda: self.search_over
            )
        return SolverLimits(self.clock.left, self.workers, self.seed, work=amount, focus=focus)

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

    def part(self, share: float, incumbent: Incumbent | None = None) -> Budget:
        """A budget of at most this part of the whole one; the caller pays what it spends.

        It is over when `incumbent` (default: that of this budget) is closed.
        """
        seconds = min(self.left, share * self.seconds)
        incumbent = incumbent or self.incumbent
        return Budget(incumbent, self.clock, self.workers, self.seed, seconds)

    def pay(self, work: float, *, interrupted: bool = False) -> None:
        """Count the work of a run of CP-SAT, and record whether Ctrl-C ended it."""
        self.spent += work
        self.clock.interrupted |= interrupted
