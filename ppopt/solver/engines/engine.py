"""Interfaces of a task and of an engine, which runs tasks and returns their outcomes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ppopt import interrupts
from ppopt.cancellation import DrivenResult, shield
from ppopt.solver.result import Callback, Stop
from ppopt.versions import version

PAUSE = 0.05
"""Seconds between two checks for the end."""
Outcome = TypeVar("Outcome")
STOPPING = 10.0
"""Seconds within which stopped tasks must end."""


@dataclass(frozen=True)
class Done(DrivenResult):
    """The outcome of a task."""

    failed: str | None = None
    """Why there is no result, in one line."""
    version: str = field(default_factory=version)
    """Version of the process that performed the task."""


@dataclass(frozen=True, kw_only=True)
class SearchDone(Done, Generic[Outcome]):
    """Outcome of a search in another process: its result, or the error that it raised."""

    outcome: Outcome | Exception

    @property
    def result(self) -> Outcome:
        """Result; raises the error of the search."""
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@dataclass(frozen=True, kw_only=True)
class Died(Done):
    """Outcome of a task whose process died."""

    status: int
    """Exit status of the process; negative: it was killed by a signal."""


STOPPED = Done(interrupted=True)
"""Outcome of a task that was not started, or ended without a result."""
TaskId = Any
"""Hashable; the outcome of a task has it."""
Ended = Sequence[tuple[TaskId, Done]]
"""Outcomes of tasks."""


class Link(NamedTuple):
    """Callbacks of a running task to the process that waits for it."""

    progress: Callable[[Any], None] | None = None
    """Called with the state of the work, a `Progress` if it is a search."""
    stop: Stop | None = None
    latest: Callable[[], Any] = lambda: None
    """Returns the latest message of the other process."""


ALONE = Link()
"""Link of a task that no process follows."""


class TaskProtocol(Protocol):
    """A unit of work that an engine runs, perhaps in another process."""

    @property
    def workers(self) -> int:
        """Number of processors that it uses."""

    def perform(self, link: Link, /) -> Done:
        """Run; raises nothing that is no bug."""


class Engine(Protocol):
    """Runs tasks; a task that cannot be run returns as failed."""

    ahead: int = 1
    """Maximum number of tasks of a slot: the running one, and those that wait for it."""

    @property
    def free(self) -> int:
        """Number of tasks that it can accept now."""
        return self.ahead * self.slots - self.busy

    @property
    def slots(self) -> int:
        """Number of tasks that it runs at the same time."""

    @property
    def busy(self) -> int:
        """Number of tasks submitted and not returned."""

    def submit(self, task_id: TaskId, task: TaskProtocol) -> None:
        """Submit a task."""

    def wait(self, seconds: float) -> Ended:
        """Return outcomes of ended tasks; waits for the first, or a state, at most `seconds`."""

    def stop(self) -> None:
        """Ask tasks to end with their best results, and start none that waits."""

    def drop(self) -> None:
        """End all tasks without results."""

    def close(self) -> None:
        """End all tasks without results, and the processes of the engine."""
        self.drop()

    @property
    def states(self) -> Mapping[TaskId, Any]:
        """Last states that running tasks reported; an engine may know none."""
        return {}

    def tell(self, task_id: TaskId, message: Any) -> None:  # noqa: ARG002  of the protocol
        """Send a message to a running task; an engine may ignore this.

        A number ends a search when its bound reaches it.
        """
        return


class DirectEngine(Engine):
    """Engine that performs a task in this process when `wait` is called."""

    def __init__(self, progress: Callback | None = None) -> None:
        self._tasks: deque[tuple[TaskId, TaskProtocol]] = deque()
        self._link = Link(progress)

    @property
    def slots(self) -> int:
        """Number of tasks that it runs at the same time."""
        return 1

    @property
    def busy(self) -> int:
        """Number of tasks submitted and not returned."""
        return len(self._tasks)

    def submit(self, task_id: TaskId, task: TaskProtocol) -> None:
        """Submit a task."""
        self._tasks.append((task_id, task))

    def wait(self, seconds: float) -> Ended:  # noqa: ARG002  of the protocol
        """Perform the first task, which may take longer than `seconds`."""
        if not self._tasks:
            return []
        task_id, task = self._tasks.popleft()
        with shield():
            return [(task_id, task.perform(self._link))]

    def stop(self) -> None:
        """Discard all tasks: none is running."""
        self._tasks.clear()

    drop = stop


def run_tasks(
    engine: Engine,
    following: Callable[[], tuple[TaskId, TaskProtocol] | None],
    take: Callable[[Ended], None],
    ends: Callable[[], bool] = lambda: interrupts.pressed(2),
    *,
    at_once: int | None = None,
    grace: float | None = None,
) -> None:
    """Submit tasks and process their outcomes, until the engine has none or `ends` says so.

    `following` returns the next task with its id; None: there is none now. It is called while the
    engine can accept a task; with `at_once`, while it runs fewer tasks, none of which waits.

    By default `ends` is a second Ctrl-C. Tasks are then stopped, as they are if `following` is
    ended by a scope, and results that arrive within `grace` seconds are processed. Without `grace`,
    this takes at most `STOPPING` seconds, and a second Ctrl-C does not wait for results.
    """
    try:
        with suppress(TimeoutError):
            while not ends():
                while (
                    engine.free > 0 if at_once is None else engine.busy < min(at_once, engine.slots)
                ):
                    task = following()
                    if task is None:
                        break
                    engine.submit(*task)
                if not engine.busy:
                    return
                take(engine.wait(PAUSE))
        engine.stop()
        end = time.monotonic() + (STOPPING if grace is None else grace)
        while engine.busy and time.monotonic() < end:
            if grace is None and interrupts.pressed(2):
                return
            take(engine.wait(PAUSE))
    finally:
        engine.drop()
