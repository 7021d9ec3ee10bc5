"""Delays over the boundaries between stages, for every position of the cuts.

Boundary b follows stage b. Its cut is the number of layers before it. Cuts ascend strictly, since
every stage has a layer.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise, takewhile
from typing import Any

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.pipeline import Pipeline

NEVER = 2**60
"""More ticks than any sum of delays; marks impossible cuts."""


def delays_of_cuts(pipeline: Pipeline, per_unit: int) -> tuple[Ints, Ints]:
    """Delays down and up in ticks, `[boundary, layers before it]`.

    The delay is 0 on one device, and on the way up if all layers before the cut are frozen. That of
    a link is latency + size / bandwidth, for the output of the layer before the cut.
    """
    layers, down, stated_up = pipeline.model.layers, pipeline.link, pipeline.backward_p2p
    up = down if stated_up is None else None
    if down is not None and down.backward is not None:
        up = down.backward
    back = pipeline.p2p if stated_up is None else stated_up
    ways = []
    for link, stated, direction in ((down, pipeline.p2p, 1), (up, back, -1)):
        rows = []
        for boundary, pair in enumerate(pairwise(pipeline.hosts[0])):
            delays = [_stated_delay(stated, boundary, *pair[::direction])] * len(layers)
            if link is not None:
                delays = [link.latency + layer.output / link.bandwidth for layer in layers]
            apart = pair[0] != pair[1]
            rows.append([0, *(int(apart * delay * per_unit) for delay in delays)])
        ways.append(np.array(rows, dtype=np.int64))
    frozen = sum(1 for _ in takewhile(lambda layer: layer.frozen, layers))
    ways[1][..., : frozen + 1] = 0
    return ways[0], ways[1]


def _stated_delay(delays: Any, boundary: int, source: int, target: int) -> Any:
    """One number for all, one per boundary, or a matrix [from device][to device]."""
    if not isinstance(delays, tuple):
        return delays
    return delays[source][target] if isinstance(delays[0], tuple) else delays[boundary]


class Way:
    """Minimum delays over runs of boundaries, in ticks: down, up, or both together.

    `table[b, l]` is the delay at boundary b if it lies after l layers.
    """

    def __init__(self, table: Ints) -> None:
        self._table = table
        self._sums_from = lru_cache(maxsize=None)(self._sums)

    def between(self, first: int, low: int, last: int, high: int) -> int:
        """Minimum sum over boundaries first .. last, which lie after low and high layers.

        0 if there is none (last < first).
        """
        return 0 if last < first else self._sums_from(first, low)[last - first][high]

    def beyond(self, first: int, low: int) -> int:
        """Minimum sum over all boundaries from the first on, which lies after low layers."""
        if first >= len(self._table):
            return 0
        # at least one layer follows the last boundary
        return min(self._sums_from(first, low)[-1][:-1])

    def up_to(self, last: int, high: int) -> int:
        """Minimum sum over all boundaries up to the last, which lies after high layers."""
        return 0 if last < 0 else self._sums_from(0, None)[last][high]

    def _sums(self, first: int, low: int | None) -> list[list[int]]:
        """Minimum sums over boundaries first .. first + i, the last after l layers: [i][l].

        The first one lies after `low` layers; None: after any number.
        """
        cut = np.arange(self._table.shape[1])
        row = np.where(cut == low if low is not None else cut > 0, self._table[first], NEVER)
        rows = [row]
        for delays in self._table[first + 1 :]:
            row = np.append(NEVER, np.minimum.accumulate(row[:-1])) + delays
            rows.append(row)
        return [own.tolist() for own in rows]
