"""The page of a plan: its configurations, the best first, then the schedule of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import ROUND_CEILING, ROUND_FLOOR
from html import escape

from ppopt.formats.figures import limits
from ppopt.problem.exact import plain, plain_or_none
from ppopt.report.columns import Column, Html, html_table
from ppopt.report.headline_table import headline_section
from ppopt.report.html import fitting, page
from ppopt.report.labels import objective_name
from ppopt.report.numbers import headed, measured, number, percent, significant, spread
from ppopt.report.payload import data_element
from ppopt.report.plan_objects import of_plan
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
)
from ppopt.report.sections import Tile, paragraphs, tiles
from ppopt.studies.plan_result import Plan, PlanRow

_BADGES = {"optimal": "good", "infeasible": "bad", "feasible": "warn"}


def plan_page(plan: Plan) -> str:
    """One HTML page with the table of a plan and its schedules, one at least.

    The element `plan` holds the object of `ppopt plan --json`, without schedules and without what
    differs from run to run: `section` of a row names its schedule, which is `schedule-1` and so on.
    The page draws the schedules of the best configurations, at most `MAX_OPERATIONS`.
    """
    schedules = fitting((place, row.schedule) for place, row in enumerate(plan.rows))
    sections = {place: f"schedule-{index}" for index, place in enumerate(schedules, start=1)}
    data = of_plan(plan)
    del data["schedule"], data["solve_seconds"]
    for place, row in enumerate(data["rows"]):
        row["section"] = sections.get(place)
    opening = (
        f'<section class="plan">\n{_cards(plan)}\n{_table(plan, sections)}\n'
        f"{_sentences(plan)}\n{_more(plan)}\n"
        f"{data_element('plan', data)}\n</section>"
    )
    lead = headline_section(plan.headline)
    return page(list(schedules.values()), what="Plan", lead=lead, opening=opening)


def _cards(plan: Plan) -> str:
    """The answer at a glance: configuration, value, bound, gain and memory."""
    best = plan.rows[0]
    pipeline, value, peak = best.result.pipeline, plan.value, best.peak
    assert value is not None and peak is not None and plan.lower_bound is not None
    time, memory = pipeline.time_unit, pipeline.memory_unit
    proved = {"optimal": "proved best of the whole space", "feasible": "best found"}
    low = f"no configuration is below {significant(plan.lower_bound, time, ROUND_FLOOR)}"
    device_limits, limit = limits(pipeline), "no limit"
    if device_limits is not None:
        limit = f"limit of a device: {spread(device_limits, memory)}"
    gain = describe_gain(plan).removeprefix("gain: ")
    first, _, rest = gain.partition(" than ")
    min_memory = describe_least_memory(plan.least_memory, memory)
    rows: list[Tile] = [
        (
            "best configuration",
            describe_configuration(best.configuration),
            f"{number(best.configuration.batches)} microbatches; {proved[plan.status]}",
            "",
        ),
        (
            objective_name(plan.objective),
            significant(plain(value), time),
            low,
            measured(plain(value), time),
        ),
        ("gap", percent(plain_or_none(plan.gap), ROUND_CEILING), "over the whole space", ""),
        *([("gain", first, f"than {rest}" if rest else "", "")] if gain else []),
        (
            "peak memory",
            significant(plain(peak), memory),
            "; ".join(filter(None, (limit, min_memory, describe_within(plan)))),
            measured(plain(peak), memory),
        ),
        *_more_memory(plan),
    ]
    return tiles(rows)


def _more_memory(plan: Plan) -> Iterator[Tile]:
    """What more memory brings, if there is a limit."""
    more, value = plan.more_memory, plan.value
    if more is not None and value is not None:
        gain = 1 - plain(more.value) / plain(value)
        nothing = "nothing" if more.lower_bound == value else "nothing found"
        headline = f"{percent(gain)} faster" if gain else nothing
        yield "with more memory", headline, describe_more_memory(plan), ""


def _sentences(plan: Plan) -> str:
    """What is proved, what there was no time for, and what was not searched; folded away."""
    further = (
        *(describe_late(plan.late_baselines), describe_better_outside(plan)),
        *(describe_space(plan), describe_beyond(plan)),
    )
    lines = [plan.proof, *filter(None, further)]
    text = paragraphs(lines)
    return f"<details><summary>What is proved, and what was not searched</summary>{text}</details>"


def _table(plan: Plan, sections: Mapping[int, str]) -> str:
    columns = plan_columns(plan, exact=True)
    links = {plan.rows[place].configuration: section for place, section in sections.items()}

    def configuration(row: PlanRow) -> str:
        text = escape(describe_configuration(row.configuration))
        if row.configuration in links:
            text = f'<a href="#{links[row.configuration]}">{text}</a>'
        return Html(f"<strong>{text}</strong>" if row is plan.rows[0] else text)

    def status(row: PlanRow) -> str:
        return Html(f'<span class="{_BADGES.get(row.status, "quiet")}">{row.status}</span>')

    bound = headed("lower bound", plan.rows[0].result.pipeline.time_unit)
    page_columns = [
        Column("configuration", configuration),
        *([replace(columns["batches"], head="microbatches")] if has_batches(plan) else []),
        Column("status", status),
        columns["value"],
        replace(columns["bound"], head=bound),
        *(columns[name] for name in ("memory", "bubble rate", "partition", "versus the best")),
    ]
    return html_table(page_columns, ("", plan.rows))


def _more(plan: Plan) -> str:
    """What could not be set up, and how to use the best; folded away."""
    lines = [*describe_use(plan)]
    lines += [f"skipped {name}: {reason}" for name, reason in plan.skipped]
    if not lines:
        return ""
    text = escape("\n".join(lines))
    return f"<details><summary>How to use it</summary><pre>{text}</pre></details>"
