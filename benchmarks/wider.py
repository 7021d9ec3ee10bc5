"""Plans of a wide space, against plans of single rows of it for the same time.

    python -m benchmarks.wider --spaces 60 --seconds 10 --jobs 2 -o records/DATE-wider.jsonl

A space has three placements, and recompute none, full or chosen: nine rows. The wide plan searches
all of them; then each drawn row is planned alone. `loss` is how much longer the wide plan's
schedule is than the best of them, in percent. One worker a plan, and seconds of the processor. A
record is resumed where it was left.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import ppopt
from benchmarks.record import Row, add_line, number, processor_clock, read_lines, table

PLACEMENTS = (("linear", 1), ("interleaved", 2), ("v", 2))
RECOMPUTE = ("none", "full", "search")
AIM = 1.0
"""Largest loss that is aimed at, in percent."""


class Task(NamedTuple):
    """A drawn space, and the time of each of its plans."""

    seed: int
    rows: int
    """Number of rows that are planned alone."""
    seconds: float


def drawn(seed: int) -> dict[str, Any]:
    """Arguments of a plan: dense layers, layers of experts and a heavy head; tight memory."""
    random = Random(seed)
    devices = random.choice((4, 6, 8))
    layers = random.randint(2 * devices, 4 * devices)
    forward, activation = random.randint(8, 40), random.randint(20, 80)
    weight = random.randint(forward // 3, forward)
    layer = {
        "forward": forward,
        "backward": 2 * forward + random.randint(0, forward // 2),
        "weight": weight,
        "activation": activation,
        "kept": random.randint(1, activation // 6 + 1),
        "static": random.randint(5, 60),
    }
    dense = {name: max(1, value // 2) for name, value in layer.items()}
    head = {
        "role": "head",
        "forward": random.randint(forward // 2, 2 * forward),
        "backward": random.randint(2 * forward, 4 * forward),
        "weight": forward // 2,
        "activation": random.randint(0, 30),
        "static": 40,
    }
    embedding = {"role": "embedding", "forward": 1, "activation": 2, "static": 40}
    fields = (embedding, *[dense] * random.randint(0, 3), *[layer] * layers, head)
    in_flight = random.choice((1.5, 2.5, 4, 6, 9))
    static = 80 + layer["static"] * layers
    return {
        "model": ppopt.Model(fields),  # type: ignore[arg-type]  # fields will do
        "devices": devices,
        "batches": random.choice((devices, 3 * devices // 2, 2 * devices, 3 * devices)),
        "p2p": random.choice((0, 1, 3)),
        "mem_limit": int(static / devices + activation * layers * in_flight / 4),
    }


def outcome(task: Task) -> Row:
    """The plan of all rows, and those of some rows alone."""
    space = drawn(task.seed)
    rows = [*product(PLACEMENTS, RECOMPUTE)]
    every = _value(space, task.seconds, recompute=RECOMPUTE)
    alone = {
        f"{placement}, {recompute}": _value(
            space, task.seconds, placement=placement, chunks=chunks, recompute=recompute
        )
        for (placement, chunks), recompute in Random(task.seed).sample(rows, task.rows)
    }
    return {**task._asdict(), "wide": every, "alone": alone}


def _value(space: dict[str, Any], seconds: float, **choices: Any) -> float | None:
    with processor_clock():
        return number(ppopt.plan(**space, **choices, workers=1, time_limit=seconds).value)


def report(rows: list[Row]) -> Iterator[str]:
    """How many spaces lose, and these, the largest loss first: 100 % without a schedule."""
    cells = []
    for row in rows:
        values = {name: value for name, value in row["alone"].items() if value is not None}
        best = min(values, key=values.__getitem__, default=None)
        if best is not None:
            loss = 100.0 if row["wide"] is None else 100 * (row["wide"] / values[best] - 1)
            cells.append((loss, row["seed"], row["wide"], best, values[best]))
    worse = sorted((cell for cell in cells if cell[0] > 0), reverse=True)
    above = sum(loss > AIM for loss, *_ in worse)
    yield f"{len(cells)} spaces; the wide plan loses in {len(worse)}, in {above} more than {AIM} %"
    yield ""
    columns = ("loss %", "space", "wide", "best row", "its plan alone")
    yield from table(columns, ((f"{loss:.2f}", *cell) for loss, *cell in worse))


def main() -> None:
    """Plan the spaces that the record lacks, and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--spaces", type=int, default=60)
    parser.add_argument("--rows", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    known = {row["seed"] for row in read_lines(arguments.output)}
    tasks = [
        Task(seed, arguments.rows, arguments.seconds)
        for seed in range(arguments.spaces)
        if seed not in known
    ]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for row in pool.map(outcome, tasks):
            add_line(arguments.output, row)
    print("\n".join(report(read_lines(arguments.output))))


if __name__ == "__main__":
    main()
