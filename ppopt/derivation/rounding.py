"""Costs as model files have them: times in ms, memory in MiB."""

from __future__ import annotations

from math import ceil

MIB = 2**20
SHORTEST = 0.001
"""ms; every time is a multiple of it."""


def mib(size: float) -> int:
    """Bytes as MiB, rounded up."""
    return ceil(size / MIB)


def rounded(milliseconds: float) -> float:
    """A time in ms, a multiple of `SHORTEST`; 0 if there is no work."""
    return max(SHORTEST, round(milliseconds, 3)) if milliseconds else 0.0


def rounded_seconds(time: float) -> float:
    """Seconds as ms; 0 if there is no work."""
    return rounded(1000 * time)
