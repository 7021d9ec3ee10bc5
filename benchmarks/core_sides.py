"""The core of the suite on two checkouts, each instance on both in turn, in processes of its own.

python -m benchmarks.core_sides run BEFORE AFTER -o sides.jsonl --seconds 5 --workers 2
python -m benchmarks.core_sides report sides.jsonl

BEFORE and AFTER are checkouts; both run with this Python and its packages, and backwards are split
on both, as older checkouts have no others. Which side begins alternates. Time is that of the
processor, children included; what ppopt loads on use counts, but not numpy, which older checkouts
load with their instances. With one worker the time limit is of the processor, too, so that a
load of the machine changes little; with more it is of the clock: run those on a quiet machine.
A run is resumed where it was left.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import suite
from benchmarks.record import add_line, commit, heading, in_checkout, read_lines, table

SOLVE = """
import json, os, sys, time
from benchmarks import suite
name, seconds, workers = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
if workers == 1:
    time.monotonic = time.process_time
import inspect, numpy
import ppopt
named = "backward_kind" in inspect.signature(ppopt.solve).parameters
split = {"backward_kind": "split"} if named else {"fused": False}
instance = next(one for one in suite.core() if one.name == name)
began = sum(os.times()[:4])
result = ppopt.solve(
    instance.pipeline, objective=instance.objective, **split,
    time_limit=seconds, workers=workers, seed=0,
)
number = lambda value: None if value is None else float(value)
figures = number(result.value), number(result.lower_bound)
print(json.dumps([result.status.value, *figures, round(sum(os.times()[:4]) - began, 3)]))
"""


class Row(NamedTuple):
    """One instance on one side."""

    side: str
    """`before` or `after`."""
    commit: str
    instance: str
    group: str
    workers: int
    limit: float
    """Seconds given to it."""
    status: str
    value: float | None
    bound: float | None
    seconds: float
    """Of the processor, children included."""


def solved(tree: Path, instance: suite.Instance, side: str, seconds: float, workers: int) -> Row:
    """Solve an instance with the package of a checkout."""
    printed = in_checkout(tree, SOLVE, instance.name, seconds, workers)
    status, value, bound, spent = json.loads(printed.splitlines()[-1])
    about = (side, commit(tree), instance.name, instance.group, workers, seconds)
    return Row(*about, status, value, bound, spent)


def run(path: Path, trees: dict[str, Path], seconds: float, workers: int, every: int) -> None:
    """Solve what the record does not hold yet, of every n-th instance."""
    done = {(row.side, row.instance) for row in read(path)}
    for index, instance in enumerate(list(suite.core())[::every]):
        for side in sorted(trees, reverse=bool(index % 2)):
            if (side, instance.name) not in done:
                row = solved(trees[side], instance, side, seconds, workers)
                add_line(path, row._asdict())


def read(path: Path) -> list[Row]:
    """Rows of a record."""
    return [Row(**row) for row in read_lines(path)]


def report(rows: Sequence[Row]) -> Iterator[str]:
    """A table in Markdown, a line for each group and one for all, of instances on both sides."""
    sides: dict[str, dict[str, Row]] = {"before": {}, "after": {}}
    for row in rows:
        sides[row.side][row.instance] = row
    groups: dict[str, list[tuple[Row, Row]]] = defaultdict(list)
    for name, old in sides["before"].items():
        if name in sides["after"]:
            pair = old, sides["after"][name]
            groups[old.group].append(pair)
            groups["all"].append(pair)
    columns = ("group", "instances", "proved", "processor s", "ratio", "mean gap, %")
    order = (*(group for group in groups if group != "all"), "all")
    lines = (_cells(group, groups[group]) for group in order)
    return table((*columns, "proofs that differ"), lines)


def _cells(group: str, pairs: Sequence[tuple[Row, Row]]) -> tuple[object, ...]:
    sides = list(zip(*pairs, strict=True)) or [(), ()]
    proved = [sum(suite.is_proved(row.status) for row in side) for side in sides]
    times = [sum(row.seconds for row in side) for side in sides]
    gaps = [suite.mean_gap((row.value, row.bound) for row in side) for side in sides]
    both = [pair for pair in pairs if all(suite.is_proved(row.status) for row in pair)]
    differ = sum((old.status, old.value) != (new.status, new.value) for old, new in both)
    return (
        *(group, len(pairs), f"{proved[0]} to {proved[1]}", f"{times[0]:.1f} to {times[1]:.1f}"),
        f"{times[1] / max(1e-9, times[0]):.3f}",
        *(f"{gaps[0]:.3f} to {gaps[1]:.3f}", differ),
    )


def main() -> None:
    """Run or report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("before", type=Path)
    running.add_argument("after", type=Path)
    running.add_argument("-o", "--output", type=Path, required=True)
    running.add_argument("--seconds", type=float, default=5.0)
    running.add_argument("--workers", type=int, default=2)
    running.add_argument("--every", type=int, default=1, help="take every n-th instance")
    reporting = commands.add_parser("report")
    reporting.add_argument("record", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "run":
        trees = {"before": arguments.before.resolve(), "after": arguments.after.resolve()}
        run(arguments.output, trees, arguments.seconds, arguments.workers, arguments.every)
        return
    rows = read(arguments.record)
    print(heading("The core on two checkouts", "ortools"))
    for side, of_side in sorted({(row.side, row.commit) for row in rows}, reverse=True):
        print(f"- {side}: {of_side}")
    for workers, limit in sorted({(row.workers, row.limit) for row in rows}):
        print(f"- {workers} worker(s), {limit:g} s an instance")
    print("", *report(rows), sep="\n")


if __name__ == "__main__":
    main()
