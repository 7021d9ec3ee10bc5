"""The search over configurations: which one has the best schedule, with a bound over all of them.

A configuration is one way to set up a pipeline, such as a placement of its stages. Each has a bound
of its own. A configuration is closed when its bound, or the bound of its own search, reaches the
best value found in any; the best value is optimal when all are closed. Configurations are searched
with more and more effort, so that an easy one does not wait for a hard one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Protocol

from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Certificate
from ppopt.solver.bounds import device_bounds
from ppopt.solver.bounds.device_bounds import Bound
from ppopt.solver.parameters import SolveParams
from ppopt.solver.result import Progress, Provenance, Result, Status
from ppopt.solver.warm_start import WarmStart
from ppopt.verifier import checked

Key = tuple[int, ...]
"""What tells a configuration from the others, such as the device of every stage."""
Stop = Callable[[Progress], bool]
LATER = frozenset({"tiny model"})
"""Methods before the first round that are left out where many configurations are tried quickly."""


class SolveOne(Protocol):
    """The search of one configuration: `ppopt.solver.search.search_from`."""

    def __call__(
        self,
        start: WarmStart,
        problem: Problem,
        provenance: Provenance,
        progress: Callable[[Progress], None] | None = None,
        began: float | None = None,
        *,
        stop: Stop | None = None,
        params: SolveParams = SolveParams(),
    ) -> Result:
        """Search the schedule of least value of one configuration."""
        ...


@dataclass(frozen=True)
class Request:
    """What `ppopt.solve` was asked for, and the search of one configuration."""

    solve_one: SolveOne
    problem: Problem
    provenance: Provenance
    progress: Callable[[Progress], None] | None
    began: float
    stop: Stop | None
    params: SolveParams


class Space(Protocol):
    """The configurations to choose from."""

    name: str
    """What a configuration is called."""

    def pipeline(self, key: Key) -> Pipeline:
        """The pipeline of a configuration."""


@dataclass(eq=False)
class Configuration:
    """What is known of one configuration; values in the user's unit."""

    key: Key
    bound: Fraction
    """No schedule of it is below."""
    impossible: bool = False
    """Whether it is proved to have no schedule."""
    result: Result | None = None
    """Its best schedule."""
    level: int = -1
    """Effort of its last search: rounds of all methods; -1: not searched."""
    refined: bool = False
    """Whether the bounds of its pipeline are in `bound`."""

    @property
    def value(self) -> Fraction | None:
        """Objective of its best schedule."""
        return None if self.result is None else self.result.value


class Configurations:
    """The configurations known, the best schedule of any, and the bound over all."""

    def __init__(self, space: Space, request: Request, unknown: Fraction | None) -> None:
        """`unknown`: no configuration that is not added is below; None: all are added."""
        self._space, self._request, self._unknown = space, request, unknown
        self.known: dict[Key, Configuration] = {}
        self.best: Configuration | None = None
        self.interrupted = False
        self._least = unknown or Fraction(0)
        """Bound over all configurations, while any may be better than the best; it never falls."""
        self._exhausted = False
        """Whether none may be better."""

    def add(self, configurations: Iterable[Configuration]) -> None:
        """Add configurations that are not known yet."""
        for one in configurations:
            self.known.setdefault(one.key, one)
        self._raise_bound()

    @property
    def value(self) -> Fraction | None:
        """The best value found."""
        return None if self.best is None else self.best.value

    @property
    def least(self) -> Fraction:
        """No schedule of any configuration is below."""
        if self.value is None:
            return self._least
        return self.value if self._exhausted else min(self._least, self.value)

    @property
    def closed(self) -> bool:
        """Whether the best value is proved least, or there is proved to be no schedule."""
        return self._exhausted or self.value == self.least

    @property
    def none(self) -> bool:
        """Whether there is proved to be no schedule of any configuration."""
        return self._exhausted and self.value is None

    @property
    def left(self) -> float:
        """Seconds left."""
        request = self._request
        return request.began + request.provenance.time_limit - time.monotonic()

    @property
    def over(self) -> bool:
        """Whether the search ends now."""
        if self.interrupted or self.left <= 0 or self.closed:
            return True
        stop = self._request.stop
        return stop is not None and stop(self._state(f"{self._space.name}s"))

    def is_open(self, one: Configuration) -> bool:
        """Whether it may have a better schedule than the best one."""
        return not one.impossible and (self.value is None or one.bound < self.value)

    def open(self) -> list[Configuration]:
        """Those that may be better than the best, of least bounds first."""
        return sorted(
            filter(self.is_open, self.known.values()), key=lambda one: (one.bound, one.key)
        )

    def solve(self, one: Configuration, level: int) -> None:
        """Search an open configuration with so many rounds of all methods, from what is known."""
        if self.over or one.level >= level or not self.is_open(one):
            return
        problem = replace(self._request.problem, pipeline=self._space.pipeline(one.key))
        self._refine(one, problem)
        if self.is_open(one):
            self._search(one, problem, level)
        self._raise_bound()

    def _refine(self, one: Configuration, problem: Problem) -> None:
        """Bound a configuration by the bounds of its devices."""
        if one.refined:
            return
        one.refined = True
        one.impossible = device_bounds.infeasibility(problem.reduced.instance) is not None
        bound = device_bounds.known_bound(problem.reduced).value
        one.bound = max(one.bound, problem.pipeline.ticks.time(bound))

    def _search(self, one: Configuration, problem: Problem, level: int) -> None:
        request = self._request
        params = request.params
        if not level:
            params = replace(params, without=params.without | LATER)
        result = request.solve_one(
            self._known_of(one, problem),
            problem,
            replace(request.provenance, time_limit=max(self.left, 0.01)),
            lambda state: self._report(one, state),
            stop=lambda state: self._enough(one, state),
            params=replace(params, rounds=replace(params.rounds, most=level)),
        )
        one.level = level
        one.impossible |= result.status is Status.INFEASIBLE
        if result.lower_bound is not None:
            one.bound = max(one.bound, result.lower_bound)
        if result.value is not None and (one.value is None or result.value < one.value):
            one.result = result
        if one.value is not None and (self.value is None or one.value < self.value):
            self.best = one
        self.interrupted |= result.interrupted

    @staticmethod
    def _known_of(one: Configuration, problem: Problem) -> WarmStart:
        """What is known before a search: the bound of its devices is found again."""
        ticks = problem.pipeline.ticks
        known = one.result
        if known is None or known.schedule is None:
            return WarmStart()
        assert known.lower_bound is not None
        bound = Bound(ceil(known.lower_bound * ticks.per_unit), known.proof, known.certificate)
        return WarmStart(schedules=(known.schedule,), bound=bound)

    def _raise_bound(self) -> None:
        bounds = [one.bound for one in self.known.values() if self.is_open(one)]
        if self._unknown is not None and (self.value is None or self._unknown < self.value):
            bounds.append(self._unknown)
        self._exhausted = not bounds
        self._least = max(self._least, min(bounds, default=self._least))

    # What is told.

    def _words(self, one: Configuration) -> str:
        return f"{self._space.name} {','.join(map(str, one.key))}"

    def _state(self, phase: str, value: Fraction | None = None) -> Progress:
        found = [one for one in (value, self.value) if one is not None]
        seconds = time.monotonic() - self._request.began
        return Progress(seconds, phase, min(found, default=None), self.least)

    def _report(self, one: Configuration, state: Progress) -> None:
        if self._request.progress is not None:
            phase = f"{self._words(one)}, {state.phase}"
            self._request.progress(self._state(phase, state.value))

    def _enough(self, one: Configuration, state: Progress) -> bool:
        """Whether one configuration can no longer be better, or the caller has enough."""
        if self.value is not None and state.lower_bound >= self.value:
            return True
        stop = self._request.stop
        return stop is not None and stop(self._state(self._words(one), state.value))

    # The result.

    def result(self, proof: str, certificate: Certificate) -> Result:
        """The best schedule, with the bound over all configurations."""
        request, problem = self._request, self._request.problem
        best = None if self.best is None else self.best.result
        result = Result(
            pipeline=problem.pipeline if best is None else best.pipeline,
            objective=problem.objective,
            backward_kind=problem.backward_kind,
            status=self._status,
            schedule=None,
            value=self.value,
            lower_bound=None if self.none else self.least,
            proof=proof,
            certificate=certificate,
            provenance=request.provenance,
            solve_seconds=time.monotonic() - request.began,
            interrupted=self.interrupted,
        )
        if best is None or best.schedule is None:
            return result
        made = replace(best.schedule, origin=result.origin())
        return replace(result, schedule=checked(made))

    @property
    def _status(self) -> Status:
        if self.value is None:
            return Status.INFEASIBLE if self.none else Status.UNKNOWN
        return Status.OPTIMAL if self.closed else Status.FEASIBLE
