"""Target values for destructive bounds, and the CP-SAT feasibility model of a target.

A feasibility model has a solution if a schedule of at most a target value exists. If none exists,
CP-SAT often finds a contradiction at once, and the bound rises (Klein and Scholl, "Computing lower
bounds by destructive improvement", European Journal of Operational Research 112, 1999). If one
exists, CP-SAT often finds a schedule that minimisation does not find.
`ppopt.solver.exact.target_feasibility` solves these models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf

from ppopt.problem.problem import Problem
from ppopt.solver.cp_sat import model
from ppopt.solver.cp_sat.model import CpSatModel

FIRST_STEPS = 64
"""The first step up is the distance between bound and value, divided by this number."""


@dataclass
class TargetSequence:
    """The sequence of target values between a bound and a value.

    The minimum is proved to lie between `low` and `high`, in ticks.
    """

    low: int
    high: int
    unanswered: float = field(default=inf, init=False)
    """Smallest target above the bound that was neither proved nor refuted."""

    def targets(self, known: Callable[[], int]) -> Iterator[int]:
        """Yield the bound itself, then targets above it by growing steps, then by bisection.

        CP-SAT refutes targets near the bound soonest, and may not decide others. No target is
        yielded twice. The caller records each outcome (in `low`, `high` or by `skip`) before the
        next target. `known` returns the best bound, which the caller and other methods may raise
        in the meantime.
        """
        asked = set[int]()
        target, step = self.low, max(1, (self.high - self.low) // FIRST_STEPS)
        while self.low < self.high and target not in asked:
            asked.add(target)
            yield target
            self._raise_low(known())
            half = (self.low + int(min(self.unanswered, self.high))) // 2
            target = min(self.low + step, half) if self.low > target else half
            step *= 2

    def _raise_low(self, bound: int) -> None:
        self.low = max(self.low, bound)
        if self.unanswered < self.low:
            self.unanswered = inf

    def skip(self, target: int) -> None:
        """Record that a target was neither proved nor refuted."""
        if target > self.low:
            self.unanswered = min(self.unanswered, target)


def feasibility_model(problem: Problem, target: int) -> CpSatModel:
    """Model of all schedules of at most `target` ticks."""
    built = model.build_model(problem, horizon=target, bound=0)
    built.cp.proto.clear_objective()
    return built
