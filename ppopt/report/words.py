"""Figures in words: the wording that the page and the tables share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from html import escape
from typing import Any

from ppopt.problem.link_mode import LinkMode
from ppopt.problem.operation import OpKind
from ppopt.problem.operation_classes import Resource
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.placement import SEARCH
from ppopt.schedule.idle import Cause

NONE = "–"  # noqa: RUF001  # an en dash stands for "there is none"
AT_MOST = "≤ "
"""Stands before a limit that is not proved to be the least for its value."""
OVER = " over"
"""Stands behind memory that is above a limit."""
SEARCHED = "optimal"
"""Name of the strategy of a schedule that was searched for, whether or not it is proved."""
STOPPED = "stopped early"
"""Said of a search that Ctrl-C or a request to end has ended."""
LONGEST_NAME = 80
"""Letters of a name that the page shows at most."""
FEW_DEVICES = 8
"""Values of at most this many devices are all listed."""

KIND_WORDS = {
    OpKind.F: "forward",
    OpKind.B: "backward for the input",
    OpKind.W: "backward for the weights",
    OpKind.BW: "full backward",
}
CAUSE_WORDS = {
    Cause.WARM_UP: "warm-up",
    Cause.INPUT: "waiting for an input",
    Cause.LINK: "waiting for a link",
    Cause.MEMORY: "waiting for memory",
    Cause.ORDER: "the schedule itself waits",
    Cause.COOL_DOWN: "cool-down",
}
_SPREAD = ("mean", "p95")
UNCHECKED = "(not re-checked; `ppopt verify FILE --bound` checks it)"
_STATUS_WORDS = {
    "optimal": "proved optimal",
    "infeasible": "proved infeasible",
    "unknown": "nothing found in time",
}


def number(value: float | Fraction | None) -> str:
    """Write a number without trailing zeros, with at most six decimals: 27, 0.5, 0.333333."""
    if value is None:
        return NONE
    rounded = float(value)
    if rounded.is_integer():
        return str(int(value))
    if abs(rounded) < 1e-3:
        return f"{rounded:.6g}"
    return f"{rounded:.6f}".rstrip("0").rstrip(".")


def measured(value: float | Fraction | None, unit: str | None) -> str:
    """Write a number with its unit, where that is known: `3.2 ms`."""
    return number(value) if value is None else _with(number(value), unit)


def rounded(value: float | Fraction, unit: str | None) -> str:
    """Write a number in six digits with its unit, for a glance: `4697.14 ms`."""
    value = float(value)
    return measured(round(value) if abs(value) >= 1e6 else float(f"{value:.6g}"), unit)


def _with(words: str, unit: str | None) -> str:
    return words if unit is None else f"{words} {unit}"


def headed(name: str, unit: str | None) -> str:
    """Name of a column or axis, with the unit of its figures where that is known: `time (ms)`."""
    return name if unit is None else f"{name} ({unit})"


def grouped(value: float | None) -> str:
    """Write a number that needs no fraction: `41,200`, or three digits below 100."""
    if value is None:
        return NONE
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def throughput_words(figures: Mapping[str, Any]) -> str:
    """Tokens per second, per device, and MFU, as far as known; empty where nothing is.

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


def baseline_words(figures: Mapping[str, Any]) -> str:
    """What a search gains over the best hand strategy of its placement; empty without one.

    `figures` has the keys of `ppopt solve --json`.
    """
    hand = figures.get("baseline")
    if hand is None or hand["speedup"] is None:
        return ""
    share = hand["speedup"] - 1
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
    words = f"no more throughput than {name}"
    if share:
        words = f"{percent(abs(share))} {'more' if share > 0 else 'less'} throughput than {name}"
    tokens = figures["tokens_per_second"]
    return words if tokens is None else f"{words}: {grouped(tokens)} tokens/s"


def _own_cut(figures: Mapping[str, Any]) -> str:
    """Partition and recompute of a strategy, in brackets; empty without layers."""
    words = filter(None, (partition_words(figures), recompute_words(figures)))
    return f" ({'; recompute '.join(words)})" if figures.get("partition") else ""


def other_placement_words(figures: Mapping[str, Any]) -> str:
    """A better hand strategy of another placement; empty where there is none.

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


def kept_words(pipeline: Pipeline) -> str:
    """What a search of a pipeline keeps as given, and what would choose it."""
    kept, layers = [f"routes ({pipeline.routes})"], pipeline.model is not None
    if pipeline.named_placement:
        kept.insert(0, f"chunks ({pipeline.num_chunks})")
    choices = ["`ppopt plan` chooses placement and chunks"] if layers else []
    if pipeline.placement != SEARCH:
        named = f" ({pipeline.resolved_placement})" if pipeline.named_placement else ""
        kept.insert(0, f"placement{named}")
        choices.insert(0, "`--placement search` chooses the placement")
    return "; ".join([f"Not searched: {', '.join(kept)}", *choices]) + "."


def imbalance_words(figures: Mapping[str, Any]) -> str:
    """What of the idle time is imbalance; empty where all devices work alike.

    `figures` has the keys of `ppopt solve --json`.
    """
    found = figures.get("imbalance")
    if found is None or not found["idle_share"]:
        return ""
    stages = found["stages"]
    named = f"stage {stages[0]}" if len(stages) == 1 else f"device {found['device']}"
    points = percent(found["idle_share"]).removesuffix(" %")
    words = (
        f"{points} points of the {percent(found['of_idle_share'])} idle: {named} works "
        f"{found['times_mean']:.3g} times the mean"
    )
    relief = found["relief"]
    if relief is None:
        return words
    layers = f"{relief['layers']} layer{'' if relief['layers'] == 1 else 's'}"
    less = percent(relief["idle_share"])
    return f"{words}; with {layers} moved it works {less} of the makespan less"


def percent(share: float | Fraction | None) -> str:
    """Write a share as a percentage with at most two decimals: 0.15625 is 15.63 %."""
    if share is None:
        return NONE
    if 0 < share < 0.00005:
        return "under 0.01 %"
    return f"{float(100 * share):.2f}".rstrip("0").rstrip(".") + " %"


def per_device(values: Sequence[float] | None, unit: str | None = None) -> str:
    """Values of all devices and the largest: `max 4 GiB (4 4 3 2)`, or `4 GiB each`."""
    if not values:
        return NONE
    if min(values) == max(values):
        return spread(values, unit)
    return f"max {measured(max(values), unit)} ({spread(values)})"


def spread(values: Sequence[float], unit: str | None = None) -> str:
    """Values of all devices: `4 4 3 2 GiB`, `4 GiB each`, or the first and last of many."""
    if len(values) > 1 and min(values) == max(values):
        return f"{measured(values[0], unit)} each"
    shown = [number(value) for value in values]
    if len(shown) > FEW_DEVICES:
        shown[3:-3] = [".."]
    return _with(" ".join(shown), unit)


def choice_words(figures: Mapping[str, Any]) -> str:
    """How good the partition chosen for a strategy is; empty where it was given."""
    found = figures.get("partition_search")
    if not found:
        return ""
    within = "" if figures.get("mem_limit") is None else " within the limit"
    if found["proved"] and found["lower_bound"] is None:
        return f"proved: none of {found['partitions']} keeps the limit with this strategy"
    if found["proved"]:
        return f"proved: none of {found['partitions']}{within} is better with this strategy"
    tried = f"of {found['evaluated']} evaluated"
    if found["lower_bound"] is None:
        return f"{tried}; none was found that keeps the limit"
    return (
        f"{tried}; none of all {found['partitions']}{within} is below "
        f"{number(found['lower_bound'])}, gap {percent(found['gap'])}"
    )


def partition_words(figures: Mapping[str, Any]) -> str:
    """Layers of every stage and the layout: `3 2 2 layers, Ett|tt|tL`; empty without layers."""
    counts = figures.get("partition")
    return f"{spread(counts)} layers, {figures['layout']}" if counts else ""


def recompute_words(figures: Mapping[str, Any]) -> str:
    """Layers that recompute, by stage, and which: empty where none does.

    `3 2 0 layers of the stages: block 1-3, block 5-6`: their names and places in the model, from 0.
    """
    layers = figures.get("recompute") or ()
    if not any(layers):
        return ""
    runs = [
        f"{run['name'] or 'layer'} {run['first']}"
        + (f"-{run['last']}" if run["last"] > run["first"] else "")
        for run in figures.get("recomputed_layers") or ()
    ]
    which = f": {', '.join(map(clean, runs))}" if runs else ""
    return f"{' '.join(map(str, layers))} layers of the stages{which}"


def placement_words(figures: Mapping[str, Any]) -> str:
    """The device of every stage, where a placement is a list: `0 0 1, device of every stage`."""
    hosts = figures.get("placement")
    if not isinstance(hosts, list):
        return ""
    return f"{' '.join(map(str, hosts))}, device of every stage"


def link_words(figures: Mapping[str, Any]) -> str:
    """What links are, where they are more than delays."""
    return LinkMode.read(figures.get("link_mode") or LinkMode.DELAY).words


def link_label(resource: Resource) -> str:
    """A link by its two devices, short as in the margin of a chart: `0–1`, or one way `0→1`."""  # noqa: RUF002
    return ("→" if resource.one_way else "–").join(map(str, resource.devices))  # noqa: RUF001


def link_title(resource: Resource) -> str:
    """A link by its two devices, and which way it carries."""
    one, other = resource.devices
    if resource.one_way:
        return f"link from device {one} to device {other}"
    return f"link of devices {one} and {other}, both ways"


def objective_words(figures: Mapping[str, Any]) -> str:
    """The objective without a hyphen: `makespan` (also where there is none) or `device span`."""
    return str(figures.get("objective") or "makespan").replace("-", " ")


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
    """The best row, where it is a hand strategy of a placement that no search covers.

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


def short_placement(figures: Mapping[str, Any]) -> str:
    """Placement and, above one, chunks and routes: `v/2`, `linear x2`.

    A placement given as a list is `explicit`.
    """
    placement, chunks = figures.get("placement"), figures.get("chunks")
    if placement is None:
        return NONE
    words = placement if isinstance(placement, str) else "explicit"
    if chunks and chunks > 1:
        words += f"/{chunks}"
    routes = figures.get("routes") or 1
    return f"{words} x{routes}" if routes > 1 else words


def routes_words(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """What `short_placement` marks in a table, where it marks any of its rows."""
    marked = any((row.get("routes") or 1) > 1 for row in rows)
    return ["x2: two routes, weights held twice"] if marked else []


def chosen_words(figures: Mapping[str, Any], searched: Sequence[str]) -> str:
    """What was chosen with a schedule, after a colon: `: layers 9,8, recompute 2,0`.

    `searched` names it: partition, placement or recompute; empty where nothing is named.
    """
    named = {"partition": "layers", "placement": "devices", "recompute": "recompute"}
    words = [
        f"{word} {value if isinstance(value, str) else ','.join(map(str, value))}"
        for key, word in named.items()
        if key in searched and (value := figures[key]) is not None
    ]
    return f": {', '.join(words)}" if words else ""


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
        return f"bettered by {percent(gain)}"
    if gain < 0:
        return f"this schedule is {percent(-gain)} longer"
    return "no schedule is better" if figures["status"] == "optimal" else "nothing better was found"


def operations_alone_words(figures: Mapping[str, Any]) -> str:
    """What a file of operations alone loses where links are streams; empty where it loses nothing.

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


def causes_words(figures: Mapping[str, Any]) -> str:
    """What the causes of idle time of a schedule mean; warm-up and cool-down are omitted.

    `figures` has the keys of `ppopt eval --json`.
    """
    ramps = (Cause.WARM_UP, Cause.COOL_DOWN)
    found = [one for one in Cause if one not in ramps and any(figures["idle"][one.label])]
    return "; ".join(f"{one.label}: {CAUSE_WORDS[one]}" for one in found)


def jitter_words(figures: Mapping[str, Any]) -> str:
    """The effect of random times on an order; empty where there are none.

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
        return [f"{words}; perhaps less memory does"]
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
    hold the weights twice, where that is faster still.
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
    one = next((row for row in faster if row["routes"] <= last["routes"]), None)
    lines = [] if one is None else [f"faster in another placement: {_hand_words(found, one)}"]
    if two is not None and (one is None or two["value"] < one["value"]):
        lines.append(f"faster with two routes: {_hand_words(found, two)}")
    return lines


def _hand_words(found: Mapping[str, Any], hand: Mapping[str, Any]) -> str:
    value = measured(hand["value"], found["time_unit"])
    memory = measured(hand["memory"], found["memory_unit"])
    return f"{hand['strategy']}, {short_placement(hand)}, {value} in {memory}"


def _placement(figures: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(figures[key] for key in ("placement", "chunks", "routes"))


def lowered(value: int) -> str:
    """A number in subscript digits."""
    return "".join(chr(0x2080 + int(digit)) for digit in str(value))


def clean(name: str) -> str:
    """A name without invisible letters: control characters, and marks of text direction."""
    return "".join(letter if letter.isprintable() else " " for letter in name)


def isolated(name: str) -> str:
    """A name as HTML: it cannot change the direction of other text; a very long one is cut."""
    shown = clean(name)
    if len(shown) <= LONGEST_NAME:
        return f"<bdi>{escape(shown)}</bdi>"
    return f'<bdi title="{escape(shown)}">{escape(shown[: LONGEST_NAME - 1])}…</bdi>'


def title(figures: Mapping[str, Any]) -> str:
    """Strategy that made a schedule; `optimal` only where that is proved and checked."""
    strategy = str(figures.get("strategy") or "schedule")
    proved = figures.get("status") == "optimal" and figures.get("checked", True)
    if strategy == SEARCHED and not proved and figures.get("status") != "infeasible":
        strategy = "best found"
    return f"{strategy}, predicted" if figures.get("predicted") else strategy
