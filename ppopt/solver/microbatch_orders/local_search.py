"""Local search over the orders of microbatches, by exchanges and moves timed in batches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from heapq import nsmallest
from itertools import islice, permutations
from math import inf
from typing import NamedTuple

import numpy as np

from ppopt.cancellation import over
from ppopt.problem.arrays import Floats, Ints
from ppopt.problem.objective import Objective
from ppopt.schedule.order_columns import OrderColumns
from ppopt.schedule.schedule import Schedule

TOGETHER = 64
"""Orders that are timed together: their times fit into the caches of a processor."""
MAX_STEPS = 2**20
"""Approximate maximum number of neighbours of an order."""
MAX_NEAR_BATCHES = 16
"""Maximum number of batches of neighbours that `near` times."""
ENUMERATED = 5
"""Maximum number of microbatches of which every order is timed."""
KICK = 3
"""Random exchanges from the best order when no neighbour is better."""
Order = tuple[int, ...]
"""Microbatch that runs k-th, by k."""


class ValuedOrder(NamedTuple):
    """An order and its value in ticks."""

    value: float
    order: Order


def rule_orders(factors: Floats) -> dict[str, Order]:
    """Orders that follow a rule: sorted by factor, or large and small microbatches alternating."""
    ascending = sorted(range(len(factors)), key=lambda microbatch: factors[microbatch])
    half = (len(ascending) + 1) // 2
    small, large = ascending[:half], ascending[: half - 1 : -1]
    turns = [microbatch for pair in zip(large, small, strict=False) for microbatch in pair]
    return {
        "given": tuple(range(len(factors))),
        "ascending": tuple(ascending),
        "descending": tuple(reversed(ascending)),
        "alternating": (*turns, *small[len(large) :]),
        "largest in the middle": (*ascending[::2], *reversed(ascending[1::2])),
        "smallest in the middle": (*reversed(ascending[::2]), *ascending[1::2]),
    }


class OrderSearch:
    """Local search from the orders that follow a rule; every call to `run` resumes it.

    Devices keep the order of operations of a schedule; only the microbatches are permuted. Of at
    most `ENUMERATED` microbatches every order is timed instead. `factors` has the factor on the
    times of every microbatch. The search ends early when time is up.
    """

    def __init__(
        self,
        timing: OrderColumns,
        factors: Floats,
        objective: Objective,
    ) -> None:
        self._timing, self._factors = timing, factors
        self._objective = objective
        self._random = np.random.default_rng(0)
        self._steps = _steps(len(factors))
        self.evaluated = 0
        """Number of orders timed."""
        self.by_rule = self._timed(np.array(list(rule_orders(factors).values())))
        """The orders that follow a rule, the listed order first."""
        self.best = min(self.by_rule)

    @classmethod
    def of_schedule(cls, schedule: Schedule, objective: Objective) -> OrderSearch:
        """Search from the order of the operations, and the factors, of a schedule."""
        factors = np.array([float(times) for times, _ in schedule.pipeline.factors])
        return cls(OrderColumns.of_schedule(schedule), factors, objective)

    def run(self, evaluations: int, bound: float = 0) -> ValuedOrder:
        """Search until `evaluations` more orders are timed, or an order reaches the bound."""
        end, current = self.evaluated + evaluations, self.best
        while self.evaluated < end and self.best.value > bound and not over():
            if len(current.order) <= ENUMERATED:
                self.best = min(self._timed(np.array([*permutations(sorted(current.order))])))
                break
            self.best = min(self.best, self._descend(current, end))
            current = self._kicked(self.best.order, KICK)
        return self.best

    def local_optimum(self, order: Order, exchanges: int) -> Order:
        """Local optimum some random exchanges away from an order."""
        return self._descend(self._kicked(order, exchanges), inf).order

    def near(self, order: Order, count: int) -> list[Order]:
        """The best neighbours of an order, among those that are timed."""
        steps = islice(self._shuffled(), min(MAX_NEAR_BATCHES, self._batches))
        timed = [
            valued
            for batch in steps
            if not over()
            for valued in self._timed(self._neighbours(order, batch))
        ]
        return [valued.order for valued in nsmallest(count, timed)]

    def _descend(self, current: ValuedOrder, end: float) -> ValuedOrder:
        """Move to the best neighbour of each batch if it is better, until no neighbour is better.

        It also ends when `evaluated` reaches `end`.
        """
        failed, steps = 0, self._shuffled()
        while failed < self._batches and self.evaluated < end and not over():
            tried = min(self._timed(self._neighbours(current.order, next(steps))))
            failed = 0 if tried.value < current.value else failed + 1
            current = min(current, tried)
        return current

    @property
    def _batches(self) -> int:
        """Number of batches of all neighbours."""
        return -(-len(self._steps) // TOGETHER)

    def _shuffled(self) -> Iterator[Ints]:
        """Steps to neighbours in random order, a batch at a time, over and over."""
        while True:
            shuffled = self._random.permutation(self._steps)
            yield from np.split(shuffled, range(TOGETHER, len(shuffled), TOGETHER))

    @staticmethod
    def _neighbours(order: Order, steps: Ints) -> Ints:
        """The orders to which steps lead, `[step, place]`."""
        neighbours = np.tile(np.array(order), (len(steps), 1))
        for row, (source, target, moves) in zip(neighbours, steps.tolist(), strict=True):
            if moves:
                row[:] = np.insert(np.delete(row, source), target, row[source])
            else:
                row[[source, target]] = row[[target, source]]
        return neighbours

    def _kicked(self, order: Order, exchanges: int) -> ValuedOrder:
        """The order after some random exchanges."""
        exchanged = np.array(order)
        for _ in range(exchanges if len(order) > 1 else 0):
            positions = self._random.choice(len(order), 2, replace=False)
            exchanged[positions] = exchanged[positions[::-1]]
        return self._timed(exchanged[None])[0]

    def _timed(self, orders: Ints) -> list[ValuedOrder]:
        self.evaluated += len(orders)
        values = self._timing.values_by_factors(self._factors[orders.T], self._objective).tolist()
        return [
            ValuedOrder(value, tuple(order))
            for value, order in zip(values, orders.tolist(), strict=True)
        ]


@lru_cache(maxsize=4)
def _steps(size: int) -> Ints:
    """Exchanges of two positions, and moves of a microbatch to a position that is not adjacent.

    A row has the two positions, and whether it is a move. With many microbatches only positions
    that are near each other count, about `MAX_STEPS` rows in total.
    """
    reach = min(size - 1, max(1, MAX_STEPS // (3 * size)))
    rows = [np.zeros((0, 3), dtype=np.int64)]
    for apart in range(1, reach + 1):
        low = np.arange(size - apart)
        pairs = [(low, low + apart, 0)]
        if apart > 1:
            pairs += [(low, low + apart, 1), (low + apart, low, 1)]
        rows += [
            np.stack([*positions, np.full_like(low, kind)], axis=1) for *positions, kind in pairs
        ]
    return np.concatenate(rows)
