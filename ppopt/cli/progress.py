"""Progress on a terminal: one line on stderr, rewritten while a search runs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread
from time import monotonic

from ppopt.report.words import number
from ppopt.solver.result import Progress

AFTER = 1.0
"""Seconds before the line appears."""
EVERY = 0.5


class _Line:
    """The line: the last message of the search, and the seconds since it began."""

    def __init__(self) -> None:
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
                self._write(_words(seconds, self._state))

    def clear(self) -> None:
        if self._width:
            self._write("", end="\r")

    def _write(self, text: str, end: str = "") -> None:
        text = text[: shutil.get_terminal_size().columns - 1]  # a wrapped line cannot be rewritten
        with suppress(OSError):  # the terminal may be gone; the search goes on
            sys.stderr.write("\r" + text.ljust(self._width) + end)
            sys.stderr.flush()
        self._width = len(text)


def _words(seconds: float, state: Progress | str | None) -> str:
    if state is None or isinstance(state, str):
        return f"{seconds:5.0f} s  {state or 'starting'}"
    value = "none yet" if state.value is None else number(state.value)
    return (
        f"{seconds:5.0f} s  {state.phase}: best {value}, bound {number(state.lower_bound)}"
        "  (Ctrl-C keeps the best)"
    )


@contextmanager
def shown(*, quiet: bool) -> Iterator[_Line]:
    """Show progress while the block runs, on a terminal only."""
    line, done = _Line(), Event()
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
