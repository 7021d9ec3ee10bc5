"""A plan for the terminal: its configurations side by side."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from ppopt.report.numbers import headed
from ppopt.report.plan_rows import has_batches, plan_rows, value_head
from ppopt.studies.plan_result import Plan
from ppopt.studies.plan_space import OPTIMAL

_STYLES = {"optimal": "bold green", "pruned": "dim", "infeasible": "dim red"}
_DECIMALS = 3


def plan_table(plan: Plan) -> Table:
    """Configurations, the best first, a row each.

    The value is the objective; of several batch counts, the time per microbatch.
    """
    several, named = has_batches(plan), plan.space.strategies != (OPTIMAL,)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0), show_edge=False, header_style="bold")
    if named:
        table.add_column("strategy", no_wrap=True)
    table.add_column("placement", no_wrap=True)
    table.add_column("recompute")
    if several:
        table.add_column("batches", justify="right")
    memory_unit = plan.rows[0].result.pipeline.memory_unit
    for name in (value_head(plan), "bound", headed("memory", memory_unit)):
        table.add_column(name.replace(" (", "\n("), justify="right", overflow="fold")
    table.add_column("versus the best", overflow="fold")
    for row in plan_rows(plan, _DECIMALS):
        cells = [
            *([row.strategy] if named else []),
            *(row.placement, row.recompute),
            *([row.batches] if several else []),
            *(row.value, row.bound, row.memory, row.versus_best),
        ]
        style = "bold" if row.is_best else _STYLES.get(row.status, "")
        table.add_row(*map(Text, cells), style=style)
    return table
