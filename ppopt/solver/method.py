"""What a method of the search is: it works on the incumbent for a budget, and can go on later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from ppopt.problem.problem import Problem
from ppopt.solver.budget import Budget
from ppopt.solver.cp_sat import pairs
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.parameters import SolveParams


class Outcome(NamedTuple):
    """What a turn of a method came to."""

    work: float = 0.0
    """Deterministic units of work done; not counted where the clock rules."""
    exhausted: bool = False
    """Whether the method has nothing left to do on this problem."""
    fruitful: bool = True
    """Whether the turn found out anything: a fruitless method gets less time."""


class Method(Protocol):
    """A heuristic, a bound or an exact method, asked by turns.

    A method is made for one problem, cheaply, and keeps what it knows between its turns. It
    submits schedules and bounds to the incumbent; what it submits is checked there.
    """

    name: str
    """Its name in progress reports, and in `--without`."""

    def supports(self, problem: Problem) -> bool:
        """Whether the method applies to a problem at all."""

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Work for a budget. Raises KeyboardInterrupt on Ctrl-C."""


def is_plain(problem: Problem) -> bool:
    """Whether there are neither slices nor overlapped pairs that save time."""
    pipeline = problem.pipeline
    return pipeline.num_slices == 1 and not pairs.useful(problem.instance)


def supported(methods: Iterable[Method], problem: Problem, params: SolveParams) -> list[Method]:
    """The methods that apply to a problem and are not left out by name."""
    return [
        method
        for method in methods
        if method.name not in params.without and method.supports(problem)
    ]
