"""The model in layers of a schedule: the member `model` of the `origin` of its file.

The pipeline of a file has the costs of every stage, with or without layers; readers need no more.
This member has their source: the layers (equal neighbours joined, their costs in ticks of their
own), the layers of every stage (`counts`), and the partition, placement and chunks as the user gave
them. It restores the pipeline, equal in every field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ppopt.errors import InputError
from ppopt.formats.fields import mapping, within
from ppopt.formats.json_forms import (
    AS_IS,
    FLAG,
    TEXT,
    Form,
    Forms,
    alternative,
    amount,
    choices,
    fraction,
    listed,
    or_none,
    read_object,
    record,
    whole,
    word,
    write_object,
)
from ppopt.problem import exact, placement
from ppopt.problem.backward_memory import RecomputeUnit
from ppopt.problem.cost_table import LAYER_COSTS
from ppopt.problem.costs import MAX_TICKS
from ppopt.problem.first_backward import FirstBackward
from ppopt.problem.layer import MAX_LAYERS, Layer, runs_of
from ppopt.problem.layer_settings import LETTERS
from ppopt.problem.link import Link
from ppopt.problem.modules import MEMORY, TIMES, Modules, numbers_of
from ppopt.problem.modules import read as read_modules
from ppopt.problem.phases import Phases
from ppopt.problem.pipeline import Model, Pipeline
from ppopt.problem.units import Unit

MEMBER = "model"
"""Key of the member in `origin`."""
_UNITS = {Unit.TIME: "ticks_per_unit", Unit.MEMORY: "memory_ticks_per_unit"}
_REQUIRED = (*_UNITS.values(), "layers", "counts", "partition")
_AMOUNTS = (*(cost.field for cost in LAYER_COSTS), "phases", "modules")
_KEYS = {Unit.TIME: TIMES, Unit.MEMORY: MEMORY}
_FIELDS = {cost.layer_name: cost.field for cost in LAYER_COSTS}
"""Key of a cost of a layer -> its field."""
_STATED = ("name", "role", "count", "recompute", "offload", "frozen", "phases", "modules")
"""Members of a layer other than its costs that its user states, in the order of files."""
_LINK = {"latency": fraction(0), "bandwidth": fraction(1)}
_LINKS = record(Link, {**_LINK, "backward": record(Link, _LINK, _LINK)}, _LINK)
PerUnit = Mapping[Unit, int]
"""Ticks in one unit of time, and of memory."""


def _forms(stages: int, per_unit: PerUnit) -> Forms:
    """The form of every member, by its key."""
    layer = _layer_forms(per_unit)
    always = [cost.layer_name for cost in LAYER_COSTS if not cost.optional]
    read_layer = Form(lambda value: _layer(read_object(value, layer, always)))
    names = word(placement.NAMED, ", ".join(placement.NAMED))
    return {
        **dict.fromkeys(_UNITS.values(), AS_IS),
        "name": TEXT,
        "layers": listed(read_layer, each="layer"),
        "counts": listed(whole(0, MAX_LAYERS), stages),
        "partition": or_none(TEXT),
        "placement": alternative(names, AS_IS),
        "chunks": whole(1, stages),
        "link": _LINKS,
        **dict.fromkeys(("first_backward", "recompute_unit"), AS_IS),
    }


def _layer_forms(per_unit: PerUnit) -> Forms:
    """The form of every member of a layer, by its key; `Layer` checks name and count."""
    costs = {cost.layer_name: amount(per_unit[cost.unit], -MAX_TICKS) for cost in LAYER_COSTS}
    return {
        **costs,
        **dict.fromkeys(("name", "count"), AS_IS),
        "role": word(LETTERS, ", ".join(LETTERS)),
        **dict.fromkeys(("recompute", "offload"), alternative(FLAG, AS_IS)),
        **dict.fromkeys(("recompute_given", "frozen"), FLAG),
        "phases": _phases(per_unit),
        "modules": _modules(per_unit),
        "rounded": choices(_AMOUNTS, "costs of a layer"),
    }


def _phases(per_unit: PerUnit) -> Form:
    """Phases with their times in ticks."""
    time = amount(per_unit[Unit.TIME])
    return Form(
        lambda value: Phases.read(value).each(lambda ticks, key: within(key, time.read, ticks)),
        lambda phases: phases.each(lambda number, _: time.write(number)).in_file,
    )


def _modules(per_unit: PerUnit) -> Form:
    """Modules with their times and memory in ticks."""
    amounts = {key: amount(per_unit[unit]) for unit, keys in _KEYS.items() for key in keys}

    def read(value: object) -> Modules:
        return tuple(
            module.each(
                lambda ticks, key: within(key, amounts[key].read, ticks),
                [key for key in amounts if key in module.in_file],
            )
            for module in read_modules(value)
        )

    def write(modules: Modules) -> list[dict[str, Any]]:
        return [
            module.each(lambda number, key: amounts[key].write(number), amounts).in_file
            for module in modules
        ]

    return Form(read, write)


def model_to_object(pipeline: Pipeline) -> dict[str, Any]:
    """Write the model of a pipeline and its partition as an object of JSON."""
    model: Model = pipeline.model
    layers = runs_of(model.layers)
    per_unit = {unit: _common_tick(layers, unit) for unit in _UNITS}
    partition, first, unit = pipeline.partition, pipeline.first_backward, model.recompute_unit
    forms = _layer_forms(per_unit)
    return {
        "name": model.name,
        **{key: per_unit[unit] for unit, key in _UNITS.items()},
        "layers": [write_object(_layer_members(layer), forms) for layer in layers],
        "counts": list(pipeline.counts),
        "partition": partition if isinstance(partition, str) else None,
        "placement": pipeline.placement if pipeline.named_placement else list(pipeline.placement),
        "chunks": pipeline.chunks,
        **({} if pipeline.link is None else {"link": _LINKS.write(pipeline.link)}),
        **({"first_backward": first.value} if first is FirstBackward.WEIGHT else {}),
        **({} if unit is _unit_if_absent(model) else {"recompute_unit": unit.value}),
    }


def _unit_if_absent(model: Model) -> RecomputeUnit:
    """Meaning of a file without `recompute_unit`: earlier versions recomputed whole stages."""
    return RecomputeUnit.STAGE if model.unit_matters else RecomputeUnit.LAYER


def _common_tick(layers: list[Layer], unit: Unit) -> int:
    costs = [cost for cost in LAYER_COSTS if cost.unit is unit]
    numbers = [getattr(layer, cost.field) for layer in layers for cost in costs]
    numbers += [number for layer in layers for number in numbers_of(layer.modules, _KEYS[unit])]
    if unit is Unit.TIME:
        numbers += [number for layer in layers if layer.phases for number in layer.phases.numbers]
    return exact.common_denominator(numbers)


def _layer_members(layer: Layer) -> dict[str, Any]:
    """The members of a layer by their keys: those that do not have their defaults."""
    about = {key: getattr(layer, key) for key in _STATED}
    amounts = {
        cost.layer_name: getattr(layer, cost.field)
        for cost in LAYER_COSTS
        if not cost.optional
        or getattr(layer, cost.field) != cost.layer_default.layer_value(vars(layer))
    }
    without = layer.recompute_given and not layer.recompute
    members = about | {"recompute_given": without} | amounts | {"rounded": layer.rounded}
    return {
        key: value
        for key, value in members.items()
        if key in amounts or value not in ("", None, False, ())
    }


def restored(pipeline: Pipeline, value: object, mem_limit: object) -> Pipeline:
    """Read the object of `model_to_object`: the pipeline of the file with its model and partition.

    `mem_limit` is the limit as the user gave it; it must be that of the pipeline.
    Raises InputError if the object is no model, or if its layers, with this partition and
    placement, are not the stages of the pipeline.
    """
    file = read_object(value, _forms(pipeline.num_stages, _per_unit(value)), _REQUIRED)
    model = Model(file["layers"], file.get("name", ""))
    unit = file.get("recompute_unit", _unit_if_absent(model))
    model = replace(model, recompute_unit=RecomputeUnit(unit))
    fields = _placed(file, pipeline) | {
        "mem_limit": mem_limit,
        "first_backward": file.get("first_backward", FirstBackward.SPLIT),
        "frozen": None,
        **{key: file[key] for key in ("link",) if key in file},
    }
    counts, rule = file["counts"], file["partition"]
    if rule is not None:
        candidate = replace(pipeline, model=model, partition=rule, **fields)
    if rule is None or candidate.counts != counts:
        candidate = replace(pipeline, model=model, partition=counts, **fields)
    same = candidate.hosts == pipeline.hosts and candidate.links == pipeline.links
    same &= candidate.frozen_stages == pipeline.frozen_stages
    if not same or (candidate.costs, candidate.limits) != (pipeline.costs, pipeline.limits):
        raise InputError("its layers do not make the stages of the pipeline; leave it out")
    return candidate


def _per_unit(value: object) -> dict[Unit, int]:
    """Ticks in one unit, of time and of memory, as the object of a model states them."""
    forms = dict.fromkeys(_UNITS.values(), whole(1, MAX_TICKS))
    stated = mapping(value)
    ticks = read_object({key: stated[key] for key in forms if key in stated}, forms, forms)
    return {unit: ticks[key] for unit, key in _UNITS.items()}


def _placed(file: Mapping[str, Any], pipeline: Pipeline) -> dict[str, Any]:
    """Fields of the placement as the user gave it."""
    where = file.get("placement")
    if isinstance(where, list):
        return {}
    return {"stages": pipeline.num_devices, "placement": where, "chunks": file.get("chunks")}


def _layer(file: Mapping[str, Any]) -> Layer:
    return Layer(**{_FIELDS.get(key, key): value for key, value in file.items()})
