"""Construction heuristics: list scheduling and baselines, one schedule per turn.

The two alternate, because each may reach the bound. A priority rule is faster than most strategies,
but on some pipelines a strategy is better than every rule.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import NamedTuple

import numpy as np

from ppopt.cancellation import scope, seconds_left, shield
from ppopt.errors import NotApplicableError
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.problem.traits import ArgumentClass, Trait, handled, unhandled
from ppopt.schedule import list_scheduling, timing
from ppopt.schedule.orders import Orders, convert_backwards
from ppopt.schedule.origin import Origin
from ppopt.schedule.schedule import Schedule
from ppopt.solver.budget import Budget
from ppopt.solver.heuristics.first_schedules import QUICK, USUAL, ZERO_BUBBLE
from ppopt.solver.heuristics.pool import Pool
from ppopt.solver.heuristics.priority_rules import priority_rules
from ppopt.solver.heuristics.repair import repair
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Method, Outcome
from ppopt.solver.parameters import ConstructionParams, PriorityRuleParams
from ppopt.solver.relaxation.route_times import RouteTimes
from ppopt.strategies import Options, Strategy, registry, resolve
from ppopt.strategies.one_f_one_b import within
from ppopt.strategies.schedules import own_schedule, with_explicit_placement


class ListScheduling(Method):
    """List scheduling by priority rules, one schedule per turn."""

    name = "list scheduling"
    handles = handled(
        ArgumentClass.COMPUTE, (Trait.PAIRS, Trait.SHORT_PAIRS, Trait.ROUTES, Trait.SPAN)
    )

    def __init__(
        self,
        pool: Pool,
        rules: PriorityRuleParams = PriorityRuleParams(),
        params: ConstructionParams = ConstructionParams(),
    ) -> None:
        self._pool, self._params = pool, params
        self._rules = (
            rule
            for rule in priority_rules(pool.problem.instance, rules)
            if all(rule != known for _, known in pool.rules)
        )
        building = params.building_plain if pool.scheduler.plain else params.building
        self._seconds = building * pool.problem.num_operations

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Build the schedule of the next rule, unless that would exceed the time limit.

        The rules end early if the first ones are far behind the baselines.
        """
        params, seconds_left = self._params, inf
        if self._is_hopeless(incumbent):
            return Outcome(exhausted=True)
        if incumbent.value is not None:
            submitting = params.submitting * self._pool.problem.num_operations
            seconds_left = budget.search_left - submitting
        rule = next(self._rules, None)
        if rule is None or seconds_left < self._seconds:
            return Outcome(exhausted=True)
        began = time.monotonic()
        with shield() if seconds_left == inf else scope(began + seconds_left):
            self._pool.build(rule, incumbent)
        self._seconds = time.monotonic() - began
        return Outcome()

    def _is_hopeless(self, incumbent: Incumbent) -> bool:
        """Whether the first rules are all far behind the best schedule of their kind."""
        rules, params = self._pool.rules, self._params
        if len(rules) < params.first_rules or incumbent.value is None:
            return False
        return min(value for value, _ in rules) > params.hopeless * incumbent.value


class Baselines(Method):
    """The published strategies of this placement, one per turn, repaired if over the limits."""

    name = "baselines"
    handles = ListScheduling.handles | {Trait.SLICES}

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._initial: Iterator[OrderedSchedule | None] | None = None

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:  # noqa: ARG002
        """Submit the schedule of the next strategy, repaired if it is over the limits."""
        if self._initial is None:
            self._initial = _baseline_schedules(self._pool.problem)
        try:
            initial = next(self._initial)
        except StopIteration:
            return Outcome(exhausted=True)
        if initial is not None:
            self._submit(*initial, incumbent)
        return Outcome()

    def _submit(self, orders: Orders, schedule: Schedule, incumbent: Incumbent) -> None:
        problem = self._pool.problem
        if not schedule.fits_limits:
            repaired = repair(schedule, problem.instance)
            if repaired is None:
                return
            orders = repaired
            schedule = timing.schedule(problem.pipeline, orders, problem.objective)
        incumbent.submit(schedule)
        value = schedule.metrics.value_ticks(problem.objective)
        self._pool.constructed.append((value, False, orders))


class MixedBaselines:
    """The published strategies of this placement that mix whole and split backwards."""

    name = Baselines.name
    handles = Baselines.handles | {Trait.MIXED}

    def supports(self, problem: Problem) -> bool:
        """Whether backwards are mixed; else `Baselines` converts these strategies."""
        return Trait.MIXED in problem.traits

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:  # noqa: ARG002
        """Submit the schedules of all such strategies unchanged."""
        pipeline = incumbent.problem.pipeline
        for initial in _baseline_schedules(incumbent.problem):
            if initial is not None and not _has_one_kind(pipeline, initial.orders):
                incumbent.submit(initial.schedule)
        return Outcome(exhausted=True)


def _has_one_kind(pipeline: Pipeline, orders: Orders) -> bool:
    return any(
        all(map(np.array_equal, orders, convert_backwards(pipeline, orders, kind)))
        for kind in (BackwardKind.SPLIT, BackwardKind.WHOLE)
    )


class OrderedSchedule(NamedTuple):
    """A schedule, and the orders from which it was timed."""

    orders: Orders
    schedule: Schedule


def initial_schedules(problem: Problem) -> Iterator[OrderedSchedule | None]:
    """One microbatch at a time, then the baselines; None if a strategy does not apply.

    All backwards are of the kind of the problem: other strategies are converted. Strategies that
    may take longer than the time left are skipped.
    """
    yield _timed(problem, one_microbatch_at_a_time(problem))
    yield from _baseline_schedules(problem)


def one_microbatch_at_a_time(problem: Problem) -> Orders:
    """Orders of one microbatch at a time, which needs minimum memory."""
    return list_scheduling.one_at_a_time(problem.instance)


def usual_orders(problem: Problem) -> Orders | None:
    """Orders of 1F1B or interleaved 1F1B; None if neither applies."""
    placement = problem.pipeline.resolved_placement
    if placement not in QUICK:
        return None
    strategy = resolve(USUAL[placement])
    with suppress(NotApplicableError):
        placed = _placed(strategy, with_explicit_placement(problem.pipeline))
        if placed is not None:
            return _converted(problem, strategy.built(placed, Options()))
    return None


def limited_orders(problem: Problem) -> Orders | None:
    """Orders of 1F1B within the memory limits; None if 1F1B does not apply."""
    pipeline = problem.pipeline
    applies = not unhandled(pipeline.traits, resolve("1f1b").handles)
    if pipeline.resolved_placement != "linear" or not applies:
        return None
    activations = RouteTimes(problem.instance).max_until_b
    fitting = [pipeline.num_stages if limit is None else max(limit, 1) for limit in activations]
    return _converted(problem, within(pipeline, fitting))


def _converted(problem: Problem, orders: Orders) -> Orders:
    """Orders with all backwards of the kind of the problem."""
    return convert_backwards(problem.pipeline, orders, problem.backward_kind)


QUICK_ORDERS = (usual_orders, limited_orders, one_microbatch_at_a_time)
"""Orders that need no search, the fastest first; later ones need less memory."""


def _baseline_schedules(problem: Problem) -> Iterator[OrderedSchedule | None]:
    """Schedules of all strategies, those that are mostly the best of their placement first."""
    pipeline = problem.pipeline
    unlimited, placement = with_explicit_placement(pipeline), pipeline.resolved_placement
    best = [resolve(own[placement]) for own in (ZERO_BUBBLE, USUAL) if placement in own]
    for strategy in dict.fromkeys((*best, *registry().values())):
        if strategy.seconds(pipeline) < seconds_left():
            try:
                yield _baseline_schedule(problem, strategy, unlimited)
            except NotApplicableError:
                yield None


def _baseline_schedule(
    problem: Problem, strategy: Strategy, unlimited: Pipeline
) -> OrderedSchedule | None:
    """Schedule of a strategy on exactly this pipeline; None if its placement differs.

    Raises NotApplicableError if the strategy does not apply.
    """
    placed = _placed(strategy, unlimited)
    if placed is None:
        return None
    own = strategy.built(placed, Options())
    orders = _converted(problem, own)
    if not all(map(np.array_equal, own, orders)):
        return _timed(problem, orders)
    schedule = own_schedule(strategy, placed, problem.objective, Options())
    return OrderedSchedule(orders, replace(schedule, pipeline=problem.pipeline, origin=Origin()))


def _placed(strategy: Strategy, unlimited: Pipeline) -> Pipeline | None:
    """The pipeline of a strategy; None if its placement differs."""
    placed = strategy.apply(unlimited, Options())
    return placed if placed.layout == unlimited.layout else None


def _timed(problem: Problem, orders: Orders) -> OrderedSchedule:
    return OrderedSchedule(orders, timing.schedule(problem.pipeline, orders, problem.objective))
