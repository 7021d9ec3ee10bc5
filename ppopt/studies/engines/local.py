"""Tasks in processes of this machine.

A process that dies (killed, out of memory, a crash in native code) takes one task with it, which is
tried again in a new process as often as it is allowed. A process ends by itself when this one does.
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
from ppopt.studies.engines.worker import OUT_OF_MEMORY, Start
from ppopt.studies.task import Done, Task

AHEAD = 2
"""Tasks that a process has at most: one at work and one that waits, so that it never does."""
_MODULE = "ppopt.studies.engines.worker"
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class _Given(NamedTuple):
    """A task in the hands of a process."""

    number: int
    task: Task
    tries: int
    """How often it was begun before."""


class _Worker:
    """A process and its tasks, the one at work first."""

    def __init__(self, python: str, memory: int | None) -> None:
        self.link: Connection
        self.process: subprocess.Popen[bytes]
        self.tasks: deque[_Given] = deque()
        self.link, self.process = child_process.start(python, _MODULE, _ONE_THREAD)
        self.link.send(Start(memory))

    def give(self, given: _Given) -> None:
        """Hand over a task; where the process is dead, that is seen when its pipe is read."""
        self.tasks.append(given)
        try:
            self.link.send(given.task)
        except OSError:
            return

    def end(self) -> int:
        """End the process, if it has not; return its exit status."""
        self.process.kill()
        self.link.close()
        return self.process.wait()


class LocalEngine:
    """Tasks in up to `jobs` processes, started when they are first needed.

    A task whose process dies is tried again `retries` times. `memory` bounds the address space of
    each process, in bytes. Raises InputError where the system starts no processes.
    """

    def __init__(self, jobs: int, retries: int, memory: int | None = None) -> None:
        if jobs < 1:
            raise InputError(f"jobs: {jobs} is below 1")
        python = child_process.python()
        if python is None:
            raise InputError("jobs: this system starts no processes for a sweep; use Dask")
        self._python, self._jobs, self._retries, self._memory = python, jobs, retries, memory
        self._workers: list[_Worker] = []
        self._again: deque[_Given] = deque()
        self._stopped = False

    @property
    def busy(self) -> int:
        """How many tasks it has that have not come back."""
        return len(self._again) + sum(len(one.tasks) for one in self._workers)

    @property
    def free(self) -> int:
        """How many more tasks it takes now."""
        return 0 if self._stopped else AHEAD * self._jobs - self.busy

    def submit(self, number: int, task: Task) -> None:
        """Hand over a task to the process with the fewest."""
        self._give(_Given(number, task, 0))

    def _give(self, given: _Given) -> None:
        least = min(self._workers, key=lambda one: len(one.tasks), default=None)
        if least is None or (least.tasks and len(self._workers) < self._jobs):
            try:
                least = _Worker(self._python, self._memory)
            except OSError as error:
                raise InputError(f"jobs: no process can be started: {error.strerror}") from None
            self._workers.append(least)
        least.give(given)

    def wait(self, seconds: float) -> list[tuple[int, Done]]:
        """Tasks that have ended, by their numbers; waits for the first, at most so long."""
        if self._stopped:
            left = [(one.number, STOPPED) for one in self._again]
            self._again.clear()
            return left or self._wait(seconds)
        while self._again:
            self._give(self._again.popleft())
        return self._wait(seconds)

    def _wait(self, seconds: float) -> list[tuple[int, Done]]:
        by_link = {one.link: one for one in self._workers}
        found: list[tuple[int, Done]] = []
        for link in wait(list(by_link), seconds):
            found += self._received(by_link[link])  # type: ignore[index]
        return found

    def _received(self, worker: _Worker) -> list[tuple[int, Done]]:
        try:
            done: Done = worker.link.recv()
        except (EOFError, OSError):
            return self._died(worker)
        return [(worker.tasks.popleft().number, done)]

    def _died(self, worker: _Worker) -> list[tuple[int, Done]]:
        """Take back the tasks of a dead process; the one at work has failed."""
        self._workers.remove(worker)
        status = worker.end()
        if self._stopped:
            return [(task.number, STOPPED) for task in worker.tasks]
        if not worker.tasks:
            return []
        one = worker.tasks.popleft()
        self._again.extend(worker.tasks)
        if one.tries < self._retries:
            self._again.append(one._replace(tries=one.tries + 1))
            return []
        times = f", {one.tries + 1} times" if one.tries else ""
        return [(one.number, Done(failed=f"its process {self._cause(status)}{times}"))]

    def _cause(self, status: int) -> str:
        """How a process died, in words."""
        if status == OUT_OF_MEMORY:
            return "ran out of memory"
        if status >= 0:
            return f"ended with exit code {status}"
        name = signal.Signals(-status).name
        if self._memory is not None and -status in (signal.SIGABRT, signal.SIGSEGV):
            return f"died of {name}, as native code does over its bound of memory"
        return f"was killed by {name}" if -status == signal.SIGKILL else f"died of {name}"

    def stop(self) -> None:
        """Ask searches to end with what they have; tasks not begun come back as stopped."""
        self._stopped = True
        for worker in self._workers:
            worker.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()
