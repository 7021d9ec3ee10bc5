"""Processor time of short commands, of several checkouts in turn.

python -m benchmarks.startup [TREE ...] [--repeats N]

TREE is a checkout, by default this one. All run with this Python and its packages, one after the
other within every repeat, so that a load of the machine meets all of them.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median

from benchmarks.machine import heading

RUN = "from ppopt.cli import main; main({!r})"
COMMANDS = {
    "python -c pass": "pass",
    "import ppopt": "import ppopt",
    "ppopt --help": RUN.format(["--help"]),
    "ppopt solve --stages 4 --batches 8 --mem-limit": RUN.format(
        ["solve", "--stages", "4", "--batches", "8", "--mem-limit"]
    ),
}


def processor_ms(code: str, tree: Path) -> float:
    """Run Python code with the package of a checkout; user and system time, in milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def main() -> None:
    """Print the record."""
    parser = argparse.ArgumentParser(description="processor time of short commands")
    parser.add_argument("trees", nargs="*", type=Path, metavar="TREE", help="checkouts")
    parser.add_argument("--repeats", type=int, default=25, help="runs of each (default 25)")
    given = parser.parse_args()
    trees = [tree.resolve() for tree in given.trees or [Path(__file__).parents[1]]]
    taken: dict[tuple[str, Path], list[float]] = {
        (name, tree): [] for name in COMMANDS for tree in trees
    }
    for number in range(given.repeats + 1):
        for (name, tree), times in taken.items():
            ms = processor_ms(COMMANDS[name], tree)
            if number:  # the first run of each compiles
                times.append(ms)
    print(heading("Start-up", "typer"))
    print(f"\nProcessor ms, medians of {given.repeats} runs in turn, smallest in brackets.\n")
    print("| command | " + " | ".join(tree.name for tree in trees) + " |")
    print("|---" * (len(trees) + 1) + "|")
    for name in COMMANDS:
        cells = [f"{median(t):.0f} ({min(t):.0f})" for t in (taken[name, tree] for tree in trees)]
        print(f"| `{name}` | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
