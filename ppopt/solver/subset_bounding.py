"""The bound of one problem raised by subsets of its devices, without a schedule of it.

A search over configurations has a value to reach, of another configuration: one whose bound reaches
it needs no schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ppopt.problem.problem import Problem
from ppopt.solver.bound import least_possible_value
from ppopt.solver.bounds import device_bounds
from ppopt.solver.bounds.device_subsets import Devices
from ppopt.solver.bounds.subset_dynamic_program import SubsetDP
from ppopt.solver.budget import Budget, Clock
from ppopt.solver.deadline import Deadline
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.parameters import SubsetParams
from ppopt.solver.views import on, relaxation


class SubsetBounding:
    """Dynamic programming over subsets of devices, continued as often as it is asked for."""

    def __init__(self, problem: Problem, params: SubsetParams, first: Sequence[Devices]) -> None:
        """`first`: subsets to try before others, such as those that did best in a like problem."""
        self.first = frozenset(first)
        """These subsets."""
        self._incumbent = Incumbent(problem, device_bounds.known_bound(problem))
        self._subsets = method = SubsetDP(problem.relaxed, params, first)
        self.exhausted = not method.supports(problem.relaxed)
        """Whether there is nothing left to do."""
        self._method = on(None if problem.is_relaxed else relaxation(self._incumbent), method)

    def run(self, value: int, work: float, seconds: float, stopped: Callable[[], bool]) -> float:
        """Work towards a value in ticks for some units of work; return the units used.

        `seconds` are those left.
        """
        incumbent, clock = self._incumbent, Clock(Deadline.after(seconds))
        clock.stopped = stopped
        incumbent.value = least_possible_value(incumbent.problem, value)
        budget = Budget(incumbent, clock, 1, 0, work)
        outcome = self._method.run(incumbent, budget)
        self.exhausted = outcome.exhausted
        return budget.spent

    @property
    def base(self) -> Devices:
        """The subset that gave the best bound; empty: none did."""
        return self._subsets.base

    @property
    def bound(self) -> int:
        """The bound in ticks."""
        return self._incumbent.bound.value
