"""First schedules: those of published strategies with the balanced partition, within the limits.

A plan evaluates them for all of its configurations before it searches any, and every search starts
from them. So no configuration has a worse value than these strategies, however short its search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from ppopt.errors import NotApplicableError
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.layer_choices import SEARCH_RECOMPUTE
from ppopt.problem.objective import Objective
from ppopt.problem.partition import SEARCH, all_by_rule
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.problem.settings import LIMIT_1F1B
from ppopt.schedule import timing
from ppopt.schedule.origin import SEARCHED
from ppopt.schedule.schedule import Schedule
from ppopt.solver.deadline import Deadline
from ppopt.solver.heuristics.repair import repair
from ppopt.strategies import Strategy, registry, resolve
from ppopt.studies.best_choice import has_open_choices
from ppopt.studies.evaluate import objective_value, timed
from ppopt.studies.plan_space import PlanConfiguration, PlanSpace, partitions_on
from ppopt.studies.strategy_evaluator import AcceptsPartition
from ppopt.studies.strategy_search import StrategySearch
from ppopt.verifier import checked

USUAL = {"linear": "1f1b", "interleaved": "interleaved", "v": "1f1b-v"}
"""The strategy of a placement that is evaluated first."""
QUICK = ("linear", "interleaved")
"""Placements whose usual strategies most trainers run."""


class FirstSchedules(NamedTuple):
    """The first schedules of one configuration of a plan."""

    pipeline: Pipeline
    """Its placement is named; partition and recompute may be open."""
    objective: Objective
    backward_kind: BackwardKind = BackwardKind.MIXED
    accepts_partition: AcceptsPartition | None = None
    """Whether the runtime supports a partition; None: it supports all."""

    def usual(self) -> Iterator[Schedule]:
        """Schedule of the usual strategy of the placement: without recompute, or with full.

        With recompute that is given, as given. If this exceeds the limits, the order is repaired:
        forwards wait for memory, so that fewer microbatches are in flight.
        """
        return self._of_strategy(self._usual)

    def with_few_layers(self) -> Iterator[Schedule]:
        """Schedule of the usual strategy in which as few layers recompute as fit.

        Nothing if recompute is not searched.
        """
        if self.pipeline.recompute != SEARCH_RECOMPUTE:
            return
        with suppress(NotApplicableError):
            search = StrategySearch(self._balanced, self._usual.name, self.objective)
            search.evaluate_first()
            if search.fits:
                yield search.schedule()

    def in_best_configuration(self, deadline: Deadline) -> Iterator[Schedule]:
        """Schedule of the usual strategy, with the partition and recompute of one descent.

        Nothing if neither is searched, or if no descent ends within the limits by the deadline.
        """
        if not has_open_choices(self.pipeline):
            return
        with suppress(NotApplicableError):
            search = StrategySearch(
                self.pipeline,
                self._usual.name,
                self.objective,
                accepts_partition=self.accepts_partition,
            )
            search.descend(1, deadline)
            if search.fits:
                yield search.schedule()

    def others(self) -> Iterator[Schedule]:
        """Schedules as in `usual` of the other strategies of the placement with a fixed order."""
        for strategy in registry().values():
            fixed = strategy.placement == self._usual.placement and not strategy.adaptive
            if fixed and strategy is not self._usual:
                yield from self._of_strategy(strategy)

    @property
    def _usual(self) -> Strategy:
        return resolve(USUAL[self.pipeline.resolved_placement])

    def _of_strategy(self, strategy: Strategy) -> Iterator[Schedule]:
        kind = BackwardKind.WHOLE if strategy.fused else BackwardKind.SPLIT
        if self.backward_kind not in (BackwardKind.MIXED, kind):
            return
        with suppress(NotApplicableError):
            for pipeline in self._pipelines():
                schedule = timed(pipeline, strategy.name, self.objective)
                if schedule.pipeline.layout != self.pipeline.layout:
                    return
                if schedule.fits_limits:
                    yield checked(schedule)
                    return
            orders = repair(schedule, Problem(schedule.pipeline, self.objective, kind).instance)
            if orders is not None:
                yield checked(timing.schedule(schedule.pipeline, orders, self.objective))

    def _pipelines(self) -> Iterator[Pipeline]:
        """The pipeline without recompute, if 1F1B may fit, and with full recompute; or as given."""
        balanced = self._balanced
        if balanced.recompute != SEARCH_RECOMPUTE:
            yield balanced
            return
        without, limits = replace(balanced, recompute="none"), balanced.limits
        peaks = without.limits_by(LIMIT_1F1B)
        if limits is None or peaks is None or max(peaks) <= max(limits):
            yield without
        yield replace(balanced, recompute="full")

    @property
    def _balanced(self) -> Pipeline:
        """The pipeline with the balanced partition, or an even one if the runtime needs that.

        Raises NotApplicableError if the runtime supports neither.
        """
        pipeline = self.pipeline
        if pipeline.partition != SEARCH:
            return pipeline
        speeds = tuple(pipeline.device_speed[host] for host in pipeline.hosts[0])
        for counts in reversed(all_by_rule(pipeline.model, pipeline.num_stages, speeds)):
            if self.accepts_partition is None or self.accepts_partition(counts):
                return replace(pipeline, partition=counts, mem_limit=pipeline.limits)
        raise NotApplicableError("partition: the runtime supports no partition by rule")


class FirstRow(NamedTuple):
    """A first schedule of a plan space."""

    configuration: PlanConfiguration
    """Configuration of the schedule, with its strategy unless the order was repaired."""
    schedule: Schedule

    @property
    def step(self) -> Fraction:
        """Makespan, in the user's unit."""
        return objective_value(self.schedule, Objective.MAKESPAN)


class FirstRows:
    """The first schedules of all configurations of a plan space, of minimum makespan.

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

    def quick(self) -> FirstRow | None:
        """The best of 1F1B and interleaved 1F1B; None: none is within the limits."""
        return self._best(self._quick, FirstSchedules.usual)

    def further(self, known: FirstRow | None) -> FirstRow | None:
        """The best of `known`, the other placements, and as few recomputed layers as fit."""
        rows = (
            known,
            self._best(self._quick, FirstSchedules.with_few_layers),
            self._best(self._further, FirstSchedules.usual),
            self._best(self._further, FirstSchedules.with_few_layers),
        )
        return min((row for row in rows if row), key=lambda row: row.step, default=None)

    def _best(
        self,
        configurations: Iterable[PlanConfiguration],
        schedules_of: Callable[[FirstSchedules], Iterator[Schedule]],
    ) -> FirstRow | None:
        rows = (
            FirstRow(_configuration_of(schedule, configuration), schedule)
            for configuration in configurations
            for schedule in self._schedules(configuration, schedules_of)
        )
        return min(rows, key=lambda row: row.step, default=None)

    def _schedules(
        self,
        configuration: PlanConfiguration,
        schedules_of: Callable[[FirstSchedules], Iterator[Schedule]],
    ) -> Iterator[Schedule]:
        """First schedules of a configuration that are in the space."""
        space = self._space
        with suppress(NotApplicableError):
            pipeline = space.pipeline(configuration)
            accepts = partitions_on(space.runtime, pipeline)
            first = FirstSchedules(pipeline, Objective.MAKESPAN, accepts_partition=accepts)
            for schedule in schedules_of(first):
                if SEARCHED in space.strategies or schedule.origin.strategy in space.strategies:
                    yield schedule


def _configuration_of(schedule: Schedule, searched: PlanConfiguration) -> PlanConfiguration:
    """Configuration of a schedule, within one whose recompute may be searched."""
    recompute, model = searched.recompute, schedule.pipeline.model
    if recompute == SEARCH:
        fixed = (mode for mode in ("none", "full") if model == model.with_recompute(mode))
        recompute = next(fixed, SEARCH)
    return searched._replace(recompute=recompute, strategy=schedule.origin.strategy or SEARCHED)
