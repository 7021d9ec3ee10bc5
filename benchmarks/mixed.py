"""Mixed backwards beside split ones, whole ones, and hand strategies, where both kinds are of use.

    python -m benchmarks.mixed --seconds 2 -o benchmarks/records/DATE-mixed.md

By kind: BW takes 0.8 of B + W; B alone takes longer than BW (as PyTorch measures on some
stages); B takes memory, and BW takes B + W; BW takes 0.8 of B + W and B takes memory. Times of all
stages are drawn. Placements are linear and V, limits none, that of 1F1B, and 0.8 of it. Each
search has `--seconds` of the processor on one worker. A hand strategy counts where it has the
placement and keeps the limit. Where no stage has a choice, mixed is a search for one kind, and that
is run once. Mixed is never to be worse than any of them: the exit code is 1 where it is.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple
from unittest import mock

import ppopt
from benchmarks.machine import heading
from ppopt.formats.files import write
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem

KINDS = ("BW below B + W", "B above BW", "B takes memory", "BW below, B takes memory")
SIZES = (("linear", 4, 12), ("linear", 6, 12), ("v", 3, 8))
"""Placement, devices, microbatches."""
SHARES = (None, Fraction(1), Fraction(4, 5))
"""Of the limit of 1F1B; None: no limit."""
OTHERS = ("split", "whole", "hand")
COLUMNS = ("kind", "placement, p x m", "limit", "mixed", "bound", *OTHERS)


class Case(NamedTuple):
    """An instance."""

    kind: str
    placement: str
    devices: int
    batches: int
    share: Fraction | None

    def pipeline(self) -> ppopt.Pipeline:
        """Times and memory, drawn from the names of the instance."""
        rng, size = Random(repr(self)), self.devices
        forward, partial, weight = (
            [rng.randint(*span) for _ in range(size)] for span in ((8, 12), (8, 13), (6, 11))
        )
        full = [b + w for b, w in zip(partial, weight, strict=True)]
        if "BW below" in self.kind:
            full = [4 * one // 5 for one in full]
        if self.kind == "B above BW":
            full = [b - rng.randint(0, 2) for b in partial]
        made = ppopt.Pipeline(
            stages=size,
            batches=self.batches,
            placement=self.placement,
            forward=forward,
            backward_input=partial,
            weight=weight,
            backward=full,
            activation=4,
            memory_b=1 if "takes memory" in self.kind else 0,
            mem_limit=None if self.share is None else "1f1b",
        )
        if self.share is None or made.limits is None:
            return made
        return replace(made, mem_limit=made.limits[0] * self.share)


class Row(NamedTuple):
    """Values of an instance; None where nothing was found."""

    case: Case
    mixed: Fraction | None
    bound: Fraction | None
    others: tuple[Fraction | None, ...]
    """Split, whole and the best hand strategy."""

    @property
    def best_other(self) -> Fraction | None:
        """The best value of the others."""
        return min((value for value in self.others if value is not None), default=None)

    @property
    def worse(self) -> bool:
        """Whether mixed is worse than any other."""
        other = self.best_other
        return other is not None and (self.mixed is None or self.mixed > other)

    def text(self) -> str:
        """Write the row of the table."""
        case = self.case
        share = "-" if case.share is None else f"{float(case.share):g}"
        shape = f"{case.placement}, {case.devices} x {case.batches}"
        values = (self.mixed, self.bound, *self.others)
        shown = ("-" if value is None else f"{float(value):g}" for value in values)
        return f"| {' | '.join((case.kind, shape, share, *shown))} |"


def cases() -> Iterator[Case]:
    """All instances."""
    for kind in KINDS:
        for size in SIZES:
            for share in SHARES:
                yield Case(kind, *size, share)


def row(case: Case, seconds: float) -> Row:
    """Search an instance by every kind of backward, and evaluate the hand strategies."""
    pipeline = case.pipeline()
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.MIXED)
    same = problem.reduced.backward_kind
    with mock.patch.object(time, "monotonic", time.process_time):
        found = {
            kind: ppopt.solve(pipeline, backward_kind=kind, workers=1, time_limit=seconds)
            for kind in BackwardKind
            if kind is BackwardKind.MIXED or kind is not same
        }
    found[same] = found[BackwardKind.MIXED]
    mixed = found[BackwardKind.MIXED]
    hand = ppopt.baseline(mixed)
    kinds = (found[kind].value for kind in (BackwardKind.SPLIT, BackwardKind.WHOLE))
    others = (*kinds, None if hand is None else hand.value)
    return Row(case, mixed.value, mixed.lower_bound, others)


def summary(rows: Sequence[Row]) -> str:
    """Per kind: how often mixed is better than each other, and by what share (median, most)."""
    lines = [
        "| kind | instances | proved | mixed better than | instances | median % | most % |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in KINDS:
        mine = [one for one in rows if one.case.kind == kind]
        proved = sum(one.mixed is not None and one.mixed == one.bound for one in mine)
        named = [(name, [(one.others[at], one.mixed) for one in mine]) for at, name in _numbered()]
        named.append(("all of them", [(one.best_other, one.mixed) for one in mine]))
        for name, pairs in named:
            gains = [float(100 * (1 - value / other)) for other, value in pairs if other and value]
            better = [gain for gain in gains if gain > 0]
            middle, most = (median(better), max(better)) if better else (0.0, 0.0)
            lines.append(
                f"| {kind} | {len(mine)} | {proved} | {name} | {len(better)} of {len(gains)} | "
                f"{middle:.1f} | {most:.1f} |"
            )
    return "\n".join(lines)


def _numbered() -> Iterator[tuple[int, str]]:
    names = ("split backwards", "whole backwards", "every hand strategy")
    yield from enumerate(names)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table as it comes, and write the record."""
    parser = argparse.ArgumentParser(description="mixed backwards beside split, whole and by hand")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each search (default 2)")
    parser.add_argument("-o", "--output", type=Path, help="the record")
    given = parser.parse_args(arguments)
    head = heading("Mixed backwards", "ortools", "numpy")
    rows = []
    for case in cases():
        rows.append(row(case, given.seconds))
        print(rows[-1].text(), flush=True)
    worse = sum(one.worse for one in rows)
    text = "\n".join(
        (
            head,
            f"\n{(__doc__ or '').strip()}\n\n"
            f"Seconds of the processor of each search: {given.seconds:g}.\n",
            f"Mixed is worse than another in {worse} of {len(rows)} instances. Medians are of the "
            "instances in which it is better.\n",
            f"{summary(rows)}\n",
            f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}",
            *(one.text() for one in rows),
        )
    )
    print(f"worse: {worse} of {len(rows)}")
    if given.output is not None:
        write(given.output, text + "\n")
    sys.exit(1 if worse else 0)


if __name__ == "__main__":
    main()
