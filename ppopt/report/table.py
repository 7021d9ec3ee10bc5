"""Tables for the terminal, as rich renderables; whoever asks for one prints it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from ppopt.report.words import (
    AT_MOST,
    NONE,
    OVER,
    hint_words,
    jitter_words,
    number,
    per_device,
    percent,
    spread,
    status_words,
    title,
)
from ppopt.schedule.idle import Cause


def result_table(figures: Mapping[str, Any]) -> Table:
    """Figures of one schedule or search, a line each; what is missing or null is left out.

    `figures` has the keys of `ppopt solve --json` or `ppopt eval --json`.
    """
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    objective = str(figures.get("objective") or "makespan").replace("-", " ")
    lines = {
        "strategy": _made_by(figures),
        "status": Text(status_words(figures), style=_tone(figures)),
        "makespan": _number(figures, "makespan"),
        "device span": _number(figures, "device_span"),
        "lower bound": _bound(figures, objective),
        "bubble rate": _percent(figures, "bubble_rate", f" of the {objective}"),
        "bubble overhead": _percent(figures, "bubble_overhead", " of busy time"),
        "peak memory": _memory(figures),
        "verified": _all_but_the_limit(figures),
        "under jitter": Text(jitter_words(figures)),
        "your schedule": Text(hint_words(figures)),
        "proof": Text(str(figures.get("proof") or "")),
        "time taken": _number(figures, "solve_seconds", " s"),
    }
    for name, words in lines.items():
        if words:
            table.add_row(name, words)
    return table


def _made_by(figures: Mapping[str, Any]) -> Text:
    """Name the strategy and the options that it went by."""
    chosen = figures.get("options") or {}
    words = (f", {name.replace('_', ' ')} {value}" for name, value in chosen.items())
    return Text(str(figures.get("strategy") or ""), style="bold").append("".join(words), "not bold")


def _all_but_the_limit(figures: Mapping[str, Any]) -> Text:
    """Say what holds of a schedule over its limit."""
    over = figures.get("fits_limit") is False
    words = "every rule but the limit, which eval reports and ppopt verify enforces"
    return Text(words if over else "")


def _tone(figures: Mapping[str, Any]) -> str:
    return {"optimal": "bold green", "feasible": "yellow"}.get(str(figures.get("status")), "red")


def _number(figures: Mapping[str, Any], key: str, unit: str = "") -> Text:
    value = figures.get(key)
    return Text() if value is None else Text(number(value) + unit)


def _percent(figures: Mapping[str, Any], key: str, of_what: str) -> Text:
    value = figures.get(key)
    return Text() if value is None else Text(percent(value) + of_what)


def _bound(figures: Mapping[str, Any], objective: str) -> Text:
    words = _number(figures, "lower_bound", f" for the {objective}")
    gap = figures.get("gap")
    return words if gap is None else words.append(f", gap {percent(gap)}")


def _memory(figures: Mapping[str, Any]) -> Text:
    peaks, limits = figures.get("peak_memory"), figures.get("mem_limit")
    words = Text(per_device(peaks) if peaks else "")
    if peaks and limits:
        words.append(f", limit {per_device(limits)}")
    if figures.get("fits_limit") is False:
        words.append(", over the limit", style="red")
    return words


_COLUMNS = ("strategy", "placement", "makespan", "span", "bubble", "memory", "/ best", "/ opt.")


def compare_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Strategies side by side, a row each, in the order given.

    Rows have the keys of `rows` in `ppopt compare --json`; `span` is the device span, `bubble`
    the bubble rate of the objective, `memory` the largest device peak, and the last two columns
    are the ratios to the best row that fits and to the optimum of the same placement.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0), show_edge=False, header_style="bold")
    for index, name in enumerate(_COLUMNS):
        table.add_column(name, justify="left" if index < 2 else "right", overflow="fold")
    for row in rows:
        table.add_row(*_cells(row), style=_row_style(row))
    return table


def why_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Idle time of strategies by cause, in percent of all devices' time until the makespan.

    `rows` as for `compare_table`; `sent` counts activations and gradients between devices.
    """
    table = _plain_table("% idle in", *_CAUSES, "sent")
    for row in rows:
        total = row["makespan"] * len(row["peak_memory"])
        shares = [100 * sum(row["idle"][cause]) / total for cause in _CAUSES]
        cells = (_name(row), *(f"{share:.1f}" if share else "" for share in shares))
        table.add_row(*map(Text, (*cells, str(row["communication"]))), style=_row_style(row))
    return table


_CAUSES = tuple(cause.label for cause in Cause)


def peaks_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Peak memory of every device, a strategy each; `rows` as for `compare_table`."""
    table = _plain_table("peak memory", "per device")
    for row in rows:
        peaks = spread([round(peak, 3) for peak in row["peak_memory"]])
        table.add_row(Text(_name(row)), Text(peaks), style=_row_style(row))
    return table


def jitter_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The objective of strategies under random times; `rows` as for `compare_table`."""
    table = _plain_table("jitter", "as planned", "mean", "95 % below", "degrades")
    for row in rows:
        found = row["jitter"]
        figures = (_short(row["value"]), _short(found["mean"]), _short(found["p95"]))
        cells = (_name(row), *figures, percent(found["degradation"]))
        table.add_row(*map(Text, cells), style=_row_style(row))
    return table


def _plain_table(*names: str) -> Table:
    """A table whose first column is on the left, the others on the right."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0), show_edge=False, header_style="bold")
    for index, name in enumerate(names):
        table.add_column(name, justify="right" if index else "left", overflow="fold")
    return table


def frontier_table(found: Mapping[str, Any]) -> Table:
    """Points of a frontier and hand strategies, by memory, then by value.

    `found` has the keys of `ppopt frontier --json`. The second column is the objective, `bubble`
    the bubble rate of it, `/ best` the ratio to the best schedule within that memory; `over` marks
    strategies that break the pipeline's own limits.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False, header_style="bold")
    objective = str(found["objective"]).replace("-", " ")
    for name in ("memory", objective, "bubble", "/ best"):
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("schedule", overflow="fold")
    points = [(row["limit"], row["value"], 0, row) for row in found["points"]]
    hands = [(row["memory"], row["value"], 1, row) for row in found["strategies"]]
    for memory, value, hand, row in sorted([*points, *hands], key=lambda entry: entry[:3]):
        name = f"{title(row)}, {_where(row)}" if hand else status_words(row)
        ratio = row["ratio_to_best"] if hand else 1
        most = "" if hand or row["limit_proved"] else AT_MOST
        held = _held(most + _short(memory), row)
        rest = (_short(value), percent(row["bubble_rate"]), _short(ratio), name)
        table.add_row(held, *map(Text, rest), style="dim" if hand else "bold")
    return table


def _row_style(row: Mapping[str, Any]) -> str:
    if row.get("fits_limit") is False:
        return "dim"
    return "bold" if row.get("ratio_to_best") == 1 else ""


def _held(memory: str, row: Mapping[str, Any]) -> Text:
    """Memory of a row, marked where it breaks a limit."""
    words = Text(memory)
    if row.get("fits_limit") is False:
        words.append(OVER, style="red")
    return words


def _cells(row: Mapping[str, Any]) -> list[Text]:
    peaks = row.get("peak_memory")
    memory = _held(_short(max(peaks)) if peaks else NONE, row)
    return [
        Text(_name(row)),
        Text(_where(row)),
        Text(_short(row.get("makespan"))),
        Text(_short(row.get("device_span"))),
        Text(percent(row.get("bubble_rate"))),
        memory,
        Text(_short(row.get("ratio_to_best"))),
        Text(_short(row.get("ratio_to_optimum"))),
    ]


def _name(row: Mapping[str, Any]) -> str:
    status = row.get("status")
    if status in ("infeasible", "unknown"):
        return f"{title(row)}: {status}"
    gap = row.get("gap")
    return title(row) + (f", gap {percent(gap)}" if gap else "")


def _where(row: Mapping[str, Any]) -> str:
    """Placement and, above one, chunks: `v/2`; a placement given as a list is `explicit`."""
    placement, chunks = row.get("placement"), row.get("chunks")
    if placement is None:
        return NONE
    words = placement if isinstance(placement, str) else "explicit"
    return f"{words}/{chunks}" if chunks and chunks > 1 else words


def _short(value: float | None) -> str:
    """Write a number with at most three decimals: columns stay narrow, `--json` has every digit."""
    return number(None if value is None else round(value, 3))
