"""One side on one instance, in a process of its own, ended by force where it will not end."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import time
import traceback
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import sides
from benchmarks.outcome import Limits, Outcome
from benchmarks.record import Row, add_line, head, read_lines
from benchmarks.suite import Instance, is_proved, operations
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.verifier import checked

PATIENCE = 30.0
"""Seconds beyond twice the limit after which a process is ended; its record says `killed`."""
FAILED = "failed"
Key = tuple[str, str, float, int, int]
"""Side, instance, limit, workers, seed: what makes an attempt the same as another."""
STORED = {"hand": "baseline", "hand_value": "baseline_value"}
"""Fields by the keys that older records have."""


class Attempt(NamedTuple):
    """One line of a record; values and bounds in ticks."""

    side: str
    instance: str
    group: str
    objective: str
    devices: int
    batches: int
    operations: int
    busiest: int
    """Longest work of a device, in ticks."""
    per_unit: int
    """Ticks in the unit of time."""
    seconds_limit: float
    workers: int
    seed: int
    status: str
    """That of the outcome, or `killed`."""
    value: int | None
    bound: int
    seconds: float
    """On the wall, libraries loaded before."""
    cpu_seconds: float
    """Of all threads of the process and of processes it started, during the run."""
    peak_mib: float
    """Largest resident memory of the process, or of one that it started."""
    variables: int
    constraints: int
    trace: list[tuple[float, int | None, int]]
    """Seconds, best value, best bound at every change."""
    baseline: str = ""
    """The best strategy that keeps the limit, if that was asked for and there is one."""
    baseline_value: int | None = None
    """Its value."""

    @property
    def key(self) -> Key:
        """What it is known by."""
        return self.side, self.instance, self.seconds_limit, self.workers, self.seed

    @property
    def gap(self) -> float | None:
        """(value - bound) / value."""
        return None if self.value is None else (self.value - self.bound) / self.value

    @property
    def proved(self) -> bool:
        """Whether the run ended in a proof."""
        return is_proved(self.status)


def attempt(side: str, instance: Instance, limits: Limits, *, trace: bool = True) -> Attempt:
    """Run a side on an instance, in a fresh process; raises RuntimeError if the side does."""
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_work, args=(side, instance, limits, sender), daemon=True)
    process.start()
    sender.close()
    began = time.monotonic()
    try:
        alive = receiver.poll(2 * limits.seconds + PATIENCE)
        figures = receiver.recv() if alive else None
    except EOFError:
        figures = None
    if figures is None:
        process.kill()
        figures = _nothing(time.monotonic() - began)
    process.join()
    if FAILED in figures:
        raise RuntimeError(f"{side} on {instance.name}: {figures[FAILED]}")
    return _record(side, instance, limits, figures, trace=trace)


def _record(
    side: str, instance: Instance, limits: Limits, figures: dict[str, Any], *, trace: bool
) -> Attempt:
    pipeline = instance.pipeline
    if not trace:
        figures["trace"] = []
    return Attempt(
        side=side,
        instance=instance.name,
        group=instance.group,
        objective=instance.objective.value,
        devices=pipeline.num_devices,
        batches=pipeline.batches,
        operations=operations(pipeline),
        busiest=_busiest(pipeline),
        per_unit=pipeline.ticks.per_unit,
        seconds_limit=limits.seconds,
        workers=limits.workers,
        seed=limits.seed,
        **figures,
    )


def _busiest(pipeline: Pipeline) -> int:
    times = [sum(column) for column in zip(*pipeline.ticks.durations[: OpKind.BW], strict=True)]
    (hosted,) = pipeline.hosted
    shares: list[int] = [sum(times[stage] for stage in stages) for stages in hosted]
    return pipeline.batches * max(shares)


def _work(side: str, instance: Instance, limits: Limits, answer: Connection) -> None:
    try:
        answer.send(_run(side, instance, limits))
    except Exception:
        answer.send({FAILED: traceback.format_exc()})


def _run(side: str, instance: Instance, limits: Limits) -> dict[str, Any]:
    solver = sides.load(side)
    cpu = _cpu_seconds()
    outcome = solver(instance.pipeline, instance.objective, limits)
    cpu = _cpu_seconds() - cpu
    if outcome.schedule is not None:
        checked(outcome.schedule)
    return _figures(outcome, cpu)


def _cpu_seconds() -> float:
    """Of this process, and of those it has started and waited for."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def _figures(outcome: Outcome, cpu: float) -> dict[str, Any]:
    both = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    peak = max(resource.getrusage(who).ru_maxrss for who in both)
    return {
        "status": outcome.status,
        "value": outcome.value,
        "bound": outcome.bound,
        "seconds": round(outcome.seconds, 4),
        "cpu_seconds": round(cpu, 4),
        "peak_mib": round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1),
        "variables": outcome.size.variables,
        "constraints": outcome.size.constraints,
        "trace": [(round(point.seconds, 4), *point[1:]) for point in outcome.trace],
    }


def _nothing(seconds: float) -> dict[str, Any]:
    """Figures of a run that gave no answer: its process was ended, or died of its memory."""
    figures = dict.fromkeys(("bound", "cpu_seconds", "peak_mib", "variables", "constraints"), 0)
    return {"status": "killed", "value": None, "seconds": seconds, "trace": [], **figures}


def read(path: Path) -> tuple[list[Row], list[Attempt]]:
    """Heads and attempts of a record."""
    rows = read_lines(path)
    heads = [row for row in rows if "side" not in row]
    return heads, [
        Attempt(**{STORED.get(key, key): value for key, value in row.items()})
        for row in rows
        if "side" in row
    ]


class Record:
    """A record being written; what it holds already is not run again."""

    def __init__(self, path: Path, libraries: Iterable[str]) -> None:
        self._path = path
        self.done = {attempt.key for attempt in read(path)[1]}
        add_line(path, head(*libraries))

    def add(self, attempt: Attempt) -> None:
        """Write an attempt at once."""
        add_line(self._path, attempt._asdict())
        self.done.add(attempt.key)


def describe(heads: Iterable[Row]) -> str:
    """Heads as lines of Markdown."""
    return "\n".join(
        f"- {head['date']}, commit {head['commit']}; Python {head['python']}, "
        + ", ".join(f"{name} {version}" for name, version in head["versions"].items())
        + f"; {head['processor']}, {head['cores']} cores, load at the start "
        + ", ".join(map(str, head["load"]))
        for head in heads
    )
