"""The same answers before and after a change: status, value and bound of instances of all kinds.

python -m tests.equivalence record -o OUT [--tree DIR] [--only NAME]
python -m tests.equivalence check RECORD [--tree DIR] [--only NAME] [--answers]
python -m tests.equivalence compare BEFORE AFTER [--answers]

`record` solves every instance of `answers.jsonl` with one worker and seed 0, and writes one JSON
line for each, after a head with commit, versions and machine. The clock stands still meanwhile: a
repeated run takes the same steps on a busy machine. A line has the answer (status, exact value and
bound, the points of a frontier, the least memory of a plan) and how it was found (the kind of
proof, a digest of the schedule, the number of models that the search gave to CP-SAT and a digest of
them all). Lines whose names begin with `model-` have digests of models that are built directly.

`check` solves those of a record and compares; `compare` compares two. They print every
difference and exit with code 1 if there is one. With `--answers` only answers are compared.
`--tree` takes `ppopt` from another checkout, `--only` what has a name that begins so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.equivalence import records


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, check or compare."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.equivalence",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording, checking = commands.add_parser("record"), commands.add_parser("check")
    recording.add_argument("-o", "--output", type=Path, required=True)
    checking.add_argument("record", type=Path)
    for solving in (recording, checking):
        solving.add_argument("--tree", type=Path, help="checkout to take ppopt from")
        solving.add_argument("--only", default="", help="what has a name that begins so")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    for judging in (checking, comparing):
        judging.add_argument("--answers", action="store_true", help="not how they were found")
    options = parser.parse_args(arguments)
    if options.command == "record":
        records.record(options.output, options.tree, options.only)
        return 0
    if options.command == "check":
        return records.check(options.record, options.tree, options.only, answers=options.answers)
    before, after = map(records.read, (options.before, options.after))
    return records.compare(before, after.values(), answers=options.answers)


if __name__ == "__main__":
    sys.exit(main())
