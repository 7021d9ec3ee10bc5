"""The search over configurations: finds the best schedule of any, with a bound over all of them.

Each configuration of a choice has its own bound. A configuration is closed when its bound, or the
bound of its search, reaches the best value found in any; the best value is optimal when all are
closed. The search gives every configuration a little effort first, and more in later rounds, so
that an easy configuration does not wait for a hard one. With several workers, a search of more than
a second searches several configurations at once (`ppopt.solver.choices.search_processes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from itertools import chain, islice, takewhile
from math import ceil, inf
from random import Random
from typing import NamedTuple

from ppopt import interrupts
from ppopt.cancellation import shield
from ppopt.problem.exact import min_known
from ppopt.problem.problem import Problem
from ppopt.schedule.origin import HintRecord
from ppopt.schedule.schedule import Schedule
from ppopt.solver.bounds import device_bounds
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.configuration import (
    Configuration,
    SearchedConfigurations,
    by_bound,
    by_value,
)
from ppopt.solver.choices.enumeration import Complete, Key, Unlisted
from ppopt.solver.choices.result import result_of
from ppopt.solver.choices.search_processes import MIN_SECONDS, WARM_UP, SearchProcesses
from ppopt.solver.choices.search_tasks import MIN_SEARCH, SearchTask, SearchTasks
from ppopt.solver.choices.successive_halving import Contenders, SuccessiveHalving
from ppopt.solver.deadline import Deadline
from ppopt.solver.options import SolveOptions
from ppopt.solver.result import Progress, Result, Status
from ppopt.solver.search import search_from

METHOD_WORKERS = 2
"""Minimum number of workers of a search by all methods. In 25 s on 16 devices with 24 microbatches
and two chunks (deepseek-v3), it ends at 12285 with two workers, and at 12550 with one."""


class Effort(NamedTuple):
    """Effort limit of a run of the search; a later run with more effort resumes it."""

    level: float = inf
    """Maximum rounds of all methods on one configuration; 0: only heuristics, and no bounds by
    subsets of devices."""
    quick: float = inf
    """Maximum number of searches of level 0 over all runs."""


ANY_EFFORT = Effort()
"""No limit: until proof, or until the time limit."""


class ConfigurationSearch:
    """Search over configurations, with the best schedule and the bound over all of them."""

    def __init__(
        self,
        choice: Choice,
        problem: Problem,
        options: SolveOptions,
        *,
        start_schedules: Sequence[Schedule] = (),
        lower_bound: int = 0,
        ceiling: Callable[[], int | None] = lambda: None,
        grace: float = 0.0,
    ) -> None:
        """Search the configurations of a choice.

        `start_schedules` belong to some of them; they may exceed the limits. `lower_bound` of all
        configurations was proved earlier. `ceiling` returns the cutoff: values
        at or above it are useless. Without a schedule, the search continues for `grace` seconds
        after the deadline.
        """
        self.choice, self._problem, self._options = choice, problem, options
        self._params, self._grid = options.params.configurations, problem.pipeline.grid.time
        self._random = Random(options.seed)
        self._ceiling, self._grace = ceiling, grace
        self._hint: HintRecord | None = None
        """The hint in the result: the schedule that the user gave, possibly re-timed."""
        self.state = SearchedConfigurations(lower_bound)
        """State of the configurations."""
        self._tasks = SearchTasks(choice, problem, options, self.state)
        self._contenders = Contenders(self.state, self._params)
        self._strongest: tuple[tuple[int, ...], ...] = ()
        """Subsets of devices that raised the bound of a configuration most, the latest first."""
        self._effort, self._ignores_ctrl_c = ANY_EFFORT, False
        self.num_quick = 0
        """Number of searches of level 0."""
        self._level = 1
        """Level at which configurations are searched next."""
        self._raised: set[int] = set()
        """Levels at which bounds were raised by subsets of devices."""
        self._first_keys: Iterator[Key] | None = None
        """Remaining configurations to schedule first; None: not begun."""
        self._hints = list(reversed(start_schedules))
        """Schedules whose configurations are to be scheduled next."""
        self._first: list[Configuration] = []
        """Configurations scheduled first."""
        self._begun = False
        """Whether the deadline counts: after the first search of a configuration, or if none of the
        first candidates can be searched."""
        self._listed = False
        """Whether all configurations were enumerated."""
        self.exhausted = False
        """Whether the last run stopped because no ordered candidate remains: another run, with any
        effort, does nothing until there are new bounds or hints."""
        self._processes: SearchProcesses | None = None
        """Processes that search configurations at once; None: not started."""
        self._waiting: dict[Key, tuple[Configuration, int]] = {}
        """Configurations whose search has no result yet, with their levels before."""

    def bound(self, deadline: Deadline, ceiling: int | None = None) -> None:
        """Bound all configurations until a deadline; see `Choice.bound`."""
        with deadline.scope():
            self.choice.bound(ceiling)
        with self._options.deadline.scope():
            self.enumerate_listed()

    def hint(self, schedule: Schedule) -> None:
        """Add a schedule found elsewhere; its configuration is scheduled from it."""
        self._hints.append(schedule)

    def begin_from(self, schedule: Schedule, hint: HintRecord) -> None:
        """Start from the user's hint, and report it in the result."""
        self._hints, self._hint = [schedule], hint

    def run(self, effort: Effort = ANY_EFFORT) -> Result:
        """Search, as `search` does, and return the result."""
        try:
            self.search(effort)
        finally:
            self.close()
        return self.result()

    def search(self, effort: Effort = ANY_EFFORT) -> None:
        """Search until proof, until time or effort is spent, or until Ctrl-C.

        A further call resumes. Start schedules count also after an earlier Ctrl-C.
        """
        self._effort, self.exhausted = effort, False
        self._ignores_ctrl_c = True
        with self._options.deadline.scope():
            self._follow_hints()
        self._ignores_ctrl_c = False
        with self._options.deadline.scope():
            if not self._interrupted:
                self.enumerate_listed()
                self._begin()
                self._deepen()

    @property
    def _interrupted(self) -> bool:
        return interrupts.pressed() and not self._ignores_ctrl_c

    def follow_hints(self, number: int | None = None) -> None:
        """Schedule the configurations of known schedules from them, or until Ctrl-C.

        `number`: how many of these schedules; None: all.
        """
        with self._options.deadline.scope():
            self._follow_hints(number)

    def schedule_first(self, number: int) -> None:
        """Schedule so many of the first candidates, without their bounds."""
        with self._options.deadline.scope():
            self._solve_all(islice(self._first_configurations(), number), 0)

    def improve(self, seconds: float) -> None:
        """Improve the best schedules for about so long, or until Ctrl-C; bounds are not raised.

        It ends earlier after a slice of the last contender without improvement, and at once if no
        contender is new and the best one has not changed since.
        """
        with self._options.deadline.scope():
            self._improve(seconds)

    def _improve(self, seconds: float) -> None:
        processes = self._processes_for(1)
        at_once = 1 if processes is None else processes.at_once(1)
        race = SuccessiveHalving(
            self._contenders.among(self._open()),
            seconds,
            at_once=at_once,
            min_slice=self._min_slice,
        )
        while not self._over and (running := list(filter(self._is_open, race.running))):
            before = self.state.value
            tasks = ((each, self._tasks.improvement(each, race.slice)) for each in running)
            if processes is None or len(running) == 1:
                for task in tasks:
                    self._search(*task)
            else:
                self._search_at_once(processes, tasks, 1)
            self.state.raise_bound()
            self._contenders.note(running, before)
            race.halve()
            if self._contenders.stalled and len(race.running) == 1:
                return

    @property
    def _min_slice(self) -> float:
        """Minimum seconds of an improvement: windows of a large pipeline take longer to set up."""
        params = self._params
        return max(params.min_slice, params.slice_per_operation * self._problem.num_operations)

    def result(self) -> Result:
        """Result: the best schedule, with the bound over all configurations."""
        return result_of(self.choice, self._problem, self.state, self._options, hint=self._hint)

    # Which configurations, and how long.

    def enumerate_listed(self) -> None:
        """Add the configurations that the choice lists, and bound the unlisted ones."""
        listed = self.choice.listed()
        self._add(listed.members)
        self._listed, self.state.rest_of = isinstance(listed, Complete), self.choice.rest
        self.state.raise_bound()

    def _begin(self) -> None:
        """Schedule the first candidates quickly, then those with the smallest bounds."""
        try:
            self._schedule_first()
        finally:
            self._begun = True
        self._raise_at(0)
        self._solve_all(self._open()[: self._params.quick], 0)

    def _schedule_first(self) -> None:
        """Schedule the first candidates quickly."""
        for anchor in self.choice.required_candidates():
            self._solve_all([self._at(anchor)], 0, ignore_deadline=True)
        self._solve_all(self._first_configurations(), 0)

    def _first_configurations(self) -> Iterator[Configuration]:
        """Remaining configurations to schedule first."""
        if self._first_keys is None:
            self._first_keys = iter(self.choice.first())
        while not self._over and not self._quick_spent:
            key = next(self._first_keys, None)
            if key is None:
                return
            if self._over:
                self._first_keys = chain((key,), self._first_keys)
                return
            self._first.append(self._at(key))
            yield self._first[-1]

    def _follow_hints(self, number: int | None = None) -> None:
        """Schedule the configurations of known schedules, or of so many."""
        self._solve_all(islice(self._hinted_configurations(), number), 0)

    def _hinted_configurations(self) -> Iterator[Configuration]:
        while self._hints and not self._over and not self._quick_spent:
            schedule = self._hints.pop()
            key = self.choice.key(schedule.pipeline)
            if key is not None and not self._is_searched_from_better(key, schedule):
                self._tasks.start_from(key, schedule)
                configuration = self._at(key)
                configuration.level = -1
                yield configuration

    def _is_searched_from_better(self, key: Key, schedule: Schedule) -> bool:
        """Whether a configuration was searched, and has a schedule at least as good."""
        configuration = self.state.known.get(key)
        if configuration is None or not configuration.searched or configuration.value is None:
            return False
        value = schedule.metrics.value_ticks(self._problem.objective)
        own = self._in_units(configuration.value) / configuration.weight
        return own <= schedule.pipeline.ticks.time(value)

    def _deepen(self) -> None:
        """Search with growing effort; in between, raise bounds and try moves of the best."""
        self.exhausted = not self.state.known
        while self.state.known and not self._over:
            self._climb()
            level, spent = self._level, self._options.deadline.spent
            if level > self._effort.level:
                return
            if self._options.workers > 1 and spent >= self._params.min_spent:
                self._improve(min(spent, self._params.improving * self._left))
            self._raise_at(level)
            if self._solve_all(self._chosen(level), level):
                self._level += 1
            elif self._quick_spent or not self._perturb():
                self.exhausted = not (self._quick_spent or self._over)
                return

    @property
    def _quick_spent(self) -> bool:
        """Whether the limit on searches of level 0 is reached."""
        return self.num_quick >= self._effort.quick

    def _raise_at(self, level: int) -> None:
        """Raise the smallest bounds by subsets of devices, once at every level of effort."""
        if self._effort.level > 0 and level not in self._raised:
            self._raise_by_subsets(self._params.bounding * 2**level)
            self._raised.add(level)

    def _raise_by_subsets(self, work: float) -> None:
        """Raise the smallest bound by subsets of devices, for `work` units of work.

        Stops when subsets cannot raise the bound of the configuration with the smallest bound: only
        its search can.
        """
        while work > 0 and self.state.value is not None and not self._over:
            self._follow()
            configuration = next(iter(self._open()), None)
            if configuration is None:
                return
            work -= self._raise_bound_of(configuration, self.state.value)
            if (
                configuration.bounding is not None
                and configuration.bounding.exhausted
                and self._is_open(configuration)
            ):
                return

    def _raise_bound_of(self, configuration: Configuration, value: int) -> float:
        """Raise the bound of a configuration towards a value; return the units of work."""
        self._refine(configuration)
        if not self._is_open(configuration):
            self.state.raise_bound()
            return self._params.min_work
        problem = self._tasks.problem(configuration).reduced
        done = configuration.bounding
        if done is None or (done.exhausted and not done.first.issuperset(self._strongest)):
            from ppopt.solver.subset_bounding import SubsetBounding  # noqa: PLC0415  loads ortools

            configuration.bounding = SubsetBounding(
                problem, self._options.params.subset, self._strongest
            )
        bounding, work = configuration.bounding, 0.0
        assert bounding is not None
        if not bounding.exhausted:
            work = bounding.run(
                configuration.in_ticks(value),
                self._params.bounding_step,
                self._left,
                lambda: self._over,
            )
        if len(bounding.base) > 1:
            latest = dict.fromkeys((bounding.base, *self._strongest))
            self._strongest = tuple(latest)[: self._params.subsets]
        configuration.raise_bound(bounding.bound)
        self.state.raise_bound()
        return max(work, self._params.min_work)

    def _climb(self) -> None:
        """Hill climbing from the best configuration of every group, the best first.

        If no schedule is known yet: from the first configuration.
        """
        bests = self._best_of_groups()
        for index, begin in enumerate(bests):
            allowed = (self._effort.quick - self.num_quick) / (len(bests) - index)
            self._climb_from(begin, min(self._params.moves, allowed))

    def _climb_from(self, begin: Configuration, max_searches: float) -> None:
        """Hill climbing: try the moves of a configuration, while one of them is better.

        `max_searches` is the largest number of searches.
        """
        tried, reserve = 0, (1 - self._params.climb_share) * self._left
        while not self._over and not self._quick_spent:
            in_time = takewhile(lambda _: not self._over, self.choice.moves(begin.key))
            moves = list(dict.fromkeys(in_time))
            self._add(moves, until=lambda: self._over)
            known = (self.state.known[move] for move in moves if move in self.state.known)
            fresh = [move for move in known if not move.searched]
            allowed = islice(by_bound(fresh), max(0, ceil(max_searches - tried)))
            tried += self._solve_all(takewhile(lambda _: self._left >= reserve, allowed), 0)
            if self._over or tried >= max_searches or self._left < reserve:
                return
            better = by_value([begin, *fresh])
            if not better or better[0].value == begin.value:
                return
            begin = better[0]

    def _best_of_groups(self) -> list[Configuration]:
        """Best configuration of every group, the best first; without values, the first one."""
        bests: dict[Key, Configuration] = {}
        for configuration in by_value(self.state.known.values()):
            bests.setdefault(self.choice.group(configuration.key), configuration)
        return list(bests.values()) or [next(iter(self.state.known.values()))]

    def _chosen(self, level: int) -> Iterator[Configuration]:
        """Configurations to search at a level of effort.

        The best one and the required candidates come first, then those with the smallest bounds:
        all of them if all are enumerated; else one of the first candidates and a few in bound
        order. If there is no bound order, those with the best values.
        """
        if self.state.best is not None:
            yield self.state.best
        yield from map(self._at, self.choice.required_candidates())
        if isinstance(self.state.rest, Unlisted) and self.state.rest.key is None:
            yield from by_value(self._open())[: self._params.together] or self._open()
            return
        if self._listed:
            yield from self._open()
            return
        firsts = by_bound(self._first)
        yield from islice((first for first in firsts if first.level < level), 1)
        for _ in range(self._params.together - 1):
            self._follow()
            yield from islice(
                (configuration for configuration in self._open() if configuration.level < level), 1
            )

    def _follow(self) -> None:
        """Enumerate the next configuration if no open configuration has a smaller bound."""
        if self.state.next_key is not None:
            self._add([self.state.next_key])

    def _perturb(self) -> bool:
        """Schedule a configuration a few random moves away from the best; False: none is new."""
        best = self.state.best or next(iter(self.state.known.values()))
        for _ in range(self._params.max_perturbations):
            key = self.choice.perturbed(best.key, self._random)
            if key is None:
                return False
            if key not in self.state.known or self.state.known[key].level < 0:
                self._solve_all([self._at(key)], 0)
                return True
        return False

    # What is known.

    def _add(self, keys: Iterable[Key], until: Callable[[], bool] = lambda: False) -> None:
        """Add configurations that are not enumerated yet: one, then more until `until()`."""
        fresh = [key for key in dict.fromkeys(keys) if key not in self.state.known]
        for configuration in self.choice.configurations(fresh):
            self.state.known[configuration.key] = configuration
            if until():
                break
        self.state.raise_bound()

    def _at(self, key: Key) -> Configuration:
        if key not in self.state.known:
            self._add([key])
        return self.state.known[key]

    @property
    def _left(self) -> float:
        """Seconds left."""
        return self._options.deadline.left

    @property
    def _over(self) -> bool:
        """Whether the search ends now."""
        return self._over_with(None)

    def _over_with(self, value: Fraction | None) -> bool:
        """Whether the search ends now, if a running search has a value."""
        late = self._begun and self._left <= (0 if self.state.value is not None else -self._grace)
        ended = self._interrupted or late or self.state.closed
        if ended or self._is_beaten(self.state.lower_bound):
            return True
        return self._stopped(f"{self.choice.name}s", value)

    @property
    def _end(self) -> int | None:
        """Best value or the cutoff: a configuration with this bound is useless."""
        return min_known((self.state.value, self._ceiling()))

    def _is_beaten(self, bound: int) -> bool:
        """Whether no configuration with this bound is useful."""
        end = self._end
        return end is not None and bound >= end

    def _cutoff(self, configuration: Configuration) -> Fraction | None:
        """Bound of a configuration, for all its microbatches, from which on it is useless."""
        end = self._end
        return None if end is None else self._in_units(end) / configuration.weight

    def _in_units(self, time: int) -> Fraction:
        return Fraction(time, self._grid)

    def _stopped(self, phase: str, value: Fraction | None = None) -> bool:
        """Whether the caller ends the search."""
        stop = self._options.deadline.stop
        return stop is not None and stop(self._state(phase, value))

    def _is_open(self, configuration: Configuration) -> bool:
        """Whether a configuration may have a schedule that is better than the best, and useful."""
        return not (configuration.impossible or self._is_beaten(configuration.bound))

    def _open(self) -> list[Configuration]:
        """Open configurations, the smallest bounds first."""
        return by_bound(filter(self._is_open, self.state.known.values()))

    # One configuration, or several at once.

    def _solve_all(
        self,
        configurations: Iterable[Configuration],
        level: int,
        *,
        ignore_deadline: bool = False,
    ) -> int:
        """Search open configurations, several at once if possible; return how many were searched.

        Each search has `level` rounds of all methods, from the best schedules. A search alone has
        all workers. `ignore_deadline`: search also after the deadline.
        """
        entered: list[Configuration] = []
        enters = partial(self._enter, level=level, ignore_deadline=ignore_deadline)
        tasks = self._open_tasks(filter(enters, configurations), level, entered)
        min_workers = METHOD_WORKERS if level else 1
        try:
            for task in tasks:
                processes = self._processes_for(min_workers)
                following = None if processes is None else next(tasks, None)
                if processes is None or following is None:
                    self._search(*task)
                else:
                    self._search_at_once(processes, chain((task, following), tasks), min_workers)
                self.state.raise_bound()
        finally:
            for configuration, before in self._waiting.values():
                configuration.level = before
            self._waiting.clear()
        return len(entered)

    def _open_tasks(
        self, configurations: Iterable[Configuration], level: int, entered: list[Configuration]
    ) -> Iterator[tuple[Configuration, SearchTask]]:
        """Searches of open configurations; `entered` gets those that would be searched."""
        for configuration in configurations:
            entered.append(configuration)
            if self._is_open(configuration):
                self._waiting[configuration.key] = configuration, configuration.level
                configuration.level = level
                yield configuration, self._tasks.rounds(configuration, level, self._left)
            else:
                self.state.raise_bound()

    def _search_at_once(
        self,
        processes: SearchProcesses,
        tasks: Iterator[tuple[Configuration, SearchTask]],
        min_workers: int,
    ) -> None:
        """Search each configuration in a process."""
        reported: list[Fraction] = []

        def receive(configuration: Configuration, result: Result) -> None:
            self._take(configuration, result)
            self.state.raise_bound()
            self._announce(self.choice.describe(configuration.key))

        def over() -> bool:
            value = min(processes.values, default=None)
            if value is not None and value not in reported:
                reported[:] = [value]
                self._announce(f"{self.choice.name}s", value)
            return self._over_with(value)

        processes.run(tasks, receive, min_workers=min_workers, over=over, cutoff=self._cutoff)

    def _processes_for(self, min_workers: int) -> SearchProcesses | None:
        """Processes for several searches at once of so many workers; None: one after the other."""
        workers, deadline = self._options.workers, self._options.deadline
        if workers < 2 * min_workers or interrupts.pressed():
            return None
        worthwhile = deadline.spent >= WARM_UP and deadline.left >= MIN_SECONDS
        if self._processes is None and worthwhile:
            self._processes = SearchProcesses(workers)
        elif self._processes is not None and worthwhile:
            self._processes.start_missing()
        several = self._processes is not None and self._processes.at_once(min_workers) > 1
        return self._processes if several else None

    def close(self) -> None:
        """End the processes of the search; a later run may start new ones."""
        if self._processes is not None:
            self._processes.close()
            self._processes = None

    def _enter(self, configuration: Configuration, level: int, *, ignore_deadline: bool) -> bool:
        """Whether a configuration is to be searched with an effort, before its one-device bounds.

        Counts the search, and includes these bounds.
        """
        if configuration.level >= level or not self._is_open(configuration) or self._interrupted:
            return False
        if self._over and not ignore_deadline:
            return False
        if level == 0 and not ignore_deadline:
            if self._quick_spent:
                return False
            self.num_quick += 1
        self._begun = True
        self._refine(configuration)
        return True

    def _refine(self, configuration: Configuration) -> None:
        """Include the one-device bounds in the bound of a configuration."""
        if configuration.refined:
            return
        configuration.refined, problem = True, self._tasks.problem(configuration)
        configuration.impossible = device_bounds.infeasibility(problem.reduced.instance) is not None
        bound = device_bounds.known_bound(problem.reduced).value
        configuration.raise_bound(bound)

    def _search(self, configuration: Configuration, task: SearchTask) -> None:
        """Search a configuration in this process."""
        deadline = Deadline.after(
            min(task.seconds, max(self._left, MIN_SEARCH)),
            progress=lambda state: self._report(configuration, state),
            stop=lambda state: self._ends(configuration, state),
        )
        options = task.options.with_deadline(deadline)
        with shield():
            result = search_from(task.start, task.problem, options)
        self._take(configuration, result)

    def _take(self, configuration: Configuration, result: Result) -> None:
        """Include the result of a search."""
        self._waiting.pop(configuration.key, None)
        configuration.impossible |= result.status is Status.INFEASIBLE
        if result.lower_bound is not None:
            configuration.raise_bound(int(result.lower_bound * self._grid))
        self._keep_best(configuration, result)

    def _keep_best(self, configuration: Configuration, result: Result) -> None:
        """Keep the schedule of a result if it is the best of its configuration, or of all."""
        if result.value is None:
            return
        value = int(result.value * self._grid) * configuration.weight
        if configuration.value is not None and value > configuration.value:
            return
        configuration.result, configuration.value = result, value
        if self.state.value is None or value < self.state.value:
            self.state.best = configuration

    # What is reported.

    def _state(self, phase: str, value: Fraction | None = None) -> Progress:
        best = self.state.value
        value = min_known((value, None if best is None else self._in_units(best)))
        bound = self._in_units(self.state.lower_bound)
        return Progress(self._options.deadline.spent, phase, value, bound)

    def _report(self, configuration: Configuration, state: Progress) -> None:
        value = None if state.value is None else state.value * configuration.weight
        self._announce(f"{self.choice.describe(configuration.key)}, {state.phase}", value)

    def _announce(self, phase: str, value: Fraction | None = None) -> None:
        progress = self._options.deadline.progress
        if progress is not None:
            progress(self._state(phase, value))

    def _ends(self, configuration: Configuration, state: Progress) -> bool:
        """Whether a configuration can no longer be better, or the caller ends the search."""
        own = None if state.value is None else state.value * configuration.weight
        proved = int(state.lower_bound * self._grid) * configuration.weight
        bound = max(proved, configuration.bound)
        if self._is_beaten(bound) or (own is not None and bound >= own * self._grid):
            return True
        return self._stopped(self.choice.describe(configuration.key), own)
