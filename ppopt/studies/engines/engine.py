"""Interface of an engine, which runs tasks and returns their outcomes; and `DirectEngine`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from ppopt import interrupts
from ppopt.cancellation import shield
from ppopt.studies.task import Done, TaskProtocol

STOPPED = Done(interrupted=True)
"""Outcome of a task that was not started, or ended without a result."""
PAUSE = 0.2
"""Seconds between two checks for Ctrl-C."""
STOPPING = 10.0
"""Seconds within which searches must end after Ctrl-C."""


class Engine(Protocol):
    """Runs tasks; a task that cannot be run returns as failed."""

    @property
    def free(self) -> int:
        """Number of tasks that it can accept now."""

    @property
    def slots(self) -> int:
        """Number of tasks that it runs at the same time."""

    @property
    def busy(self) -> int:
        """Number of tasks submitted and not returned."""

    def submit(self, task_id: int, task: TaskProtocol) -> None:
        """Submit a task."""

    def wait(self, seconds: float) -> list[tuple[int, Done]]:
        """Return (task id, outcome) of ended tasks; waits for the first, at most `seconds`."""

    def stop(self) -> None:
        """Ask searches to end with their best results, and start no further tasks."""

    def close(self) -> None:
        """End at once."""


class DirectEngine:
    """Engine that performs a task in this process when `wait` is called."""

    def __init__(self) -> None:
        self._tasks: deque[tuple[int, TaskProtocol]] = deque()
        self._stopped = False

    @property
    def slots(self) -> int:
        """Number of tasks that it runs at the same time."""
        return 1

    @property
    def busy(self) -> int:
        """Number of tasks submitted and not returned."""
        return len(self._tasks)

    @property
    def free(self) -> int:
        """Number of tasks that it can accept now."""
        return 0 if self._stopped else 1 - self.busy

    def submit(self, task_id: int, task: TaskProtocol) -> None:
        """Submit a task."""
        self._tasks.append((task_id, task))

    def wait(self, seconds: float) -> list[tuple[int, Done]]:  # noqa: ARG002  of the protocol
        """Perform the first task, which may take longer than `seconds`."""
        if not self._tasks:
            return []
        task_id, task = self._tasks.popleft()
        with shield():
            return [(task_id, STOPPED if self._stopped else task.perform())]

    def stop(self) -> None:
        """Perform no further task."""
        self._stopped = True

    def close(self) -> None:
        """Discard all tasks."""
        self._tasks.clear()


def run_tasks(
    engine: Engine,
    following: Callable[[], tuple[int, TaskProtocol] | None],
    take: Callable[[Sequence[tuple[int, Done]]], None],
    ends: Callable[[], bool] = lambda: interrupts.pressed(2),
    *,
    ahead: bool = True,
) -> None:
    """Submit tasks and process their outcomes, until the engine has none or `ends` says so.

    `following` returns the next task with its id; None: there is none now. It is called when the
    engine can accept a task, or if not `ahead`, when it can run one at once.

    By default `ends` is a second Ctrl-C. Searches are then asked to end, and their results are
    processed; a second Ctrl-C does not wait for them.
    """
    while not ends():
        while engine.free > 0 if ahead else engine.busy < engine.slots:
            task = following()
            if task is None:
                break
            engine.submit(*task)
        if not engine.busy:
            return
        take(engine.wait(PAUSE))
    engine.stop()
    for _ in range(round(STOPPING / PAUSE)):
        if not engine.busy or interrupts.pressed(2):
            return
        take(engine.wait(PAUSE))
