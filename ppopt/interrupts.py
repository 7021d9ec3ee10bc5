"""Records Ctrl-C and termination signals: searches end at their next checkpoint.

In a `recorded` block a signal is recorded, and scopes end (`ppopt.cancellation`). In a `heard`
block outside of searches, Ctrl-C raises KeyboardInterrupt once. A command records Ctrl-C from the
start of its search until everything is written and printed, so a second Ctrl-C never loses a
result. Only the main thread receives signals.
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


class _Record:
    """Signals recorded in the process."""

    def __init__(self) -> None:
        self.signals: list[int] = []
        self.depth = 0
        """Number of open `recorded` blocks."""
        self.raises = False

    def __call__(self, number: int, _: FrameType | None = None) -> None:
        self.signals.append(number)
        if self.raises:
            self.raises = False
            raise KeyboardInterrupt


_record = _Record()


@contextmanager
def recorded() -> Iterator[list[int]]:
    """Record Ctrl-C while the block runs, instead of raising KeyboardInterrupt.

    Yields the signals recorded since the start of the outermost block.
    """
    if threading.current_thread() is not threading.main_thread():
        yield []
        return
    before, raises = signal.getsignal(signal.SIGINT), _record.raises
    if not _record.depth:
        _record.signals = []
    _record.depth += 1
    _record.raises = False
    try:
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, _record)
        yield _record.signals
    finally:
        _record.depth -= 1
        _record.raises = raises and not _record.signals
        if signal.getsignal(signal.SIGINT) is _record:
            signal.signal(signal.SIGINT, before)


@contextmanager
def heard() -> Iterator[None]:
    """Raise KeyboardInterrupt once for Ctrl-C in a block inside `recorded`, even an earlier one."""
    if _record.signals:
        raise KeyboardInterrupt
    _record.raises = True
    try:
        yield
    finally:
        _record.raises = False


def pressed() -> bool:
    """Whether Ctrl-C was recorded in an open `recorded` block."""
    return _record.depth > 0 and bool(_record.signals)


def only_record() -> None:
    """Only record Ctrl-C from now on.

    Called when a search starts: its result is then always written and printed.
    """
    _record.raises = False


def hear_terminations() -> None:
    """Treat termination signals like Ctrl-C from now on.

    A signal that the process ignores from its start (`nohup`) stays ignored.
    """
    for number in TERMINATIONS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _as_ctrl_c)


def _as_ctrl_c(number: int, frame: FrameType | None) -> None:
    if not _record.depth:
        raise KeyboardInterrupt
    _record(number, frame)


def ignore() -> None:
    """Ignore these signals and Ctrl-C from now on: the process is about to end."""
    for number in (signal.SIGINT, *TERMINATIONS):
        signal.signal(number, signal.SIG_IGN)
