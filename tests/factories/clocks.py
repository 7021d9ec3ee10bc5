"""Clocks that a test controls: time passes by readings of the clock, never by itself."""

from __future__ import annotations

import time

import pytest

MAX_READINGS = 20_000
"""Readings after which a test fails: what it tests does not end."""


class SteppingClock:
    """A clock on which a fixed time passes from one reading to the next."""

    def __init__(self, step: float = 1.0) -> None:
        self.step = step
        self.readings = 0

    def __call__(self) -> float:
        """Time of the next reading. Raises AssertionError if the clock was read too often."""
        self.readings += 1
        assert self.readings <= MAX_READINGS, "the clock is read without end"
        return self.readings * self.step


def stepping_clock(patch: pytest.MonkeyPatch, limit: float, readings: int) -> SteppingClock:
    """Replace `time.monotonic` by a clock on which `limit` seconds pass in so many readings."""
    clock = SteppingClock(limit / readings)
    patch.setattr(time, "monotonic", clock)
    return clock
