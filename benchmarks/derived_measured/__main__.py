"""Prints the record, or single runs of a source."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.derived_measured import report
from benchmarks.derived_measured.aims import aim_table, machine_table
from benchmarks.derived_measured.compare import comparison
from benchmarks.derived_measured.outcomes import Outcome, outcome_of
from benchmarks.derived_measured.parts import Timing, part_table, read_parts, single_parts
from benchmarks.derived_measured.ranking import ranking_table
from benchmarks.derived_measured.runs import read_runs
from benchmarks.derived_measured.zero_bubble import zero_bubble_table
from benchmarks.record import heading


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.derived_measured")
    parser.add_argument("runs", type=Path, nargs="+", help="JSON of measured runs")
    parser.add_argument("--layers", type=Path, help="JSON of measured parts of layers")
    parser.add_argument("--rows", metavar="SOURCE", help="single runs of the sources that have it")
    parser.add_argument("--before", type=Path, help="an earlier record, to set beside this one")
    options = parser.parse_args(arguments)
    runs = read_runs(*options.runs)
    parts = [] if options.layers is None else read_parts(options.layers)
    if options.rows is not None:
        chosen = [run for run in runs if options.rows.lower() in run.source.lower()]
        print(*report.run_table(map(outcome_of, chosen)), *single_parts(parts), sep="\n")
        return
    outcomes = [outcome_of(run) for run in runs]
    lines = list(record(outcomes, parts))
    print(*lines, sep="\n")
    if options.before is not None:
        print("\n## Before and after\n")
        print(*comparison(options.before.read_text(encoding="utf-8"), lines), sep="\n")


def record(outcomes: Sequence[Outcome], parts: Sequence[Timing] = ()) -> Iterator[str]:
    """Lines of the record."""
    yield heading("Steps, memory and layers predicted from derived costs, beside measured ones")
    yield "\n## Aims\n"
    yield from aim_table(outcomes)
    yield "\n## Machines\n"
    yield from machine_table(outcomes)
    if parts:
        yield "\n## Parts of layers\n"
        yield from part_table(parts)
    yield "\n## Zero bubble\n"
    yield from zero_bubble_table()
    yield "\n## Ranking\n"
    yield from ranking_table(outcomes)
    yield "\n## Steps\n"
    yield from report.step_table(outcomes)
    yield "\n## Memory\n"
    yield from report.memory_table(outcomes)
    yield "\n## Not predicted\n"
    yield from report.not_predicted(outcomes)
    yield "\n## Listed apart\n"
    yield from report.apart_table(outcomes)


if __name__ == "__main__":
    main()
