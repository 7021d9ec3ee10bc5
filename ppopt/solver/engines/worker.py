"""Main loop of a worker process: receives tasks on a pipe and returns their outcomes.

A message to the process is a pickled task (bytes), None, or for the task before it. None: the tasks
that it received end with their best results. A number is a cutoff: a search ends when its bound
reaches it. A message from the process is an outcome, or the state of the running task.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import threading
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from ppopt import interrupts

if TYPE_CHECKING:
    from ppopt.solver.engines.engine import Done, TaskProtocol
    from ppopt.solver.result import Progress

OUT_OF_MEMORY = 77
"""Exit code of a process without memory, as under `ulimit -v`."""


def serve(descriptor: int) -> None:
    """Perform the tasks that arrive, one after the other, until the other end is closed."""
    try:
        _Worker(Connection(descriptor)).run()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)


class _Worker:
    """Tasks of the process, and what the other end of the pipe says about them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._num_received = self._num_stopped = 0
        """Number of tasks received, and of the first of them that end."""
        self._lock = threading.Lock()
        """Held while a task begins, ends, is stopped or reports: CP-SAT has threads of its own."""
        self._running = 0
        """Number of the running task; 0: none is running."""
        self._message: Any = None
        """Latest message for the task received last."""
        # Within the bound of memory, and before a thread reserves addresses.
        from ppopt.solver.engines.engine import Link  # noqa: PLC0415

        self._link = Link
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        """Receive messages; when the other end is closed, end this process at once."""
        status = 0
        try:
            while True:
                message = self._connection.recv()
                if message is None:
                    self._stop_tasks()
                elif isinstance(message, bytes):
                    self._message = None
                    self._num_received += 1
                    self._tasks.put(message)
                else:
                    self._message = message
        except MemoryError:
            status = OUT_OF_MEMORY
        finally:
            os._exit(status)

    def _stop_tasks(self) -> None:
        """End the scopes of all tasks so far, as Ctrl-C does."""
        with self._lock:
            self._num_stopped = self._num_received
            if self._running:
                interrupts.RECORD(signal.SIGTERM)

    def run(self) -> None:
        """Perform tasks."""
        for number in count(1):
            content = self._tasks.get()
            with interrupts.recorded():
                with self._lock:
                    self._running = number
                    if number <= self._num_stopped:
                        interrupts.RECORD(signal.SIGTERM)
                done = self._perform(content, number)
                with self._lock:
                    self._running = 0
            self._connection.send(done)

    def _perform(self, content: bytes, number: int) -> Done:
        task: TaskProtocol = pickle.loads(content)
        report = partial(self._report, number)
        return task.perform(self._link(report, self._ends, lambda: self._message))

    def _report(self, number: int, state: Any) -> None:
        """Send the state of a task while it is running."""
        with self._lock:
            if self._running == number:
                self._connection.send(state)

    def _ends(self, state: Progress) -> bool:
        """Whether the bound of the running search is at its cutoff."""
        cutoff = self._message
        return isinstance(cutoff, int) and state.bound_ticks >= cutoff
