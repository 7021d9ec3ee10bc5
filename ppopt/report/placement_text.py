"""Where a model is put, in words: placement, chunks, routes, partition, recompute."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from ppopt.formats.figures import LayerRun, ScheduleFigures
from ppopt.problem.decisions import Decisions
from ppopt.problem.microbatches import GIVEN_ORDER
from ppopt.problem.partition import RULES
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.traits import Trait
from ppopt.report.labels import clean, joined
from ppopt.report.numbers import NONE, number, percent, spread
from ppopt.report.schedule_report import ScheduleReport

if TYPE_CHECKING:
    from ppopt.studies.best_choice import StrategyChoice

MAX_LISTED = 16
"""A placement without a name is written out up to this many stages."""
_PLANNED = ("placement", "partition", "recompute", "chunks")
"""Decisions about a model in layers that `ppopt plan` makes."""


def describe_unsearched(pipeline: Pipeline, searched: Sequence[str] = ()) -> str:
    """Which decisions a search of the order leaves as given, and the command that searches them.

    Empty if it leaves none, or if nothing searches them. `searched`: further decisions that were
    searched.
    """
    names, planned = list(_fixed_of_layers(pipeline)), pipeline.model is not None
    if "placement" not in (*pipeline.open_decisions.names, *searched):
        names.insert(0, "placement")
    if planned and pipeline.named_placement:
        names.append("chunks")
    if pipeline.order == GIVEN_ORDER and Trait.MICROBATCHES in pipeline.traits:
        names.append("order")
    commands = ["`ppopt plan`"] if planned else []
    commands += [f"`--{name} search`" for name in names if not planned or name not in _PLANNED]
    if not names:
        return ""
    verb = "chooses" if len(commands) == 1 else "choose"
    what = ("it", "them", "them all")[min(len(names), 3) - 1]
    return f"not searched: {', '.join(names)}; {' and '.join(commands)} {verb} {what}"


def unsearched_of_layers(pipeline: Pipeline) -> str:
    """What a comparison of strategies does not search of a model in layers; empty if nothing."""
    fixed = _fixed_of_layers(pipeline)
    return _unsearched(fixed) if fixed else ""


def describe_first_tries(pipeline: Pipeline) -> str:
    """How a comparison searches the open decisions for each strategy; empty if none is open."""
    names = (pipeline.open_decisions & Decisions.OF_STRATEGY).names
    if not names:
        return ""
    verb = "is a first try" if len(names) == 1 else "are first tries"
    flags = " ".join(f"--{name} search" for name in names)
    return (
        f"{' and '.join(names)} of a strategy {verb}, from a short search; "
        f"`ppopt eval STRATEGY {flags}` searches longer"
    )


def _fixed_of_layers(pipeline: Pipeline) -> dict[str, object]:
    """Decisions about a model in layers that are as given: their values, None if they are long.

    A partition is listed if there are several. Recompute and offload save memory at the cost of
    time: they are listed if there is a limit, and layers that can recompute or offload.
    """
    model, fixed = pipeline.model, dict[str, object]()
    if model is None:
        return fixed
    if len(model) > pipeline.num_stages:
        fixed["partition"] = pipeline.partition if pipeline.partition in RULES else None
    saving = {"recompute": "saved", "offload": "offload_time"}
    for name, able in saving.items() if pipeline.limits is not None else ():
        if any(getattr(layer, able) for layer in model.layers):
            chosen = any(getattr(layer, name) for layer in model.layers)
            fixed[name] = None if chosen else "none"
    searched = pipeline.open_decisions.fields
    return {name: value for name, value in fixed.items() if name not in searched}


def _unsearched(searchable: Mapping[str, object]) -> str:
    """A sentence that names decisions, each with its value if that is short, and the flags."""
    named = [
        f"{name} ({value})" if isinstance(value, str) else name
        for name, value in searchable.items()
    ]
    flags = joined([f"`--{name} search`" for name in searchable])
    chooses = "chooses it" if len(searchable) == 1 else "choose them"
    return f"not searched: {', '.join(named)}; {flags} {chooses}"


def describe_partition_search(choice: StrategyChoice | None, *, limited: bool) -> str:
    """How good the partition chosen for a strategy is; empty if it was given.

    `limited`: whether there is a memory limit.
    """
    if choice is None:
        return ""
    within = " within the limit" if limited else ""
    if choice.proved and choice.lower_bound is None:
        return f"proved: none of {choice.partitions} fits the limit with this strategy"
    if choice.proved:
        return f"proved: none of {choice.partitions}{within} is better with this strategy"
    tried = f"of {choice.evaluations} evaluated"
    if choice.lower_bound is None:
        return f"{tried}; none was found that fits the limit"
    return (
        f"{tried}; none of all {choice.partitions}{within} is below "
        f"{number(choice.lower_bound)}, gap {percent(choice.gap)}"
    )


def describe_partition(partition: Sequence[int] | None, layout: str | None) -> str:
    """Layers of every stage and the layout: `3 2 2 layers, Ett|tt|tL`; empty without layers."""
    return f"{spread(partition)} layers, {layout}" if partition else ""


def describe_layers(counts: Sequence[int] | None, runs: Sequence[LayerRun] | None) -> str:
    """Layers that recompute or offload, by stage, and which: empty if none does.

    `3 2 0 layers of the stages: block 1-3, block 5-6`: their names and places in the model, from 0.
    """
    if not any(counts or ()):
        return ""
    texts = [
        f"{run.name or 'layer'} {run.first}"
        + (f"-{run.last}" if run.last > run.first else "")
        + (f" ({' '.join(run.modules)})" if run.modules else "")
        for run in runs or ()
    ]
    names = f": {', '.join(map(clean, texts))}" if texts else ""
    return f"{' '.join(map(str, counts or ()))} layers of the stages{names}"


def recompute_word(pipeline: Pipeline) -> str:
    """How many layers recompute: `none`, `some`, `full` (all that can) or `modules`."""
    if pipeline.model is None or not any(pipeline.recomputed):
        return "none"
    chosen = {layer.recompute for layer in pipeline.model.layers if layer.recompute}
    if True not in chosen:
        return "modules"
    able = sum(layer.recomputable for layer in pipeline.model.layers)
    return "full" if sum(pipeline.recomputed) == able and chosen == {True} else "some"


def describe_placement(placement: str | Sequence[int] | None) -> str:
    """The device of every stage, where a placement is a list: `0 0 1, device of every stage`."""
    if placement is None or isinstance(placement, str):
        return ""
    return f"{' '.join(map(str, placement))}, device of every stage"


def listed_placement(hosts: Sequence[int]) -> str:
    """A placement that has no name: the device of every stage, if that is not too long."""
    if len(hosts) > MAX_LISTED:
        return "explicit placement"
    return f"placement {','.join(map(str, hosts))}"


def short_placement(
    placement: str | Sequence[int] | None, chunks: int | None = None, routes: int | None = None
) -> str:
    """Placement and, above one, chunks and routes: `v/2`, `linear x2`.

    A placement given as a list is `explicit`.
    """
    if placement is None:
        return NONE
    text = placement if isinstance(placement, str) else "explicit"
    if chunks and chunks > 1:
        text += f"/{chunks}"
    return f"{text} x{routes}" if routes and routes > 1 else text


def placement_of(report: ScheduleReport) -> str:
    """The short placement of a report."""
    return short_placement(report.placement, report.chunks, report.routes)


def describe_placing(pipeline: Pipeline) -> str:
    """Placement, chunks and routes: `placement v, 2 chunks per device`."""
    text = f"placement {pipeline.resolved_placement}"
    if pipeline.num_chunks > 1:
        text += f", {pipeline.num_chunks} chunks per device"
    return text if pipeline.routes == 1 else f"{text}, two routes, weights allocated twice"


def explain_routes(reports: Iterable[ScheduleReport]) -> list[str]:
    """What `short_placement` marks in a table, where it marks any of its rows."""
    marked = any((report.routes or 1) > 1 for report in reports)
    return ["x2: two routes; the weights are allocated twice"] if marked else []


def _modules(runs: Sequence[LayerRun] | None, partition: Sequence[int] | None) -> str:
    """The modules of layers that recompute or offload only these, in brackets; empty: no such.

    Several, or some and whole layers, have their number in every stage: `(whole 0,2, mlp 3,1)`.
    """
    ends = list(accumulate(partition or (), initial=0))
    by_name: dict[str, list[int]] = {}
    for run in runs or ():
        for name in ("whole",) if run.modules is None else run.modules:
            counts = by_name.setdefault(name, [0] * (len(ends) - 1))
            for index in range(run.first, run.last + 1):
                counts[bisect_right(ends, index) - 1] += 1
    if not by_name.keys() - {"whole"}:
        return ""
    if len(by_name) == 1:
        return f" ({clean(*by_name)})"
    parts = (f"{clean(name)} {','.join(map(str, own))}" for name, own in by_name.items())
    return f" ({', '.join(parts)})"


def describe_choices(figures: ScheduleFigures, searched: Sequence[str]) -> str:
    """What was chosen with a schedule, after a colon: `: layers 9,8, recompute 2,0 (mlp)`.

    `searched` names it: partition, placement, recompute or offload; empty if nothing is named.
    """
    named = {
        "partition": ("layers", figures.partition, ()),
        "placement": ("devices", figures.placement, ()),
        "recompute": ("recompute", figures.recompute, figures.recomputed_layers),
        "offload": ("offload", figures.offload, figures.offloaded_layers),
    }
    parts = [
        f"{word} {value if isinstance(value, str) else ','.join(map(str, value))}"
        f"{_modules(runs, figures.partition)}"
        for key, (word, value, runs) in named.items()
        if key in searched and value is not None
    ]
    return f": {', '.join(parts)}" if parts else ""
