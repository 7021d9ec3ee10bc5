"""Predicted and measured time of schedules that PyTorch really runs, on stages that sleep.

Four gloo processes on this machine; the stages' forward, input gradient and weight gradient sleep
for set times, and so do the links of one pipeline, so that the processors stay free and the
measured step shows the order alone.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.machine import heading
from ppopt import Pipeline, Schedule, evaluate, solve
from ppopt.profiles.estimate import profile
from ppopt.schedule import timing
from ppopt.torch import as_run, execution, probe
from ppopt.torch.world import World

RANKS = 4
SECONDS = 0.002
"""One unit of the pipelines' time: stages sleep 40 to 128 ms, halves of them 20 to 64."""
EQUAL = Pipeline(stages=RANKS, batches=8, forward=20, backward=40, weight=20, name="equal")
UNEQUAL = Pipeline(
    stages=RANKS,
    batches=8,
    forward=[20, 30, 24, 36],
    backward=[40, 60, 52, 64],
    weight=[20, 30, 24, 24],
    name="unequal",
)
LINKS = replace(EQUAL, p2p=4, name="equal, links")
"""Transfers of 8 ms."""
LINEAR = ("gpipe", "1f1b", "zb-h1", "zb-1p", "zb-2p")
CHUNKED = ("interleaved", "zbv")


class Entry(NamedTuple):
    """A schedule, and the steps it took, in ms."""

    pipeline: str
    name: str
    schedule: Schedule
    predicted: float
    """From the times that the stages sleep."""
    profiled: float
    """From the times that a probing run of the same stages measured."""
    measured: list[float]


def entries(world: World, pipeline: Pipeline) -> Iterator[Entry]:
    """Give every schedule of a pipeline: by hand, the best as PyTorch splits, the best measured."""
    v = replace(pipeline, placement="v")
    of = {"linear": pipeline, "interleaved": replace(pipeline, placement="interleaved"), "v": v}
    seen = {name: measured(world, placed) for name, placed in of.items()}
    made = {name: evaluate(pipeline, name) for name in (*LINEAR, *CHUNKED)}
    made["solved, memory of 1F1B"] = solved(as_run(pipeline), "1f1b")
    made["solved, twice that"] = solved(as_run(pipeline), 2 * RANKS)
    made["solved, V, memory of 1F1B"] = solved(as_run(v), "1f1b")
    orders = solved(seen["linear"], "1f1b").orders
    made["profiled, then solved"] = timing.schedule(pipeline, orders)
    for name, schedule in made.items():
        (found,) = (p for p in seen.values() if p.hosts == schedule.pipeline.hosts)
        length = timing.schedule(found, schedule.orders).metrics.makespan / found.ticks.per_unit
        slept = float(execution.predicted_makespan(schedule))
        yield Entry(pipeline.name, name, schedule, unit(slept), unit(length), [])


def unit(time: float) -> float:
    """Turn the pipelines' unit into ms."""
    return time * SECONDS * 1000


def solved(pipeline: Pipeline, limit: object) -> Schedule:
    """Search as `ppopt solve` does."""
    found = solve(pipeline, mem_limit=limit, time_limit=20, workers=2).schedule
    assert found is not None
    return found


def measured(world: World, pipeline: Pipeline) -> Pipeline:
    """Measure a pipeline by a probing run: times of operations and of links."""
    few = probe(4, pipeline.hosts[0])
    slept = replace(as_run(pipeline), batches=4, mem_limit=None)
    ran = execution.run_synthetic(
        world, timing.schedule(slept, few.orders), steps=3, seconds_per_unit=SECONDS
    )
    costs = profile(ran.records).costs(round(SECONDS * 1e9))
    hosts = pipeline.hosts[0]
    return Pipeline(
        stages=len(hosts),
        batches=pipeline.batches,
        placement=hosts,
        activation=pipeline.costs.activation,
        **costs,
    )


def hasten(_: int) -> bool:
    """Ask for real-time priority for all threads of this rank; whether it was given."""
    try:
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(1))
    except OSError:
        return False
    return True


def correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Pearson's coefficient."""
    a, b = (([x - sum(values) / len(values) for x in values]) for values in (left, right))
    product = sum(x * y for x, y in zip(a, b, strict=True))
    return product / (math.hypot(*a) * math.hypot(*b))


def ranks(values: Sequence[float]) -> list[float]:
    """Places in ascending order, ties shared."""
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) - 1) / 2 for v in values]


def report(found: Sequence[Entry]) -> None:
    """Print one row per schedule."""
    heads = ("pipeline", "schedule", "predicted ms", "from a profile", "measured ms")
    print(f"| {' | '.join((*heads, 'to predicted', 'to profile'))} |")
    print(f"|{'---|' * 7}")
    for row in found:
        took = median(row.measured)
        spread = f"{took:.1f} ({min(row.measured):.1f} to {max(row.measured):.1f})"
        print(
            f"| {row.pipeline} | {row.name} | {row.predicted:.1f} | {row.profiled:.1f} | {spread} "
            f"| {took / row.predicted:.3f} | {took / row.profiled:.3f} |"
        )


def summarize(found: Sequence[Entry]) -> None:
    """Print the errors, the correlations and the gains over 1F1B."""
    took = [median(row.measured) for row in found]
    print(f"\n- schedules: {len(found)}")
    for words, lengths in (
        ("predicted", [row.predicted for row in found]),
        ("predicted from a profile", [row.profiled for row in found]),
    ):
        errors = [m / p - 1 for m, p in zip(took, lengths, strict=True)]
        print(
            f"- {words}: measured is longer by {median(errors):.1%} (median; {min(errors):.1%} to "
            f"{max(errors):.1%}); rank correlation (Spearman) "
            f"{correlation(ranks(lengths), ranks(took)):.4f}, "
            f"Pearson {correlation(lengths, took):.4f}"
        )
    base = {row.pipeline: row for row in found if row.name == "1f1b"}
    for row in found:
        if "solved" in row.name:
            old = base[row.pipeline]
            gain = 1 - median(row.measured) / median(old.measured)
            print(
                f"- {row.pipeline}, {row.name}: {gain:.1%} below 1F1B, "
                f"predicted {1 - row.predicted / old.predicted:.1%}"
            )


def main() -> None:
    """Print the record."""
    parser = argparse.ArgumentParser(description="predicted and measured time of real runs")
    parser.add_argument("--rounds", type=int, default=5, help="steps of each, in turn (default 5)")
    parser.add_argument(
        "--real-time",
        action="store_true",
        help="give the ranks real-time priority (as root, Linux): other load then counts little",
    )
    given = parser.parse_args()
    rounds = given.rounds
    print(heading("Sleeping stages", "torch", "ortools"))
    print(f"\n{RANKS} processes; medians of {rounds} steps, all schedules in turn.\n", flush=True)
    with World(RANKS, 600) as world:
        if given.real_time:
            print(f"Real-time priority: {all(world.run(hasten, [()] * RANKS))}.\n")
        found = [row for pipeline in (EQUAL, UNEQUAL, LINKS) for row in entries(world, pipeline)]
        for _ in range(rounds):
            for row in found:
                ran = execution.run_synthetic(world, row.schedule, seconds_per_unit=SECONDS)
                row.measured.extend(1000 * seconds for seconds in ran.steps)
    report(found)
    summarize(found)


if __name__ == "__main__":
    main()
