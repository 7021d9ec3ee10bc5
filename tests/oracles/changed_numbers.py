"""Changes of single numbers of a schedule file, and what a reader and the verifier may accept.

A changed file is refused, or it is read as it is written. Then every number has its value in the
user's units, every operation that runs alone takes its time in the file, and the order of the
microbatches assigns the factors of the user's list.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from ppopt.errors import InputError
from ppopt.formats.schedule_json import schedule_from_object, schedule_to_object
from ppopt.problem.cost_table import LAYER_COSTS, STAGE_COSTS
from ppopt.problem.units import Unit
from ppopt.verifier import verify

Document = dict[str, Any]
Place = tuple[Any, ...]
"""Keys and indices that lead to a number."""
_PER_UNIT = {Unit.TIME: "ticks_per_unit", Unit.MEMORY: "memory_ticks_per_unit"}
_OF_STAGES = {cost.name: cost.unit for cost in STAGE_COSTS} | {
    "p2p_time": Unit.TIME,
    "backward_p2p_time": Unit.TIME,
    "mem_limit": Unit.MEMORY,
}
_FRACTIONS = (
    *("device_speed", "slice_times", "microbatch_times", "microbatch_memory"),
    *("listed_microbatch_times", "listed_microbatch_memory"),
)
_TIMES = {
    "F": ("forward_times",),
    "B": ("input_times", "recompute_time"),
    "W": ("weight_times",),
    "BW": ("backward_times", "recompute_time"),
    "UNSHARD": ("unshard",),
    "GRADIENT_SYNC": ("gradient_sync",),
    "OFFLOAD": ("offload_time",),
    "RELOAD": ("offload_time",),
}
"""Keys of the times that add up to that of an operation."""


def places(value: Any, before: Place = ()) -> Iterator[Place]:
    """Every number of a document."""
    if isinstance(value, dict | list):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(entry, (*before, key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield before


def numbers_for(document: Document, place: Place) -> list[int | float]:
    """Other numbers for a place: near ones, a multiple, a part, none, and that of a neighbour."""
    *outer, last = place
    around: Any = document
    for key in outer:
        around = around[key]
    number = around[last]
    half = number // 2 if isinstance(number, int) else number / 2
    numbers = [number + 1, number - 1, 2 * number, 3 * number, half, 0, -number]
    if isinstance(around, list):
        neighbour = around[last - 1]
        numbers += [neighbour] if type(neighbour) is type(number) else []
    return [changed_to for changed_to in dict.fromkeys(numbers) if changed_to != number]


def changed(value: Any, place: Place, number: object) -> Any:
    """A copy of a document with another number at a place."""
    if not place:
        return number
    copy = value.copy()
    copy[place[0]] = changed(value[place[0]], place[1:], number)
    return copy


def differences(document: Document) -> list[str] | None:
    """How a document differs from what is read; None if the reader or the verifier refuses it."""
    try:
        schedule, claims = schedule_from_object(document)
    except InputError:
        return None
    if verify(schedule, claims):
        return None
    written = json.loads(json.dumps(schedule_to_object(schedule) | {"claims": claims}))
    stated, read = _in_units(document), _in_units(written)
    return [
        *(f"{key}: {stated[key]}, read as {read[key]}" for key in read if stated[key] != read[key]),
        *_wrong_layers(document.get("origin", {}).get("model"), schedule.pipeline.model),
        *_wrong_times(document),
        *_wrong_order(document["pipeline"]),
    ]


def _in_units(document: Document) -> Document:
    """A document with numbers in the user's units, its operations counted."""
    time, memory = (document[_PER_UNIT[unit]] for unit in Unit)
    pipeline, claims = document["pipeline"], document.get("claims", {})
    origin = dict(document.get("origin", {}))
    model = origin.pop("model", {})
    scales = {"makespan": time, "device_span": time, "busy": time, "peak_memory": memory}
    return {
        "pipeline": {
            key: _costs(document, key, value)
            for key, value in pipeline.items()
            if key != "device_speed"
            or any(numerator != denominator for numerator, denominator in value)
        },
        "claims": {key: _divided(value, scales.get(key, 1)) for key, value in claims.items()},
        "origin": origin,
        "model": {
            key: _reduced(value) if key == "link" else value
            for key, value in model.items()
            if key not in ("layers", *_PER_UNIT.values())
        },
        "ops": Counter(
            (*row[:4], Fraction(row[4], time), Fraction(row[5], time), *row[6:])
            for row in document["ops"]
        ),
    }


def _costs(document: Document, key: str, value: Any) -> Any:
    if key in _FRACTIONS:
        return [Fraction(*pair) for pair in value]
    return _divided(value, document[_PER_UNIT[_OF_STAGES[key]]]) if key in _OF_STAGES else value


def _divided(value: Any, ticks: int) -> Any:
    if isinstance(value, list):
        return [_divided(entry, ticks) for entry in value]
    return Fraction(value) / ticks if isinstance(value, int | float) else value


def _reduced(link: Any) -> Any:
    """A link with its fractions in lowest terms."""
    if isinstance(link, dict):
        return {key: _reduced(value) for key, value in link.items()}
    return Fraction(*link) if link else link


def _wrong_layers(stated: Any, model: Any) -> Iterator[str]:
    """Say which costs of layers are not read with their values in the user's units."""
    layers = (
        [layer for layer in stated["layers"] for _ in range(layer.get("count", 1))]
        if stated
        else []
    )
    for layer, read in zip(layers, model.layers if model else (), strict=True):
        for cost in LAYER_COSTS:
            ticks, unit = layer.get(cost.layer_name), _PER_UNIT[cost.unit]
            if ticks is not None and Fraction(ticks, stated[unit]) != getattr(read, cost.field):
                yield f"{cost.layer_name}: {ticks} ticks, read as {getattr(read, cost.field)}"


def _wrong_times(document: Document) -> Iterator[str]:
    """Say which operations do not take their times in the file; pairs are not looked at."""
    for row in document["ops"]:
        time = None if len(row) > 8 and row[8] is not None else _time(document["pipeline"], row)
        if time not in (None, row[5] - row[4]):
            yield f"{row} does not take {time} ticks"


def _time(pipeline: Document, row: list[Any]) -> Fraction:
    """Time of an operation that runs alone, in the ticks of the file."""
    kind, stage, microbatch, device = row[:4]
    if kind in ("SEND_F", "SEND_B"):
        return Fraction(_delay(pipeline, kind, stage, device, row[9]))
    speed = _fraction(pipeline, "device_speed", device)
    if kind == "OPTIMIZER":
        stages = [stage for stage, host in enumerate(pipeline["placement"]) if host == device]
        return sum(pipeline["optimizer"][stage] for stage in stages) / speed
    ticks = Fraction(sum(pipeline[key][stage] for key in _TIMES[kind] if key in pipeline))
    if kind in ("UNSHARD", "GRADIENT_SYNC"):
        return ticks
    if kind in ("OFFLOAD", "RELOAD"):
        return ticks * _fraction(pipeline, "microbatch_memory", microbatch)
    ticks *= _fraction(pipeline, "microbatch_times", microbatch)
    return ticks * _fraction(pipeline, "slice_times", row[7] if len(row) > 7 else 0) / speed


def _fraction(pipeline: Document, key: str, index: int) -> Fraction:
    return Fraction(*pipeline[key][index]) if key in pipeline else Fraction(1)


def _delay(pipeline: Document, kind: str, stage: int, source: int, target: int) -> int:
    delay = pipeline["p2p_time"]
    if kind == "SEND_B":
        delay, stage = pipeline.get("backward_p2p_time", delay), stage - 1
    if isinstance(delay, list):
        delay = delay[source][target] if isinstance(delay[0], list) else delay[stage]
    return int(delay)


def _wrong_order(pipeline: Document) -> Iterator[str]:
    """Say which microbatches do not have the factors of the user's list."""
    for key in ("microbatch_times", "microbatch_memory"):
        if isinstance(pipeline.get("order"), list) and key in pipeline:
            listed = pipeline[f"listed_{key}"]
            ordered = [Fraction(*listed[position]) for position in pipeline["order"]]
            if ordered != [Fraction(*pair) for pair in pipeline[key]]:
                yield f"{key} are not those of the list in the order {pipeline['order']}"
