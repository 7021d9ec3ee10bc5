"""Records: JSON lines of a head, then of models, then of instances; and their differences.

The rows of a record say what is to be solved, too: what was drawn once is not drawn again. A new
instance is a further row of `KNOWN`, which needs the fields of `runs.Instance` alone.
A row is the same in two records where all that is compared is equal. Of a row that may improve, the
value may be lower and the bound higher, and then its steps may differ.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator
from fractions import Fraction
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.record import PACKAGE, commit, processor
from tests.equivalence import models, runs
from tests.equivalence.runs import Fields, Instance

FIRST = ("ppopt.solver.search", "ppopt.studies.plan", "ppopt.studies.frontier", "ppopt.rechecker")
"""Modules that are imported before the clock stands still: some keep a clock of their own."""


KNOWN = Path(__file__).with_name("answers.jsonl")
"""The record of the last change of an answer."""


def record(path: Path, tree: Path | None = None, only: str = "") -> None:
    """Write a line for every row of `KNOWN` whose name begins with `only`."""
    ppopt = package(tree)
    with path.open("w", encoding="utf-8") as file:
        print(json.dumps(head(Path(ppopt.__file__).parent)), file=file, flush=True)
        for row in rows(ppopt, of(read(KNOWN), only)):
            print(json.dumps(row), file=file, flush=True)
            values = (
                row.get(name) for name in ("name", "status", "value", "lower_bound", "models")
            )
            print(*values, f"{row.get('seconds', 0)} s", flush=True)


def of(known: dict[str, Fields], only: str = "") -> Iterator[Instance]:
    """The instances of a record whose names begin with `only`."""
    for name, row in known.items():
        if name.startswith(only):
            yield Instance(**{key: row[key] for key in Instance._fields if key in row})


def rows(ppopt: Any, instances: Iterable[Instance]) -> Iterator[Fields]:
    """The rows of models and instances."""
    for instance in instances:
        is_model = instance.name.startswith(models.PREFIX)
        yield (models if is_model else runs).outcome(ppopt, instance)


def package(tree: Path | None) -> Any:
    """Import ppopt, from a checkout where one is given."""
    if tree is not None:
        sys.path.insert(0, str(tree.resolve()))
    ppopt = import_module("ppopt")
    if tree is not None and not Path(ppopt.__file__ or "").is_relative_to(tree.resolve()):
        raise SystemExit(f"{tree}: holds no ppopt")
    for name in FIRST:
        import_module(name)
    return ppopt


def head(folder: Path) -> Fields:
    """What was recorded, by what, and where."""
    tree = ["git", "-C", str(folder), "rev-parse", "HEAD:ppopt"]
    return {
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "commit": commit(folder),
        "ppopt": subprocess.run(tree, check=True, capture_output=True, text=True).stdout.strip(),
        "seed": runs.SEED,
        "workers": runs.WORKERS,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in (PACKAGE, "ortools", "numpy")},
        "processor": processor(),
        "load": [round(value, 2) for value in os.getloadavg()],
    }


def read(path: Path) -> dict[str, Fields]:
    """The rows of a record by name."""
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {row["name"]: row for row in lines if "name" in row}


def differences(
    old: dict[str, Fields], new: Iterable[Fields], *, answers: bool = False
) -> Iterator[str]:
    """Say in one line each what differs, as the new rows come.

    `answers`: not how the answers were found; nor are models compared that are built directly.
    """
    missing = dict(old)
    for after in new:
        before = missing.pop(name := after["name"], None)
        if before is None:
            yield f"{name}: not in the first record"
            continue
        for field in _compared(before, after, answers=answers):
            if before.get(field) != after.get(field):
                yield f"{name}: {field} {before.get(field)} became {after.get(field)}"
    yield from (f"{name}: only in the first record" for name in missing)


def _compared(before: Fields, after: Fields, *, answers: bool) -> tuple[str, ...]:
    """The fields that must be equal in two rows of a name."""
    if before["name"].startswith(models.PREFIX):
        return () if answers else models.MODEL
    if before["may_improve"] and before != after and _improved(before, after):
        return ("study", "pipeline", "options")
    return runs.ANSWERS if answers else (*runs.ANSWERS, *runs.STEPS)


def _improved(before: Fields, after: Fields) -> bool:
    """Whether value or bound are better, and neither is worse."""
    was, now = _figures(before), _figures(after)
    return now != was and now[0] <= was[0] and now[1] >= was[1]


def _figures(row: Fields) -> tuple[Fraction | float, Fraction | float]:
    """Value and bound; without them the worst there are."""
    value, bound = row["value"], row["lower_bound"]
    return (
        float("inf") if value is None else Fraction(value),
        float("-inf") if bound is None else Fraction(bound),
    )


def compare(old: dict[str, Fields], new: Iterable[Fields], *, answers: bool = False) -> int:
    """Print the differences of two records; 1 if there is one, or nothing to compare."""
    count = 0
    for difference in differences(old, new, answers=answers):
        print(difference, flush=True)
        count += 1
    print(f"{len(old)} rows, {count} differences")
    return 1 if count or not old else 0


def check(path: Path, tree: Path | None = None, only: str = "", *, answers: bool = False) -> int:
    """Solve again what a record holds, and compare."""
    old = {name: row for name, row in read(path).items() if name.startswith(only)}
    return compare(old, rows(package(tree), of(old)), answers=answers)
