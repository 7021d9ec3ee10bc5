"""The JSON Schema of native schedule files.

It defines the form of a file; `ppopt.verify` checks whether the operations are a schedule of the
pipeline.
"""

from __future__ import annotations

from ppopt.formats import pipeline_json, schedule_json
from ppopt.formats.value_forms import DRAFT, Schema, list_schema, object_schema, or_null
from ppopt.problem.cost_table import STAGE_COSTS

_POSITIVE: Schema = {"type": "integer", "minimum": 1}
_NUMBER: Schema = {"type": "number"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_TICKS: Schema = {"type": "integer"}
_BOUNDARIES: Schema = {
    "description": "one number, one per boundary, or a matrix [from device][to device]",
    "anyOf": [_TICKS, {"type": "array"}],
}


def schedule_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of native schedule files."""
    origin = "how the schedule was made, and what the search claims"
    properties = {
        "schema": {"enum": list(schedule_json.SCHEMAS)},
        **dict.fromkeys(schedule_json.UNITS, _POSITIVE),
        "pipeline": _pipeline(),
        "origin": {"description": origin, "type": "object"},
        "claims": _claims(),
        "ops": list_schema(_operation()),
    }
    required = ("schema", *schedule_json.UNITS, "pipeline", "ops")
    return {**DRAFT, "title": "ppopt schedule", **object_schema(properties, required)}


def _pipeline() -> Schema:
    of_pairs = (_TICKS, list_schema(_TICKS))
    costs = {
        cost.name: list_schema(*of_pairs[: 1 + cost.of_pairs]) | {"description": cost.meaning}
        for cost in STAGE_COSTS
    }
    known: Schema = {
        **dict.fromkeys(("stages", "batches", "devices"), _POSITIVE),
        "routes": {"enum": [1, 2]},
        "placement": list_schema(_COUNT) | {"description": "the device of every stage"},
        "p2p_time": _BOUNDARIES,
        "backward_p2p_time": _BOUNDARIES,
        "frozen": list_schema({"type": "boolean"}) | {"description": "per stage"},
        "mem_limit": or_null(list_schema(_TICKS)) | {"description": "per device"},
        "rounded_by": {"description": "fields too fine for 2^53 ticks: their largest change"},
        **costs,
    }
    names = (*pipeline_json.REQUIRED, *pipeline_json.OPTIONAL)
    properties = {name: known.get(name, {}) for name in names}
    about = {"description": "every cost in ticks, per stage"}
    return about | object_schema(properties, pipeline_json.REQUIRED)


def _claims() -> Schema:
    totals = dict.fromkeys(schedule_json.TOTALS, _TICKS)
    lists = dict.fromkeys(schedule_json.LISTS, list_schema(_TICKS))
    ratios = dict.fromkeys(schedule_json.RATIOS, _NUMBER)
    about = {"description": "figures to check again, times and memory in ticks"}
    return about | object_schema({**totals, **lists, **ratios, "objective": {"type": "string"}})


def _operation() -> Schema:
    return {
        "description": "kind, stage, microbatch, device, start, end in ticks; and where there are "
        "routes, slices, pairs or links: route, slice, pair, receiving device. An operation around "
        "the microbatches has null where it belongs to no stage, microbatch, route or slice",
        "type": "array",
        "prefixItems": [
            {"enum": list(schedule_json.KINDS)},
            *[or_null(_TICKS)] * 2,
            *[_TICKS] * 3,
            *[or_null(_COUNT)] * 4,
        ],
        "minItems": 6,
        "items": False,
    }
