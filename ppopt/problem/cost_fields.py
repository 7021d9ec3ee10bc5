"""Costs of stages from the fields of a pipeline: in one unit, with one value per stage.

`fields` has the fields of a pipeline by name. Every function returns the fields to change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ppopt.errors import Faults, InputError
from ppopt.problem import units
from ppopt.problem.backward_times import complete
from ppopt.problem.cost_table import STAGE_COSTS, ZERO
from ppopt.problem.costs import flat, times
from ppopt.problem.field_values import FieldReader, is_1f1b, is_exact, is_list
from ppopt.problem.first_backward import FirstBackward
from ppopt.problem.frozen import with_frozen
from ppopt.problem.layer import Layer
from ppopt.problem.layers import Layers
from ppopt.problem.memory import check_memory, check_moves
from ppopt.problem.phase_pairs import PairTimes, pair_times
from ppopt.problem.settings import SETTINGS
from ppopt.problem.units import Unit

Fields = Mapping[str, Any]
_FIELDS = frozenset(cost.field for cost in STAGE_COSTS)


def in_one_unit(fields: Fields, measure: Unit, reader: FieldReader) -> dict[str, Any]:
    """Numbers of a measure in the unit of the pipeline, which they declare if none is."""
    key, model, values = f"{measure}_unit", fields["model"], _numbers_of(fields, measure)
    declared = fields[key] or getattr(model, key, None)
    standing = {
        setting.field: setting.name
        for setting in SETTINGS
        if setting.field in values and values[setting.field] == setting.default
    }
    resolved = units.resolve(measure, declared, values, ("mem_limit",), standing)
    reader.note(resolved.rounded)
    changed = {field: resolved.values[field] for field in values if field != "layers"}
    if model is not None and getattr(model, key) != resolved.unit:
        changed["model"] = replace(model, **{key: resolved.unit})
    return changed | {key: resolved.unit}


def _numbers_of(fields: Fields, measure: Unit) -> dict[str, Any]:
    """Every number of a measure that is given, by field; of layers, one number."""
    model = fields["model"]
    numbers = {
        setting.field: value
        for setting in SETTINGS
        if setting.unit is measure
        and (model is None or setting.field not in _FIELDS)
        and (value := fields[setting.field]) is not None
        and not is_1f1b(value)
    }
    return numbers if model is None else numbers | {"layers": model.sample(measure)}


def read_stage_costs(fields: Fields, stages: int, reader: FieldReader) -> dict[str, Any]:
    """Costs of the stages, or of the shares of devices, with the times of the backward derived.

    Costs of operations that a frozen stage does not have are 0.
    """
    faults = Faults()
    costs: dict[str, Any] = {cost.field: fields[cost.field] for cost in STAGE_COSTS}
    if is_list(costs["overlap_input"]) and not costs["overlap_input"]:
        costs["overlap_input"] = None  # as `StageCosts` holds it
    for cost in STAGE_COSTS:
        value = costs[cost.field]
        if value is not None or cost.default.value is not None:
            with faults.collected():
                costs[cost.field] = (
                    reader.pair_times(cost.field, value, stages, _empty(costs["forward"]))
                    if cost.of_pairs
                    else reader.per_stage(cost.field, value, stages, signed=cost.minimum is None)
                )
    faults.check()
    if costs["overlap_input"] is not None and costs["overlap"] is None:
        raise InputError("overlap_input_times: goes with overlap_times; give these, too")
    fields_of_times = ("backward", "weight", "backward_input")
    nothing = (None,) * stages
    rows = (costs["forward"], *(costs[field] or nothing for field in fields_of_times))
    times = [
        complete(*own, where=f"stage {stage}: ")
        for stage, own in enumerate(zip(*rows, strict=True))
    ]
    costs |= dict(zip(fields_of_times, zip(*times, strict=True), strict=True))
    check_memory(costs["activation"], costs["memory_b"], costs["kept"])
    check_moves(
        costs["offload_memory"], costs["offload_time"], costs["kept"] or costs["activation"]
    )
    return with_frozen(costs, fields["frozen"] or ())


def _empty(forward: Any) -> list[int]:
    """Stages that compute nothing, by the time of F."""
    return [stage for stage, time in enumerate(forward) if time == 0] if is_list(forward) else []


def refuse_beside_layers(fields: Fields) -> None:
    """Raise InputError if costs of stages are given in addition to layers."""
    for cost in STAGE_COSTS:
        value = fields[cost.field]
        if value != cost.default.value and not is_exact(value):
            raise InputError(f"{cost.name}: the layers give the costs; leave it out")
    if fields["frozen"] is not None:
        raise InputError("frozen: the layers say which of them are frozen; leave it out")


def of_layers(model: Layers, counts: tuple[int, ...], first: FirstBackward) -> dict[str, Any]:
    """Fields of the costs of stages that hold `counts` consecutive layers: the layers state them.

    Times of pairs follow from phases; they are None if no layer has phases.
    """
    stages = model.stage_layers(counts)
    pairs = pair_times(stages)
    if pairs is not None and first is FirstBackward.WEIGHT:
        pairs = _pairs_in_weight(pairs, stages)
    with_bw, with_b = pairs or (None, None)
    none = {cost.field: None for cost in STAGE_COSTS}
    return none | {"overlap": with_bw, "overlap_input": with_b}


def _pairs_in_weight(pairs: PairTimes, stages: Sequence[Sequence[Layer]]) -> PairTimes:
    """Times of pairs of stages of these layers, if W of stage 0 runs its backward.

    F with B of stage 0 has the time of F.
    """
    recompute_time = sum((layer.in_force["recompute_time"] for layer in stages[0]), ZERO)
    forward = [sum((layer.forward for layer in stage), ZERO) for stage in stages]
    return PairTimes(
        tuple((row[0] + recompute_time, *row[1:]) for row in pairs.with_bw),
        tuple((own, *row[1:]) for own, row in zip(forward, pairs.with_b, strict=True)),
    )


def of_slice(costs: Mapping[str, Any], slices: int) -> dict[str, Any]:
    """Fields of some costs of stages, from those of one of `slices` slices of a microbatch."""
    parts = {cost.field: slices if cost.per_microbatch else 1 for cost in STAGE_COSTS}
    return {field: times(row, parts[field]) or None for field, row in costs.items()}


def unequal_share(fields: Fields) -> str:
    """Name of a cost that differs from stage to stage; empty: there is none."""
    rows = ((cost.name, fields[cost.field]) for cost in STAGE_COSTS)
    unequal = (name for name, row in rows if row is not None and len(set(flat(row))) > 1)
    return next(unequal, "")
