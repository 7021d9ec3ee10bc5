"""Where a model is put, in words: placement, chunks, routes, partition, recompute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ppopt.problem.pipeline import Pipeline
from ppopt.problem.placement import SEARCH
from ppopt.report.labels import clean
from ppopt.report.numbers import NONE, number, percent, spread


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


def choice_words(figures: Mapping[str, Any]) -> str:
    """How good the partition chosen for a strategy is; empty if it was given."""
    found = figures.get("partition_search")
    if not found:
        return ""
    within = "" if figures.get("mem_limit") is None else " within the limit"
    if found["proved"] and found["lower_bound"] is None:
        return f"proved: none of {found['partitions']} fits the limit with this strategy"
    if found["proved"]:
        return f"proved: none of {found['partitions']}{within} is better with this strategy"
    tried = f"of {found['evaluated']} evaluated"
    if found["lower_bound"] is None:
        return f"{tried}; none was found that fits the limit"
    return (
        f"{tried}; none of all {found['partitions']}{within} is below "
        f"{number(found['lower_bound'])}, gap {percent(found['gap'])}"
    )


def partition_words(figures: Mapping[str, Any]) -> str:
    """Layers of every stage and the layout: `3 2 2 layers, Ett|tt|tL`; empty without layers."""
    counts = figures.get("partition")
    return f"{spread(counts)} layers, {figures['layout']}" if counts else ""


def recompute_words(figures: Mapping[str, Any]) -> str:
    """Layers that recompute, by stage, and which: empty if none does.

    `3 2 0 layers of the stages: block 1-3, block 5-6`: their names and places in the model, from 0.
    """
    return _layers_that(figures, "recompute", "recomputed_layers")


def offload_words(figures: Mapping[str, Any]) -> str:
    """The same of layers that offload."""
    return _layers_that(figures, "offload", "offloaded_layers")


def _layers_that(figures: Mapping[str, Any], counts: str, which: str) -> str:
    layers = figures.get(counts) or ()
    if not any(layers):
        return ""
    runs = [
        f"{run['name'] or 'layer'} {run['first']}"
        + (f"-{run['last']}" if run["last"] > run["first"] else "")
        for run in figures.get(which) or ()
    ]
    names = f": {', '.join(map(clean, runs))}" if runs else ""
    return f"{' '.join(map(str, layers))} layers of the stages{names}"


def placement_words(figures: Mapping[str, Any]) -> str:
    """The device of every stage, where a placement is a list: `0 0 1, device of every stage`."""
    hosts = figures.get("placement")
    if not isinstance(hosts, list):
        return ""
    return f"{' '.join(map(str, hosts))}, device of every stage"


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

    `searched` names it: partition, placement, recompute or offload; empty if nothing is named.
    """
    named = {"partition": "layers", "placement": "devices"}
    named |= {name: name for name in ("recompute", "offload")}
    words = [
        f"{word} {value if isinstance(value, str) else ','.join(map(str, value))}"
        for key, word in named.items()
        if key in searched and (value := figures[key]) is not None
    ]
    return f": {', '.join(words)}" if words else ""
