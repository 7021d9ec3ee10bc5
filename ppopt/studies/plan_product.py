"""The configurations of a plan as one choice: each with its own partitions and recompute.

A configuration of the plan (`linear, recompute none, 16 microbatches`) has many configurations of
the search: its partitions, each with the layers that recompute. The product of all of them is one
choice, so that one search serves the whole plan. Times are per microbatch, so that numbers of
microbatches can be compared.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from ppopt.problem.partition import SEARCH
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule.orders import is_of_kind
from ppopt.schedule.origin import Argument
from ppopt.schedule.schedule import Schedule
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.configuration import Configuration, SearchedConfigurations, by_value
from ppopt.solver.choices.enumeration import (
    NONE_LEFT,
    Complete,
    Key,
    Rest,
    Unlisted,
    bounds_of_all,
)
from ppopt.solver.choices.given import ONLY
from ppopt.solver.choices.product import ProductChoice
from ppopt.solver.choices.result import known_result, result_of
from ppopt.solver.deadline import Deadline
from ppopt.solver.options import SolveOptions
from ppopt.solver.result import Result
from ppopt.studies.evaluate import peak_memory
from ppopt.studies.frontier_curve import Curve
from ppopt.studies.frontier_problem import frontier_problem_of
from ppopt.studies.frontier_search import ParetoSearch
from ppopt.studies.plan_candidate import PlanCandidate
from ppopt.studies.plan_result import LeastMemory, WithinShare
from ppopt.studies.plan_space import PlanConfiguration


class PlanChoice(NamedTuple):
    """One configuration of a plan, with the choice of its partitions and recompute."""

    configuration: PlanConfiguration
    problem: Problem
    choice: Choice


class OrdersCandidate(PlanCandidate):
    """A configuration whose best schedule is searched over all orders, with all others."""

    def __init__(self, given: PlanChoice, options: SolveOptions) -> None:
        super().__init__(given.configuration, given.problem, options)
        self.choice = given.choice
        self.hints: list[Schedule] = []
        """Schedules of the placement from which the next search starts."""
        self._floor = Fraction(0)
        """Lower bound of a relaxation, per microbatch."""
        self._taken: Configuration | None = None
        """Configuration of the best schedule that the search does not know."""
        self.state = SearchedConfigurations(self.least)
        """Configurations of the search that belong to this one; times are per microbatch."""
        self.update(None)

    @property
    def least(self) -> Fraction:
        """Lower bound per microbatch, by bounds alone."""
        return max(self.per_microbatch(self.choice.lower_bound), self._floor)

    def raise_floor(self, bound: Fraction) -> None:
        """Raise the bound to that of a relaxation, per microbatch."""
        self._floor = max(self._floor, bound)

    def may_be_below(self, ceiling: Fraction | None) -> bool:
        """Whether bounds alone leave open that a schedule is below a ceiling, per microbatch."""
        return ceiling is None or self.least < ceiling

    def add(self, configuration: Configuration) -> None:
        """Add a configuration of the search; its bound becomes one per microbatch."""
        configuration.batches = self.configuration.batches
        configuration.bound = max(self.per_microbatch(configuration.bound), self._floor)
        self.state.known[configuration.key] = configuration

    def rest(self, known: Container[Key], ceiling: Fraction | None) -> Rest:
        """Partitions and recompute not in `known`; those at or above the ceiling do not count."""
        batches = self.configuration.batches
        rest = self.choice.rest(known, None if ceiling is None else ceiling * batches)
        if isinstance(rest, Complete):
            return rest
        return Unlisted(max(self.per_microbatch(rest.bound), self._floor), rest.key)

    def update(self, ceiling: Fraction | None) -> None:
        """Update best schedule and bounds after a search; `ceiling` is the best value of all.

        Bounds above the ceiling need not be exact.
        """
        state = self.state
        best = _best(filter(None, (*state.known.values(), self._taken)))
        if best is not None:
            state.take(best)
        state.raise_least(self.least)
        if state.value is None and not state.open:
            state.raise_to(state.bounds_with(self.rest(state.known, None)))
        if not state.none_better and self.may_be_below(ceiling):
            ends = [end for end in (state.value, ceiling) if end is not None]
            bounds = [configuration.bound for configuration in state.open]
            rest = self.rest(state.known, min(ends, default=None))
            state.raise_to(bounds_of_all([*bounds, *ends], rest))
        self.searches, self.impossible = state.searched, state.infeasible
        self.bound = state.least * self.configuration.batches
        self.bound_alone = self.least * self.configuration.batches

    @property
    def schedule(self) -> Schedule | None:
        """Best schedule."""
        best = self.state.best
        return None if best is None or best.result is None else best.result.schedule

    @property
    def result(self) -> Result:
        """See `PlanCandidate.result`."""
        state = self.state
        if state.best is not None and state.best is state.known.get(ONLY):
            own, bound = state.best.result, state.lower_bound * self.configuration.batches
            if own is not None and own.lower_bound == bound:
                return own
        return result_of(self.choice, self.problem, state, self._options)

    def raise_to(self, other: PlanCandidate) -> None:
        """See `PlanCandidate.raise_to`."""
        self.raise_floor(other.bound_per_microbatch)
        self.update(None)

    def hint(self, schedule: Schedule) -> None:
        """See `PlanCandidate.hint`."""
        self.hints.append(schedule)

    def allows(self, pipeline: Pipeline) -> bool:
        """Whether a pipeline has the layout, microbatches and recompute of the configuration."""
        own = self.problem.pipeline
        return (own.layout, own.batches) == (pipeline.layout, pipeline.batches) and (
            own.recompute == SEARCH or pipeline.model.layers == own.model.layers
        )

    def contains(self, schedule: Schedule) -> bool:
        """Whether a schedule belongs to the configuration."""
        own, pipeline = self.problem.pipeline, schedule.pipeline
        if not is_of_kind(schedule.kind, self.problem.backward_kind):
            return False
        return self.allows(pipeline) and (own.partition == SEARCH or pipeline.counts == own.counts)

    def start_from(self, schedule: Schedule) -> None:
        """Start from a schedule that belongs to the configuration."""
        self.hint(schedule)
        self.take(schedule)

    def take(self, schedule: Schedule) -> None:
        """See `PlanCandidate.take`.

        The schedule has the placement of the configuration. That of a strategy may have another
        name: interleaved stages, one per device, have the layout of linear ones.
        """
        own = self.problem.pipeline
        if self._is_better(schedule):
            named = replace(schedule.pipeline, placement=own.placement, chunks=own.chunks)
            known = known_result(self.problem, replace(schedule, pipeline=named), self._options)
            self._taken = Configuration((), Fraction(0), batches=own.batches, result=known)
            self.update(None)

    def minimize_memory(self, deadline: Deadline) -> LeastMemory:
        """See `PlanCandidate.minimize_memory`."""
        search = self._less_memory(None, deadline)
        point, problem = search.curve.points[-1], search.space
        pipeline = replace(point.schedule.pipeline, mem_limit=self.problem.pipeline.limits)
        self.take(replace(point.schedule, pipeline=pipeline))
        return LeastMemory(problem.memory(point.limit), problem.memory(search.least_limit))

    def least_within(self, value: Fraction, deadline: Deadline) -> WithinShare | None:
        """See `PlanCandidate.least_within`."""
        if super().least_within(value, deadline) is None:
            return None
        search = self._less_memory(value, deadline)
        point, limit = search.least, search.least_limit
        memory = map(search.space.memory, (point.limit, limit))
        return WithinShare(self.configuration, point.value, *memory)

    def _less_memory(self, goal: Fraction | None, deadline: Deadline) -> ParetoSearch:
        """Search for less memory, starting from the best schedule; returns the ended search."""
        schedule, options = self.schedule, self._options
        assert schedule is not None
        space = frontier_problem_of(self.problem)
        seconds = max(deadline.left, options.params.frontier.least)
        deadline = Deadline.after(seconds, progress=deadline.progress)
        search = ParetoSearch(
            space, options.by(deadline), Curve(space.limits),
            max_level=options.params.plan.less_level, goal=goal,
        )  # fmt: skip
        search.minimize_memory(schedule)
        self.interrupted |= search.interrupted
        return search


class PlanProduct(ProductChoice):
    """The partitions and recompute of every configuration of a plan."""

    name = "configuration"
    argument = Argument.SEARCH

    def __init__(
        self, candidates: Sequence[OrdersCandidate], margin: Fraction = Fraction(1)
    ) -> None:
        """Bounds are exact up to `margin` times the ceiling. Prefixes are indices of candidates."""
        self._candidates: dict[Key, OrdersCandidate] = {
            (index,): candidate for index, candidate in enumerate(candidates)
        }
        super().__init__({key: candidate.choice for key, candidate in self._candidates.items()})
        self._margin = margin
        self._ceiling: Fraction | None = None
        """Ceiling of the last bounds: configurations with bounds above it are of no use."""

    def prefixes(self, pipeline: Pipeline) -> Iterator[Key]:
        """Configurations with the layout, microbatches and recompute of a pipeline."""
        candidates = self._candidates.items()
        return (prefix for prefix, candidate in candidates if candidate.allows(pipeline))

    def group(self, key: Key) -> Key:
        """Configuration of the plan."""
        return key[:1]

    def words(self, key: Key) -> str:
        """Text that names a configuration of the plan."""
        return str(self._candidates[key[:1]].configuration)

    def least(self, prefix: Key) -> Fraction:
        """Lower bound of a configuration, per microbatch."""
        return self._candidates[prefix].least

    def configurations(self, keys: Sequence[Key]) -> Iterator[Configuration]:
        """Configurations with their bounds; each belongs to its candidate, too."""
        for configuration in super().configurations(keys):
            prefix, configuration.key = configuration.key[:1], configuration.key[1:]
            self._candidates[prefix].add(configuration)
            configuration.key = (*prefix, *configuration.key)
            yield configuration

    def bound(self, deadline: Deadline, ceiling: Fraction | None = None) -> None:
        """Bound the configurations that may be below the ceiling, in turns."""
        self._ceiling = ceiling
        waiting = self._open_prefixes(ceiling)
        while waiting:
            prefix, *waiting = waiting
            batches = self._candidates[prefix].configuration.batches
            useful = None if ceiling is None else ceiling * self._margin * batches
            self.inner[prefix].bound(deadline.turn(len(waiting)), useful)
            self._share_bounds()
            waiting = [prefix for prefix in waiting if self._is_open(prefix, ceiling)]

    def _share_bounds(self) -> None:
        """Raise bounds to those with chosen recompute, which hold for any of the same placement."""
        candidates = {candidate.configuration: candidate for candidate in self._candidates.values()}
        for configuration, candidate in candidates.items():
            wider = candidates.get(configuration._replace(recompute=SEARCH))
            if wider is not None:
                candidate.raise_floor(wider.least)

    def _open_prefixes(self, ceiling: Fraction | None) -> list[Key]:
        """Configurations with bounds below a ceiling: by bound, then number of stages.

        Chosen recompute comes before the other modes of a placement.
        """

        def order(prefix: Key) -> tuple[Fraction, int, bool]:
            pipeline = self._candidates[prefix].problem.pipeline
            return self.least(prefix), pipeline.num_stages, pipeline.recompute != SEARCH

        return sorted((key for key in self.inner if self._is_open(key, ceiling)), key=order)

    def _is_open(self, prefix: Key, ceiling: Fraction | None) -> bool:
        return self._candidates[prefix].may_be_below(ceiling)

    def first(self) -> Iterator[Key]:
        """First partition of every open configuration by bound, then the second ones, and so on."""
        rows = {prefix: iter(self.inner[prefix].first()) for prefix in self._open_prefixes(None)}
        while rows:
            for prefix, keys in list(rows.items()):
                key = next(keys, None) if self._is_open(prefix, self._ceiling) else None
                if key is None:
                    del rows[prefix]
                else:
                    yield (*prefix, *key)

    def moves(self, key: Key) -> Iterator[Key]:
        """Moves within a configuration of the plan, if it is open."""
        return super().moves(key) if self._is_open(key[:1], self._ceiling) else iter(())

    def rest_of_choice(self, prefix: Key, known: Container[Key], ceiling: Fraction | None) -> Rest:
        """Partitions and recompute of one configuration that are not known."""
        candidate = self._candidates[prefix]
        return candidate.rest(known, ceiling) if candidate.may_be_below(ceiling) else NONE_LEFT

    def proof(self, search: SearchedConfigurations) -> str:
        """Text of the argument behind the bound over all."""
        return f"over {len(self.inner)} configurations, {search.searched} partitions were searched"


def _best(configurations: Iterable[Configuration]) -> Configuration | None:
    """Configuration of the best schedule; of several, that of the least memory."""
    return min(
        by_value(configurations),
        key=lambda configuration: (*_value_and_peak(configuration), configuration.key),
        default=None,
    )


def _value_and_peak(configuration: Configuration) -> tuple[Fraction, Fraction]:
    """Value and largest device peak of the best schedule of a configuration that has one."""
    result = configuration.result
    assert configuration.value is not None and result is not None and result.schedule is not None
    return configuration.value, peak_memory(result.schedule)
