"""Delays over the boundaries between stages, for every position of the cuts.

Boundary b follows stage b. Its cut is the number of layers before it. Cuts ascend strictly, since
every stage has a layer.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import takewhile

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.pipeline import Pipeline
from ppopt.verifier.expected import delays_over

NEVER = 2**60
"""More ticks than any sum of delays; marks impossible cuts."""


def delays_of_cuts(pipeline: Pipeline) -> tuple[Ints, Ints]:
    """Delays down and up in ticks, `[boundary, layers before it]`.

    The delay is 0 on one device, and on the way up if all layers before the cut are frozen.
    """
    layers, hosts = pipeline.model.layers, np.array(pipeline.hosts[0])[:, None]
    boundary, cut = np.indices((len(hosts) - 1, len(layers) + 1))
    down, up = delays_over(pipeline, boundary, np.maximum(cut - 1, 0), hosts[:-1], hosts[1:])
    return down * (cut > 0), up * (
        cut > sum(1 for _ in takewhile(lambda each: each.frozen, layers))
    )


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
