"""Raises the lower bound of one configuration by subsets of its devices, without a schedule.

A search over configurations need not schedule a configuration whose bound reaches the best value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from ppopt.cancellation import scope, seconds_left
from ppopt.problem.problem import Problem
from ppopt.solver.bound import min_possible_value
from ppopt.solver.bounds import device_bounds
from ppopt.solver.bounds.subset_dynamic_program import SubsetDP
from ppopt.solver.bounds.subset_selection import Devices
from ppopt.solver.budget import Budget
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import applies
from ppopt.solver.parameters import SubsetParams
from ppopt.solver.problem_views import relaxed_for, run_on_view


class SubsetBounding:
    """Dynamic programming over subsets of devices, which can be resumed any number of times."""

    def __init__(self, problem: Problem, params: SubsetParams, first: Sequence[Devices]) -> None:
        """`first`: subsets to try before others, such as the best ones of a similar problem."""
        self.first = frozenset(first)
        """Subsets that were tried before others."""
        self._incumbent = Incumbent(problem, device_bounds.known_bound(problem))
        relaxed = relaxed_for(SubsetDP.handles, self._incumbent)
        self._subsets = SubsetDP(relaxed.problem, params, first)
        self._method = run_on_view(relaxed, self._subsets)
        self.exhausted = not applies(self._method, problem)
        """Whether another run would do nothing."""

    def run(self, value: int, work: float, stopped: Callable[[], bool]) -> float:
        """Work towards a value in ticks for some units of work, in the time left.

        Returns the units used.
        """
        incumbent = self._incumbent
        incumbent.value = min_possible_value(incumbent.problem, value)
        budget = Budget(incumbent, seconds_left(), stopped=stopped).portion(work)
        with scope(inf):
            outcome = self._method.run(incumbent, budget)
            self.exhausted, work = outcome.exhausted, outcome.work
        return work

    @property
    def base(self) -> Devices:
        """Subset with the best bound; empty if none improved the bound."""
        return self._subsets.base

    @property
    def bound(self) -> int:
        """Bound in ticks."""
        return self._incumbent.bound.value
