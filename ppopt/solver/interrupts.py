"""Ctrl-C at a moment when it does no harm."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def noted() -> Iterator[list[int]]:
    """Let Ctrl-C add to a list while the block runs, and do nothing else.

    Outside the main thread, which alone hears of it, the list stays empty.
    """
    pressed: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield pressed
        return

    def note(number: int, _: FrameType | None) -> None:
        pressed.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def held() -> Iterator[None]:
    """Hold Ctrl-C back until the block ends.

    A library cut short while it loads stays broken, and one that is written in C++ and calls back
    into Python may lose the exception.
    """
    with noted() as pressed:
        yield
    if pressed:
        raise KeyboardInterrupt
