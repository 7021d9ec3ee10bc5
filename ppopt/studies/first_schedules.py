"""First schedules of a plan space, also with few recomputed layers.

`ppopt.solver.heuristics.first_schedules` has those of one configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from itertools import accumulate, chain
from math import inf
from operator import methodcaller
from typing import NamedTuple

from ppopt.cancellation import checkpoint, scope
from ppopt.errors import NotApplicableError
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import SEARCH, Decisions
from ppopt.problem.layer_choices import by_rules
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.schedule.list_scheduling import one_at_a_time
from ppopt.schedule.origin import SEARCHED
from ppopt.schedule.schedule import Schedule
from ppopt.solver.heuristics.first_schedules import QUICK, FirstSchedules
from ppopt.studies.evaluate import objective_value, peak_memory
from ppopt.studies.plan_space import PlanConfiguration, PlanSpace, partitions_on
from ppopt.studies.strategy_search import StrategySearch
from ppopt.verifier import checked

SECONDS_PER_OPERATION = 1e-5
"""Estimated seconds of the usual strategies of a configuration, per F, B and W. They are timed on
several partitions and with several choices of recompute, and the best schedule is verified."""


def first_schedules_of(
    space: PlanSpace,
    pipeline: Pipeline,
    objective: Objective = Objective.MAKESPAN,
    kind: BackwardKind = BackwardKind.MIXED,
) -> FirstSchedules:
    """First schedules of a configuration of a space; `pipeline` is that of the configuration."""
    accepts = partitions_on(space.runtime, pipeline)
    return FirstSchedules(pipeline, objective, kind, accepts, space.options)


def num_evaluated(
    space: PlanSpace, configurations: Sequence[PlanConfiguration], seconds: float
) -> int:
    """Number of configurations, at least one, whose usual strategies take so many seconds.

    The estimate does not depend on the clock.
    """
    per_chunk = 3 * space.devices * SECONDS_PER_OPERATION
    ends = accumulate(per_chunk * each.batches * each.chunks for each in configurations)
    return max(1, sum(end <= seconds for end in ends))


def with_few_layers(first: FirstSchedules) -> Iterator[Schedule]:
    """Schedule of the usual strategy in which as few layers recompute or offload as fit.

    Nothing if neither is searched.
    """
    if first.pipeline.open_decisions & Decisions.OF_LAYERS:
        with suppress(NotApplicableError):
            yield from _after(StrategySearch.evaluate_first, first, first.balanced)


def in_best_configuration(first: FirstSchedules) -> Iterator[Schedule]:
    """Schedule of the usual strategy, with the partition and recompute of one descent.

    Nothing if neither is searched, or if no descent ends within the limits in the time left.
    """
    if first.pipeline.open_decisions & Decisions.OF_STRATEGY:
        with suppress(NotApplicableError):
            yield from _after(methodcaller("descend", 1), first, first.pipeline)


def _after(
    run: Callable[[StrategySearch], None], first: FirstSchedules, pipeline: Pipeline
) -> Iterator[Schedule]:
    """Best schedule of the usual strategy after a search on a pipeline, if it fits the limits."""
    search = StrategySearch(pipeline, first.usual_strategy.name, first.objective)
    run(search)
    if search.fits:
        yield search.schedule()


class FirstRow(NamedTuple):
    """A first schedule of a plan space."""

    configuration: PlanConfiguration
    """Configuration of the schedule, with its strategy unless the order was repaired."""
    schedule: Schedule

    @property
    def step(self) -> Fraction:
        """Makespan, in the user's unit."""
        return objective_value(self.schedule, Objective.MAKESPAN)

    def rank(self) -> Fraction:
        """Time per microbatch."""
        return self.step / self.configuration.batches

    @property
    def peak(self) -> Fraction:
        """Largest device peak, in the user's unit."""
        return peak_memory(self.schedule)


class FirstRows:
    """The first schedules of a plan space: the best of every configuration, the fastest first.

    If recompute is searched, other modes are not evaluated on their own. Strategies that are not in
    the space are left out.
    """

    def __init__(self, space: PlanSpace) -> None:
        self._space = space
        modes = (SEARCH,) if SEARCH in space.recompute else space.recompute
        distinct = {each._replace(strategy=""): each for each in space if each.recompute in modes}
        quick = [each for each in distinct.values() if each.placement in QUICK]
        self._quick = quick or list(distinct.values())
        self._further = [each for each in distinct.values() if each not in self._quick]

    def quick(self) -> tuple[FirstRow, ...]:
        """Those of 1F1B and interleaved 1F1B that are within the limits."""
        return _best_of_each(self._rows(self._quick, FirstSchedules.usual))

    def usual(self, seconds: float) -> tuple[FirstRow, ...]:
        """Those of the usual strategies of all placements, in every recompute mode.

        There are as many as `num_evaluated` allows.
        """
        configurations = list(self._space)
        number = num_evaluated(self._space, configurations, seconds)
        return _best_of_each(self._rows(configurations[:number], FirstSchedules.usual))

    def further(self, known: tuple[FirstRow, ...]) -> tuple[FirstRow, ...]:
        """`known`, the other placements, as few recomputed layers as fit, and zero bubble.

        Rows after the end of an enclosing scope are missing.
        """
        rows, every = list(known), (*self._quick, *self._further)
        with scope(inf):
            for row in chain(
                self._rows(self._further, FirstSchedules.usual),
                self._rows(every, with_few_layers),
                self._rows(every, FirstSchedules.zero_bubble),
            ):
                rows.append(row)
                checkpoint()
        return _best_of_each(rows)

    def _rows(
        self,
        configurations: Iterable[PlanConfiguration],
        schedules_of: Callable[[FirstSchedules], Iterator[Schedule]],
    ) -> Iterator[FirstRow]:
        return (
            FirstRow(_configuration_of(schedule, configuration), schedule)
            for configuration in configurations
            for schedule in self._schedules(configuration, schedules_of)
        )

    def _schedules(
        self,
        configuration: PlanConfiguration,
        schedules_of: Callable[[FirstSchedules], Iterator[Schedule]],
    ) -> Iterator[Schedule]:
        """First schedules of a configuration that are in the space."""
        space = self._space
        with suppress(NotApplicableError):
            first = first_schedules_of(space, space.pipeline(configuration))
            for schedule in schedules_of(first):
                if SEARCHED in space.strategies or schedule.origin.strategy in space.strategies:
                    yield schedule


def _best_of_each(rows: Iterable[FirstRow]) -> tuple[FirstRow, ...]:
    """The row of minimum time per microbatch of every configuration, the fastest first."""
    best: dict[PlanConfiguration, FirstRow] = {}
    for row in sorted(rows, key=FirstRow.rank):
        best.setdefault(row.configuration._replace(strategy=""), row)
    return tuple(best.values())


def least_memory_row(space: PlanSpace) -> FirstRow:
    """The schedule of least memory by rule, which may exceed the limits.

    One microbatch at a time, on the balanced partition, with full recompute if the space allows it.
    """
    full = {SEARCH, "full"} & {*space.recompute}
    configurations = {each._replace(recompute="full") if full else each for each in space}
    rows = []
    for configuration in sorted(configurations):
        with suppress(NotApplicableError):
            for pipeline in by_rules(space.pipeline(configuration)):
                problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.WHOLE)
                orders = one_at_a_time(problem.instance)
                schedule = checked(timing.schedule(pipeline, orders), enforce_limit=False)
                rows.append(FirstRow(configuration._replace(strategy=SEARCHED), schedule))
    return min(rows, key=lambda row: (row.peak, row.configuration))


def _configuration_of(schedule: Schedule, searched: PlanConfiguration) -> PlanConfiguration:
    """Configuration of a schedule, within one whose recompute may be searched."""
    recompute, model = searched.recompute, schedule.pipeline.model
    if recompute == SEARCH:
        fixed = (mode for mode in ("none", "full") if model == model.with_recompute(mode))
        recompute = next(fixed, SEARCH)
    return searched._replace(recompute=recompute, strategy=schedule.origin.strategy or SEARCHED)
