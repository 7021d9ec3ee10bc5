"""Clocks that a test controls: no test depends on the speed or the load of its machine."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from math import inf
from typing import Any
from unittest import mock

import pytest
from ortools.sat.python import cp_model

EVENTS = 4_000_000
"""Calls and returns of functions in a second of work, as on a slow processor."""
SHORT = 500_000
"""The same where a test lets a search run to its limit: it costs less."""


class WorkClock:
    """A clock that work moves forward, and nothing else.

    Work is counted: calls and returns of functions, and the deterministic time of CP-SAT. The work
    inside one call of a function in C, of NumPy for example, counts as one call.
    """

    def __init__(self, events_per_second: int) -> None:
        self._events_per_second = events_per_second
        self._events = 0
        self._solver_seconds = 0.0

    def count(self, *_: object) -> None:
        """Count a call or a return; a profile function of `sys.setprofile`."""
        self._events += 1

    def monotonic(self) -> float:
        """Seconds of work since the clock was created."""
        return self._events / self._events_per_second + self._solver_seconds

    def add_solver_seconds(self, seconds: float) -> None:
        """Move the clock forward by the deterministic time of a run of CP-SAT."""
        self._solver_seconds += seconds


@contextmanager
def work_clock(events_per_second: int = EVENTS) -> Iterator[WorkClock]:
    """Replace `time.monotonic` by a clock of the work of this process, for searches of one worker.

    CP-SAT keeps its time limit in deterministic time.
    """
    clock, solve = WorkClock(events_per_second), cp_model.CpSolver.solve

    def counted_solve(solver: cp_model.CpSolver, *arguments: Any) -> Any:
        limits = solver.parameters
        seconds = min(limits.max_deterministic_time, limits.max_time_in_seconds)
        limits.max_deterministic_time, limits.max_time_in_seconds = seconds, inf
        status = solve(solver, *arguments)
        clock.add_solver_seconds(solver.response_proto.deterministic_time)
        return status

    before = sys.getprofile()
    with (
        mock.patch.object(time, "monotonic", clock.monotonic),
        mock.patch.object(cp_model.CpSolver, "solve", counted_solve),
    ):
        threading.setprofile(clock.count)
        sys.setprofile(clock.count)
        try:
            yield clock
        finally:
            sys.setprofile(before)
            threading.setprofile(before)


@contextmanager
def processor_clock() -> Iterator[None]:
    """Let the clock of searches and re-checks count what this process takes of the processor.

    How busy the machine is changes nothing then, if the search has one worker. Instants are of no
    use to other processes.
    """
    readers = [
        module
        for name, module in sys.modules.items()
        if name.startswith("ppopt.") and getattr(module, "monotonic", None) is time.monotonic
    ]
    with ExitStack() as patches:
        for module in (time, *readers):
            patches.enter_context(mock.patch.object(module, "monotonic", time.process_time))
        yield


def late(seconds: float, limit: float) -> bool:
    """Whether a time limit is exceeded by more than 10 % and one second."""
    return seconds > 1.1 * limit + 1


HANGS = 600.0
"""Seconds after which a test gives up on another process or thread: it hangs on any machine."""


def wait_until(holds: Callable[[], Any]) -> None:
    """Wait for what another process or thread does; fail if it hangs."""
    end = time.monotonic() + HANGS
    while not holds():
        assert time.monotonic() < end, "nothing has happened for ten minutes"
        time.sleep(0.01)


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


class WorkBetweenReadings:
    """A clock that replaces `time.monotonic`: a second passes in a number of readings.

    A test adds to `work` what is done; the maximum between two readings is `max_work`.
    """

    def __init__(self, patch: pytest.MonkeyPatch, readings: int) -> None:
        self.work, self._maximum = 0, 0
        self._clock = SteppingClock(1 / readings)
        patch.setattr(time, "monotonic", self._read)

    def _read(self) -> float:
        self._maximum, self.work = max(self._maximum, self.work), 0
        return self._clock()

    @property
    def readings(self) -> int:
        """Number of readings so far."""
        return self._clock.readings

    @property
    def max_work(self) -> int:
        """Maximum work between two readings, and since the last one."""
        return max(self._maximum, self.work)
