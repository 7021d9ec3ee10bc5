"""A command whose standard error is a terminal, and the processes of its session."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.cli.cli_run import process


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


def of_session(leader: int) -> list[int]:
    """The processes of a session: the sixth field of their stat (proc(5))."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                members.append(int(stat.parent.name))
    return members
