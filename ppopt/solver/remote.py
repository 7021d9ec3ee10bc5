"""Dynamic programming over subsets of devices, in a process of its own beside the search.

They keep a processor busy for as long as they are given, and Python runs one thread of a process at
a time. The search tells them of its values and bounds, they tell it of their bounds: both read what
there is wherever they ask whether they are to end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe, spawn
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple, Self

from ppopt.errors import VerificationError
from ppopt.problem.problem import Problem
from ppopt.solver import interrupts
from ppopt.solver.bounds.head_body_tail import Bound
from ppopt.solver.bounds.subset_dynamic_program import Few
from ppopt.solver.budget import Budget
from ppopt.solver.incumbent import Search

PAUSE = 0.05
"""Seconds from one look at what the other side has found to the next."""
FIRST_ROUND = 6.0
"""Seconds of the first round of sweeps; each round takes twice as long."""
LEAST = 3.0
"""Fewest seconds left of a search for which to start the process: that takes half a second."""
BY_CLOCK = 2
"""Workers of a budget by the clock, which these sweeps are under."""
_CODE = "import sys; sys.path[:] = {path!r}; from ppopt.solver.remote import serve; serve({number})"


class Job(NamedTuple):
    """What the sweeps are begun with."""

    problem: Problem
    seconds: float
    """Time left."""
    value: int
    bound: Bound


class News(NamedTuple):
    """What one side tells the other."""

    value: int
    bound: Bound


class Beside:
    """A process that sweeps few devices for a search, from `begin` until the block is left."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._process: subprocess.Popen[bytes] | None = None
        self._link: _Link | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._link is not None:
            with interrupts.held():
                self._search.listen = lambda: None
                self._process.kill()
                self._process.wait()
                self._link.connection.close()

    @property
    def sweeps(self) -> bool:
        """Whether the process does its work, or has done it."""
        return self._process is not None and (self._process.poll() or 0) <= 0

    @interrupts.held()
    def begin(self) -> None:
        """Start the process, once, where there is time and the system has a way to.

        The search must have a schedule.
        """
        search, python = self._search, spawn.get_executable()
        frozen = getattr(sys, "frozen", False)
        if self._process or os.name != "posix" or not python or frozen or search.left < LEAST:
            return
        assert search.value is not None
        try:
            here, self._process = _started(os.fsdecode(python))
        except OSError:
            return
        self._link = _Link(here, search, leads=True)
        search.listen = self._link.exchange
        self._link.send(Job(search.problem, search.left, search.value, search.bound))


def _started(python: str) -> tuple[Connection, subprocess.Popen[bytes]]:
    """A process that serves, and our end of the pipe to it; raises OSError."""
    here, there = Pipe()
    with there:
        path = [str(Path(entry).absolute()) for entry in sys.path if isinstance(entry, str)]
        code = _CODE.format(path=path, number=there.fileno())
        try:
            with _ctrl_c_not_passed_on():
                process = subprocess.Popen(
                    [python, "-c", code],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(there.fileno(),),
                )
        except OSError:
            here.close()
            raise
    return here, process


@contextmanager
def _ctrl_c_not_passed_on() -> Iterator[None]:
    """Processes that are started here do not hear of Ctrl-C: the search is to answer it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(number: int) -> None:
    """Sweep for the search at the other end of a pipe, until it ends or nothing is left to ask."""
    with Connection(number) as connection:
        job: Job = connection.recv()
        now = time.monotonic()
        search = Search(
            job.problem, now, now + job.seconds, lambda _: None, job.bound, value=job.value
        )
        link = _Link(connection, search, leads=False)
        search.listen = link.exchange
        try:
            _sweep(search)
        except VerificationError as error:
            link.send(error)
        link.tell()


def _sweep(search: Search) -> None:
    few, seconds = Few(search), FIRST_ROUND
    while few.open and not search.over:
        few.raise_bound(Budget.of(search, BY_CLOCK, 0, seconds))
        seconds *= 2


class _Link:
    """One end of the pipe between two searches of the same problem."""

    def __init__(self, connection: Connection, search: Search, *, leads: bool) -> None:
        """The one that leads alone has schedules, and goes on where the other one has ended."""
        assert search.value is not None
        self.connection = connection
        self._search = search
        self._leads = leads
        self._cut = False
        self._value = search.value
        self._bound = search.bound.value
        self._next = 0.0

    def exchange(self) -> None:
        """Take what the other side has found, and tell it what is new here, now and then."""
        now = time.monotonic()
        if self._cut or now < self._next:
            return
        self._next = now + PAUSE
        for news in self._received():
            self._take(news)
        self.tell()

    def _received(self) -> list[News]:
        """What the other side has sent; raises VerificationError where its bounds failed it."""
        found = []
        try:
            while self.connection.poll():
                message = self.connection.recv()
                if isinstance(message, VerificationError):
                    raise message
                found.append(message)
        except (EOFError, OSError):
            self._end()
        return found

    def tell(self) -> None:
        """Tell the other side what it does not know."""
        search = self._search
        assert search.value is not None
        if search.value < self._value or search.bound.value > self._bound:
            self._value, self._bound = search.value, search.bound.value
            self.send(News(search.value, search.bound))

    def send(self, message: Job | News | VerificationError) -> None:
        """Send a message, if there is anyone to read it."""
        if self._cut:
            return
        try:
            self.connection.send(message)
        except OSError:
            self._end()

    def _end(self) -> None:
        self._cut = True
        self._search.interrupted |= not self._leads

    def _take(self, news: News) -> None:
        search = self._search
        assert search.value is not None
        if not self._leads:
            search.value = min(search.value, news.value)
        self._value = min(self._value, news.value)
        self._bound = max(self._bound, news.bound.value)
        search.raise_bound(news.bound)
