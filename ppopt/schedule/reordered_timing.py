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
    singles: Ints
    """Row and index of every operation of a microbatch that runs alone, shape [2, operations]."""
    durations: Floats
    """Ticks of each, of a microbatch with factor 1."""
    pairs: Ints
    """Row of every overlapped pair, and the indices of its F and its backward: [3, pairs]."""
    paired: Floats
    """Ticks of F and of the backward alone, and of what overlaps: [3, pairs]."""

    @classmethod
    def of(cls, schedule: Schedule) -> ReorderedTiming:
        """Take the order of a schedule on one route without moves to the host."""
        run, pipeline = SampledTiming.of(schedule), schedule.pipeline
        net, ticks = run.levels.net, pipeline.ticks
        computed = net.positions < net.computed
        position = net.positions[computed]
        kind, stage, microbatch, slice_index = split_codes(pipeline, net.ops[computed])
        slices = [float(pipeline.slice_factor(each)) for each in range(pipeline.num_slices)]
        row = run.levels.row[position]
        alone = np.array(ticks.durations, dtype=np.float64)[kind, stage]
        alone *= np.array(slices)[slice_index]
        second = np.append(False, position[1:] == position[:-1])
        first = np.append(second[1:], False)
        columns = (stage[first], kind[second], stage[second])
        pairs = zip(*(column.tolist() for column in columns), strict=True)
        overlap = [ticks.pair_saving(*pair) for pair in pairs]
        single = ~(first | second)
        return cls(
            run,
            np.stack([row[single], microbatch[single]]),
            alone[single],
            np.stack([row[first], microbatch[first], microbatch[second]]),
            np.stack([alone[first], alone[second], np.array(overlap, dtype=np.float64)]),
        )

    def values(self, factors: Floats, objective: Objective) -> Floats:
        """Makespan or device span of every order of the microbatches, in ticks.

        `factors`: factor on the times of the microbatch at every place, `[place, order]`.
        """
        times = np.repeat(self.run.duration[:, None].astype(np.float64), factors.shape[1], axis=1)
        times[: self.run.levels.machines] = 0
        rows, microbatch = self.singles
        times[rows] = self.durations[:, None] * factors[microbatch]
        if self.pairs.size:
            row, forward, backward = self.pairs
            first, second = factors[forward], factors[backward]
            forward_time, backward_time, overlap = self.paired[:, :, None]
            times[row] = (
                forward_time * first + backward_time * second - overlap * np.minimum(first, second)
            )
        return self.run.values(times, objective)
