"""Searches against what a user would do without them: one table of cases per question.

    python -m benchmarks.experiments mixed --seconds 2 -o records/DATE-mixed.md

- `mixed`: split or whole as a choice per backward, against all split, all whole and the best
  baseline, where BW < B + W, B > BW or B allocates memory. Times are drawn.
- `streams`: schedules over links as streams, against the schedule of a search over delays in
  the order of its own times, and with its operations alone, as PyTorch lowers them.

Each search has `--seconds` of the processor on one worker, other searches the same or as stated. A
dash: nothing keeps the limit, or does not apply. `gain %` is how much longer the best of the others
takes; the exit code is 1 if it is below 0: the search is worse. Every case is a line of the
`.jsonl` next to the record as soon as it ends; what is there is not run again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

import ppopt
from benchmarks import baselines
from benchmarks.record import (
    Row,
    add_line,
    format_value,
    heading,
    number,
    processor_clock,
    read_lines,
    table,
)
from ppopt import Pipeline, Result
from ppopt.formats.files import write
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.schedule import communication

Reference = Callable[[float], Fraction | None]
"""The value of what a search is compared with, from the seconds of a search."""


class Question(NamedTuple):
    """One problem to search, and what else a user would do."""

    pipeline: Pipeline
    references: Mapping[str, Reference]


class Case(NamedTuple):
    """A row of the table."""

    labels: tuple[str, ...]
    question: Callable[[], Question]

    @property
    def name(self) -> str:
        """By which it is asked for."""
        return " | ".join(self.labels)


class Experiment(NamedTuple):
    """A question asked of many cases."""

    title: str
    labels: tuple[str, ...]
    references: tuple[str, ...]
    cases: Callable[[], Iterator[Case]]

    @property
    def columns(self) -> tuple[str, ...]:
        """Of its table."""
        return (*self.labels, *self.references, "search", "bound", "gap %", "gain %", "s")


def solved(pipeline: Pipeline, seconds: float) -> Result:
    """A search by one worker."""
    return ppopt.solve(pipeline, workers=1, time_limit=seconds)


# Mixed backwards

KINDS = ("BW below B + W", "B above BW", "B takes memory", "BW below, B takes memory")
SHAPES = (("linear", 4, 12), ("linear", 6, 12), ("v", 3, 8))
"""Placement, devices, microbatches."""
SHARES = (None, Fraction(1), Fraction(4, 5))
"""Of the limit of 1F1B; None: no limit."""


class MixedCase(NamedTuple):
    """An instance; times and memory are drawn from its names."""

    kind: str
    placement: str
    devices: int
    batches: int
    share: Fraction | None

    def pipeline(self) -> Pipeline:
        """The pipeline."""
        rng, size = Random(repr(self)), self.devices
        forward, partial_, weight = (
            [rng.randint(*span) for _ in range(size)] for span in ((8, 12), (8, 13), (6, 11))
        )
        full = [b + w for b, w in zip(partial_, weight, strict=True)]
        if "BW below" in self.kind:
            full = [4 * time // 5 for time in full]
        if self.kind == "B above BW":
            full = [b - rng.randint(0, 2) for b in partial_]
        pipeline = Pipeline(
            stages=size,
            batches=self.batches,
            placement=self.placement,
            forward=forward,
            backward_input=partial_,
            weight=weight,
            backward=full,
            activation=4,
            memory_b=1 if "takes memory" in self.kind else 0,
            mem_limit=None if self.share is None else "1f1b",
        )
        if self.share is None or pipeline.limits is None:
            return pipeline
        return replace(pipeline, mem_limit=pipeline.limits[0] * self.share)

    def best_baseline(self, _: float) -> Fraction | None:
        """The best baseline that has the placement and keeps the limit."""
        pipeline = self.pipeline()
        fitting = baselines.fitting(pipeline, Objective.MAKESPAN).values()
        best = min((schedule.metrics.makespan_ticks for schedule in fitting), default=None)
        return None if best is None else pipeline.ticks.time(best)

    def by_kind(self, kind: BackwardKind, seconds: float) -> Fraction | None:
        """A search with backwards of one kind."""
        result = ppopt.solve(self.pipeline(), backward_kind=kind, workers=1, time_limit=seconds)
        return result.value

    def question(self) -> Question:
        """The search of the kinds, compared with each kind and with baselines."""
        kinds = (BackwardKind.SPLIT, BackwardKind.WHOLE)
        references: dict[str, Reference] = {
            kind.value: partial(self.by_kind, kind) for kind in kinds
        }
        return Question(self.pipeline(), {**references, "hand": self.best_baseline})


def mixed_cases() -> Iterator[Case]:
    """Every kind, shape and limit."""
    for kind, shape, share in product(KINDS, SHAPES, SHARES):
        case = MixedCase(kind, *shape, share)
        about = f"{case.placement}, {case.devices} x {case.batches}"
        yield Case((kind, about, format_value(share, "g")), case.question)


# Links as streams


def drawn_links(p2p: str, seed: int) -> Pipeline:
    """4 stages, F of each between 1 and 2 in hundredths; BW twice, W as long as F."""
    random = Random(f"{p2p} {seed}")
    return Pipeline(
        stages=4,
        batches=8,
        forward=[Fraction(random.randint(100, 200), 100) for _ in range(4)],
        p2p=p2p,
        mem_limit="1f1b",
        placement=random.choice((None, None, "v", "interleaved")),
    )


def streams_question(p2p: str, seed: int) -> Question:
    """The search over streams, against the order of a search over delays."""
    pipeline = drawn_links(p2p, seed)

    def over_delays(seconds: float, *, lowered: bool) -> Fraction | None:
        schedule = solved(pipeline, seconds / 2).schedule
        if schedule is None:
            return None
        loss = communication.loss_of_lowering(schedule)
        return pipeline.ticks.time(loss.lowered if lowered else loss.own)

    references = {
        "own order": partial(over_delays, lowered=False),
        "operations alone": partial(over_delays, lowered=True),
    }
    return Question(replace(pipeline, link_mode="streams"), references)


def streams_cases() -> Iterator[Case]:
    """Random pipelines with short and long transfers."""
    for p2p, seed in product(("0.1", "0.3"), range(20)):
        yield Case((p2p, str(seed)), partial(streams_question, p2p, seed))


EXPERIMENTS = {
    "mixed": Experiment(
        "Mixed backwards",
        ("kind", "placement, p x m", "limit"),
        ("split", "whole", "hand"),
        mixed_cases,
    ),
    "streams": Experiment(
        "Links as streams", ("p2p", "seed"), ("own order", "operations alone"), streams_cases
    ),
}


def run(case: Case, seconds: float) -> Row:
    """The line of a case in the record; the clock is the time of the processor."""
    with processor_clock():
        pipeline, references = case.question()
        values = {name: reference(seconds) for name, reference in references.items()}
        began = time.process_time()
        result = solved(pipeline, seconds)
    best = min((value for value in values.values() if value is not None), default=None)
    return {
        "case": case.name,
        "others": {name: number(value) for name, value in values.items()},
        "search": number(result.value),
        "bound": number(result.lower_bound),
        "gap": None if result.gap is None else float(100 * result.gap),
        "gain": float(100 * (best / result.value - 1)) if best and result.value else None,
        "worse": best is not None and (result.value is None or result.value > best),
        "seconds": time.process_time() - began,
    }


def cells(row: Row) -> list[str]:
    """The cells of a case in the table."""
    return [
        *row["case"].split(" | "),
        *map(format_value, row["others"].values()),
        format_value(row["search"]),
        format_value(row["bound"]),
        "proved" if row["gap"] == 0 else format_value(row["gap"]),
        format_value(row["gain"]),
        f"{row['seconds']:.1f}",
    ]


def summary(rows: Sequence[Row]) -> str:
    """How often the search is better than all others, by how much, and how often it is worse."""
    gains = [row["gain"] for row in rows if row["gain"] is not None and row["gain"] > 0]
    middle, maximum = (median(gains), max(gains)) if gains else (0.0, 0.0)
    proved = sum(row["gap"] == 0 for row in rows)
    return (
        f"Of {len(rows)} cases: proved {proved}; better than all others {len(gains)}, by "
        f"{middle:.2f} % in the median and {maximum:.2f} % at most; worse {worse(rows)}."
    )


def worse(rows: Sequence[Row]) -> int:
    """How often another is better than the search."""
    return sum(row["worse"] for row in rows)


def report(name: str, head: str, rows: Sequence[Row], seconds: float) -> str:
    """The record in Markdown."""
    about = f"Question: `{name}`. Processor seconds of each search: {seconds:g}."
    lines = table(EXPERIMENTS[name].columns, map(cells, rows))
    return "\n".join((head, "", __doc__.strip(), "", about, summary(rows), "", *lines)) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases that the record does not hold, and write it after each."""
    parser = argparse.ArgumentParser(description="searches beside what a user would do")
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each search (default 10)")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases that begin so")
    parser.add_argument("--jobs", type=int, default=1, help="cases at once (default 1)")
    parser.add_argument("-o", "--output", type=Path, help="the record (.md)")
    options = parser.parse_args(arguments)
    experiment = EXPERIMENTS[options.experiment]
    head = heading(experiment.title, "ortools", "numpy")
    log = options.output and options.output.with_suffix(".jsonl")
    rows = {row["case"]: row for row in read_lines(log)}
    asked = [case for case in experiment.cases() if case.name.startswith(options.only)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context, max_tasks_per_child=1) as pool:
        waiting = [case for case in asked if case.name not in rows]
        for ended in as_completed(pool.submit(run, case, options.seconds) for case in waiting):
            row = ended.result()
            rows[row["case"]] = row
            print(*cells(row), sep=" | ", flush=True)
            add_line(log, row)
    done = [rows[case.name] for case in experiment.cases() if case.name in rows]
    if options.output is not None:
        write(options.output, report(options.experiment, head, done, options.seconds))
    print(summary(done))
    return int(worse(done) > 0)


if __name__ == "__main__":
    sys.exit(main())
