"""Interface of an engine: runs tasks elsewhere and returns their outcomes."""

from __future__ import annotations

from typing import Protocol

from ppopt.studies.task import Done, Work

STOPPED = Done(interrupted=True)
"""Outcome of a task that was not begun, or ended without a result."""


class Engine(Protocol):
    """Runs tasks elsewhere; a task that cannot be run returns as failed."""

    @property
    def free(self) -> int:
        """Number of tasks that it can accept now."""

    @property
    def slots(self) -> int:
        """Number of tasks that it runs at the same time."""

    @property
    def busy(self) -> int:
        """Number of tasks submitted and not returned."""

    def submit(self, number: int, task: Work) -> None:
        """Submit a task."""

    def wait(self, seconds: float) -> list[tuple[int, Done]]:
        """Return the ended tasks by their numbers; waits for the first, at most `seconds`."""

    def stop(self) -> None:
        """Ask searches to end with what they have, and start no further tasks."""

    def close(self) -> None:
        """End at once."""
