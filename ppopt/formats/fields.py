"""Checks of single values read from files; each raises InputError and nothing else."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable
from decimal import Decimal
from math import nan
from sys import float_info
from typing import Any, NoReturn, ParamSpec, TypeVar

from ppopt.errors import InputError
from ppopt.problem.settings import nearest

LARGEST_EXACT = 2**53
"""Largest whole number up to which floats, and so other readers of JSON, are exact."""
P = ParamSpec("P")
T = TypeVar("T")


def abbreviated(value: object) -> str:
    """A value for a message: short, and on one line."""
    return str(value)[:40] if isinstance(value, Decimal) else reprlib.repr(value)


def unknown_key(key: str, known: Iterable[str]) -> NoReturn:
    """Raise InputError for a key that is not known, naming the nearest that is."""
    raise InputError(f"unknown key {abbreviated(key)}; did you mean {nearest(key, known)}?")


def within(where: str, check: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a check; the message of its InputError is prefixed with `where`."""
    try:
        return check(*args, **kwargs)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def text(value: object) -> str:
    """Check for text."""
    if not isinstance(value, str):
        raise InputError(f"{abbreviated(value)} is not text; put it in quotes")
    return value


def flag(value: object) -> bool:
    """Check for true or false."""
    if not isinstance(value, bool):
        raise InputError(f"{abbreviated(value)} is neither true nor false")
    return value


def finite(value: object) -> float:
    """Check for a finite number."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else nan
    if not -float_info.max <= number <= float_info.max:
        raise InputError(f"{abbreviated(value)} is not a finite number")
    return number


def whole(value: object, minimum: int, maximum: int) -> int:
    """Check for a whole number within bounds; refuses True and 1.0."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{abbreviated(value)} is not a whole number")
    if not minimum <= value <= maximum:
        raise InputError(
            f"{abbreviated(value)} is not within {minimum} .. {maximum}"
            f"{_why(value, minimum, maximum)}"
        )
    return value


def _why(value: int, minimum: int, maximum: int) -> str:
    """Explanation of a number out of bounds, if it says more than the bounds."""
    if value < 0 == minimum:
        return ": it is negative"
    return ": above 2^53 figures are not exact" if value > maximum == LARGEST_EXACT else ""


def mapping(value: object) -> dict[str, Any]:
    """Check for a mapping."""
    if not isinstance(value, dict):
        raise InputError(f"{abbreviated(value)} is not an object {{...}}")
    return value


def section(value: object, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Any]:
    """Check for a mapping with all required keys, and no others but the optional ones."""
    file, known = mapping(value), (*required, *optional)
    for key in file:
        if key not in known:
            unknown_key(str(key), known)
    for key in required:
        if key not in file:
            raise InputError(f"{key} is missing")
    return file
