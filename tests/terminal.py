"""A command whose standard error is a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from typing import Any

from tests.cli_run import process


def on_terminal(line: str, **options: Any) -> tuple[subprocess.Popen[str], int]:
    """Start a command whose stderr, alone, is a terminal; the other end of that."""
    ours, theirs = pty.openpty()
    command = process(line, stderr=theirs, **options)
    os.close(theirs)
    return command, ours


def read_until(terminal: int, pattern: str | None) -> str:
    """Read until the pattern is seen, or to the end."""
    seen = b""
    while pattern is None or not re.search(pattern.encode(), seen):
        try:
            more = os.read(terminal, 4096)
        except OSError:  # how Linux tells that the other end of a terminal is closed
            break
        if not more:
            break
        seen += more
    if pattern is None:
        os.close(terminal)
    return seen.decode()
