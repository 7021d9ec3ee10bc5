"""The journal of a run: a line of JSON per piece of some time, only ever appended.

A run that is killed loses the piece it was in. Begun again with the same journal and seed it goes
on where it was; a report can be made of a journal at any time. Lines are of two kinds: `begun` (the
machine and what was asked) and `piece` (the counts of one process). Cases are written as Python
writes them, because keys and tuples of JSON are others.
"""

from __future__ import annotations

import ast
import json
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.fuzz.campaign import Tally, campaign

PIECE = 60.0
"""Seconds after which a process notes what it did."""


class Journal:
    """A file of lines."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, heading: str, seed: int) -> None:
        """Note that a run begins, or goes on; a line that was cut short is ended."""
        if self.path.exists() and not self.path.read_bytes().endswith(b"\n"):
            self._write("\n")
        self._append({"begun": heading, "seed": seed})

    def piece(self, seed: str, seconds: float, tallies: Mapping[str, Tally]) -> None:
        """Note what one process did in one piece of time."""
        self._append(
            {
                "piece": seed,
                "seconds": round(seconds, 1),
                "tallies": {name: _written(tally) for name, tally in tallies.items()},
            }
        )

    def _append(self, line: Mapping[str, Any]) -> None:
        self._write(json.dumps(line) + "\n")

    def _write(self, text: str) -> None:
        """Append in one system call: several processes write to the file."""
        number = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(number, text.encode())
        finally:
            os.close(number)

    def lines(self) -> Iterator[dict[str, Any]]:
        """Every line but one that was cut short when its process was killed."""
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        for line in text.splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue

    def done(self, seed: str | None = None) -> tuple[float, dict[str, Tally]]:
        """Seconds and counts of all pieces of a process; None: of all processes together."""
        seconds, tallies = 0.0, dict[str, Tally]()
        for line in self.lines():
            if "piece" in line and seed in (None, line["piece"]):
                seconds += line["seconds"]
                for name, written in line["tallies"].items():
                    tallies.setdefault(name, Tally()).add(_read(written))
        return seconds, tallies

    def headings(self) -> list[str]:
        """The heading of every start, the first one first."""
        return [line["begun"] for line in self.lines() if "begun" in line]

    def processes(self) -> set[str]:
        """The seeds of the processes."""
        return {line["piece"] for line in self.lines() if "piece" in line}


def run(journal: Journal, names: Sequence[str], seed: str, seconds: float) -> None:
    """Attack in one process, in pieces, until all of its pieces together have taken so long.

    If the process that began it is gone, this one ends without noting its last piece: another
    may go on from the journal already.
    """
    parent = multiprocessing.parent_process()
    while (spent := journal.done(seed))[0] < seconds:
        began = time.monotonic()
        done = {name: tally.cases for name, tally in spent[1].items()}
        tallies = campaign(names, seed, min(PIECE, seconds - spent[0]), done)
        if parent is not None and not parent.is_alive():
            os._exit(1)
        journal.piece(seed, time.monotonic() - began, tallies)


def _written(tally: Tally) -> dict[str, Any]:
    return {
        "cases": tally.cases,
        "skipped": tally.skipped,
        "seconds": round(tally.seconds, 2),
        "kinds": tally.kinds,
        "examples": {kind: [words, repr(case)] for kind, (words, case) in tally.examples.items()},
    }


def _read(written: Mapping[str, Any]) -> Tally:
    return Tally(
        written["cases"],
        written["skipped"],
        written["seconds"],
        Counter(written["kinds"]),
        {
            kind: (words, ast.literal_eval(case))
            for kind, (words, case) in written["examples"].items()
        },
    )
