"""Structured cancellation: a scope limits the time of the work inside it, which knows no clock.

Work calls `checkpoint`, at least every 50 ms also on slow machines, or `each` in long loops. Once
the end of a scope has passed, or Ctrl-C was recorded, these raise TimeoutError, and the scope
swallows it. As in Trio (N. J. Smith, "Timeouts and cancellation for humans", 2018), but between
plain function calls.

A scope belongs to its thread. A generator must not enter one: the scope would also limit the code
that runs between its items.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import wraps
from math import inf
from typing import ParamSpec, TypeVar

from ppopt.interrupts import RECORD, pressed, recorded

Arguments = ParamSpec("Arguments")
Item = TypeVar("Item")
Outcome = TypeVar("Outcome", bound="DrivenResult")

LOOK = 256
"""Items of a long loop between two checkpoints: milliseconds, even on slow machines."""
EQUAL_SHARES = 2.0
"""Maximum share of the remaining time for one piece of work, as a multiple of an equal share among
the waiting pieces of work and one more."""
_end: ContextVar[float | None] = ContextVar("end", default=None)
"""Instant of `time.monotonic` at which the first of the enclosing scopes ends; None: no scope."""


@dataclass
class Scope:
    """A block of work with an end."""

    ended: bool = False
    """Whether the block was left early."""


@contextmanager
def scope(end: float) -> Iterator[Scope]:
    """Limit the work of a block to an instant of `time.monotonic`; the block is left at its end.

    The earliest end of nested scopes counts. Ctrl-C ends all scopes (`ppopt.interrupts`).
    """
    entered, known = Scope(), _end.get()
    outer = _end.set(end if known is None else min(end, known))
    try:
        yield entered
    except TimeoutError:
        entered.ended = True
    finally:
        _end.reset(outer)


@dataclass(frozen=True, kw_only=True)
class DrivenResult:
    """Result of a search that Ctrl-C may end."""

    interrupted: bool = False
    """Whether Ctrl-C ended the search: results may be missing."""


def driven(search: Callable[Arguments, Outcome]) -> Callable[Arguments, Outcome]:
    """Make a function the driver of a search: Ctrl-C ends its scopes, and its result says so."""

    @wraps(search)
    def drive(*arguments: Arguments.args, **fields: Arguments.kwargs) -> Outcome:
        with recorded():
            outcome = search(*arguments, **fields)
            return replace(outcome, interrupted=pressed())

    return drive


@contextmanager
def shield() -> Iterator[None]:
    """A block that enclosing scopes do not limit: for a result in any case."""
    outer = _end.set(None)
    try:
        yield
    finally:
        _end.reset(outer)


def within(seconds: float) -> AbstractContextManager[Scope]:
    """A scope of so many seconds."""
    return scope(time.monotonic() + seconds)


def part(share: float) -> AbstractContextManager[Scope]:
    """A scope of a share of the time left."""
    return within(share * seconds_left())


def equal_share(waiting: int) -> float:
    """Share of the remaining time for one piece of work, while `waiting` other pieces wait."""
    return EQUAL_SHARES / (waiting + 2)


def equal_part(waiting: int) -> float:
    """An equal part of the remaining time, while `waiting` other pieces of work wait."""
    return 1 / (waiting + 1)


def turns(
    work: Sequence[Item], share: Callable[[int], float] = equal_share
) -> Iterator[tuple[Item, AbstractContextManager[Scope]]]:
    """Pieces of work, each with a scope of its share of the time that is left at its turn."""
    for index, item in enumerate(work, 1):
        yield item, part(share(len(work) - index))


def checkpoint() -> None:
    """Raise TimeoutError once an enclosing scope is over."""
    if over():
        raise TimeoutError


def over() -> bool:
    """Whether an enclosing scope is over: for work that then gives a coarser answer."""
    return seconds_left() <= 0


def each(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items of a long loop, with a checkpoint every `LOOK` items."""
    for index, item in enumerate(items, 1):
        if index % LOOK == 0:
            checkpoint()
        yield item


def seconds_left() -> float:
    """Seconds until the first of the enclosing scopes ends; 0 after Ctrl-C."""
    end = _end.get()
    if end is None:
        return inf
    return 0.0 if RECORD.signals else end - time.monotonic()
