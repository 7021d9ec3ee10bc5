"""The summary of a search or an evaluation: a title, and a line for every main figure.

Numbers of the summary have four significant digits; those of the details are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from operator import itemgetter

from rich.text import Text

from ppopt.problem.decisions import Decisions
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.report.bottleneck import describe_bottleneck
from ppopt.report.columns import Column, Grid, as_text, figure_text, left
from ppopt.report.labels import describe_links, objective_name, title
from ppopt.report.numbers import (
    lower_bound_text,
    measured,
    number,
    per_device,
    percent,
    significant,
)
from ppopt.report.placement_text import (
    describe_layers,
    describe_partition,
    describe_partition_search,
    describe_placement,
    listed_placement,
)
from ppopt.report.schedule_report import ScheduleReport
from ppopt.report.search_text import (
    describe_baseline,
    describe_exposed,
    describe_gain,
    describe_hint,
    describe_imbalance,
    describe_jitter,
    describe_lowering,
    describe_other_placement,
    describe_status,
    describe_throughput,
    tokens_basis,
)

_Cell = Callable[[ScheduleReport], str | Text]
Line = tuple[str, Text]
"""Label and text of a figure."""
_LINE_COLUMNS: tuple[Column[Line], ...] = (
    left("", lambda line: Text(f"{line[0]} ", "dim")),
    left("", itemgetter(1), wraps=True),
)


def describe_title(report: ScheduleReport) -> str:
    """What a summary is of: `zb-1p on llama-3.1-8b: 4 devices, 12 microbatches, linear`.

    Only a schedule of a known strategy is named by it.
    """
    pipeline = report.pipeline
    names = []
    if report.options is not None:
        options = (f", {name.replace('_', ' ')} {value}" for name, value in report.options.items())
        names.append(title(report) + "".join(options))
    if pipeline is None:
        return "".join(names)
    if pipeline.name:
        names.append(pipeline.name)
    return ": ".join([*([" on ".join(names)] if names else []), describe_size(pipeline)])


def describe_size(pipeline: Pipeline) -> str:
    """Devices, microbatches, placement and memory limit of a pipeline."""
    limit = describe_memory_limit(pipeline)
    return ", ".join(
        [
            describe_devices(pipeline),
            describe_microbatches(pipeline),
            _describe_placement(pipeline),
            *([limit] if limit else []),
        ]
    )


def describe_devices(pipeline: Pipeline) -> str:
    """Number of devices, and of the GPUs of each if it is several."""
    count = pipeline.num_devices
    text = f"{count} devices" if count > 1 else "1 device"
    training = pipeline.training
    if training is None or training.gpus_per_device == 1:
        return text
    sizes = {"tensor": training.tensor, "context": training.context}
    named = ", ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
    return f"{text} of {training.gpus_per_device} GPUs ({named})"


def describe_microbatches(pipeline: Pipeline) -> str:
    """Number of microbatches of a step."""
    return f"{number(pipeline.batches)} microbatch{'' if pipeline.batches == 1 else 'es'}"


def _describe_placement(pipeline: Pipeline) -> str:
    if Decisions.PLACEMENT in pipeline.open_decisions:
        text = "searched placement"
    else:
        where = pipeline.resolved_placement
        text = where if isinstance(where, str) else listed_placement(where)
    if pipeline.num_chunks > 1:
        text += f", {pipeline.num_chunks} chunks per device"
    if pipeline.num_slices > 1:
        text += f", {pipeline.num_slices} slices per microbatch"
    return text if pipeline.routes == 1 else f"{text}, two routes"


def describe_memory_limit(pipeline: Pipeline) -> str:
    """The memory limit of the devices; empty without one."""
    limits = pipeline.limits
    return f"memory {_describe_limits(limits, pipeline.memory_unit)}" if limits else ""


def _describe_limits(limits: Sequence[float | Fraction], unit: str | None) -> str:
    """The limits of all devices, or their range."""
    low, high = significant(min(limits)), significant(max(limits), unit)
    return f"limit {high}" if min(limits) == max(limits) else f"limits {low} to {high}"


def summary_table(report: ScheduleReport) -> Grid[Line]:
    """The main figures, a line each; what is not known is left out."""
    return Grid(_LINE_COLUMNS, list(summary_lines(report)))


def details_table(report: ScheduleReport) -> Grid[Line]:
    """Exact figures of one schedule or search, a line each; what is not known is left out."""
    return Grid(_LINE_COLUMNS, list(exact_lines(report)))


def summary_lines(report: ScheduleReport) -> Iterator[Line]:
    """The main figures that are known."""
    return _known_lines(_LINES, report)


def exact_lines(report: ScheduleReport) -> Iterator[Line]:
    """Exact figures that are known."""
    return _known_lines(_DETAILS, report)


def _known_lines(lines: Mapping[str, _Cell], report: ScheduleReport) -> Iterator[Line]:
    for label, describe in lines.items():
        if text := describe(report):
            yield label.format(objective=objective_name(report.objective)), as_text(text)


def _status(report: ScheduleReport) -> Text:
    return Text(describe_status(report), style=status_style(report.status))


def status_style(status: str | None) -> str:
    """Style of the status of a search."""
    return {"optimal": "bold green", "feasible": "yellow"}.get(str(status), "red")


def _value(report: ScheduleReport) -> str:
    """The objective and its lower bound."""
    value, bound = report.value, report.lower_bound
    parts = [] if value is None else [significant(value, report.time_unit)]
    if bound is not None:
        source = "" if report.checked else ", says the file"
        parts.append(f"lower bound {lower_bound_text(bound, value, report.time_unit)}{source}")
    return "; ".join(parts)


def _bubble(report: ScheduleReport) -> str:
    """Bubble rate, and what of it is imbalance if both are shares of the makespan."""
    if report.bubble_rate is None:
        return ""
    text = f"{percent(report.bubble_rate)} of the {objective_name(report.objective)}"
    imbalance = describe_imbalance(report) if report.objective == Objective.MAKESPAN.value else ""
    return f"{text}; {imbalance}" if imbalance else text


def _memory(report: ScheduleReport) -> Text:
    """The largest peak and its device, and the limits; of a search, also that there is none."""
    peaks, limits, unit = report.peak_memory, report.mem_limit, report.memory_unit
    if not peaks:
        return Text()
    peak = max(peaks)
    where = "every device" if min(peaks) == peak else f"device {list(peaks).index(peak)}"
    text = Text(f"peak {significant(peak, unit)} on {where}")
    if limits:
        text.append(f"; {_describe_limits(limits, unit)}")
    elif describe_status(report):
        text.append("; no limit")
    if report.fits_limit is False:
        text.append(", over the limit", style="red")
    return text


_LINES: Mapping[str, _Cell] = {
    "status": _status,
    "{objective}": _value,
    "reason": lambda report: (report.proof or "") if report.status == "infeasible" else "",
    "bottleneck": describe_bottleneck,
    "your schedule": describe_hint,
    "gain": describe_gain,
    "throughput": describe_throughput,
    "exposed": describe_exposed,
    "bubble": _bubble,
    "memory": _memory,
    "links": lambda report: describe_links(report.link_mode),
    "partition": lambda report: describe_partition(report.partition, report.layout),
    "recompute": lambda report: describe_layers(report.recompute, report.recomputed_layers),
    "offload": lambda report: describe_layers(report.offload, report.offloaded_layers),
    "order": lambda report: ",".join(map(str, report.order or ())),
    "best partition": lambda report: describe_partition_search(
        report.partition_search, limited=report.mem_limit is not None
    ),
    "under jitter": describe_jitter,
}
"""Label of a line -> its text; `{objective}` stands for the name of the objective."""


def _verified(report: ScheduleReport) -> str:
    """What holds of a schedule over its limit."""
    if report.fits_limit is False:
        return "every rule but the limit, which eval reports and ppopt verify enforces"
    return ""


def _exact_bound(report: ScheduleReport) -> str:
    if report.lower_bound is None:
        return ""
    bound = measured(report.lower_bound, report.time_unit)
    gap = "" if report.gap is None else f", gap {number(100 * report.gap)} %"
    return f"{bound} for the {objective_name(report.objective)}{gap}"


def _exact_throughput(report: ScheduleReport) -> str:
    if report.tokens_per_second is None:
        return ""
    return f"{number(report.tokens_per_second)} tokens/s{tokens_basis(report, number)}"


def _exact_memory(report: ScheduleReport) -> str:
    peaks, limits, unit = report.peak_memory, report.mem_limit, report.memory_unit
    text = per_device(peaks, unit) if peaks else ""
    return f"{text}, limit {per_device(limits, unit)}" if peaks and limits else text


_DETAILS: Mapping[str, Callable[[ScheduleReport], str]] = {
    "placement": lambda report: describe_placement(report.placement),
    "makespan": figure_text("makespan"),
    "device span": figure_text("device_span"),
    "exposed": figure_text("exposed"),
    "lower bound": _exact_bound,
    "bubble rate": figure_text("bubble_rate"),
    "bubble overhead": figure_text("bubble_overhead"),
    "throughput": _exact_throughput,
    "MFU": figure_text("mfu"),
    "best baseline": describe_baseline,
    "other placement": describe_other_placement,
    "peak memory": _exact_memory,
    "verified": _verified,
    "for PyTorch": describe_lowering,
    "proof": figure_text("proof"),
    "time taken": figure_text("solve_seconds"),
}
"""Label of a line -> its text; in the order of the table of one result."""
