"""Runs tasks in processes of this machine.

If a process dies (killed, out of memory, a crash in native code), its running task is retried in a
new process up to the allowed number of times. A process ends by itself when this one does.
"""

from __future__ import annotations

import signal
import subprocess
from collections import deque
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

from ppopt.errors import InputError
from ppopt.solver import child_process
from ppopt.studies.engines.engine import STOPPED
from ppopt.studies.engines.worker import OUT_OF_MEMORY
from ppopt.studies.task import Done, TaskProtocol

AHEAD = 2
"""Maximum number of tasks of a process: one that runs and one that waits, so that it never
idles."""
_MODULE = "ppopt.studies.engines.worker"
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class _Assignment(NamedTuple):
    """A task assigned to a process."""

    task_id: int
    task: TaskProtocol
    tries: int
    """Number of earlier tries."""


class _Worker:
    """A process and its tasks, the running one first."""

    def __init__(self, python: str) -> None:
        self.link: Connection
        self.process: subprocess.Popen[bytes]
        self.tasks: deque[_Assignment] = deque()
        self.link, self.process = child_process.start(python, _MODULE, _ONE_THREAD)

    def assign(self, assignment: _Assignment) -> None:
        """Assign a task; if the process is dead, reading its pipe shows that."""
        self.tasks.append(assignment)
        try:
            self.link.send(assignment.task)
        except OSError:
            return

    def end(self) -> int:
        """End the process, if it has not ended; return its exit status."""
        self.process.kill()
        self.link.close()
        return self.process.wait()


class LocalEngine:
    """Engine of up to `jobs` processes, started when they are first needed.

    A task whose process dies is retried `retries` times. Raises InputError if the system starts no
    processes.
    """

    def __init__(self, jobs: int, retries: int) -> None:
        if jobs < 1:
            raise InputError(f"jobs: {jobs} is below 1")
        python = child_process.interpreter()
        if python is None:
            raise InputError("jobs: this system starts no processes for a sweep; use Dask")
        self._python, self._jobs, self._retries = python, jobs, retries
        self._workers: list[_Worker] = []
        self._retried: deque[_Assignment] = deque()
        self._stopped = False

    @property
    def busy(self) -> int:
        """Number of tasks submitted and not returned."""
        return len(self._retried) + sum(len(worker.tasks) for worker in self._workers)

    @property
    def free(self) -> int:
        """Number of tasks that it can accept now."""
        return 0 if self._stopped else AHEAD * self._jobs - self.busy

    @property
    def slots(self) -> int:
        """Number of processes."""
        return self._jobs

    def submit(self, task_id: int, task: TaskProtocol) -> None:
        """Assign a task to the process with the fewest."""
        self._assign(_Assignment(task_id, task, 0))

    def _assign(self, assignment: _Assignment) -> None:
        idlest = min(self._workers, key=lambda worker: len(worker.tasks), default=None)
        if idlest is None or (idlest.tasks and len(self._workers) < self._jobs):
            try:
                idlest = _Worker(self._python)
            except OSError as error:
                raise InputError(f"jobs: no process can be started: {error.strerror}") from None
            self._workers.append(idlest)
        idlest.assign(assignment)

    def wait(self, seconds: float) -> list[tuple[int, Done]]:
        """Return (task id, outcome) of ended tasks; waits for the first, at most `seconds`."""
        if self._stopped:
            stopped = [(assignment.task_id, STOPPED) for assignment in self._retried]
            self._retried.clear()
            return stopped or self._wait(seconds)
        while self._retried:
            self._assign(self._retried.popleft())
        return self._wait(seconds)

    def _wait(self, seconds: float) -> list[tuple[int, Done]]:
        by_link = {worker.link: worker for worker in self._workers}
        ended: list[tuple[int, Done]] = []
        for link in wait(list(by_link), seconds):
            ended += self._received(by_link[link])  # type: ignore[index]
        return ended

    def _received(self, worker: _Worker) -> list[tuple[int, Done]]:
        try:
            done: Done = worker.link.recv()
        except (EOFError, OSError):
            return self._died(worker)
        return [(worker.tasks.popleft().task_id, done)]

    def _died(self, worker: _Worker) -> list[tuple[int, Done]]:
        """Reassign the tasks of a dead process; the running one has failed."""
        self._workers.remove(worker)
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
        return [(assignment.task_id, Done(failed=f"its process {_cause(status)}{times}"))]

    def stop(self) -> None:
        """Ask searches to end with their best results; tasks not started return as stopped."""
        self._stopped = True
        for worker in self._workers:
            worker.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()


def _cause(status: int) -> str:
    """Text that says how a process died."""
    if status == OUT_OF_MEMORY:
        return "ran out of memory"
    if status >= 0:
        return f"ended with exit code {status}"
    name = signal.Signals(-status).name
    return f"was killed by {name}" if -status == signal.SIGKILL else f"died of {name}"
