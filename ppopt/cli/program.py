"""A command as a process: its commands are loaded, run, and the process ends."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

from ppopt import interrupts
from ppopt.cli import streams

if TYPE_CHECKING:
    from typer import Typer

_OBJECTS_PER_COLLECTION = 50_000
"""What a command loads stays to its end: collections of cycles at Python's 700 take 5 % of it."""


def run_process(
    arguments: Sequence[str] | None, blocked: Iterable[int] | None, began: float
) -> NoReturn:
    """Run the words of a command, those of the process for None, and exit.

    `blocked`: the signals that the system shall hold back again, if it has held back more.
    `began`: the instant of `time.monotonic` from which time limits count.
    Ctrl-C while modules load takes effect when the application begins: code that an import runs may
    swallow an exception. After the application has printed its result Ctrl-C does nothing.
    """
    gc.set_threshold(_OBJECTS_PER_COLLECTION, *gc.get_threshold()[1:])
    interrupts.hear_terminations()
    with interrupts.recorded():
        if blocked is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        try:
            streams.open_closed()
            streams.buffer_output()
            application()(arguments, prog_name="ppopt", obj=began)
        finally:
            interrupts.ignore()
            gc.freeze()  # the end of a process need not look for cycles among all that it loaded
    raise AssertionError("the application exits by itself")


def application() -> Typer:
    """The application with its commands, each of which registers itself."""
    from ppopt.cli import (  # noqa: F401, PLC0415
        commands,
        init,
        ordering,
        planning,
        profiling,
        rating,
        running,
        schedule_files,
        serving,
        sweeping,
    )
    from ppopt.cli.application import app  # noqa: PLC0415

    return app
