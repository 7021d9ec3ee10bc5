"""Speed of running a fixed order under random times, drawing excluded.

python -m benchmarks.jitter
"""

from __future__ import annotations

import statistics
import time

import numpy as np

from benchmarks.machine import heading
from ppopt import Objective, Pipeline, evaluate
from ppopt.schedule.sampled_timing import SampledTiming
from ppopt.studies.robustness import BLOCK, SAMPLES

RUNS = 7
TARGET = 100
"""Million operation-samples a second."""
SIZES = ((4, 8), (8, 64), (16, 512))
STRATEGIES = ("1f1b", "interleaved", "zb-1p", "zbv")


def measure(name: str, devices: int, batches: int) -> tuple[int, int, float, float]:
    """Operations, samples at once, seconds per run by the wall and by the process's own clock."""
    run = SampledTiming.of(evaluate(Pipeline(stages=devices, batches=batches), name))
    operations = len(run.row)
    samples = min(SAMPLES, BLOCK // len(run.duration))
    drawn = run.draw(0.1, 0, 0, samples)
    wall, own = [], []
    for _ in range(RUNS):
        durations = drawn.copy()
        began, began_own = time.perf_counter(), time.process_time()
        run.values(durations, Objective.MAKESPAN)
        wall.append(time.perf_counter() - began)
        own.append(time.process_time() - began_own)
    return operations, samples, statistics.median(wall), statistics.median(own)


def main() -> None:
    """Print a row for every strategy and size."""
    print(heading("Speed under random times", "numpy"), end="\n\n")
    print(f"Medians of {RUNS} runs; drawing excluded; M/s: million operation-samples a second;")
    print(f"CPU: by the process's own clock. The target is {TARGET} M/s.\n")
    print("| strategy | size | operations | samples | M/s | M/s (CPU) |\n|---|---|---|---|---|---|")
    rates = []
    for devices, batches in SIZES:
        for name in STRATEGIES:
            operations, samples, wall, own = measure(name, devices, batches)
            done = operations * samples / 1e6
            rates.append(done / own)
            print(
                f"| {name} | {devices} x {batches} | {operations:,} | {samples} "
                f"| {done / wall:.0f} | {done / own:.0f} |",
                flush=True,
            )
    print(f"\nleast {min(rates):.0f}, median {np.median(rates):.0f} M/s (CPU)")


if __name__ == "__main__":
    main()
