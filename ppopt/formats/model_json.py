"""The model in layers of a schedule: the member `model` of the `origin` of its file.

The pipeline of a file has the costs of every stage, with or without layers; readers need no more.
This member has their source: the layers (equal neighbours joined, their costs in ticks of their
own), the layers of every stage (`counts`), and the partition, placement and chunks as the user gave
them. It restores the pipeline, equal in every field.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any

from ppopt.errors import InputError
from ppopt.formats.fields import abbreviated, section, text, whole, wholes, within
from ppopt.problem import exact, placement
from ppopt.problem.backward_memory import RecomputeUnit
from ppopt.problem.cost_table import LAYER_COSTS
from ppopt.problem.costs import MAX_TICKS
from ppopt.problem.first_backward import FirstBackward
from ppopt.problem.layer import MAX_LAYERS, Layer, runs_of
from ppopt.problem.layer_settings import LAYER_SETTINGS, LETTERS
from ppopt.problem.link import Link
from ppopt.problem.modules import MEMORY, TIMES, Modules, numbers_of, with_numbers
from ppopt.problem.modules import read as read_modules
from ppopt.problem.phases import Phases
from ppopt.problem.pipeline import Model, Pipeline
from ppopt.problem.units import Unit

MEMBER = "model"
"""Key of the member in `origin`."""
_UNITS = {Unit.TIME: "ticks_per_unit", Unit.MEMORY: "memory_ticks_per_unit"}
_REQUIRED = (*_UNITS.values(), "layers", "counts", "partition")
_OPTIONAL = ("name", "placement", "chunks", "link", "first_backward", "recompute_unit")
_FLAGS = ("recompute", "recompute_given", "offload", "frozen")
_AMOUNTS = (*(cost.field for cost in LAYER_COSTS), "phases", "modules")
_KEYS = {Unit.TIME: TIMES, Unit.MEMORY: MEMORY}
_ALWAYS = tuple(cost.layer_name for cost in LAYER_COSTS if not cost.optional)
_SOMETIMES = tuple(cost.layer_name for cost in LAYER_COSTS if cost.optional)


def model_to_object(pipeline: Pipeline) -> dict[str, Any]:
    """Write the model of a pipeline and its partition as an object of JSON."""
    model: Model = pipeline.model
    layers = runs_of(model.layers)
    per_unit = {unit: _common_tick(layers, unit) for unit in _UNITS}
    partition, first, unit = pipeline.partition, pipeline.first_backward, model.recompute_unit
    return {
        "name": model.name,
        **{key: per_unit[unit] for unit, key in _UNITS.items()},
        "layers": [_layer_object(layer, per_unit) for layer in layers],
        "counts": list(pipeline.counts),
        "partition": partition if isinstance(partition, str) else None,
        "placement": pipeline.placement if pipeline.named_placement else list(pipeline.placement),
        "chunks": pipeline.chunks,
        **({} if pipeline.link is None else {"link": _link_object(pipeline.link)}),
        **({"first_backward": first.value} if first is FirstBackward.WEIGHT else {}),
        **({} if unit is _unit_if_absent(model) else {"recompute_unit": unit.value}),
    }


def _unit_if_absent(model: Model) -> RecomputeUnit:
    """Meaning of a file without `recompute_unit`: earlier versions recomputed whole stages."""
    return RecomputeUnit.STAGE if model.unit_matters else RecomputeUnit.LAYER


def _link_object(link: Link) -> dict[str, Any]:
    """A link with its numbers as fractions [numerator, denominator], in the user's units."""
    members: dict[str, Any] = {
        "latency": list(link.latency.as_integer_ratio()),
        "bandwidth": list(link.bandwidth.as_integer_ratio()),
    }
    return members | ({} if link.backward is None else {"backward": _link_object(link.backward)})


def _link(value: object) -> Link:
    """Read what `_link_object` writes."""
    file = section(value, ("latency", "bandwidth"), ("backward",))
    pairs = (within(key, wholes, file[key], 2, 0, MAX_TICKS) for key in ("latency", "bandwidth"))
    (latency, per), (bandwidth, time) = pairs
    if not (per and bandwidth and time):
        raise InputError("latency or bandwidth: 0 where a number above 0 must be")
    back = None if file.get("backward") is None else within("backward", _link, file["backward"])
    if back is not None and back.backward is not None:
        raise InputError("backward: has a `backward` itself; leave that out")
    return Link(Fraction(latency, per), Fraction(bandwidth, time), back)


def _common_tick(layers: list[Layer], unit: Unit) -> int:
    costs = [cost for cost in LAYER_COSTS if cost.unit is unit]
    numbers = [getattr(layer, cost.field) for layer in layers for cost in costs]
    numbers += [number for layer in layers for number in numbers_of(layer.modules, _KEYS[unit])]
    if unit is Unit.TIME:
        numbers += [number for layer in layers if layer.phases for number in layer.phases.numbers]
    return exact.common_denominator(numbers)


def _layer_object(layer: Layer, per_unit: dict[Unit, int]) -> dict[str, Any]:
    members = {
        setting.name: value
        for setting in LAYER_SETTINGS
        if setting.field not in _AMOUNTS
        and (value := getattr(layer, setting.field)) not in ("", None, False)
    }
    costs = {
        cost.layer_name: exact.whole(getattr(layer, cost.field) * per_unit[cost.unit])
        for cost in LAYER_COSTS
        if not cost.optional
        or getattr(layer, cost.field) != cost.layer_default.layer_value(vars(layer))
    }
    if layer.phases:
        ticks = (exact.whole(number * per_unit[Unit.TIME]) for number in layer.phases.numbers)
        members["phases"] = layer.phases.having(ticks).in_file
    if layer.modules:
        own = layer.modules
        for unit, keys in _KEYS.items():
            ticks = (exact.whole(number * per_unit[unit]) for number in numbers_of(own, keys))
            own = with_numbers(own, keys, ticks)
        members["modules"] = [module.in_file for module in own]
    off = {"recompute_given": True} if layer.recompute_given and not layer.recompute else {}
    rounded = {"rounded": list(layer.rounded)} if layer.rounded else {}
    return {**members, **off, **costs, **rounded}


def _phases(value: object, per_unit: int) -> Phases:
    """Read phases whose times are ticks."""

    def read(ticks: object, name: str) -> Fraction:
        return Fraction(within(name, whole, ticks, 0, MAX_TICKS), per_unit)

    return Phases.read(value).each(read)


def _modules(value: object, per_unit: dict[Unit, int]) -> Modules:
    """Read modules whose times and memory are ticks."""
    own = read_modules(value)
    for unit, keys in _KEYS.items():

        def read(ticks: object, key: str, ticks_per_unit: int = per_unit[unit]) -> Fraction:
            return Fraction(within(key, whole, ticks, 0, MAX_TICKS), ticks_per_unit)

        own = tuple(
            module.each(read, [key for key in keys if key in module.in_file]) for module in own
        )
    return own


def restored(pipeline: Pipeline, value: object, mem_limit: object) -> Pipeline:
    """Read the object of `model_to_object`: the pipeline of the file with its model and partition.

    `mem_limit` is the limit as the user gave it; it must be that of the pipeline.
    Raises InputError if the object is no model, or if its layers, with this partition and
    placement, are not the stages of the pipeline.
    """
    file = section(value, _REQUIRED, _OPTIONAL)
    per_unit = {unit: within(key, whole, file[key], 1, MAX_TICKS) for unit, key in _UNITS.items()}
    model = Model(tuple(_layers(file["layers"], per_unit)), within("name", text, file.get("name")))
    unit = file.get("recompute_unit", _unit_if_absent(model))
    model = replace(model, recompute_unit=RecomputeUnit(unit))
    counts = within("counts", wholes, file["counts"], pipeline.num_stages, 0, MAX_LAYERS)
    fields = _placed(file, pipeline)
    fields["mem_limit"] = mem_limit
    fields["first_backward"] = file.get("first_backward", FirstBackward.SPLIT)
    fields["frozen"] = None
    if file.get("link") is not None:
        fields["link"] = within("link", _link, file["link"])
    rule = file["partition"]
    if rule is not None:
        candidate = replace(
            pipeline, model=model, partition=within("partition", text, rule), **fields
        )
    if rule is None or list(candidate.counts) != counts:
        candidate = replace(pipeline, model=model, partition=counts, **fields)
    same = candidate.hosts == pipeline.hosts and candidate.links == pipeline.links
    same &= candidate.frozen_stages == pipeline.frozen_stages
    if not same or (candidate.costs, candidate.limits) != (pipeline.costs, pipeline.limits):
        raise InputError("its layers do not make the stages of the pipeline; leave it out")
    return candidate


def _placed(file: dict[str, Any], pipeline: Pipeline) -> dict[str, Any]:
    """Fields of the placement as the user gave it."""
    where, chunks = file.get("placement"), file.get("chunks")
    if isinstance(where, list):
        return {}
    if where is not None and where not in tuple(placement.NAMED):
        raise InputError(
            f"placement: {abbreviated(where)} is unknown; use {', '.join(placement.NAMED)}"
        )
    if chunks is not None:
        within("chunks", whole, chunks, 1, pipeline.num_stages)
    return {"stages": pipeline.num_devices, "placement": where, "chunks": chunks}


def _layers(value: object, per_unit: dict[Unit, int]) -> Iterable[Layer]:
    if not isinstance(value, list) or len(value) > MAX_LAYERS:
        raise InputError(
            f"layers: {abbreviated(value)} is not a list of at most {MAX_LAYERS} layers"
        )
    for index, entry in enumerate(value):
        yield within(f"layers: layer {index}", _layer, entry, per_unit)


def _layer(value: object, per_unit: dict[Unit, int]) -> Layer:
    optional = ("name", "role", "count", "phases", "modules", "rounded", *_FLAGS, *_SOMETIMES)
    file = section(value, _ALWAYS, optional)
    costs: dict[str, Any] = {
        cost.field: Fraction(
            within(cost.layer_name, whole, file[cost.layer_name], -MAX_TICKS, MAX_TICKS),
            per_unit[cost.unit],
        )
        for cost in LAYER_COSTS
        if cost.layer_name in file
    }
    for key in _FLAGS:
        named = isinstance(file.get(key), list) and key in ("recompute", "offload")
        if not (named or isinstance(file.get(key, False), bool)):
            raise InputError(f"{key}: {abbreviated(file[key])} is neither true nor false")
    if file.get("role", "decoder") not in tuple(LETTERS):
        raise InputError(f"role: {abbreviated(file['role'])} is unknown; use {', '.join(LETTERS)}")
    rounded = file.get("rounded", [])
    if not isinstance(rounded, list) or any(field not in _AMOUNTS for field in rounded):
        raise InputError(f"rounded: {abbreviated(rounded)} is not a list of costs of a layer")
    members = {key: file[key] for key in ("name", "role", "count", *_FLAGS) if key in file}
    if "phases" in file:
        members["phases"] = within("phases", _phases, file["phases"], per_unit[Unit.TIME])
    if "modules" in file:
        members["modules"] = within("modules", _modules, file["modules"], per_unit)
    return Layer(**costs, **members, rounded=tuple(rounded))
