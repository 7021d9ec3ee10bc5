"""The page of a plan: its configurations, the best first, then the schedule of each."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import Any

from rich.text import Text

from ppopt.report.columns import Html, html_table, left, linked
from ppopt.report.headline_table import headline_section
from ppopt.report.html import fitting, page
from ppopt.report.labels import describe_skipped
from ppopt.report.objects import TIMES, without
from ppopt.report.payload import data_element
from ppopt.report.plan_objects import plan_object, report_plan
from ppopt.report.plan_table import has_batches, plan_columns
from ppopt.report.plan_text import (
    describe_better_outside,
    describe_beyond,
    describe_configuration,
    describe_gain,
    describe_late,
    describe_least_memory,
    describe_more_memory,
    describe_space,
    describe_use,
    describe_within,
    status_legend,
    status_word,
)
from ppopt.report.sections import paragraphs, tiles
from ppopt.report.summary import summary_lines
from ppopt.schedule.schedule import Schedule
from ppopt.studies.plan_result import Plan, PlanRow

_BADGES = {"optimal": "good", "infeasible": "bad", "feasible": "warn"}


def plan_page(plan: Plan) -> str:
    """One HTML page with the table of a plan and its schedules, one at least.

    The element `plan` holds the object of `ppopt plan --json`, without schedules and without what
    differs from run to run: `section` of a row names its schedule, which is `schedule-1` and so on.
    The page draws the schedules of the best configurations, at most `MAX_OPERATIONS`.
    """
    opening = f"{_cards(plan)}\n{configurations_table(plan)}\n{_sentences(plan)}\n{usage(plan)}"
    lead = headline_section(plan.headline)
    return page_of_plan(plan, opening, plan_object(plan), lead=lead)


def page_of_plan(
    plan: Plan, opening: str, data: dict[str, Any], *, lead: str, title: str = ""
) -> str:
    """The page of an opening, with the schedules of a plan and their data."""
    schedules, sections = _drawn(plan), _sections(plan)
    data = without(data, (*TIMES, "schedule"))
    for place, row in enumerate(data["rows"]):
        row["section"] = f"schedule-{sections[place]}" if place in sections else None
    return page(
        list(schedules.values()),
        names=[describe_configuration(plan.rows[place].configuration) for place in schedules],
        opening=f'<section class="plan">\n{opening}\n{data_element("plan", data)}\n</section>',
        lead=lead,
        title=title,
        what="plan",
    )


def _drawn(plan: Plan) -> dict[int, Schedule]:
    """Schedules that the page draws, by the place of their row."""
    return fitting((place, row.schedule) for place, row in enumerate(plan.rows))


def _sections(plan: Plan) -> dict[int, int]:
    """Sections of the schedules, by the place of their row."""
    return {place: section for section, place in enumerate(_drawn(plan), start=1)}


def _cards(plan: Plan) -> str:
    """The best configuration, its summary, gain over strategies and memory."""
    best = plan.rows[0]
    min_memory = describe_least_memory(plan.least_memory, best.result.pipeline.memory_unit)
    further = (describe_gain(plan), describe_within(plan), describe_more_memory(plan))
    lines: list[tuple[str, str | Text]] = [
        ("best configuration", str(best.configuration)),
        *summary_lines(report_plan(plan)),
        ("memory at this speed", min_memory.removeprefix("runs at this speed in ")),
        *((label, text) for label, _, text in (line.partition(": ") for line in further)),
    ]
    return tiles(lines)


def _sentences(plan: Plan) -> str:
    """What is proved, what there was no time for, and what was not searched; folded away."""
    further = (
        *(describe_late(plan.late_baselines), describe_better_outside(plan)),
        *(describe_space(plan), describe_beyond(plan)),
    )
    legend = status_legend([status_word(row.status, row.searches) for row in plan.rows[1:]])
    text = paragraphs([plan.proof, *filter(None, (*further, legend))])
    return folded("What is proved, and what was not searched", text)


def configurations_table(plan: Plan) -> str:
    """Configurations, the best first; those that are drawn link to their schedules."""
    columns = plan_columns(plan, exact=False)
    links = {plan.rows[place].configuration: section for place, section in _sections(plan).items()}

    def configuration(row: PlanRow) -> str:
        text = describe_configuration(row.configuration)
        return linked(text, links.get(row.configuration), strong=row is plan.rows[0])

    def status(row: PlanRow) -> str:
        badge, word = _BADGES.get(row.status, "quiet"), columns["status"].cell(row)
        return Html(f'<span class="{badge}">{word}</span>')

    page_columns = [
        left("configuration", configuration),
        *([replace(columns["batches"], head="microbatches")] if has_batches(plan) else []),
        left("status", status),
        *(columns[name] for name in ("value", "bound", "vs best", "memory", "bubble rate")),
        replace(columns["partition"], left=True),
    ]
    return html_table(page_columns, plan.rows)


def usage(plan: Plan) -> str:
    """What could not be set up, and how to use the best; folded away."""
    lines = [*describe_use(plan), *describe_skipped(plan.skipped)]
    if not lines:
        return ""
    text = escape("\n".join(lines))
    return folded("How to use it", f"<pre>{text}</pre>")


def folded(summary: str, html: str) -> str:
    """HTML that a click on its summary opens."""
    return f"<details><summary>{escape(summary)}</summary>{html}</details>"
