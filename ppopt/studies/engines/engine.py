"""What a sweep asks of an engine."""

from __future__ import annotations

from typing import Protocol

from ppopt.studies.task import Done, Task

STOPPED = Done(interrupted=True)
"""What comes back of a task that was not begun, or ended without anything."""


class Engine(Protocol):
    """Does tasks somewhere else; a task that cannot be done comes back as failed."""

    @property
    def free(self) -> int:
        """How many more tasks it takes now."""

    @property
    def busy(self) -> int:
        """How many tasks it has that have not come back."""

    def submit(self, number: int, task: Task) -> None:
        """Hand over a task."""

    def wait(self, seconds: float) -> list[tuple[int, Done]]:
        """Tasks that have ended, by their numbers; waits for the first, at most so long."""

    def stop(self) -> None:
        """Ask searches to end with what they have, and start no further tasks."""

    def close(self) -> None:
        """End at once."""
