"""A search in a process of its own, which ends with the page that asked for it.

The process sends its progress through a pipe and takes one message, to stop. It also stops when the
other end of the pipe is closed, whatever ended the app.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection
from typing import NamedTuple

from ppopt.errors import InputError, NotApplicableError, RunError
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.solver import child_process
from ppopt.solver.result import Progress, Result

POLL = 0.1
"""Seconds between looks at the pipe."""
PATIENCE = 5.0
"""Seconds after which a process that is to stop is killed."""


class Task(NamedTuple):
    """One search."""

    pipeline: Pipeline
    objective: Objective
    backward_kind: BackwardKind
    time_limit: float
    workers: int
    seed: int


class SearchProcess:
    """A search under way."""

    def __init__(self, task: Task) -> None:
        """Raises RunError if no process can be started."""
        executable = child_process.interpreter()
        if executable is None:
            raise RunError("search: no process can be started here")
        try:
            self._link, self._process = child_process.start(executable, __name__)
        except OSError as error:
            raise RunError(f"search: no process can be started: {error.strerror}") from None
        self._link.send(task)

    async def messages(self) -> AsyncIterator[Progress | Result | None]:
        """Its progress as it comes, None if there is none yet, and last its result.

        Raises InputError if there is nothing to search, RunError if the process fails.
        """
        while True:
            if not await asyncio.to_thread(self._link.poll, POLL):
                yield None
                continue
            try:
                message = self._link.recv()
            except (EOFError, OSError):
                raise RunError("search: its process ended without a result") from None
            if isinstance(message, str):
                raise InputError(message)
            yield message
            if isinstance(message, Result):
                return

    def stop(self) -> None:
        """Let it end with the best schedule so far."""
        try:
            self._link.send(None)
        except OSError:
            return

    async def close(self) -> None:
        """End the process."""
        self._link.close()
        until = time.monotonic() + PATIENCE
        while self._process.poll() is None and time.monotonic() < until:
            await asyncio.sleep(POLL)
        self._process.kill()
        self._process.wait()


def serve(number: int) -> None:
    """Do one search, for the process at the other end of the pipe."""
    from ppopt.solver.solve import solve  # noqa: PLC0415  after the process is there

    link = Connection(number)
    task: Task = link.recv()
    try:
        link.send(solve(**task._asdict(), progress=link.send, stop=lambda _: link.poll()))
    except (InputError, NotApplicableError) as error:
        link.send(str(error))
    except OSError:
        os._exit(0)  # nobody is there any more
