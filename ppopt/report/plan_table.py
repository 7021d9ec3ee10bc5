"""The configurations of a plan side by side: the columns, and the table for the terminal."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from operator import attrgetter

from ppopt.problem import layout
from ppopt.report.columns import Column, Grid, left, stacked
from ppopt.report.labels import objective_name
from ppopt.report.numbers import NONE, lower_bound_text, number, percent, significant
from ppopt.report.plan_text import BEST, status_word
from ppopt.schedule.origin import SEARCHED
from ppopt.studies.plan_result import Plan, PlanRow

_STYLES = {"optimal": "bold green", "pruned": "dim", "infeasible": "dim red"}


def has_batches(plan: Plan) -> bool:
    """Whether configurations of several batch counts compare, by the time per microbatch."""
    return len(plan.space.batches) > 1


def plan_columns(plan: Plan, *, exact: bool) -> dict[str, Column[PlanRow]]:
    """Columns of the rows of a plan by name; `exact`: whether figures are, or have four digits.

    The value is the objective; of several batch counts, the time per microbatch. `memory` is the
    largest peak of a device, `headroom` the least memory that the limits leave a device,
    `partition` the layout or layers of every stage.
    """
    best, several = plan.rows[0], has_batches(plan)
    value_of: Callable[[PlanRow], Fraction | None] = attrgetter(
        "per_microbatch" if several else "value"
    )
    bound_of: Callable[[PlanRow], Fraction | None] = attrgetter(
        "bound_per_microbatch" if several else "lower_bound"
    )
    write = number if exact else significant

    def bound(row: PlanRow) -> str:
        low = bound_of(row)
        return number(low) if exact else lower_bound_text(low, value_of(row))

    def ratio(row: PlanRow) -> Fraction | None:
        time = row.per_microbatch
        return time / best.per_microbatch if time and best.per_microbatch else None

    def status(row: PlanRow) -> str:
        is_best = row is best and row.schedule is not None
        return BEST if is_best else status_word(row.status, row.searches)

    name = "time per\nmicrobatch" if several else objective_name(plan.objective)
    return {
        "strategy": left("strategy", lambda row: row.configuration.strategy),
        "placement": left("placement", _placement),
        "recompute": left("recompute", lambda row: row.configuration.recompute),
        "batches": Column("batches", lambda row: number(row.configuration.batches)),
        "value": Column(stacked(name, plan.pipeline.time_unit), lambda row: write(value_of(row))),
        "bound": Column("bound", bound),
        "vs best": Column("vs best", lambda row: significant(ratio(row)), optional=2),
        "memory": Column(stacked("memory", plan.pipeline.memory_unit), lambda row: write(row.peak)),
        "headroom": Column("headroom", lambda row: write(row.headroom), optional=1),
        "bubble rate": Column("bubble rate", _bubble_rate),
        "partition": Column("partition", _partition),
        "status": left("status", status),
    }


def _placement(row: PlanRow) -> str:
    chunks = row.configuration.chunks
    return row.configuration.placement + (f"/{chunks}" if chunks > 1 else "")


def _bubble_rate(row: PlanRow) -> str:
    schedule = row.schedule
    rate = None if schedule is None else schedule.metrics.bubble_rate(schedule.objective)
    return percent(rate)


def _partition(row: PlanRow) -> str:
    """The layout where every role has a letter, or layers of every stage."""
    pipeline = row.result.pipeline
    if row.schedule is None or pipeline.model is None:
        return NONE
    return layout.write(pipeline.model, pipeline.counts) or " ".join(map(str, pipeline.counts))


def plan_table(plan: Plan, *, exact: bool = False) -> Grid[PlanRow]:
    """Configurations, the best first, a row each; `exact` as for `plan_columns`."""
    columns = plan_columns(plan, exact=exact)
    for name, is_shown in {
        "strategy": plan.space.strategies != (SEARCHED,),
        "batches": has_batches(plan),
        "headroom": plan.pipeline.limits is not None,
        "bubble rate": False,
        "partition": False,
    }.items():
        if not is_shown:
            del columns[name]

    def style(row: PlanRow) -> str:
        return "bold" if row is plan.rows[0] else _STYLES.get(row.status, "")

    return Grid(list(columns.values()), plan.rows, style)
