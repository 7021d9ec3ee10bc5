"""The origin of a schedule in JSON: the member `origin` of a native schedule file.

Members without a value are left out or null. An unknown member is preserved, so that files of other
versions can be read and written again. The reader refuses values of the wrong type; whether the
values are true is checked by `ppopt.verify` and `ppopt.recheck`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, StrEnum
from fractions import Fraction
from functools import partial
from typing import Any, TypeVar

from ppopt.errors import InputError
from ppopt.formats.fields import abbreviated, finite, flag, section, text, whole, within
from ppopt.problem import exact
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import Decisions
from ppopt.problem.hosting import MAX_DEVICES
from ppopt.problem.objective import Objective
from ppopt.schedule.origin import Argument, Certificate, HintRecord, Origin, current_name

T = TypeVar("T")
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
    stated = {key: getattr(origin, key) for key in _READERS}
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
    if not isinstance(value, dict):
        raise InputError(f"{abbreviated(value)} is not an object {{...}}")
    stated = {
        key: within(key, read, value[key])
        for key, read in _READERS.items()
        if value.get(key) is not None
    }
    unknown_members = {key: entry for key, entry in value.items() if key not in _READERS}
    return Origin(**stated, unknown_members=unknown_members, from_file=True)


def _one_of(kind: type[StrEnum]) -> Callable[[object], StrEnum]:
    """A reader of the text of a member of an enum."""

    def read(value: object) -> StrEnum:
        if not isinstance(value, str) or value not in tuple(kind):
            raise InputError(f"{abbreviated(value)} is unknown; use {' or '.join(kind)}")
        return kind(value)

    return read


def _figure(value: object) -> Fraction:
    return Fraction(finite(value))


def _integer(value: object) -> int:
    return whole(value, -LARGEST_INT, LARGEST_INT)


def _entries(key: str, value: object, read: Callable[[object], T]) -> tuple[T, ...]:
    """Read a list, every entry with `read`."""
    if not isinstance(value, list):
        raise InputError(f"{key}: {abbreviated(value)} is not a list")
    return tuple(within(key, read, entry) for entry in value)


def certificate_from_object(value: object) -> Certificate:
    """Read a certificate; raises InputError naming the member."""
    fields = section(value, ("argument", "devices"))
    device = partial(whole, minimum=0, maximum=MAX_DEVICES - 1)
    devices = _entries("devices", fields["devices"], device)
    argument = within("argument", text, fields["argument"])
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


def _hint(value: object) -> HintRecord:
    fields = section(value, ("value", "gain", "fits_limit", "peak_memory", "notes"))
    gain = fields["gain"]
    return HintRecord(
        value=within("value", _figure, fields["value"]),
        gain=None if gain is None else within("gain", finite, gain),
        fits_limit=within("fits_limit", flag, fields["fits_limit"]),
        peak_memory=_entries("peak_memory", fields["peak_memory"], _figure),
        notes=_entries("notes", fields["notes"], text),
    )


def _members(value: object, read: Callable[[object], T]) -> dict[str, T]:
    """Read an object, every member with `read`."""
    if not isinstance(value, dict):
        raise InputError(f"{abbreviated(value)} is not an object {{...}}")
    return {
        key: within(key if key.isidentifier() else abbreviated(key), read, entry)
        for key, entry in value.items()
    }


def versions_from_object(value: object) -> dict[str, str]:
    """Read versions by the name of the program; raises InputError naming the member."""
    return _members(value, text)


_READERS: dict[str, Callable[[object], Any]] = {
    "strategy": lambda value: current_name(text(value)),
    "objective": _one_of(Objective),
    "backward_kind": _one_of(BackwardKind),
    "status": text,
    "value": _figure,
    "lower_bound": _figure,
    "gap": finite,
    "proof": text,
    "certificate": certificate_from_object,
    "seed": _integer,
    "workers": _integer,
    "time_limit": finite,
    "versions": versions_from_object,
    "hint": _hint,
    "options": partial(_members, read=_integer),
}
"""Reader of every known member; the keys are fields of `Origin`."""
