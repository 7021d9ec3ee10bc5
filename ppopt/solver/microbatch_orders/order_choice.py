"""Orders of different microbatches, combined with the other open decisions of a pipeline.

All stages run all kinds of operation in one order of the microbatches. A configuration combines an
inner configuration, such as a partition, with an order. Bounds of inner configurations hold in any
order. A small number of orders is enumerated. Otherwise local search improves the best baselines:
the order of operations on every device stays fixed, and the microbatches are exchanged.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from math import factorial, prod
from random import Random

from ppopt.cancellation import over, part
from ppopt.problem.decisions import Decisions
from ppopt.problem.microbatches import GIVEN_ORDER
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
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
    Unlisted,
)
from ppopt.solver.choices.single import SinglePipeline
from ppopt.solver.choices.spaces import check_spaces
from ppopt.solver.heuristics.construction import initial_schedules
from ppopt.solver.microbatch_orders.local_search import Order, OrderSearch

MAX_LISTED = 1000
"""Maximum number of configurations that are enumerated, and of orders of one of them."""
EVALUATIONS = 2000
"""Maximum number of orders that a local search times before the next search of schedules."""
TIMES_EACH = 4
"""Maximum number of times that it times each order, on average."""
MAX_BASELINES = 4
"""Baselines whose orders of microbatches are searched: the best with orders that follow a rule."""
BASELINE_SHARE = 0.2
"""Share of the time after which no further baseline is begun."""
MAX_FIRST, MAX_INNER = 3, 8
"""Maximum number of inner configurations whose baselines are timed, at first and in total."""
INNER_SHARE = 0.5
"""Share of perturbations that change the inner configuration, not the order."""
MAX_RAISED = 4
"""Maximum number of inner bounds that are raised between two searches."""
NEAR = 8
"""Neighbours of an order that are tried."""
KICKS = 2
"""Exchanges from one local optimum to the next."""


class OrderChoice(Choice):
    """The orders of the microbatches, for every configuration of an inner choice."""

    def __init__(self, problem: Problem, inner: Choice) -> None:
        """The bounds of `inner`, a choice for the listed order, must hold in every order.

        Raises NotApplicableError if orders cannot be searched.
        """
        check_spaces(problem, Decisions.ORDER)
        self._base = problem.pipeline.having(order=GIVEN_ORDER)
        self._problem, self.inner = problem, inner
        self._alone = isinstance(inner, SinglePipeline)
        self.name = "order" if self._alone else f"{inner.name} with order"
        self.decisions = inner.decisions or Decisions.ORDER
        """That of the inner choice: a re-check of the orders of one configuration proves nothing
        about the others."""
        self._listed_order: Order = tuple(range(self._base.batches))
        self._equal_microbatches = {
            factors: [
                index for index, candidate in enumerate(self._base.factors) if candidate == factors
            ]
            for factors in self._base.factors
        }
        self._bounded: dict[Key, Configuration] = {}
        """Inner configurations, with bounds that hold in any order."""
        self._num_listed: dict[Key, int] = {}
        """Number of leading orders that are known, per inner configuration."""
        self._listed_all: set[Key] = set()
        """Inner configurations all orders of which are known."""
        self._searches: dict[Key, list[OrderSearch]] = {}
        """Local searches over orders per inner configuration, the best first."""

    def pipeline(self, key: Key) -> Pipeline:
        """Pipeline of the inner configuration, with the microbatches in this order."""
        own, order = self._split(key)
        return self.inner.pipeline(own).reordered(order)

    def key(self, pipeline: Pipeline) -> Key | None:
        """Key of a pipeline with these microbatches; None if it is no configuration."""
        order = pipeline.order if isinstance(pipeline.order, tuple) else self._listed_order
        if len(order) != len(self._listed_order) or (
            self._base.reordered(order).factors != pipeline.factors
        ):
            return None
        own = self.inner.key(pipeline)
        return None if own is None else (*own, *self._representative(order))

    def _split(self, key: Key) -> tuple[Key, Order]:
        """Key of the inner configuration, and order."""
        width = len(key) - len(self._listed_order)
        return key[:width], key[width:]

    def _representative(self, order: Sequence[int]) -> Order:
        """The equivalent order in which equal microbatches keep the listed order."""
        interchangeable = {
            factors: iter(indices) for factors, indices in self._equal_microbatches.items()
        }
        return tuple(next(interchangeable[self._base.factors[microbatch]]) for microbatch in order)

    @property
    def num_orders(self) -> int:
        """Number of orders, up to exchanges of equal microbatches."""
        symmetries = (factorial(len(indices)) for indices in self._equal_microbatches.values())
        return factorial(self._base.batches) // prod(symmetries)

    # Bounds.

    def bound(self, ceiling: int | None = None) -> None:
        """Bound all inner configurations."""
        self.inner.bound(ceiling)

    @property
    def lower_bound(self) -> int:
        """Lower bound of all inner configurations, in any order."""
        return self.inner.lower_bound

    def configurations(self, keys: Sequence[Key]) -> Iterator[Configuration]:
        """Configurations with the bounds of their inner configurations."""
        for key in keys:
            inner = self._of([self._split(key)[0]])[0]
            yield Configuration(key, inner.bound, inner.impossible)

    def _of(self, keys: Sequence[Key]) -> list[Configuration]:
        """Inner configurations with these keys, which are stored."""
        fresh = [key for key in keys if key not in self._bounded]
        self._bounded |= {inner.key: inner for inner in self.inner.configurations(fresh)}
        return [self._bounded[key] for key in keys]

    def listed(self) -> Enumeration[Key]:
        """All configurations; partial if there are too many."""
        return self._listed

    @cached_property
    def _listed(self) -> Enumeration[Key]:
        inner = self.inner.listed()
        self._of(list(inner.members))
        if isinstance(inner, Partial) or len(inner.members) * self.num_orders > MAX_LISTED:
            return Partial()
        return Complete([(*key, *order) for key in inner.members for order in self._orders])

    @cached_property
    def _orders(self) -> list[Order]:
        """All orders."""
        orders: list[Order] = [()]
        for _ in range(self._base.batches):
            orders = [(*order, microbatch) for order in orders for microbatch in self._next(order)]
        return orders

    def _next(self, order: Order) -> list[int]:
        """Microbatches that may run next: the first remaining one of each group of equal ones."""
        remaining = (
            [index for index in indices if index not in order]
            for indices in self._equal_microbatches.values()
        )
        return [indices[0] for indices in remaining if indices]

    def rest(self, known: Container[Key], ceiling: int | None) -> Rest:
        """Unlisted orders of the inner configuration with the minimum bound.

        Every call raises the bounds of a few inner configurations, which hold in any order.
        """
        if isinstance(self._listed, Complete):
            return super().rest(known, ceiling)
        raised = 0
        while True:
            unlisted = self.inner.rest(self._bounded, ceiling)
            lowest = self._lowest_open(known, ceiling)
            if isinstance(unlisted, Unlisted) and (lowest is None or unlisted.bound < lowest.bound):
                if unlisted.key is None:
                    return unlisted
                (lowest,) = self._of([unlisted.key])
            if lowest is None:
                return NONE_LEFT
            if lowest.refined or raised == MAX_RAISED or over():
                return Unlisted(lowest.bound, self._next_key(lowest.key, known))
            self._refine(lowest)
            raised += 1

    def _lowest_open(self, known: Container[Key], ceiling: int | None) -> Configuration | None:
        """Inner configuration with the minimum bound that has orders not in `known`."""
        while True:
            below = (
                inner
                for inner in self._bounded.values()
                if not (inner.impossible or inner.key in self._listed_all)
                and (ceiling is None or inner.bound < ceiling)
            )
            lowest = min(below, key=lambda inner: (inner.bound, inner.key), default=None)
            if (
                lowest is None
                or self.num_orders > MAX_LISTED
                or self._next_key(lowest.key, known) is not None
            ):
                return lowest
            self._listed_all.add(lowest.key)

    def _next_key(self, own: Key, known: Container[Key]) -> Key | None:
        """Next order of an inner configuration; None if all are known, or if there are too many."""
        if self.num_orders > MAX_LISTED:
            return None
        number = self._num_listed.get(own, 0)
        while number < len(self._orders) and (*own, *self._orders[number]) in known:
            number += 1
        self._num_listed[own] = number
        return (*own, *self._orders[number]) if number < len(self._orders) else None

    def _refine(self, inner: Configuration) -> None:
        """Raise the bound of an inner configuration to its one-device bounds in any order."""
        inner.refined = True
        problem = self._problem_of(inner.key).reduced
        inner.impossible = device_bounds.infeasibility(problem.instance) is not None
        bound = device_bounds.known_bound(problem, any_order=True).value
        inner.raise_bound(bound)

    def _problem_of(self, own: Key) -> Problem:
        """Problem of an inner configuration in the listed order."""
        return replace(self._problem, pipeline=self.inner.pipeline(own))

    # Candidates.

    def required_candidates(self) -> list[Key]:
        """Required inner configurations in the listed order."""
        return [(*own, *self._listed_order) for own in self.inner.required_candidates()]

    def first(self) -> Iterator[Key]:
        """First inner configurations, each in the listed order and then in better orders.

        The better orders are local optima for a few inner configurations, then the last of these.
        """
        best, evaluations = self._listed_order, min(EVALUATIONS, TIMES_EACH * self.num_orders)
        for number, own in enumerate(self.inner.first()):
            yield (*own, *self._listed_order)
            searches = self._searches_of(own) if number < MAX_FIRST else []
            if searches:
                bound = self._of([own])[0].bound
                for search in searches:
                    yield (*own, *self._representative(search.run(evaluations, bound).order))
                searches.sort(key=lambda search: search.best)
                best = self._representative(searches[0].best.order)
            yield (*own, *best)

    def _searches_of(self, own: Key) -> list[OrderSearch]:
        """Local searches over orders from the best baselines of an inner configuration.

        There are none if enough inner configurations have some.
        """
        if own not in self._searches and len(self._searches) < MAX_INNER:
            self._searches[own] = self._baselines(self._problem_of(own))
        return self._searches.get(own, [])

    def _baselines(self, problem: Problem) -> list[OrderSearch]:
        """Local searches over orders, one from each of the best baselines."""
        searches = []
        with part(BASELINE_SHARE):
            for baseline in initial_schedules(problem):
                if over():
                    break
                if baseline is not None:
                    searches.append(OrderSearch.of_schedule(baseline.schedule, problem.objective))
        return sorted(searches, key=lambda search: search.best)[:MAX_BASELINES]

    def moves(self, key: Key) -> Iterator[Key]:
        """Moves of the inner configuration, and the best neighbours of the order for a baseline."""
        own, order = self._split(key)
        yield from ((*neighbour, *order) for neighbour in self.inner.moves(own))
        for search in self._nearest_searches(own)[:1]:
            for near in search.near(order, NEAR):
                yield (*own, *self._representative(near))

    def _nearest_searches(self, own: Key) -> list[OrderSearch]:
        """Local searches of an inner configuration, or else the latest ones."""
        return self._searches_of(own) or next(reversed(self._searches.values()), [])

    def perturbed(self, key: Key, random: Random) -> Key | None:
        """A random inner neighbour, or a local optimum of the order after random exchanges.

        None if all configurations are enumerated.
        """
        own, order = self._split(key)
        searches = self._nearest_searches(own)
        if isinstance(self._listed, Complete) or not searches:
            return None
        neighbour = self.inner.perturbed(own, random) if random.random() < INNER_SHARE else None
        if neighbour is not None:
            return (*neighbour, *order)
        return (*own, *self._representative(random.choice(searches).local_optimum(order, KICKS)))

    # Proofs.

    def proof(self, search: SearchedConfigurations) -> str:
        """Text of the argument behind the bound over all orders."""
        scope = f"{self.num_orders:,} orders of {self._base.batches} microbatches"
        if not self._alone:
            scope = f"choices of {self.inner.name} in all {scope}"
        if search.infeasible:
            return f"none of the {scope} fits the memory limits{self._reason}"
        if isinstance(self._listed, Complete) and search.closed:
            return (
                f"all {scope} need at least this long: {search.ruled_out} are excluded by their "
                f"bounds, {search.searched} were searched"
            )
        if self._alone:
            proof = self.inner.proof(search)
            return f"in each of the {scope}, {proof}; {search.searched} were searched"
        if search.closed:
            return (
                f"over all {scope}: bounds of one device, which hold in any order, rule out all "
                f"but {search.examined}; the schedules of these, or of subsets of their devices, "
                "were searched"
            )
        return (
            f"over all {scope}: no bound of one device, which holds in any order, is lower; "
            f"{search.searched} were searched"
        )

    @property
    def _reason(self) -> str:
        """Why no inner configuration is within the memory limits in any order; empty: unknown."""
        rest = self.inner.rest(self._bounded, None)
        fits = any(not inner.impossible for inner in self._bounded.values())
        if fits or isinstance(rest, Unlisted):
            return ""
        excluded = SearchedConfigurations(0, known=dict(self._bounded))
        excluded.raise_to(Complete())
        return f": {self.inner.proof(excluded)}"
