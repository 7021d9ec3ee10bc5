"""A plan for the terminal: the configurations side by side, and what to do with the best one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from ppopt.report.words import NONE, headed, number, objective_words, percent

_STYLES = {"optimal": "bold green", "pruned": "dim", "infeasible": "dim red"}


def plan_table(shown: Mapping[str, Any]) -> Table:
    """Configurations, the best first, a row each; `shown` has the keys of `ppopt plan --json`.

    The value is the objective; of several batch counts, the time per microbatch.
    """
    several = len(shown["space"]["batches"]) > 1
    unit = shown["time_unit"]
    figure = headed("per microbatch" if several else objective_words(shown), unit)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0), show_edge=False, header_style="bold")
    named = shown["space"]["strategies"] != ["optimal"]
    if named:
        table.add_column("strategy", no_wrap=True)
    table.add_column("placement", no_wrap=True)
    table.add_column("recompute")
    if several:
        table.add_column("batches", justify="right")
    for name in (figure, "bound", headed("memory", shown["memory_unit"])):
        table.add_column(name.replace(" (", "\n("), justify="right", overflow="fold")
    table.add_column("beside the best", overflow="fold")
    key = "per_microbatch" if several else ""
    for place, row in enumerate(shown["rows"]):
        value, bound = _figures(row, key)
        peaks = row["peak_memory"]
        cells = [
            *([row["strategy"]] if named else []),
            f"{row['placement']}/{row['chunks']}" if row["chunks"] > 1 else row["placement"],
            row["recompute"],
            *([str(row["batches"])] if several else []),
            _short(value),
            _short(bound),
            _short(max(peaks)) if peaks else NONE,
            "best" if place == 0 and value is not None else lacks(row, shown),
        ]
        style = "bold" if place == 0 else _STYLES.get(row["status"], "")
        table.add_row(*map(Text, cells), style=style)
    return table


def _figures(row: Mapping[str, Any], key: str) -> tuple[float | None, float | None]:
    if key:
        return row["value_per_microbatch"], row["bound_per_microbatch"]
    return row["value"], row["lower_bound"]


def lacks(row: Mapping[str, Any], shown: Mapping[str, Any]) -> str:
    """What a configuration lacks beside the best one, in words."""
    status, best = row["status"], shown["value_per_microbatch"]
    if status == "infeasible":
        return "does not fit"
    if best is None or status == "unknown":
        return "nothing found in time"
    least = row["bound_per_microbatch"] / best - 1
    if status == "pruned":
        return f"{percent(least)} slower or more" if least else "no faster"
    more = row["value_per_microbatch"] / best - 1
    words = f"{percent(more)} slower" if more else "as fast"
    return words if status == "optimal" else f"{words}, perhaps {percent(-least)} faster"


def _short(value: float | None) -> str:
    return number(None if value is None else round(value, 3))
