"""Ctrl-C at a chosen function call of ppopt."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import ppopt

PACKAGE = str(Path(ppopt.__file__).parent)


class Calls:
    """Counts calls as a profiler, and sends Ctrl-C at one of them."""

    def __init__(self, at: int | None, files: str = "") -> None:
        """`at`: number of the call at which the signal is sent, from 1; None: at none.

        Calls of functions of the files whose path in the package begins with `files` count.
        """
        self.number, self.at, self._files = 0, at, f"{PACKAGE}/{files}"

    @property
    def sent(self) -> bool:
        """Whether the signal was sent."""
        return self.at is not None and self.number >= self.at

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Count: a signal takes effect where a function is called, or where C code returns."""
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(self._files):
            self.number += 1
            if self.number == self.at:
                signal.raise_signal(signal.SIGINT)


@contextmanager
def interrupted(at: int | None, files: str = "") -> Iterator[Calls]:
    """Send Ctrl-C at a call in a block; see `Calls`."""
    calls = Calls(at, files)
    sys.setprofile(calls)
    try:
        yield calls
    finally:
        sys.setprofile(None)
