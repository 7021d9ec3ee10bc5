"""The command line of the adversary: see the package."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.record import heading
from tests.fuzz import campaign
from tests.fuzz import journal as journals
from tests.fuzz.campaign import CATEGORIES, Tally
from tests.fuzz.journal import Journal


def main() -> int:
    """Attack, print counts and findings, write tests; 1 if there is a finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="of each process, all starts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--only", action="append", choices=CATEGORIES, help="may be repeated")
    parser.add_argument(
        "--failures", type=Path, default=Path("fuzz-failures"), help="folder for tests"
    )
    parser.add_argument(
        "--journal",
        type=Path,
        help="file that every minute is noted in; where it exists the run goes on from it",
    )
    parser.add_argument(
        "--report", type=Path, metavar="JOURNAL", help="only print the report of a journal"
    )
    given = parser.parse_args()
    if given.report:
        return report(Journal(given.report), given.failures)
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(given.journal or Path(folder) / "journal.jsonl")
        journal.begin(heading("The adversary", "ortools", "pyjobshop"), given.seed)
        names = given.only or list(CATEGORIES)
        seconds = 60 * given.minutes
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(given.workers, mp_context=spawn) as pool:
            runs = [
                pool.submit(journals.run, journal, names, f"{given.seed}.{number}", seconds)
                for number in range(given.workers)
            ]
            for one in runs:
                one.result()
        return report(journal, given.failures)


def report(journal: Journal, failures: Path) -> int:
    """Print counts and findings of a journal, and write tests; 1 if there is a finding."""
    seconds, tallies = journal.done()
    first, *further = journal.headings()
    print(first)
    for one in further:
        started = [line for line in one.splitlines() if line.startswith(("- date", "- commit"))]
        print("- begun again:", "; ".join(line.removeprefix("- ") for line in started))
    processes = sorted(journal.processes())
    print(f"- processes: seeds {', '.join(processes)}; {seconds / 60:.1f} minutes in all\n")
    print(campaign.table(tallies))
    print(f"\nTiny instances beside exhaustive search: {_tiny(tallies)}")
    found = list(campaign.listed(tallies))
    print(f"\n{len(found)} kinds of finding", *found, sep="\n")
    for path in campaign.write_tests(tallies, failures):
        print(f"written: {path}")
    return 1 if found else 0


def _tiny(tallies: Mapping[str, Tally]) -> int:
    names = (
        *("tiny", "mixed", "placements", "layers", "recompute", "compositions", "streams"),
        *("gradient-work", "offload", "offload-choices", "phases"),
    )
    return sum(tally.cases - tally.skipped for name, tally in tallies.items() if name in names)


if __name__ == "__main__":
    sys.exit(main())
