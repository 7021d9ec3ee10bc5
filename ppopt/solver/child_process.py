"""Starts a child Python process that is connected by a pipe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import Pipe, spawn
from multiprocessing.connection import Connection
from pathlib import Path

from ppopt import interrupts

_CODE = "import sys; sys.path[:] = {path!r}; from {module} import serve; serve({number})"


def interpreter() -> str | None:
    """Python executable for child processes; None if they cannot be started."""
    executable = spawn.get_executable()
    unable = os.name != "posix" or not executable or getattr(sys, "frozen", False)
    return None if unable else os.fsdecode(executable or b"")


def start(
    executable: str, module: str, environment: Mapping[str, str] | None = None
) -> tuple[Connection, subprocess.Popen[bytes]]:
    """Start a process that calls `serve` of a module with the file descriptor of its pipe end.

    The process ignores Ctrl-C and termination signals. Returns the other pipe end and the process.
    Raises OSError.
    """
    parent_end, child_end = Pipe()
    with child_end:
        path = [str(Path(entry).absolute()) for entry in sys.path if isinstance(entry, str)]
        code = _CODE.format(path=path, module=module, number=child_end.fileno())
        try:
            with _signals_not_passed_on():
                process = subprocess.Popen(
                    [executable, "-c", code],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(child_end.fileno(),),
                    env=None if environment is None else {**os.environ, **environment},
                )
        except OSError:
            parent_end.close()
            raise
    return parent_end, process


@contextmanager
def _signals_not_passed_on() -> Iterator[None]:
    """Block Ctrl-C and termination signals in processes started here: the search handles them."""
    ours = {signal.SIGINT, *interrupts.TERMINATIONS}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ours)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
