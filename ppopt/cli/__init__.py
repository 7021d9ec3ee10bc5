"""The command line: `ppopt`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from ppopt.cli import streams
from ppopt.solver import interrupts

if TYPE_CHECKING:
    from typer import Typer

    from ppopt.cli.application import app as app

__all__ = ["app", "main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point of `ppopt`: the process does nothing else.

    All else is loaded here, so that Ctrl-C in the meantime is one line.
    """
    interrupts.hear_terminations()
    with interrupts.recorded(inner=True):
        try:
            with interrupts.heard():
                app = _loaded()
            app(arguments, prog_name="ppopt")
        except KeyboardInterrupt:
            streams.interrupted(sys.argv[1:] if arguments is None else arguments)
        finally:
            interrupts.ignore()
    raise AssertionError("the application exits by itself")


def _loaded() -> Typer:
    """The application with its commands, each of which registers itself."""
    streams.open_closed()
    from ppopt.cli import (  # noqa: F401, PLC0415
        commands,
        init,
        profiling,
        running,
        schedule_files,
        sweeping,
    )
    from ppopt.cli.application import app  # noqa: PLC0415

    return app


def __getattr__(name: str) -> object:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ppopt.cli.application import app  # noqa: PLC0415

    return app
