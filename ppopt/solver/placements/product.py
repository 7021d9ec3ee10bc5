"""Combines every placement with the partitions or recompute assignments of its pipeline.

Among placements that differ only by exchanging identical devices, one representative is used; it
has an inner choice. A key is the device of every stage, then the key of the inner choice. The least
bound of all is the least of all placements, and configurations come in the order of the bounds of
all placements together.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import zip_longest

from ppopt.errors import NotApplicableError
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Argument
from ppopt.solver.choices.choice import (
    Choice,
    Configuration,
    Key,
    SearchedConfigurations,
    UnlistedBound,
)
from ppopt.solver.deadline import Deadline
from ppopt.solver.placements.space import Hosts, PlacementSpace

MOST_TOGETHER = 120
"""Most placements with an inner choice: all assignments of four stages to two devices, or five
devices that all differ in any order."""
SET_UP = 0.5
"""Most of the time left in which the inner choices are set up."""
Inner = Callable[[Pipeline], Choice]
"""Makes the inner choice of a pipeline whose placement is given."""


class PlacementProduct(Choice):
    """Every placement with the choice of its pipeline, as many as are set up in time."""

    argument = Argument.SEARCH

    def __init__(self, problem: Problem, inner: Inner, deadline: Deadline) -> None:
        """`deadline` is that of the search.

        Raises NotApplicableError if placements or the inner choice cannot be searched.
        """
        self._space = PlacementSpace(problem)
        self._stages = self._space.num_stages
        placements = self._space.listed
        if placements is None or len(placements) > MOST_TOGETHER:
            raise NotApplicableError(
                f"placement: search with a search of partition or recompute takes at most "
                f"{MOST_TOGETHER} placements, here are {self._space.size}; search the placement "
                "alone, then give the one found"
            )
        simple = dict.fromkeys(map(self._space.representative, self._space.simple()))
        order = [*simple, *(hosts for hosts in placements if hosts not in simple)]
        setting_up = deadline.share(SET_UP)
        self._inner: dict[Hosts, Choice] = {}
        for hosts in order:
            if self._inner and setting_up.over:
                break
            self._inner[hosts] = inner(self._space.pipeline(hosts))
        self._left_out = len(order) - len(self._inner)
        """Number of placements that were not set up in time."""
        self._least_left_out = _least_of_all(problem) if self._left_out else None
        """Lower bound of the placements left out; None if there are none."""
        own = next(iter(self._inner.values())).name
        self.name = f"placement with {own}"

    def _of(self, key: Key) -> tuple[Hosts, Choice, Key]:
        """Placement of a key, its inner choice, and the inner key."""
        hosts = key[: self._stages]
        return hosts, self._inner[hosts], key[self._stages :]

    def pipeline(self, key: Key) -> Pipeline:
        """Pipeline of a placement and an inner configuration."""
        _, choice, own = self._of(key)
        return choice.pipeline(own)

    def key(self, pipeline: Pipeline) -> Key | None:
        """Key of a pipeline; None if it has another representative."""
        hosts = pipeline.hosts[0]
        own = self._inner[hosts].key(pipeline) if hosts in self._inner else None
        return None if own is None else (*hosts, *own)

    def configurations(self, keys: Sequence[Key]) -> Iterator[Configuration]:
        """Configurations with their bounds."""
        for key in keys:
            hosts, choice, own = self._of(key)
            for configuration in choice.configurations([own]):
                configuration.key = (*hosts, *configuration.key)
                yield configuration

    def bound(self, deadline: Deadline, ceiling: Fraction | None = None) -> None:
        """Bound the configurations of every placement until the deadline."""
        for place, choice in enumerate(self._inner.values()):
            choice.bound(deadline.share(1 / (len(self._inner) - place)), ceiling)

    @property
    def lower_bound(self) -> Fraction:
        """Lower bound of all placements."""
        known = [choice.lower_bound for choice in self._inner.values()]
        return min(known if self._least_left_out is None else [*known, self._least_left_out])

    def listed(self) -> list[Key]:
        """Configurations of all placements whose inner choice lists its own."""
        each = self._inner.items()
        return [key for hosts, choice in each for key in _keys(hosts, choice.listed())]

    def first(self) -> Iterator[Key]:
        """First configuration of every placement, then the second ones, and so on."""
        rows = [_keys(hosts, choice.first()) for hosts, choice in self._inner.items()]
        for together in zip_longest(*rows):
            yield from (key for key in together if key is not None)

    def moves(self, key: Key) -> Iterator[Key]:
        """Moves within the placement; the same inner configuration on neighbouring placements."""
        hosts, choice, own = self._of(key)
        yield from _keys(hosts, choice.moves(own))
        pipeline = choice.pipeline(own)
        for other in dict.fromkeys(map(self._space.representative, self._space.moves(hosts))):
            if other in self._inner and (same := self._inner[other].key(pipeline)) is not None:
                yield (*other, *same)

    def unlisted_bound(
        self, known: Container[Key], ceiling: Fraction | None
    ) -> UnlistedBound | None:
        """Least bound of all placements; None if no inner choice has an unlisted one."""
        found = [] if self._least_left_out is None else [UnlistedBound(self._least_left_out)]
        for hosts, choice in self._inner.items():
            one = choice.unlisted_bound(_Placed(hosts, known), ceiling)
            if one is not None:
                key = None if one.key is None else (*hosts, *one.key)
                found.append(UnlistedBound(one.bound, key))
        return min(found, key=lambda one: (one.bound, one.key is not None), default=None)

    def proof(self, search: SearchedConfigurations) -> str:
        """Text of the argument behind the bound over all placements."""
        scope = (
            f"all {self._space.size} placements of {self._stages} stages that use all "
            f"{self._space.num_devices} devices, {len(self._inner) + self._left_out} once devices "
            "that are alike are exchanged, each with all its configurations"
        )
        if search.infeasible:
            return f"none of {scope} keeps the memory limits"
        if self._left_out:
            return (
                f"over {scope}: {self._left_out} were not set up in time, and have the bound of "
                f"all; of the others {search.searched} configurations were searched"
            )
        return (
            f"over {scope}: every one but {search.examined} is ruled out by bounds of one device "
            f"alone; of these {search.examined}, {search.searched} were searched"
        )


def _least_of_all(problem: Problem) -> Fraction:
    """Lower bound of all placements with any partition and recompute."""
    pipeline = problem.pipeline
    model = pipeline.model.recomputing(lambda _: False)
    bare = replace(pipeline, model=model, recompute=None)
    return PlacementSpace(replace(problem, pipeline=bare)).lower_bound


def _keys(hosts: Hosts, own: Iterable[Key]) -> Iterator[Key]:
    """Keys of the configurations of one placement."""
    return ((*hosts, *key) for key in own)


class _Placed:
    """The known configurations of one placement."""

    def __init__(self, hosts: Hosts, known: Container[Key]) -> None:
        self._hosts, self._known = hosts, known

    def __contains__(self, key: object) -> bool:
        return isinstance(key, tuple) and (*self._hosts, *key) in self._known
