"""Values of a GPU: what each measures, and how it is read, with its unit or without."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, TypeAlias

from ppopt.errors import InputError
from ppopt.formats.fields import shown, within
from ppopt.problem import exact
from ppopt.problem.settings import Unit
from ppopt.problem.units import SCALES

_WITH_UNIT = re.compile(r"\s*([-+.0-9]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z][A-Za-z/]*)\s*")
_SI = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BYTES = {**SCALES[Unit.MEMORY], "TB": Fraction(10**12), "TiB": Fraction(2**40)}
_GIB = _BYTES["GiB"]


@dataclass(frozen=True)
class Measure:
    """What a value measures: the unit of its plain numbers, its range and its other units."""

    unit: str
    minimum: float
    maximum: float
    example: str
    units: Mapping[str, Fraction] = field(default_factory=dict, hash=False)
    """Unit -> its size in `unit`."""

    def read(self, value: object) -> float:
        """Read a number, or text of one with its unit; raises InputError if it is out of range."""
        parts = _WITH_UNIT.fullmatch(value) if isinstance(value, str) else None
        if parts is not None and parts[2] not in self.units:
            known = ", ".join(self.units) or "no unit"
            raise InputError(f"unit {shown(parts[2])} is unknown; use {known}: {self.example}")
        try:
            number = exact.fraction(value if parts is None else parts[1], "")
        except InputError:
            raise InputError(f"{shown(value)} is not a number; write {self.example}") from None
        number *= 1 if parts is None else self.units[parts[2]]
        if not self.minimum <= number <= self.maximum:
            raise InputError(
                f"{shown(value)} is not within {self.minimum:g} .. {self.maximum:g} {self.unit}; "
                f"write {self.example}".replace(" ;", ";")
            )
        return exact.plain(number)


@dataclass(frozen=True)
class MeasureByRanks:
    """A value that depends on the number of ranks of a group: a table, ranks -> value."""

    each: Measure

    def read(self, value: object) -> Mapping[int, float]:
        """Read a table, or one value for any number of ranks."""
        if not isinstance(value, Mapping):
            return {2: self.each.read(value)}
        if not value:
            raise InputError("the table is empty; write {2 = 0.6, 8 = 0.7}, ranks = value")
        table = {
            _ranks(ranks): within(ranks, self.each.read, each) for ranks, each in value.items()
        }
        return dict(sorted(table.items()))


def _ranks(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 2 <= int(text[:9]) <= 10**6):
        raise InputError(f"{shown(text)} is no number of ranks; write {{2 = 0.6, 8 = 0.7}}")
    return int(text)


_PER_SECOND = {f"{unit}/s": size for unit, size in _BYTES.items()}
_BITS_PER_SECOND = {f"{prefix}b/s": Fraction(size, 8) for prefix, size in _SI.items()}
_FLOP = {f"{prefix}FLOP": Fraction(size) for prefix, size in _SI.items()}
_FLOP_PER_SECOND = {f"{unit}/s": size for unit, size in _FLOP.items()}
_FLOPS = {f"{unit}S": size for unit, size in _FLOP.items()}
_SHARE = Measure("", 0.001, 1, "0.6, a share above 0")

FlopsPerSecond: TypeAlias = Annotated[
    float, Measure("FLOP/s", 1e12, 1e18, "989e12 or 989TFLOP/s", _FLOP_PER_SECOND | _FLOPS)
]
Flops: TypeAlias = Annotated[float, Measure("FLOP", 0, 1e15, "30e9 or 30GFLOP", _FLOP)]
Capacity: TypeAlias = Annotated[
    float,
    Measure("GiB", 1, 1e5, "80 or 80GiB", {unit: size / _GIB for unit, size in _BYTES.items()}),
]
Bandwidth: TypeAlias = Annotated[
    float, Measure("bytes/s", 1e8, 1e15, "50e9 or 50GB/s", _PER_SECOND | _BITS_PER_SECOND)
]
Seconds: TypeAlias = Annotated[float, Measure("s", 0, 1, "10e-6 or 10us", SCALES[Unit.TIME])]
Share: TypeAlias = Annotated[float, _SHARE]
ByRanks: TypeAlias = Annotated[Mapping[int, float], MeasureByRanks(_SHARE)]
Number: TypeAlias = Annotated[float, Measure("", 0, 1e6, "150")]
Count: TypeAlias = Annotated[int, Measure("GPUs", 1, 1e6, "8")]
