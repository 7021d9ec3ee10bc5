"""Is there a schedule of at most so many ticks? Questions between a bound and a value.

Asked below what is possible, CP-SAT often finds a contradiction at once, which raises the bound
("destructive" bounds: Klein and Scholl, "Computing lower bounds by destructive improvement",
European Journal of Operational Research 112, 1999); above, a schedule that no search for the best
comes upon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf

from ppopt.problem.problem import Problem
from ppopt.solver import interrupts
from ppopt.solver.cp_sat import model

FIRST_STEPS = 64
"""The first step up is the distance between bound and value over this."""


@dataclass
class Between:
    """What is known of the least value: proved not below `low`, met at `high`, in ticks."""

    low: int
    high: int
    unanswered: float = field(default=inf, init=False)
    """Least question above the bound that was left without an answer."""

    def questions(self, known: Callable[[], int]) -> Iterator[int]:
        """The bound itself; from there up by growing steps; then half-way to what is not refuted.

        Near the bound a contradiction comes soonest, far from it CP-SAT may not come to an end.
        None is put twice; answers are to be noted before the next. `known` gives the best bound,
        which a question without a schedule raises, and others may meanwhile.
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
        """Note that a question was left without an answer."""
        if target > self.low:
            self.unanswered = min(self.unanswered, target)


@interrupts.held()
def question(problem: Problem, target: int, devices: Iterable[int] | None = None) -> model.Model:
    """All schedules of at most so many ticks, of all devices or of few."""
    built = model.build(problem, horizon=target, bound=0, devices=devices)
    built.cp.proto.clear_objective()
    return built
