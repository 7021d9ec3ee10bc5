"""The driver of a search over configurations: its end, its cutoffs, its processes, its reports.

`ConfigurationSearch` decides which configurations to search. The driver runs these searches,
several at once if there are workers for it, and records their results. It decides when they end:
with the enclosing scopes (`ppopt.cancellation`), as the caller's stop criterion says, at the
cutoff, or with a proof. It reports the state of all of them as that of one search.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

from ppopt.cancellation import over
from ppopt.problem.exact import min_known
from ppopt.problem.problem import Problem
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.configuration import (
    EVALUATED,
    Configuration,
    SearchedConfigurations,
)
from ppopt.solver.choices.enumeration import Key
from ppopt.solver.choices.process_pool import ProcessPool
from ppopt.solver.choices.search_tasks import SearchTask
from ppopt.solver.engines.engine import Engine, Link
from ppopt.solver.options import SolveOptions
from ppopt.solver.result import Progress, Result, Status


class Driver:
    """Runs the searches of configurations until they end."""

    def __init__(
        self,
        choice: Choice,
        problem: Problem,
        options: SolveOptions,
        state: SearchedConfigurations,
        pool: ProcessPool,
    ) -> None:
        """`pool` has the processes that search configurations at once."""
        self._choice, self._options, self._state = choice, options, state
        self._grid = problem.pipeline.grid.time
        self.begun = False
        """Whether the enclosing scopes count, also without a value: after the first search of a
        configuration, or if none of the first candidates can be searched."""
        self._pool = pool
        self._waiting: dict[Key, tuple[Configuration, int]] = {}
        """Configurations whose search has no result yet, with their levels before."""

    # When searches end.

    @property
    def over(self) -> bool:
        """Whether the search ends now."""
        return self._over_with(None)

    def _over_with(self, value: int | None) -> bool:
        """Whether the search ends now, if a running search has a value."""
        begun = self.begun or self._state.end is not None
        if (begun and over()) or self._state.finished:
            return True
        return self._stopped(f"{self._choice.name}s", value)

    def _stopped(self, phase: str, value: int | None) -> bool:
        """Whether the caller ends the search."""
        stop = self._options.stop
        return stop is not None and stop(self._progress(phase, value))

    def _ends(self, configuration: Configuration, state: Progress) -> bool:
        """Whether a configuration can no longer be better, or the caller ends the search."""
        own = configuration.weighted(state.value_ticks)
        bound = max(state.bound_ticks * configuration.weight, configuration.bound)
        if self._state.is_beaten(bound) or (own is not None and bound >= own):
            return True
        return self._stopped(self._choice.describe(configuration.key), own)

    # Searches, one after the other or at once.

    def run(self, tasks: Iterator[tuple[Configuration, SearchTask]], min_workers: int = 1) -> None:
        """Search configurations, several at once if each can have so many workers.

        A search alone has all workers.
        """
        with self._begun(tasks) as begun:
            for task in begun:
                engine = self._pool.engine(min_workers)
                following = None if engine is None else next(begun, None)
                if engine is None or following is None:
                    self._search(*task)
                else:
                    self._search_at_once(engine, chain((task, following), begun), min_workers)
                self._state.raise_bound()

    @contextmanager
    def aside(self, tasks: Iterator[tuple[Configuration, SearchTask]]) -> Iterator[None]:
        """Search configurations in processes during a block that uses one worker."""
        engine = self._pool.engine(min_workers=1)
        if engine is None:
            yield
            return
        with self._begun(tasks) as begun, self._pool.aside(engine, begun, self._receive):
            yield

    @contextmanager
    def _begun(
        self, tasks: Iterator[tuple[Configuration, SearchTask]]
    ) -> Iterator[Iterator[tuple[Configuration, SearchTask]]]:
        """Tasks, each of whose configurations then has the level of its search.

        Without a result, it has its former level at the end of the block.
        """

        def noted() -> Iterator[tuple[Configuration, SearchTask]]:
            for configuration, task in tasks:
                self._waiting[configuration.key] = configuration, configuration.level
                configuration.level = max(configuration.level, task.level)
                yield configuration, task

        try:
            yield noted()
        finally:
            for configuration, before in self._waiting.values():
                configuration.level = before
            self._waiting.clear()

    def _search(self, configuration: Configuration, task: SearchTask) -> None:
        """Search a configuration in this process."""
        value: int | None = -1
        since = 0.0

        def ends(state: Progress) -> bool:
            nonlocal value, since
            if state.value_ticks != value:
                value, since = state.value_ticks, state.seconds
            vain = state.seconds - since > task.patience
            return vain or self._ends(configuration, state)

        link = Link(lambda state: self._report(configuration, state), ends)
        self._take(configuration, task.perform(link).result)

    def _search_at_once(
        self,
        engine: Engine,
        tasks: Iterator[tuple[Configuration, SearchTask]],
        min_workers: int,
    ) -> None:
        """Search each configuration in a process."""
        reported: list[int] = []

        def ended() -> bool:
            if self._state.end is not None:
                for configuration, _ in self._waiting.values():
                    engine.tell(configuration, configuration.in_ticks(self._state.end))
            states = engine.states.items()
            value = min_known(each.weighted(state.value_ticks) for each, state in states)
            if value is not None and value not in reported:
                reported[:] = [value]
                self.announce(f"{self._choice.name}s", value)
            return over() or self._over_with(value)

        self._pool.run(engine, tasks, self._receive, ended, min_workers)

    def _receive(self, configuration: Configuration, result: Result) -> None:
        """Include the result of a search in a process."""
        self._take(configuration, result)
        self._state.raise_bound()
        self.announce(self._choice.describe(configuration.key))

    # Results.

    def _take(self, configuration: Configuration, result: Result) -> None:
        """Include the result of a search."""
        self._waiting.pop(configuration.key, None)
        configuration.impossible |= result.status is Status.INFEASIBLE
        if result.bound_ticks is not None:
            configuration.raise_bound(result.bound_ticks)
        self.keep_best(configuration, result)

    def keep_best(self, configuration: Configuration, result: Result) -> None:
        """Keep the schedule of a result if it is the best of its configuration, or of all."""
        value = configuration.weighted(result.value_ticks)
        if value is None or (configuration.value is not None and value > configuration.value):
            return
        configuration.result, configuration.value = result, value
        self._state.offer(configuration)

    def evaluate(self, configuration: Configuration) -> None:
        """Evaluate a configuration in place of a search."""
        assert configuration.evaluator is not None
        configuration.evaluator.evaluate(configuration)
        configuration.level = EVALUATED
        self._state.offer(configuration)
        self._state.raise_bound()
        self.announce(self._choice.describe(configuration.key))

    # Reports.

    def _progress(self, phase: str, value: int | None) -> Progress:
        """State of the search, if a running search has a value."""
        value, bound = min_known((value, self._state.value)), self._state.lower_bound
        per_unit = self._grid * self._state.best_weight
        return Progress(self._options.spent, phase, value, bound, per_unit)

    def _report(self, configuration: Configuration, state: Progress) -> None:
        """Report the state of the search of a configuration as that of all."""
        value = configuration.weighted(state.value_ticks)
        self.announce(f"{self._choice.describe(configuration.key)}, {state.phase}", value)

    def announce(self, phase: str, value: int | None = None) -> None:
        """Report the state of the search, if a running search has a value."""
        self._options.announce(self._progress(phase, value))
