"""Timing of one schedule's order for many orders of its microbatches at once.

Index k of a schedule is run by microbatch k of its pipeline. In another order of the microbatches
every device keeps its order of indices, and another microbatch runs at each of them: only the
durations change.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppopt.problem.arrays import Floats, Ints
from ppopt.problem.objective import Objective
from ppopt.problem.traits import FORMS, ArgumentClass, Trait, handled
from ppopt.schedule.operations import split_codes
from ppopt.schedule.sampled_timing import SampledTiming
from ppopt.schedule.schedule import Schedule

HANDLES = handled(ArgumentClass.EVERY_OPERATION, FORMS) - {
    *(Trait.ROUTES, Trait.OFFLOAD, Trait.LINKS),
}
"""Traits of the schedules whose orders of microbatches are timed as a strategy runs them.

Routes own their microbatches, and a move to the host takes as long as its memory. A link that is a
resource serves first what comes first, here in the order of the schedule.
"""


@dataclass(frozen=True)
class ReorderedTiming:
    """Exact values of the orders of the microbatches of one schedule."""

    run: SampledTiming
    rows: Ints
    """Row of every operation of compute that runs alone, then that of every pair."""
    microbatch: Ints
    """Microbatch of the operations that run alone, of the F of pairs, then of their backwards."""
    alone: Floats
    """Ticks of each of these operations alone, of a microbatch with factor 1: `[operation, 1]`."""
    saved: Floats
    """Ticks that every pair saves: `[pair, 1]`."""

    @classmethod
    def of(cls, schedule: Schedule) -> ReorderedTiming:
        """Take the order of a schedule on one route without moves to the host."""
        run, pipeline = SampledTiming.of(schedule), schedule.pipeline
        net, ticks = run.levels.net, pipeline.ticks
        position = net.positions[net.positions < net.computed]
        kind, stage, microbatch, slice_index = split_codes(pipeline, net.ops[: len(position)])
        slices = [float(pipeline.slice_factor(each)) for each in range(pipeline.num_slices)]
        alone = np.array(ticks.durations)[kind, stage] * np.array(slices)[slice_index]
        second = np.flatnonzero(np.diff(position) == 0) + 1
        columns = (stage[second - 1], kind[second], stage[second])
        pairs = zip(*(column.tolist() for column in columns), strict=True)
        saved = np.array([ticks.pair_saving(*pair) for pair in pairs], dtype=np.float64)
        single = np.setdiff1d(np.arange(len(position)), [second - 1, second])
        order = np.concatenate([single, second - 1, second])
        rows = run.levels.row[position[order[: len(order) - len(second)]]]
        return cls(run, rows, microbatch[order], alone[order, None], saved[:, None])

    def values(self, factors: Floats, objective: Objective) -> Floats:
        """Makespan or device span of every order of the microbatches, in ticks.

        `factors`: factor on the times of the microbatch at every place, `[place, order]`.
        """
        times = np.repeat(self.run.duration[:, None].astype(np.float64), factors.shape[1], axis=1)
        times[: self.run.levels.machines] = 0
        own, count = factors[self.microbatch], len(self.rows)
        first, second = own[count - len(self.saved) : count], own[count:]
        smaller = np.minimum(first, second)
        own *= self.alone
        first += second - self.saved * smaller
        times[self.rows] = own[:count]
        return self.run.values(times, objective)
