"""Robustness: a fixed order under random times of its operations.

Every operation keeps its place in the order of its device, starts when its inputs are there and
its device is free, and takes its own time multiplied by a random factor. No device begins before
its first start in the schedule. Delays between devices stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ppopt import timing
from ppopt.errors import InputError
from ppopt.metrics import Objective
from ppopt.schedule import Schedule

SAMPLES = 1000
BLOCK = 2**24
"""Most durations held at once."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Jitter:
    """The objective of one schedule under random times; in the user's unit of time."""

    deviation: float
    """Standard deviation of the random factors, whose mean is 1."""
    seed: int
    nominal: float
    """The objective with the times as they are."""
    values: Floats
    """The objective in every sample."""

    @cached_property
    def mean(self) -> float:
        """Mean over the samples."""
        return float(self.values.mean())

    @cached_property
    def p95(self) -> float:
        """The value that 95 % of the samples do not exceed."""
        return float(np.quantile(self.values, 0.95, method="inverted_cdf"))

    @property
    def standard_error(self) -> float:
        """Standard error of the mean."""
        return float(self.values.std() / np.sqrt(len(self.values)))

    @property
    def degradation(self) -> float:
        """By what share the mean exceeds the objective without jitter."""
        return self.mean / self.nominal - 1


def jitter(
    schedule: Schedule,
    deviation: float,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    samples: int = SAMPLES,
    seed: int = 0,
) -> Jitter:
    """Run the order of a valid schedule under random times.

    The factors are lognormal of mean 1 and standard deviation `deviation`, independent of each
    other. An operation has the same factors in every schedule of the same operations, seed and
    number of samples, so that strategies meet the same luck. Raises InputError where the deviation
    is no number above 0, at most 10, or there is no sample.
    """
    check(deviation)
    if samples < 1:
        raise InputError(f"samples: {samples} is below 1")
    objective = Objective(objective)
    run = Run.of(schedule)
    values = [
        run.values(run.draw(deviation, seed, first, count), objective)
        for first, count in _blocks(samples, len(run.net.duration))
    ]
    per_unit = schedule.pipeline.ticks.per_unit
    nominal = schedule.metrics.value(objective) / per_unit
    return Jitter(deviation, seed, nominal, np.concatenate(values) / per_unit)


def check(deviation: float) -> None:
    """Raise InputError where a relative standard deviation is out of range."""
    if not 0 < deviation <= 10:
        raise InputError(f"jitter: {deviation:g} is not above 0 and at most 10; try 0.1")


def _blocks(samples: int, operations: int) -> Iterator[tuple[int, int]]:
    """First sample and number of samples of every block."""
    size = max(1, BLOCK // max(1, operations))
    for first in range(0, samples, size):
        yield first, min(size, samples - first)


class Step(NamedTuple):
    """One step of `timing.Network`: wait, then run operations back to back."""

    device: int
    before: int
    """Position whose end it waits for; `timing.FREE`: none."""
    lag: float
    """Ticks from that end on."""
    first: int
    last: int
    """Its operations are the positions from `first` to before `last`."""


@dataclass(frozen=True)
class Run:
    """An order made ready to run under many times at once."""

    net: timing.Network
    steps: tuple[Step, ...]
    """Every step after those it waits for."""
    release: tuple[int, ...]
    """Earliest start of every device, in ticks."""

    @classmethod
    def of(cls, schedule: Schedule) -> Run:
        """Read the order, and when devices begin, off a schedule."""
        net = timing.network(schedule.pipeline, schedule.orders)
        return cls(net, tuple(_in_order(net)), schedule.metrics.first)

    def draw(self, deviation: float, seed: int, first: int, count: int) -> Floats:
        """Random durations in ticks, [position, sample]: of samples `first` to `first + count`.

        Factors come by the number of the operation, so that the order plays no part.
        """
        variance = np.log1p(deviation**2)
        random = np.random.Generator(np.random.PCG64([seed, first]))
        drawn = random.standard_normal((len(self.net.duration), count))
        drawn *= np.sqrt(variance)
        drawn -= variance / 2
        np.exp(drawn, out=drawn)
        first_ops = np.searchsorted(self.net.place, np.arange(len(drawn)))
        rank = np.argsort(np.argsort(self.net.ops[first_ops]))
        durations = drawn[rank]
        durations *= self.net.duration[:, None]
        return np.asarray(durations)

    def values(self, durations: Floats, objective: Objective) -> Floats:
        """The objective of every sample in ticks; the durations are turned into ends."""
        begin, last = self.ends(durations)
        if objective is Objective.MAKESPAN:
            return np.asarray(last.max(axis=0))
        return np.asarray((last - begin).max(axis=0))

    def ends(self, durations: Floats) -> tuple[Floats, Floats]:
        """First start and last end in ticks, [device, sample]; durations become ends, in place."""
        rows, waited = list(durations), np.empty(durations.shape[1])
        now = [np.full_like(waited, release) for release in self.release]
        begin: list[Floats | None] = [None for _ in now]
        add, maximum = np.add, np.maximum
        for device, before, lag, first, last in self.steps:
            start = here = now[device]
            if before >= 0:
                start = waited if first < last else np.empty_like(waited)
                add(rows[before], lag, out=start)
                maximum(start, here, out=start)
            if begin[device] is None and first < last:
                begin[device] = start.copy()
            for position in range(first, last):
                row = rows[position]
                add(row, start, out=row)
                start = row
            now[device] = start
        return np.stack([one for one in begin if one is not None]), np.stack(now)


def _in_order(net: timing.Network) -> Iterator[Step]:
    """The steps, each after those it waits for: devices in turn, each as far as it can run."""
    first, before, needed = net.first.tolist(), net.before.tolist(), net.needed.tolist()
    opening = np.minimum(net.first[:-1], len(net.work) - 1)
    since = (net.work - net.duration)[opening] - net.work[net.before]
    lag = (net.delay + since).tolist()
    bounds = net.bounds.tolist()
    reached, done = bounds[:-1], [False] * len(before)
    while any(at < end for at, end in zip(reached, bounds[1:], strict=True)):
        for device, end in enumerate(bounds[1:]):
            at = reached[device]
            while at < end and (needed[at] == timing.FREE or done[needed[at]]):
                yield Step(device, before[at], lag[at], first[at], first[at + 1])
                done[at] = True
                at += 1
            reached[device] = at
