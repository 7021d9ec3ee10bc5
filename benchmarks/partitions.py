"""Partition search on large models, beside partitions made by rule or by hand.

    python -m benchmarks.partitions --seconds 60 --jobs 2 -o benchmarks/records/DATE-partitions.md

Two models: DeepSeek-V3 as `models/deepseek-v3.yaml` has it (61 blocks with embedding, prediction
module and head; times derived from its configuration), and the same with 43 blocks. The search has
`--seconds` for each row, every other partition a twentieth of that. `moves` is the best of all
partitions that move one layer of the balanced one, each scheduled by construction alone. The
published layout is that of Megatron-LM's documentation for this model. Memory limits are shares of
1F1B's largest device peak on the balanced partition. Where `recompute` is `search`, it is chosen
with the schedule in every column. Seconds are those of the processor, so that rows may run beside
each other and beside other work. Rows of a record that is there stay as they are: a run that was
stopped goes on.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import ppopt
from benchmarks.machine import heading
from ppopt import Model, NotApplicableError, Pipeline, Result, SolveParams
from ppopt.errors import not_applicable
from ppopt.formats.files import write
from ppopt.solver.parameters import RoundParams
from ppopt.solver.partitions.candidates import one_layer_moves

SHORT = 0.05
"""Time of other partitions, as a share of that of the search."""
LAYOUTS = {"linear": "Et*4|(t*4|)*14tmL", "interleaved": "Et*3|(tt|)*29,m|L"}
"""Megatron-LM's layouts of DeepSeek-V3 on 16 devices (docs/user-guide/features/
pipeline_parallel_layout.md of NVIDIA/Megatron-LM)."""
CONSTRUCTION = SolveParams(rounds=RoundParams(most=0))


class Row(NamedTuple):
    """One problem."""

    blocks: int
    devices: int
    batches: int
    placement: str
    share: Fraction | None
    """Memory limit as a share of 1F1B's peak; None: no limit."""
    recompute: str | None = None
    """`search`, or as the layers say."""

    @property
    def cells(self) -> tuple[str, ...]:
        """Its first cells in the table."""
        return (
            f"{self.blocks}, {self.devices} x {self.batches}",
            self.placement,
            "-" if self.share is None else f"{float(self.share):g}",
            self.recompute or "-",
        )

    @property
    def title(self) -> str:
        """Its first cells as they are written, by which it is asked for."""
        return " | ".join(self.cells)


SIZES = (
    ((43, 8, 32), (61, 16, 32), (61, 16, 64), (61, 8, 32)),
    ((43, 16, 32), (61, 16, 128), (43, 8, 16), (43, 8, 64)),
)
"""The most telling ones first, with all forms before the others."""
FORMS = (
    ("linear", None, None),
    ("linear", Fraction(1), None),
    ("linear", Fraction(3, 4), None),
    ("v", None, None),
    ("interleaved", None, None),
    ("linear", Fraction(3, 4), "search"),
)
"""The short ones first: without a limit most are proved at once."""
COLUMNS = (
    *("blocks, p x m", "placement", "limit", "recompute", "even", "balanced", "published", "moves"),
    *("search", "bound", "gap %", "s"),
)


def model(blocks: int) -> Model:
    """DeepSeek-V3 with so many blocks, the first three dense."""
    full = ppopt.read_model("deepseek-v3")
    expert = next(layer for layer in full.layers if layer.name == "expert block")
    kept = [layer for layer in full.layers if layer.name != "expert block"]
    first = next(at for at, layer in enumerate(kept) if layer.role == "mtp")
    return Model((*kept[:first], replace(expert, count=blocks - 3), *kept[first:]))


def pipeline(row: Row, partition: object) -> Pipeline:
    """The pipeline of a row with a partition; the limit is that of the balanced one."""
    made = model(row.blocks).pipeline(
        devices=row.devices,
        batches=row.batches,
        placement=row.placement,
        partition=partition,
        link=ppopt.read_pipeline("deepseek-v3").link,
        time_unit="ms",
        memory_unit="MiB",
    )
    if row.share is None:
        return made
    balanced = replace(made, partition="balanced", mem_limit="1f1b")
    assert balanced.limits is not None
    return replace(made, mem_limit=balanced.limits[0] * row.share, recompute=row.recompute)


def value(row: Row, partition: object, seconds: float) -> Fraction | None:
    """Value of one partition after so many seconds; None where it does not apply or fit."""
    try:
        with not_applicable():
            made = pipeline(row, partition)
    except NotApplicableError:
        return None
    return ppopt.solve(made, workers=1, time_limit=seconds).value


def best_move(row: Row) -> Fraction | None:
    """Best value of all one-layer moves of the balanced partition."""
    balanced = pipeline(row, "balanced")
    found = []
    for counts in one_layer_moves(balanced.counts):
        made = replace(balanced, partition=counts)
        result = ppopt.solve(made, workers=1, time_limit=10, params=CONSTRUCTION)
        if result.value is not None:
            found.append(result.value)
    return min(found, default=None)


def line(row: Row, seconds: float) -> str:
    """The line of a row in the table; the clock of its searches is the time of the processor."""
    with mock.patch.object(time, "monotonic", time.process_time):
        return _line(row, seconds)


def _line(row: Row, seconds: float) -> str:
    short = SHORT * seconds
    published = LAYOUTS.get(row.placement) if (row.blocks, row.devices) == (61, 16) else None
    others = [
        value(row, "even", short),
        value(row, "balanced", short),
        None if published is None else value(row, published, short),
        best_move(row) if row.placement == "linear" and row.recompute is None else None,
    ]
    began = time.process_time()
    found = ppopt.solve(pipeline(row, "search"), workers=1, time_limit=seconds)
    return _joined(row, others, found, time.process_time() - began)


def _joined(row: Row, others: list[Fraction | None], found: Result, seconds: float) -> str:
    gap = "-" if found.gap is None else f"{float(100 * found.gap):.2f}"
    cells = (
        *row.cells,
        *map(_shown, (*others, found.value, found.lower_bound)),
        "proved" if found.status is ppopt.Status.OPTIMAL else gap,
        f"{seconds:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def _shown(value: Fraction | None) -> str:
    return "-" if value is None else f"{float(value):.2f}"


def rows() -> Iterator[Row]:
    """All problems, in the order in which they are measured."""
    for sizes, form in product(SIZES, FORMS):
        for size in sizes:
            yield Row(*size, *form)


def kept(record: Path | None) -> dict[str, str]:
    """The rows of a record that is there, by their first cells."""
    if record is None or not record.exists():
        return {}
    found = {}
    for text in record.read_text().splitlines():
        cells = [cell.strip() for cell in text.strip("|").split("|")]
        found[" | ".join(cells[:4])] = text
    return found


def lines(wanted: Sequence[Row], seconds: float, jobs: int) -> Iterator[tuple[str, str]]:
    """Titles and lines of rows, so many at once, as they come."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1) as pool:
        begun = {pool.submit(line, row, seconds): row.title for row in wanted}
        for done in as_completed(begun):
            yield begun[done], done.result()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table as it comes, and write the record."""
    parser = argparse.ArgumentParser(description="partition search on large models")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each search (default 60)")
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="rows that begin so, as `43, 8 x 32 | v`"
    )
    parser.add_argument("--jobs", type=int, default=1, help="rows at once (default 1)")
    parser.add_argument("-o", "--output", type=Path, help="the record")
    given = parser.parse_args(arguments)
    head = (
        heading("Partition search", "ortools", "numpy"),
        f"\n{(__doc__ or '').strip()}\n\nProcessor seconds of each search: {given.seconds:g}. One "
        "worker; makespan in ms.\n",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
    )
    table = kept(given.output)
    only = tuple(given.only or ("",))
    wanted = [row for row in rows() if row.title not in table and row.title.startswith(only)]
    for name, made in lines(wanted, given.seconds, given.jobs):
        table[name] = made
        print(made, flush=True)
        if given.output is not None:
            kept_lines = (table[one.title] for one in rows() if one.title in table)
            write(given.output, "\n".join((*head, *kept_lines)) + "\n")


if __name__ == "__main__":
    main()
