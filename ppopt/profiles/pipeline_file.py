"""Write a measured pipeline as a config file, with its provenance."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from ppopt.formats.files import write
from ppopt.problem.cost_table import STAGE_COSTS, TimeFields, costs_in
from ppopt.problem.layer_settings import DECODER, LAYER_SETTINGS
from ppopt.problem.layout import write_roles
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.profiles.estimate import P2PTime, Profile, StageMemory
from ppopt.profiles.layers_of_stages import LayersOfStage, on_devices, parts
from ppopt.profiles.stage_times import StageTimes

MILLISECOND = 10**6
MEBIBYTE = 2**20
_MAX_LISTED = 5


def write_pipeline(profile: Profile, path: str | Path, *, description: str, source: str) -> None:
    """Write a pipeline file for `ppopt solve --config`, in milliseconds and MiB.

    `description` says what was measured and `source` where; both go into the file with today's
    date. Raises InputError if the file cannot be written.
    """
    write(Path(path), dumps(profile, description=description, source=source))


def dumps(
    profile: Profile,
    *,
    description: str,
    source: str,
    memory: Pipeline | None = None,
    comments: Sequence[str] = (),
) -> str:
    """Write a profile as YAML for `--config`, in milliseconds and MiB.

    Comments say what was measured and what was not. The memory of the pipeline `memory` is used
    if the profile has none. `comments` are further lines on the run.
    """
    own_unit = None if memory is None else memory.memory_unit
    unit = "MiB" if profile.memory else own_unit
    facts = [f"stages: {len(profile.hosts)}", *_batches_and_placement(profile)]
    costs = profile.costs(MILLISECOND)
    times = [cost for cost in STAGE_COSTS if cost.field in costs]
    lines = [f"{cost.name}: {_listed(costs[cost.field])}" for cost in times]
    lines.append(f"p2p_time: {_number(costs['p2p'])}")
    if profile.memory:
        stages = [profile.memory[stage] for stage in range(len(profile.hosts))]
        sizes: dict[str, list[int | None]] = {
            "activation": [stage.activation for stage in stages],
            "memory_b": [stage.memory_b for stage in stages],
            "static": [stage.static(profile.batches) for stage in stages],
        }
        lines += [
            f"{key}: {_listed(Fraction(size, MEBIBYTE) for size in column if size is not None)}"
            for key, column in sizes.items()
            if None not in column
        ]
    elif memory is not None:
        lines.append("# Memory is that of the schedule that ran, not measured.")
        memory_costs = memory.costs
        amounts = [cost for cost in STAGE_COSTS if cost.field in memory_costs.memory_fields]
        lines += [f"{cost.name}: {_listed(memory_costs[cost.field])}" for cost in amounts]
    head = _head(description, source, unit)
    return _document(head, facts, [*notes(profile), *comments], lines)


class MeasuredLayer(NamedTuple):
    """A layer as a profile of layers names it."""

    name: str
    output: int
    """Bytes of its output for one microbatch."""
    role: str = DECODER


def dumps_layers(
    profile: Profile,
    layers: Sequence[MeasuredLayer],
    devices: int,
    *,
    description: str,
    source: str,
) -> str:
    """Write a profile whose stages are the layers of a model, for so many devices, as YAML.

    The output of a layer counts as part of its activation: inside a stage it is kept for the
    backward of the next layer, also if the layer recomputes. The memory of receives is left out,
    because layers do not determine where stages end.
    """
    costs = profile.costs(MILLISECOND)
    facts = [
        f"stages: {devices}",
        f"batches: {profile.batches}",
        *([] if OpKind.B in {kind for kind, _ in profile.times} else ["backward_kind: whole"]),
    ]
    lines = [f"p2p_time: {_number(costs['p2p'])}", "layers:"]
    for index, layer in enumerate(layers):
        lines.append(_layer(index, layer, costs, profile.memory.get(index)))
    head = _head(description, source, "MiB")
    return _document(head, facts, [*_notes_on_times(profile), *_LAYER_NOTES], lines)


def dumps_layers_of_stages(
    profile: Profile,
    layers: Sequence[LayersOfStage],
    *,
    description: str,
    source: str,
    comments: Sequence[str] = (),
) -> str:
    """Write a profile of stages as YAML in layers, with the partition that ran.

    `layers` are those of every stage; the file has no memory.
    """
    costs = profile.costs(MILLISECOND)
    p2p = costs.pop("p2p")
    facts = [
        f"stages: {1 + max(profile.hosts)}",
        *_batches_and_placement(profile),
        _partition(layers),
    ]
    lines = [f"p2p_time: {_number(p2p)}", *_layers_of(layers, costs)]
    comments = [*notes(profile), *comments, *_DERIVED_NOTES]
    return _document(_head(description, source), facts, comments, lines)


def _partition(layers: Sequence[LayersOfStage]) -> str:
    return f"partition: {json.dumps(write_roles([stage.roles for stage in layers]))}"


def _layers_of(
    layers: Sequence[LayersOfStage], costs: Mapping[str, Sequence[Fraction]]
) -> Iterator[str]:
    """Lines of the layers, derived from the costs of the stages, or devices, that have them."""
    names = {setting.field: setting.name for setting in LAYER_SETTINGS}
    yield "layers:"
    for group in parts(layers, costs):
        about = {"name": group.role, "role": group.role, "count": group.layers}
        yield _layer_line(about, {names[field]: cost for field, cost in group.costs.items()})


def _layer_line(about: dict[str, object], amounts: Mapping[str, Fraction]) -> str:
    entries = about | {name: _number(amount) for name, amount in amounts.items()}
    return f"  - {{{', '.join(f'{key}: {entry}' for key, entry in entries.items())}}}"


_DERIVED_NOTES = (
    "Derived: a decoder layer is the mean over stages of decoder layers alone, or over those",
    "without a head; embedding and head are the rest of their stages. No memory is known.",
)


_LAYER_NOTES = (
    "PyTorch runs the whole backward of the first stage in W, and nothing in B: the times of",
    "the first layer are so, those of the next ones are not until they are in that stage.",
    "Measured: times; activation, with the output of the layer; memory_b; static: weights and",
    "gradients, no optimizer. The loss belongs to the last layer: its time to F, its gradient to B",
    "and BW, what it keeps to activation.",
    "Derived: output, and kept (what F keeps with recompute): the size of the output;",
    "of the last layer also what the loss keeps.",
    "Assumed: recompute makes B and BW longer by F. Not in the file: workspace.",
)


def _layer(
    index: int, layer: MeasuredLayer, costs: Mapping[str, Any], memory: StageMemory | None
) -> str:
    """The line of one layer."""
    amounts = {cost.layer_name: costs[cost.field][index] for cost in costs_in(TimeFields)}
    output = Fraction(layer.output, MEBIBYTE)
    amounts["output"] = output
    if memory is not None:
        amounts["activation"] = Fraction(memory.activation, MEBIBYTE) + output
        amounts["memory_b"] = Fraction(memory.memory_b or 0, MEBIBYTE)
        amounts["static"] = Fraction(memory.fixed, MEBIBYTE)
        amounts["kept"] = output + Fraction(memory.loss, MEBIBYTE)
    role = {} if layer.role == DECODER else {"role": layer.role}
    return _layer_line({"name": json.dumps(layer.name), **role}, amounts)


def notes(profile: Profile) -> list[str]:
    """Describe the estimates of stages, one line each: counts, derived times, outliers, memory."""
    lines = _notes_on_times(profile)
    if profile.memory:
        lines.append(
            "Memory of storages. static: weights, gradients, buffers for receives, and what stays "
            f"until the step of {profile.batches} microbatches ends; no optimizer."
        )
        if any(stage.memory_b is None for stage in profile.memory.values()):
            lines.append("No backward was split on every stage: memory_b is unmeasured.")
    return lines


def _notes_on_times(profile: Profile) -> list[str]:
    counts = [times.runs for times in profile.times.values()]
    min_runs, max_runs = min(counts), max(counts)
    each = str(max_runs) if min_runs == max_runs else f"{min_runs} to {max_runs}"
    lines = [f"Medians of {each} operations each, steps: {profile.steps}."]
    kinds = {kind for kind, _ in profile.times}
    if OpKind.B not in kinds:
        lines.append("No backward was split: W and B are half of BW each, unmeasured.")
    if OpKind.BW not in kinds:
        lines.append("Every backward was split: BW is B and W together, unmeasured.")
    if profile.around:
        lines.append("Around the microbatches: medians.")
    if profile.p2p is None:
        lines.append(
            "No operation waited for another device alone: p2p is unmeasured, 0 is written."
        )
    elif profile.p2p.above_noise:
        lines.append(f"p2p is the median of {_delays(profile.p2p)}.")
    lines += warnings(profile)
    outliers = profile.outliers
    if outliers:
        outlier_texts = ", ".join(
            f"{record.op} {(record.end - record.start) / MILLISECOND:.3f} ms"
            for record in outliers[:_MAX_LISTED]
        )
        suffix = ", ..." if len(outliers) > _MAX_LISTED else ""
        lines.append(
            f"{len(outliers)} outliers (they do not move a median): {outlier_texts}{suffix}"
        )
    return lines


def warnings(profile: Profile) -> list[str]:
    """List the values that are written other than measured, one line each."""
    lines = []
    if profile.p2p is not None and not profile.p2p.above_noise:
        lines.append(
            f"p2p was measured at {_ms(profile.p2p.median)}, not above its noise "
            f"({_delays(profile.p2p)}): 0 is written."
        )
    return lines


def _delays(p2p: P2PTime) -> str:
    return f"{p2p.delays} delays, standard error {_ms(p2p.error)}"


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / MILLISECOND:.3f} ms"


def _listed(values: Iterable[Fraction]) -> str:
    return f"[{', '.join(map(_number, values))}]"


def _number(value: Fraction) -> str:
    """Format with at most six decimals, without trailing zeros."""
    return f"{float(value):.6f}".rstrip("0").rstrip(".")


def dumps_timers(
    stages: StageTimes,
    batches: int,
    layers: Sequence[LayersOfStage] | None = None,
    *,
    description: str,
) -> str:
    """Write the times of timers: F and BW per device, or per layer.

    `layers` are those of every stage that ran; stage s is on device s modulo the devices.
    """
    comments = [f"Medians of {stages.reports} reports; the split of the backward is unmeasured."]
    if stages.unknown is not None:
        comments.append(
            f"Times of single stages, and so their imbalance, are unmeasured: {stages.unknown}"
        )
    comments += stages.comments
    if stages.outliers:
        comments.append(f"{stages.outliers} values lay 20 % or more above their median.")
    devices = len(stages.forward)
    facts = [f"stages: {devices}", f"batches: {batches}"]
    p2p_note = "# p2p_time is unmeasured: the timers of transfers hold the waiting too."
    if layers is None:
        lines = [
            f"forward_times: {_listed(stages.forward)}",
            f"backward_times: {_listed(stages.backward)}",
            p2p_note,
        ]
    else:
        costs = {"forward": stages.forward, "backward": stages.backward}
        facts += [f"chunks: {len(layers) // devices}"] if len(layers) > devices else []
        facts.append(_partition(layers))
        comments += _DERIVED_NOTES
        lines = [p2p_note, *_layers_of(on_devices(layers, devices), costs)]
    return _document(_head(description, stages.source), facts, comments, lines)


def _document(
    head: Iterable[str], facts: Iterable[str], comments: Iterable[str], lines: Iterable[str]
) -> str:
    """The text of a file, in sections; `comments` begin the last one."""
    return "\n".join([*head, "", *facts, "", *(f"# {line}" for line in comments), *lines, ""])


def _batches_and_placement(profile: Profile) -> list[str]:
    linear = profile.hosts == tuple(range(max(profile.hosts) + 1))
    placement = [] if linear else [f"placement: {list(profile.hosts)}"]
    return [f"batches: {profile.batches}", *placement]


def _head(description: str, source: str, memory_unit: str | None = None) -> list[str]:
    return [
        f"description: {json.dumps(description)}",
        f"source: {json.dumps(source)}",
        f"date: {date.today().isoformat()}",
        "time_unit: ms",
        *([f"memory_unit: {memory_unit}"] if memory_unit else []),
    ]
