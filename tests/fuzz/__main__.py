"""The command line of the adversary: see the package."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.record import heading
from tests.fuzz import campaign
from tests.fuzz.campaign import CATEGORIES, Tally

TINY = (
    *("tiny", "mixed", "placements", "layers", "recompute", "compositions", "streams"),
    "phases",
)
"""Categories of instances that are searched exhaustively."""


def main() -> int:
    """Attack, print counts and findings, write tests; 1 if there is a finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="of each process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--only", action="append", choices=CATEGORIES, help="may be repeated")
    parser.add_argument(
        "--failures", type=Path, default=Path("fuzz-failures"), help="folder for tests"
    )
    given = parser.parse_args()
    print(heading("The adversary", "ortools"), flush=True)
    names, seconds = given.only or list(CATEGORIES), 60 * given.minutes
    seeds = [f"{given.seed}.{number}" for number in range(given.workers)]
    spawn = multiprocessing.get_context("spawn")
    tallies = {name: Tally() for name in names}
    with ProcessPoolExecutor(given.workers, mp_context=spawn) as pool:
        for found in pool.map(
            campaign.campaign, [names] * len(seeds), seeds, [seconds] * len(seeds)
        ):
            for name, tally in found.items():
                tallies[name].add(tally)
    print(f"- processes: seeds {', '.join(seeds)}; {given.minutes:g} minutes each\n")
    return report(tallies, given.failures)


def report(tallies: Mapping[str, Tally], failures: Path) -> int:
    """Print counts and findings, and write tests; 1 if there is a finding."""
    print(campaign.table(tallies))
    tiny = sum(tally.cases - tally.skipped for name, tally in tallies.items() if name in TINY)
    print(f"\nTiny instances beside exhaustive search: {tiny}")
    found = list(campaign.listed(tallies))
    print(f"\n{len(found)} kinds of finding", *found, sep="\n")
    for path in campaign.write_tests(tallies, failures):
        print(f"written: {path}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
