"""The configurations of a plan side by side: the columns, and the table for the terminal."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from rich.table import Table

from ppopt.problem import layout
from ppopt.problem.exact import plain_or_none
from ppopt.report.columns import Column, left, stacked, table_of
from ppopt.report.labels import objective_name
from ppopt.report.numbers import NONE, number, percent
from ppopt.report.plan_text import slowdown
from ppopt.studies.plan_result import Plan, PlanRow
from ppopt.studies.plan_space import OPTIMAL

_STYLES = {"optimal": "bold green", "pruned": "dim", "infeasible": "dim red"}
_DECIMALS = 3


def has_batches(plan: Plan) -> bool:
    """Whether configurations of several batch counts compare, by the time per microbatch."""
    return len(plan.space.batches) > 1


def plan_columns(plan: Plan, digits: int | None = None) -> dict[str, Column[PlanRow]]:
    """Columns of the rows of a plan by name; `digits`: decimals of figures.

    The value is the objective; of several batch counts, the time per microbatch. `memory` is the
    largest peak of a device, `partition` the layout or layers of every stage.
    """
    best, several, pipeline = plan.rows[0], has_batches(plan), plan.rows[0].result.pipeline

    def short(read: Callable[[PlanRow], Fraction | None]) -> Callable[[PlanRow], str]:
        def write(row: PlanRow) -> str:
            figure = plain_or_none(read(row))
            return number(figure if figure is None or digits is None else round(figure, digits))

        return write

    value = short(lambda row: row.per_microbatch if several else row.value)
    bound = short(lambda row: row.bound_per_microbatch if several else row.lower_bound)
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
        "memory": Column(stacked("memory", pipeline.memory_unit), short(lambda row: row.peak)),
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


def plan_table(plan: Plan) -> Table:
    """Configurations, the best first, a row each."""
    columns = plan_columns(plan, _DECIMALS)
    for name, shown in {
        "strategy": plan.space.strategies != (OPTIMAL,),
        "batches": has_batches(plan),
        "bubble rate": False,
        "partition": False,
    }.items():
        if not shown:
            del columns[name]

    def style(row: PlanRow) -> str:
        return "bold" if row is plan.rows[0] else _STYLES.get(row.status, "")

    return table_of(list(columns.values()), plan.rows, style)
