"""Delays over the boundaries between stages, for every position of the cuts.

Boundary b follows stage b. Its cut is the number of layers before it. Cuts ascend strictly, since
every stage has a layer. Without a model in layers the cut does not matter.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Any

from ppopt.problem.pipeline import Pipeline

NEVER = 2**62
"""More ticks than any sum of delays; marks impossible cuts."""


class Boundary:
    """Delays of a pipeline's boundaries, in the user's unit."""

    def __init__(self, pipeline: Pipeline, hosts: tuple[int, ...]) -> None:
        """`hosts` has the device of every stage."""
        self._pipeline, self._hosts = pipeline, hosts

    def down(self, boundary: int, cut: int) -> Fraction:
        """Delay from the stage before a boundary to the one after it; 0 on one device."""
        lower, upper = self._hosts[boundary : boundary + 2]
        link = self._pipeline.link
        if lower == upper:
            return Fraction(0)
        if link is None:
            return _stated_delay(self._pipeline.p2p, boundary, lower, upper)
        return self._by_size(link, cut)

    def up(self, boundary: int, cut: int) -> Fraction:
        """Delay on the way back."""
        lower, upper = self._hosts[boundary : boundary + 2]
        link, back = self._pipeline.link, self._pipeline.backward_p2p
        if lower == upper or self._nothing_goes_up(boundary, cut):
            return Fraction(0)
        if link is not None and link.backward is not None:
            return self._by_size(link.backward, cut)
        if back is not None:
            return _stated_delay(back, boundary, upper, lower)
        if link is not None:
            return self._by_size(link, cut)
        return _stated_delay(self._pipeline.p2p, boundary, upper, lower)

    def _nothing_goes_up(self, boundary: int, cut: int) -> bool:
        """Whether all before a boundary is frozen: `cut` layers, or `boundary` + 1 stages."""
        model = self._pipeline.model
        if model is None:
            return all((self._pipeline.frozen or (False,))[: boundary + 1])
        return all(layer.frozen for layer in model.layers[:cut])

    def _by_size(self, link: Any, cut: int) -> Fraction:
        """Latency + size / bandwidth, for the output of the layer before the cut."""
        size = self._pipeline.model.layers[cut - 1].output / self._pipeline.num_slices
        return Fraction(link.latency + size / link.bandwidth)


def _stated_delay(delays: Any, boundary: int, source: int, target: int) -> Fraction:
    """One number for all, one per boundary, or a matrix [from device][to device]."""
    if not isinstance(delays, tuple):
        return Fraction(delays)
    entry = delays[source if isinstance(delays[0], tuple) else boundary]
    return Fraction(entry[target] if isinstance(entry, tuple) else entry)


class Way:
    """Minimum delays over runs of boundaries, in ticks: down, up, or both together.

    `table[b][l]` is the delay at boundary b if it lies after l layers.
    """

    def __init__(self, table: list[list[int]]) -> None:
        self._table = table
        self._fixed = all(len(set(row[1:])) <= 1 for row in table)
        self._last = len(table)
        self.from_start = lru_cache(maxsize=None)(self._rows)

    def between(self, first: int, low: int, last: int, high: int) -> int:
        """Minimum sum over boundaries first .. last, which lie after low and high layers.

        0 if there is none (last < first).
        """
        if last < first:
            return 0
        if self._fixed:
            return sum(row[-1] for row in self._table[first : last + 1])
        return self.from_start(first, low)[last - first][high]

    def beyond(self, first: int, low: int) -> int:
        """Minimum sum over all boundaries from the first on, which lies after low layers."""
        if first >= self._last:
            return 0
        if self._fixed:
            return self.between(first, low, self._last - 1, 0)
        # at least one layer follows the last boundary
        return min(self.from_start(first, low)[self._last - 1 - first][:-1])

    def up_to(self, last: int, high: int) -> int:
        """Minimum sum over all boundaries up to the last, which lies after high layers."""
        if last < 0:
            return 0
        starts = (1,) if self._fixed else range(1, high - last + 1)
        return min(self.between(0, low, last, high) for low in starts)

    def _rows(self, first: int, low: int) -> list[list[int]]:
        """Minimum sums over boundaries first .. first + i, the last after l layers: [i][l]."""
        num_cuts = len(self._table[0])
        row = [NEVER] * num_cuts
        row[low] = self._table[first][low]
        rows = [row]
        for delays in self._table[first + 1 :]:
            best, after = NEVER, [NEVER] * num_cuts
            for cut in range(1, num_cuts):
                best = min(best, row[cut - 1])
                if best < NEVER:
                    after[cut] = best + delays[cut]
            row = after
            rows.append(row)
        return rows
