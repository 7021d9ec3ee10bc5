"""The headline of a comparison or a plan: a title and three rows, for terminals, pages and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from operator import attrgetter
from typing import Any

from rich.text import Text

from ppopt.formats.figures import measured, placed
from ppopt.formats.origin_json import json_object
from ppopt.problem.exact import plain_or_none
from ppopt.problem.pipeline import Pipeline
from ppopt.report.columns import Column, Grid, figure_columns, html_table, left, stacked
from ppopt.report.labels import title
from ppopt.report.numbers import NONE, lower_bound_text, number, significant, spread
from ppopt.report.placement_text import placement_of, recompute_word
from ppopt.report.schedule_report import ScheduleReport
from ppopt.report.summary import describe_devices, describe_memory_limit, describe_microbatches
from ppopt.report.throughput_text import gain_cell
from ppopt.studies.headline import BEST, CURRENT, OPTIMUM, Headline, HeadlineRow

KEYS = (
    *("strategy", "status", "objective", "value", "lower_bound", "gap", "makespan"),
    *("device_span", "bubble_rate", "peak_memory", "fits_limit", "time_unit", "memory_unit"),
    *("tokens_per_second", "mfu", "partition", "layout", "placement", "chunks", "recompute"),
    "offload",
)
"""Keys of the figures of a row in JSON."""
SAME = "same schedule"
"""Stands in a row that changes nothing."""
MAX_COUNTS = 16
"""Most stages whose layers are all listed."""
_STYLES = {OPTIMUM: "bold green", BEST: "bold"}


def _report(row: HeadlineRow) -> ScheduleReport:
    """Figures of a row."""
    schedule, bound = row.schedule, row.lower_bound
    gap = None if bound is None or not row.value else (row.value - bound) / row.value
    return ScheduleReport(
        **measured(schedule),
        **placed(schedule.pipeline),
        routes=schedule.pipeline.routes,
        strategy=schedule.origin.strategy,
        status="optimal" if row.proved else "feasible",
        lower_bound=plain_or_none(bound),
        gap=plain_or_none(gap),
    )


def headline_table(headline: Headline) -> Grid[HeadlineRow]:
    """The rows for a terminal, without what they change."""
    return Grid(_columns(headline)[:-1], headline.rows, lambda row: _STYLES.get(row.label, ""))


def describe_headline(headline: Headline) -> Iterator[str | Text | Grid[HeadlineRow]]:
    """Title, rows and changes for a terminal; nothing without a best schedule."""
    if headline.best is not None:
        yield Text(headline_title(headline), style="bold")
        yield headline_table(headline)
        yield from _describe_decisions(headline)
        yield ""


def _describe_decisions(headline: Headline) -> Iterator[Text]:
    """Lines: how the model is cut today, and what the following rows change."""
    for index, row in enumerate(headline.rows):
        text = _describe_cut(row) if index == 0 else describe_changes(row)
        if text and text != SAME:
            yield Text(f"{row.label}: {text}")


def headline_section(headline: Headline) -> str:
    """Title and rows as HTML, without the name or the size of the model, which heads the page."""
    if not headline.rows:
        return ""
    table = html_table(_columns(headline), headline.rows)
    named = headline.rows[-1].schedule.pipeline.name
    text = _describe_step(headline) if named else _describe_limit(headline)
    heading = f"<h2>{escape(text)}</h2>\n" if text else ""
    return f'<section class="headline">\n{heading}{table}\n</section>'


def _columns(headline: Headline) -> list[Column[HeadlineRow]]:
    """Columns of the rows. The time is that of a microbatch if rows differ in microbatches."""
    reports = {row.label: _report(row) for row in headline.rows}
    units = next(iter(reports.values()), ScheduleReport())

    def figures(row: HeadlineRow) -> ScheduleReport:
        return reports[row.label]

    best = headline.best
    is_open = best is not None and best.label == BEST and best.lower_bound is not None
    value, bound, memory = (
        column.of(figures)
        for column in figure_columns(("value", "lower_bound", "peak_memory"), units, absent="")
    )
    if len({row.schedule.pipeline.batches for row in headline.rows}) > 1:
        value = Column(
            stacked("time per\nmicrobatch", units.time_unit),
            lambda row: significant(row.per_microbatch),
        )
        bound = Column("lower bound", _bound_per_microbatch)
    return [
        left("", attrgetter("label")),
        left("schedule", lambda row: f"{title(figures(row))}, {placement_of(figures(row))}"),
        value,
        *([bound] if is_open else []),
        Column("throughput", _gain),
        memory,
        left(
            "changes",
            lambda row: _describe_cut(row) if row is headline.rows[0] else describe_changes(row),
        ),
    ]


def _describe_cut(row: HeadlineRow) -> str:
    """How the current schedule cuts the model; empty for other rows, and without layers."""
    if row.label != CURRENT:
        return ""
    values = _decision_values(row.schedule.pipeline)
    cut = {name: values.get(name, "none") for name in ("partition", "recompute", "offload")}
    return ", ".join(f"{name} {value}" for name, value in cut.items() if value != "none")


def _bound_per_microbatch(row: HeadlineRow) -> str:
    """The lower bound per microbatch; empty if it is not known."""
    bound, batches = row.lower_bound, row.schedule.pipeline.batches
    return "" if bound is None else lower_bound_text(bound / batches, row.value / batches)


def _gain(row: HeadlineRow) -> str:
    """The gain of a row over the current schedule."""
    return NONE if row.gain is None else gain_cell(row.gain)


def headline_title(headline: Headline) -> str:
    """The model, and what `_describe_step` says; empty without rows."""
    if not headline.rows:
        return ""
    name = headline.rows[-1].schedule.pipeline.name
    return f"{name}: {_describe_step(headline)}" if name else _describe_step(headline)


def _describe_step(headline: Headline) -> str:
    """Devices, parallelism, microbatches and memory limit."""
    pipeline = headline.rows[-1].schedule.pipeline
    parts = _describe_gpus(pipeline), describe_microbatches(pipeline), _describe_limit(headline)
    return ", ".join(filter(None, parts))


def _describe_limit(headline: Headline) -> str:
    """Limit of the first row: the minimum that 1F1B needs depends on the placement."""
    return describe_memory_limit(headline.rows[0].schedule.pipeline)


def _describe_gpus(pipeline: Pipeline) -> str:
    """Devices, and all GPUs if data or expert parallelism is known: `data 8 (32 GPUs)`."""
    training, devices = pipeline.training, describe_devices(pipeline)
    if training is None:
        return devices
    sizes = {"data": training.data, "expert": training.expert}
    shares = [f"{name} {size}" for name, size in sizes.items() if size > 1]
    if not shares:
        return devices
    gpus = pipeline.num_devices * training.gpus_per_device * training.data
    return f"{devices}, {', '.join(shares)} ({number(gpus)} GPUs)"


# What a row changes.


def describe_changes(row: HeadlineRow) -> str:
    """What a row changes against the row above."""
    values = _decision_values(row.schedule.pipeline)
    parts = (f"{name} {values[name]}" if name in values else name for name in row.changes)
    return ", ".join(parts) or SAME


def _decision_values(pipeline: Pipeline) -> dict[str, str]:
    """Decisions of a pipeline that have a value, as text by name."""
    where = pipeline.resolved_placement
    values = {
        "microbatches": str(pipeline.batches),
        "placement": where if isinstance(where, str) else spread(where),
        "chunks": str(pipeline.num_chunks),
        "routes": str(pipeline.routes),
        "slices": str(pipeline.num_slices),
    }
    if pipeline.model is None:
        return values
    is_full = recompute_word(pipeline) == "full"
    return values | {
        "partition": _describe_counts(pipeline.counts),
        "recompute": "full" if is_full else _describe_counts(pipeline.recomputed),
        "offload": _describe_counts(pipeline.offloaded),
    }


def _describe_counts(counts: Sequence[int]) -> str:
    """Layers of every stage; of many stages the first and the last; `none` if there are none."""
    if not any(counts):
        return "none"
    return " ".join(map(str, counts)) if len(counts) <= MAX_COUNTS else spread(counts)


# JSON.


def headline_object(headline: Headline) -> dict[str, Any]:
    """The rows as keys of JSON: `given`, `runs_today` and `optimum`, null if a row is missing.

    `gain` is by which share the throughput of a row exceeds that of `given`, and `changes` names
    the decisions that differ from the row above. `optimum` has the best schedule found, which is
    optimal if its `status` says so. `runs_today` names its `runtime`.
    """
    rows = {"given": headline.current, "runs_today": headline.runnable, "optimum": headline.best}
    objects = {key: None if row is None else _object(row) for key, row in rows.items()}
    if objects["runs_today"] is not None:
        objects["runs_today"]["runtime"] = headline.runtime
    return json_object(objects)


def _object(row: HeadlineRow) -> dict[str, Any]:
    return {
        **_report(row).to_object(KEYS),
        "batches": row.schedule.pipeline.batches,
        "value_per_microbatch": row.per_microbatch,
        "gain": row.gain,
        "changes": row.changes,
    }
