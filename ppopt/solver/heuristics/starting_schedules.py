"""Starting schedules of local search: justified ones, earlier backwards."""

from __future__ import annotations

from math import ceil
from operator import itemgetter

from ppopt.problem.traits import PER_OPERATION, Trait
from ppopt.solver.budget import Budget
from ppopt.solver.heuristics.pool import Pool
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Method, Outcome
from ppopt.solver.parameters import JustificationParams


class DoubleJustification(Method):
    """Apply double justification to the best constructed schedules, some per turn."""

    name = "double justification"
    handles = PER_OPERATION | {Trait.ROUTES, Trait.SPAN}

    def __init__(self, pool: Pool, params: JustificationParams) -> None:
        self._pool = pool
        self._params = params

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Justify a share of the schedules by the budget; with an empty budget, `params.first`."""
        pool, params = self._pool, self._params
        part = min(1.0, budget.seconds / params.seconds_for_all)
        most = ceil(part * pool.to_justify) if part else params.first
        for _ in range(most):
            if not pool.constructed:
                return Outcome(exhausted=True)
            if pool.out_of_time(budget):
                break
            _, _, orders = pool.constructed.pop(0)
            pool.add(*pool.justify_orders(orders, incumbent, budget))
        return Outcome(exhausted=not pool.constructed)


class ExpediteBackwards(Method):
    """Change the start of the best schedule: backwards reach the busiest device sooner.

    Idle gaps often cancel the gain until window LNS removes them, so a schedule that is about as
    good is kept as an alternative. If a memory limit is not a number of microbatches, this brings
    nothing.
    """

    name = "expedited backwards"
    handles = frozenset({Trait.FROZEN, Trait.SPAN})

    def __init__(self, pool: Pool, params: JustificationParams) -> None:
        self._pool = pool
        self._params = params

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Expedite the backwards of some microbatches by a part of the possible gain, once."""
        pool = self._pool
        if pool.out_of_time(budget):
            return Outcome(exhausted=True)
        pool.add_best(incumbent)
        if not pool.schedules or pool.network.tight:
            return Outcome(exhausted=True)
        known, made = pool.schedules[0], []
        for count, part in self._params.expedited:
            if pool.out_of_time(budget):
                break
            start = pool.network.expedite_backwards(
                known[1], count or pool.problem.pipeline.batches, part
            )
            if start != known[1]:
                made.append(pool.justify(start, incumbent, budget))
        if made:
            worse = max(min(made), known, key=itemgetter(0))
            if worse[0] <= self._params.alike * known[0]:
                pool.alternatives = [worse]
        return Outcome(exhausted=True)
