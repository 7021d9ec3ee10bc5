"""Records as JSON lines: a head for every run, then an attempt a line, so that runs can resume."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.attempt import Attempt
from benchmarks.machine import PACKAGE, commit, processor
from ppopt import processors

Key = tuple[str, str, float, int, int]
"""Side, instance, limit, workers, seed: what makes an attempt the same as another."""


def key(one: Attempt) -> Key:
    """What an attempt is known by."""
    return one.side, one.instance, one.seconds_limit, one.workers, one.seed


def head(*libraries: str) -> dict[str, Any]:
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


def read(path: Path) -> tuple[list[dict[str, Any]], list[Attempt]]:
    """Heads and attempts of a record; a last line cut short by an interruption is left out."""
    heads, attempts = [], []
    for line in _whole_lines(path):
        row = json.loads(line)
        if "side" in row:
            attempts.append(Attempt(**row))
        else:
            heads.append(row)
    return heads, attempts


def _whole_lines(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return (line for line in text.splitlines(keepends=True) if line.endswith("\n"))


class Record:
    """A record being written; what it holds already is not run again."""

    def __init__(self, path: Path, libraries: Iterable[str]) -> None:
        self._path = path
        self.done = {key(one) for one in read(path)[1]}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(_whole_lines(path)), encoding="utf-8")
        self._append(head(*libraries))

    def add(self, one: Attempt) -> None:
        """Write an attempt at once."""
        self._append(one._asdict())
        self.done.add(key(one))

    def _append(self, row: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def describe(heads: Iterable[dict[str, Any]]) -> str:
    """Heads as lines of Markdown."""
    return "\n".join(
        f"- {one['date']}, commit {one['commit']}; Python {one['python']}, "
        + ", ".join(f"{name} {number}" for name, number in one["versions"].items())
        + f"; {one['processor']}, {one['cores']} cores, load at the start "
        + ", ".join(map(str, one["load"]))
        for one in heads
    )
