"""The search over configurations: finds the best schedule of any, with a bound over all of them.

Each configuration of a choice has its own bound. A configuration is closed when its bound, or the
bound of its search, reaches the best value found in any; the best value is optimal when all are
closed. After first schedules come rounds of growing effort: each improves the best schedules in
their configurations, bounds all configurations, searches many by heuristics, and those with the
best values and the smallest bounds by all methods. So an easy configuration does not wait for a
hard one. With several workers, a search of more than a second searches several configurations at
once (`ppopt.solver.choices.process_pool`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain, islice, takewhile
from math import ceil, inf
from random import Random
from typing import Any

from ppopt.cancellation import part, scope, seconds_left, shield, within
from ppopt.problem.problem import Problem
from ppopt.schedule.origin import HintRecord
from ppopt.schedule.schedule import Schedule
from ppopt.solver.bounds import device_bounds
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.configuration import (
    Configuration,
    by_bound,
    by_value,
)
from ppopt.solver.choices.driver import Driver
from ppopt.solver.choices.enumeration import Complete, Key, Unlisted
from ppopt.solver.choices.process_pool import ProcessPool
from ppopt.solver.choices.result import result_of
from ppopt.solver.choices.search_tasks import SearchTask, SearchTasks
from ppopt.solver.choices.successive_halving import Contenders, SuccessiveHalving
from ppopt.solver.options import SolveOptions
from ppopt.solver.parameters import ConfigurationParams
from ppopt.solver.result import Result
from ppopt.solver.search import can_load_portfolio

METHOD_WORKERS = 2
"""Minimum number of workers of a search by all methods. In 25 s on 16 devices with 24 microbatches
and two chunks (deepseek-v3), it ends at 12285 with two workers, and at 12550 with one."""
IMPORT_SHARE = 0.4
"""Maximum share of the seconds of an improvement to import its methods."""


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
        pool: ProcessPool | None = None,
        params: ConfigurationParams | None = None,
    ) -> None:
        """Search the configurations of a choice.

        `start_schedules` belong to some of them; they may exceed the limits. `lower_bound` of all
        configurations was proved earlier. `pool`: processes that this search does not end; None: it
        has its own. `params`: how its time is divided; None: as the options say.
        """
        self.choice, self._problem, self._options = choice, problem, options
        self._name = f"{choice.name}s"
        self._params, self._random = params or options.params.configurations, Random(options.seed)
        self._hint: HintRecord | None = None
        """The hint in the result: the schedule that the user gave, possibly re-timed."""
        self.state = choice.searched(lower_bound)
        """State of the configurations."""
        self._own_pool = ProcessPool(options)
        self._pool = pool or self._own_pool
        self._driver = Driver(choice, problem, options, self.state, self._pool)
        self._tasks = SearchTasks(choice, problem, options, self.state)
        self._contenders = Contenders(self.state, self._params)
        self._strongest: tuple[tuple[int, ...], ...] = ()
        """Subsets of devices that raised the bound of a configuration most, the latest first."""
        self._begun = False
        """Whether the first configurations were scheduled."""
        self._level = 0
        """Level of the next round."""
        self._quick = inf
        """Number of searches of level 0 that are left."""
        self._count = 0
        """Number of searches so far."""
        self._first_keys = iter(choice.first())
        """Remaining configurations to schedule first."""
        self._hints = list(start_schedules)
        """Schedules whose configurations are to be scheduled next."""
        self._followed: Counter[tuple[Any, int]] = Counter()
        """Number of schedules followed so far, by placement and microbatches."""
        self._listed = False
        """Whether all configurations were enumerated."""
        self.exhausted = False
        """Whether another run does nothing until there are new bounds or hints: no ordered
        candidate remains, or none may be useful."""

    def hint(self, schedule: Schedule) -> None:
        """Add a schedule found elsewhere; its configuration is scheduled from it."""
        self._hints.append(schedule)

    def begin_from(self, schedule: Schedule, hint: HintRecord) -> None:
        """Start from the user's hint, and report it in the result."""
        self._hints, self._hint = [schedule], hint

    def run(self, max_level: float = inf) -> Result:
        """Search, as `search` does, in the time of the options; return the result."""
        with closing(self), self._options.scope():
            self.search(max_level)
        return self.result()

    def search(self, max_level: float = inf) -> None:
        """Search until proof, until an enclosing scope ends, or to the end of a round.

        `max_level`: maximum rounds of all methods on one configuration; 0: only heuristics, and no
        bounds by subsets of devices; -1: only better schedules in the configurations of hints, and
        no bounds. A further call resumes. A first configuration is searched in any case.
        """
        self.exhausted, self._quick = False, inf
        with scope(inf):
            if not self._begun and max_level >= 0:
                self.begin()
            elif self._level or max_level < 0:
                self.follow_hints()
            if max_level < 0:
                self.improve()
            while not self.over and not self.exhausted and self._level <= max_level:
                self._round(max_level)
        if self._begun and self.state.rest_of is None:
            with scope(inf):
                self.enumerate_listed()
        self.exhausted |= self.state.finished

    # The phases.

    def begin(self) -> None:
        """Schedule the configurations of known schedules, and first ones, in a share of the time.

        Of every placement the best known schedule comes first; a round follows with those left. If
        the search is reproducible, quick bounds come before: small plans end with them. Without a
        schedule, further configurations are searched until one has a schedule, also a moment later.
        """
        self._begun, left = True, seconds_left()
        if self.state.value is not None and not self.by_clock:
            self.bound(self._params.quick_bounding)
        with part(self._params.first_share):
            self._solve_all(self._hinted_configurations(1), 0)
            for anchor in self.choice.required_candidates():
                self._solve_all([self._at(anchor)], 0, always=True)
            self._quick = self._params.first * len(self.state.groups)
            self._solve_all(self._first_configurations(), 0)
        self._quick = inf
        with shield(), within(left + self._params.grace):
            firsts = chain(self._hinted_configurations(inf), self._first_configurations())
            while self.state.value is None and (first := next(firsts, None)) is not None:
                self._solve_all([first], 0)
        self._driver.begun = True
        self.tell(self._name)

    def _round(self, max_level: float) -> None:
        """Improve the best schedules, bound all configurations, and search some of them.

        The searches of a round have its level, and twice as many configurations as the last round
        are searched quickly before. The next round has the next level, unless nothing was searched
        at this one.
        """
        level, params, before = self._level, self._params, (self._count, self.state.lower_bound)
        if max_level == inf:
            self._improve_before(level)
        groups = sum(map(self.state.is_group_open, self.state.groups.values()))
        self._quick, searched = params.quick * groups << level, 1
        first = not level and self._improves
        left = seconds_left() if first else inf
        with within(left - min(params.min_improving, params.improving * left)):
            self.bound(params.bounding_share)
            with part(params.first_round if first else 1):
                searched = self._search_round(level, deep=max_level > 0)
        self.tell(self._name)
        if searched and not self.over:
            self._level += 1
        elif not searched and not self._perturb():
            self.exhausted = not self.over and before == (self._count, self.state.lower_bound)

    def _search_round(self, level: int, *, deep: bool) -> int:
        """Search configurations quickly, and some at a level; return how many of these.

        At level 0, quick searches are all. `deep`: also raise bounds by subsets of devices.
        """
        self.follow_hints()
        self._solve_all(self._first_configurations(), 0)
        if deep and (level or not self.by_clock):
            self._raise_by_subsets(self._params.bounding * 2**level)
        self._solve_all(self._open()[: self._params.smallest], 0)
        self._climb()
        return self._solve_all(self._chosen(level), level) if level else 1

    def follow_hints(self) -> None:
        """Schedule the configurations of known schedules from them.

        The best schedule of every placement comes first.
        """
        with scope(inf):
            self._solve_all(self._hinted_configurations(inf), 0)

    def schedule_first(self) -> None:
        """Schedule the first candidates, without their bounds; those not reached are left out."""
        with scope(inf):
            self._solve_all(self._first_configurations(), 0)
        self._first_keys = iter(())

    def bound(self, share: float) -> None:
        """Bound all configurations in a share of the time left, and add those that are listed.

        Further workers improve the best schedules.
        """
        with part(share), self.improving():
            self.choice.bound(self.state.end)
        with scope(inf):
            self.enumerate_listed()
        self.tell("bounds")

    @contextmanager
    def improving(self) -> Iterator[None]:
        """Improve the best schedules during a block that uses one worker, with the others."""
        contenders = self._contenders.among(self.state.open)
        with self._driver.aside(
            (each, self._tasks.improvement(each, seconds_left())) for each in contenders
        ):
            yield

    def improve(self) -> None:
        """Improve the best schedules in the time left; bounds are not raised.

        If all contenders of a race are closed, another one follows. This ends earlier if the best
        configuration is the last contender and is improved in vain, and at once if there is no
        contender, or if the import of the methods would take most of the time.
        """
        while not self.over and (contenders := self._contenders.among(self.state.open)):
            if not can_load_portfolio(IMPORT_SHARE * seconds_left()):
                return
            if self._race(contenders) and self._contenders.stalled:
                return

    def _race(self, contenders: Sequence[Configuration]) -> bool:
        """Improve contenders until they are closed; return whether the last ends in vain."""
        driver = self._driver
        race = SuccessiveHalving(
            contenders, seconds_left(), at_once=self._pool.at_once(1), min_slice=self._min_slice
        )
        while not driver.over and (running := list(filter(self.state.is_open, race.running))):
            driver.run(
                (each, self._tasks.improvement(each, race.slice, race.patience)) for each in running
            )
            ended = race.is_last and not driver.over and self.state.is_open(race.running[0])
            self._contenders.note(running, ended=ended)
            if ended:
                return True
            race.halve()
        return False

    @property
    def _min_slice(self) -> float:
        """Minimum seconds of an improvement: windows of a large pipeline take longer to set up."""
        params = self._params
        return max(params.min_slice, params.slice_per_operation * self._problem.num_operations)

    def tell(self, phase: str) -> None:
        """Report the state during work of the caller."""
        self._driver.announce(phase)

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

    def _first_configurations(self) -> Iterator[Configuration]:
        """Remaining configurations to schedule first."""
        while not self.over and self._quick > 0:
            key = next(self._first_keys, None)
            if key is None:
                return
            yield self._at(key)

    def _hinted_configurations(self, each: float) -> Iterator[Configuration]:
        def order(schedule: Schedule) -> tuple[int, float]:
            batches = schedule.pipeline.batches
            value = schedule.metrics.value_ticks(self._problem.objective)
            return self._followed[schedule.pipeline.hosts, batches], value / batches

        while self._hints and not self.over and self._quick > 0:
            self._hints.sort(key=order)
            if order(self._hints[0])[0] >= each:
                return
            schedule = self._hints.pop(0)
            self._followed[schedule.pipeline.hosts, schedule.pipeline.batches] += 1
            key = self.choice.key(schedule.pipeline)
            if key is not None and not self._is_searched_from_better(key, schedule):
                self._tasks.start_from(key, schedule)
                configuration = self._at(key)
                configuration.level = -1
                yield configuration

    def _is_searched_from_better(self, key: Key, schedule: Schedule) -> bool:
        """Whether a configuration was searched, and has a schedule at least as good."""
        configuration = self.state.find(key)
        if configuration is None or not configuration.searched or configuration.value is None:
            return False
        value = schedule.metrics.value_ticks(self._problem.objective)
        return configuration.value <= value * configuration.weight

    def _improve_before(self, level: int) -> None:
        """Improve the best schedules in the time that a round of this level has for it."""
        params, left, spent = self._params, seconds_left(), self._options.spent
        share = params.improving if level else params.first_improving
        seconds = max(share * left, min(params.min_improving, params.improving * left))
        if not self._is_large:
            several = self._options.workers > 1 and spent >= params.min_spent
            small = params.small_improving * left if level else 0
            seconds = min(seconds if several else small, max(params.min_improving, spent))
        if seconds > 0:
            with within(seconds):
                self.improve()
            self.tell(self._name)

    @property
    def _improves(self) -> bool:
        """Whether the best schedules are improved after the first round."""
        return self.by_clock or self._params.small_improving > 0

    @property
    def by_clock(self) -> bool:
        """Whether results may depend on the speed of the machine.

        They do with several workers, and if a pipeline is too large for a proof.
        """
        return self._options.workers > 1 or self._is_large

    @property
    def _is_large(self) -> bool:
        return self._problem.num_operations > self._options.params.plan.max_reproducible

    def _raise_by_subsets(self, work: float) -> None:
        """Raise the smallest bound by subsets of devices, for `work` units of work.

        Stops when subsets cannot raise the bound of the configuration with the smallest bound: only
        its search or its evaluation can.
        """
        while work > 0 and self.state.value is not None and not self.over:
            self._follow()
            configuration = next(iter(self._open()), None)
            if configuration is None or configuration.evaluator is not None:
                return
            work -= self._raise_bound_of(configuration, self.state.value)
            if (
                configuration.bounding is not None
                and configuration.bounding.exhausted
                and self.state.is_open(configuration)
            ):
                return

    def _raise_bound_of(self, configuration: Configuration, value: int) -> float:
        """Raise the bound of a configuration towards a value; return the units of work."""
        self._refine(configuration)
        if not self.state.is_open(configuration):
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
                lambda: self.over,
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
            allowed = self._quick / (len(bests) - index)
            self._climb_from(begin, min(self._params.moves, allowed))

    def _climb_from(self, begin: Configuration, max_searches: float) -> None:
        """Hill climbing: try the moves of a configuration, while one of them is better.

        `max_searches` is the largest number of searches.
        """
        tried, reserve = 0, (1 - self._params.climb_share) * seconds_left()
        while not self.over and self._quick > 0:
            in_time = takewhile(lambda _: not self.over, self.choice.moves(begin.key))
            moves = list(dict.fromkeys(in_time))
            self._add(moves, until=lambda: self.over)
            known = filter(None, map(self.state.find, moves))
            fresh = [move for move in known if not move.searched]
            allowed = islice(by_bound(fresh), max(0, ceil(max_searches - tried)))
            tried += self._solve_all(takewhile(lambda _: seconds_left() >= reserve, allowed), 0)
            if self.over or tried >= max_searches or seconds_left() < reserve:
                return
            better = by_value([begin, *fresh])
            if not better or better[0].value == begin.value:
                return
            begin = better[0]

    def _best_of_groups(self) -> list[Configuration]:
        """Best configuration of every group, the best first; without values, the first one."""
        groups = self.state.groups.values()
        bests = [best for group in groups for best in by_value(group.known.values())[:1]]
        return by_value(bests) or list(islice(self.state.every, 1))

    def _chosen(self, level: int) -> Iterator[Configuration]:
        """Configurations to search at a level of effort.

        The best one and the required candidates come first, then those with the smallest bounds:
        all of them if all are enumerated, else a few. Without a bound order, those with the best
        values.
        """
        if self.state.best is not None:
            yield self.state.best
        yield from map(self._at, self.choice.required_candidates())
        if isinstance(self.state.rest, Unlisted) and self.state.rest.key is None:
            yield from by_value(self._open())[: self._params.together] or self._open()
        elif self._listed:
            yield from self._open()
        else:
            yield from self._in_bound_order(level)

    def _in_bound_order(self, level: int) -> Iterator[Configuration]:
        """Configurations to search at a level of effort, in bound order.

        An evaluation takes no longer at a higher level: as much work as a search of level 0.
        """
        work = (self._params.together - 1) << level
        while work > 0:
            self._follow()
            following = next((each for each in self._open() if each.level < level), None)
            if following is None:
                return
            work -= 1 if following.evaluator is not None else 1 << level
            yield following

    def _follow(self) -> None:
        """Enumerate the next configuration if no open configuration has a smaller bound."""
        if self.state.next_key is not None:
            self._add([self.state.next_key])

    def _perturb(self) -> bool:
        """Schedule a configuration a few random moves away from the best; False: none is new."""
        best = self.state.best or next(self.state.every, None)
        for _ in range(self._params.max_perturbations):
            key = None if best is None else self.choice.perturbed(best.key, self._random)
            if key is None:
                return False
            if not (configuration := self._at(key)).searched:
                self._solve_all([configuration], 0)
                return True
        return False

    # What is known.

    def _add(self, keys: Iterable[Key], until: Callable[[], bool] = lambda: False) -> None:
        """Add configurations that are not enumerated yet: one, then more until `until()`."""
        fresh = [key for key in dict.fromkeys(keys) if self.state.find(key) is None]
        for configuration in self.choice.configurations(fresh):
            self.state.add(configuration)
            if until():
                break
        self.state.raise_bound()

    def _at(self, key: Key) -> Configuration:
        if self.state.find(key) is None:
            self._add([key])
        configuration = self.state.find(key)
        assert configuration is not None
        return configuration

    @property
    def over(self) -> bool:
        """Whether the search ends now."""
        return self._driver.over

    def _open(self) -> list[Configuration]:
        return by_bound(self.state.open)

    # One configuration, or several at once.

    def _solve_all(
        self,
        configurations: Iterable[Configuration],
        level: int,
        *,
        always: bool = False,
    ) -> int:
        """Search open configurations, several at once if possible; return how many were searched.

        Each search has `level` rounds of all methods, from the best schedules. A search alone has
        all workers. `always`: search also after the end of the scope.
        """
        entered: list[Configuration] = []
        enters = partial(self._enter, level=level, always=always)
        tasks = self._open_tasks(filter(enters, configurations), level, entered)
        self._driver.run(tasks, METHOD_WORKERS if level else 1)
        return len(entered)

    def _open_tasks(
        self, configurations: Iterable[Configuration], level: int, entered: list[Configuration]
    ) -> Iterator[tuple[Configuration, SearchTask]]:
        """Searches of open configurations; `entered` gets those that would be searched."""
        for configuration in configurations:
            entered.append(configuration)
            if not self.state.is_open(configuration):
                self.state.raise_bound()
            elif configuration.evaluator is not None:
                self._driver.evaluate(configuration)
            else:
                yield configuration, self._tasks.rounds(configuration, level, seconds_left())

    def _enter(self, configuration: Configuration, level: int, *, always: bool) -> bool:
        """Whether a configuration is to be searched with an effort, before its one-device bounds.

        Counts the search, and includes these bounds.
        """
        if configuration.level >= level or not self.state.is_open(configuration):
            return False
        if not always:
            if self.over or (level == 0 and self._quick <= 0):
                return False
            self._quick -= level == 0
        self._driver.begun, self._count = True, self._count + 1
        self._refine(configuration)
        return True

    def close(self) -> None:
        """End the own processes of the search; a later run may start new ones."""
        self._own_pool.close()

    def _refine(self, configuration: Configuration) -> None:
        """Include the one-device bounds in the bound of a configuration."""
        if configuration.refined or configuration.evaluator is not None:
            return
        configuration.refined, problem = True, self._tasks.problem(configuration)
        configuration.impossible = device_bounds.infeasibility(problem.reduced.instance) is not None
        bound = device_bounds.known_bound(problem.reduced).value
        configuration.raise_bound(bound)
