"""Exact numbers: decimals in, fractions inside, integer ticks for every comparison."""

from __future__ import annotations

import re
import reprlib
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from math import floor, lcm
from typing import NamedTuple, TypeVar

from ppopt.errors import InputError
from ppopt.problem.distinct import distinct

Value = TypeVar("Value", int, Fraction)
FINEST = 10**6
"""Measured input finer than 1/FINEST of its unit is rounded to it, once, on input."""
LARGEST = 10**12
"""Largest value accepted for a time or an amount of memory, in the user's unit. A Fraction may be
larger: it is a result of exact arithmetic, and sums are checked in ticks."""
LARGEST_COUNT = 10**24
"""Largest number of tokens, or of floating-point operations, per microbatch or second."""
LARGEST_EXPONENT = 300
"""Largest decimal exponent of a number, and the smallest below 0: every such number has a float."""
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
    value = fraction(number, what)
    if abs(value.numerator) > LARGEST * value.denominator:
        raise InputError(
            f"{what}: {_abbreviated(number)} is too large; use a larger unit (at most 10^12)"
        )
    if FINEST % value.denominator == 0:
        return Exact(value, rounded=False)
    steps = floor(value * FINEST) if down else round(value * FINEST)
    return Exact(Fraction(steps, FINEST), rounded=True)


def is_number(text: str) -> bool:
    """Whether text has the form of a number; `read` may still refuse it as too large."""
    return _DECIMAL.fullmatch(text.strip()) is not None


def count(number: object, what: str) -> int:
    """Read a whole number above 0 and at most `LARGEST_COUNT`, perhaps written as 989e12.

    Raises InputError, naming `what`, on anything else.
    """
    value = number if isinstance(number, Fraction) else fraction(number, what)
    if value.denominator != 1 or not 0 < value <= LARGEST_COUNT:
        raise InputError(f"{what}: {str(number)[:40]} is not a whole number from 1 to 10^24")
    return value.numerator


def fraction(number: object, what: str) -> Fraction:
    """The exact value of a number, or of text of one; raises InputError, naming `what`.

    It looks at the exponent before it computes: 1e999999999 as a fraction would fill the memory.
    """
    if isinstance(number, bool) or not isinstance(number, int | float | str | Decimal):
        raise InputError(f"{what}: {_abbreviated(number)} is not a number")
    if isinstance(number, int):
        if abs(number) > 10**LARGEST_EXPONENT:
            raise InputError(f"{what}: the number is out of range; use another unit")
        return Fraction(number)
    text = str(number).strip()
    is_decimal = _DECIMAL.fullmatch(text) is not None
    try:
        decimal = Decimal(text)
    except InvalidOperation:  # Decimal has bounds of its own for exponents
        why = "out of range; use another unit" if is_decimal else "not a number"
        raise InputError(f"{what}: {_abbreviated(number)} is {why}") from None
    if not decimal.is_finite():
        raise InputError(f"{what}: {_abbreviated(number)} is not a finite number")
    if not is_decimal:
        raise InputError(
            f"{what}: {_abbreviated(number)} is not a number; write digits 0 to 9, as in 10 or 2.5"
        )
    if decimal and abs(decimal.adjusted()) > LARGEST_EXPONENT:
        raise InputError(f"{what}: {_abbreviated(number)} is out of range; use another unit")
    return Fraction(decimal)


def _abbreviated(number: object) -> str:
    """A number for a message, short: text in quotes, others as they print."""
    return reprlib.repr(number) if isinstance(number, str) else str(number)[:40]


def common_denominator(values: Iterable[Fraction]) -> int:
    """Smallest number of ticks per unit that makes every value a whole number of ticks."""
    return lcm(*(value.denominator for value in distinct(values)))


def total(values: Iterable[Fraction]) -> Fraction:
    """Sum of values; values that are one object are multiplied by their number."""
    values = tuple(values)
    numbers = Counter(map(id, values))
    return sum((numbers[id(value)] * value for value in distinct(values)), Fraction(0))


def plain(value: Fraction) -> int | float:
    """Turn a value into a number for JSON and display: an int if it is whole, else a float."""
    return value.numerator if value.denominator == 1 else value.numerator / value.denominator


def plain_or_none(value: Fraction | None) -> int | float | None:
    """The same for a value that may be unknown."""
    return None if value is None else plain(value)


def ratio(part: Fraction | int, whole: Fraction | int) -> int | float:
    """A part of a whole as a number for JSON and display; 0 if the whole is 0."""
    return plain(Fraction(part) / whole) if whole else 0


def min_known(values: Iterable[Value | None]) -> Value | None:
    """Minimum of the values that are not None; None if there is none."""
    return min((value for value in values if value is not None), default=None)


def gap_of(value: Fraction | int | None, lower_bound: Fraction | int | None) -> int | float | None:
    """(value - lower_bound) / value; None if either is unknown."""
    if value is None or lower_bound is None:
        return None
    return ratio(value - lower_bound, value)


def whole(ticks: Fraction) -> int:
    """Ticks as an integer; asserts that they are whole."""
    assert ticks.denominator == 1, f"{ticks} ticks are not whole"
    return ticks.numerator


def in_ticks(stated: Fraction, per_unit: int) -> Fraction:
    """Turn a time that a file states, as the float nearest to it, into ticks.

    Whole if it differs from a whole number of ticks by no more than the rounding of a float.
    """
    ticks = stated * per_unit
    nearest = round(ticks)
    return Fraction(nearest) if abs(ticks - nearest) <= ROUNDING * abs(ticks) else ticks
