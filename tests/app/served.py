"""The app as a real server in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.clock import HANGS

CODE = "from ppopt.cli import main; main()"
_PROCESSES: dict[str, subprocess.Popen[bytes]] = {}


@contextmanager
def served(*flags: str) -> Iterator[str]:
    """Serve the app at a free port; yields its address. It must end by Ctrl-C with no error."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, "app", "--port", str(port), *flags], stderr=subprocess.PIPE
    )
    address = f"http://127.0.0.1:{port}"
    _PROCESSES[address] = process
    try:
        _wait(port)
        yield address
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=HANGS)
    assert b"Traceback" not in errors, errors.decode()


def _wait(port: int) -> None:
    end = time.monotonic() + HANGS
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"no server at port {port}")


def children(address: str) -> list[int]:
    """Processes that the server has started and that still run."""
    parent = _PROCESSES[address].pid
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent and fields[0] != "Z":
                processes.append(int(entry.name))
    return processes


def resident(address: str) -> int:
    """Bytes of memory that the server holds."""
    pages = Path(f"/proc/{_PROCESSES[address].pid}/statm").read_text(encoding="utf-8").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
