"""Main loop of a worker process: receives tasks of a sweep on a pipe and returns their outcomes."""

from __future__ import annotations

import os
import queue
import signal
import threading
from contextlib import suppress
from multiprocessing.connection import Connection

from ppopt import interrupts

OUT_OF_MEMORY = 77
"""Exit code of a process without memory, as under `ulimit -v`."""


def serve(descriptor: int) -> None:
    """Perform the tasks that arrive, one after the other, until the other end is closed.

    A request to end (SIGTERM) ends the running search, which returns its best result, and then this
    process.
    """
    link = Connection(descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interrupts.hear_terminations()
    with interrupts.recorded():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        try:
            _serve(link)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
    os._exit(0)


def _serve(link: Connection) -> None:
    from ppopt.studies.task import TaskProtocol  # noqa: PLC0415  within the bound of memory

    tasks: queue.SimpleQueue[TaskProtocol] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(link, tasks), daemon=True).start()
    while not interrupts.pressed():
        try:
            task = tasks.get(timeout=0.5)
        except queue.Empty:
            continue
        link.send(task.perform())


def _receive(link: Connection, tasks: queue.SimpleQueue[object]) -> None:
    """Receive tasks from the pipe; when the other end is closed, end this process at once."""
    with suppress(EOFError, OSError):
        while True:
            tasks.put(link.recv())
    os._exit(0)
