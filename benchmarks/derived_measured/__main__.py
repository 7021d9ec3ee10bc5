"""Prints the record, or single runs of a source."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.derived_measured import report
from benchmarks.derived_measured.aims import aim_table, machine_table
from benchmarks.derived_measured.classes import class_table
from benchmarks.derived_measured.compare import comparison
from benchmarks.derived_measured.fits import fit_table
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
    parser.add_argument(
        "--fit", metavar="NAME", help="errors by the value of constants whose name has it; all"
    )
    parser.add_argument("--before", type=Path, help="an earlier record, to set beside this one")
    options = parser.parse_args(arguments)
    runs = read_runs(*options.runs)
    parts = [] if options.layers is None else read_parts(options.layers)
    if options.rows is not None:
        chosen = [run for run in runs if options.rows.lower() in run.source.lower()]
        print(*report.run_table(map(outcome_of, chosen)), *single_parts(parts), sep="\n")
        return
    if options.fit is not None:
        print(*fit_table(runs, options.fit), sep="\n")
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
    sections = {
        "Aims": aim_table(outcomes),
        "Classes": class_table(outcomes),
        "Machines": machine_table(outcomes),
        "Parts of layers": part_table(parts),
        "Zero bubble": zero_bubble_table(),
        "Ranking": ranking_table(outcomes),
        "Steps": report.step_table(outcomes),
        "Memory": report.memory_table(outcomes),
        "Not predicted": report.not_predicted(outcomes),
        "Listed apart": report.apart_table(outcomes),
    }
    for title, lines in sections.items():
        if parts or title != "Parts of layers":
            yield f"\n## {title}\n\n{LEGENDS[title]}\n"
            yield from lines


LEGENDS = {
    "Aims": (
        "Mean and worst absolute error of steps in BF16 or FP16 with at least 4096 x 4096 tokens\n"
        "x hidden per microbatch and without FSDP. A calibrated row sets the factor on kernels,\n"
        "as `--calibrate` does, and is left out of the error."
    ),
    "Classes": (
        "Absolute errors of steps by the class of a run, with its aim. Classes overlap.\n"
        "Over memory: runs that ran and whose predicted peak is above 92 % of the GPU's memory."
    ),
    "Machines": "The same runs by source and hardware; errors are predicted / measured - 1.",
    "Parts of layers": (
        "Absolute errors of F, B and BW on one H200 under eager PyTorch. Aims: a median of at\n"
        "most 10 %, none above 30 %."
    ),
    "Zero bubble": (
        "Gain of ZB-H1 over 1F1B. If B and W took longer than BW by the factor that is named, the\n"
        "predicted gain would be the measured one."
    ),
    "Ranking": (
        "Runs of a model on as many GPUs with the same batch. Regret: how much longer the step of\n"
        "the configuration is that is predicted best, beside the best measured step."
    ),
    "Steps": "Errors of steps per source. `compared` leaves out runs that are listed apart.",
    "Memory": "Errors of the predicted peak. `GB` of sources is taken as GiB.",
    "Not predicted": "Rows that are read and not predicted, or have nothing measured.",
    "Listed apart": "Steps that are predicted and set against no aim, with the reason.",
}
"""What each section shows."""


if __name__ == "__main__":
    main()
