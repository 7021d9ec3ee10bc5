"""The JSON Schema of native schedule files.

It defines the form of a file; `ppopt.verify` checks whether the operations are a schedule of the
pipeline.
"""

from __future__ import annotations

from ppopt.formats import pipeline_json, schedule_json
from ppopt.formats.json_forms import DRAFT, Schema, list_schema, object_schema, or_null

_POSITIVE: Schema = {"type": "integer", "minimum": 1}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_TICKS: Schema = {"type": "integer"}


def schedule_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of native schedule files."""
    origin = "how the schedule was made, and what the search claims"
    properties = {
        "schema": {"enum": list(schedule_json.SCHEMAS)},
        **dict.fromkeys(schedule_json.UNITS, _POSITIVE),
        "pipeline": pipeline_json.pipeline_schema(),
        "origin": {"description": origin, "type": "object"},
        "claims": _claims(),
        "ops": list_schema(_operation()),
    }
    required = ("schema", *schedule_json.UNITS, "pipeline", "ops")
    return {**DRAFT, "title": "ppopt schedule", **object_schema(properties, required)}


def _claims() -> Schema:
    about = {"description": "figures to check again, times and memory in ticks"}
    claims = {key: form.schema for key, form in schedule_json.claim_forms().items()}
    return about | object_schema(claims)


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
