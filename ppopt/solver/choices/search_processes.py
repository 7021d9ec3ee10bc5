"""Searches several configurations at once, each in a child process.

Heuristics are Python code, which uses one processor. So a search over configurations with several
workers gives each configuration to a process of its own. The parent sends tasks, cutoffs and stops;
a process sends its progress and the result of each task.
"""

from __future__ import annotations

import subprocess
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import NamedTuple

from ppopt.cancellation import checkpoint, over, seconds_left, within
from ppopt.errors import VerificationError
from ppopt.solver import child_process
from ppopt.solver.choices.configuration import Configuration
from ppopt.solver.choices.search_tasks import SearchTask
from ppopt.solver.options import SolveOptions
from ppopt.solver.result import Progress, Result
from ppopt.solver.search import search_from

MAX_PROCESSES = 16
"""Maximum number of processes; each needs about 150 MB."""
WARM_UP = 1.0
"""Seconds of a search before its processes start: starting one takes about as long."""
MIN_SECONDS = 3.0
"""Minimum number of remaining seconds to start processes."""
PAUSE = 0.05
"""Seconds between two looks at messages and stop criteria."""
GRACE = 2.0
"""Seconds that processes have for their results after a stop; then they are killed."""


Task = tuple[Configuration, SearchTask]
Receive = Callable[[Configuration, Result], None]
MIN_WORKERS = 2
"""Minimum workers of a search in a process: with one worker a search would be reproducible, and for
that omits what the clock ends."""


class Cutoff(NamedTuple):
    """Message to a process: its search ends when its bound reaches a value.

    None: it ends now.
    """

    value: int | None


class SearchProcess:
    """One process, and what it does."""

    def __init__(self, pipe: Connection, process: subprocess.Popen[bytes]) -> None:
        self.pipe, self.child = pipe, process
        self.configuration: Configuration | None = None
        """Configuration that the process searches; None: it is idle."""
        self.value: int | None = None
        """Best value of that search so far, in ticks."""
        self.cutoff: int | None = None
        """Last cutoff sent."""

    def send_cutoff(self, value: int | None) -> None:
        """Send a new cutoff."""
        if value != self.cutoff:
            self.cutoff = value
            self.send(Cutoff(value))

    def send(self, message: SearchTask | Cutoff) -> None:
        """Send a message, unless the process has ended."""
        try:
            self.pipe.send(message)
        except OSError:
            self.child.kill()


class SearchProcesses:
    """Processes that search configurations for one parent search."""

    def __init__(self, workers: int) -> None:
        """Start a process per worker, as far as the system can."""
        self._workers = workers
        self.members: list[SearchProcess] = []
        self._starts = 2 * min(workers, MAX_PROCESSES)
        """Number of processes that may still be started."""
        self.start_missing()
        self._end = weakref.finalize(self, _kill, self.members)

    def run(
        self,
        tasks: Iterator[Task],
        receive: Receive,
        *,
        min_workers: int = 1,
        over: Callable[[], bool],
        cutoff: Callable[[Configuration], int | None],
    ) -> None:
        """Search configurations until none is left, or until `over()`.

        Each search has at least `min_workers` workers, so some processes may have nothing to do.
        `receive` gets each result; there is none of a search whose process ended. `cutoff` returns
        the bound in ticks from which on a configuration is useless. The end of an enclosing scope,
        also in `tasks`, ends the searches; their results so far are received. Raises
        VerificationError if a process does.
        """
        try:
            with suppress(TimeoutError):
                while not over():
                    checkpoint()
                    self._assign(tasks, min_workers)
                    if not self._busy:
                        break
                    for member in self._busy:
                        assert member.configuration is not None
                        member.send_cutoff(cutoff(member.configuration))
                    self._receive(receive)
            self._receive_last(receive)
        finally:
            self._drop(self._busy)

    @contextmanager
    def aside(self, tasks: Iterator[Task], receive: Receive) -> Iterator[None]:
        """Search configurations during a block; `receive` gets their results at its end."""
        try:
            self._assign(tasks, min_workers=1)
            try:
                yield
            finally:
                self._receive_last(receive)
        finally:
            self._drop(self._busy)

    def close(self) -> None:
        """End the processes."""
        self._end()

    def start_missing(self) -> None:
        """Start processes up to one per worker, as far as the system can."""
        python, size = child_process.interpreter(), min(self._workers, MAX_PROCESSES)
        with suppress(OSError):
            while python is not None and self._starts and len(self.members) < size:
                self._starts -= 1
                self.members.append(SearchProcess(*child_process.start(python, __name__)))

    @property
    def values(self) -> list[int]:
        """Best value of every running search, if any, times the weight of its configuration."""
        return [
            member.value * member.configuration.weight
            for member in self.members
            if member.configuration is not None and member.value is not None
        ]

    @property
    def _busy(self) -> list[SearchProcess]:
        return [member for member in self.members if member.configuration is not None]

    def at_once(self, min_workers: int) -> int:
        """Number of searches at once if each has at least `min_workers` workers."""
        return min(len(self.members), self._workers // min_workers)

    def _assign(self, tasks: Iterator[Task], min_workers: int) -> None:
        """Give a task to every idle process that has enough workers."""
        processes = max(1, self.at_once(min_workers))
        for member in self.members[:processes]:
            if member.configuration is None:
                configuration, task = next(tasks, (None, None))
                if task is None:
                    return
                workers = max(MIN_WORKERS, self._workers // processes)
                options = replace(task.options.detached, workers=workers)
                member.configuration = configuration
                member.send(task._replace(options=options))

    def _receive_last(self, receive: Receive) -> None:
        """Stop the searches, and receive what they have."""
        end = time.monotonic() + GRACE
        for member in self._busy:
            member.send(Cutoff(None))
        while self._busy and time.monotonic() < end:
            self._receive(receive)

    def _receive(self, receive: Receive) -> None:
        """Receive the progress and the results that arrive within a pause."""
        busy = self._busy
        ready = connection.wait([member.pipe for member in busy], PAUSE)
        for member in (member for member in busy if member.pipe in ready):
            configuration = member.configuration
            assert configuration is not None
            try:
                message = member.pipe.recv()
            except (EOFError, OSError):
                self._drop([member])
                continue
            if isinstance(message, int):
                member.value = message
                continue
            member.configuration = member.value = member.cutoff = None
            if isinstance(message, VerificationError):
                raise message
            receive(configuration, message)

    def _drop(self, members: Sequence[SearchProcess]) -> None:
        """End some processes."""
        _kill(members)
        self.members[:] = [member for member in self.members if member not in members]


class ProcessPool:
    """The processes of a request, started as soon as the time that is left is worth it."""

    def __init__(self, options: SolveOptions) -> None:
        self._options = options
        self._processes: SearchProcesses | None = None
        """None: not started."""

    def processes(self, min_workers: int) -> SearchProcesses | None:
        """Processes for several searches at once of so many workers; None: one after the other."""
        workers = self._options.workers
        if workers < 2 * min_workers or over():
            return None
        worthwhile = self._options.spent >= WARM_UP and seconds_left() >= MIN_SECONDS
        if self._processes is None and worthwhile:
            self._processes = SearchProcesses(workers)
        elif self._processes is not None and worthwhile:
            self._processes.start_missing()
        several = self._processes is not None and self._processes.at_once(min_workers) > 1
        return self._processes if several else None

    def at_once(self, min_workers: int) -> int:
        """Number of searches at once if each has at least so many workers."""
        processes = self.processes(min_workers)
        return 1 if processes is None else processes.at_once(min_workers)

    def close(self) -> None:
        """End the processes; a later search may start new ones."""
        if self._processes is not None:
            self._processes.close()
            self._processes = None


def _kill(members: Sequence[SearchProcess]) -> None:
    for member in members:
        member.child.kill()
        member.child.wait()
        member.pipe.close()


def serve(descriptor: int) -> None:
    """Search for the process at the other end of a pipe, until it ends."""
    with Connection(descriptor) as pipe:
        try:
            while True:
                task = pipe.recv()
                if isinstance(task, SearchTask):
                    pipe.send(_searched(task, pipe))
        except (EOFError, OSError):
            return


def _searched(task: SearchTask, pipe: Connection) -> Result | VerificationError:
    """Search a configuration until its end, its cutoff, or a stop."""
    messages = _Messages(pipe)
    with within(task.seconds):
        options = task.options.in_scope(stop=messages.end)
    try:
        return search_from(task.start, task.problem, options)
    except VerificationError as error:
        return error


class _Messages:
    """Messages from and to the parent during a search."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._cutoff: int | None = None
        self._stopped = False
        self._next = 0.0
        """Instant of `time.monotonic` of the next exchange."""
        self._value: int | None = None
        """Last value sent."""

    def end(self, state: Progress) -> bool:
        """Whether the search ends now."""
        if time.monotonic() >= self._next and not self._stopped:
            self._next = time.monotonic() + PAUSE
            self._exchange(state.value_ticks)
        cutoff = self._cutoff
        return self._stopped or (cutoff is not None and state.bound_ticks >= cutoff)

    def _exchange(self, value: int | None) -> None:
        """Receive messages, and send a better value."""
        try:
            if value != self._value:
                self._value = value
                self._pipe.send(value)
            while self._pipe.poll():
                message: Cutoff = self._pipe.recv()
                self._cutoff = message.value
                self._stopped |= message.value is None
        except (EOFError, OSError):
            self._stopped = True
