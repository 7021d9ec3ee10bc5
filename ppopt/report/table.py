"""Tables for the terminal, as rich renderables that the caller prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from ppopt.report.baseline_words import baseline_words, other_placement_words
from ppopt.report.frontier_words import AT_MOST, OVER
from ppopt.report.jitter_words import jitter_words
from ppopt.report.labels import SEARCHED, link_words, objective_words, title
from ppopt.report.layout_words import (
    choice_words,
    chosen_words,
    offload_words,
    partition_words,
    placement_words,
    recompute_words,
    short_placement,
)
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
from ppopt.report.search_words import (
    exposed_words,
    hint_words,
    imbalance_words,
    operations_alone_words,
    status_words,
    throughput_words,
)
from ppopt.schedule.idle import Cause

_CAUSES = tuple(cause.label for cause in Cause)


def result_table(figures: Mapping[str, Any]) -> Table:
    """Figures of one schedule or search, a line each; what is missing or null is left out.

    `figures` has the keys of `ppopt solve --json` or `ppopt eval --json`.
    """
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    objective = objective_words(figures)
    lines: dict[str, str | Text] = {
        "strategy": _strategy(figures),
        "status": Text(status_words(figures), style=_status_style(figures)),
        "placement": placement_words(figures),
        "links": link_words(figures),
        "partition": partition_words(figures),
        "recompute": recompute_words(figures),
        "offload": offload_words(figures),
        "best partition": choice_words(figures),
        "makespan": _time(figures, "makespan"),
        "device span": _time(figures, "device_span"),
        "exposed": exposed_words(figures),
        "lower bound": _bound(figures, objective),
        "bubble rate": _with(percent, figures.get("bubble_rate"), f" of the {objective}"),
        "bubble overhead": _with(percent, figures.get("bubble_overhead"), " of busy time"),
        "imbalance": imbalance_words(figures),
        "throughput": throughput_words(figures),
        "gain": baseline_words(figures),
        "other placement": other_placement_words(figures),
        "peak memory": _memory(figures),
        "verified": _verified(figures),
        "under jitter": jitter_words(figures),
        "for PyTorch": operations_alone_words(figures),
        "your schedule": hint_words(figures),
        "proof": str(figures.get("proof") or ""),
        "time taken": _with(number, figures.get("solve_seconds"), " s"),
    }
    for name, words in lines.items():
        if words:
            table.add_row(name, words if isinstance(words, Text) else Text(words))
    return table


def _with(words: Callable[[float], str], value: float | None, unit: str = "") -> str:
    """A value in words with its unit; empty if there is none."""
    return "" if value is None else words(value) + unit


def _time(figures: Mapping[str, Any], key: str) -> str:
    """A time with its unit; empty if there is none."""
    value = figures.get(key)
    return "" if value is None else measured(value, figures.get("time_unit"))


def _strategy(figures: Mapping[str, Any]) -> Text:
    """Name of the strategy and its options."""
    chosen = figures.get("options") or {}
    words = (f", {name.replace('_', ' ')} {value}" for name, value in chosen.items())
    return Text(str(figures.get("strategy") or ""), style="bold").append("".join(words), "not bold")


def _verified(figures: Mapping[str, Any]) -> str:
    """What holds of a schedule over its limit."""
    if figures.get("fits_limit") is False:
        return "every rule but the limit, which eval reports and ppopt verify enforces"
    return ""


def _status_style(figures: Mapping[str, Any]) -> str:
    return {"optimal": "bold green", "feasible": "yellow"}.get(str(figures.get("status")), "red")


def _bound(figures: Mapping[str, Any], objective: str) -> str:
    gap = _with(percent, figures.get("gap"))
    bound = _time(figures, "lower_bound")
    words = bound and f"{bound} for the {objective}"
    return f"{words}, gap {gap}" if gap else words


def _memory(figures: Mapping[str, Any]) -> Text:
    peaks, limits = figures.get("peak_memory"), figures.get("mem_limit")
    unit = figures.get("memory_unit")
    words = Text(per_device(peaks, unit) if peaks else "")
    if peaks and limits:
        words.append(f", limit {per_device(limits, unit)}")
    if figures.get("fits_limit") is False:
        words.append(", over the limit", style="red")
    return words


def compare_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Strategies side by side, a row each, in the order given.

    Rows have the keys of `rows` in `ppopt compare --json`. The third column is the objective,
    `bubble` the bubble rate of it, `memory` the largest device peak, and the last two columns are
    the ratios to the best row that fits and to the optimum of the same placement, empty if that
    is not known. `exposed` stands if the pipeline has work around the microbatches.
    """
    time, memory = (_unit(rows, key) for key in ("time_unit", "memory_unit"))
    measures = ((objective_words(rows[0] if rows else {}), time), ("memory", memory))
    value, held = (headed(*pair).replace(" (", "\n(") for pair in measures)
    further = ["exposed"] if any(row.get("exposed") is not None for row in rows) else []
    names = ("strategy", "placement", value, *further, "bubble", held, "x best", "x opt.")
    table = _table(*names, left=2)
    for row in rows:
        peaks = row.get("peak_memory")
        cells: tuple[str | Text, ...] = (
            title(row) + _where(row, rows),
            short_placement(row),
            _short(row.get("value")),
            *(_short(row["exposed"]) for _ in further),
            percent(row.get("bubble_rate")),
            _held(_short(max(peaks)) if peaks else NONE, row),
            _short(row.get("ratio_to_best")),
            _ratio(row.get("ratio_to_optimum")),
        )
        _add_row(table, cells, row)
    return table


def idle_table(figures: Mapping[str, Any]) -> Table:
    """Why every device is idle: its time busy, and idle by cause, until the makespan.

    `figures` as for `result_table`, of a schedule. Causes of no idle time are left out.
    """
    causes = [cause for cause in _CAUSES if any(figures["idle"].get(cause, ()))]
    table = _table(headed("device", figures.get("time_unit")), "busy", *causes, "idle", left=0)
    makespan = figures["makespan"]
    for device in range(len(figures["peak_memory"])):
        waits = [figures["idle"][cause][device] for cause in causes]
        cells = [_short(wait) if wait else "" for wait in waits]
        share = percent(sum(waits) / makespan if makespan else 0)
        table.add_row(str(device), _short(makespan - sum(waits)), *cells, share)
    return table


def why_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Idle time of strategies by cause, in percent of all devices' time until the makespan.

    `rows` as for `compare_table`; `imbalance` is the part, of whatever cause, that uneven work of
    the devices forces on every schedule; `sent` counts activations and gradients between devices.
    """
    causes = [cause for cause in _CAUSES if any(cause in row["idle"] for row in rows)]
    uneven = ["imbalance"] if any(row["imbalance"]["idle_share"] for row in rows) else []
    table = _table("% idle in", *causes, *uneven, "sent")
    for row in rows:
        total = row["makespan"] * len(row["peak_memory"])
        shares = [100 * sum(row["idle"].get(cause, ())) / total for cause in causes]
        shares += [100 * row["imbalance"]["idle_share"] for _ in uneven]
        cells = (f"{share:.1f}" if share else "" for share in shares)
        _add_row(table, (_name(row, rows), *cells, str(row["communication"])), row)
    return table


def throughput_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Tokens per second and MFU of strategies; `rows` as for `compare_table`."""
    table = _table("throughput", "tokens/s", "per device", "MFU")
    for row in rows:
        tokens = (row[key] for key in ("tokens_per_second", "tokens_per_second_per_device"))
        _add_row(table, (_name(row, rows), *map(grouped, tokens), percent(row["mfu"])), row)
    return table


def peaks_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Peak memory of every device, a strategy each; `rows` as for `compare_table`."""
    table = _table(headed("peak memory", _unit(rows, "memory_unit")), "per device")
    for row in rows:
        peaks = spread([round(peak, 3) for peak in row["peak_memory"]])
        _add_row(table, (_name(row, rows), peaks), row)
    return table


def partitions_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Layers of every stage, a strategy each; `rows` as for `compare_table`, of models in layers.

    The layers that recompute or offload stand beside them where any strategy has such layers.
    """
    further = [
        does for does in ("recompute", "offload") if any(any(row.get(does) or ()) for row in rows)
    ]
    table = _table("partition", "layers of the stages", *further, "layout")
    for column in table.columns:
        column.justify = "left"
    for row in rows:
        counts = [row["partition"], *(row[does] for does in further)]
        name = title(row) + _where(row, rows)
        _add_row(table, (name, *map(spread, counts), row["layout"]), row)
    return table


def jitter_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The objective of strategies under random times; `rows` as for `compare_table`."""
    unit = _unit(rows, "time_unit")
    table = _table(headed("jitter", unit), "as planned", "mean", "95 % below", "degrades")
    for row in rows:
        found = row["jitter"]
        values = map(_short, (row["value"], found["mean"], found["p95"]))
        _add_row(table, (_name(row, rows), *values, percent(found["degradation"])), row)
    return table


def frontier_table(found: Mapping[str, Any]) -> Table:
    """Points of a frontier and hand strategies, by memory, then by value.

    `found` has the keys of `ppopt frontier --json`. The second column is the objective, `bubble`
    the bubble rate of it, `gap` how far a point may be from the optimum, `x best` the ratio to the
    best schedule within that memory; `over` marks strategies that break the pipeline's own limits.
    """
    memory = headed("memory", found["memory_unit"]).replace(" (", "\n(")
    value = headed(objective_words(found), found["time_unit"]).replace(" (", "\n(")
    table = _table(memory, value, "bubble", "gap", "x best", "schedule", left=0)
    table.columns[-1].justify = "left"
    points = [(row["limit"], row["value"], 0, row) for row in found["points"]]
    hands = [(row["memory"], row["value"], 1, row) for row in found["strategies"]]
    for memory, value, hand, row in sorted([*points, *hands], key=lambda entry: entry[:3]):
        name = f"{title(row)}, {short_placement(row)}" if hand else _found(row, found["searched"])
        ratio = row["ratio_to_best"] if hand else 1
        gap = "" if hand else percent(row["gap"])
        most = "" if hand or row["limit_proved"] else AT_MOST
        held = _held(most + _short(memory), row)
        rest = (_short(value), percent(row["bubble_rate"]), gap, _ratio(ratio), name)
        table.add_row(held, *map(Text, rest), style="dim" if hand else "bold")
    return table


def _found(point: Mapping[str, Any], searched: Sequence[str]) -> str:
    words = "optimal, proved" if point["status"] == "optimal" else "best found"
    return words + chosen_words(point, searched)


def _ratio(value: float | None) -> str:
    """A ratio; empty if it is not known."""
    return "" if value is None else _short(value)


def sweep_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Rows of a sweep, each with its settings first.

    `rows` have the keys of `rows` in `ppopt sweep --json`; `value` is the objective of the row, and
    `memory` the largest device peak.
    """
    keys = list(dict.fromkeys(key for row in rows for key in row["overrides"]))
    done = [row for row in rows if row.get("status")]
    time, memory = (_unit(done, key) for key in ("time_unit", "memory_unit"))
    figures = (headed("value", time), "gap", "bubble", headed("memory", memory), "status")
    table = _table(*keys, *figures, left=len(keys))
    table.columns[-1].justify = "left"
    for row in rows:
        peaks = row.get("peak_memory")
        cells: tuple[str | Text, ...] = (
            *(_setting(row["overrides"].get(key)) for key in keys),
            _short(row.get("value")),
            percent(row.get("gap")),
            percent(row.get("bubble_rate")),
            _held(_short(max(peaks)) if peaks else NONE, row),
            _ended(row),
        )
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return table


def _setting(value: object) -> str:
    """The value of a setting: a list as its entries, what is not given as a dash."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return NONE if value is None else str(value)


def _ended(row: Mapping[str, Any]) -> Text:
    if row.get("failed") is not None:
        return Text(f"  failed: {row['failed']}", style="red")
    status = str(row.get("status") or "open")
    return Text(f"  {status}", style=_status_style(row))


def _table(*names: str, left: int = 1) -> Table:
    """An empty table; its first columns are aligned to the left, the others to the right."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0), show_edge=False, header_style="bold")
    for index, name in enumerate(names):
        table.add_column(name, justify="left" if index < left else "right", overflow="fold")
    return table


def _add_row(table: Table, cells: Iterable[str | Text], row: Mapping[str, Any]) -> None:
    """Add a strategy: dim if it is over its limit, bold if it is the best."""
    style = "bold" if row.get("ratio_to_best") == 1 else ""
    if row.get("fits_limit") is False:
        style = "dim"
    table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells), style=style)


def _unit(rows: Sequence[Mapping[str, Any]], key: str) -> str | None:
    """Unit of the figures of all rows: they are of one problem."""
    return rows[0].get(key) if rows else None


def _held(memory: str, row: Mapping[str, Any]) -> Text:
    """Memory of a row, marked if it is over a limit."""
    words = Text(memory)
    if row.get("fits_limit") is False:
        words.append(OVER, style="red")
    return words


def _name(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    status, name = row.get("status"), title(row) + _where(row, rows)
    if status in ("infeasible", "unknown"):
        return f"{name}: {status}"
    gap = row.get("gap")
    return name + (f", gap {percent(gap)}" if gap else "")


def _where(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """The placement of a search, where the rows are of several searches."""
    several = sum(other.get("strategy") == SEARCHED for other in rows) > 1
    return f", {short_placement(row)}" if several and row["strategy"] == SEARCHED else ""


def _short(value: float | None) -> str:
    """A number for narrow columns: six digits, at most three of them decimals.

    `--json` has every digit.
    """
    if value is None:
        return NONE
    whole = len(str(int(abs(value))))
    return number(round(value, min(3, max(0, 6 - whole))))
