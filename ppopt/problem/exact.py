"""Exact numbers: decimals in, fractions inside, integer ticks for every comparison."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from math import floor, isfinite, lcm
from typing import NamedTuple

from ppopt.errors import InputError

FINEST = 10**6
"""Measured input finer than 1/FINEST of its unit is rounded to it, once, on input."""
LARGEST = 10**12
"""Largest value accepted for a time or an amount of memory, in the user's unit. A Fraction may be
larger: such are the results of exact arithmetic, and sums are checked in ticks."""
LARGEST_COUNT = 10**24
"""Largest number of tokens, or of floating-point operations, per microbatch or second."""
ROUNDING = Fraction(1, 2**52)
"""Relative error of a number that a file gives as a float."""


_DECIMAL = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
"""Text of a number; Decimal itself also reads `1_0` and digits of other scripts."""


class Exact(NamedTuple):
    """A number read exactly; `rounded` tells that it was finer than 1/FINEST."""

    value: Fraction
    rounded: bool


def read(number: object, what: str, *, down: bool = False) -> Exact:
    """Read `number` exactly; raises InputError, naming `what`, on anything but a finite number.

    What is finer than 1/FINEST is rounded to the nearest multiple of it, or `down`.
    """
    if isinstance(number, Fraction):
        return Exact(number, rounded=False)
    fraction = _fraction(number, what)
    if not -LARGEST <= fraction <= LARGEST:
        shown = repr(number) if isinstance(number, str) else number
        raise InputError(f"{what}: {shown} is too large; use a larger unit (at most 10^12)")
    if FINEST % fraction.denominator == 0:
        return Exact(fraction, rounded=False)
    steps = floor(fraction * FINEST) if down else round(fraction * FINEST)
    return Exact(Fraction(steps, FINEST), rounded=True)


def count(number: object, what: str) -> int:
    """Read a whole number above 0 and at most `LARGEST_COUNT`, perhaps written as 989e12.

    Raises InputError, naming `what`, on anything else.
    """
    fraction = number if isinstance(number, Fraction) else _fraction(number, what)
    if fraction.denominator != 1 or not 0 < fraction <= LARGEST_COUNT:
        raise InputError(f"{what}: {number} is not a whole number from 1 to 10^24")
    return fraction.numerator


def _fraction(number: object, what: str) -> Fraction:
    if isinstance(number, bool) or not isinstance(number, int | float | str | Decimal):
        raise InputError(f"{what}: {number!r} is not a number")
    if isinstance(number, int):
        return Fraction(number)
    if isinstance(number, float) and not isfinite(number):
        raise InputError(f"{what}: {number} is not a finite number")
    try:
        decimal = Decimal(str(number).strip())
    except InvalidOperation:
        raise InputError(f"{what}: {number!r} is not a number") from None
    if decimal.is_finite() and isinstance(number, str) and not _DECIMAL.fullmatch(number.strip()):
        raise InputError(
            f"{what}: {number!r} is not a number; write digits 0 to 9, as in 10 or 2.5"
        )
    if not decimal.is_finite():
        raise InputError(f"{what}: {number!r} is not a finite number")
    if decimal and abs(decimal.adjusted()) > 400:
        raise InputError(f"{what}: {number!r} is out of range; use another unit")
    return Fraction(decimal)


def common_denominator(values: Iterable[Fraction]) -> int:
    """Least number of ticks per unit that makes every value a whole number of ticks."""
    return lcm(*(value.denominator for value in values))


def plain(value: Fraction) -> int | float:
    """Turn a value into a number for JSON and display: an int where it is whole, else a float."""
    return value.numerator if value.denominator == 1 else value.numerator / value.denominator


def in_ticks(stated: Fraction, per_unit: int) -> Fraction:
    """Turn a time that a file states, as the float nearest to it, into ticks.

    Whole where it differs from a whole number of ticks by no more than the rounding of a float.
    """
    ticks = stated * per_unit
    nearest = round(ticks)
    return Fraction(nearest) if abs(ticks - nearest) <= ROUNDING * abs(ticks) else ticks
