"""Numbers as they are shown: digits, units, shares, values of all devices."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction

NONE = "–"  # noqa: RUF001  # an en dash stands for "there is none"
MAX_EXACT = 10**6
"""Whole numbers below it are written exactly."""
_PRECISE = Context(prec=400)
"""For numbers of any size that a float can have."""
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
    return number(value) if value is None else with_unit(number(value), unit)


def significant(
    value: float | Fraction | None, unit: str | None = None, rounding: str = ROUND_HALF_EVEN
) -> str:
    """Write a number in four significant digits with its unit, if that is known: `2,635 ms`.

    A whole number below a million is exact. `rounding` is one of `decimal`: a lower bound is
    rounded down.
    """
    if value is None:
        return NONE
    exact = Decimal(repr(float(value)))
    whole = exact == exact.to_integral_value()
    if not whole or abs(exact) >= MAX_EXACT:
        last_digit = Decimal(1).scaleb(exact.adjusted() - 3)
        exact = exact.quantize(last_digit, rounding, _PRECISE)
    text = f"{exact:,f}"
    return with_unit(text.rstrip("0").rstrip(".") if "." in text else text, unit)


def lower_bound_text(
    bound: float | Fraction | None, value: float | Fraction | None, unit: str | None = None
) -> str:
    """Write a lower bound of a value, rounded down; one that equals the value has its digits."""
    return significant(bound, unit, ROUND_HALF_EVEN if bound == value else ROUND_FLOOR)


def with_unit(text: str, unit: str | None) -> str:
    """Write a unit behind a number, if it is known."""
    return text if unit is None else f"{text} {unit}"


def headed(name: str, unit: str | None) -> str:
    """Name of a column or axis, with the unit of its figures if that is known: `time (ms)`."""
    return name if unit is None else f"{name} ({unit})"


def percent(share: float | Fraction | None, rounding: str = ROUND_HALF_EVEN) -> str:
    """Write a share as a percentage: one decimal from 1 % on, two below, `less than 0.01 %`.

    `rounding` is one of `decimal`: a gain is rounded down, and a gap up.
    """
    if share is None:
        return NONE
    exact = Decimal(repr(round(float(share), 12))).scaleb(2)  # differences of floats are inexact
    digits = Decimal("0.1") if abs(exact) >= 1 else Decimal("0.01")
    rounded = exact.quantize(digits, rounding, _PRECISE)
    if not rounded and exact:
        return "less than 0.01 %"
    return f"{rounded:f}".rstrip("0").rstrip(".") + " %"


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
    texts = [number(value) for value in values]
    if len(texts) > FEW_DEVICES:
        texts[3:-3] = [".."]
    return with_unit(" ".join(texts), unit)


def lowered(value: int) -> str:
    """A number in subscript digits."""
    return "".join(chr(0x2080 + int(digit)) for digit in str(value))
