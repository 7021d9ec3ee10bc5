"""Orders of different microbatches, as configurations of a search.

A small number of orders is enumerated. Otherwise local search improves the best baselines: the
order of operations on every device stays fixed, and the microbatches are exchanged.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from math import factorial, prod
from random import Random

from ppopt.problem.microbatches import GIVEN_ORDER
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Argument
from ppopt.solver.bounds import device_bounds
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.configuration import Configuration, SearchedConfigurations
from ppopt.solver.choices.enumeration import (
    NONE_LEFT,
    Complete,
    Enumeration,
    Key,
    Partial,
    Rest,
)
from ppopt.solver.choices.spaces import ORDERS
from ppopt.solver.deadline import Deadline
from ppopt.solver.heuristics.construction import initial_schedules
from ppopt.solver.microbatch_orders.local_search import Order, OrderSearch

MAX_LISTED = 1000
"""Maximum number of orders that are enumerated."""
EVALUATIONS = 2000
"""Orders that a local search times before the next search of schedules."""
MAX_BASELINES = 4
"""Number of baselines whose orders of microbatches are searched."""
BASELINE_SHARE = 0.2
"""Share of the time after which no other baseline is started."""
NEAR = 8
"""Neighbours of an order that are tried."""
KICKS = 2
"""Exchanges from one local optimum to the next."""


class OrderChoice(Choice):
    """The orders in which every stage runs every kind of operation of the microbatches."""

    name = "order"
    argument = Argument.ORDERS

    def __init__(self, problem: Problem, deadline: Deadline) -> None:
        """Raises NotApplicableError if orders cannot be searched."""
        ORDERS.check(problem)
        self._base = replace(problem.pipeline, order=GIVEN_ORDER)
        self._problem, self._deadline = replace(problem, pipeline=self._base), deadline
        self._equal_microbatches = {
            factors: [
                index for index, candidate in enumerate(self._base.factors) if candidate == factors
            ]
            for factors in self._base.factors
        }
        self._bound = device_bounds.known_bound(self._problem, any_order=True)
        self._infeasible = device_bounds.infeasibility(self._problem.instance)
        self._searches: list[OrderSearch] = []

    def pipeline(self, key: Key) -> Pipeline:
        """Pipeline whose microbatches run in this order."""
        return self._base.reordered(key)

    def key(self, pipeline: Pipeline) -> Key | None:
        """Order of a pipeline with these microbatches; None if its microbatches are different."""
        order = pipeline.order if isinstance(pipeline.order, tuple) else self._listed_order
        same = self._base.reordered(order).factors == pipeline.factors
        return self._representative(order) if same else None

    def _representative(self, order: Sequence[int]) -> Order:
        """The equivalent order in which equal microbatches keep the listed order."""
        interchangeable = {
            factors: iter(indices) for factors, indices in self._equal_microbatches.items()
        }
        return tuple(next(interchangeable[self._base.factors[microbatch]]) for microbatch in order)

    @property
    def _listed_order(self) -> Order:
        return tuple(range(self._base.batches))

    @property
    def size(self) -> int:
        """Number of orders, up to exchanges of equal microbatches."""
        symmetries = (factorial(len(indices)) for indices in self._equal_microbatches.values())
        return factorial(self._base.batches) // prod(symmetries)

    @property
    def lower_bound(self) -> Fraction:
        """Lower bound of all orders, in the user's unit."""
        return self._base.ticks.time(self._bound.value)

    def configurations(self, keys: Sequence[Key]) -> Iterable[Configuration]:
        """Orders with the bound over all orders."""
        impossible = self._infeasible is not None
        return [Configuration(key, self.lower_bound, impossible) for key in keys]

    def listed(self) -> Enumeration[Key]:
        """All orders; partial if there are too many."""
        return self._listed

    @cached_property
    def _listed(self) -> Enumeration[Key]:
        if self.size > MAX_LISTED:
            return Partial()
        orders: list[Order] = [()]
        for _ in range(self._base.batches):
            orders = [(*order, microbatch) for order in orders for microbatch in self._next(order)]
        return Complete(orders)

    def _next(self, order: Order) -> list[int]:
        """Microbatches that may run next: the first remaining one of each group of equal ones."""
        remaining = (
            [index for index in indices if index not in order]
            for indices in self._equal_microbatches.values()
        )
        return [indices[0] for indices in remaining if indices]

    def rest(self, known: Container[Key], ceiling: Fraction | None) -> Rest:
        """Orders that are not listed; none if memory excludes all of them."""
        return NONE_LEFT if self._infeasible is not None else super().rest(known, ceiling)

    def first(self) -> Iterator[Order]:
        """Local optima of the best baselines, and the given order."""
        self._searches = self._baselines()
        for search in self._searches:
            yield self._representative(search.run(EVALUATIONS, self._bound.value).order)
        self._searches.sort(key=lambda search: search.best)
        yield self._listed_order

    def _baselines(self) -> list[OrderSearch]:
        """Local searches over orders, one from each of the best baselines."""
        searches = []
        for baseline in initial_schedules(self._problem, self._deadline.share(BASELINE_SHARE).end):
            if self._deadline.over:
                break
            if baseline is not None:
                objective, stop = self._problem.objective, lambda: self._deadline.over
                searches.append(OrderSearch.of_schedule(baseline.schedule, objective, stop))
        return sorted(searches, key=lambda search: search.best)[:MAX_BASELINES]

    def moves(self, key: Key) -> Iterator[Order]:
        """The best neighbours of an order, in the order of operations of the best baseline."""
        if self._searches:
            yield from map(self._representative, self._searches[0].near(key, NEAR))

    def perturbed(self, key: Key, random: Random) -> Order | None:
        """Local optimum after some random exchanges; None if all orders are enumerated."""
        if isinstance(self._listed, Complete) or not self._searches:
            return None
        search = random.choice(self._searches)
        return self._representative(search.local_optimum(key, KICKS))

    def proof(self, search: SearchedConfigurations) -> str:
        """Text of the argument behind the bound over all orders."""
        scope = f"{self.size:,} orders of {self._base.batches} microbatches"
        if search.infeasible:
            reason = f": {self._infeasible}" if self._infeasible else ""
            return f"none of the {scope} fits the memory limits{reason}"
        if isinstance(self._listed, Complete) and search.closed:
            return (
                f"all {scope} need at least this long: {search.ruled_out} are excluded by their "
                f"bounds, {search.searched} were searched"
            )
        return f"in each of the {scope}, {self._bound.proof}; {search.searched} were searched"
