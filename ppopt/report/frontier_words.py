"""What a frontier says of memory, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ppopt.report.labels import objective_words
from ppopt.report.layout_words import routes_words, short_placement
from ppopt.report.numbers import grouped, measured, percent

AT_MOST = "≤ "
"""Stands before a limit that is not proved to be the least for its value."""
OVER = " over"
"""Stands behind memory that is above a limit."""


def what_if(found: Mapping[str, Any]) -> list[str]:
    """The least memory that works and the most that is worth having: a sentence each.

    `found` has the keys of `ppopt frontier --json`; empty without points.
    """
    points = found["points"]
    if not points:
        return []
    least = measured(found["least_limit"], found["memory_unit"])
    if not found["least_limit_proved"]:
        least = f"at most {least}, not proved"
    lines = [
        f"least memory that works: {least}; {found['proof']}",
        _enough_words(found),
        *_within_words(found),
        *_faster_elsewhere(found),
        *routes_words(found["strategies"]),
    ]
    if not all(point["limit_proved"] for point in points):
        lines.append(f"{AT_MOST.strip()}: less memory may reach the same {objective_words(found)}")
    return lines


def _within_words(found: Mapping[str, Any]) -> list[str]:
    """The least memory for almost the best value, where a share was asked for."""
    within = found.get("within")
    if within is None:
        return []
    value = measured(within["value"], found["time_unit"])
    words = f"within {percent(within['share'])} of the best: {value} in "
    words += measured(within["limit"], found["memory_unit"])
    if within["beyond"] is None:
        return [f"{words}; perhaps less memory is enough"]
    return [f"{words}; not in {measured(within['beyond'], found['memory_unit'])}, proved"]


def _enough_words(found: Mapping[str, Any]) -> str:
    """The most memory that is worth having in the placement, and how much of that is proved."""
    last, objective = found["points"][-1], objective_words(found)
    memory = measured(found["useful_limit"], found["memory_unit"])
    value = measured(last["value"], found["time_unit"])
    if last["tokens_per_second"] is not None:
        value += f" ({grouped(last['tokens_per_second'])} tokens/s)"
    within = "" if found["mem_limit"] is None else " within the pipeline's own limits"
    worth = "most memory worth having"
    if "placement" not in found["searched"]:
        worth += f" in placement {short_placement(last)}"
    if last["status"] != "optimal":
        return (
            f"{worth}: not known; the least {objective} found, {value} (gap "
            f"{percent(last['gap'])}), takes {memory}{within}"
        )
    most = f"{memory}, proved" if found["useful_limit_proved"] else f"at most {memory}, not proved"
    return f"{worth}: {most}; with any more the {objective} stays {value}{within}"


def _faster_elsewhere(found: Mapping[str, Any]) -> list[str]:
    """Lines for the best hand strategies outside the search that are faster than every point.

    One of another placement with no more routes, and one with a second route, for which devices
    hold the weights twice, if that is faster still.
    """
    last = found["points"][-1]
    faster = [
        row
        for row in found["strategies"]
        if row["value"] < last["value"]
        and row["fits_limit"] is not False
        and _placement(row) != _placement(last)
    ]
    faster.sort(key=lambda row: (row["value"], row["memory"]))
    two = next((row for row in faster if row["routes"] > last["routes"]), None)
    other = next((row for row in faster if row["routes"] <= last["routes"]), None)
    lines = [] if other is None else [f"faster in another placement: {_hand_words(found, other)}"]
    if two is not None and (other is None or two["value"] < other["value"]):
        lines.append(f"faster with two routes: {_hand_words(found, two)}")
    return lines


def _hand_words(found: Mapping[str, Any], hand: Mapping[str, Any]) -> str:
    value = measured(hand["value"], found["time_unit"])
    memory = measured(hand["memory"], found["memory_unit"])
    return f"{hand['strategy']}, {short_placement(hand)}, {value} in {memory}"


def _placement(figures: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(figures[key] for key in ("placement", "chunks", "routes"))
