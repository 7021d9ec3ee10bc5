"""Windows of mixed problems: every backward inside is split or whole, whichever is better.

A backward may change its kind where all of it, B with W or BW with its instant, is inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random

from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.schedule.schedule import Schedule
from ppopt.solver.budget import Budget
from ppopt.solver.heuristics.mixed_network import MixedNetwork, network_of
from ppopt.solver.heuristics.window import (
    SemiActiveSchedule,
)
from ppopt.solver.heuristics.window_lns import WindowSearch
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Outcome, is_plain
from ppopt.solver.parameters import WindowParams


@dataclass(frozen=True)
class MixedSchedule(SemiActiveSchedule):
    """A schedule of a network of one choice."""

    network: MixedNetwork

    @cached_property
    def order(self) -> list[int]:
        """All operations by their starts; instants come before what starts with them."""
        time = self.network.time
        return sorted(range(self.network.size), key=lambda op: (self.start[op], time[op] > 0, op))

    def changed(self, order: list[int], flips: Sequence[int]) -> MixedSchedule:
        """The schedule in another order, with other kinds of some backwards."""
        network = self.network.with_flips(flips) if flips else self.network
        return MixedSchedule(network, network.earliest_starts(order))


class MixedWindowLNS:
    """Window LNS over orders and kinds of backwards, from the best schedule and from others."""

    name = "mixed window LNS"

    def __init__(
        self, problem: Problem, others: Sequence[Incumbent], rng: Random, params: WindowParams
    ) -> None:
        """`others`: incumbents of one kind of backward, from which it starts too."""
        self._problem = problem
        self._others = others
        self._rng = rng
        self._params = params
        self._search: WindowSearch | None = None
        self._turn = 0

    def supports(self, problem: Problem) -> bool:
        """Mixed makespan problems without slices, overlapped pairs and operations of no length."""
        problem = self._problem
        plain = problem.mixed and is_plain(problem) and problem.objective is Objective.MAKESPAN
        return plain and not problem.instance.has_instants

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Search from the best schedule, then from the best of one kind of backward."""
        before, spent = incumbent.value, 0.0
        others = [one.best for one in self._others if one.best not in (None, incumbent.best)]
        starts = [incumbent.best, *others[self._turn % max(1, len(others)) :][:1]]
        self._turn += 1
        for start in starts:
            if start is not None and not budget.search_over:
                part = budget.part(1 / len(starts))
                self._searched(start, incumbent, part)
                spent += part.spent
        return Outcome(spent, fruitful=incumbent.value != before)

    def _searched(self, schedule: Schedule, incumbent: Incumbent, budget: Budget) -> None:
        network, start = network_of(self._problem, schedule)
        current = MixedSchedule(network, start)
        current = current.changed(current.order, ())
        if self._search is None:
            self._search = WindowSearch(network, self._rng, self._params)

        def submit(found: SemiActiveSchedule) -> None:
            assert isinstance(found, MixedSchedule)
            if incumbent.value is None or found.value < incumbent.value:
                incumbent.submit_orders(found.network.orders(found.start))

        self._search.improve(current, budget, submit)
