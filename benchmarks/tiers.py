"""Time of the tests by folder: those that always run, and those with the marker `slow`.

python -m benchmarks.tiers > TABLE.md

Runs the tests of each tier, in this process's environment with the extra `test-all`, and prints a
table in Markdown. Time is that of the processor, of tests and the processes that they wait for;
the last row has the whole run, with collection, and browsers and worlds that outlive a test.
As a plugin of pytest (`-p benchmarks.tiers`) this module writes the time of every test to a folder,
PPOPT_TEST_TIMES.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks import record

TIERS = {"fast": "not slow", "slow": "slow"}
"""Name and the expression of markers that chooses it."""
_PR_SET_CHILD_SUBREAPER = 36


class Timed(NamedTuple):
    """A test and the seconds of the processor that it took."""

    test: str
    seconds: float


class Tier(NamedTuple):
    """What a run of one tier took."""

    tests: list[Timed]
    seconds: float
    """Of the processor, whatever the run started."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Write down what a test takes, with its fixtures."""
    began = sum(os.times()[:4])
    result = yield
    row = Timed(item.nodeid, sum(os.times()[:4]) - began)
    file = Path(os.environ["PPOPT_TEST_TIMES"]) / os.environ.get("PYTEST_XDIST_WORKER", "one")
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(row) + "\n")
    return result


def ran(markers: str) -> Tier:
    """Run the tests that an expression of markers chooses, in two workers."""
    with tempfile.TemporaryDirectory() as folder:
        before = _of_children()
        subprocess.run(
            [sys.executable, "-m", "pytest", "-n", "2", "-p", "benchmarks.tiers", "-m", markers],
            env=os.environ | {"PPOPT_TEST_TIMES": folder},
            stdout=sys.stderr,
            check=True,
        )
        _wait_for_orphans()
        lines = (line for file in Path(folder).iterdir() for line in file.open(encoding="utf-8"))
        return Tier([Timed(*json.loads(line)) for line in lines], _of_children() - before)


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _wait_for_orphans() -> None:
    """Wait for processes that outlived the one that started them: their time counts then."""
    try:
        while True:
            os.wait()
    except ChildProcessError:
        return


def table(tiers: Mapping[str, Tier]) -> Iterator[str]:
    """A row per folder, most time first, then one for each whole run."""
    folders = {name: _by_folder(tier.tests) for name, tier in tiers.items()}
    names = {folder for of_tier in folders.values() for folder in of_tier}
    rows = {
        folder: [cell for of_tier in folders.values() for cell in of_tier.get(folder, (0, 0.0))]
        for folder in names
    }
    ordered = sorted(rows.items(), key=lambda row: -row[1][1] - row[1][3])
    total = [cell for tier in tiers.values() for cell in (len(tier.tests), tier.seconds)]
    shown = ([name, *_cells(cells)] for name, cells in (*ordered, ("the whole run", total)))
    return record.table(("folder", "tests", "seconds", "slow tests", "seconds"), shown)


def _by_folder(tests: Iterable[Timed]) -> dict[str, tuple[int, float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for test, seconds in tests:
        found[test.partition("::")[0].rpartition("/")[0]].append(seconds)
    return {folder: (len(times), sum(times)) for folder, times in found.items()}


def _cells(cells: Iterable[float]) -> list[str]:
    return [f"{cell:.0f}" if cell else "" for cell in cells]


def slowest(tier: Tier, count: int) -> Iterator[str]:
    """A row per test, most time first."""
    longest = sorted(tier.tests, key=lambda timed: -timed.seconds)[:count]
    rows = ((f"`{test.removeprefix('tests/')}`", f"{seconds:.1f}") for test, seconds in longest)
    return record.table(("test", "seconds"), rows)


def main() -> None:
    """Run both tiers and print the tables."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    head = record.heading("Time of the tests")
    tiers = {name: ran(markers) for name, markers in TIERS.items()}
    print(head, "", *table(tiers), sep="\n")
    for name, tier in tiers.items():
        print("", f"Slowest of the {name} ones:", "", *slowest(tier, 20), sep="\n")


if __name__ == "__main__":
    main()
