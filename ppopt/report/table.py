"""Tables for the terminal, as rich renderables that the caller prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from ppopt.formats.figures import Figure, Quantity, ScheduleFigures, declared, known
from ppopt.report.frontier_report import FrontierReport
from ppopt.report.frontier_text import AT_MOST, OVER
from ppopt.report.labels import SEARCHED, describe_links, objective_name, title
from ppopt.report.numbers import (
    NONE,
    grouped,
    headed,
    measured,
    number,
    per_device,
    percent,
    spread,
)
from ppopt.report.placement_text import (
    describe_choices,
    describe_layers,
    describe_partition,
    describe_partition_search,
    describe_placement,
    placement_of,
)
from ppopt.report.schedule_report import ScheduleReport
from ppopt.report.search_text import (
    describe_exposed,
    describe_gain,
    describe_hint,
    describe_imbalance,
    describe_jitter,
    describe_lowering,
    describe_other_placement,
    describe_status,
    describe_throughput,
)
from ppopt.schedule.idle import Cause
from ppopt.studies.sweep import SweepRow

_CAUSES = tuple(cause.label for cause in Cause)
_FIGURES = declared(ScheduleReport)
_Cell = Callable[[ScheduleReport], str | Text]


def result_table(report: ScheduleReport) -> Table:
    """Figures of one schedule or search, a line each; what is not known is left out."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, describe in _LINES.items():
        text = describe(report)
        if text:
            table.add_row(label, text if isinstance(text, Text) else Text(text))
    return table


def written(key: str) -> Callable[[ScheduleReport], str]:
    """Function that writes the figure of a key, with its unit; empty if it is not known."""
    figure = _FIGURES[key]
    return lambda report: _written(figure, report)


def _written(figure: Figure, report: ScheduleReport) -> str:
    value = getattr(report, figure.key)
    if value is None:
        return ""
    base = figure.base.format(objective=objective_name(report.objective))
    match figure.quantity:
        case Quantity.TIME:
            return measured(value, report.time_unit) + base
        case Quantity.SHARE:
            return percent(value) + base
        case Quantity.SECONDS:
            return number(value) + base
        case _:
            return str(value) + base


def _strategy(report: ScheduleReport) -> Text:
    """Name of the strategy and its options."""
    options = (report.options or {}).items()
    text = "".join(f", {name.replace('_', ' ')} {value}" for name, value in options)
    return Text(report.strategy or "", style="bold").append(text, "not bold")


def _verified(report: ScheduleReport) -> str:
    """What holds of a schedule over its limit."""
    if report.fits_limit is False:
        return "every rule but the limit, which eval reports and ppopt verify enforces"
    return ""


def _status(report: ScheduleReport) -> Text:
    return Text(describe_status(report), style=_status_style(report))


def _status_style(figures: ScheduleFigures) -> str:
    return {"optimal": "bold green", "feasible": "yellow"}.get(str(figures.status), "red")


def _bound(report: ScheduleReport) -> str:
    if report.lower_bound is None:
        return ""
    bound = measured(report.lower_bound, report.time_unit)
    gap = "" if report.gap is None else f", gap {percent(report.gap)}"
    return f"{bound} for the {objective_name(report.objective)}{gap}"


def _memory(report: ScheduleReport) -> Text:
    peaks, limits, unit = report.peak_memory, report.mem_limit, report.memory_unit
    text = Text(per_device(peaks, unit) if peaks else "")
    if peaks and limits:
        text.append(f", limit {per_device(limits, unit)}")
    if report.fits_limit is False:
        text.append(", over the limit", style="red")
    return text


_LINES: Mapping[str, _Cell] = {
    _FIGURES[key].label: describe or written(key)
    for key, describe in {
        "strategy": _strategy,
        "status": _status,
        "placement": lambda report: describe_placement(report.placement),
        "link_mode": lambda report: describe_links(report.link_mode),
        "partition": lambda report: describe_partition(report.partition, report.layout),
        "recompute": lambda report: describe_layers(report.recompute, report.recomputed_layers),
        "offload": lambda report: describe_layers(report.offload, report.offloaded_layers),
        "partition_search": lambda report: describe_partition_search(
            report.partition_search, limited=report.mem_limit is not None
        ),
        "makespan": None,
        "device_span": None,
        "exposed": describe_exposed,
        "lower_bound": _bound,
        "bubble_rate": None,
        "bubble_overhead": None,
        "imbalance": describe_imbalance,
        "tokens_per_second": describe_throughput,
        "baseline": describe_gain,
        "elsewhere": describe_other_placement,
        "peak_memory": _memory,
        "fits_limit": _verified,
        "jitter": describe_jitter,
        "operations_alone": describe_lowering,
        "hint": describe_hint,
        "proof": None,
        "solve_seconds": None,
    }.items()
}
"""Label of a line -> its text; in the order of the table of one result."""


def compare_table(rows: Sequence[ScheduleReport]) -> Table:
    """Strategies side by side, a row each, in the order given.

    The third column is the objective, `bubble` the bubble rate of it, `memory` the largest device
    peak, and the last two columns are the ratios to the best row that fits and to the optimum of
    the same placement, empty if that is not known. `exposed` stands if the pipeline has work around
    the microbatches.
    """
    first = rows[0] if rows else ScheduleReport()
    value = headed(objective_name(first.objective), first.time_unit).replace(" (", "\n(")
    memory = headed("memory", first.memory_unit).replace(" (", "\n(")
    further: dict[str, _Cell] = {"exposed": lambda row: _short(row.exposed)}
    if all(row.exposed is None for row in rows):
        further = {}
    columns: dict[str, _Cell] = {
        "strategy": lambda row: title(row) + _where(row, rows),
        "placement": placement_of,
        value: lambda row: _short(row.value),
        **further,
        "bubble": lambda row: percent(row.bubble_rate),
        memory: lambda row: _marked(_short(row.largest_peak), row),
        "x best": lambda row: _short(row.ratio_to_best),
        "x opt.": lambda row: _ratio(row.ratio_to_optimum),
    }
    return _side_by_side(rows, columns, left=2)


def idle_table(report: ScheduleReport) -> Table:
    """Why every device is idle: its time busy, and idle by cause, until the makespan.

    Causes of no idle time are left out.
    """
    idle, makespan = report.idle or {}, report.makespan or 0
    causes = [cause for cause in _CAUSES if any(idle.get(cause, ()))]
    table = _table(headed("device", report.time_unit), "busy", *causes, "idle", left=0)
    for device in range(len(report.peak_memory or ())):
        waits = [idle[cause][device] for cause in causes]
        cells = [_short(wait) if wait else "" for wait in waits]
        share = percent(sum(waits) / makespan if makespan else 0)
        table.add_row(str(device), _short(makespan - sum(waits)), *cells, share)
    return table


def why_table(rows: Sequence[ScheduleReport]) -> Table:
    """Idle time of strategies by cause, in percent of all devices' time until the makespan.

    `imbalance` is the part, of whatever cause, that uneven work of the devices forces on every
    schedule; `sent` counts activations and gradients between devices.
    """
    causes = [cause for cause in _CAUSES if any(cause in (row.idle or ()) for row in rows)]
    uneven = [row.imbalance.idle_share if row.imbalance else 0 for row in rows]
    table = _table("% idle in", *causes, *(["imbalance"] if any(uneven) else []), "sent")
    for row, forced in zip(rows, uneven, strict=True):
        total = (row.makespan or 0) * len(row.peak_memory or ())
        shares = [100 * sum((row.idle or {}).get(cause, ())) / total for cause in causes]
        shares += [100 * forced] if any(uneven) else []
        cells = (f"{share:.1f}" if share else "" for share in shares)
        _add_row(table, (_name(row, rows), *cells, str(row.communication)), row)
    return table


def throughput_table(rows: Sequence[ScheduleReport]) -> Table:
    """Tokens per second and MFU of strategies."""
    columns: dict[str, _Cell] = {
        "throughput": lambda row: _name(row, rows),
        "tokens/s": lambda row: grouped(row.tokens_per_second),
        "per device": lambda row: grouped(row.tokens_per_second_per_device),
        "MFU": lambda row: percent(row.mfu),
    }
    return _side_by_side(rows, columns)


def peaks_table(rows: Sequence[ScheduleReport]) -> Table:
    """Peak memory of every device, a strategy each."""
    columns: dict[str, _Cell] = {
        headed("peak memory", rows[0].memory_unit): lambda row: _name(row, rows),
        "per device": lambda row: spread([round(peak, 3) for peak in row.peak_memory or ()]),
    }
    return _side_by_side(rows, columns)


def partitions_table(rows: Sequence[ScheduleReport]) -> Table:
    """Layers of every stage, a strategy each, of models in layers.

    The layers that recompute or offload stand beside them where any strategy has such layers.
    """
    further: dict[str, _Cell] = {}
    if any(any(row.recompute or ()) for row in rows):
        further["recompute"] = lambda row: spread(row.recompute or ())
    if any(any(row.offload or ()) for row in rows):
        further["offload"] = lambda row: spread(row.offload or ())
    columns: dict[str, _Cell] = {
        "partition": lambda row: title(row) + _where(row, rows),
        "layers of the stages": lambda row: spread(row.partition or ()),
        **further,
        "layout": lambda row: row.layout or "",
    }
    return _side_by_side(rows, columns, left=len(columns))


def jitter_table(rows: Sequence[ScheduleReport]) -> Table:
    """The objective of strategies under random times."""
    columns: dict[str, _Cell] = {
        headed("jitter", rows[0].time_unit): lambda row: _name(row, rows),
        "as planned": lambda row: _short(row.value),
        "mean": lambda row: _short(known(row.jitter).mean),
        "95 % below": lambda row: _short(known(row.jitter).p95),
        "degrades": lambda row: percent(known(row.jitter).degradation),
    }
    return _side_by_side(rows, columns)


class _Entry(NamedTuple):
    """A row of the table of a frontier."""

    memory: float
    value: float
    is_hand: bool
    report: ScheduleReport


def frontier_table(found: FrontierReport) -> Table:
    """Points of a frontier and hand strategies, by memory, then by value.

    The second column is the objective, `bubble` the bubble rate of it, `gap` how far a point may be
    from the optimum, `x best` the ratio to the best schedule within that memory; `over` marks
    strategies that break the pipeline's own limits.
    """
    pipeline, searched = found.frontier.pipeline, found.frontier.searched
    memory = headed("memory", pipeline.memory_unit).replace(" (", "\n(")
    value = headed(objective_name(found.frontier.objective), pipeline.time_unit)
    columns = (memory, value.replace(" (", "\n("), "bubble", "gap", "x best", "schedule")
    table = _table(*columns, left=0)
    table.columns[-1].justify = "left"
    points = [_Entry(known(row.limit), known(row.value), False, row) for row in found.points]
    hands = [_Entry(known(row.memory), known(row.value), True, row) for row in found.hands]
    for entry in sorted([*points, *hands], key=lambda entry: entry[:3]):
        row, is_hand = entry.report, entry.is_hand
        name = f"{title(row)}, {placement_of(row)}" if is_hand else _found(row, searched)
        ratio = row.ratio_to_best if is_hand else 1
        gap = "" if is_hand else percent(row.gap)
        most = "" if is_hand or row.limit_proved else AT_MOST
        marked = _marked(most + _short(entry.memory), row)
        rest = (_short(row.value), percent(row.bubble_rate), gap, _ratio(ratio), name)
        table.add_row(marked, *map(Text, rest), style="dim" if is_hand else "bold")
    return table


def _found(point: ScheduleReport, searched: Sequence[str]) -> str:
    text = "optimal, proved" if point.status == "optimal" else "best found"
    return text + describe_choices(point, searched)


def _ratio(value: float | None) -> str:
    """A ratio; empty if it is not known."""
    return "" if value is None else _short(value)


def sweep_table(rows: Sequence[SweepRow]) -> Table:
    """Rows of a sweep, each with its settings first.

    `value` is the objective of the row, and `memory` the largest device peak.
    """
    keys = list(dict.fromkeys(key for row in rows for key in row.overrides))
    known = next((row.figures for row in rows if row.figures), ScheduleFigures())
    figures = (
        *(headed("value", known.time_unit), "gap", "bubble"),
        *(headed("memory", known.memory_unit), "status"),
    )
    table = _table(*keys, *figures, left=len(keys))
    table.columns[-1].justify = "left"
    for row in rows:
        found = row.figures or ScheduleFigures()
        peaks = found.peak_memory
        cells: tuple[str | Text, ...] = (
            *(setting_text(row.overrides.get(key)) for key in keys),
            _short(found.value),
            percent(found.gap),
            percent(found.bubble_rate),
            _marked(_short(max(peaks)) if peaks else NONE, found),
            _ended(row),
        )
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return table


def setting_text(value: object) -> str:
    """The value of a setting: a list as its entries, what is not given as a dash."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return NONE if value is None else str(value)


def _ended(row: SweepRow) -> Text:
    if row.failed is not None:
        return Text(f"  failed: {row.failed}", style="red")
    if row.figures is None:
        return Text("  open", style="red")
    return Text(f"  {row.status}", style=_status_style(row.figures))


def _table(*names: str, left: int = 1) -> Table:
    """An empty table; its first columns are aligned to the left, the others to the right."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0), show_edge=False, header_style="bold")
    for index, name in enumerate(names):
        table.add_column(name, justify="left" if index < left else "right", overflow="fold")
    return table


def _side_by_side(
    rows: Sequence[ScheduleReport], columns: Mapping[str, _Cell], left: int = 1
) -> Table:
    """A table of strategies, a row each; `columns`: head -> cell of a row."""
    table = _table(*columns, left=left)
    for row in rows:
        _add_row(table, (cell(row) for cell in columns.values()), row)
    return table


def _add_row(table: Table, cells: Iterable[str | Text], row: ScheduleReport) -> None:
    """Add a strategy: dim if it is over its limit, bold if it is the best."""
    style = "bold" if row.ratio_to_best == 1 else ""
    if row.fits_limit is False:
        style = "dim"
    table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells), style=style)


def _marked(memory: str, figures: ScheduleFigures) -> Text:
    """Memory of a row, marked if it is over a limit."""
    text = Text(memory)
    if figures.fits_limit is False:
        text.append(OVER, style="red")
    return text


def _name(row: ScheduleReport, rows: Sequence[ScheduleReport]) -> str:
    name = title(row) + _where(row, rows)
    if row.status in ("infeasible", "unknown"):
        return f"{name}: {row.status}"
    return name + (f", gap {percent(row.gap)}" if row.gap else "")


def _where(row: ScheduleReport, rows: Sequence[ScheduleReport]) -> str:
    """The placement of a search, where the rows are of several searches."""
    several = sum(other.strategy == SEARCHED for other in rows) > 1
    return f", {placement_of(row)}" if several and row.strategy == SEARCHED else ""


def _short(value: float | None) -> str:
    """A number for narrow columns: six digits, at most three of them decimals.

    `--json` has every digit.
    """
    if value is None:
        return NONE
    whole = len(str(int(abs(value))))
    return number(round(value, min(3, max(0, 6 - whole))))
