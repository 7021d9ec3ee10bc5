"""What every benchmark shares: heads of records, JSON lines that resume, tables, clocks, checkouts.

A record states date, commit, versions, machine and load. One that grows is a file of JSON lines: a
run that is stopped goes on where it ended.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

from ppopt import processors

PACKAGE = "ppopt-pipeline"
Row = dict[str, Any]


def head(*libraries: str) -> Row:
    """Date, commit, versions and machine of a run."""
    return {
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "commit": commit(Path(__file__).parent),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in (PACKAGE, *libraries)},
        "processor": processor(),
        "cores": processors.available(),
        "load": [round(value, 2) for value in os.getloadavg()],
    }


def heading(title: str, *libraries: str) -> str:
    """Title, date, commit, versions and machine, as Markdown."""
    facts = head(*libraries)
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    load = ", ".join(f"{value:.1f}" for value in facts["load"])
    return "\n".join(
        (
            f"# {title}\n",
            f"- date: {facts['date']}",
            f"- commit: {facts['commit']}",
            f"- versions: Python {facts['python']}, {versions}",
            f"- processor: {facts['processor']}, {facts['cores']} cores",
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


def read_lines(path: Path | None) -> list[Row]:
    """Rows of a file of JSON lines; without it none. A last line that was cut short is left out."""
    if path is None or not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def add_line(path: Path | None, row: Row) -> None:
    """Write a row at the end of a file of JSON lines, after its last whole line."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write((json.dumps(row) + "\n").encode())


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Lines of a table in Markdown, as its rows come."""
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


def number(value: Any) -> float | None:
    """A figure as JSON holds it."""
    return None if value is None else float(value)


def format_value(value: Any, form: str = ".2f") -> str:
    """A figure in a table; a dash for none."""
    return "-" if value is None else f"{float(value):{form}}"


@contextmanager
def processor_clock() -> Iterator[None]:
    """Let searches in this process read the time of the processor as their clock.

    What else the machine does then has no part in whether a time limit is kept. For one worker:
    the time of other processes does not count.
    """
    with mock.patch.object(time, "monotonic", time.process_time):
        yield


def in_checkout(tree: Path, code: str, *arguments: object) -> str:
    """What Python code prints that runs with the package of a checkout."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        check=True,
        capture_output=True,
        text=True,
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)},
    ).stdout
