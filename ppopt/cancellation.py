"""Structured cancellation: a scope limits the time of the work inside it, which knows no clock.

Work calls `checkpoint`, at least every 50 ms also on slow machines, or `each` in long loops. Once
the end of a scope has passed, these raise TimeoutError, and the scope swallows it. As in Trio
(N. J. Smith, "Timeouts and cancellation for humans", 2018), but between plain function calls.

A scope belongs to its thread. A generator must not enter one: the scope would also limit the code
that runs between its items.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from typing import TypeVar

Item = TypeVar("Item")

LOOK = 256
"""Items of a long loop between two checkpoints: milliseconds, even on slow machines."""
_end: ContextVar[float] = ContextVar("end", default=inf)
"""Instant of `time.monotonic` at which the first of the enclosing scopes ends."""


@dataclass
class Scope:
    """A block of work with an end."""

    ended: bool = False
    """Whether the block was left early, because time was up."""


@contextmanager
def scope(end: float, *, shielded: bool = False) -> Iterator[Scope]:
    """Limit the work of a block to an instant of `time.monotonic`; the block is left at its end.

    The earliest end of nested scopes counts. `shielded`: enclosing scopes do not count.
    """
    entered = Scope()
    outer = _end.set(end if shielded else min(end, _end.get()))
    try:
        yield entered
    except TimeoutError:
        entered.ended = True
    finally:
        _end.reset(outer)


def checkpoint() -> None:
    """Raise TimeoutError once an enclosing scope is over."""
    if time.monotonic() >= _end.get():
        raise TimeoutError


def each(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items of a long loop, with a checkpoint every `LOOK` items."""
    for index, item in enumerate(items, 1):
        if index % LOOK == 0:
            checkpoint()
        yield item


def seconds_left() -> float:
    """Seconds until the first of the enclosing scopes ends."""
    return _end.get() - time.monotonic()
