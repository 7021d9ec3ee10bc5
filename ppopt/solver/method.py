"""The interface of the methods of a search: they take turns on one incumbent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from ppopt.problem.problem import Problem
from ppopt.problem.traits import Trait, Traits, unhandled
from ppopt.solver.budget import Budget
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.parameters import SolveParams


class Outcome(NamedTuple):
    """Outcome of one turn of a method."""

    work: float = 0.0
    """Deterministic units of work done; not counted with several workers."""
    exhausted: bool = False
    """Whether further turns on this problem would do nothing."""
    fruitful: bool = False
    """Whether the turn found a better schedule, raised a bound or made other progress: some methods
    get less time after a turn in vain."""


class Method(Protocol):
    """A heuristic, a bound or an exact method that takes turns.

    A method is constructed for one problem, without long computation, and keeps its state between
    turns. It submits schedules and bounds to the incumbent, which checks them.
    """

    name: str
    """Name of the method in progress reports and in `--without`."""

    @property
    def handles(self) -> Traits:
        """The traits that a problem may have; a problem with any other trait is refused."""

    def supports(self, problem: Problem) -> bool:  # noqa: ARG002  a default
        """Whether the method applies to a problem whose traits it handles; by default always."""
        return True

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Work for a budget; a scope ends the work when time is up or after Ctrl-C."""


def is_plain(problem: Problem) -> bool:
    """Whether a problem has neither slices nor overlapped pairs that save time."""
    return not problem.traits & {Trait.SLICES, Trait.PAIRS}


def applies(method: Method, problem: Problem) -> bool:
    """Whether a method handles all traits of a problem, and supports it."""
    return not unhandled(problem.traits, method.handles) and method.supports(problem)


def supported(methods: Iterable[Method], problem: Problem, params: SolveParams) -> list[Method]:
    """Methods that apply to a problem and are not left out by name."""
    return [
        method
        for method in methods
        if method.name not in params.without and applies(method, problem)
    ]
