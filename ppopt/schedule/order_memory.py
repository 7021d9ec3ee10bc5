"""Peak memory of one order for many pipelines of one shape at once.

The live memory of a device at the start of an operation is a sum of costs with whole coefficients:
a device runs its operations in their order, whatever their times. It is the product of a matrix
with the costs of all pipelines.
"""

from __future__ import annotations

import numpy as np

from ppopt.problem.arrays import Floats, Ints
from ppopt.problem.operation import NUM_KINDS, OpKind
from ppopt.problem.partition_table import CostTable
from ppopt.schedule.timing import Network


class OrderMemory:
    """The peaks of one order of compute."""

    def __init__(self, net: Network) -> None:
        stages, pieces = net.pipeline.num_stages, net.pipeline.batches * net.pipeline.num_slices
        devices = np.searchsorted(net.positions, net.starts[1 : net.pipeline.num_devices])
        self._live = [
            _live_memory(classes, positions - positions[0], stages)
            for classes, positions in zip(
                np.split(net.ops // pieces, devices), np.split(net.positions, devices), strict=True
            )
        ]

    def peaks(self, costs: CostTable) -> Ints:
        """Peak memory, `[device, pipeline]`, in ticks.

        If operations of zero duration run at the same instant it may be less.
        """
        amounts = np.concatenate([costs.allocates, costs.retained, costs.pending])
        peak = [(forms @ amounts[rows]).max(axis=0) for rows, forms in self._live]
        return np.asarray(costs.static + np.stack(peak), dtype=np.int64)


def _live_memory(classes: Ints, position: Ints, stages: int) -> tuple[Ints, Floats]:
    """Live memory of a device at the start of an operation, once for each distinct sum.

    Returns the rows of costs that have coefficients, and the coefficients, `[sum, row]`. The
    operations of the device are in their order; a class is kind x stages + stage. The two of a pair
    share a position. Rows: memory that operations allocate, by class; then, by stage, live memory
    of a microbatch from F to its backward; then from B to W.
    """
    classes, column = np.unique(classes, return_inverse=True)
    runs = np.zeros((int(position[-1]) + 1, len(classes)))
    np.add.at(runs, (position, column), 1)
    before = np.cumsum(runs, axis=0) - runs
    kind, stage = np.divmod(classes, stages)
    hosted, column = np.unique(stage, return_inverse=True)
    of_stage = column[:, None] == np.arange(len(hosted))
    split = (kind == OpKind.B).astype(np.int64)
    retained = (kind == OpKind.F) - split - (kind == OpKind.BW)
    pending = split - (kind == OpKind.W)
    live = [before @ (of_stage * change[:, None]) for change in (retained, pending)]
    first = NUM_KINDS * stages + hosted
    rows = np.concatenate([classes, first, first + stages])
    return rows, np.unique(np.concatenate([runs, *live], axis=1), axis=0)
