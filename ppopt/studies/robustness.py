"""Robustness: a fixed order under random times of its operations.

Every operation keeps its position in the order of its device, starts when its inputs have arrived
and its device is free, and takes its own time multiplied by a random factor. No device begins
before its first start in the schedule. Delays between devices are unchanged. If links are streams,
the order and the times of transfers on every link are unchanged. The same holds for collectives and
optimizers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ppopt.errors import InputError, check_type
from ppopt.problem.arrays import Floats
from ppopt.problem.objective import Objective
from ppopt.schedule.order_columns import OrderColumns
from ppopt.schedule.schedule import Schedule

SAMPLES = 1000
BLOCK = 2**24
"""Maximum number of random times in memory at once."""


@dataclass(frozen=True)
class Jitter:
    """The objective of one schedule under random times; in the user's unit of time."""

    deviation: float
    """Standard deviation of the random factors, whose mean is 1."""
    seed: int
    nominal: float
    """Objective without random factors."""
    values: Floats
    """Objective in every sample."""

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.values)

    @cached_property
    def mean(self) -> float:
        """Mean over the samples."""
        return float(self.values.mean())

    @cached_property
    def p95(self) -> float:
        """Value that 95 % of the samples do not exceed."""
        return float(np.quantile(self.values, 0.95, method="inverted_cdf"))

    def __repr__(self) -> str:
        return (
            f"Jitter({self.samples} samples of deviation {self.deviation}: mean "
            f"{self.mean:.6g}, 95 % below {self.p95:.6g}, nominal {self.nominal:.6g})"
        )

    @property
    def standard_error(self) -> float:
        """Standard error of the mean."""
        return float(self.values.std() / np.sqrt(self.samples))

    @property
    def degradation(self) -> float:
        """Relative increase of the mean over the objective without jitter."""
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

    The factors are independent and lognormal with mean 1 and standard deviation `deviation`. An
    operation has the same factors in every schedule of the same operations, seed and number of
    samples (common random numbers), so that strategies can be compared. Raises InputError unless
    the deviation is above 0 and at most 10 and there is at least one sample.
    """
    check_type("schedule", schedule, Schedule)
    check_deviation(deviation)
    if samples < 1:
        raise InputError(f"samples: {samples} is below 1")
    objective = Objective(objective)
    order = OrderColumns.of_schedule(schedule)
    values = [
        order.values(random_times(order, deviation, seed, first, count), objective)
        for first, count in _blocks(samples, len(order.duration))
    ]
    per_unit = schedule.pipeline.ticks.per_unit
    nominal = schedule.metrics.value_ticks(objective) / per_unit
    return Jitter(deviation, seed, nominal, np.concatenate(values) / per_unit)


def check_deviation(deviation: float) -> None:
    """Raise InputError if a relative standard deviation is out of range."""
    if not 0 < deviation <= 10:
        raise InputError(f"jitter: {deviation:g} is not above 0 and at most 10; try 0.1")


def random_times(
    order: OrderColumns, deviation: float, seed: int, first: int, count: int
) -> Floats:
    """Random times in ticks, `[row, sample]`: of samples `first` to `first + count`.

    The times are multiplied by lognormal factors of mean 1. Factors belong to operation numbers, so
    that they do not depend on the order. Releases, and the times of what links and queues carry,
    are not random.
    """
    net = order.net
    variance = np.log1p(deviation**2)
    random = np.random.Generator(np.random.PCG64([seed, first]))
    factors = random.standard_normal((net.computed, count))
    factors *= np.sqrt(variance)
    factors -= variance / 2
    np.exp(factors, out=factors)
    first_ops = np.searchsorted(net.positions, np.arange(len(factors)))
    rank = np.argsort(np.argsort(net.ops[first_ops]))
    times = np.ones((len(order.duration), count))
    times[order.row[: net.computed]] = factors[rank]
    times *= order.duration[:, None]
    return times


def _blocks(samples: int, operations: int) -> Iterator[tuple[int, int]]:
    """First sample and number of samples of every block."""
    size = max(1, BLOCK // max(1, operations))
    for first in range(0, samples, size):
        yield first, min(size, samples - first)
