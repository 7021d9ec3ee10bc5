"""First schedules: those of published strategies with the balanced partition, within the limits.

A plan evaluates them for all of its configurations before it searches any, and every search starts
from them. So no configuration has a worse value than these strategies, however short its search.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from ppopt.errors import NotApplicableError
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.layer_choices import SEARCH_RECOMPUTE
from ppopt.problem.objective import Objective
from ppopt.problem.partition import BALANCED, SEARCH
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.schedule.origin import SEARCHED
from ppopt.schedule.schedule import Schedule
from ppopt.solver.heuristics.repair import repair
from ppopt.strategies import Strategy, registry, resolve
from ppopt.studies.evaluate import objective_value, timed
from ppopt.studies.plan_space import PlanConfiguration, PlanSpace, partitions_on
from ppopt.studies.strategy_evaluator import AcceptsPartition
from ppopt.studies.strategy_search import StrategySearch
from ppopt.verifier import checked

USUAL = {"linear": "1f1b", "interleaved": "interleaved", "v": "1f1b-v"}
"""The strategy of a placement that is evaluated first."""


class FirstSchedules(NamedTuple):
    """The first schedules of one configuration of a plan."""

    pipeline: Pipeline
    """Its placement is named; partition and recompute may be open."""
    objective: Objective
    backward_kind: BackwardKind = BackwardKind.MIXED
    accepts_partition: AcceptsPartition | None = None
    """Whether the runtime supports a partition; None: it supports all."""

    def usual(self) -> Iterator[Schedule]:
        """Schedules of the usual strategy of the placement.

        Without recompute if that fits, or else with full recompute, and with as few layers as fit.
        """
        strategy = resolve(USUAL[self.pipeline.resolved_placement])
        schedules = list(self._of_strategy(strategy))
        yield from schedules
        if self._chooses_recompute and any(any(each.pipeline.recomputed) for each in schedules):
            yield from self._with_few_layers(strategy)

    def others(self) -> Iterator[Schedule]:
        """Schedules of the other strategies of the placement whose order is fixed."""
        placement = self.pipeline.resolved_placement
        for strategy in registry().values():
            fixed = strategy.placement == placement and not strategy.adaptive
            if fixed and strategy.name != USUAL[placement]:
                yield from self._of_strategy(strategy)

    @property
    def _chooses_recompute(self) -> bool:
        return self.pipeline.recompute == SEARCH_RECOMPUTE

    def _of_strategy(self, strategy: Strategy) -> Iterator[Schedule]:
        """Schedule of a strategy without recompute or, if that exceeds the limits, with full.

        With recompute that is given, as given. If this exceeds the limits, the order is repaired:
        forwards wait for memory, so that fewer microbatches are in flight.
        """
        kind = BackwardKind.WHOLE if strategy.fused else BackwardKind.SPLIT
        if self.backward_kind not in (BackwardKind.MIXED, kind):
            return
        modes = ("none", "full") if self._chooses_recompute else (None,)
        with suppress(NotApplicableError):
            for mode in modes:
                schedule = timed(self._balanced(mode), strategy.name, self.objective)
                if schedule.pipeline.layout != self.pipeline.layout:
                    return
                if schedule.fits_limits:
                    yield checked(schedule)
                    return
            orders = repair(schedule, Problem(schedule.pipeline, self.objective, kind).instance)
            if orders is not None:
                yield checked(timing.schedule(schedule.pipeline, orders, self.objective))

    def _with_few_layers(self, strategy: Strategy) -> Iterator[Schedule]:
        """Schedule of a strategy in which as few layers recompute as fit."""
        with suppress(NotApplicableError):
            search = StrategySearch(self._balanced(None), strategy.name, self.objective)
            search.evaluate_first()
            if search.fits:
                yield search.schedule()

    def _balanced(self, recompute: str | None) -> Pipeline:
        """The pipeline with a partition by rule, the balanced one if the runtime supports it.

        `recompute` is a mode, or None for that of the pipeline. Raises NotApplicableError if the
        runtime supports no such partition.
        """
        pipeline = self.pipeline
        if recompute is not None:
            pipeline = replace(pipeline, recompute=recompute)
        if pipeline.partition != SEARCH:
            return pipeline
        for partition in (BALANCED, "even"):
            fixed = replace(pipeline, partition=partition)
            if self.accepts_partition is None or self.accepts_partition(fixed.counts):
                return fixed
        raise NotApplicableError("partition: the runtime supports no partition by rule")


class FirstRow(NamedTuple):
    """The best first schedule of a plan space."""

    configuration: PlanConfiguration
    """Configuration of the schedule, with its strategy unless the order was repaired."""
    schedule: Schedule


def first_row(space: PlanSpace, objective: Objective) -> FirstRow | None:
    """The best schedule of the usual strategies of a space; None: none is within the limits.

    If recompute is searched, other modes are not evaluated on their own. Strategies that are not in
    the space are left out, too.
    """
    modes = (SEARCH,) if SEARCH in space.recompute else space.recompute
    distinct = {each._replace(strategy=""): each for each in space if each.recompute in modes}
    rows: list[FirstRow] = []
    for configuration in distinct.values():
        with suppress(NotApplicableError):
            pipeline = space.pipeline(configuration)
            accepts = partitions_on(space.runtime, pipeline)
            rows += [
                FirstRow(_configuration_of(schedule, configuration), schedule)
                for schedule in FirstSchedules(
                    pipeline, objective, accepts_partition=accepts
                ).usual()
                if SEARCHED in space.strategies or schedule.origin.strategy in space.strategies
            ]
    return min(rows, key=lambda row: objective_value(row.schedule, objective), default=None)


def _configuration_of(schedule: Schedule, searched: PlanConfiguration) -> PlanConfiguration:
    """Configuration of a schedule, within one whose recompute may be searched."""
    recompute, model = searched.recompute, schedule.pipeline.model
    if recompute == SEARCH:
        fixed = (mode for mode in ("none", "full") if model == model.with_recompute(mode))
        recompute = next(fixed, SEARCH)
    return searched._replace(recompute=recompute, strategy=schedule.origin.strategy or SEARCHED)
