"""Links as streams: what operations alone lose, and times predicted and measured.

`predict`: random solved schedules, F of every stage drawn from 1 to 2, p2p 0.1 and 0.3, in the
memory of 1F1B. Of each, the makespan over delays, over streams in the order of its own times, as
PyTorch lowers its operations alone, and as found by the search over streams.

`measure`: four gloo processes whose stages sleep, links one transfer at a time with delays added
(`ppopt.torch.stream_links`): schedules by hand and solved, each with its own communication order,
loaded as `compute_comms`, and as operations alone, which PyTorch lowers.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from random import Random
from statistics import median
from typing import NamedTuple

from benchmarks.machine import heading
from benchmarks.sleeping import SECONDS, hasten
from ppopt import Pipeline, Schedule, evaluate, solve
from ppopt.formats import torch_comms, torch_csv
from ppopt.schedule import communication
from ppopt.torch import as_run, execution
from ppopt.torch.world import World

RANKS, BATCHES = 4, 8
TIMES = ("0.1", "0.3")
MEASURED = Pipeline(
    stages=RANKS,
    batches=BATCHES,
    forward=[20, 30, 24, 36],
    backward=[40, 60, 52, 64],
    weight=[20, 30, 24, 24],
    p2p=8,
    link_mode="streams",
)
STRATEGIES = ("gpipe", "1f1b", "zb-h1", "zbv", "looped-bfs")


class Prediction(NamedTuple):
    """Makespans of one pipeline, as shares beyond that of the schedule over delays."""

    own: float
    """In the order of its own times."""
    lowered: float
    """Its operations alone, as PyTorch lowers them, beyond the order of its own times."""
    searched: float
    """Of the search over streams, beyond the bound."""


def predict(count: int, seconds: float) -> None:
    """Print one row per p2p time."""
    print(
        "\n| p2p | schedules | own order: median | most | operations alone: median | most |", end=""
    )
    print(" search over streams, gap: median | most |\n|---|---|---|---|---|---|---|---|")
    for time in TIMES:
        random = Random(2026)
        rows = [prediction(drawn(random, time), seconds) for _ in range(count)]
        cells = []
        for column in zip(*rows, strict=True):
            cells += [f"{median(column):.1%}", f"{max(column):.1%}"]
        print(f"| {time} | {count} | {' | '.join(cells)} |", flush=True)


def drawn(random: Random, p2p: str) -> Pipeline:
    """F of every stage between 1 and 2 in hundredths; BW twice, W as long as F."""
    forward = [Fraction(random.randint(100, 200), 100) for _ in range(RANKS)]
    placed = random.choice((None, None, "v", "interleaved"))
    return Pipeline(
        stages=RANKS,
        batches=BATCHES,
        forward=forward,
        p2p=p2p,
        mem_limit="1f1b",
        placement=placed,
    )


def prediction(pipeline: Pipeline, seconds: float) -> Prediction:
    """Solve over delays, then look at the same order over streams."""
    found = solve(pipeline, time_limit=seconds, workers=1)
    assert found.schedule is not None
    loss = communication.loss_of_lowering(found.schedule)
    streams = solve(replace(pipeline, link_mode="streams"), time_limit=2 * seconds, workers=1)
    assert streams.gap is not None
    own = Fraction(loss.own, found.schedule.metrics.makespan) - 1
    return Prediction(float(own), float(loss.share), float(streams.gap))


class Entry(NamedTuple):
    """An order, its prediction, and the steps it took, in ms."""

    name: str
    posts: str
    schedule: Schedule
    text: str
    predicted: float
    measured: list[float]


def entries() -> Iterator[Entry]:
    """Every schedule with its own communication order, and as operations alone."""
    made = {name: evaluate(MEASURED, name) for name in STRATEGIES}
    for name, placed in {"solved": MEASURED, "solved, V": replace(MEASURED, placement="v")}.items():
        found = solve(as_run(placed), mem_limit="1f1b", time_limit=20, workers=1).schedule
        assert found is not None
        made[name] = found
    for name, schedule in made.items():
        own = float(execution.predicted_makespan(schedule))
        yield Entry(name, "own", schedule, torch_comms.communication_csv(schedule), own, [])
        pipeline = as_run(schedule.pipeline)
        rows = communication.torch_lowering(pipeline, schedule.orders)
        lowered = communication.schedule_of(pipeline, rows)
        length = float(pipeline.ticks.time(lowered.metrics.makespan))
        yield Entry(name, "PyTorch's", schedule, torch_csv.order_csv(schedule), length, [])


def measure(rounds: int, *, real_time: bool) -> None:
    """Run everything in turn and print one row per order."""
    with World(RANKS, 600) as world:
        if real_time:
            print(f"\nReal-time priority: {all(world.run(hasten, [()] * RANKS))}.")
        found = list(entries())
        for _ in range(rounds):
            for row in found:
                ran = execution.run_synthetic(
                    world, row.schedule, seconds_per_unit=SECONDS, text=row.text
                )
                row.measured.extend(1000 * seconds for seconds in ran.steps)
    report(found)


def report(found: Sequence[Entry]) -> None:
    """Print measured beside predicted times."""
    print("\n| schedule | sends and receives | predicted ms | measured ms | ratio |")
    print(f"|{'---|' * 5}")
    ratios = []
    for row in found:
        expected, took = 1000 * SECONDS * row.predicted, median(row.measured)
        ratios.append(took / expected - 1)
        spread = f"{took:.1f} ({min(row.measured):.1f} to {max(row.measured):.1f})"
        print(f"| {row.name} | {row.posts} | {expected:.1f} | {spread} | {took / expected:.3f} |")
    print(f"\nMeasured is longer by {median(ratios):.1%} (median), {max(ratios):.1%} at most.")
    print("All gradients and losses are those of a single process (1e-12).")


def main() -> None:
    """Print a record."""
    parser = argparse.ArgumentParser(description="links as streams")
    parser.add_argument("what", choices=("predict", "measure"))
    parser.add_argument("--count", type=int, default=30, help="schedules per p2p time")
    parser.add_argument("--seconds", type=float, default=4.0, help="of every search over delays")
    parser.add_argument("--rounds", type=int, default=5, help="steps of each order, in turn")
    parser.add_argument(
        "--real-time", action="store_true", help="real-time priority for the ranks (root, Linux)"
    )
    given = parser.parse_args()
    print(heading("Links as streams", "torch", "ortools"))
    if given.what == "predict":
        predict(given.count, given.seconds)
    else:
        measure(given.rounds, real_time=given.real_time)


if __name__ == "__main__":
    main()
