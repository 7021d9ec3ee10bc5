"""The incumbent: the best schedule and the best bound of a problem, and who is told of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ppopt.errors import VerificationError
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.schedule.orders import Orders
from ppopt.schedule.schedule import Schedule
from ppopt.solver.bounds.head_body_tail import Bound
from ppopt.verifier import checked

VERIFIED_AT_ONCE = 20_000
"""Most operations of a schedule that is verified when it is submitted; a longer one is verified
before the search returns it."""


class Incumbent:
    """The best schedule known of a problem, and the best bound; neither ever gets worse.

    `announce(value, bound)` is called at every change, in ticks, with the best values so far.
    """

    def __init__(
        self,
        problem: Problem,
        bound: Bound,
        announce: Callable[[int | None, int], None] = lambda _value, _bound: None,
        value: int | None = None,
    ) -> None:
        """`value` is that of a schedule which another process holds; None: there is none."""
        self.problem = problem
        self.bound = bound
        self.best: Schedule | None = None
        self.value = value
        """Objective of the best schedule, in ticks."""
        self.infeasible = ""
        """Why there is no schedule, once that is proved."""
        self._announce = announce
        self._lock = threading.RLock()
        self._announced: tuple[int | None, int] = (None, 0)

    @property
    def closed(self) -> bool:
        """Whether nothing is left to find out."""
        return bool(self.infeasible) or self.value == self.bound.value

    @property
    def gap(self) -> int | None:
        """Ticks between the bound and the value; None without a schedule."""
        return None if self.value is None else self.value - self.bound.value

    def submit(self, schedule: Schedule) -> None:
        """Take a schedule at its own times if it keeps the limits and is better than the best."""
        value = schedule.metrics.value(self.problem.objective)
        if schedule.fits_limits and (self.value is None or value < self.value):
            if len(schedule) <= VERIFIED_AT_ONCE:
                checked(schedule)
            self.best, self.value = schedule, value
            self._check()
            self.announce(self.value, self.bound.value)

    def submit_orders(self, orders: Orders | None) -> None:
        """Submit an order at its earliest starts."""
        if orders is not None:
            self.submit(timing.schedule(self.problem.pipeline, orders, self.problem.objective))

    def raise_bound(self, bound: Bound) -> None:
        """Take a lower bound if it is better."""
        if bound.value > self.bound.value:
            self.bound = bound
            self._check()
            self.announce(self.value, self.bound.value)

    def announce(self, value: int | None, bound: int) -> None:
        """Announce a value and a bound in ticks, or the better ones announced before.

        CP-SAT announces what it finds from a thread of its own, before it is submitted.
        """
        with self._lock:
            known, low = self._announced
            least = min((one for one in (value, known) if one is not None), default=None)
            low = max(bound, low)
            self._announced = least, low
            self._announce(least, low if least is None else min(low, least))

    def _check(self) -> None:
        if self.value is not None and self.value < self.bound.value:
            raise VerificationError(
                f"the bound {self.bound.value} lies above a schedule of {self.value} ticks: "
                f"please report it ({self.bound.proof})"
            )
