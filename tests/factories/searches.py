"""Searches under way, for tests of one part of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from ppopt.problem.problem import Problem
from ppopt.schedule.list_scheduling import one_at_a_time
from ppopt.solver.bound import Bound
from ppopt.solver.bounds import device_bounds
from ppopt.solver.budget import Budget
from ppopt.solver.dynamic_programming.classes import Classes
from ppopt.solver.dynamic_programming.layered import LayeredDP
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.relaxation.device_relaxation import DeviceSubset
from ppopt.solver.relaxation.route_times import RouteTimes


@dataclass
class Begun:
    """An incumbent and the budget of its search, as methods of the search get them."""

    incumbent: Incumbent
    whole: Budget

    def budget(self, seconds: float = inf, workers: int = 1) -> Budget:
        """A share of the time."""
        return self.whole.portion(seconds, workers=workers)


def waiting(problem: Problem, bound: Bound | None = None, seconds: float = 600.0) -> Begun:
    """A search that knows the bound of a device, and no schedule."""
    known = bound or device_bounds.device_bound(problem.instance, problem.objective)
    incumbent = Incumbent(problem, known)
    return Begun(incumbent, Budget(incumbent, seconds))


def begun(problem: Problem, bound: Bound | None = None, seconds: float = 600.0) -> Begun:
    """A search that knows one microbatch after another, and the bound of a device."""
    search = waiting(problem, bound, seconds)
    search.incumbent.submit_orders(one_at_a_time(problem.instance))
    return search


def ended(
    problem: Problem, devices: tuple[int, ...], below: int, width: int | None = None
) -> LayeredDP:
    """The dynamic program of some devices, to its end."""
    subset = DeviceSubset(RouteTimes(problem.instance), frozenset(devices))
    program = LayeredDP(Classes(subset), below, width)
    while not program.ended:
        program.advance()
    return program
