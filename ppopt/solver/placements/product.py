"""Combines every placement with the partitions or recompute assignments of its pipeline.

Of placements that differ only by exchanging identical devices, one representative is used. It has
an inner choice. A key is the device of every stage, then the key of the inner choice.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import replace
from itertools import islice
from math import inf

from ppopt.cancellation import seconds_left
from ppopt.errors import NotApplicableError
from ppopt.problem.decisions import Decisions
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.configuration import SearchedConfigurations
from ppopt.solver.choices.enumeration import Key, Rest, Unlisted, min_rest
from ppopt.solver.choices.product import ProductChoice
from ppopt.solver.placements.space import Hosts, PlacementSpace

MAX_PLACEMENTS = 120
"""Maximum number of placements with an inner choice: all assignments of four stages to two devices,
or of five different devices in any order."""
SET_UP = 0.5
"""Maximum share of the remaining time for setting up the inner choices."""
Inner = Callable[[Pipeline], Choice]
"""Creates the inner choice of a pipeline with a fixed placement."""


class PlacementProduct(ProductChoice):
    """Placements with the choice of their pipelines, as many as are set up in time."""

    def __init__(self, problem: Problem, inner: Inner) -> None:
        """Raises NotApplicableError if placements or the inner choice cannot be searched."""
        self._space = PlacementSpace(problem)
        self._stages = self._space.num_stages
        listed = list(islice(self._space.representatives(), MAX_PLACEMENTS + 1))
        if len(listed) > MAX_PLACEMENTS:
            raise NotApplicableError(
                f"placement: search with a search of partition or recompute takes at most "
                f"{MAX_PLACEMENTS} placements, here are {self._space.size}; search the placement "
                "alone, then give the one found"
            )
        simple = dict.fromkeys(map(self._space.representative, self._space.simple()))
        order = [*simple, *(hosts for hosts in listed if hosts not in simple)]
        reserve = (1 - SET_UP) * seconds_left()
        choices: dict[Hosts, Choice] = {}
        for hosts in order:
            if choices and seconds_left() <= reserve < inf:
                break
            choices[hosts] = inner(self._space.pipeline(hosts))
        super().__init__(choices)
        self._num_omitted = len(order) - len(choices)
        """Number of placements that were not set up in time."""
        self._omitted_bound = _bound_of_all(problem) if self._num_omitted else None
        """Lower bound of the omitted placements; None if there are none."""
        own = next(iter(choices.values()))
        self.name = f"placement with {own.name}"
        self.decisions = Decisions.PLACEMENT | own.decisions

    def prefixes(self, pipeline: Pipeline) -> list[Hosts]:
        """Placement of a pipeline; empty if it has another representative."""
        hosts = pipeline.hosts[0]
        return [hosts] if hosts in self.inner else []

    @property
    def lower_bound(self) -> int:
        """Lower bound of all placements."""
        known = super().lower_bound
        return known if self._omitted_bound is None else min(known, self._omitted_bound)

    def moves(self, key: Key) -> Iterator[Key]:
        """Moves within the placement; the same inner configuration on neighbouring placements."""
        yield from super().moves(key)
        hosts, pipeline = key[: self._stages], self.pipeline(key)
        for neighbour in dict.fromkeys(map(self._space.representative, self._space.moves(hosts))):
            if (
                neighbour in self.inner
                and (same := self.inner[neighbour].key(pipeline)) is not None
            ):
                yield (*neighbour, *same)

    def rest(self, known: Container[Key], ceiling: int | None) -> Rest:
        """Unlisted configurations of all placements, including the omitted ones."""
        rest = super().rest(known, ceiling)
        if self._omitted_bound is None:
            return rest
        return min_rest([rest, Unlisted(self._omitted_bound)])

    def proof(self, search: SearchedConfigurations) -> str:
        """Text of the argument behind the bound over all placements."""
        scope = (
            f"all {self._space.size} placements of {self._stages} stages that use all "
            f"{self._space.num_devices} devices ({len(self.inner) + self._num_omitted} without "
            "exchanges of equal devices), each with all its configurations"
        )
        if search.infeasible:
            return f"none of {scope} fits the memory limits"
        if self._num_omitted:
            return (
                f"{scope}, need at least this long: {self._num_omitted} were not set up in time "
                f"and have the bound of all; {search.searched} configurations were searched"
            )
        return (
            f"{scope}, need at least this long: all configurations but {search.examined} are "
            f"excluded by the time of one device; of these {search.examined}, {search.searched} "
            "were searched"
        )


def _bound_of_all(problem: Problem) -> int:
    """Lower bound of all placements with any partition and recompute."""
    pipeline = problem.pipeline
    model = pipeline.model.recomputing(lambda _: False)
    bare = pipeline.with_layers(model=model, recompute=None)
    return PlacementSpace(replace(problem, pipeline=bare)).lower_bound
