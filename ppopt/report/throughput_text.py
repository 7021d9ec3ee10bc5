"""Comparisons of times, as throughput: no other module writes them.

The gain of a new time over an old one is old / new - 1: by which share it has more throughput. A
gain below 0 is a loss.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR
from fractions import Fraction

from ppopt.report.numbers import percent

Number = float | Fraction


def throughput_gain(old: Number, new: Number) -> Fraction:
    """Gain of a time over another one of the same unit; both are above 0."""
    return Fraction(old) / Fraction(new) - 1


def gain_cell(gain: Number) -> str:
    """A gain in a column, rounded down: `9.2 % more`, `3 % less` or `same`."""
    if not gain:
        return "same"
    if gain > 0:
        return f"{percent(gain, ROUND_FLOOR)} more"
    return f"{percent(-gain, ROUND_CEILING)} less"


def gain_text(gain: Number) -> str:
    """A gain, rounded down: `9.2 % more throughput`, `3 % less throughput`."""
    return f"{gain_cell(gain)} throughput" if gain else "the same throughput"


def max_gain_text(gain: Number) -> str:
    """A proved upper bound of a gain, rounded up: `up to 9.2 % more throughput`."""
    return f"up to {percent(gain, ROUND_CEILING)} more throughput"
