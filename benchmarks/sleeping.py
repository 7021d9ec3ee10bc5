"""Predicted and measured time of schedules that PyTorch really runs, on stages that sleep.

    python -m benchmarks.sleeping orders --real-time
    python -m benchmarks.sleeping links --real-time
    python -m benchmarks.sleeping steps --real-time
    python -m benchmarks.sleeping frozen --real-time

Four gloo processes on this machine; the stages' forward, input gradient and weight gradient sleep
for set times, so that the processors stay free and the measured step shows the order alone.

`orders`: schedules by hand and solved, also from a profile of the same stages; links of one
pipeline sleep, too. `links`: one transfer at a time with delays added
(`ppopt.torch.simulation`); every schedule with its own communication order, loaded as
`compute_comms`, and as operations alone, which PyTorch lowers. `steps`: whole steps, with unshard,
gradient sync and optimizer, also with an optimizer barrier.
`frozen`: the first stages frozen, or every other one.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import correlation, median
from typing import NamedTuple

from benchmarks.record import heading, table
from ppopt import Pipeline, Schedule, evaluate, solve
from ppopt.formats import torch_comms, torch_csv
from ppopt.profiles.estimate import profile
from ppopt.schedule import communication, timing
from ppopt.torch import as_run, execution, probe
from ppopt.torch.simulation import SleepingModel
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
STREAMS = replace(UNEQUAL, p2p=8, link_mode="streams", name="unequal, links as streams")
STEP = replace(
    UNEQUAL,
    unshard=12,
    gradient_sync=[60, 20, 40, 80],
    optimizer=10,
    name="unequal, whole step",
)
"""Gathering the weights of a stage takes 24 ms, and reducing its gradients 40 to 160."""
BARRIER = replace(STEP, optimizer_barrier=True, name="the same, optimizer barrier")
FROZEN = replace(LINKS, frozen=(True, True, False, False), name="first half frozen")
MIDDLE = replace(UNEQUAL, frozen=(True, False, True, False), name="every other stage frozen")
UNLIKE = replace(UNEQUAL, microbatch_times=[1, 4, "0.5", 2, 1, 3, "0.5", 1], name="unlike")
"""The microbatches differ by these factors."""
STRATEGIES = ("gpipe", "1f1b", "zb-h1", "zb-1p", "zb-2p", "interleaved", "zbv")
STREAM_STRATEGIES = ("gpipe", "1f1b", "zb-h1", "zbv", "looped-bfs")
UNLIKE_STRATEGIES = ("1f1b", "zb-h1", "zbv", "interleaved")
FROZEN_STRATEGIES = ("gpipe", "1f1b", "zb-h1", "zb-2p")


class Entry(NamedTuple):
    """An order, its predictions, and the steps it took, in ms."""

    pipeline: str
    name: str
    schedule: Schedule
    predicted: dict[str, float]
    """By what from: the times that the stages sleep, and those that a probing run measured."""
    measured: list[float]
    text: str | None = None
    """The order with its sends and receives; None: as the schedule is run."""


def orders(world: World) -> Iterator[Entry]:
    """Schedules by hand, the best as PyTorch splits, the best of what was measured."""
    for pipeline in (EQUAL, UNEQUAL, LINKS):
        v = replace(pipeline, placement="v")
        placed = (pipeline, replace(pipeline, placement="interleaved"), v)
        seen = {hosting.hosts: measured(world, hosting) for hosting in placed}
        schedules = {name: evaluate(pipeline, name) for name in STRATEGIES}
        schedules["solved, memory of 1F1B"] = solved(as_run(pipeline), "1f1b")
        schedules["solved, twice that"] = solved(as_run(pipeline), 2 * RANKS)
        schedules["solved, V, memory of 1F1B"] = solved(as_run(v), "1f1b")
        profiled = solved(seen[pipeline.hosts], "1f1b")
        schedules["profiled, then solved"] = timing.schedule(pipeline, profiled.orders)
        for name, schedule in schedules.items():
            measured_costs = seen[schedule.pipeline.hosts]
            length = float(timing.schedule(measured_costs, schedule.orders).makespan)
            slept = float(execution.predicted_makespan(schedule))
            predicted = {"predicted": unit(slept), "from a profile": unit(length)}
            yield Entry(pipeline.name, name, schedule, predicted, [])


def steps(_: World) -> Iterator[Entry]:
    """Schedules by hand and solved, with what a step has around its microbatches."""
    for pipeline in (STEP, BARRIER):
        schedules = {name: evaluate(pipeline, name) for name in STREAM_STRATEGIES}
        schedules["solved"] = solved(as_run(pipeline), "1f1b")
        schedules["solved, V"] = solved(as_run(replace(pipeline, placement="v")), "1f1b")
        for name, schedule in schedules.items():
            predicted = {"predicted": unit(float(execution.predicted_makespan(schedule)))}
            yield Entry(pipeline.name, name, schedule, predicted, [])


def frozen(_: World) -> Iterator[Entry]:
    """Schedules by hand and solved, with frozen stages."""
    for pipeline in (FROZEN, MIDDLE):
        schedules = {name: evaluate(pipeline, name) for name in FROZEN_STRATEGIES}
        schedules["solved"] = solved(as_run(pipeline), "1f1b")
        for name, schedule in schedules.items():
            predicted = {"predicted": unit(float(execution.predicted_makespan(schedule)))}
            yield Entry(pipeline.name, name, schedule, predicted, [])


def microbatches(_: World) -> Iterator[Entry]:
    """Microbatches that differ, in the given order and in the best one found."""
    for order in ("given", "search"):
        for name in UNLIKE_STRATEGIES:
            schedule = evaluate(replace(UNLIKE, order=order), name)
            predicted = {"predicted": unit(float(execution.predicted_makespan(schedule)))}
            yield Entry(UNLIKE.name, f"{name}, order {order}", schedule, predicted, [])


def links(_: World) -> Iterator[Entry]:
    """Every schedule with its own communication order, and as operations alone."""
    schedules = {name: evaluate(STREAMS, name) for name in STREAM_STRATEGIES}
    schedules["solved"] = solved(as_run(STREAMS), "1f1b")
    schedules["solved, V"] = solved(as_run(replace(STREAMS, placement="v")), "1f1b")
    for name, schedule in schedules.items():
        own = unit(float(execution.predicted_makespan(schedule)))
        text = torch_comms.communication_csv(schedule)
        yield Entry(STREAMS.name, f"{name}, own sends", schedule, {"predicted": own}, [], text)
        pipeline = as_run(schedule.pipeline)
        rows = communication.torch_lowering(pipeline, schedule.orders)
        lowered = communication.schedule_of(pipeline, rows)
        length = unit(float(pipeline.ticks.time(lowered.metrics.makespan_ticks)))
        text, label = torch_csv.order_csv(schedule), f"{name}, PyTorch's sends"
        yield Entry(STREAMS.name, label, schedule, {"predicted": length}, [], text)


def unit(time: float) -> float:
    """Turn the pipelines' unit into ms."""
    return time * SECONDS * 1000


def solved(pipeline: Pipeline, limit: object) -> Schedule:
    """Search as `ppopt solve` does."""
    schedule = solve(pipeline, mem_limit=limit, time_limit=20, workers=2).schedule
    assert schedule is not None
    return schedule


def measured(world: World, pipeline: Pipeline) -> Pipeline:
    """Measure a pipeline by a probing run: times of operations and of links."""
    probed = probe(4, pipeline.hosts[0])
    slept = replace(as_run(pipeline), batches=4, mem_limit=None)
    schedule = timing.schedule(slept, probed.orders)
    (ran,) = execution.run(world, [schedule], SleepingModel(schedule, SECONDS), steps=3)
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


def ranks(values: Sequence[float]) -> list[float]:
    """Places in ascending order, ties shared."""
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) - 1) / 2 for v in values]


def report(entries: Sequence[Entry]) -> Iterator[str]:
    """A row per order, the errors and correlations, and the gains over 1F1B."""
    kinds = tuple(entries[0].predicted)
    columns = ("pipeline", "schedule", *(f"{kind} ms" for kind in kinds), "measured ms")
    yield from table((*columns, *(f"to {kind}" for kind in kinds)), map(_cells, entries))
    took = [median(row.measured) for row in entries]
    yield f"\n- orders: {len(entries)}"
    for kind in kinds:
        lengths = [row.predicted[kind] for row in entries]
        errors = [m / p - 1 for m, p in zip(took, lengths, strict=True)]
        ranked = correlation(ranks(lengths), ranks(took))
        yield (
            f"- {kind}: measured is longer by {median(errors):.1%} (median; {min(errors):.1%} to "
            f"{max(errors):.1%}); rank correlation (Spearman) {ranked:.4f}, "
            f"Pearson {correlation(lengths, took):.4f}"
        )
    base = {row.pipeline: row for row in entries if row.name.startswith("1f1b")}
    for row in entries:
        if "solved" in row.name:
            baseline = base[row.pipeline]
            gain = 1 - median(row.measured) / median(baseline.measured)
            expected = 1 - row.predicted["predicted"] / baseline.predicted["predicted"]
            yield f"- {row.pipeline}, {row.name}: {gain:.1%} below 1F1B, predicted {expected:.1%}"


def _cells(row: Entry) -> list[str]:
    took = median(row.measured)
    spread = f"{took:.1f} ({min(row.measured):.1f} to {max(row.measured):.1f})"
    predicted = [f"{ms:.1f}" for ms in row.predicted.values()]
    ratios = [f"{took / ms:.3f}" for ms in row.predicted.values()]
    return [row.pipeline, row.name, *predicted, spread, *ratios]


PARTS = {
    "orders": orders,
    "links": links,
    "steps": steps,
    "frozen": frozen,
    "microbatches": microbatches,
}


def main() -> None:
    """Print the record."""
    parser = argparse.ArgumentParser(description="predicted and measured time of real runs")
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=5, help="steps of each, in turn (default 5)")
    parser.add_argument(
        "--real-time",
        action="store_true",
        help="give the ranks real-time priority (as root, Linux): other load then counts little",
    )
    arguments = parser.parse_args()
    print(heading("Sleeping stages", "torch", "ortools"))
    print(f"\n{RANKS} processes; medians of {arguments.rounds} steps, all in turn.\n", flush=True)
    with World(RANKS, 600) as world:
        if arguments.real_time:
            print(f"Real-time priority: {all(world.run(hasten, [()] * RANKS))}.\n")
        entries = list(PARTS[arguments.part](world))
        for _ in range(arguments.rounds):
            for row in entries:
                model = SleepingModel(row.schedule, SECONDS)
                (ran,) = execution.run(world, [row.schedule], model, text=row.text)
                row.measured.extend(1000 * seconds for seconds in ran.steps)
    print("\n".join(report(entries)))


if __name__ == "__main__":
    main()
