"""Runs tasks in processes of this machine.

If a process dies (killed, out of memory, a crash in native code), its running task is retried in a
new process up to the allowed number of times. A process ends by itself when this one does.
"""

from __future__ import annotations

import pickle
import signal
import subprocess
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from ppopt import processors
from ppopt.errors import InputError
from ppopt.solver import child_process
from ppopt.solver.engines.engine import STOPPED, Died, Done, Ended, Engine, TaskId, TaskProtocol
from ppopt.solver.engines.worker import OUT_OF_MEMORY

_MODULE = "ppopt.solver.engines.worker"
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class _Assignment(NamedTuple):
    """A task assigned to a process."""

    task_id: TaskId
    task: TaskProtocol
    tries: int
    """Number of earlier tries."""


class _Worker:
    """A process and its tasks, the running one first."""

    def __init__(self, python: str) -> None:
        self.link: Connection
        self.process: subprocess.Popen[bytes]
        self.tasks: deque[_Assignment] = deque()
        self.state: Any = None
        """Last state that the running task reported."""
        self.message: Any = None
        """Last message sent to the running task."""
        self.link, self.process = child_process.start(python, _MODULE, _ONE_THREAD)

    def assign(self, assignment: _Assignment) -> None:
        """Assign a task."""
        self.tasks.append(assignment)
        self.message = None
        self.send(pickle.dumps(assignment.task))

    def send(self, message: Any) -> None:
        """Send a message; if the process is dead, reading its pipe shows that."""
        with suppress(OSError):
            self.link.send(message)

    def end(self) -> int:
        """End the process, if it has not ended; return its exit status."""
        self.process.kill()
        self.link.close()
        return self.process.wait()


class LocalEngine(Engine):
    """Engine of up to `jobs` processes (None: one per processor), started when they are needed.

    A task whose process dies is retried `retries` times. At most `max_starts` processes are
    started. Raises InputError if the system has no processes.
    """

    ahead = 2
    """A process never idles."""

    def __init__(self, jobs: int | None, retries: int, max_starts: float = inf) -> None:
        jobs = processors.available() if jobs is None else jobs
        if jobs < 1:
            raise InputError(f"jobs: {jobs} is below 1")
        python = child_process.interpreter()
        if python is None:
            raise InputError("jobs: this system starts no processes for a sweep; use Dask")
        self._python, self._jobs, self._retries = python, jobs, retries
        self._starts = max_starts
        """Number of processes that may still be started."""
        self.workers: list[_Worker] = []
        self._retried: deque[_Assignment] = deque()
        self._ended: list[tuple[TaskId, Done]] = []
        """Outcomes of tasks for which there is no process."""
        self._stopped = False
        self._refusal = "no process can be started: too many have died"
        """Why there is no process."""

    @property
    def busy(self) -> int:
        """Number of tasks submitted and not returned."""
        assigned = sum(len(worker.tasks) for worker in self.workers)
        return len(self._ended) + len(self._retried) + assigned

    @property
    def slots(self) -> int:
        """Number of processes that are there or may be started."""
        return int(min(self._jobs, len(self.workers) + self._starts))

    @property
    def states(self) -> Mapping[TaskId, Any]:
        """Last states that running tasks reported."""
        return {
            worker.tasks[0].task_id: worker.state
            for worker in self.workers
            if worker.tasks and worker.state is not None
        }

    def tell(self, task_id: TaskId, message: Any) -> None:
        """Send a message to a running task, if no task waits for its process."""
        for worker in self.workers:
            if [task.task_id for task in worker.tasks] == [task_id] and worker.message != message:
                worker.message = message
                worker.send(message)

    def submit(self, task_id: TaskId, task: TaskProtocol) -> None:
        """Assign a task to the process with the fewest."""
        self._assign(_Assignment(task_id, task, 0))

    def _assign(self, assignment: _Assignment) -> None:
        idlest = min(self.workers, key=lambda worker: len(worker.tasks), default=None)
        if len(self.workers) < self.slots and (idlest is None or idlest.tasks):
            self._starts -= 1
            try:
                idlest = _Worker(self._python)
                self.workers.append(idlest)
            except OSError as error:
                self._refusal = f"no process can be started: {error.strerror or error}"
        if idlest is None:
            self._ended.append((assignment.task_id, Done(failed=self._refusal)))
        else:
            idlest.assign(assignment)

    def wait(self, seconds: float) -> Ended:
        """Return outcomes of ended tasks; waits for the first, or a state, at most `seconds`."""
        if self._stopped:
            self._ended += [(assignment.task_id, STOPPED) for assignment in self._retried]
            self._retried.clear()
        while self._retried:
            self._assign(self._retried.popleft())
        by_link = {worker.link: worker for worker in self.workers}
        for link in wait(list(by_link), 0 if self._ended else seconds):
            self._ended += self._received(by_link[link])  # type: ignore[index]
        ended, self._ended = self._ended, []
        return ended

    def _received(self, worker: _Worker) -> Ended:
        try:
            message = worker.link.recv()
        except (EOFError, OSError):
            return self._died(worker)
        if not isinstance(message, Done):
            worker.state = message
            return []
        worker.state = None
        return [(worker.tasks.popleft().task_id, message)]

    def _died(self, worker: _Worker) -> Ended:
        """Reassign the tasks of a dead process; the running one has failed."""
        self.workers.remove(worker)
        status = worker.end()
        if self._stopped:
            return [(task.task_id, STOPPED) for task in worker.tasks]
        if not worker.tasks:
            return []
        assignment = worker.tasks.popleft()
        self._retried.extend(worker.tasks)
        if assignment.tries < self._retries:
            self._retried.append(assignment._replace(tries=assignment.tries + 1))
            return []
        times = f", {assignment.tries + 1} times" if assignment.tries else ""
        died = Died(failed=f"its process {_cause(status)}{times}", status=status)
        return [(assignment.task_id, died)]

    def stop(self) -> None:
        """Ask tasks to end with their best results; those not started have none."""
        self._stopped = True
        for worker in self.workers:
            worker.send(None)

    def drop(self) -> None:
        """End the processes that have tasks, without results."""
        self._end([worker for worker in self.workers if worker.tasks])
        self._retried.clear()
        self._ended.clear()
        self._stopped = False

    def close(self) -> None:
        """End all processes."""
        self._end(list(self.workers))

    def _end(self, workers: list[_Worker]) -> None:
        for worker in workers:
            self.workers.remove(worker)
            worker.end()


def _cause(status: int) -> str:
    """Text that says how a process died."""
    if status == OUT_OF_MEMORY:
        return "ran out of memory"
    if status >= 0:
        return f"ended with exit code {status}"
    name = signal.Signals(-status).name
    return f"was killed by {name}" if -status == signal.SIGKILL else f"died of {name}"
