"""Numbers as they are shown: digits, units, shares, values of all devices."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

NONE = "–"  # noqa: RUF001  # an en dash stands for "there is none"
FEW_DEVICES = 8
"""Values of at most this many devices are all listed."""


def number(value: float | Fraction | None) -> str:
    """Write a number without trailing zeros, with at most six decimals: 27, 0.5, 0.333333."""
    if value is None:
        return NONE
    rounded = float(value)
    if rounded.is_integer():
        return str(int(value))
    if abs(rounded) < 1e-3:
        return f"{rounded:.6g}"
    return f"{rounded:.6f}".rstrip("0").rstrip(".")


def measured(value: float | Fraction | None, unit: str | None) -> str:
    """Write a number with its unit, if that is known: `3.2 ms`."""
    return number(value) if value is None else _with(number(value), unit)


def rounded(value: float | Fraction, unit: str | None) -> str:
    """Write a number in six digits with its unit, for a glance: `4697.14 ms`."""
    value = float(value)
    return measured(round(value) if abs(value) >= 1e6 else float(f"{value:.6g}"), unit)


def short(value: float | None) -> str:
    """Write a number for narrow columns: six digits, at most three of them decimals."""
    if value is None:
        return NONE
    whole = len(str(int(abs(value))))
    return number(round(value, min(3, max(0, 6 - whole))))


def _with(words: str, unit: str | None) -> str:
    return words if unit is None else f"{words} {unit}"


def headed(name: str, unit: str | None) -> str:
    """Name of a column or axis, with the unit of its figures if that is known: `time (ms)`."""
    return name if unit is None else f"{name} ({unit})"


def grouped(value: float | None) -> str:
    """Write a number that needs no fraction: `41,200`, or three digits below 100."""
    if value is None:
        return NONE
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def percent(share: float | Fraction | None) -> str:
    """Write a share as a percentage with at most two decimals: 0.15625 is 15.63 %."""
    if share is None:
        return NONE
    if 0 < share < 0.00005:
        return "under 0.01 %"
    return f"{float(100 * share):.2f}".rstrip("0").rstrip(".") + " %"


def per_device(values: Sequence[float] | None, unit: str | None = None) -> str:
    """Values of all devices and the largest: `max 4 GiB (4 4 3 2)`, or `4 GiB each`."""
    if not values:
        return NONE
    if min(values) == max(values):
        return spread(values, unit)
    return f"max {measured(max(values), unit)} ({spread(values)})"


def spread(values: Sequence[float], unit: str | None = None) -> str:
    """Values of all devices: `4 4 3 2 GiB`, `4 GiB each`, or the first and last of many."""
    if len(values) > 1 and min(values) == max(values):
        return f"{measured(values[0], unit)} each"
    shown = [number(value) for value in values]
    if len(shown) > FEW_DEVICES:
        shown[3:-3] = [".."]
    return _with(" ".join(shown), unit)


def lowered(value: int) -> str:
    """A number in subscript digits."""
    return "".join(chr(0x2080 + int(digit)) for digit in str(value))
