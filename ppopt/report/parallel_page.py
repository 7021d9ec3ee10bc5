"""The page of a plan over the parallelism: what the terminal shows, then schedules."""

from __future__ import annotations

from html import escape

from ppopt.report.columns import html_table
from ppopt.report.headline_table import headline_section
from ppopt.report.parallel import (
    MAX_SHOWN,
    breakdown_table,
    describe_parallel_plan,
    describe_skipped,
    describe_training,
    explain_statuses,
    parallel_plan_object,
    parallel_table,
)
from ppopt.report.plan_page import configurations_table, folded, page_of_plan, usage
from ppopt.report.sections import paragraphs
from ppopt.studies.parallel_result import ParallelPlan


def parallel_page(parallel_plan: ParallelPlan) -> str:
    """One HTML page with the headline and all combinations, then the plan of the best one.

    The schedules are those of the plan of the best combination, as on the page of a plan. The
    element `plan` holds the object of `ppopt plan --from --json`.
    """
    plan, best = parallel_plan.plan, parallel_plan.best
    opening = f"{_combinations(parallel_plan)}\n"
    if best is not None:
        opening += f"<h2>Configurations of {escape(str(best.parallelism))}</h2>\n"
    opening += f"{configurations_table(plan)}\n{usage(plan)}"
    return page_of_plan(
        plan,
        opening,
        parallel_plan_object(parallel_plan),
        lead=headline_section(parallel_plan.headline),
        title=f"{describe_training(parallel_plan.space)}: plan",
    )


def _combinations(plan: ParallelPlan) -> str:
    """What was found, every combination, and the parts of their steps."""
    table, parts = parallel_table(plan), breakdown_table(plan, plan.rows)
    rest = plan.rows[MAX_SHOWN:]
    text = paragraphs(describe_parallel_plan(plan)) + html_table(table.columns, table.rows)
    if rest:
        text += folded(f"{len(rest)} more combinations", html_table(table.columns, rest))
    text += paragraphs(filter(None, [explain_statuses(plan)]))
    if parts.rows:
        text += folded("Parts of a step (ms)", html_table(parts.columns, parts.rows))
    skipped = paragraphs(describe_skipped(plan))
    return text + (folded("What was not searched", skipped) if skipped else "")
