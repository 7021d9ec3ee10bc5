"""The JSON Schema of native schedule files.

It defines the form of a file; `ppopt.verify` checks whether the operations are a schedule of the
pipeline.
"""

from __future__ import annotations

from typing import Any

from ppopt.formats import pipeline_json, schedule_json
from ppopt.problem.cost_table import STAGE_COSTS

Schema = dict[str, Any]
_COUNT: Schema = {"type": "integer", "minimum": 0}
_TICKS: Schema = {"type": "integer"}
_NUMBER: Schema = {"type": "number"}
_TEXT: Schema = {"type": "string"}
_BOUNDARIES: Schema = {
    "description": "one number, one per boundary, or a matrix [from device][to device]",
    "anyOf": [_TICKS, {"type": "array"}],
}


def schedule_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of native schedule files."""
    units = {name: {"type": "integer", "minimum": 1} for name in schedule_json.UNITS}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ppopt schedule",
        "type": "object",
        "properties": {
            "schema": {"enum": list(schedule_json.SCHEMAS)},
            **units,
            "pipeline": _pipeline(),
            "origin": {
                "description": "how the schedule was made, and what the search claims",
                "type": "object",
            },
            "claims": _claims(),
            "ops": {"type": "array", "items": _operation()},
        },
        "required": ["schema", *units, "pipeline", "ops"],
        "additionalProperties": False,
    }


def _list(entry: Schema) -> Schema:
    return {"type": "array", "items": entry}


def _or_null(form: Schema) -> Schema:
    return {"anyOf": [form, {"type": "null"}]}


def _pipeline() -> Schema:
    of_pairs: Schema = {"anyOf": [_TICKS, _list(_TICKS)]}
    costs = {
        cost.name: _list(of_pairs if cost.of_pairs else _TICKS) | {"description": cost.meaning}
        for cost in STAGE_COSTS
    }
    known: Schema = {
        **{name: {"type": "integer", "minimum": 1} for name in ("stages", "batches", "devices")},
        "routes": {"enum": [1, 2]},
        "placement": _list(_COUNT) | {"description": "the device of every stage"},
        "p2p_time": _BOUNDARIES,
        "backward_p2p_time": _BOUNDARIES,
        "frozen": _list({"type": "boolean"}) | {"description": "per stage"},
        "mem_limit": _or_null(_list(_TICKS)) | {"description": "per device"},
        **costs,
    }
    names = (*pipeline_json.REQUIRED, *pipeline_json.OPTIONAL)
    return {
        "description": "every cost in ticks, per stage",
        "type": "object",
        "properties": {name: known.get(name, {}) for name in names},
        "required": list(pipeline_json.REQUIRED),
        "additionalProperties": False,
    }


def _claims() -> Schema:
    totals = dict.fromkeys(schedule_json.TOTALS, _TICKS)
    lists = dict.fromkeys(schedule_json.LISTS, _list(_TICKS))
    ratios = dict.fromkeys(schedule_json.RATIOS, _NUMBER)
    return {
        "description": "figures to check again, times and memory in ticks",
        "type": "object",
        "properties": {**totals, **lists, **ratios, "objective": _TEXT},
        "additionalProperties": False,
    }


def _operation() -> Schema:
    optional = [_or_null(_COUNT)] * 4
    return {
        "description": "kind, stage, microbatch, device, start, end in ticks; and where there are "
        "routes, slices, pairs or links: route, slice, pair, receiving device. An operation around "
        "the microbatches has null where it belongs to no stage, microbatch, route or slice",
        "type": "array",
        "prefixItems": [
            {"enum": list(schedule_json.KINDS)},
            *[_or_null(_TICKS)] * 2,
            *[_TICKS] * 3,
            *optional,
        ],
        "minItems": 6,
        "items": False,
    }
