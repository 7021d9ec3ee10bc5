"""Double justification of constructed schedules, from which local search starts."""

from __future__ import annotations

from math import ceil

from ppopt.problem.traits import ArgumentClass, Trait, handled
from ppopt.solver.budget import Budget
from ppopt.solver.heuristics.pool import Pool
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Method, Outcome
from ppopt.solver.parameters import JustificationParams


class DoubleJustification(Method):
    """Apply double justification to the best constructed schedules, some per turn."""

    name = "double justification"
    handles = handled(ArgumentClass.COMPUTE, (Trait.ROUTES, Trait.SPAN))

    def __init__(self, pool: Pool, params: JustificationParams) -> None:
        self._pool = pool
        self._params = params

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Justify a share of the schedules by the budget; if that is empty, `params.first`."""
        pool, params = self._pool, self._params
        share = min(1.0, budget.amount / params.seconds_for_all)
        count = ceil(share * pool.to_justify) if share else params.first
        for _ in range(count):
            if not pool.constructed:
                return Outcome(exhausted=True)
            if pool.out_of_time(budget):
                break
            _, _, orders = pool.constructed.pop(0)
            pool.add(*pool.justify_orders(orders, incumbent, budget))
        return Outcome(exhausted=not pool.constructed or pool.out_of_time(budget))
