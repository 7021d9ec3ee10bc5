"""The text of the page: figures, proof, pipeline and provenance of schedules, as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from html import escape
from itertools import pairwise
from math import ceil

from rich.text import Text

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.cost_table import STAGE_COSTS, Cost
from ppopt.problem.kinds import RECORDS
from ppopt.problem.microbatches import MEMORY, TIMES
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.units import Unit
from ppopt.report.colours import HUES, IDLE_LOOKS
from ppopt.report.columns import Column, Html, figure_columns, html_table, left
from ppopt.report.entries import PageSchedule, TimeUse
from ppopt.report.labels import (
    CAUSE_TEXTS,
    describe_order,
    describe_rounding,
    isolated,
    objective_name,
)
from ppopt.report.module_table import module_table
from ppopt.report.numbers import NONE, headed, measured, number, percent
from ppopt.report.placement_text import placement_of
from ppopt.report.schedule_report import ScheduleReport
from ppopt.report.search_text import UNCHECKED, describe_status
from ppopt.report.summary import describe_size, exact_lines, summary_lines

_MAX_TILES_PER_LINE = {"wide": 7, "middling": 4, "narrow": 3}
"""Tiles per line at most, by the width of the window; see `page.css`."""
_LEAD = re.compile(r"(.+?)(?:[;,:] | (?=(?:of|on|per|than|as) |\())(.*)")
"""The first figure of a text, and the rest."""
_ELSEWHERE = ("status", "order", "proof", "peak memory")
"""Lines whose text a section has in full."""


def alone(entry: PageSchedule, page_title: str) -> tuple[str, str]:
    """The only schedule of a page: its figures and proof above the chart, its details below."""
    report, pipeline = entry.report, entry.schedule.pipeline
    above = f"{_heading(entry, page_title)}\n{_claims(report, pipeline)}"
    return (
        f'<section class="schedule first" id="schedule-1">\n{above}\n</section>',
        _details(report, pipeline),
    )


def section(index: int, entry: PageSchedule, page_title: str, *, folded: bool) -> str:
    """Section of one of several schedules; `folded`: its heading shows, a click opens the rest."""
    report, pipeline = entry.report, entry.schedule.pipeline
    heading = _heading(entry, page_title)
    rest = f"{_claims(report, pipeline)}\n{_details(report, pipeline)}"
    tag, top = (
        ("details", f"<summary>{heading}</summary>") if folded else ("section", f"\n{heading}")
    )
    return f'<{tag} class="schedule" id="schedule-{index}">{top}\n{rest}\n</{tag}>'


def _claims(report: ScheduleReport, pipeline: Pipeline) -> str:
    """The size of a pipeline, the figures of its schedule, and what is proved."""
    size = "; ".join(filter(None, [describe_size(pipeline), describe_order(pipeline)]))
    figures = tiles(line for line in summary_lines(report) if line[0] not in _ELSEWHERE)
    return f'<p class="quiet">{escape(size)}</p>\n{figures}\n{proof(report)}'


def _heading(entry: PageSchedule, page_title: str) -> str:
    """Name of a schedule, what it claims, and whether it is within the memory limit.

    The name of its pipeline stands behind, unless it is in the title of the page.
    """
    report, badges = entry.report, []
    pipeline_name = entry.schedule.pipeline.name
    if pipeline_name in page_title:
        pipeline_name = ""
    if status := describe_status(report):
        sure = report.status == "optimal" and report.checked
        badges.append(("good" if sure else "warn", status))
    if report.mem_limit is not None:
        fits = report.fits_limit
        text = "within the memory limit" if fits else "over the memory limit"
        badges.append(("good" if fits else "bad", text))
    spans = (f'<span class="badge {tone}">{escape(text)}</span>' for tone, text in badges)
    return f'<div class="heading"><h2>{_named(entry, pipeline_name)}</h2>{"".join(spans)}</div>'


def _named(entry: PageSchedule, pipeline_name: str) -> str:
    """Name of a schedule, and that of its pipeline."""
    return " · ".join(isolated(part) for part in (entry.name, pipeline_name) if part)


def tiles(lines: Iterable[tuple[str, str | Text]]) -> str:
    """Lines of a summary side by side, the first figure of each in front; rows are equally long."""
    texts = [_tile(label, str(text)) for label, text in lines if text]
    columns = "".join(
        f"--{name}:{ceil(len(texts) / ceil(len(texts) / limit))};"
        for name, limit in _MAX_TILES_PER_LINE.items()
    )
    return f'<dl class="figures" style="{columns}">{"".join(texts)}</dl>'


def _tile(label: str, text: str) -> str:
    lead, note = match.groups() if (match := _LEAD.fullmatch(text)) else (text, "")
    whole = note.replace(" %", "\N{NO-BREAK SPACE}%")
    return (
        f'<div><dt>{escape(label)}</dt><dd class="value">{escape(lead)}</dd>'
        f'<dd class="note">{escape(whole)}</dd></div>'
    )


def proof(report: ScheduleReport) -> str:
    """The argument for the bound of a search; empty without one."""
    text = _bound_sentence(report)
    label = "Proof" if report.status == "optimal" else "The bound"
    if not report.checked:
        label, text = "The file says", text and f"{text} {UNCHECKED}"
    return f"<p><strong>{label}:</strong> {escape(text)}</p>" if text else ""


def _bound_sentence(report: ScheduleReport) -> str:
    """The bound of a search with its argument, as a sentence; empty if there is none."""
    if report.lower_bound is None or not report.proof:
        return ""
    limit = "" if report.mem_limit is None else " within this memory"
    value = measured(report.lower_bound, report.time_unit)
    bound = f"{objective_name(report.objective)} below {value}"
    return f"No schedule{limit} has a {bound}, because {report.proof}."


def overview(page_schedules: Sequence[PageSchedule]) -> str:
    """Table of several schedules with links to their sections; empty for a single schedule."""
    if len(page_schedules) == 1:
        return ""
    named = len({entry.schedule.pipeline.name for entry in page_schedules}) > 1
    numbers = {id(entry): number for number, entry in enumerate(page_schedules, start=1)}

    def schedule(entry: PageSchedule) -> Html:
        text = _named(entry, entry.schedule.pipeline.name if named else "")
        return Html(f'<a href="#schedule-{numbers[id(entry)]}">{text}</a>')

    figures = figure_columns(("value", "ratio_to_best", "peak_memory"), page_schedules[0].report)
    columns: list[Column[PageSchedule]] = [
        left("schedule", schedule),
        left("placement", lambda entry: placement_of(entry.report)),
        *(column.of(lambda entry: entry.report) for column in figures),
        Column("idle", lambda entry: percent(entry.use.idle)),
        left("time by use", lambda entry: _use_bar(entry.use)),
    ]
    fitting = sum(bool(entry.report.fits_limit) for entry in page_schedules)
    fits, over = page_schedules[:fitting], page_schedules[fitting:]
    return html_table(columns, fits, "over the memory limit", over)


def _use_bar(use: TimeUse) -> Html:
    """A bar of the time use: operations by kind, then idle time by cause."""
    pieces = [
        (HUES[kind], f"{kind.name} {RECORDS[kind].label}", share)
        for kind, share in use.kinds.items()
    ]
    pieces += [
        (IDLE_LOOKS[cause].colour, f"idle: {CAUSE_TEXTS[cause]}", share)
        for cause, share in use.causes.items()
    ]
    spans = (
        f'<i style="width:{float(100 * share):.2f}%;background:{colour}" '
        f'title="{text}: {percent(share)}"></i>'
        for colour, text, share in pieces
        if share
    )
    return Html(f'<span class="use">{"".join(spans)}</span>')


def _details(report: ScheduleReport, pipeline: Pipeline) -> str:
    """Folded away: figures per device, provenance, and the pipeline stage by stage."""
    memory = headed("memory", report.memory_unit)
    exact = (line for line in exact_lines(report) if line[0] not in _ELSEWHERE)
    lines = [f"{label[0].upper()}{label[1:]}: {text}" for label, text in exact]
    lines.append(f"Peak {memory} of devices 0, 1, ...: {_listed(report.peak_memory or ())}")
    if report.mem_limit is not None:
        lines.append(f"Limit of {memory} of devices 0, 1, ...: {_listed(report.mem_limit)}")
    down, up = (_span(rows, pipeline) for rows in pipeline.links)
    lines.append(f"Time between devices: {down}" + (f", back {up}" if up != down else ""))
    speeds = pipeline.device_speed
    lists: dict[str, Sequence[float | Fraction] | None] = {
        "Layers that recompute, of stages": pipeline.recomputed,
        "Layers that offload, of stages": pipeline.offloaded,
        "Speed of devices": speeds if set(speeds) != {1} else None,
        "Factors on the times of microbatches": getattr(pipeline, TIMES),
        "Factors on the memory of microbatches": getattr(pipeline, MEMORY),
    }
    for what, values in lists.items():
        if values and any(values):
            rest = "; the times of stages are at speed 1" if values is speeds else ""
            lines.append(f"{what} 0, 1, ...: {_listed(values)}{rest}")
    lines += (f"Numbers {rounding}" for rounding in describe_rounding(pipeline))
    if provenance := _provenance(report):
        lines.append(provenance)
    text = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return (
        "<details><summary>Pipeline, memory per device, provenance</summary>"
        f"{text}{_stages(pipeline)}{_modules(pipeline)}</details>"
    )


def _listed(values: Sequence[float | Fraction]) -> str:
    return ", ".join(map(number, values))


def _span(delays: Sequence[Sequence[Fraction]], pipeline: Pipeline) -> str:
    """The least and the largest delay between stages on different devices."""
    times = [
        time
        for hosts, row in zip(pipeline.hosts, delays, strict=True)
        for (here, there), time in zip(pairwise(hosts), row, strict=True)
        if here != there
    ]
    if not times:
        return NONE
    minimum = f"{number(min(times))} to " if min(times) < max(times) else ""
    return minimum + measured(max(times), pipeline.time_unit)


def _provenance(report: ScheduleReport) -> str:
    effort = {
        "seed": report.seed, "workers": report.workers, "time limit": report.time_limit
    }  # fmt: skip
    parts = [f"{name} {value}" for name, value in effort.items() if value is not None]
    if report.backward_kind == BackwardKind.WHOLE:
        parts.append("every backward in one operation")
    if report.versions is not None:
        parts += [f"{name} {version}" for name, version in sorted(report.versions.items())]
    return f"Made with {', '.join(parts)}" if parts else ""


def _stages(pipeline: Pipeline) -> str:
    costs = pipeline.costs

    def cost_column(cost: Cost) -> Column[int]:
        values = costs[cost.field]
        unit = pipeline.time_unit if cost.unit is Unit.TIME else pipeline.memory_unit
        return Column(headed(cost.head, unit), lambda at: number(values[at]))

    columns: list[Column[int]] = [
        Column("stage", str),
        Column("device", lambda at: " and ".join(str(hosts[at]) for hosts in pipeline.hosts)),
        *(cost_column(cost) for cost in STAGE_COSTS if cost.head and costs.has_effect(cost)),
    ]
    return html_table(columns, range(pipeline.num_stages))


def _modules(pipeline: Pipeline) -> str:
    table = module_table(pipeline)
    return "" if table is None else html_table(table.columns, table.rows)


def paragraphs(lines: Iterable[str]) -> str:
    """Sentences, a paragraph each; a first word that is a name, such as `x2`, is as it is."""
    return "".join(f"<p>{escape(_capitalized(line))}.</p>" for line in lines)


def _capitalized(line: str) -> str:
    return line[:1].upper() + line[1:] if line.split(maxsplit=1)[0].strip(":").isalpha() else line
