"""The command line: `ppopt`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from ppopt.cli.app import EXIT_UNKNOWN, INTERRUPTED, app, fail

__all__ = ["app", "main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point of `ppopt`."""
    try:
        # Each registers its commands.
        from ppopt.cli import commands, profiling, running, schedule_files  # noqa: F401, PLC0415
    except KeyboardInterrupt:
        fail(INTERRUPTED, EXIT_UNKNOWN)
    app(arguments, prog_name="ppopt")
    raise AssertionError("the application exits by itself")
