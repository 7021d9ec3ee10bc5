"""Speed of evaluation, of fixed orders under random times, and of short commands.

    python -m benchmarks.speed evaluate --baseline PP-Schedule-Visualization
    python -m benchmarks.speed features
    python -m benchmarks.speed jitter
    python -m benchmarks.speed startup TREE ...

`evaluate`: building the order of a strategy, timing it and verifying it. The baseline is a checkout
of Victarry/PP-Schedule-Visualization: its `src/strategies.py` and `src/execution_model.py` need
nothing but Python. Both run in turn in one process; the baseline verifies nothing. Its times are
floats, ours are exact: stage times are whole and halve exactly, so that both makespans must be
equal to the last digit, and the script stops if they are not. The link delay is 0, because the
baseline charges it to W as well, and as a gap after a transfer in warm-up and cool-down. It looks
for each operation in its device's list, so its time grows with the square of the microbatches; it
runs on the smallest size alone. Targets at 16 devices x 512 microbatches: a million operations a
second, and ten times the rate of the baseline in the same run.

`features`: the same with each part of a whole iteration on, alone and together.

`jitter`: a fixed order under random times, drawing excluded.

`startup`: `import ppopt`, `--help` and a small `solve` of several checkouts in turn, all with this
Python and its packages, so that a load of the machine meets all of them.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any, NamedTuple

import ppopt
from benchmarks.record import commit, heading, in_checkout, table
from ppopt import Objective, Pipeline, Schedule
from ppopt.schedule import timing
from ppopt.schedule.order_columns import OrderColumns
from ppopt.strategies import Options, resolve
from ppopt.studies.robustness import BLOCK, SAMPLES, random_times
from ppopt.verifier import checked

ROOT = Path(__file__).parents[1]
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
SMALL_SIZES = ((4, 8), (8, 64), (16, 512))
"""Of fixed orders under random times."""


class Case(NamedTuple):
    """One pipeline and strategy, without link delay."""

    strategy: str
    devices: int
    batches: int
    equal: bool = True
    """Whether all devices take F = 1, BW = 2, W = 1; else each its own times."""

    def times(self) -> dict[str, Any]:
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
        chunks = CHUNKS.get(self.strategy)
        return Pipeline(stages=self.devices, batches=self.batches, chunks=chunks, **self.times())


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
        schedule = getattr(self.strategies, function)(config)
        schedule.execute()
        return schedule


def _stage_times(case: Case, chunks: int) -> dict[str, dict[int, float]]:
    stages = range(case.devices * chunks)
    times = {
        name: {stage: share[stage % case.devices] / chunks for stage in stages}
        for name, share in case.times().items()
    }
    if case.strategy == "zb-1p":
        half = {stage: time / 2 for stage, time in times["backward"].items()}
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


def makespan(schedule: Schedule) -> Fraction:
    """Makespan in the user's unit."""
    return Fraction(schedule.pipeline.ticks.time(schedule.metrics.makespan_ticks))


def compare(baseline: Baseline, case: Case, repeats: int) -> list[object]:
    """Time both in turn and check that they agree: the cells of a row."""
    pipeline = case.pipeline()
    own, theirs = [], []
    for _ in range(repeats):
        clock, schedule = clocked(lambda: ppopt.evaluate(pipeline, case.strategy))
        own.append(clock)
        clock, reference = clocked(lambda: baseline.evaluate(case))
        theirs.append(clock)
        check(case, schedule, reference)
        del reference  # its many objects would slow the collector in our next run
    ratio = median(b.wall / a.wall for a, b in zip(own, theirs, strict=True))
    ours, wall, count = medians(own), medians(theirs).wall, len(schedule)
    rates = (f"{ours.wall:.4f}", rate(count, ours.wall), rate(count, ours.cpu))
    other_rates = (f"{wall:.4f}", rate(count, wall), f"{ratio:.1f}")
    return [case.strategy, f"{count:,}", *rates, *other_rates, makespan(schedule)]


def check(case: Case, schedule: Schedule, reference: Any) -> None:
    """Stop unless both have the same number of operations and the same makespan."""
    ours = len(schedule), makespan(schedule)
    theirs = len(reference.ops), Fraction(reference.get_total_execution_time())
    if ours != theirs:
        raise SystemExit(f"{case}: operations and makespan differ: {ours}, baseline {theirs}")


def rate(count: int, seconds: float) -> str:
    """Millions of operations a second."""
    return f"{count / seconds / 1e6:.3f}"


def alone(case: Case, repeats: int) -> list[object]:
    """Time ours and its parts: the cells of a row."""
    pipeline, clocks = case.pipeline(), []
    parts: list[list[float]] = []
    for _ in range(repeats):
        clock, schedule = clocked(lambda: ppopt.evaluate(pipeline, case.strategy))
        clocks.append(clock)
        parts.append([part.cpu for part in _parts(pipeline, case.strategy)])
    ours, count = medians(clocks), len(schedule)
    shares = [median(column) for column in zip(*parts, strict=True)]
    rates = (f"{ours.wall:.4f}", rate(count, ours.wall), rate(count, ours.cpu))
    portions = [f"{share / sum(shares):.0%}" for share in shares]
    size = f"{case.devices} x {case.batches}"
    return [case.strategy, size, f"{count:,}", *rates, *portions, peak_mebibytes(case)]


def _parts(pipeline: Pipeline, strategy: str) -> Iterator[Clock]:
    rule = resolve(strategy)
    placed = rule.apply(pipeline, Options())
    clock, orders = clocked(lambda: rule.build(rule.apply(pipeline, Options()), Options()))
    yield clock
    clock, schedule = clocked(lambda: timing.schedule(placed, orders))
    yield clock
    yield clocked(lambda: checked(schedule, enforce_limit=False))[0]


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
    return int(in_checkout(ROOT, PEAK, case.strategy, *sizes))


def evaluation(baseline: Path | None, repeats: int) -> Iterator[str]:
    """Ours against the baseline, then ours alone on every size."""
    yield heading("Speed of evaluation", "numpy")
    if baseline is not None:
        yield f"- baseline: PP-Schedule-Visualization, commit {commit(baseline)}"
        yield from beside(Baseline(baseline), repeats)
    yield (
        "\nOurs alone. Order, timing, verifying: shares of the CPU time. Peak: resident memory of "
        f"a process that evaluates once. Medians of {repeats} runs (a quarter of that at the "
        "largest).\n"
    )
    cases = [Case(name, *size) for size in SIZES for name in STRATEGIES]
    fewer = max(3, repeats // 4)
    columns = ("strategy", "size", "operations", "s", "M/s", "M/s (CPU)")
    rows = (alone(case, fewer if case[1:3] == SIZES[-1] else repeats) for case in cases)
    yield from table((*columns, "order", "timing", "verifying", "peak MiB"), rows)


def beside(baseline: Baseline, repeats: int) -> Iterator[str]:
    """Ours and the baseline in turn, then the check on unequal stages."""
    yield (
        f"\nBeside the baseline, medians of {repeats} runs in turn. F = 2, BW = 4, W = 2 per "
        "device, no link delay. M/s: million operations a second; CPU: by the process's own clock. "
        "The ratio is the median of the runs' own ratios (wall).\n"
    )
    columns = ("strategy", "operations", "ours s", "ours M/s", "ours M/s (CPU)", "baseline s")
    rows = (compare(baseline, Case(name, *SIZES[0]), repeats) for name in BASELINE)
    yield from table((*columns, "baseline M/s", "ratio", "makespan"), rows)
    for name in BASELINE:
        case = Case(name, *SIZES[0], equal=False)
        check(case, ppopt.evaluate(case.pipeline(), name), baseline.evaluate(case))
    yield "\nThe same makespans, too, with different times on every device."


HALF = [True] * (SIZES[0][0] // 2) + [False] * (SIZES[0][0] // 2)
GRADIENT = {"unshard": 3, "unshard_memory": 1, "gradient_sync": 3, "optimizer": 2}
OFFLOAD = {"offload_memory": 1, "offload_time": 1}
LINKS = {"p2p": 1, "link_mode": "exclusive"}
FEATURES: dict[str, tuple[str, dict[str, Any]]] = {
    "nothing": ("1f1b", {}),
    "gradient work": ("1f1b", GRADIENT),
    "offload": ("1f1b", OFFLOAD),
    "frozen half": ("1f1b", {"frozen": HALF}),
    "exclusive links": ("1f1b", LINKS),
    "all of these": ("1f1b", {**GRADIENT, **OFFLOAD, **LINKS, "frozen": HALF}),
    "pairs by a matrix": ("1f1b-overlap", {"overlap": [[5] * 16] * 16}),
}
"""Part of an iteration -> strategy and settings; F = 2, BW = 4."""


def features(repeats: int) -> Iterator[str]:
    """A row for every part, timed in turn."""
    size = SIZES[0]
    yield heading("Speed of evaluation by features", "numpy")
    yield (
        f"\n{size[0]} devices, {size[1]} microbatches: order, timing, verifying. Medians of "
        f"{repeats} runs in turn. Operations: all rows of the schedule. Time: over that of nothing "
        "in the same turn.\n"
    )
    runs: dict[str, list[Clock]] = {name: [] for name in FEATURES}
    counts: dict[str, int] = {}
    for _ in range(repeats):
        for name, (strategy, fields) in FEATURES.items():
            pipeline = Pipeline(stages=size[0], batches=size[1], forward=2, backward=4, **fields)
            clock, schedule = clocked(lambda: ppopt.evaluate(pipeline, strategy))  # noqa: B023
            runs[name].append(clock)
            counts[name] = len(schedule.operations)
    rows = (_row(name, counts[name], runs[name], runs["nothing"]) for name in FEATURES)
    yield from table(("feature", "operations", "s", "M/s", "M/s (CPU)", "time"), rows)


def _row(name: str, count: int, clocks: list[Clock], plain: list[Clock]) -> list[object]:
    ours = medians(clocks)
    times = median(
        clock.cpu / plain_clock.cpu for clock, plain_clock in zip(clocks, plain, strict=True)
    )
    rates = (f"{ours.wall:.4f}", rate(count, ours.wall), rate(count, ours.cpu))
    return [name, f"{count:,}", *rates, f"{times:.2f}"]


def jitter(repeats: int) -> Iterator[str]:
    """A row for every strategy and size."""
    yield heading("Speed under random times", "numpy")
    yield (
        f"\nMedians of {repeats} runs; drawing excluded; M/s: million operation-samples a second; "
        "CPU: by the process's own clock. The target is 100 M/s.\n"
    )
    names = ("1f1b", "interleaved", "zb-1p", "zbv")
    rows = (sampled(name, *size, repeats) for size in SMALL_SIZES for name in names)
    yield from table(("strategy", "size", "operations", "samples", "M/s", "M/s (CPU)"), rows)


def sampled(name: str, devices: int, batches: int, repeats: int) -> list[object]:
    """Time one order: the cells of a row."""
    run = OrderColumns.of_schedule(ppopt.evaluate(Pipeline(stages=devices, batches=batches), name))
    operations = len(run.row)
    samples = min(SAMPLES, BLOCK // len(run.duration))
    drawn = random_times(run, 0.1, 0, 0, samples)
    clocks = []
    for _ in range(repeats):
        durations = drawn.copy()
        clocks.append(clocked(lambda: run.values(durations, Objective.MAKESPAN))[0])  # noqa: B023
    done, took = operations * samples / 1e6, medians(clocks)
    rates = (f"{done / took.wall:.0f}", f"{done / took.cpu:.0f}")
    return [name, f"{devices} x {batches}", f"{operations:,}", samples, *rates]


RUN = "from ppopt.cli import main; main({!r})"
SOLVE = ["solve", "--stages", "4", "--batches", "8", "--mem-limit"]
COMMANDS = {
    "python -c pass": "pass",
    "import ppopt": "import ppopt",
    "ppopt --help": RUN.format(["--help"]),
    f"ppopt {' '.join(SOLVE)}": RUN.format(SOLVE),
}


def processor_ms(code: str, tree: Path) -> float:
    """Run Python code with the package of a checkout; user and system time, in milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    in_checkout(tree, code)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def startup(trees: Sequence[Path], repeats: int) -> Iterator[str]:
    """Short commands of every checkout in turn; the first run of each compiles."""
    yield heading("Start-up", "typer")
    taken: dict[tuple[str, Path], list[float]] = {
        (name, tree): [] for name in COMMANDS for tree in trees
    }
    for _ in range(repeats + 1):
        for (name, tree), times in taken.items():
            times.append(processor_ms(COMMANDS[name], tree))
    yield f"\nProcessor ms, medians of {repeats} runs in turn, smallest in brackets.\n"
    rows = ([f"`{name}`", *(_spread(taken[name, tree][1:]) for tree in trees)] for name in COMMANDS)
    yield from table(("command", *(tree.name for tree in trees)), rows)


def _spread(times: Sequence[float]) -> str:
    return f"{median(times):.0f} ({min(times):.0f})"


def main() -> None:
    """Print the record."""
    parser = argparse.ArgumentParser(description="speed of evaluation, random times, start-up")
    parts = parser.add_subparsers(dest="part", required=True)
    for name, repeats in (("evaluate", 15), ("features", 7), ("jitter", 7), ("startup", 25)):
        part = parts.add_parser(name)
        part.add_argument("--repeats", type=int, default=repeats, help=f"default {repeats}")
    parts.choices["evaluate"].add_argument("--baseline", type=Path, help="a checkout")
    parts.choices["startup"].add_argument("trees", type=Path, nargs="*", default=[ROOT])
    arguments = parser.parse_args()
    lines = {
        "evaluate": lambda: evaluation(arguments.baseline, arguments.repeats),
        "features": lambda: features(arguments.repeats),
        "jitter": lambda: jitter(arguments.repeats),
        "startup": lambda: startup([tree.resolve() for tree in arguments.trees], arguments.repeats),
    }
    for line in lines[arguments.part]():
        print(line, flush=True)


if __name__ == "__main__":
    main()
