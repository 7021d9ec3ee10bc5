"""State of one search: the best schedule, the best bound, the clock, and who is told of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from ppopt.errors import VerificationError
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.schedule.orders import Orders
from ppopt.schedule.schedule import Schedule
from ppopt.solver.bounds.head_body_tail import Bound

LARGEST_MODEL = 4_000
"""Most operations for which a CP-SAT model of all devices is built."""


class Progress(NamedTuple):
    """Where a search stands; times in the user's unit."""

    seconds: float
    phase: str
    value: Fraction | None
    lower_bound: Fraction


@dataclass
class Search:
    """A search under way."""

    problem: Problem
    began: float
    deadline: float
    notify: Callable[[Progress], None]
    bound: Bound
    best: Schedule | None = None
    value: int | None = None
    """Objective of the best schedule, in ticks."""
    infeasible: str = ""
    """Why no schedule exists, once that is proved."""
    phase: str = "bounds"
    interrupted: bool = False
    listen: Callable[[], None] = lambda: None
    """Takes what is found out beside this search; asked wherever its end is asked for."""
    _telling: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False)
    _told_value: int | None = field(default=None, init=False)
    _told_bound: int = field(default=0, init=False)

    @property
    def closed(self) -> bool:
        """Whether nothing is left to find out."""
        return bool(self.infeasible) or self.value == self.bound.value

    @property
    def left(self) -> float:
        """Seconds left."""
        return 0.0 if self.interrupted else self.deadline - time.monotonic()

    @property
    def over(self) -> bool:
        """Whether the search ends here: closed, out of time, or interrupted."""
        self.listen()
        return self.closed or self.left <= 0

    def offer(self, orders: Orders | None) -> None:
        """Take an order, at its earliest starts, if it is better."""
        if orders is not None:
            self.take(timing.schedule(self.problem.pipeline, orders, self.problem.objective))

    def take(self, made: Schedule) -> None:
        """Take a schedule at its own times if it keeps the limits and betters the best value."""
        value = made.metrics.value(self.problem.objective)
        if made.fits_limits and (self.value is None or value < self.value):
            self.best, self.value = made, value
            self._check()
            self.report()

    def raise_bound(self, bound: Bound) -> None:
        """Take a lower bound if it is better."""
        if bound.value > self.bound.value:
            self.bound = bound
            self._check()
            self.report()

    def _check(self) -> None:
        if self.value is not None and self.value < self.bound.value:
            raise VerificationError(
                f"the bound {self.bound.value} lies above a schedule of {self.value} ticks: "
                f"please report it ({self.bound.proof})"
            )

    def enter(self, phase: str) -> None:
        """Begin a phase of the search."""
        self.phase = phase
        self.report()

    def report(self) -> None:
        """Tell the observer where the search stands."""
        self.tell(self.value, self.bound.value)

    def tell(self, value: int | None, bound: int) -> None:
        """Tell the observer a value and a bound, in ticks, or better ones told before.

        CP-SAT tells them from a thread of its own.
        """
        ticks = self.problem.pipeline.ticks
        with self._telling:
            told = (item for item in (value, self._told_value) if item is not None)
            self._told_value = least = min(told, default=None)
            low = max(bound, self._told_bound)
            self._told_bound = low if least is None else min(low, least)
            shown = None if least is None else ticks.time(least)
            seconds = time.monotonic() - self.began
            self.notify(Progress(seconds, self.phase, shown, ticks.time(self._told_bound)))
