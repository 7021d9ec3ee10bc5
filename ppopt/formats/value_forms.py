"""Forms of values, as text: `number|[number]` stands for a number or a list of numbers.

A form has alternatives. The first is the name of a scalar. A form in brackets is a list of such
values, and one in braces a mapping to them. The check of a value and its JSON Schema follow from
its form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ppopt.formats.fields import within

Schema = dict[str, Any]
DRAFT: Schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
_ALTERNATIVES = re.compile(r"\[.*\]|\{.*\}|[^|]+")


def checked(form: str, value: object, check: Callable[[str, object], object]) -> object:
    """The value, checked; `check` has the name of a scalar, and what should be one.

    Raises InputError, which names the entry.
    """
    scalar, *nested = _ALTERNATIVES.findall(form)
    for part in nested:
        if part.startswith("[") and isinstance(value, list):
            return [
                within(f"entry {index}", checked, part[1:-1], entry, check)
                for index, entry in enumerate(value)
            ]
        if part.startswith("{") and isinstance(value, dict):
            return {
                str(key): within(str(key), checked, part[1:-1], entry, check)
                for key, entry in value.items()
            }
    return check(scalar, value)


def schemas(form: str, scalars: Mapping[str, Sequence[Schema]]) -> list[Schema]:
    """JSON Schemas of the alternatives of a form; `scalars` has those of every scalar."""
    alternatives: list[Schema] = []
    for part in _ALTERNATIVES.findall(form):
        if part.startswith("["):
            alternatives.append(list_schema(*schemas(part[1:-1], scalars)))
        elif part.startswith("{"):
            inner = {"anyOf": schemas(part[1:-1], scalars)}
            alternatives.append({"type": "object", "additionalProperties": inner})
        else:
            alternatives += scalars[part]
    return alternatives


def list_schema(*entry: Schema) -> Schema:
    """A list whose entries have one of these schemas."""
    return {"type": "array", "items": {"anyOf": list(entry)}}


def object_schema(properties: Schema, required: Sequence[str] = ()) -> Schema:
    """An object with these properties and no further ones."""
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": properties, "additionalProperties": False} | needed


def or_null(*forms: Schema) -> Schema:
    """One of these schemas, or null."""
    return {"anyOf": [*forms, {"type": "null"}]}
