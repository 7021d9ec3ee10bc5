"""Schedules of hand strategies, each made once: searches and studies read the same ones.

A search starts from the hand strategies of its placement, and its result is compared with them. A
frontier searches within many limits, and a plan searches many configurations. So the last schedules
are cached here. A memory limit decides only when weights are gathered and activations come back
from the host; without these, one schedule serves all limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.traits import BESIDE_COMPUTE
from ppopt.schedule import timing
from ppopt.schedule.origin import Origin
from ppopt.schedule.schedule import Schedule
from ppopt.strategies.base import Options, Strategy

MOST_CACHED = 64
"""Most schedules that are cached."""
MOST_OPERATIONS = 50_000
"""Most operation numbers of a schedule that is cached: the cache stays below 250 MB."""


def own_schedule(
    strategy: Strategy, placed: Pipeline, objective: Objective, options: Options
) -> Schedule:
    """Schedule of the order that a strategy gives for its own pipeline, timed for the objective.

    Raises NotApplicableError if the strategy cannot run on the pipeline.
    """
    return _limited(strategy, placed, placed, objective, options)


def schedules(
    strategy: Strategy, placed: Pipeline, objective: Objective, options: Options
) -> Iterator[Schedule]:
    """Schedules of all orders of a strategy that compete for its own pipeline."""
    for ordered in strategy.order_pipelines(placed):
        yield _limited(strategy, placed, ordered, objective, options)


def _limited(
    strategy: Strategy, placed: Pipeline, ordered: Pipeline, objective: Objective, options: Options
) -> Schedule:
    """Schedule of a pipeline under its limit, with the order for the times of another pipeline."""
    make = _cached if placed.num_codes <= MOST_OPERATIONS else _made
    if placed.mem_limit is None or placed.traits & BESIDE_COMPUTE:
        return make(strategy, placed, ordered, objective, options)
    unlimited = replace(placed, mem_limit=None)
    schedule = make(strategy, unlimited, ordered, objective, options)
    return replace(schedule, pipeline=placed)


def _made(
    strategy: Strategy, placed: Pipeline, ordered: Pipeline, objective: Objective, options: Options
) -> Schedule:
    options = strategy.with_defaults(placed, options)
    origin = Origin(
        strategy=strategy.name, objective=objective, status="feasible", options=options.given
    )
    orders = strategy.built(ordered, options)
    return timing.schedule(placed, orders, objective, origin, unshard_ahead=options.unshard_ahead)


_cached = lru_cache(maxsize=MOST_CACHED)(_made)
