"""Partitions that balance devices: the work of a device is that of all stages that it hosts.

The rule `balanced` minimizes the work of the largest stage. That is the work of the largest device
only if a device hosts one stage. With several, a descent moves one layer at a time from one stage
to another: every stage between them hands one layer on. Layers of a busiest device are tried first.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ppopt.problem import exact
from ppopt.problem.arrays import Floats, Ints
from ppopt.problem.partition import Counts
from ppopt.problem.pipeline import Pipeline

MAX_STAGES_TRIED = 2_000_000
"""Stages of all partitions that a descent tries: about half a second."""


def balanced_by_device(pipeline: Pipeline) -> Counts:
    """Counts of layers per stage whose busiest device does little work of F and BW.

    No worse than the partition of the pipeline; a local optimum, unless the pipeline is large.
    """
    loads = _loads(pipeline)
    cuts = np.array([0, *accumulate(pipeline.counts)])
    rank, tried, everywhere = loads.rank(cuts[None])[0], 0, False
    while tried < MAX_STAGES_TRIED:
        moves = np.array([cuts, *loads.moves(cuts, everywhere=everywhere)])
        ranks, tried = loads.rank(moves), tried + moves.size
        best = np.lexsort(ranks.T[::-1])[0]
        if tuple(ranks[best]) < tuple(rank):
            cuts, rank, everywhere = moves[best], ranks[best], False
        elif everywhere or len(cuts) ** 3 > MAX_STAGES_TRIED:
            break
        else:
            everywhere = True
    return tuple(np.diff(cuts).tolist())


class _Loads(NamedTuple):
    """Work of devices for partitions of a model, each given by the first layer of every stage."""

    sums: Floats
    """Work of the first 0, 1, ... layers: whole numbers."""
    stages: Ints
    """Hosted stages of all routes, by device."""
    devices: Ints
    """Device of each of these."""
    slow: Floats
    """Time per work on each of these devices."""

    def of(self, cuts: Ints) -> Floats:
        """Work per partition and device."""
        work = np.diff(self.sums[cuts], axis=1)[:, self.stages] * self.slow
        firsts = np.flatnonzero(np.diff(self.devices, prepend=-1))
        loads: Floats = np.add.reduceat(work, firsts, axis=1)
        return loads

    def rank(self, cuts: Ints) -> Floats:
        """Work of the busiest device, then the sum of squares, per partition: less is better."""
        loads = self.of(cuts)
        return np.stack([loads.max(axis=1), np.square(loads).sum(axis=1)], axis=1)

    def moves(self, cuts: Ints, *, everywhere: bool) -> Iterator[Ints]:
        """Partitions in which a layer leaves a busiest device, or any; no stage becomes empty."""
        loads, counts = self.of(cuts[None])[0], np.diff(cuts)
        left = np.flatnonzero(everywhere | (loads == loads.max()))
        for source in np.unique(self.stages[np.isin(self.devices, left)]):
            if counts[source] < 2:
                continue
            for target in range(len(counts)):
                if target != source:
                    moved = cuts.copy()
                    low, high = sorted((source, target))
                    moved[low + 1 : high + 1] += -1 if source < target else 1
                    yield moved


def _loads(pipeline: Pipeline) -> _Loads:
    assert pipeline.model is not None
    work = [layer.work for layer in pipeline.model.costed]
    per_unit = exact.common_denominator(work)
    hosted = sorted(
        (device, stage)
        for route in pipeline.hosted
        for device, stages in enumerate(route)
        for stage in stages
    )
    devices, stages = np.array(hosted).T
    slow = np.array([float(1 / speed) for speed in pipeline.device_speed])
    sums = np.array([0.0, *accumulate(float(time * per_unit) for time in work)])
    return _Loads(sums, stages, devices, slow[devices])
