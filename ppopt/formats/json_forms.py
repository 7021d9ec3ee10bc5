"""Forms of values in JSON files: each has its reader, its writer and its JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from functools import partial
from itertools import chain
from typing import Any

from ppopt.errors import InputError
from ppopt.formats import fields
from ppopt.formats.fields import abbreviated, section, within
from ppopt.problem import exact
from ppopt.problem.costs import MAX_TICKS
from ppopt.problem.field_values import is_list

Schema = dict[str, Any]
DRAFT: Schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"}


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Form:
    """The form of a value in a file."""

    read: Callable[[Any], Any] = _same
    """Raises InputError if a value of a file does not have this form."""
    write: Callable[[Any], Any] = _same
    schema: Schema = field(default_factory=dict)

    def about(self, description: str) -> Form:
        """The form with a description in its schema."""
        return replace(self, schema=self.schema | {"description": description})


Forms = Mapping[str, Form]
"""The form of every member of an object, by its key."""
AS_IS = Form()
"""Any value: other code checks it."""
TEXT = Form(fields.text, schema={"type": "string"})
FLAG = Form(fields.flag, schema={"type": "boolean"})
FINITE = Form(fields.finite, schema={"type": "number"})


def whole(minimum: int, maximum: int) -> Form:
    """A whole number within bounds."""
    return Form(partial(fields.whole, minimum=minimum, maximum=maximum), schema={"type": "integer"})


def amount(per_unit: int, minimum: int = 0) -> Form:
    """An exact number in the user's unit, written as whole ticks of `per_unit` each."""
    ticks = whole(minimum, MAX_TICKS)
    return Form(
        lambda value: Fraction(ticks.read(value), per_unit),
        lambda number: exact.whole(number * per_unit),
        ticks.schema,
    )


def fraction(minimum: int) -> Form:
    """An exact number, written as [numerator, denominator]; `minimum` of the numerator."""
    pair = listed(whole(minimum, MAX_TICKS), 2)

    def read(value: object) -> Fraction:
        numerator, denominator = pair.read(value)
        if not denominator:
            raise InputError("entry 1: 0 is not a denominator")
        return Fraction(numerator, denominator)

    return Form(read, lambda number: list(number.as_integer_ratio()), pair.schema)


def word(names: Collection[str], listing: str) -> Form:
    """A text of these; `listing` names them in messages."""

    def read(value: object) -> object:
        if not isinstance(value, str) or value not in names:
            raise InputError(f"{abbreviated(value)} is unknown; use {listing}")
        return value

    return Form(read, schema={"enum": list(names)})


def member(kind: type[StrEnum]) -> Form:
    """A member of an enum, written as its text."""
    name = word(tuple(kind), " or ".join(kind))
    return Form(lambda value: kind(name.read(value)), str, name.schema)


def choices(names: Collection[str], what: str) -> Form:
    """A list of texts of these; `what` describes them in messages."""

    def read(value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or any(entry not in names for entry in value):
            raise InputError(f"{abbreviated(value)} is not a list of {what}")
        return tuple(value)

    return Form(read, list, list_schema({"enum": list(names)}))


def listed(
    form: Form,
    count: int | None = None,
    each: str = "entry",
    each_of: str = "",
    make: Callable[[Iterable[Any]], Any] = tuple,
) -> Form:
    """A list of values of a form. `count` is their number, None: any; `each` names a value."""

    def read(value: object) -> Any:
        if not isinstance(value, list):
            raise InputError(f"{abbreviated(value)} is not a list")
        if count not in (None, len(value)):
            plural = {"entry": "entries"}.get(each, f"{each}s")
            raise InputError(f"has {len(value)} {plural}; {count} are needed{each_of}")
        return make(
            within(f"{each} {index}", form.read, entry) for index, entry in enumerate(value)
        )

    return Form(read, lambda values: [*map(form.write, values)], list_schema(form.schema))


def list_or_matrix(form: Form, count: int, size: int, each_of: str = "") -> Form:
    """A list of `count` values, or a matrix of `size` rows and columns."""
    values, rows = listed(form, count), listed(listed(form, size), size, "row", each_of)

    def chosen(value: Any) -> Form:
        return rows if is_list(value) and any(map(is_list, value)) else values

    return Form(
        lambda value: chosen(value).read(value),
        lambda value: chosen(value).write(value),
        list_schema(form.schema, values.schema),
    )


def mapping(form: Form) -> Form:
    """An object whose members all have one form, under any keys."""

    def read(value: object) -> dict[str, Any]:
        return {
            key: within(key if key.isidentifier() else abbreviated(key), form.read, entry)
            for key, entry in fields.mapping(value).items()
        }

    return Form(
        read,
        lambda values: {key: form.write(value) for key, value in values.items()},
        {"type": "object", "additionalProperties": form.schema},
    )


def alternative(form: Form, lists: Form | None = None, mappings: Form | None = None) -> Form:
    """A value of a form, or a list, or a mapping."""

    def chosen(value: object) -> Form:
        if lists and isinstance(value, list | tuple):
            return lists
        return mappings if mappings and isinstance(value, dict) else form

    forms = filter(None, (form, lists, mappings))
    return Form(
        lambda value: chosen(value).read(value),
        lambda value: chosen(value).write(value),
        any_of(*(each.schema for each in forms)),
    )


def or_none(form: Form) -> Form:
    """A value of a form, or null."""
    return Form(
        lambda value: None if value is None else form.read(value),
        lambda value: None if value is None else form.write(value),
        or_null(form.schema),
    )


def record(make: Callable[..., Any], forms: Forms, required: Collection[str]) -> Form:
    """An object whose members are the fields of a record; a field that is None is left out."""

    def write(value: Any) -> dict[str, Any]:
        values = {key: getattr(value, key) for key in forms}
        return write_object({key: each for key, each in values.items() if each is not None}, forms)

    return Form(
        lambda value: make(**read_object(value, forms, required)),
        write,
        object_schema({key: form.schema for key, form in forms.items()}, tuple(required)),
    )


def read_object(value: object, forms: Forms, required: Iterable[str] = ()) -> dict[str, Any]:
    """Read the members of an object; those that are not required may be absent or null.

    Raises InputError, naming the key, for a member that is missing, unknown, or of another form.
    """
    file = section(value, required, forms)
    return {
        key: within(key, form.read, file[key])
        for key, form in forms.items()
        if key in required or file.get(key) is not None
    }


def write_object(values: Mapping[str, Any], forms: Forms) -> dict[str, Any]:
    """Write members in the order of `values`."""
    return {key: forms[key].write(value) for key, value in values.items()}


def list_schema(*entry: Schema) -> Schema:
    """A list whose entries have one of these schemas."""
    return {"type": "array", "items": any_of(*entry)}


def object_schema(properties: Schema, required: Sequence[str] = ()) -> Schema:
    """An object with these properties and no further ones."""
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": properties, "additionalProperties": False} | needed


def any_of(*schemas: Schema) -> Schema:
    """One of these schemas; an alternative that is one of several joins them."""
    each = (schema["anyOf"] if schema.keys() == {"anyOf"} else [schema] for schema in schemas)
    return {"anyOf": list(chain(*each))}


def or_null(schema: Schema) -> Schema:
    """A schema, or null."""
    return any_of(schema, {"type": "null"})
