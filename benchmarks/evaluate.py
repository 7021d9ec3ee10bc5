"""Speed of evaluation: building the order of a strategy, timing it and verifying it.

Ours and PP-Schedule-Visualization's own evaluator run in turn, in one process; its order and
timing count, and it has no verifier. Prints the record; see README.md for how to run it.

The baseline: this script imports `src/strategies.py` and `src/execution_model.py` of the checkout.
They need nothing but Python, and its front end (hydra, dash, plotly) is neither installed nor
started. Its operations are built, ordered and executed within the time taken; it verifies nothing.
Its times are floats, ours are exact: the stage times are whole and halve exactly, so both makespans
must be equal to the last digit, and the script stops where they are not. The link delay is 0
because the baseline charges it otherwise: to W as well, and as a gap after a transfer in warm-up
and cool-down. It looks for each operation in its device's list, so its time grows with the square
of the microbatches; it runs on the smallest size alone.

Targets (16 devices x 512 microbatches): a million operations a second, and ten times the rate of
the baseline in the same run.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any, NamedTuple

import ppopt
from benchmarks.machine import commit, heading
from ppopt import Pipeline, Schedule
from ppopt.schedule import timing
from ppopt.strategies import Options, resolve
from ppopt.verifier import checked

CHUNKS = {"interleaved": 2}
STRATEGIES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-1p")
BASELINE: dict[str, tuple[str, dict[str, Any]]] = {
    "1f1b": ("generate_1f1b_schedule", {}),
    "interleaved": (
        "generate_1f1b_interleave_schedule",
        {"placement_strategy": "interleave"},
    ),
    "zb-1p": ("generate_zero_bubble_1p_schedule", {"split_backward": True}),
}
"""The baseline's function for a strategy, and the settings it needs."""
SIZES = ((16, 512), (32, 1024), (64, 4096))
"""Devices and microbatches; the baseline runs on the first one."""


class Case(NamedTuple):
    """One pipeline and strategy, without link delay: the baseline charges that in its own way."""

    strategy: str
    devices: int
    batches: int
    equal: bool = True
    """Whether all devices take F = 1, BW = 2, W = 1; else each its own times."""

    def times(self) -> dict[str, list[int]]:
        """Times of every device's share: even numbers where chunks are to halve them exactly."""
        devices = range(self.devices)
        if self.equal:
            return {"forward": [2 for _ in devices], "backward": [4 for _ in devices]}
        return {
            "forward": [16 + 2 * (5 * device % 7) for device in devices],
            "backward": [32 + 4 * (3 * device % 5) for device in devices],
        }

    def pipeline(self) -> Pipeline:
        """The problem in our terms: W is half of BW."""
        times = self.times()
        return Pipeline(
            stages=self.devices,
            batches=self.batches,
            chunks=CHUNKS.get(self.strategy),
            forward=times["forward"],
            backward=times["backward"],
        )


class Baseline:
    """PP-Schedule-Visualization, imported from a checkout; its front end is not needed."""

    def __init__(self, path: Path) -> None:
        sys.path.insert(0, str(path))
        self.strategies: ModuleType = importlib.import_module("src.strategies")
        self.model: ModuleType = importlib.import_module("src.execution_model")

    def evaluate(self, case: Case) -> Any:
        """Its schedule of a case, executed."""
        function, settings = BASELINE[case.strategy]
        chunks = CHUNKS.get(case.strategy, 1)
        config = self.model.ScheduleConfig(
            num_devices=case.devices,
            num_stages=case.devices * chunks,
            num_batches=case.batches,
            op_times=_stage_times(case, chunks),
            **settings,
        )
        made = getattr(self.strategies, function)(config)
        made.execute()
        return made


def _stage_times(case: Case, chunks: int) -> dict[str, dict[int, float]]:
    forward, backward = (
        {stage: share[stage % case.devices] / chunks for stage in range(case.devices * chunks)}
        for share in case.times().values()
    )
    half = {stage: time / 2 for stage, time in backward.items()}
    times = {"forward": forward, "backward": backward}
    if case.strategy == "zb-1p":
        times |= {"backward_D": half, "backward_W": half}
    return times


class Clock(NamedTuple):
    """Seconds of one run, on the wall and of this process alone."""

    wall: float
    cpu: float


def clocked(work: Callable[[], Any]) -> tuple[Clock, Any]:
    """Run once, without garbage of earlier runs; returns the time it took and its result."""
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    result = work()
    return Clock(time.perf_counter() - wall, time.process_time() - cpu), result


def medians(clocks: Sequence[Clock]) -> Clock:
    """Median of each clock."""
    return Clock(*(median(column) for column in zip(*clocks, strict=True)))


def makespan(made: Schedule) -> Fraction:
    """Makespan in the user's unit."""
    return Fraction(made.pipeline.ticks.time(made.metrics.makespan))


def compare(baseline: Baseline, case: Case, repeats: int) -> str:
    """Time both in turn, check that they agree, and write the row of the table."""
    pipeline = case.pipeline()
    mine, theirs = [], []
    for _ in range(repeats):
        clock, made = clocked(lambda: ppopt.evaluate(pipeline, case.strategy))
        mine.append(clock)
        clock, other = clocked(lambda: baseline.evaluate(case))
        theirs.append(clock)
        check(case, made, other)
        del other  # its many objects would slow the collector in our next run
    ratio = median(b.wall / a.wall for a, b in zip(mine, theirs, strict=True))
    ours, other_clock = medians(mine), medians(theirs)
    count = len(made)
    return (
        f"| {case.strategy} | {count:,} | {ours.wall:.4f} | {rate(count, ours.wall)} "
        f"| {rate(count, ours.cpu)} | {other_clock.wall:.4f} | {rate(count, other_clock.wall)} "
        f"| {ratio:.1f} | {makespan(made)} |"
    )


def check(case: Case, made: Schedule, other: Any) -> None:
    """Stop unless both have the same number of operations and the same makespan."""
    ours = len(made), makespan(made)
    theirs = len(other.ops), Fraction(other.get_total_execution_time())
    if ours != theirs:
        raise SystemExit(f"{case}: operations and makespan differ: {ours}, baseline {theirs}")


def rate(count: int, seconds: float) -> str:
    """Millions of operations a second."""
    return f"{count / seconds / 1e6:.3f}"


def alone(case: Case, repeats: int) -> str:
    """Time ours and its parts, and write the row of the table."""
    pipeline = case.pipeline()
    clocks = []
    parts: list[list[float]] = []
    for _ in range(repeats):
        clock, made = clocked(lambda: ppopt.evaluate(pipeline, case.strategy))
        clocks.append(clock)
        parts.append([part.cpu for part in _parts(pipeline, case.strategy)])
    ours = medians(clocks)
    shares = [median(column) for column in zip(*parts, strict=True)]
    portions = " | ".join(f"{share / sum(shares):.0%}" for share in shares)
    count = len(made)
    return (
        f"| {case.strategy} | {case.devices} x {case.batches} | {count:,} | {ours.wall:.4f} "
        f"| {rate(count, ours.wall)} | {rate(count, ours.cpu)} | {portions} "
        f"| {peak_mebibytes(case)} |"
    )


def _parts(pipeline: Pipeline, strategy: str) -> Iterator[Clock]:
    rule = resolve(strategy)
    placed = rule.apply(pipeline, Options())
    clock, orders = clocked(lambda: rule.build(rule.apply(pipeline, Options()), Options()))
    yield clock
    clock, made = clocked(lambda: timing.schedule(placed, orders))
    yield clock
    yield clocked(lambda: checked(made, enforce_limit=False))[0]


PEAK = """
import pathlib, re, sys, ppopt
stages, batches, chunks = map(int, sys.argv[2:])
pipeline = ppopt.Pipeline(stages=stages, batches=batches, chunks=chunks)
ppopt.evaluate(pipeline, sys.argv[1])
status = pathlib.Path("/proc/self/status").read_text()
print(int(re.search("VmHWM:[^0-9]*([0-9]+) kB", status)[1]) // 1024)
"""


def peak_mebibytes(case: Case) -> int:
    """Largest resident memory of a process that evaluates a case once (Linux)."""
    sizes = (case.devices, case.batches, CHUNKS.get(case.strategy, 1))
    command = [sys.executable, "-c", PEAK, case.strategy, *map(str, sizes)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def report(baseline: Path | None, repeats: int) -> Iterator[str]:
    """The record, part by part."""
    yield heading("Speed of evaluation", "numpy")
    if baseline is not None:
        yield f"- baseline: PP-Schedule-Visualization, commit {commit(baseline)}"
        yield from beside(Baseline(baseline), repeats)
    yield from growth(repeats)


def beside(baseline: Baseline, repeats: int) -> Iterator[str]:
    """Ours and the baseline in turn, then the check on unequal stages."""
    devices, batches = SIZES[0]
    yield f"""
## Beside the baseline: {devices} devices, {batches} microbatches

F = 2, BW = 4, W = 2 per device, no link delay. Medians of {repeats} runs, ours and the baseline's
in turn; M/s: million operations a second; CPU: by the process's own clock, which other jobs on the
machine do not advance; the ratio is the median of the runs' own ratios (wall). Equal makespans
and numbers of operations are checked before a row is written.

| strategy | operations | ours s | ours M/s | ours M/s (CPU) | baseline s | baseline M/s | ratio \
| makespan |
|---|---|---|---|---|---|---|---|---|"""
    for strategy in BASELINE:
        yield compare(baseline, Case(strategy, devices, batches), repeats)
    for strategy in BASELINE:
        case = Case(strategy, devices, batches, equal=False)
        check(case, ppopt.evaluate(case.pipeline(), strategy), baseline.evaluate(case))
    yield "\nThe same makespans, too, with different times on every device."


def growth(repeats: int) -> Iterator[str]:
    """Ours alone, on every size."""
    yield f"""
## Ours alone, from {" x ".join(map(str, SIZES[0]))} to {" x ".join(map(str, SIZES[-1]))}

Order, timing, verifying: shares of the CPU time. Peak: resident memory of a process of its own
that imports ppopt and evaluates once. Medians of {repeats} runs (a quarter of that at the largest).

| strategy | size | operations | s | M/s | M/s (CPU) | order | timing | verifying | peak MiB |
|---|---|---|---|---|---|---|---|---|---|"""
    for devices, batches in SIZES:
        runs = repeats if (devices, batches) != SIZES[-1] else max(3, repeats // 4)
        for strategy in STRATEGIES:
            yield alone(Case(strategy, devices, batches), runs)


def main() -> None:
    """Print the record."""
    parser = argparse.ArgumentParser(description="speed of evaluation, beside a baseline")
    parser.add_argument(
        "--baseline", type=Path, help="a checkout of Victarry/PP-Schedule-Visualization"
    )
    parser.add_argument("--repeats", type=int, default=15, help="runs of each case (default 15)")
    given = parser.parse_args()
    for part in report(given.baseline, given.repeats):
        print(part, flush=True)


if __name__ == "__main__":
    main()
