"""The search of one configuration as a task: its problem, its warm start, its options and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from ppopt.cancellation import shield, within
from ppopt.errors import VerificationError
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.schedule.orders import convert_backwards, portable
from ppopt.schedule.origin import Argument, Certificate
from ppopt.schedule.schedule import Schedule
from ppopt.solver.bound import Bound
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.configuration import Configuration, SearchedConfigurations
from ppopt.solver.choices.enumeration import Key
from ppopt.solver.engines.engine import ALONE, Link, SearchDone
from ppopt.solver.heuristics.construction import ListScheduling
from ppopt.solver.options import SolveOptions
from ppopt.solver.result import Result
from ppopt.solver.search import search_from
from ppopt.solver.warm_start import WarmStart

MIN_SEARCH = 0.01
"""Minimum seconds of a search."""


class SearchTask(NamedTuple):
    """The search of one configuration."""

    problem: Problem
    start: WarmStart
    options: SolveOptions
    """Options; their time limit is not used."""
    seconds: float
    """Time limit in seconds."""
    level: int = -1
    """Effort, in rounds of all methods; -1: an improvement."""
    patience: float = inf
    """Maximum seconds without a better schedule, if the search is alone."""

    @classmethod
    def improving(
        cls,
        problem: Problem,
        start: WarmStart,
        options: SolveOptions,
        seconds: float,
        patience: float = inf,
    ) -> SearchTask:
        """Search for a better schedule only."""
        from ppopt.solver.portfolio import left_out_when_improving  # noqa: PLC0415  loads ortools

        own = options.without(left_out_when_improving(problem.reduced))
        return cls(problem, start, own, max(seconds, MIN_SEARCH), patience=patience)

    @property
    def workers(self) -> int:
        """Number of processors that the search uses."""
        return self.options.workers

    def detached(self, workers: int) -> SearchTask:
        """The search in another process, with so many workers."""
        return self._replace(options=replace(self.options.detached, workers=workers))

    def perform(self, link: Link = ALONE) -> SearchDone[Result]:
        """Search in the time left, until the link ends it."""
        with within(self.seconds):
            options = self.options.in_scope(link.progress, link.stop)
        try:
            with shield():
                return SearchDone(outcome=search_from(self.start, self.problem, options))
        except VerificationError as error:
            return SearchDone(outcome=error)


class SearchTasks:
    """Makes the tasks of a search over configurations."""

    def __init__(
        self,
        choice: Choice,
        problem: Problem,
        options: SolveOptions,
        searched: SearchedConfigurations,
    ) -> None:
        """`problem` has the pipeline of any configuration."""
        self._choice, self._problem, self._options = choice, problem, options
        self._searched = searched
        self._starts: dict[Key, list[Schedule]] = {}
        """Schedules from which the next search of a configuration starts, by key."""

    def start_from(self, key: Key, schedule: Schedule) -> None:
        """Start the next search of a configuration from a schedule, too."""
        self._starts.setdefault(key, []).append(schedule)

    def problem(self, configuration: Configuration) -> Problem:
        """The problem of a configuration."""
        pipeline = self._choice.pipeline(configuration.key)
        assert pipeline.grid.time == self._problem.pipeline.grid.time, "all share ticks"
        return replace(self._problem, pipeline=pipeline)

    def rounds(self, configuration: Configuration, max_rounds: int, seconds: float) -> SearchTask:
        """Search with so many rounds of all methods; 0: a quick search, in a share of the time.

        A quick search of a large configuration that has a schedule tries no priority rules: there
        are many, and strategies are mostly better.
        """
        params, options = self._options.params, self._options.with_max_rounds(max_rounds)
        problem, num_operations = self.problem(configuration), self._problem.num_operations
        if not max_rounds:
            seconds *= params.configurations.quick_share
        if not max_rounds and problem.num_operations > params.plan.max_reproducible:
            seconds = min(seconds, params.configurations.quick_per_operation * num_operations)
            if configuration.key in self._starts:
                options = options.without({ListScheduling.name})
        start = self._warm_start(configuration, problem)
        return SearchTask(problem, start, options, max(seconds, MIN_SEARCH), level=max_rounds)

    def improvement(
        self, configuration: Configuration, seconds: float, patience: float = inf
    ) -> SearchTask:
        """Search for a better schedule only."""
        problem = self.problem(configuration)
        start = self._warm_start(configuration, problem)
        return SearchTask.improving(problem, start, self._options, seconds, patience)

    def _warm_start(self, configuration: Configuration, problem: Problem) -> WarmStart:
        """Warm start of a search: the bound, its own schedule, and the best order of all."""
        bound = Bound(
            configuration.in_ticks(configuration.bound),
            "bounded before its search",
            Certificate(Argument.SEARCH),
        )
        schedules: Sequence[Schedule | None] = self._starts.pop(configuration.key, [])
        best = self._searched.best
        if best is not None and best is not configuration:
            schedules = [*schedules, best.schedule]
        carried = (_retimed(schedule, problem) for schedule in filter(None, schedules))
        known = filter(None, (configuration.schedule, *carried))
        return WarmStart(schedules=tuple(known), bound=bound)


def _retimed(schedule: Schedule, problem: Problem) -> Schedule | None:
    """Time the order of a schedule for another configuration of the same placement."""
    own, source = problem.pipeline, schedule.pipeline
    if (source.hosts, source.batches) != (own.hosts, own.batches):
        return None
    orders = convert_backwards(problem.pipeline, portable(schedule), problem.reduced.backward_kind)
    return timing.schedule(problem.pipeline, orders, problem.objective)
