"""The command line of the adversary: see the package."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.fuzz import campaign
from benchmarks.fuzz.campaign import CATEGORIES, Tally
from benchmarks.machine import heading


def main() -> int:
    """Attack, print counts and findings, write tests; 1 where there is a finding."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--only", action="append", choices=CATEGORIES, help="may be repeated")
    parser.add_argument(
        "--failures", type=Path, default=Path("fuzz-failures"), help="folder for tests"
    )
    given = parser.parse_args()
    names = given.only or list(CATEGORIES)
    print(heading("The adversary", "ortools", "pyjobshop"), flush=True)
    tallies = {name: Tally() for name in names}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.workers, mp_context=spawn) as pool:
        runs = [
            pool.submit(campaign.campaign, names, f"{given.seed}.{worker}", 60 * given.minutes)
            for worker in range(given.workers)
        ]
        for run in runs:
            for name, tally in run.result().items():
                tallies[name].add(tally)
    print(f"- seed {given.seed}, {given.minutes:g} minutes, {given.workers} processes\n")
    print(campaign.table(tallies))
    found = list(campaign.listed(tallies))
    print(f"\n{len(found)} kinds of finding", *found, sep="\n")
    for path in campaign.write_tests(tallies, given.failures):
        print(f"written: {path}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
