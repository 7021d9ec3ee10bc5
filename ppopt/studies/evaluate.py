"""Evaluates a strategy: order, timing, verifier."""

from __future__ import annotations

from fractions import Fraction
from math import inf
from operator import sub

from ppopt.cancellation import scope
from ppopt.errors import check_type
from ppopt.problem.decisions import Decisions
from ppopt.problem.exact import ratio
from ppopt.problem.microbatches import GIVEN_ORDER
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.traits import refuse_unhandled
from ppopt.schedule.order_columns import BY_FACTORS
from ppopt.schedule.schedule import Schedule
from ppopt.solver.microbatch_orders.local_search import OrderSearch
from ppopt.strategies import Options, resolve
from ppopt.strategies.schedules import schedules
from ppopt.verifier import checked

EVALUATIONS = 2000
"""Number of orders of microbatches that are timed, if the order is searched."""


def evaluate(
    pipeline: Pipeline,
    strategy: str,
    objective: Objective | str = Objective.MAKESPAN,
    options: Options | None = None,
) -> Schedule:
    """Return the schedule of a strategy on a pipeline, timed and verified.

    The strategy prescribes chunks and placement. Operations start as early as possible or, for
    device span, so that the span is minimal. If a strategy has several orders, the result is the
    best by the objective. If the order of microbatches is open, it is the best that a local search
    finds. Memory limits are not enforced. Raises InputError if the strategy is unknown, and
    NotApplicableError if it does not apply to the pipeline.
    """
    check_type("pipeline", pipeline, Pipeline)
    decisions = Decisions.OF_STRATEGY | Decisions.RECOMPUTE_SET
    pipeline.refuse_open(decisions, "evaluate, unlike ppopt.best_choice,")
    return checked(timed(pipeline, strategy, objective, options), enforce_limit=False)


def timed(
    pipeline: Pipeline, strategy: str, objective: Objective | str, options: Options | None = None
) -> Schedule:
    """Return the schedule of `evaluate` before it is verified."""
    if Decisions.ORDER in pipeline.open_decisions:
        return _in_best_order(pipeline.having(order=GIVEN_ORDER), strategy, objective, options)
    options, rule, objective = options or Options(), resolve(strategy), Objective(objective)
    placed = rule.apply(pipeline, options)
    return min(
        schedules(rule, placed, objective, options),
        key=lambda schedule: schedule.metrics.value_ticks(objective),
    )


def _in_best_order(
    pipeline: Pipeline, strategy: str, objective: Objective | str, options: Options | None
) -> Schedule:
    """Return the schedule in the best order of the microbatches that local search finds.

    Schedules within the memory limits come first. The local search ends once Ctrl-C is recorded.
    Raises NotApplicableError if the timing of orders does not apply.
    """
    listed, objective = timed(pipeline, strategy, objective, options), Objective(objective)
    refuse_unhandled("order: search", listed.pipeline.traits, BY_FACTORS, "give `order: given`")
    with scope(inf):
        best = OrderSearch.of_schedule(listed, objective).run(EVALUATIONS)
    reordered = timed(pipeline.reordered(best.order), strategy, objective, options)
    return min(
        (reordered, listed),
        key=lambda schedule: (not schedule.fits_limits, schedule.metrics.value_ticks(objective)),
    )


def objective_value(schedule: Schedule, objective: Objective) -> Fraction:
    """Makespan or device span of a schedule, in the user's unit."""
    return schedule.pipeline.ticks.time(schedule.metrics.value_ticks(objective))


def peak_memory(schedule: Schedule) -> Fraction:
    """Largest device peak of a schedule, in the user's unit."""
    return schedule.pipeline.ticks.memory(max(schedule.metrics.peak_memory_ticks))


def headroom(schedule: Schedule) -> int | float | None:
    """Least memory that the limit of a device leaves, in the user's unit; None without limits."""
    ticks = schedule.pipeline.ticks
    if ticks.limits is None:
        return None
    minimum = min(map(sub, ticks.limits, schedule.metrics.peak_memory_ticks))
    return ratio(minimum, ticks.memory_per_unit)
