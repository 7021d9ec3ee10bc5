"""Units of time and memory: numbers with a unit (`3.2ms`, `80GiB`), converted exactly.

A number without a unit is in the unit that the pipeline declares. If it declares none, it has the
largest unit of the numbers with one, and every other number of that measure needs a unit too,
unless it is 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from ppopt.errors import InputError
from ppopt.problem import exact


class Unit(StrEnum):
    """The quantity that a number measures."""

    TIME = "time"
    MEMORY = "memory"


SCALES: Mapping[str, Mapping[str, Fraction]] = {
    "time": {
        "ns": Fraction(1, 10**9),
        "us": Fraction(1, 10**6),
        "ms": Fraction(1, 10**3),
        "s": Fraction(1),
    },
    "memory": {
        "B": Fraction(1),
        "KB": Fraction(10**3),
        "MB": Fraction(10**6),
        "GB": Fraction(10**9),
        "KiB": Fraction(2**10),
        "MiB": Fraction(2**20),
        "GiB": Fraction(2**30),
    },
}
"""Measure -> unit -> its size in seconds or bytes (SI prefixes; IEC 80000-13 for KiB, MiB, GiB)."""
_WITH_UNIT = re.compile(
    r"\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*([^\W\d_]+)\s*"
)


@dataclass(frozen=True)
class NumberWithUnit:
    """A number with its unit, already exact: `"3.2ms"` as a value."""

    value: Fraction
    unit: str

    def __str__(self) -> str:
        return f"{exact.plain(self.value)}{self.unit}"


class Resolved(NamedTuple):
    """Values of one measure, all in one unit."""

    unit: str | None
    """None: no number has a unit, and none is declared."""
    values: dict[str, Any]
    """As given, by name; numbers with a unit as Fraction in `unit`."""
    rounded: tuple[str, ...]
    """Names of values with a number that was finer than 10^-6 of its unit."""


def resolve(
    measure: str,
    declared: object,
    numbers: Mapping[str, object],
    down: Collection[str] = (),
    standing: Mapping[str, str] = MappingProxyType({}),
) -> Resolved:
    """Convert every number with a unit to one unit: the declared one, or the largest.

    `measure` is `time` or `memory`. `numbers` has numbers and quantities, or nested lists of them,
    by the name of their setting. A number finer than 10^-6 of its own unit is rounded to that,
    those of the names in `down` downwards. `standing` has the settings that are at their default,
    with their names in files. Raises InputError, naming the setting, on unknown units, or if a
    number other than 0 has no unit and others have one.
    """
    scales = SCALES[measure]
    if declared is not None and not (isinstance(declared, str) and declared in scales):
        hint = suggestion(measure, declared)
        raise InputError(f"{measure}_unit: {_quoted(declared)} is unknown; {hint}")
    carried = set(_carried(measure, numbers))
    if not carried:
        return Resolved(declared, dict(numbers), ())
    unit = declared or max(carried, key=scales.__getitem__)
    if declared is None:
        _check_plain(measure, numbers, unit, standing)
    rounded: dict[str, None] = {}

    def read(name: str, number: object) -> object:
        parts = _parts(number)
        if parts is None:
            return number
        reading = exact.read(parts[0], name, down=name in down)
        if reading.rounded:
            rounded[name] = None
        return reading.value * scales[parts[1]] / scales[unit]

    values = {name: _each(value, partial(read, name)) for name, value in numbers.items()}
    return Resolved(unit, values, tuple(rounded))


def with_unit(value: Fraction, unit: str | None) -> str:
    """Write an amount with its unit, if that is known: `3.2 ms`."""
    return str(exact.plain(value)) if unit is None else f"{exact.plain(value)} {unit}"


def attached(value: object, unit: str) -> object:
    """Add a unit to every number without one, of nested lists too."""

    def attach(number: object) -> object:
        return number if _parts(number) or isinstance(number, bool) else f"{number}{unit}"

    return _each(value, attach)


def suggestion(measure: str, unit: object) -> str:
    """The units that an unknown one may abbreviate (`G`: GB or GiB), or all units."""
    near = [name for name in SCALES[measure] if name.lower().startswith(str(unit).lower())]
    *names, last = near or SCALES[measure]
    listed = f"{', '.join(names)} or {last}" if names else last
    return f"did you mean {listed}?" if near else f"use {listed}"


def _quoted(value: object) -> str:
    return repr(value if not isinstance(value, str) else value[:40])


def _parts(number: object) -> tuple[object, str] | None:
    """Split a quantity, or text, into its number and its unit; None if it is not both."""
    if isinstance(number, NumberWithUnit):
        return number.value, number.unit
    match = _WITH_UNIT.fullmatch(number) if isinstance(number, str) else None
    return None if match is None else (match[1], match[2])


def _carried(measure: str, numbers: Mapping[str, object]) -> Iterator[str]:
    """Yield the unit of every number that has one."""
    for name, value in numbers.items():
        for number in _leaves(value):
            parts = _parts(number)
            if parts is None:
                continue
            if parts[1] not in SCALES[measure]:
                raise InputError(
                    f"{name}: {_quoted(number)}: {_quoted(parts[1])} is not a unit of {measure}; "
                    f"{suggestion(measure, parts[1])}"
                )
            yield parts[1]


def _check_plain(
    measure: str, values: Mapping[str, object], unit: str, standing: Mapping[str, str]
) -> None:
    """Raise InputError for a number without a unit if others have one."""
    numbers = [(name, number) for name, value in values.items() for number in _leaves(value)]
    named, example = next((name, f"{number}") for name, number in numbers if _parts(number))
    for name, number in sorted(numbers, key=lambda pair: pair[0] in standing):
        if _parts(number) is not None or not exact.read(number, name).value:
            continue
        amount = exact.plain(exact.read(number, name).value)
        if name in standing:
            raise InputError(
                f"{named}: {example} has a unit, but {standing[name]}, {amount} by default, has "
                f"none; give {standing[name]} with its unit, or {measure}_unit"
            )
        raise InputError(
            f"{name}: {amount} has no unit, but other numbers of {measure} have, such as "
            f"{example}; write {amount}{unit}, or give {measure}_unit"
        )


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _leaves(value: Any) -> Iterator[object]:
    if not _is_list(value):
        yield value
        return
    for entry in value:
        yield from _leaves(entry)


def _each(value: Any, change: Callable[[object], object]) -> Any:
    """Change every number of nested lists."""
    return [_each(entry, change) for entry in value] if _is_list(value) else change(value)
