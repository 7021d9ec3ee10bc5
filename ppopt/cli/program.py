"""A command as a process: its commands are loaded, run, and the process ends."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

from ppopt.cli import streams
from ppopt.solver import interrupts

if TYPE_CHECKING:
    from typer import Typer


def run_process(arguments: Sequence[str] | None, blocked: Iterable[int] | None) -> NoReturn:
    """Run the words of a command, those of the process for None, and exit.

    `blocked`: the signals that the system shall hold back again, where it has held back more.
    Ctrl-C while modules load takes effect when the application begins: code that an import runs may
    swallow an exception. After the application has printed its result Ctrl-C does nothing.
    """
    interrupts.hear_terminations()
    with interrupts.recorded(inner=True):
        if blocked is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        try:
            streams.open_closed()
            streams.buffer_output()
            application()(arguments, prog_name="ppopt")
        finally:
            interrupts.ignore()
    raise AssertionError("the application exits by itself")


def application() -> Typer:
    """The application with its commands, each of which registers itself."""
    from ppopt.cli import (  # noqa: F401, PLC0415
        commands,
        init,
        planning,
        profiling,
        running,
        schedule_files,
        sweeping,
    )
    from ppopt.cli.application import app  # noqa: PLC0415

    return app
