"""Controls when Ctrl-C takes effect: at once, later, or after a block.

In a `recorded` block Ctrl-C is only recorded. In a `heard` block inside it, Ctrl-C raises
KeyboardInterrupt once. A command records Ctrl-C from the start of its search until everything is
written and printed. It raises only in the `heard` blocks of the search, so a second Ctrl-C never
loses a result. Only the main thread receives signals; in other threads these functions do nothing.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

TERMINATIONS = [
    number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None
]
"""Signals that ask a process to end: from `timeout`, `docker stop`, SLURM, a closed terminal."""


class _Note:
    """Signals recorded in a block."""

    def __init__(self, *, inner: bool) -> None:
        self.pressed: list[int] = []
        self.inner = inner
        self.raises = False

    def __call__(self, number: int, _: FrameType | None = None) -> None:
        self.pressed.append(number)
        if self.raises:
            self.raises = False
            raise KeyboardInterrupt


_notes: list[_Note] = []
"""Records of the open `recorded` blocks of the main thread, the innermost last."""


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def recorded(*, inner: bool = False) -> Iterator[list[int]]:
    """Record Ctrl-C in a list while the block runs, instead of raising KeyboardInterrupt.

    `inner`: whether the list also gets what is recorded in blocks inside this one.
    """
    note = _Note(inner=inner)
    if not _is_main():
        yield note.pressed
        return
    before = signal.getsignal(signal.SIGINT)
    _notes.append(note)
    try:
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, note)
        yield note.pressed
    finally:
        _notes.remove(note)
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, before)
        for outer in _notes:
            outer.pressed += note.pressed if outer.inner else []


@contextmanager
def heard() -> Iterator[None]:
    """Raise KeyboardInterrupt once for Ctrl-C, even an earlier one, in a block inside `recorded`.

    Outside of `recorded` Ctrl-C always raises.
    """
    if not _notes or not _is_main():
        yield
        return
    note = _notes[-1]
    before = note.raises
    try:
        note.raises = True
        if any(each.pressed for each in _notes):
            raise KeyboardInterrupt
        yield
    finally:
        note.raises = before and not note.pressed


@contextmanager
def deferred() -> Iterator[None]:
    """Delay KeyboardInterrupt for Ctrl-C until the end of the block, also if the block raises.

    An interrupted import leaves a library broken, and a C++ library that calls back into Python may
    lose the exception.
    """
    pressed: list[int] = []
    try:
        with recorded() as pressed:
            yield
    finally:
        outer = _notes[-1] if _notes else None
        if pressed and (outer is None or outer.raises):
            if outer is not None:
                outer.raises = False
            raise KeyboardInterrupt


def pressed() -> bool:
    """Whether Ctrl-C was recorded, in the main thread.

    Its KeyboardInterrupt may have been lost: Python discards exceptions that are raised in a
    finalizer or in a callback of the garbage collector.
    """
    return bool(_notes) and _is_main() and any(note.pressed for note in _notes)


def only_record() -> None:
    """Only record Ctrl-C from now on, until `recorded` ends, except in blocks of `heard`.

    Called when a search starts: its result is then always written and printed.
    """
    if _notes and _is_main():
        _notes[-1].raises = False


def hear_terminations() -> None:
    """Treat termination signals like Ctrl-C from now on.

    A signal that the process ignores from its start (`nohup`) stays ignored.
    """
    for number in TERMINATIONS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _as_ctrl_c)


def _as_ctrl_c(number: int, frame: FrameType | None) -> None:
    if not _notes:
        raise KeyboardInterrupt
    _notes[-1](number, frame)


def ignore() -> None:
    """Ignore these signals and Ctrl-C from now on: the process is about to end."""
    for number in (signal.SIGINT, *TERMINATIONS):
        signal.signal(number, signal.SIG_IGN)
