"""Turns: which method works next, and for how long.

With one worker the order and the length of the turns depend on work alone, never on the clock.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import count
from typing import NamedTuple

from ppopt.problem.problem import Problem
from ppopt.solver.method import Method, Outcome
from ppopt.solver.parameters import RoundParams, Share


class Turn(NamedTuple):
    """A turn of a method."""

    method: Method
    seconds: float
    """Seconds, or with one worker deterministic units of work."""


Turns = Generator[Turn, Outcome, None]
"""Turns to be taken; the outcome of each is sent back."""


class TurnTaker:
    """A method in the rounds, with its share of a round and the outcome of its last turn."""

    def __init__(self, method: Method, share: Share) -> None:
        self.method = method
        self._share = share
        self._last: Outcome | None = None

    @property
    def exhausted(self) -> bool:
        """Whether another turn of the method would do nothing."""
        return self._last is not None and self._last.exhausted

    @property
    def max_repeats(self) -> int:
        """Maximum number of further turns in a round, each after a fruitful one."""
        return self._share.repeats

    def note(self, outcome: Outcome) -> None:
        """Record the outcome of the last turn."""
        self._last = outcome

    def seconds(self, unit: float, whole: float) -> float:
        """Seconds of the next turn; `unit` is that of the round, `whole` the time of the search."""
        return min(self._multiple * unit, self._share.max_share * whole)

    @property
    def _multiple(self) -> float:
        share = self._share
        if self._last is None:
            return share.later if share.first is None else share.first
        if not self._last.fruitful and share.in_vain is not None:
            return share.in_vain
        return share.later


def alternate(*methods: Method) -> Turns:
    """Give each method one turn after the other, until all are exhausted."""
    active = list(methods)
    while active:
        for method in tuple(active):
            outcome = yield Turn(method, 0.0)
            if outcome.exhausted:
                active.remove(method)


def rounds(
    entries: Sequence[TurnTaker], problem: Problem, whole: float, params: RoundParams
) -> Turns:
    """Give every method a turn per round, until all are exhausted or the rounds are done.

    `whole` is the time of the whole search in seconds.
    """
    for index in count() if params.max_rounds is None else range(params.max_rounds):
        active = [entry for entry in entries if not entry.exhausted]
        if not active:
            return
        for entry in active:
            seconds = entry.seconds(round_seconds(problem, index, params), whole)
            for _ in range(entry.max_repeats + 1):
                outcome = (yield Turn(entry.method, seconds)) if seconds else Outcome(fruitful=True)
                entry.note(outcome)
                if not seconds or outcome.exhausted or not outcome.fruitful:
                    break


def round_seconds(problem: Problem, index: int, params: RoundParams) -> float:
    """Unit of a round in seconds: short for small problems, doubled in every round.

    Rounds without work are many, so the number of doublings is limited.
    """
    first = min(params.first_seconds, params.first_per_operation * problem.num_operations)
    return float(first * 2.0 ** min(index, params.max_doublings))
