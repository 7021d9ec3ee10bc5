"""Values of a GPU: what each measures, and how it is read, with its unit or without."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, TypeAlias

from ppopt.errors import InputError
from ppopt.formats.fields import shown
from ppopt.problem import exact
from ppopt.problem.units import SCALES, Unit

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
    is_whole: bool = False

    def read(self, value: object, where: str) -> float:
        """Read a number, or text of one with its unit.

        Raises InputError, beginning with `where`, if it is neither, or out of range.
        """
        parts = _WITH_UNIT.fullmatch(value) if isinstance(value, str) else None
        number, unit = (value, None) if parts is None else (parts[1], parts[2])
        if unit is not None and unit not in self.units:
            raise self._error(f"{shown(value)}: unit {unit} is unknown", where)
        amount = exact.fraction(number, where) * (1 if unit is None else self.units[unit])
        if not self.minimum <= amount <= self.maximum:
            bounds = f"{self.minimum:g} .. {self.maximum:g} {self.unit}".strip()
            raise self._error(f"{shown(value)} is not within {bounds}", where)
        if self.is_whole and amount.denominator != 1:
            raise self._error(f"{shown(value)} is not a whole number", where)
        return exact.plain(amount)

    def _error(self, fault: str, where: str) -> InputError:
        return InputError(f"{where}: {fault}; write {self.example}")


@dataclass(frozen=True)
class MeasureByRanks:
    """What a value measures that depends on the number of ranks: a table, ranks -> value."""

    each: Measure

    def read(self, value: object, where: str) -> Mapping[int, float]:
        """Read a table, or one value for any number of ranks.

        Raises InputError, beginning with `where`, if it is neither.
        """
        if not isinstance(value, Mapping):
            return {2: self.each.read(value, where)}
        if not value:
            raise InputError(f"{where}: the table is empty; write {{2 = 0.6, 8 = 0.7}}")
        table = {
            _ranks(ranks, where): self.each.read(each, f"{where}: {ranks}")
            for ranks, each in value.items()
        }
        return dict(sorted(table.items()))


def _ranks(text: str, where: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 8 and int(text) >= 2):
        raise InputError(
            f"{where}: {shown(text)} is no number of ranks; write {{2 = 0.6, 8 = 0.7}}"
        )
    return int(text)


_PER_SECOND = {f"{unit}/s": size for unit, size in _BYTES.items()}
_BITS_PER_SECOND = {f"{prefix}b/s": Fraction(size, 8) for prefix, size in _SI.items()}
_FLOP = {f"{prefix}FLOP": Fraction(size) for prefix, size in _SI.items()}
_FLOP_PER_SECOND = {f"{unit}/s": size for unit, size in _FLOP.items()}
_FLOPS = {f"{unit}S": size for unit, size in _FLOP.items()}
_SHARE = Measure("", 0.001, 1, "0.6")

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
Count: TypeAlias = Annotated[int, Measure("GPUs", 1, 1e6, "8", is_whole=True)]
