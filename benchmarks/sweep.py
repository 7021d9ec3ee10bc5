"""Sweeps: rows per second, overhead per row.

    python -m benchmarks.sweep rate --rows 2000 --sample 40
    python -m benchmarks.sweep overhead --rows 500

Each prints a part of a record as Markdown. `rate` leaves its storage in the current folder.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ppopt
from benchmarks.record import heading

PPOPT = str(Path(sys.executable).with_name("ppopt"))
PIPELINE = ppopt.Pipeline(stages=4, batches=8)
LIMIT = 2.0
"""Seconds of a search of `rate`."""


class Spent(NamedTuple):
    """Time by the clock, and of processors by this process and those it has waited for."""

    seconds: float
    processor: float

    @classmethod
    def now(cls) -> Spent:
        """Up to now."""
        used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return cls(time.monotonic(), sum(usage.ru_utime + usage.ru_stime for usage in used))

    def since(self) -> Spent:
        """From this one until now."""
        now = Spent.now()
        return Spent(now.seconds - self.seconds, now.processor - self.processor)


def grid_of(rows: int) -> dict[str, list[Any]]:
    """Settings of about so many searches of one model, on 4 and 8 devices."""
    limits = ["30GiB", "40GiB", "60GiB", "80GiB", None]
    axes: dict[str, list[Any]] = {
        "stages": [4, 8],
        "chunks": [1, 2],
        "objective": ["makespan", "device-span"],
        "backward": ["split", "whole"],
        "mem_limit": limits,
    }
    batches = max(1, rows // 80 + bool(rows % 80))
    return {"batches": [8 + index for index in range(batches)]} | axes


def rate(arguments: argparse.Namespace) -> None:
    """Rows per second of a sweep, those of a loop of `ppopt solve`, and of a second run."""
    grid = grid_of(arguments.rows)
    model = ppopt.read_model(arguments.model)
    url = "sqlite:///rate.db"
    for end in ("", "-wal", "-shm"):
        Path(f"rate.db{end}").unlink(missing_ok=True)
    began = Spent.now()
    study = ppopt.sweep(model, grid, storage=url, time_limit=LIMIT, jobs=arguments.jobs)
    first = began.since()
    began = Spent.now()
    repeated = ppopt.sweep(model, grid, storage=url, time_limit=LIMIT, jobs=arguments.jobs)
    second = began.since()
    done = [row for row in study.rows if row.figures is not None]
    sample = random.Random(0).sample(done, min(arguments.sample, len(done)))
    loop = _loop(arguments.model, sample, arguments.jobs)
    counts = {status: sum(row.status == status for row in done) for status in ppopt.Status}
    statuses = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    print(f"\n## {len(study.rows)} searches of {arguments.model}, {arguments.jobs} processes\n")
    print(f"Statuses: {statuses}, failed {study.failed}.\n")
    print(f"Load at the end: {', '.join(f'{load:.1f}' for load in os.getloadavg())}.\n")
    print("| what | rows | seconds | of processors | rows a second | a second of processors |")
    print("|---|---|---|---|---|---|")
    for what, count, spent in (
        ("`ppopt sweep`", len(study.rows), first),
        ("the same again", repeated.cached, second),
        ("a loop of `ppopt solve` over a random sample", len(sample), loop),
    ):
        rates = f"{count / spent.seconds:.2f} | {count / spent.processor:.2f}"
        print(f"| {what} | {count} | {spent.seconds:.1f} | {spent.processor:.1f} | {rates} |")


def _loop(model: str, rows: Sequence[ppopt.SweepRow], jobs: int) -> Spent:
    """What so many `ppopt solve` at a time take, one per row."""
    began = Spent.now()
    running: list[subprocess.Popen[bytes]] = []
    for row in rows:
        fields = {key: value for key, value in row.overrides.items() if value is not None}
        flags = [
            word for key in fields for word in (f"--{key.replace('_', '-')}", str(fields[key]))
        ]
        command = [PPOPT, "solve", "--model", model, *flags, "--workers", "1", "--json"]
        while len(running) >= jobs:
            time.sleep(0.01)
            running = [process for process in running if process.poll() is None]
        running.append(
            subprocess.Popen([*command, "--time-limit", str(LIMIT)], stdout=subprocess.DEVNULL)
        )
    for process in running:
        process.wait()
    return began.since()


def overhead(arguments: argparse.Namespace) -> None:
    """What a row takes besides its own work, in processes of ours and of Dask.

    The difference of a long and a short sweep: the start of processes is in neither.
    """
    from distributed import Client, LocalCluster  # noqa: PLC0415  an extra

    long, short = arguments.rows, arguments.rows // 4
    print("\n## Overhead per row: evaluations of 1F1B, two processes\n")
    print("| engine | rows | seconds of both | ms of own work per row | ms of overhead per row |")
    print("|---|---|---|---|---|")
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        engines: dict[str, dict[str, Any]] = {"processes": {"jobs": 2}, "Dask": {"dask": client}}
        for name, options in engines.items():
            url = f"sqlite:///{folder}/{name}"
            _timed(2, f"{url}-warm.db", options)
            shorter, longer = (_timed(rows, f"{url}-{rows}.db", options) for rows in (short, long))
            seconds, work = longer[0] - shorter[0], longer[1] - shorter[1]
            own, spare = (
                1000 * seconds_per_solve / (long - short)
                for seconds_per_solve in (work, seconds - work / 2)
            )
            print(
                f"| {name} | {long} | {longer[0]:.2f}, {shorter[0]:.2f} | {own:.2f} | {spare:.2f} |"
            )


def _timed(rows: int, url: str, options: dict[str, Any]) -> tuple[float, float]:
    """Seconds of a sweep of so many rows, and those of their own work."""
    grid: dict[str, list[Any]] = {"batches": list(range(4, 4 + rows)), "strategy": ["1f1b"]}
    began = time.monotonic()
    study = ppopt.sweep(PIPELINE, grid, storage=url, **options)
    work = sum(row.figures.solve_seconds or 0 for row in study.rows if row.figures)
    return time.monotonic() - began, work


def main() -> None:
    """Print a part of the record."""
    parser = argparse.ArgumentParser(description="sweeps")
    parts = parser.add_subparsers(dest="part", required=True)
    options: dict[Callable[[argparse.Namespace], None], dict[str, Any]] = {
        rate: {"rows": 2000, "sample": 40, "jobs": 2, "model": "llama-3.1-8b"},
        overhead: {"rows": 500},
    }
    for part, flags in options.items():
        command = parts.add_parser(part.__name__, help=part.__doc__)
        command.set_defaults(run=part)
        for name, default in flags.items():
            command.add_argument(f"--{name}", type=type(default), default=default)
    arguments = parser.parse_args()
    print(heading("Sweeps"))
    arguments.run(arguments)


if __name__ == "__main__":
    main()
