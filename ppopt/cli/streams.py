"""The standard streams of a command, which may be closed, full, or read by nobody."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

EXIT_UNKNOWN = 4
INTERRUPTED = "interrupted before there was a result"
NO_RESULT = {
    "schema": 1,
    "status": "unknown",
    **dict.fromkeys(("objective", "value", "lower_bound", "gap")),
    "proof": INTERRUPTED,
    **dict.fromkeys(("makespan", "device_span", "bubble_rate", "bubble_overhead")),
    **dict.fromkeys(("peak_memory", "mem_limit", "exposed", "seed", "workers", "versions")),
    **dict.fromkeys(("solve_seconds", "schedule")),
    "verified": False,
}
"""What `--json` prints where a command was interrupted before its search began."""


def open_closed() -> None:
    """Open the null device where a standard stream is closed (`2>&-`).

    Python has no stream there, and the next file to be opened would get its number.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def buffer_output() -> None:
    """Buffer stdout where Python does not (`python -u`, `PYTHONUNBUFFERED`).

    An unbuffered stream loses, without an error, what is left of a text when a signal arrives
    while a full pipe is written to.
    """
    stdout = sys.stdout
    if isinstance(getattr(stdout, "buffer", None), io.RawIOBase):
        sys.stdout = open(  # noqa: SIM115  for as long as the process lives
            stdout.fileno(), "w", encoding=stdout.encoding, errors=stdout.errors, closefd=False
        )


def drop(number: int) -> None:
    """Discard what is left for a stream: nobody can read it, and Python would fail at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)


def note(message: str) -> None:
    """Print a line on stderr at once; where it cannot be written the command goes on without."""
    try:
        print(f"{message}\n", end="", file=sys.stderr, flush=True)
    except OSError:
        with suppress(OSError, ValueError):
            drop(sys.stderr.fileno())


def interrupted(arguments: Sequence[str] | None) -> NoReturn:
    """End a command that Ctrl-C ended before there was a result; None: the words of the process."""
    if "--json" in (sys.argv[1:] if arguments is None else arguments):
        with suppress(OSError):
            print(json.dumps(NO_RESULT), flush=True)
    note(f"error: {INTERRUPTED}")
    sys.exit(EXIT_UNKNOWN)
