"""One configuration of a plan: its bound, and the search of it with more and more effort."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import inf
from typing import NamedTuple

from ppopt.problem.partition import SEARCH
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule.schedule import Schedule
from ppopt.solver.bounds import device_bounds
from ppopt.solver.parameters import SolveParams
from ppopt.solver.partitions.partition_bounds import bounds_of, quick_bound
from ppopt.solver.partitions.search import PartitionSearch
from ppopt.solver.partitions.space import FOREVER, PartitionSpace, space_of
from ppopt.solver.result import Progress, Provenance, Result, Status
from ppopt.solver.search import Stop, search_from
from ppopt.solver.warm_start import WarmStart
from ppopt.studies.plan_space import PlanConfiguration


class Effort(NamedTuple):
    """How far the search of a configuration goes."""

    rounds: int
    """Rounds of all methods on one partition, at most; 0: heuristics alone."""
    partitions: float = inf
    """Partitions that are searched, at most."""


class Request(NamedTuple):
    """What the search of a configuration needs from the plan."""

    provenance: Provenance
    began: float
    """Start of the plan, of `time.monotonic`: its time limit counts from there."""
    params: SolveParams
    progress: Callable[[Progress], None]
    stop: Stop
    ceiling: Callable[[], Fraction | None]
    """Values from here on are of no use: the best schedule known is as good."""


class Candidate:
    """What is known of one configuration; values in the user's unit."""

    def __init__(self, configuration: PlanConfiguration, problem: Problem) -> None:
        self.configuration = configuration
        self.problem = problem
        self.bound = Fraction(0)
        """No schedule of it is below."""
        self.impossible = False
        """Whether none of its schedules keeps the memory limits."""
        self.result: Result | None = None
        """Its best schedule, or why there is none, once it is searched."""
        self.searches = 0
        """Searches of single partitions that were made."""
        self._solved: dict[tuple[Pipeline, int | None], Result] = {}

    @property
    def value(self) -> Fraction | None:
        """Objective of its best schedule."""
        return None if self.result is None else self.result.value

    @property
    def schedule(self) -> Schedule | None:
        """Its best schedule."""
        return None if self.result is None else self.result.schedule

    def per_microbatch(self, time: Fraction) -> Fraction:
        """A time of the configuration for each of its microbatches."""
        return time / self.configuration.batches

    def raise_bound(self, deadline: float) -> None:
        """Bound it without any search; raises TimeoutError after the deadline."""
        if self.problem.pipeline.partition == SEARCH:
            ticks = space_of(self.problem)
            self.bound = Fraction(quick_bound(ticks.space), ticks.per_unit)
            self.impossible = _needs_too_much(ticks.space)
            least = FOREVER if self.impossible else bounds_of(ticks.space, deadline).least
            self.impossible = least >= FOREVER
            bound = Fraction(0 if self.impossible else least, ticks.per_unit)
        else:
            reduced = self.problem.reduced
            self.impossible = device_bounds.infeasibility(reduced.instance) is not None
            bound = reduced.pipeline.ticks.time(device_bounds.known_bound(reduced).value)
        self.bound = max(self.bound, bound)

    def search(self, effort: Effort, request: Request) -> None:
        """Search it, beginning where the last search ended; the effort must not be less."""
        if self.problem.pipeline.partition == SEARCH:
            found = self._partitions(effort, request)
        else:
            found = self._one(effort, request)
        self.impossible |= found.status is Status.INFEASIBLE
        if found.lower_bound is not None:
            self.bound = max(self.bound, found.lower_bound)
        if self.value is None or (found.value is not None and found.value < self.value):
            self.result = found

    def _partitions(self, effort: Effort, request: Request) -> Result:
        """Search all partitions.

        Every search of a partition is kept. A later search, of more effort, asks for these again
        first, and takes the same way.
        """
        asked = 0

        def solve_one(
            start: WarmStart,
            problem: Problem,
            provenance: Provenance,
            progress: Callable[[Progress], None] | None = None,
            began: float | None = None,
            *,
            stop: Stop | None = None,
            params: SolveParams = SolveParams(),
        ) -> Result:
            nonlocal asked
            rounds = params.rounds.most or 0
            key = problem.pipeline, rounds
            asked += 1
            if rounds > effort.rounds or asked > effort.partitions:
                raise TimeoutError
            if key not in self._solved:
                self._solved[key] = search_from(
                    start,
                    problem,
                    provenance,
                    progress,
                    began,
                    stop=lambda state: _enough(state, request, stop),
                    params=params,
                )
                self.searches += 1
            return self._solved[key]

        return PartitionSearch(
            solve_one,
            self.problem,
            request.provenance,
            request.progress,
            request.began,
            lambda state: _enough(state, request),
            request.params,
        ).run()

    def _one(self, effort: Effort, request: Request) -> Result:
        """Search the one partition that is given."""
        key = self.problem.pipeline, effort.rounds
        if key not in self._solved:
            params = request.params
            made = () if self.schedule is None else (self.schedule,)
            self._solved[key] = search_from(
                WarmStart(schedules=made),
                self.problem,
                request.provenance,
                request.progress,
                request.began,
                stop=lambda state: _enough(state, request),
                params=replace(params, rounds=replace(params.rounds, most=effort.rounds)),
            )
            self.searches += 1
        return self._solved[key]


def _needs_too_much(space: PartitionSpace) -> bool:
    """Whether one microbatch alone needs more than the memory of all devices, however it is cut.

    A device comes to hold its static memory and what F of one microbatch leaves behind in each of
    its stages. Summed over the devices, that is the same in all partitions.
    """
    if space.limits is None:
        return False
    return sum(space.layers.static) + sum(space.layers.activation) > sum(space.limits)


def _enough(state: Progress, request: Request, stop: Stop | None = None) -> bool:
    """Whether what is searched cannot be better than the best schedule, or shall end anyway."""
    ceiling = request.ceiling()
    if ceiling is not None and state.lower_bound >= ceiling:
        return True
    return request.stop(state) or (stop is not None and stop(state))
