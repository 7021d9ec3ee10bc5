"""Schedules of strategies, each built once for searches and studies alike.

A search starts from the strategies of its placement, and its result is compared with them. A
frontier searches within many limits, and a plan searches many configurations. So the last schedules
are cached here. A memory limit only affects when weights are gathered and activations come back
from the host; without these, one schedule serves all limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.traits import BESIDE_COMPUTE
from ppopt.schedule import timing
from ppopt.schedule.origin import Origin
from ppopt.schedule.schedule import Schedule
from ppopt.strategies.base import Options, Strategy

MAX_CACHED = 64
"""Maximum number of cached schedules."""
MAX_OPERATIONS = 50_000
"""Maximum number of operations of a cached schedule: the cache stays below 250 MB."""


def own_schedule(
    strategy: Strategy,
    placed: Pipeline,
    objective: Objective,
    options: Options,
    ordered: Pipeline | None = None,
) -> Schedule:
    """Schedule of a strategy's own pipeline, with the order for the times of `ordered`.

    None: for its own times. Raises NotApplicableError if the strategy cannot run on the pipeline.
    """
    ordered = placed if ordered is None else ordered
    make = _cached if placed.num_codes <= MAX_OPERATIONS else _timed
    free, free_order = placed, ordered
    if placed.mem_limit is not None and not placed.traits & BESIDE_COMPUTE:
        free, free_order = placed.unlimited, ordered.unlimited
    return make(strategy, free, free_order, objective, options).limited(placed)


def schedules(
    strategy: Strategy, placed: Pipeline, objective: Objective, options: Options
) -> Iterator[Schedule]:
    """Schedules of all orders of a strategy that compete for its own pipeline."""
    distinct: dict[bytes, Pipeline] = {}
    for pipeline in strategy.order_pipelines(placed):
        orders = np.concatenate(strategy.built(pipeline, strategy.with_defaults(placed, options)))
        distinct.setdefault(orders.tobytes(), pipeline)
    for pipeline in distinct.values():
        yield own_schedule(strategy, placed, objective, options, pipeline)


def _timed(
    strategy: Strategy, placed: Pipeline, ordered: Pipeline, objective: Objective, options: Options
) -> Schedule:
    options = strategy.with_defaults(placed, options)
    origin = Origin(
        strategy=strategy.name, objective=objective, status="feasible", options=options.explicit
    )
    orders = strategy.built(ordered, options)
    return timing.schedule(placed, orders, objective, origin, unshard_ahead=options.unshard_ahead)


_cached = lru_cache(maxsize=MAX_CACHED)(_timed)


def clear_cache() -> None:
    """Forget all cached schedules."""
    _cached.cache_clear()


def with_explicit_placement(pipeline: Pipeline) -> Pipeline:
    """Pipeline with explicit chunks and placement, and without limits.

    Strategies that do not apply reject it at once. The others use it unchanged.
    """
    if not pipeline.named_placement or pipeline.num_devices == 1:
        return pipeline.unlimited
    name = "linear" if pipeline.num_chunks == 1 else pipeline.resolved_placement
    return pipeline.having(chunks=pipeline.num_chunks, placement=name, mem_limit=None)
