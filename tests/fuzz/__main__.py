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
    options = parser.parse_args()
    print(heading("The adversary", "ortools"), flush=True)
    names, seconds = options.only or list(CATEGORIES), 60 * options.minutes
    seeds = [f"{options.seed}.{worker}" for worker in range(options.workers)]
    spawn = multiprocessing.get_context("spawn")
    tallies = {name: Tally() for name in names}
    with ProcessPoolExecutor(options.workers, mp_context=spawn) as pool:
        for tallies_of_process in pool.map(
            campaign.campaign, [names] * len(seeds), seeds, [seconds] * len(seeds)
        ):
            for name, tally in tallies_of_process.items():
                tallies[name].add(tally)
    print(f"- processes: seeds {', '.join(seeds)}; {options.minutes:g} minutes each\n")
    return report(tallies, options.failures)


def report(tallies: Mapping[str, Tally], failures: Path) -> int:
    """Print counts and findings, and write tests; 1 if there is a finding."""
    print(campaign.table(tallies))
    tiny = sum(tally.cases - tally.skipped for name, tally in tallies.items() if name in TINY)
    print(f"\nTiny instances beside exhaustive search: {tiny}")
    findings = list(campaign.listed(tallies))
    print(f"\n{len(findings)} kinds of finding", *findings, sep="\n")
    for path in campaign.write_tests(tallies, failures):
        print(f"written: {path}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
