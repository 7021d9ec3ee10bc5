"""Phases of the search that better the incumbent: the portfolio, then local search."""

from __future__ import annotations

import time
from random import Random

from ppopt.metrics import Objective
from ppopt.solver.candidates import candidates
from ppopt.solver.climb import climb
from ppopt.solver.construct import Built, Decoder, Policy, policies
from ppopt.solver.incumbent import Search

STARTS = 3
"""Policies of the portfolio from which local search starts, in turn."""
STEPS = (100, 1500)
"""Fewest and most evaluations of a first climb; each round of climbs has twice as many."""
WORK = 3_000_000
"""Operations to place in a first climb, if that is between the fewest and the most steps."""


class Improver:
    """Construction and local search on one problem; remembers the best policies met."""

    def __init__(self, search: Search, seed: int) -> None:
        problem = search.problem
        self._search = search
        self._decoder = Decoder(problem.pipeline, problem.fused)
        self._rng = Random(seed)
        self._ranked: list[tuple[int, Policy]] = []
        self._steps = min(max(WORK // problem.operations, STEPS[0]), STEPS[1])
        makespan = problem.objective is Objective.MAKESPAN
        self._margin = 0 if makespan else max(map(max, problem.pipeline.ticks.durations))

    def construct(self) -> None:
        """Try the hand strategies, then the portfolio of policies."""
        search, problem = self._search, self._search.problem
        search.enter("construction")
        for orders in candidates(problem.pipeline, fused=problem.fused):
            search.offer(orders)
            if search.over:
                return
        for policy in policies(problem.pipeline):
            built = self._decoder.build(policy)
            if built is not None:
                self._ranked.append((built.value(problem.objective), policy))
                self._take(built)
            if search.over:
                return
        self._ranked.sort()
        del self._ranked[STARTS:]

    @property
    def ready(self) -> bool:
        """Whether there is a policy to start local search from."""
        return bool(self._ranked)

    def climb(self, seconds: float) -> None:
        """Local search from each of the best policies, until they have had their time."""
        search, until = self._search, time.monotonic() + seconds
        if not self.ready or search.over:
            return
        search.enter("local search")
        for place, (value, policy) in enumerate(self._ranked):
            self._ranked[place] = climb(
                self._decoder,
                policy,
                value,
                search.problem.objective,
                steps=self._steps,
                rng=self._rng,
                found=self._take,
                stop=lambda: search.over or time.monotonic() >= until,
            )
        self._ranked.sort()
        self._steps *= 2

    def _take(self, built: Built) -> None:
        """Offer a schedule that is better than the best, or may be once its starts are chosen.

        For makespan the simulated starts are the earliest; for device span later first starts
        can be better.
        """
        search = self._search
        value = built.value(search.problem.objective)
        if search.value is None or value < search.value + self._margin:
            search.offer(built.arrays())
