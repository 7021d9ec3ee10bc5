"""The search of all orders: one for all configurations of a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from ppopt.problem.problem import Problem
from ppopt.solver.choices.search import ConfigurationSearch, Effort
from ppopt.solver.deadline import Deadline
from ppopt.solver.options import SolveOptions
from ppopt.solver.result import Progress
from ppopt.studies.baselines import GRACE
from ppopt.studies.plan_product import OrdersCandidate, PlanProduct

Ceiling = Callable[[], Fraction | None]
"""Gives a cutoff: values at or above it are of no use."""


class OrdersSearch:
    """The search of all orders of the configurations of a plan, perhaps of none."""

    def __init__(
        self,
        candidates: Sequence[OrdersCandidate],
        problem: Problem,
        options: SolveOptions,
        ceiling: Ceiling,
    ) -> None:
        """`problem` is that of any configuration of the plan: all have its objective.

        `ceiling` gives the best time per microbatch of all: longer ones are of no use.
        """
        self.candidates = candidates
        self._params, self._ceiling = options.params.plan, ceiling
        self._turn = options.deadline
        self._cutoff: Fraction | None = None
        """Ceiling as the turn began."""
        self._quick = 0
        """Most searches of level 0 in all rounds so far."""
        deadline = options.deadline
        self._stop = deadline.stop
        self._search = ConfigurationSearch(
            PlanProduct(candidates, self._params.margin), problem,
            options.by(replace(deadline, stop=self._ends)),
            ceiling=lambda: self._cutoff, grace=GRACE,
        )  # fmt: skip
        self._search.enumerate_listed()
        self._update()

    @property
    def num_open(self) -> int:
        """Number of configurations that may be below the ceiling."""
        ceiling = self._ceiling()
        return sum(candidate.is_open(ceiling) for candidate in self.candidates)

    @property
    def exhausted(self) -> bool:
        """Whether more effort cannot help: no known partition may be better."""
        return self._search.exhausted or not self.num_open

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended a search."""
        return self._search.interrupted

    def bound(self, deadline: Deadline) -> None:
        """Bound the configurations that may be below the ceiling, until the deadline."""
        self._search.bound(deadline, self._ceiling())
        self._update()

    def search(self, effort: Effort, turn: Deadline) -> None:
        """Search for at most a turn; if nothing is found, until the deadline."""
        self._begin(turn)
        self._search.search(effort)
        self._update()

    def search_round(self, number: int, turn: Deadline) -> None:
        """Search for at most a turn, with the effort of a round, counted from 0."""
        each = self._params.few * 2 ** (number - 1) if number else self._params.short
        self._quick += each * self.num_open
        self.search(Effort(max(0, number - 1), self._quick), turn)

    def search_best_partition(self, turn: Deadline) -> None:
        """Search only the partition and recompute of the best schedule.

        Rounds divide their time between configurations and partitions. Methods that improve large
        pipelines most, such as windows, have no long turn in them.
        """
        from ppopt.solver.portfolio import PROVING  # noqa: PLC0415  ortools takes long to load

        self._begin(turn)
        self._search.search_best(PROVING)
        self._update()

    def _begin(self, turn: Deadline) -> None:
        self._turn, self._cutoff = turn, self._ceiling()
        for candidate in self.candidates:
            while candidate.hints:
                self._search.hint(candidate.hints.pop(0))

    def _update(self) -> None:
        values = (self._ceiling(), self._search.state.value)
        ceiling = min((value for value in values if value is not None), default=None)
        for candidate in self.candidates:
            candidate.update(ceiling)

    def _ends(self, state: Progress) -> bool:
        """Whether the search ends: with its turn, or as the caller says."""
        found = state.value is not None or self._cutoff is not None
        return (found and self._turn.over) or (self._stop is not None and self._stop(state))
