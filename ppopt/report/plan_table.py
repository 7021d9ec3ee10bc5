"""The configurations of a plan side by side: the columns, and the table for the terminal."""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN
from fractions import Fraction

from rich.table import Table

from ppopt.problem import layout
from ppopt.report.columns import Column, left, stacked, table_of
from ppopt.report.labels import objective_name
from ppopt.report.numbers import NONE, number, percent, significant
from ppopt.report.plan_text import slowdown
from ppopt.schedule.origin import SEARCHED
from ppopt.studies.plan_result import Plan, PlanRow

_STYLES = {"optimal": "bold green", "pruned": "dim", "infeasible": "dim red"}


def has_batches(plan: Plan) -> bool:
    """Whether configurations of several batch counts compare, by the time per microbatch."""
    return len(plan.space.batches) > 1


def plan_columns(plan: Plan, *, exact: bool) -> dict[str, Column[PlanRow]]:
    """Columns of the rows of a plan by name; `exact`: whether figures are, or have four digits.

    The value is the objective; of several batch counts, the time per microbatch. `memory` is the
    largest peak of a device, `partition` the layout or layers of every stage.
    """
    best, several, pipeline = plan.rows[0], has_batches(plan), plan.rows[0].result.pipeline

    def figure(
        read: Callable[[PlanRow], Fraction | None], rounding: str = ROUND_HALF_EVEN
    ) -> Callable[[PlanRow], str]:
        def write(row: PlanRow) -> str:
            value = read(row)
            return number(value) if exact else significant(value, rounding=rounding)

        return write

    value = figure(lambda row: row.per_microbatch if several else row.value)
    bound = figure(
        lambda row: row.bound_per_microbatch if several else row.lower_bound, ROUND_FLOOR
    )
    name = "per microbatch" if several else objective_name(plan.objective)
    return {
        "strategy": left("strategy", lambda row: row.configuration.strategy, no_wrap=True),
        "placement": left("placement", _placement, no_wrap=True),
        "recompute": left("recompute", lambda row: row.configuration.recompute),
        "batches": Column("batches", lambda row: number(row.configuration.batches)),
        # the best value of a configuration that was given up is no larger
        "value": Column(
            stacked(name, pipeline.time_unit), lambda row: "≤ " * row.given_up + value(row)
        ),
        "bound": Column("bound", bound),
        "memory": Column(stacked("memory", pipeline.memory_unit), figure(lambda row: row.peak)),
        "bubble rate": Column("bubble rate", _bubble_rate),
        "partition": Column("partition", _partition),
        "versus the best": left(
            "versus the best",
            lambda row: (
                "best"
                if row is best and row.schedule is not None
                else slowdown(row, best.per_microbatch)
            ),
        ),
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


def plan_table(plan: Plan, *, exact: bool = False) -> Table:
    """Configurations, the best first, a row each; `exact` as for `plan_columns`."""
    columns = plan_columns(plan, exact=exact)
    for name, is_shown in {
        "strategy": plan.space.strategies != (SEARCHED,),
        "batches": has_batches(plan),
        "bubble rate": False,
        "partition": False,
    }.items():
        if not is_shown:
            del columns[name]

    def style(row: PlanRow) -> str:
        return "bold" if row is plan.rows[0] else _STYLES.get(row.status, "")

    return table_of(list(columns.values()), plan.rows, style)
