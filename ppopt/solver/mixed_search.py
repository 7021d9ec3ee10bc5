"""Methods for one kind of backward, at work on a problem whose backwards are mixed.

Schedules whose backwards are all split, or all whole, are schedules of the mixed problem: methods
that find them work on a restriction. Bounds of the relaxation (`BackwardChoice.relaxed`) are
bounds of the mixed problem: methods that prove them work on it. Each sees an incumbent of its own
problem, which passes on what is found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ppopt.problem.problem import Problem
from ppopt.schedule.schedule import Schedule
from ppopt.solver.bounds.device_bounds import Bound, device_bound, of_relaxation
from ppopt.solver.budget import Budget
from ppopt.solver.heuristics.pool import Pool
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Method, Outcome
from ppopt.solver.parameters import SolveParams


class Restricted(Incumbent):
    """The best schedule of one kind of backward; a better one is passed on."""

    def __init__(self, problem: Problem, whole: Incumbent, lagging: float) -> None:
        """`problem` is a restriction of the problem of `whole`.

        `lagging`: the share of its budgets that is used while it lags behind `whole`.
        """
        super().__init__(problem, whole.bound)
        self._whole = whole
        self._lagging = lagging

    def submit(self, schedule: Schedule) -> None:
        """Keep a schedule and pass it on, if it is better."""
        super().submit(schedule)
        self._whole.submit(schedule)

    def raise_bound(self, bound: Bound) -> None:
        """Drop a bound: schedules of other kinds may be below it."""

    @property
    def share(self) -> float:
        """Share of a budget to use: less while schedules of other kinds are better."""
        if self.value is None or self._whole.value is None:
            return 1.0
        return self._lagging if self.value > self._whole.value else 1.0

    def meet(self) -> None:
        """Take over the bound, which holds for this kind as well."""
        self.bound = self._whole.bound


class Relaxed(Incumbent):
    """The value of the mixed problem, and bounds of its relaxation, which are passed on."""

    share = 1.0
    """Of a budget to use."""

    def __init__(self, whole: Incumbent) -> None:
        problem = whole.problem.relaxed
        super().__init__(problem, device_bound(problem.instance, problem.objective))
        self._whole = whole

    def submit(self, schedule: Schedule) -> None:
        """Drop a schedule: its operations are not those of the mixed problem."""

    def raise_bound(self, bound: Bound) -> None:
        """Keep a bound and pass it on, if it is better."""
        super().raise_bound(bound)
        self._whole.raise_bound(of_relaxation(self._whole.problem, bound))

    def meet(self) -> None:
        """Take over value and bound of the mixed problem."""
        self.value = self._whole.value
        if self._whole.bound.value > self.bound.value:
            self.bound = self._whole.bound


@dataclass
class On:
    """A method at work on a restriction or on the relaxation."""

    method: Method
    view: Restricted | Relaxed

    def __post_init__(self) -> None:
        self.name = self.method.name

    def supports(self, problem: Problem) -> bool:  # noqa: ARG002
        """Whether the method applies to the problem that it sees."""
        return self.method.supports(self.view.problem)

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Let the method work on the problem that it sees."""
        before = incumbent.value, incumbent.bound.value
        self.view.meet()
        outcome = self.method.run(self.view, budget.part(self.view.share))
        improved = before != (incumbent.value, incumbent.bound.value)
        return outcome._replace(fruitful=outcome.fruitful or improved)


class BackwardPool(NamedTuple):
    """What the heuristics of one kind of backward share."""

    pool: Pool
    view: Restricted | None
    """Who gets what they find; None: the incumbent itself."""


def backward_pools(incumbent: Incumbent, params: SolveParams) -> list[BackwardPool]:
    """The parts of a search: one, or where backwards are mixed, split and whole."""
    problem, lagging = incumbent.problem, params.rounds.lagging
    return [
        BackwardPool(
            Pool(one, params.pool),
            Restricted(one, incumbent, lagging) if problem.mixed else None,
        )
        for one in problem.restrictions
    ]


def on(view: Restricted | Relaxed | None, method: Method) -> Method:
    """A method that works on what the view shows; itself without a view."""
    return method if view is None else On(method, view)
