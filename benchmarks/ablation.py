"""What each method of the search brings: the core without it, one method at a time.

python -m benchmarks.ablation run -o ablation.jsonl --seconds 10 --seed 0
python -m benchmarks.ablation report ablation.jsonl

One worker, whose turns go by work and not by the clock. Times and the time limit are those of the
processor, so that other processes disturb them little. A run is resumed where it was left.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import ppopt
from benchmarks import suite
from benchmarks.record import add_line, number, processor_clock, read_lines, table
from ppopt.solver.parameters import SolveParams
from ppopt.solver.portfolio import NAMES

NOTHING = "nothing"
METHODS = (NOTHING, *NAMES)


class Row(NamedTuple):
    """One instance without one method."""

    without: str
    instance: str
    group: str
    seed: int
    status: str
    value: float | None
    bound: float | None
    seconds: float
    """Of the processor."""


Runs = dict[tuple[str, int], Row]
"""By instance and seed."""


def run(path: Path, without: str, seconds: float, seed: int, groups: str) -> None:
    """Solve the core without a method; what the record holds is not solved again."""
    done = {(row.without, row.instance, row.seed) for row in read(path)}
    params = SolveParams(without=frozenset({without}) - {NOTHING})
    for instance in suite.core():
        known = (without, instance.name, seed) in done
        if known or instance.group == "large" or not instance.group.startswith(groups):
            continue
        began = time.process_time()
        with processor_clock():
            result = ppopt.solve(
                instance.pipeline,
                objective=instance.objective,
                time_limit=seconds,
                workers=1,
                seed=seed,
                params=params,
            )
        spent = round(time.process_time() - began, 4)
        figures = (number(result.value), number(result.lower_bound), spent)
        row = Row(without, instance.name, instance.group, seed, result.status.value, *figures)
        add_line(path, row._asdict())


def read(path: Path) -> list[Row]:
    """Rows of a record."""
    return [Row(**row) for row in read_lines(path)]


def report(rows: list[Row]) -> Iterator[str]:
    """A table in Markdown: what changes where a method is left out, over the instances of both."""
    found: dict[str, Runs] = defaultdict(dict)
    for row in rows:
        found[row.without][row.instance, row.seed] = row
    base = found.pop(NOTHING, {})
    columns = ("without", "runs", "proved", "time", "mean gap, %", "value worse", "value better")
    return table(columns, (_cells(without, base, rest) for without, rest in found.items()))


def _cells(without: str, base: Runs, rest: Runs) -> tuple[object, ...]:
    common = [key for key in rest if key in base]
    old, new = [base[key] for key in common], [rest[key] for key in common]
    ratio = sum(row.seconds for row in new) / max(1e-9, sum(row.seconds for row in old))
    gaps = [suite.mean_gap((row.value, row.bound) for row in rows) for rows in (old, new)]
    proved = [sum(suite.is_proved(row.status) for row in rows) for rows in (old, new)]
    pairs = [(a.value or 0, b.value or 0) for a, b in zip(old, new, strict=True)]
    return (
        *(without, len(common), f"{proved[0]} to {proved[1]}", f"{ratio:.3f}"),
        f"{gaps[0]:.3f} to {gaps[1]:.3f}",
        *(sum(b > a for a, b in pairs), sum(b < a for a, b in pairs)),
    )


def main() -> None:
    """Run or report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("-o", "--output", type=Path, required=True)
    running.add_argument("--without", nargs="*", default=METHODS, choices=METHODS)
    running.add_argument("--seconds", type=float, default=10.0)
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--group", default="", help="start of the groups' names")
    reporting = commands.add_parser("report")
    reporting.add_argument("records", type=Path, nargs="+")
    given = parser.parse_args()
    if given.command == "report":
        rows = [row for path in given.records for row in read(path)]
        print("\n".join(report(rows)))
        return
    for without in given.without:
        run(given.output, without, given.seconds, given.seed, given.group)


if __name__ == "__main__":
    main()
