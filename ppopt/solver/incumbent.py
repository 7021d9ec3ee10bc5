"""The incumbent: best schedule and best bound of a problem, and callbacks on improvement."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ppopt.errors import VerificationError
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.schedule.orders import Orders
from ppopt.schedule.schedule import Schedule
from ppopt.solver.bound import Bound, min_possible_value
from ppopt.verifier import checked

VERIFIED_AT_ONCE = 20_000
"""Largest number of operations of a schedule that is verified on submission; a larger schedule is
verified before the search returns it."""


class Incumbent:
    """The best known schedule and the best bound of a problem; neither ever gets worse.

    `announce(value, bound)` is called at every improvement, with the best value and bound in ticks.
    """

    def __init__(
        self,
        problem: Problem,
        bound: Bound,
        announce: Callable[[int | None, int], None] = lambda _value, _bound: None,
        value: int | None = None,
    ) -> None:
        """`value` in ticks is of a schedule that another process has; None: there is none."""
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
        """Whether the value is proved optimal or infeasibility is proved."""
        return bool(self.infeasible) or self.value == self.bound.value

    @property
    def gap(self) -> int | None:
        """Ticks between the bound and the value; None without a schedule."""
        return None if self.value is None else self.value - self.bound.value

    def may_improve(self, value: int) -> bool:
        """Whether a schedule of this value may be better than the best one."""
        return self.value is None or value < self.value

    def submit(self, schedule: Schedule) -> None:
        """Keep a schedule at its own times if it fits the limits and beats the best one."""
        value = schedule.metrics.value_ticks(self.problem.objective)
        if schedule.fits_limits and (self.value is None or value < self.value):
            if len(schedule) <= VERIFIED_AT_ONCE:
                checked(schedule)
            self.best, self.value = schedule, value
            self._check()
            self.announce(self.value, self.bound.value)

    def submit_orders(self, orders: Orders | None) -> None:
        """Submit an order, timed for the objective."""
        if orders is not None:
            self.submit(timing.schedule(self.problem.pipeline, orders, self.problem.objective))

    def raise_bound(self, bound: Bound) -> None:
        """Keep a lower bound if it is better, rounded up to the next possible optimum."""
        if bound.value > self.bound.value:
            possible = min_possible_value(self.problem, bound.value)
            if possible > bound.value:
                proof = f"{bound.proof}; rounded up to the next possible value"
                bound = bound._replace(value=possible, proof=proof)
            self.bound = bound
            self._check()
            self.announce(self.value, self.bound.value)

    def announce(self, value: int | None, bound: int) -> None:
        """Announce a value and a bound in ticks, or better ones announced before.

        CP-SAT announces from a thread of its own, before its schedule is submitted.
        """
        with self._lock:
            known, low = self._announced
            best_value = value if known is None or (value is not None and value < known) else known
            low = max(bound, low)
            self._announced = best_value, low
            self._announce(best_value, low if best_value is None else min(low, best_value))

    def _check(self) -> None:
        if self.value is not None and self.value < self.bound.value:
            raise VerificationError(
                f"the bound {self.bound.value} lies above a schedule of {self.value} ticks: "
                f"please report it ({self.bound.proof})"
            )
