"""What a search came to, in words: status, gap, gain over hand strategies and hints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ppopt.report.labels import SEARCHED, objective_words, title
from ppopt.report.layout_words import short_placement
from ppopt.report.numbers import grouped, measured, per_device, percent

STOPPED = "stopped early"
"""Said of a search that Ctrl-C or a request to end has ended."""
STEP_WORK = "unshard, gradient sync and optimizer"
UNCHECKED = "(not re-checked; `ppopt verify FILE --bound` checks it)"
_STATUS_WORDS = {
    "optimal": "proved optimal",
    "infeasible": "proved infeasible",
    "unknown": "nothing found in time",
}


def throughput_words(figures: Mapping[str, Any]) -> str:
    """Tokens per second, per device, and MFU, as far as known; empty if nothing is.

    `figures` has the keys of `ppopt solve --json`.
    """
    tokens, mfu = figures.get("tokens_per_second"), figures.get("mfu")
    parts = []
    if tokens is not None:
        each = grouped(figures["tokens_per_second_per_device"])
        parts.append(f"{grouped(tokens)} tokens/s, {each} per device")
    if mfu is not None:
        check = "; check the FLOPs and the unit of time" if mfu > 1 else ""
        parts.append(f"MFU {percent(mfu)}{check}")
    return ", ".join(parts)


def exposed_words(figures: Mapping[str, Any]) -> str:
    """How much longer a step is for its work around the microbatches; empty if it has none.

    `figures` has the keys of `ppopt solve --json`.
    """
    value = figures.get("exposed")
    if value is None:
        return ""
    words = f"{measured(value, figures.get('time_unit'))} of the {objective_words(figures)}"
    return f"{words}, for {STEP_WORK}"


def imbalance_words(figures: Mapping[str, Any]) -> str:
    """What of the idle time is imbalance; empty if all devices work alike.

    `figures` has the keys of `ppopt solve --json`.
    """
    found = figures.get("imbalance")
    if found is None or not found["idle_share"]:
        return ""
    stages = found["stages"]
    named = f"stage {stages[0]}" if len(stages) == 1 else f"device {found['device']}"
    points = percent(found["idle_share"]).removesuffix(" %")
    words = (
        f"{points} of the {percent(found['of_idle_share'])} idle time: {named} has "
        f"{found['times_mean']:.3g} times the mean work"
    )
    relief = found["relief"]
    if relief is None:
        return words
    less = percent(relief["idle_share"])
    return f"{words}; a partition that balances the devices takes {less} of the makespan off it"


def status_words(figures: Mapping[str, Any]) -> str:
    """What a search claims; empty for a hand strategy, which claims nothing.

    `figures` has the keys of `ppopt solve --json`, `ppopt eval --json` or `summary`, and perhaps
    `stopped_early`. An unchecked claim of a file is marked as such.
    """
    status = figures.get("status")
    if status is None or (status == "feasible" and figures.get("lower_bound") is None):
        return ""
    words = _STATUS_WORDS.get(status, str(status))
    if status == "feasible":
        words = f"not proved optimal, gap {percent(figures.get('gap'))}"
    if figures.get("stopped_early"):
        words = f"{words}, {STOPPED}"
    return words if figures.get("checked", True) else f"the file says: {words} {UNCHECKED}"


def searched_words(figures: Mapping[str, Any], rows: Iterable[Mapping[str, Any]] = ()) -> str:
    """What a search of one placement came to: `best found, v/2: proved optimal`.

    `figures` has the keys of `ppopt solve --json`. `rows` are schedules it is compared with: where
    one of them has other routes, those of the search are named.
    """
    where = f"best found, {short_placement(figures)}"
    if any(row["routes"] > figures["routes"] == 1 for row in rows):
        where += ", one route"
    if figures["value"] is None:
        return f"{where}: {status_words(figures)}; {figures['proof']}"
    return f"{where}: {status_words(figures)}"


def best_words(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The best row, if it is a hand strategy of a placement that no search covers.

    `rows` are those of `ppopt compare --json`, the best first.
    """
    best = next((row for row in rows if row["fits_limit"]), None)
    if best is None or best["ratio_to_optimum"] is not None or best["strategy"] == SEARCHED:
        return []
    searched = [row for row in rows if row["strategy"] == SEARCHED]
    if not searched or short_placement(best) in map(short_placement, searched):
        return []
    where, value = short_placement(best), measured(best["value"], best["time_unit"])
    return [f"best of all: {title(best)}, {where}, {value}; this placement is not searched"]


def hint_words(figures: Mapping[str, Any]) -> str:
    """The gain over the schedule that a search started from; empty without one.

    `figures` has the keys of `ppopt solve --json`.
    """
    hint = figures.get("hint")
    if not isinstance(hint, Mapping):
        return ""
    memory = per_device(hint["peak_memory"], figures.get("memory_unit"))
    over = "" if hint["fits_limit"] else f", but with memory {memory}"
    value = measured(hint["value"], figures.get("time_unit"))
    parts = [value + over, _gain_words(hint["gain"], figures), *hint["notes"]]
    return "; ".join(part for part in parts if part)


def _gain_words(gain: float | None, figures: Mapping[str, Any]) -> str:
    if gain is None:
        return ""
    if gain > 0:
        return f"improved by {percent(gain)}"
    if gain < 0:
        return f"this schedule is {percent(-gain)} longer"
    return "no schedule is better" if figures["status"] == "optimal" else "nothing better was found"


def operations_alone_words(figures: Mapping[str, Any]) -> str:
    """What a file of operations alone loses where links are streams; empty if it loses nothing.

    `figures` has the keys of `ppopt eval --json`.
    """
    found = figures.get("operations_alone")
    if found is None or not found["loss"]:
        return ""
    unit = figures.get("time_unit")
    times = f"{measured(found['lowered'], unit)} and not {measured(found['own'], unit)}"
    return (
        f"operations alone (torch-csv) take {percent(found['loss'])} longer over streams, {times}; "
        "export --to torch-comms"
    )
