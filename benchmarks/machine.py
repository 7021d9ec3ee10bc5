"""On what a benchmark ran: the head of every record."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

PACKAGE = "ppopt-pipeline"


def heading(title: str, *libraries: str) -> str:
    """Title, date, commit, versions and machine, as Markdown."""
    versions = ", ".join(f"{name} {version(name)}" for name in (PACKAGE, *libraries))
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return "\n".join(
        (
            f"# {title}\n",
            f"- date: {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
            f"- commit: {commit(Path(__file__).parent)}",
            f"- versions: Python {platform.python_version()}, {versions}",
            f"- processor: {processor()}, {os.cpu_count()} cores",
            f"- load before the start (1, 5, 15 minutes): {load}",
        )
    )


def commit(folder: Path) -> str:
    """The commit checked out in a folder, and whether its tracked files differ from it."""
    name = _git(folder, "rev-parse", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return f"{name} (with changes)" if changed else name


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def processor() -> str:
    """Name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
