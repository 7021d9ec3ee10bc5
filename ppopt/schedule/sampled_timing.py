"""Timing of the order of one schedule under many samples of random operation times at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppopt.problem.arrays import Floats, Ints
from ppopt.problem.objective import Objective
from ppopt.schedule import timing
from ppopt.schedule.host_orders import Prefetch, own_moves
from ppopt.schedule.link_queues import queues_of_schedule
from ppopt.schedule.order_levels import OrderLevels
from ppopt.schedule.schedule import Schedule


@dataclass(frozen=True)
class SampledTiming:
    """An order, prepared for sampled times: rows as in `OrderLevels`.

    The times of what links and queues carry are not random.
    """

    levels: OrderLevels
    duration: Ints
    """Ticks of every row; for a machine, its release."""
    lags: Floats
    """Ticks between the end of an input and what waits for it, `[number, 1]`."""

    @classmethod
    def of(cls, schedule: Schedule) -> SampledTiming:
        """Take the order and the first start of every device from a schedule."""
        queues = queues_of_schedule(schedule) if schedule.pipeline.has_links else None
        moves = own_moves(schedule) if schedule.pipeline.has_offload else Prefetch.LATE
        net = timing.network(schedule.pipeline, schedule.orders, queues, moves)
        first = schedule.metrics.first_ticks
        release = [0 if device == timing.FREE else first[device] for device in net.owner]
        begun = (net.work - net.duration)[net.first[:-1]]
        lags = np.where(net.before == timing.FREE, 0, net.delay + begun - net.work[net.before])
        levels = OrderLevels(net, np.where(lags == 0, 0, 1 + np.arange(len(lags))))
        duration = np.append(release, np.empty_like(net.duration))
        duration[levels.row] = net.duration
        return cls(levels, duration, np.append(0, lags)[:, None].astype(np.float64))

    def draw(self, deviation: float, seed: int, first: int, count: int) -> Floats:
        """Random times in ticks, `[row, sample]`: of samples `first` to `first + count`.

        The times are multiplied by lognormal factors of mean 1. Factors belong to operation
        numbers, so that they do not depend on the order; releases are not random.
        """
        net = self.levels.net
        variance = np.log1p(deviation**2)
        random = np.random.Generator(np.random.PCG64([seed, first]))
        drawn = random.standard_normal((net.computed, count))
        drawn *= np.sqrt(variance)
        drawn -= variance / 2
        np.exp(drawn, out=drawn)
        first_ops = np.searchsorted(net.positions, np.arange(len(drawn)))
        rank = np.argsort(np.argsort(net.ops[first_ops]))
        times = np.ones((len(self.duration), count))
        times[self.levels.row[: net.computed]] = drawn[rank]
        times *= self.duration[:, None]
        return times

    def values(self, times: Floats, objective: Objective) -> Floats:
        """The objective of every sample, in ticks. Overwrites `times` with the ends."""
        return self.levels.values(times, self.lags, objective)
