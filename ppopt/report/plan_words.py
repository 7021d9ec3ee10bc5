"""What a plan says, in words: slowdown, memory, gain, what was searched, and how to use it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from ppopt.formats.megatron_schedule import STRATEGIES as MEGATRON
from ppopt.problem.partition import SEARCH
from ppopt.report.layout_words import short_placement
from ppopt.report.numbers import measured, number, per_device, percent, spread
from ppopt.studies.plan_baselines import KNOWN
from ppopt.studies.plan_space import OPTIMAL, PLACEMENTS

FEW_NAMES = 5
"""Names of a list that are shown; --json has all."""
_DIMENSIONS = {
    "placement": ("placement", "placement"),
    "chunks": ("chunks", "chunks"),
    "recompute": ("recompute", "recompute"),
    "strategies": ("strategy", "schedules"),
    "batches": ("batches", "microbatches"),
}
"""Dimension of the space of a plan -> its key in a row, and its word."""


def value_words(row: Mapping[str, Any], value: float | None) -> str:
    """The value of a configuration; of one that was given up, its best is no larger."""
    return f"≤ {number(value)}" if row["given_up"] else number(value)


def slowdown(row: Mapping[str, Any], shown: Mapping[str, Any]) -> str:
    """Slowdown of a configuration relative to the best one, in words."""
    status, best = row["status"], shown["value_per_microbatch"]
    if status == "infeasible":
        return "does not fit"
    least = None if best is None else row["bound_per_microbatch"] / best - 1
    if best is None or least is None or status == "unknown":
        return open_words(row["searches"], least)
    if status == "pruned" and row["given_up"]:
        more = row["value_per_microbatch"] / best - 1
        words = slower_words(least, more)
        return f"{words}; not searched further" if more else words
    if status == "pruned":
        return slower_words(least, None)
    more = row["value_per_microbatch"] / best - 1
    words = f"{percent(more)} slower" if more else "as fast"
    return words if status == "optimal" else f"{words}; at best {percent(-least)} faster"


def open_words(searches: int, least: float | None) -> str:
    """What is known of a candidate without a schedule that its bound does not rule out.

    `least` is the least share by which it is slower than the best; None: nothing was found.
    """
    words = "nothing found in time" if searches else "not searched"
    return words if least is None else f"{words}; at best {percent(-least)} faster"


def slower_words(least: float, most: float | None) -> str:
    """By which shares something is slower than the best; `most` is None if it is not known."""
    if most is None:
        return f"at least {percent(least)} slower" if least else "no faster"
    words = percent(most) if least == most else f"{percent(least)} to {percent(most)}"
    return f"{words} slower" if most else "as fast"


def limit_words(shown: Mapping[str, Any]) -> str:
    """The memory limit that no configuration stays within; empty if one does."""
    if shown["status"] != "infeasible" or shown["mem_limit"] is None:
        return ""
    limit = spread(shown["mem_limit"], shown["memory_unit"])
    return f"memory limit: {limit}; `ppopt frontier` finds the least that works"


def least_memory_words(shown: Mapping[str, Any]) -> str:
    """The least memory with which the best configuration is as fast; empty if not looked for."""
    least, unit = shown["least_memory"], shown["memory_unit"]
    if least is None:
        return ""
    words = f"as fast with {measured(least['value'], unit)} each"
    if least["value"] == least["lower_bound"]:
        return f"{words}, slower with less: proved for this configuration"
    if not least["lower_bound"]:
        return f"{words}, perhaps with less"
    low = measured(least["lower_bound"], unit)
    return f"{words}, perhaps with less; slower below {low}: proved for this configuration"


def configuration_words(row: Mapping[str, Any]) -> str:
    """A configuration: `1f1b, v/2, recompute none`."""
    strategy = [] if row["strategy"] == OPTIMAL else [row["strategy"]]
    return ", ".join([*strategy, short_placement(row), f"recompute {row['recompute']}"])


def within_words(shown: Mapping[str, Any]) -> str:
    """The least memory that is almost as fast; empty if it was not looked for."""
    found, unit = shown["within"], shown["memory_unit"]
    if found is None:
        return ""
    slower = found["value"] / found["batches"] / shown["value_per_microbatch"] - 1
    value = measured(found["value"], shown["time_unit"])
    words = (
        f"least memory: {measured(found['memory'], unit)} each, {percent(slower)} slower "
        f"({value}, {configuration_words(found)})"
    )
    low = found["lower_bound"]
    if low is None:
        return f"{words}; perhaps less memory is enough"
    if low == found["memory"]:
        return f"{words}; proved"
    return f"{words}; not with less than {measured(low, unit)}, proved"


def more_memory_words(shown: Mapping[str, Any]) -> str:
    """The speedup with 10 % more memory; empty without a limit."""
    more, value = shown["more_memory"], shown["value"]
    if more is None:
        return ""
    limit = f"10 % more memory ({per_device(more['mem_limit'], shown['memory_unit'])})"
    gain, most = 1 - more["value"] / value, 1 - more["lower_bound"] / value
    if not most:
        return f"{limit}: no speedup, proved"
    if not gain and OPTIMAL not in shown["space"]["strategies"]:
        return f"{limit}: nothing better found"
    if not gain:
        return f"{limit}: nothing better found; at most {percent(most)} faster"
    found = measured(more["value"], shown["time_unit"])
    return f"{limit}: {found} found, {percent(gain)} faster; at most {percent(most)}"


def gain_words(shown: Mapping[str, Any]) -> str:
    """How much more throughput the plan has than hand strategies; empty if none is known."""
    others = [
        hand
        for hand in shown["hands"]
        if hand["within"] and hand["strategy"] != shown["strategy"] and hand["speedup"] is not None
    ]
    named = others[:1] + [hand for hand in others[1:] if hand["strategy"] in KNOWN]
    if not named:
        return ""
    if named[0]["speedup"] < 1:
        more = percent(1 / named[0]["speedup"] - 1)
        return f"no gain: {_described(named[0])} has {more} more throughput; raise --time-limit"
    each = (
        ", each on its own best partition found"
        if len(named) > 1
        else ", on its own best partition found"
    )
    return f"gain: {', '.join(map(_beside_hand, named))}{each}"


def _beside_hand(hand: Mapping[str, Any]) -> str:
    more = hand["speedup"] - 1
    gain = f"{percent(more)} more throughput than" if more else "as much throughput as"
    return f"{gain} {_described(hand)}"


def _described(hand: Mapping[str, Any]) -> str:
    """A hand strategy with its chunks and recompute."""
    name = str(hand["strategy"]) + (f"/{hand['chunks']}" if hand["chunks"] > 1 else "")
    plain = hand["recompute"] in ("none", "layers")
    return name if plain else f"{name} with recompute {hand['recompute']}"


def late_words(shown: Mapping[str, Any]) -> str:
    """Hand strategies that the gain does not count, as there was no time for them."""
    late = shown["late_hands"]
    if not late:
        return ""
    named, more = late[:FEW_NAMES], len(late) - FEW_NAMES
    rest = f" and {more} more" if more > 0 else ""
    return f"no time was left to compare {', '.join(named)}{rest}: raise --time-limit"


def outside_words(shown: Mapping[str, Any]) -> str:
    """A hand strategy outside of the space that is better than the plan; empty without one."""
    outside = [hand for hand in shown["hands"] if not hand["within"] and (hand["speedup"] or 1) < 1]
    if not outside:
        return ""
    hand = outside[0]
    chunks = f", {hand['chunks']} chunks per device" if hand["chunks"] > 1 else ""
    routes = ", two routes, weights held twice" if hand["routes"] > 1 else ""
    more = percent(1 / hand["speedup"] - 1)
    return (
        f"outside this space: {hand['strategy']} (placement {hand['placement']}{chunks}{routes}) "
        f"has {more} more throughput"
    )


def space_words(shown: Mapping[str, Any]) -> str:
    """What the plan searched and what it kept as given, in one line."""
    space = shown["space"]
    searched, fixed = [], ["one route" if space["routes"] == 1 else "two routes"]
    if space["partition"] == SEARCH:
        searched.append("partition")
    for name, (key, word) in _DIMENSIONS.items():
        tried = {row[key] for row in shown["rows"]}
        values = [value for value in space[name] if value in tried]
        words = f"{word} {', '.join(map(str, values))}"
        if len(values) > 1 or values == [SEARCH]:
            searched.append(words)
        elif values != [OPTIMAL]:
            fixed.append(words)
    if space["p2p_time"] is not None:
        fixed.append(f"p2p time {measured(space['p2p_time'], shown['time_unit'])}")
    kept = f"Fixed: {'; '.join(fixed)}"
    return f"Searched: {'; '.join(searched)}. {kept}" if searched else kept


def use_words(shown: Mapping[str, Any], file: str | None = None) -> list[str]:
    """How to use the best plan, a line each; nothing if there is none.

    `file`: the schedule file that was written, without `.json`; None: there is none yet.
    """
    if shown["value"] is None:
        return []
    lines = [f"to use {file}.json:"]
    if file is None:
        lines, file = ["to use it: -o best.json writes the schedule, and then"], "best"
    arguments = shown["use"]["megatron_arguments"]
    if arguments is not None:
        part = "" if shown["strategy"] in MEGATRON else " (partition only)"
        lines.append(f"  Megatron-LM{part}: " + " ".join(arguments.split("\n")).strip())
    if shown["use"]["torchtitan"] is not None:
        lines.append(f"  torchtitan: ppopt export {file}.json --to torchtitan -o parallelism.toml")
    if shown["use"]["deepspeed"] is not None:
        part = "" if shown["strategy"] == "1f1b" else " (partition only)"
        parts = [0, *accumulate(shown["partition"])]
        lines.append(f"  DeepSpeed{part}: a PipelineModule of parts {parts}; --json has its class")
    lines.append(f"  PyTorch: ppopt export {file}.json --to torch-csv -o {file}.csv")
    return lines


def beyond_words(shown: Mapping[str, Any]) -> str:
    """Where better schedules may be that the plan did not look at, and what to type."""
    space, fixed = shown["space"], []
    if shown["value"] is None or space["strategies"] != [OPTIMAL]:
        return ""
    most = max(space["chunks"])
    chunks = ",".join(map(str, (*space["chunks"], most + 1)))
    fixed.append(f"more chunks (--chunks {chunks})")
    if len(space["placement"]) < len(PLACEMENTS):
        fixed.append(f"other placements (--placement {','.join(PLACEMENTS)})")
    if space["routes"] == 1 and space["runtime"] == "any":
        fixed.append("two routes (--routes 2 --partition balanced)")
    return f"Not searched: {', '.join(fixed)}"
