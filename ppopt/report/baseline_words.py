"""A search compared with the best hand strategies, and what their times leave out, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ppopt.report.labels import objective_words
from ppopt.report.layout_words import offload_words, partition_words, recompute_words
from ppopt.report.numbers import grouped, measured, number, percent
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.timetable import ALONE


def baseline_words(figures: Mapping[str, Any]) -> str:
    """What a search gains over the best hand strategy of its placement; empty without one.

    `figures` has the keys of `ppopt solve --json`.
    """
    hand = figures.get("baseline")
    if hand is None or hand["speedup"] is None:
        return ""
    share = hand["speedup"] - 1
    if share < 0:
        more = percent(1 / hand["speedup"] - 1)
        return f"no gain: {hand['strategy']} has {more} more throughput; {_cure(figures)}"
    name = f"{hand['strategy']}, the best hand strategy of this placement"
    limits = figures["mem_limit"]
    if limits is not None:
        same = min(limits) == max(limits)
        unit = figures["memory_unit"]
        most = measured(limits[0], unit) if unit else f"memory {number(limits[0])}"
        name += f" within {most if same else 'the memory limits'}"
    if hand["chosen"]:
        name += f", each with its own {' and '.join(hand['chosen'])}{_own_cut(hand)}"
    if hand["skipped"]:
        name += f" ({', '.join(hand['skipped'])} not tried)"
    words = f"{percent(share)} more" if share else "no more"
    words += f" throughput than {name}"
    tokens = figures["tokens_per_second"]
    return words if tokens is None else f"{words}: {grouped(tokens)} tokens/s"


def _cure(figures: Mapping[str, Any]) -> str:
    """What finds a schedule at least as good as a better hand strategy.

    An optimum is worse only if the strategy runs backwards of a kind that was not searched.
    """
    return "use --backward mixed" if figures["status"] == "optimal" else "raise --time-limit"


def _own_cut(figures: Mapping[str, Any]) -> str:
    """Partition, recompute and offload of a strategy, in brackets; empty without layers."""
    if not figures.get("partition"):
        return ""
    does = {"recompute": recompute_words(figures), "offload": offload_words(figures)}
    words = (f"{name} {found}" for name, found in does.items() if found)
    return f" ({'; '.join([partition_words(figures), *words])})"


def overlap_words(schedules: Iterable[Schedule]) -> list[str]:
    """A note on overlapped pairs that save no time for lack of overlap times; empty if none do."""
    names = [
        str(schedule.origin.strategy)
        for schedule in schedules
        if schedule.pipeline.overlap is None and (schedule.pair != ALONE).any()
    ]
    if not names:
        return []
    return [
        f"{', '.join(names)}: an overlapped pair takes the sum of its F and its backward, unless "
        "--overlap-times says how long it takes"
    ]


def other_placement_words(figures: Mapping[str, Any]) -> str:
    """A better hand strategy of another placement; empty if there is none.

    `figures` has the keys of `ppopt solve --json`.
    """
    hand = figures.get("elsewhere")
    if hand is None:
        return ""
    name = f"{hand['strategy']} ({_placed(hand)})"
    speedup = hand["speedup"]
    if speedup is None:
        value = measured(hand["value"], figures.get("time_unit"))
        return f"{name} has {objective_words(figures)} {value}"
    if speedup > 1:
        more = f"this schedule has {percent(speedup - 1)} more throughput"
        return f"{name} is a better hand strategy; {more}"
    more = (
        f"{percent(1 / speedup - 1)} more throughput than"
        if speedup < 1
        else "as much throughput as"
    )
    return f"{name} has {more} this schedule; {_placing_flags(hand, figures)} searches there"


def _placed(figures: Mapping[str, Any]) -> str:
    """Placement, chunks and routes: `placement v, 2 chunks per device`."""
    words = f"placement {figures['placement']}"
    if figures["chunks"] > 1:
        words += f", {figures['chunks']} chunks per device"
    return words if figures["routes"] == 1 else f"{words}, two routes, weights held twice"


def _placing_flags(hand: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    """The flags that change the placement of a search to that of a hand strategy."""
    flags = [
        f"--{name} {hand[name]}" for name in ("placement", "chunks") if hand[name] != figures[name]
    ]
    return " ".join([*flags, "--routes 2"] if hand["routes"] > 1 else flags)
