"""Runs dynamic programming over subsets of devices in a child process.

The dynamic program needs a processor for the whole search, and Python runs only one thread of a
process at a time. The search sends values and bounds, the process sends bounds. Both sides read
messages whenever they check for a stop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from ppopt.cancellation import within
from ppopt.errors import VerificationError
from ppopt.problem.problem import Problem
from ppopt.solver.bound import Bound
from ppopt.solver.bounds.subset_dynamic_program import SubsetDP
from ppopt.solver.budget import Budget
from ppopt.solver.child_process import interpreter
from ppopt.solver.engines.engine import Died, Link, SearchDone
from ppopt.solver.engines.local import LocalEngine
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
_TASK = 0
"""Id of the only task of the process."""


class BestValues(NamedTuple):
    """Message of either process: its best value and bound."""

    value: int
    bound: Bound


class SubsetProblem(NamedTuple):
    """The dynamic programs of a problem as a task."""

    problem: Problem
    seconds: float
    """Seconds left."""
    known: BestValues

    @property
    def workers(self) -> int:
        """Number of processors that it uses."""
        return 1

    def perform(self, link: Link) -> SearchDone[BestValues]:
        """Solve subsets until all are solved, or until the bound reaches the value."""
        incumbent = Incumbent(self.problem, self.known.bound, value=self.known.value)
        whole = Budget(incumbent, self.seconds, BY_CLOCK)
        assert link.progress is not None
        exchange = _Exchange(incumbent, link.latest, link.progress)
        whole.poll_by(exchange)
        try:
            with within(self.seconds):
                _search(incumbent, whole)
        except VerificationError as error:
            return SearchDone(outcome=error)
        return SearchDone(outcome=exchange.own)


class SubsetDPProxy:
    """Proxy of `SubsetDP`: after a first turn in this process it continues in a child process.

    If no process can be started, and after a process has failed, all turns run in this process.
    """

    name = SubsetDP.name
    handles = SubsetDP.handles

    def __init__(self, local: SubsetDP) -> None:
        self._local = local
        self._engine: LocalEngine | None = None
        self.active = False
        """Whether the process is running, has ended without an error, or was killed."""

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

    def begin(self, incumbent: Incumbent, budget: Budget) -> None:
        """Start the process, once, if enough time remains and the system supports it.

        The incumbent must have a schedule.
        """
        if self._engine or interpreter() is None or budget.search_left < MIN_SECONDS:
            return
        self._engine, self.active = LocalEngine(1, retries=0), True
        exchange = _Exchange(incumbent, self._received, partial(self._engine.tell, _TASK))
        task = SubsetProblem(incumbent.problem, budget.search_left, exchange.own)
        self._engine.submit(_TASK, task)
        budget.poll_by(exchange)
        exchange()

    def _received(self) -> BestValues | None:
        """Latest message of the process; raises VerificationError if its bound is too high."""
        assert self._engine is not None
        for _, done in self._engine.wait(0):
            self._engine.close()
            if isinstance(done, SearchDone):
                values: BestValues = done.result
                return values
            self.active = isinstance(done, Died) and done.status < 0
        return self._engine.states.get(_TASK)

    def close(self) -> None:
        """End the process."""
        if self._engine is not None:
            self._engine.close()


def _search(incumbent: Incumbent, whole: Budget) -> None:
    """Run rounds, each twice as long as the last."""
    subsets, seconds = SubsetDP(incumbent.problem, SubsetParams()), FIRST_ROUND
    while subsets.open and not whole.search_over:
        subsets.run(incumbent, whole.portion(seconds))
        seconds *= 2


class _Exchange:
    """Messages between two searches of the same problem."""

    def __init__(
        self,
        incumbent: Incumbent,
        receive: Callable[[], BestValues | None],
        send: Callable[[BestValues], None],
    ) -> None:
        """`receive` returns the latest message of the other search; None: there is none."""
        self._incumbent, self._receive, self._send = incumbent, receive, send
        self._known = self.own
        """Best value and bound that the other search has."""
        self._next = 0.0
        """Instant of `time.monotonic` of the next exchange."""

    @property
    def own(self) -> BestValues:
        """Best value and bound of this search."""
        assert self._incumbent.value is not None
        return BestValues(self._incumbent.value, self._incumbent.bound)

    def __call__(self) -> None:
        """Receive improvements of the other search and send own ones, at most once per pause."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + PAUSE
        received = self._receive()
        if received is not None:
            self._include(received)
        own, known = self.own, self._known
        if own.value < known.value or own.bound.value > known.bound.value:
            self._known = own
            self._send(own)

    def _include(self, received: BestValues) -> None:
        search, known = self._incumbent, self._known
        if search.best is None:
            search.value = min(self.own.value, received.value)
        bound = max(known.bound, received.bound, key=attrgetter("value"))
        self._known = BestValues(min(known.value, received.value), bound)
        search.raise_bound(received.bound)
