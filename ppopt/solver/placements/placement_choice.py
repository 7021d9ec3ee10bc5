"""Candidate placements of a search.

A small space is enumerated, and every placement is bounded, which excludes most of them. A large
space has one common bound; the search tries the named placements (linear, interleaved, v) and
neighbours of the best placement: two devices exchanged, or one stage moved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from random import Random

from ppopt.problem import exact
from ppopt.problem.decisions import Decisions
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.solver.bounds import device_bounds
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.configuration import Configuration, SearchedConfigurations
from ppopt.solver.choices.enumeration import Complete, Enumeration, Key, Partial
from ppopt.solver.placements.space import Hosts, PlacementSpace

PERTURBATION = 4
"""Number of random moves from the best placement, when no move improves it.
"""
MAX_MEASURED = 1000
"""Maximum number of placements whose minimum memory limits are compared if none is feasible."""


class PlacementChoice(Choice):
    """The placements of a problem's stages on its devices."""

    name = "placement"
    decisions = Decisions.PLACEMENT

    def __init__(self, problem: Problem) -> None:
        """Raises NotApplicableError if placements cannot be searched."""
        self._problem = problem
        self._space = PlacementSpace(problem)

    def pipeline(self, key: Key) -> Pipeline:
        """Pipeline with its stages on these devices."""
        return self._space.pipeline(key)

    def key(self, pipeline: Pipeline) -> Key | None:
        """Devices of the stages; None if another placement is its representative."""
        hosts = pipeline.hosts[0]
        return hosts if hosts == self._space.representative(hosts) else None

    def configurations(self, keys: Sequence[Key]) -> Iterable[Configuration]:
        """Placements with their bounds; those over the memory limits are impossible."""
        return self._space.configurations(keys)

    def listed(self) -> Enumeration[Key]:
        """All representatives; partial if there are too many."""
        return self._space.listed

    @property
    def lower_bound(self) -> int:
        """Lower bound of all placements."""
        return self._space.lower_bound

    def first(self) -> Iterator[Hosts]:
        """Named placements; if not all are enumerated, also their local optima."""
        space, simple = self._space, self._space.simple()
        yield from map(space.representative, simple)
        if isinstance(space.listed, Partial):
            yield from map(space.representative, map(space.local_optimum, simple))

    def moves(self, key: Key) -> Iterator[Hosts]:
        """Placements that exchange two devices, or move one stage to another device."""
        return self._space.moves(key)

    def perturbed(self, key: Key, random: Random) -> Hosts | None:
        """Local optimum after some random moves; None if all placements are enumerated."""
        space, hosts = self._space, key
        if isinstance(space.listed, Complete):
            return None
        for _ in range(PERTURBATION):
            hosts = random.choice(list(space.moves(hosts)))
        return space.representative(space.local_optimum(hosts))

    def proof(self, search: SearchedConfigurations) -> str:
        """Text of the argument behind the bound over all placements."""
        if search.infeasible:
            return self._infeasible(search.known)
        if isinstance(self._space.listed, Partial):
            return (
                f"all {self._scope} need at least this long, by the work of all devices together, "
                "the stages that fit on them, the longest stage, or the latency of one microbatch; "
                f"{search.searched} were searched"
            )
        num_open = sum(map(search.is_open, search.known.values()))
        text = (
            f"all {self._scope} need at least this long: {search.ruled_out} are excluded by their "
            "bounds (memory for one microbatch, time of one device"
            f"{' or of several' if search.subsets_ruled_out else ''}, latency of one microbatch), "
            f"{search.searched} were searched"
        )
        if num_open and not search.closed:
            text += f"; {num_open} remain open"
        return text

    @property
    def _scope(self) -> str:
        """Text on the number of placements."""
        space, listed = self._space, self._space.listed
        text = (
            f"{space.size:,} placements of {space.num_stages} stages that use all "
            f"{space.num_devices} devices"
        )
        if isinstance(listed, Complete) and len(listed.members) < space.size:
            text += f", {len(listed.members)} without exchanges of equal devices"
        if space.repartition_per_placement:
            text += ", each with its own balanced partition"
        return text

    def _infeasible(self, known: Collection[Hosts]) -> str:
        """Text on why no placement has a schedule, with the minimum limit if it is known."""
        text = f"none of the {self._scope} fits the memory limits"
        if len(known) > MAX_MEASURED:
            return text
        needs = []
        for hosts in known:
            pipeline = self._space.pipeline(hosts)
            minimum = max(
                device_bounds.minimum_memory(replace(self._problem, pipeline=pipeline).instance)
            )
            needs.append((pipeline.ticks.memory(minimum), hosts))
        need, hosts = min(needs)
        return (
            f"{text}; the minimum feasible limit for all devices is about "
            f"{exact.plain(need)}, with placement {','.join(map(str, hosts))}"
        )
