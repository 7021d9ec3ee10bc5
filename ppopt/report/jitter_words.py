"""The effect of random times, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ppopt.report.labels import title
from ppopt.report.numbers import measured, percent

_SPREAD = ("mean", "p95")


def jitter_words(figures: Mapping[str, Any]) -> str:
    """The effect of random times on an order; empty if there are none.

    `figures` has the keys of `ppopt eval --json`.
    """
    found = figures.get("jitter")
    if not isinstance(found, Mapping):
        return ""
    mean, p95 = (measured(round(found[key], 3), figures.get("time_unit")) for key in _SPREAD)
    return (
        f"mean {mean} ({percent(found['degradation'])} more), "
        f"95 % below {p95}; {found['samples']} samples of "
        f"{percent(found['deviation'])} deviation, seed {found['seed']}"
    )


def robustness_words(found: Mapping[str, Any]) -> list[str]:
    """The strategy that degrades least, and whether the best is fragile: a sentence each.

    `found` has the keys of `ppopt compare --json`; empty without random times.
    """
    if "steadiest" not in found:
        return []
    rows = {row["strategy"]: row for row in found["rows"]}
    spread_of = rows[found["steadiest"]]["jitter"]
    lines = [
        f"degrades least: {found['steadiest']}, by {percent(spread_of['degradation'])} on average "
        f"({spread_of['samples']} samples, seed {spread_of['seed']})"
    ]
    if found["fragile"] is not None:
        best, rival = (rows[found["fragile"][part]] for part in ("best", "rival"))
        lines.append(
            f"fragile: {title(best)} is best on paper, but takes "
            f"{_mean(best)} on average, and {title(rival)} {_mean(rival)}"
        )
    return lines


def _mean(row: Mapping[str, Any]) -> str:
    return measured(round(row["jitter"]["mean"], 3), row.get("time_unit"))
