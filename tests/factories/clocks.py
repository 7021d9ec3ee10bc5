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


class WorkClock:
    """A clock that replaces `time.monotonic`: a second passes in a number of readings.

    A test adds to `work` what is done; the most between two readings is in `most_work`.
    """

    def __init__(self, patch: pytest.MonkeyPatch, readings: int) -> None:
        self.work, self._most = 0, 0
        self._clock = SteppingClock(1 / readings)
        patch.setattr(time, "monotonic", self._read)

    def _read(self) -> float:
        self._most, self.work = max(self._most, self.work), 0
        return self._clock()

    @property
    def readings(self) -> int:
        """Number of readings so far."""
        return self._clock.readings

    @property
    def most_work(self) -> int:
        """Most work between two readings, and since the last one."""
        return max(self._most, self.work)
