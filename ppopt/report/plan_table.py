"""The configurations of a plan side by side: cells of a row, and the table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from rich import box
from rich.table import Table
from rich.text import Text

from ppopt.problem import layout
from ppopt.problem.exact import plain
from ppopt.report.labels import objective_name
from ppopt.report.numbers import NONE, headed, number, percent
from ppopt.report.plan_text import slowdown, value_text
from ppopt.studies.plan_result import Plan, PlanRow
from ppopt.studies.plan_space import OPTIMAL

_STYLES = {"optimal": "bold green", "pruned": "dim", "infeasible": "dim red"}
_DECIMALS = 3


def has_batches(plan: Plan) -> bool:
    """Whether configurations of several batch counts compare, by the time per microbatch."""
    return len(plan.space.batches) > 1


def value_head(plan: Plan) -> str:
    """What the value of a row is, with its unit."""
    figure = "per microbatch" if has_batches(plan) else objective_name(plan.objective)
    return headed(figure, plan.rows[0].result.pipeline.time_unit)


def plan_cells(row: PlanRow, plan: Plan, digits: int | None = None) -> Mapping[str, str]:
    """Every cell that a table may have of a row; `digits`: decimals of figures.

    `memory` is the largest peak of a device, `partition` the layout or layers of every stage.
    """

    def short(figure: Fraction | None) -> float | None:
        if figure is None:
            return None
        return plain(figure) if digits is None else round(plain(figure), digits)

    several, asked, schedule = has_batches(plan), row.configuration, row.schedule
    best, bubble_rate = plan.rows[0], None
    if schedule is not None:
        bubble_rate = plain(schedule.metrics.bubble_rate(schedule.objective))
    found = row is best and schedule is not None
    return {
        "strategy": asked.strategy,
        "placement": asked.placement + (f"/{asked.chunks}" if asked.chunks > 1 else ""),
        "recompute": asked.recompute,
        "batches": number(asked.batches),
        "value": value_text(row, short(row.per_microbatch if several else row.value)),
        "bound": number(short(row.bound_per_microbatch if several else row.lower_bound)),
        "memory": number(short(row.peak)),
        "bubble rate": percent(bubble_rate),
        "partition": NONE if schedule is None else _partition(row),
        "versus the best": "best" if found else slowdown(row, best.per_microbatch),
    }


def _partition(row: PlanRow) -> str:
    """The layout where every role has a letter, or layers of every stage."""
    pipeline = row.result.pipeline
    if pipeline.model is None:
        return NONE
    return layout.write(pipeline.model, pipeline.counts) or " ".join(map(str, pipeline.counts))


def plan_table(plan: Plan) -> Table:
    """Configurations, the best first, a row each.

    The value is the objective; of several batch counts, the time per microbatch.
    """
    named = ["strategy"] if plan.space.strategies != (OPTIMAL,) else []
    batches = ["batches"] if has_batches(plan) else []
    figures = ("value", "bound", "memory")
    unit = plan.rows[0].result.pipeline.memory_unit
    heads = {"value": value_head(plan), "memory": headed("memory", unit)}
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0), show_edge=False, header_style="bold")
    for name in (*named, "placement"):
        table.add_column(name, no_wrap=True)
    table.add_column("recompute")
    for name in batches:
        table.add_column(name, justify="right")
    for name in figures:
        head = heads.get(name, name).replace(" (", "\n(")
        table.add_column(head, justify="right", overflow="fold")
    table.add_column("versus the best", overflow="fold")
    names = (*named, "placement", "recompute", *batches, *figures, "versus the best")
    for row in plan.rows:
        cells = plan_cells(row, plan, _DECIMALS)
        style = "bold" if row is plan.rows[0] else _STYLES.get(row.status, "")
        table.add_row(*(Text(cells[name]) for name in names), style=style)
    return table
