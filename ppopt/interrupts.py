"""Records Ctrl-C and termination signals: searches end at their next checkpoint.

In a `recorded` block a signal is recorded, and scopes end (`ppopt.cancellation`). In a `heard`
block, Ctrl-C raises KeyboardInterrupt once, until a search in it records Ctrl-C. A command is such
a block: from the start of its first search until everything is written and printed, Ctrl-C is only
recorded, so a second one never loses a result. Only the main thread receives signals.
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


RECORD = _Record()
"""Signals of the open `recorded` blocks."""


@contextmanager
def recorded() -> Iterator[list[int]]:
    """Record Ctrl-C while the block runs, instead of raising KeyboardInterrupt.

    A `heard` block around it ends hearing: the result of a search is always written and printed.
    Yields the signals recorded since the start of the outermost block.
    """
    if threading.current_thread() is not threading.main_thread():
        yield []
        return
    before = signal.getsignal(signal.SIGINT)
    RECORD.depth += 1
    RECORD.raises = False
    try:
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, RECORD)
        yield RECORD.signals
    finally:
        RECORD.depth -= 1
        if not RECORD.depth:
            RECORD.signals = []
        if signal.getsignal(signal.SIGINT) is RECORD:
            signal.signal(signal.SIGINT, before)


@contextmanager
def heard() -> Iterator[None]:
    """Raise KeyboardInterrupt once for Ctrl-C in a block inside `recorded`, even an earlier one.

    Before Python 3.12, RuntimeError wraps what is raised while a class gets its attributes.
    """
    if RECORD.signals:
        raise KeyboardInterrupt
    RECORD.raises = True
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise
    finally:
        RECORD.raises = False


def pressed(times: int = 1) -> bool:
    """Whether Ctrl-C was recorded so many times in an open `recorded` block."""
    return len(RECORD.signals) >= times


def hear_terminations() -> None:
    """Treat termination signals like Ctrl-C from now on.

    A signal that the process ignores from its start (`nohup`) stays ignored.
    """
    for number in TERMINATIONS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _as_ctrl_c)


def _as_ctrl_c(number: int, frame: FrameType | None) -> None:
    if not RECORD.depth:
        raise KeyboardInterrupt
    RECORD(number, frame)


def ignore() -> None:
    """Ignore these signals and Ctrl-C from now on: the process is about to end."""
    for number in (signal.SIGINT, *TERMINATIONS):
        signal.signal(number, signal.SIG_IGN)
