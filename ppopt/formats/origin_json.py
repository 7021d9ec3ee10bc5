"""The origin of a schedule in JSON: the member `origin` of a native schedule file.

Members without a value are left out or null. An unknown member is preserved, so that files of other
versions can be read and written again. The reader refuses values of the wrong type; whether the
values are true is checked by `ppopt.verify` and `ppopt.recheck`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from fractions import Fraction
from typing import Any

from ppopt.errors import InputError
from ppopt.formats import fields
from ppopt.formats.fields import abbreviated, finite, text
from ppopt.formats.json_forms import (
    FINITE,
    FLAG,
    TEXT,
    Form,
    Forms,
    listed,
    mapping,
    member,
    or_none,
    read_object,
    record,
    whole,
)
from ppopt.problem import exact
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import Decisions
from ppopt.problem.hosting import MAX_DEVICES
from ppopt.problem.objective import Objective
from ppopt.schedule.origin import Argument, Certificate, HintRecord, Origin, current_name

_COVERED = {
    Decisions.PARTITION: "partitions",
    Decisions.PLACEMENT: "placements",
    Decisions.RECOMPUTE: "recompute",
    Decisions.OFFLOAD: "offload",
    Decisions.RECOMPUTE_SET: "sets",
    Decisions.ORDER: "orders",
}
"""Text of the decisions that a certificate covers, joined by `-`; older files have `combinations`
for the placement with others."""

LARGEST_INT = 2**62
"""Whole numbers lie within this, either sign."""
LARGEST_EXACT = 2**53
"""Above it not every whole number is a float: such figures are written as floats."""


def origin_to_object(origin: Origin) -> dict[str, Any]:
    """Turn an origin into an object of JSON; members without a value are left out."""
    stated = {key: getattr(origin, key) for key in _FORMS}
    members = {key: json_form(value) for key, value in stated.items() if value not in (None, {})}
    return members | dict(origin.unknown_members)


def members_of(record: object, *names: str) -> dict[str, Any]:
    """Attributes of a record by their names."""
    return {name: getattr(record, name) for name in names}


def json_object(values: Mapping[str, object]) -> dict[str, Any]:
    """Turn values into an object of JSON."""
    return {key: json_form(value) for key, value in values.items()}


def json_form(value: Any) -> Any:
    """Turn a value into JSON: records become objects, fractions numbers; schedules stay."""
    if isinstance(value, Fraction):
        return number(value)
    if isinstance(value, Certificate):
        covered = "-".join(_COVERED[each] for each in value.decisions)
        value = {"argument": covered or value.argument, "devices": value.devices}
    if isinstance(value, HintRecord):
        return json_object(vars(value))
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return json_object(value._asdict())
    if isinstance(value, Mapping):
        return json_object(value)
    if isinstance(value, list | tuple):
        return [json_form(entry) for entry in value]
    return value.value if isinstance(value, Enum) else value


def number(figure: Fraction | None) -> int | float | None:
    """Turn an exact figure into a number of JSON."""
    if figure is None:
        return None
    return exact.plain(figure) if abs(figure) <= LARGEST_EXACT else float(figure)


def origin_from_object(value: object) -> Origin:
    """Read an object made by `origin_to_object`; raises InputError naming the member."""
    file = fields.mapping(value)
    unknown_members = {key: entry for key, entry in file.items() if key not in _FORMS}
    stated = {key: entry for key, entry in file.items() if key in _FORMS}
    return Origin(**read_object(stated, _FORMS), unknown_members=unknown_members, from_file=True)


_CERTIFICATE = {"argument": TEXT, "devices": listed(whole(0, MAX_DEVICES - 1))}


def certificate_from_object(value: object) -> Certificate:
    """Read a certificate; raises InputError naming the member."""
    argument, devices = read_object(value, _CERTIFICATE, _CERTIFICATE).values()
    if argument in tuple(Argument):
        return Certificate(Argument(argument), devices)
    known = {name: decision for decision, name in _COVERED.items()}
    known["combinations"] = Decisions.PLACEMENT | Decisions.OF_STRATEGY
    decisions = Decisions.NONE
    for name in argument.split("-"):
        if name not in known:
            texts = ", ".join((*Argument, *known))
            raise InputError(f"argument: {abbreviated(argument)} is unknown; use {texts}")
        decisions |= known[name]
    return Certificate(Argument.SEARCH, devices, decisions)


_INTEGER = whole(-LARGEST_INT, LARGEST_INT)
_FIGURE = Form(lambda value: Fraction(finite(value)))
_HINT = {
    "value": _FIGURE,
    "gain": or_none(FINITE),
    "fits_limit": FLAG,
    "peak_memory": listed(_FIGURE),
    "notes": listed(TEXT),
}
VERSIONS = mapping(TEXT)
"""Versions by the name of the program."""
_FORMS: Forms = {
    "strategy": Form(lambda value: current_name(text(value))),
    "objective": member(Objective),
    "backward_kind": member(BackwardKind),
    "status": TEXT,
    "value": _FIGURE,
    "lower_bound": _FIGURE,
    "gap": FINITE,
    "proof": TEXT,
    "certificate": Form(certificate_from_object),
    "seed": _INTEGER,
    "workers": _INTEGER,
    "time_limit": FINITE,
    "versions": VERSIONS,
    "hint": record(HintRecord, _HINT, _HINT),
    "options": mapping(_INTEGER),
}
"""Form of every known member; the keys are fields of `Origin`, which `json_form` writes."""
