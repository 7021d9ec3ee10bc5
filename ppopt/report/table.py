"""Tables for the terminal, as rich renderables that the caller prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import ROUND_CEILING

from rich.text import Text

from ppopt.formats.figures import ScheduleFigures, known
from ppopt.report.columns import (
    Column,
    Grid,
    figure_columns,
    left,
    stacked,
)
from ppopt.report.frontier_report import FrontierReport, at_most
from ppopt.report.labels import title
from ppopt.report.numbers import (
    NONE,
    headed,
    number,
    percent,
    significant,
    spread,
)
from ppopt.report.placement_text import placement_of
from ppopt.report.schedule_report import ScheduleReport
from ppopt.report.summary import status_style
from ppopt.report.throughput_text import gain_cell
from ppopt.schedule.idle import Cause
from ppopt.schedule.origin import SEARCHED
from ppopt.studies.records import SweepRow


def compare_table(rows: Sequence[ScheduleReport], *, exact: bool = False) -> Grid[ScheduleReport]:
    """Strategies side by side, a row each, in the order given.

    The third column is the objective, `bubble` the bubble rate of it, and `memory` the largest
    device peak. Then come the ratios to the best row that fits and to the optimum of the same
    placement. They are empty if that is not known, or the row is over its limit. `exposed` stands
    if the pipeline has work around the microbatches.
    """
    first = rows[0] if rows else ScheduleReport()
    keys = ("value", "exposed", "bubble_rate", "ratio_to_best")
    value, exposed, bubble, versus_best = figure_columns(keys, first, exact=exact)
    (versus_optimum,) = figure_columns(["ratio_to_optimum"], first, absent="", exact=exact)
    columns: list[Column[ScheduleReport]] = [
        left("strategy", lambda row: _titled(row, rows)),
        left("placement", placement_of),
        value,
        *([replace(exposed, optional=3)] if any(row.exposed is not None for row in rows) else []),
        replace(bubble, optional=1),
        _memory_column(first.memory_unit, lambda row: row.largest_peak, exact=exact),
        versus_best,
        Column(
            versus_optimum.head,
            lambda row: "" if row.fits_limit is False else versus_optimum.cell(row),
            optional=2,
        ),
        left("status", _row_status),
    ]
    return Grid(columns, rows, _style)


def _memory_column(
    unit: str | None, read: Callable[[ScheduleReport], float | None], *, exact: bool
) -> Column[ScheduleReport]:
    """Memory rounded up."""

    def write(row: ScheduleReport) -> str:
        memory = read(row)
        return number(memory) if exact else significant(memory, rounding=ROUND_CEILING)

    return Column(stacked("memory", unit), lambda row: at_most(row) + write(row))


def _row_status(row: ScheduleReport) -> str:
    """One word: whether a row is over its limit, the best, searched, or evaluated."""
    if row.fits_limit is False:
        return "over the limit"
    if row.limit is not None:
        return "optimal" if row.status == "optimal" else "searched"
    if row.value is None:
        return str(row.status)
    if row.ratio_to_best == 1 and row.memory is None:
        return "best"
    return "searched" if row.strategy == SEARCHED else "evaluated"


def idle_table(report: ScheduleReport) -> Grid[int]:
    """Why every device is idle: its time busy and idle by cause, and the share of idle time.

    Times are until the makespan. Causes of no idle time are left out.
    """
    makespan, idle = report.makespan or 0, {
        cause: times for cause, times in (report.idle or {}).items() if any(times)
    }  # fmt: skip

    def waits(device: int) -> float:
        return sum(times[device] for times in idle.values())

    def by_cause(cause: str) -> Column[int]:
        return Column(
            cause, lambda device: number(idle[cause][device]) if idle[cause][device] else ""
        )

    columns: list[Column[int]] = [
        Column("device", str),
        Column("busy", lambda device: number(makespan - waits(device))),
        *map(by_cause, idle),
        Column("idle", lambda device: percent(waits(device) / makespan if makespan else 0)),
    ]
    return Grid(columns, range(len(report.peak_memory or ())))


def idle_title(report: ScheduleReport) -> str:
    """Line above `idle_table`."""
    return headed("time per device", report.time_unit)


def why_table(rows: Sequence[ScheduleReport]) -> Grid[ScheduleReport]:
    """Idle time of strategies by cause, in percent of all devices' time until the makespan.

    `imbalance` is the part, of whatever cause, that uneven work of the devices forces on every
    schedule; `transfers` counts activations and gradients between devices.
    """

    def share(percents: float) -> str:
        return f"{percents:.1f}" if percents else ""

    def by_cause(cause: str) -> Column[ScheduleReport]:
        def of_all(row: ScheduleReport) -> float:
            total = (row.makespan or 0) * len(row.peak_memory or ())
            return 100 * sum((row.idle or {}).get(cause, ())) / total

        return Column(cause, lambda row: share(of_all(row)))

    def forced(row: ScheduleReport) -> float:
        return 100 * row.imbalance.idle_share if row.imbalance else 0

    causes = [
        cause.label for cause in Cause if any(cause.label in (row.idle or ()) for row in rows)
    ]
    uneven: list[Column[ScheduleReport]] = (
        [Column("imbalance", lambda row: share(forced(row)))] if any(map(forced, rows)) else []
    )
    columns = [_named("idle by cause,\n% of makespan", rows), *map(by_cause, causes), *uneven]
    return Grid([*columns, *figure_columns(["communication"], rows[0])], rows, _style)


def throughput_table(rows: Sequence[ScheduleReport]) -> Grid[ScheduleReport]:
    """Tokens per second and MFU of strategies."""
    keys = ("tokens_per_second", "tokens_per_second_per_device", "mfu")
    return Grid([_named("throughput", rows), *figure_columns(keys, rows[0])], rows, _style)


def peaks_table(rows: Sequence[ScheduleReport]) -> Grid[ScheduleReport]:
    """Peak memory of every device, a strategy each."""
    columns: list[Column[ScheduleReport]] = [
        _named(headed("peak memory", rows[0].memory_unit), rows),
        Column(
            "per device",
            lambda row: spread([round(peak, 3) for peak in row.peak_memory or ()]),
            wraps=True,
        ),
    ]
    return Grid(columns, rows, _style)


def partitions_table(rows: Sequence[ScheduleReport]) -> Grid[ScheduleReport]:
    """Layers of every stage, a strategy each, of models in layers.

    The layers that recompute or offload follow where any strategy has such layers.
    """

    def counts(head: str, name: str) -> Column[ScheduleReport]:
        return left(head, lambda row: spread(getattr(row, name) or ()), wraps=True)

    chosen = [
        counts(name, name)
        for name in ("recompute", "offload")
        if any(any(getattr(row, name) or ()) for row in rows)
    ]
    columns: list[Column[ScheduleReport]] = [
        left("partition", lambda row: _titled(row, rows)),
        counts("layers of the stages", "partition"),
        *chosen,
        left("layout", lambda row: row.layout or "", wraps=True),
    ]
    return Grid(columns, rows, _style)


def jitter_table(rows: Sequence[ScheduleReport]) -> Grid[ScheduleReport]:
    """The objective of strategies under random times."""
    columns: list[Column[ScheduleReport]] = [
        _named(headed("jitter", rows[0].time_unit), rows),
        Column("as planned", lambda row: significant(row.value)),
        Column("mean", lambda row: significant(known(row.jitter).mean)),
        Column("95 % below", lambda row: significant(known(row.jitter).p95)),
        Column("throughput", lambda row: gain_cell(1 / (1 + known(row.jitter).degradation) - 1)),
    ]
    return Grid(columns, rows, _style)


def frontier_table(report: FrontierReport, *, exact: bool = False) -> Grid[ScheduleReport]:
    """Points of a frontier and baselines, by memory, then by value.

    The second column is the objective, `bubble` the bubble rate of it, `gap` how far a point may be
    from the optimum. The next one is the ratio to the best schedule within that memory: the optimum
    if all points are proved.
    """
    units = ScheduleFigures.of(None, report.frontier.pipeline, objective=report.frontier.objective)
    keys = ("value", "bubble_rate", "gap", "ratio_to_best")
    value, bubble, gap, ratio = figure_columns(keys, units, exact=exact)
    columns = [
        _memory_column(units.memory_unit, lambda row: row.place[0], exact=exact),
        *(value, replace(bubble, optional=1), gap, replace(ratio, head=_ratio_head(report))),
        left("status", _row_status),
        left("schedule", _describe_spot),
    ]
    return Grid(columns, report.rows, lambda row: "dim" if row.limit is None else "bold")


def _ratio_head(report: FrontierReport) -> str:
    return "vs opt." if report.frontier.status == "optimal" else "vs best"


def frontier_legend(report: FrontierReport) -> str:
    """What the column of ratios of `frontier_table` means."""
    best = "optimum" if report.frontier.status == "optimal" else "best schedule found"
    return (
        f"{_ratio_head(report)}: ratio to the {best} within that memory; {NONE}: outside the search"
    )


def _describe_spot(row: ScheduleReport) -> str:
    return f"{title(row) if row.limit is None else SEARCHED}, {placement_of(row)}"


def sweep_table(rows: Sequence[SweepRow]) -> Grid[SweepRow]:
    """Rows of a sweep, each with its settings first.

    `value` is the objective of the row, and `memory` the largest device peak.
    """

    def setting(key: str) -> Column[SweepRow]:
        head = key.replace("_", "_\n")
        return left(head, lambda row: setting_text(row.overrides.get(key)), wraps=True)

    nothing = ScheduleFigures()
    units = next((row.figures for row in rows if row.figures), nothing)
    figures = figure_columns(
        ("value", "gap", "bubble_rate", "peak_memory"), replace(units, objective="value")
    )
    columns = [
        *map(setting, dict.fromkeys(key for row in rows for key in row.overrides)),
        *(column.of(lambda row: row.figures or nothing) for column in figures),
        left("status", _ended),
    ]
    return Grid(columns, rows)


def describe_failures(rows: Sequence[SweepRow]) -> list[str]:
    """Why rows of a sweep failed, a line per reason."""
    reasons = Counter(row.failed for row in rows if row.failed is not None)
    return [
        f"failed, {count} row{'s' * (count > 1)}: {reason}" for reason, count in reasons.items()
    ]


def setting_text(value: object) -> str:
    """The value of a setting: a list as its entries, what is not given as a dash."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return NONE if value is None else str(value)


def _ended(row: SweepRow) -> Text:
    if row.failed is not None:
        return Text("failed", style="red")
    if row.figures is None:
        return Text("open", style="red")
    return Text(str(row.status), style=status_style(row.status))


def _style(row: ScheduleReport) -> str:
    """Style of a strategy: dim if it is over its limit, bold if it is the best."""
    if row.fits_limit is False:
        return "dim"
    return "bold" if row.ratio_to_best == 1 else ""


def _named(head: str, rows: Sequence[ScheduleReport]) -> Column[ScheduleReport]:
    """A column of strategies, with what is open of searches."""

    def name(row: ScheduleReport) -> str:
        if row.status in ("infeasible", "unknown"):
            return f"{_titled(row, rows)}: {row.status}"
        return _titled(row, rows) + (f", gap {percent(row.gap)}" if row.gap else "")

    return left(head, name)


def _titled(row: ScheduleReport, rows: Sequence[ScheduleReport]) -> str:
    """Name of a row; that of a search has its placement where the rows are of several searches."""
    several = sum(entry.strategy == SEARCHED for entry in rows) > 1
    return title(row) + (f", {placement_of(row)}" if several and row.strategy == SEARCHED else "")
