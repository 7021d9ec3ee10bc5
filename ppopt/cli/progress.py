"""Progress on a terminal: one line on stderr, rewritten while a search runs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from decimal import ROUND_CEILING
from fractions import Fraction
from threading import Event, Lock, Thread
from time import monotonic

from ppopt.problem.exact import gap_of
from ppopt.report.numbers import number, percent
from ppopt.solver.result import Progress

AFTER = 1.0
"""Seconds before the line appears."""
EVERY = 0.5


class _Line:
    """The line: the last message of the search, and the seconds since it began."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._lock = Lock()
        self._began = monotonic()
        self._state: Progress | str | None = None
        self._width = 0

    def update(self, state: Progress | str) -> None:
        with self._lock:
            self._state = state

    def draw(self) -> None:
        with self._lock:
            seconds = monotonic() - self._began
            if seconds >= AFTER:
                # A wrapped line cannot be rewritten.
                columns = shutil.get_terminal_size().columns - 1
                self._write(_line_text(seconds, self._state, self._limit, columns))

    def clear(self) -> None:
        if self._width:
            self._write("", end="\r")

    def _write(self, text: str, end: str = "") -> None:
        with suppress(OSError):  # the terminal may be gone; the search goes on
            sys.stderr.write("\r" + text.ljust(self._width) + end)
            sys.stderr.flush()
        self._width = len(text)


def _line_text(
    seconds: float, state: Progress | str | None, limit: float | None, columns: int
) -> str:
    """The line in at most so many columns: parts that have no room are left out, the last first."""
    of = "" if limit is None else f" of {limit:.0f}"
    parts = [f"{seconds:5.0f}{of} s", *_parts(state)]
    text = ""
    for part in parts:
        longer = f"{text}  {part}" if text else part
        if len(longer) <= columns:
            text = longer
    return text


def _parts(state: Progress | str | None) -> list[str]:
    """What a line says, the most important first."""
    if state is None or isinstance(state, str):
        return [state or "starting"]
    if state.value is None:
        return ["nothing found yet", state.phase, f"bound {_short(state.lower_bound)}"]
    gap = percent(gap_of(state.value, state.lower_bound), ROUND_CEILING)
    return [
        f"best {_short(state.value)}, gap {gap}",
        state.phase,
        "Ctrl-C keeps the best",
        f"bound {_short(state.lower_bound)}",
    ]


def _short(value: Fraction) -> str:
    return number(round(value, 3))


@contextmanager
def live_line(*, quiet: bool, limit: float | None = None) -> Iterator[_Line]:
    """Show progress while the block runs, on a terminal only; `limit`: its seconds at most."""
    line, done = _Line(limit), Event()
    if quiet or not sys.stderr.isatty():
        yield line
        return

    def repeat() -> None:
        while not done.wait(EVERY):
            line.draw()

    thread = Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield line
    finally:
        done.set()
        thread.join()
        line.clear()
