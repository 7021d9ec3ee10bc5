"""Runs dynamic programming over subsets of devices in a child process.

The dynamic program needs a processor for the whole search, and Python runs only one thread of a
process at a time. The search sends values and bounds, the process sends bounds. Both sides read
messages whenever they check for a stop.
"""

from __future__ import annotations

import subprocess
import time
from multiprocessing.connection import Connection
from typing import NamedTuple

from ppopt.cancellation import within
from ppopt.errors import VerificationError
from ppopt.problem.problem import Problem
from ppopt.solver import child_process
from ppopt.solver.bound import Bound
from ppopt.solver.bounds.subset_dynamic_program import SubsetDP
from ppopt.solver.budget import Budget
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Outcome
from ppopt.solver.parameters import SubsetParams

BY_CLOCK = 2
"""Workers of the budget in this process: with more than one, budgets are seconds."""
PAUSE = 0.05
"""Minimum number of seconds between two exchanges of messages."""
FIRST_ROUND = 6.0
"""Seconds of the first round; each round takes twice as long."""
MIN_SECONDS = 3.0
"""Minimum number of remaining seconds to start the process, which takes half a second."""


class SubsetProblem(NamedTuple):
    """First message to the process: the problem to solve."""

    problem: Problem
    seconds: float
    """Seconds left."""
    value: int
    bound: Bound


class BestValues(NamedTuple):
    """Message of either side: its best value and bound."""

    value: int
    bound: Bound


class SubsetDPProxy:
    """Proxy of `SubsetDP`: after a first turn in this process it continues in a child process.

    If no process can be started, and after a process has failed, all turns run in this process.
    """

    name = SubsetDP.name
    handles = SubsetDP.handles

    def __init__(self, local: SubsetDP) -> None:
        self._local = local
        self._process: subprocess.Popen[bytes] | None = None
        self._link: _Link | None = None
        self._budget: Budget | None = None

    def supports(self, problem: Problem) -> bool:
        """Whether `SubsetDP` supports a problem."""
        return self._local.supports(problem)

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Run a turn in this process, then start the child process; later turns do nothing."""
        if self.active:
            return Outcome()
        outcome = self._local.run(incumbent, budget)
        if not outcome.exhausted and not budget.search_over:
            self.begin(incumbent, budget)
        return outcome

    @property
    def active(self) -> bool:
        """Whether the process is running or has ended without an error."""
        return self._process is not None and (self._process.poll() or 0) <= 0

    def begin(self, incumbent: Incumbent, budget: Budget) -> None:
        """Start the process, once, if enough time remains and the system supports it.

        The incumbent must have a schedule.
        """
        python = child_process.interpreter()
        if self._process or python is None or budget.search_left < MIN_SECONDS:
            return
        assert incumbent.value is not None
        try:
            connection, self._process = child_process.start(python, __name__)
        except OSError:
            return
        self._budget = budget
        self._link = _Link(connection, incumbent, budget, leads=True)
        budget.poll_by(self._link.exchange)
        self._link.send(
            SubsetProblem(incumbent.problem, budget.search_left, incumbent.value, incumbent.bound)
        )

    def close(self) -> None:
        """End the process."""
        if self._process is not None and self._link is not None and self._budget is not None:
            self._budget.poll_by(lambda: None)
            self._process.kill()
            self._process.wait()
            self._link.connection.close()


def serve(descriptor: int) -> None:
    """Solve subsets for the process at the other end of a pipe, until it ends or all are solved."""
    with Connection(descriptor) as connection:
        job: SubsetProblem = connection.recv()
        incumbent = Incumbent(job.problem, job.bound, value=job.value)
        whole = Budget(incumbent, job.seconds, BY_CLOCK)
        link = _Link(connection, incumbent, whole, leads=False)
        whole.poll_by(link.exchange)
        try:
            with within(job.seconds):
                _search(incumbent, whole)
        except VerificationError as error:
            link.send(error)
        link.tell()


def _search(incumbent: Incumbent, whole: Budget) -> None:
    """Run rounds, each twice as long as the last."""
    subsets, seconds = SubsetDP(incumbent.problem, SubsetParams()), FIRST_ROUND
    while subsets.open and not whole.search_over:
        subsets.run(incumbent, whole.portion(seconds))
        seconds *= 2


class _Link:
    """One end of the pipe between two searches of the same problem."""

    def __init__(
        self,
        connection: Connection,
        incumbent: Incumbent,
        budget: Budget,
        *,
        leads: bool,
    ) -> None:
        """`leads`: this end has schedules, and continues when the other process has ended."""
        assert incumbent.value is not None
        self.connection = connection
        self._incumbent = incumbent
        self._budget = budget
        self._leads = leads
        self._cut = False
        self._value = incumbent.value
        self._bound = incumbent.bound.value
        self._next = 0.0
        """Instant of `time.monotonic` of the next exchange."""

    def exchange(self) -> None:
        """Receive improvements of the other side and send own ones, at most once per pause."""
        now = time.monotonic()
        if self._cut or now < self._next:
            return
        self._next = now + PAUSE
        for news in self._received():
            self._receive(news)
        self.tell()

    def _received(self) -> list[BestValues]:
        """Read messages of the other side; raises VerificationError if its bound is too high."""
        messages = []
        try:
            while self.connection.poll():
                message = self.connection.recv()
                if isinstance(message, VerificationError):
                    raise message
                messages.append(message)
        except (EOFError, OSError):
            self._end()
        return messages

    def tell(self) -> None:
        """Send the value and the bound if the other side has worse ones."""
        search = self._incumbent
        assert search.value is not None
        if search.value < self._value or search.bound.value > self._bound:
            self._value, self._bound = search.value, search.bound.value
            self.send(BestValues(search.value, search.bound))

    def send(self, message: SubsetProblem | BestValues | VerificationError) -> None:
        """Send a message, unless the other side has ended."""
        if self._cut:
            return
        try:
            self.connection.send(message)
        except OSError:
            self._end()

    def _end(self) -> None:
        self._cut = True
        if not self._leads:
            self._budget.stop()

    def _receive(self, news: BestValues) -> None:
        search = self._incumbent
        assert search.value is not None
        if not self._leads:
            search.value = min(search.value, news.value)
        self._value = min(self._value, news.value)
        self._bound = max(self._bound, news.bound.value)
        search.raise_bound(news.bound)
