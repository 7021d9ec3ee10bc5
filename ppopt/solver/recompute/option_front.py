"""The non-dominated options of a stage, enumerated run of equal layers by run, in whole ticks.

A row of costs is time, moving, stashed, resident and peak of a `StageOption`. All but the peak add
up over the runs of a stage. While BW runs the layers of a run, the activations of all runs before
it are live.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from ppopt.problem.arrays import Bools, Ints

MAX_OPTIONS = 512
"""Maximum number of non-dominated options of a stage that are enumerated."""
MAX_CANDIDATES = 1 << 16
"""Maximum number of options that are compared at a time."""
LARGEST_TICKS = 1 << 60
"""Maximum cost in ticks: sums of two costs are exact."""
_BLOCK = 256
"""Rows that are compared at once: the comparisons of a block are a few megabytes."""
_STASHED, _PEAK = 2, 4


class OptionFront:
    """Non-dominated options of the first runs of a stage, the shortest first."""

    def __init__(self, costs: Ints | None = None, picks: Ints | None = None) -> None:
        """Without arguments: the one option of a stage without layers."""
        self.costs = np.zeros((1, 5), np.int64) if costs is None else costs
        """Costs: `[option, cost]`."""
        self.picks = np.zeros((1, 0), np.int64) if picks is None else picks
        """Index of the option of every run: `[option, run]`."""

    def followed_by(self, run: Ints) -> OptionFront | None:
        """Options of a stage that has one more run, whose options have these costs.

        None if there are too many.
        """
        count, choices = len(self.costs), len(run)
        if count * choices > MAX_CANDIDATES:
            return None
        costs = self.costs[:, None] + run
        peak = self.costs[:, None, _STASHED] + run[:, _PEAK]
        costs[..., _PEAK] = np.maximum(self.costs[:, None, _PEAK], peak)
        costs = costs.reshape(count * choices, -1)
        kept = non_dominated(costs)
        if len(kept) > MAX_OPTIONS:
            return None
        parents, own = np.divmod(kept, choices)
        return OptionFront(costs[kept], np.column_stack([self.picks[parents], own]))


def non_dominated(costs: Ints) -> Ints:
    """Indices of the rows that no other row is at most in every column, in lexicographic order.

    Of equal rows the first one counts. Stops after more than `MAX_OPTIONS`.
    """
    order = np.lexsort(costs.T[::-1])
    front = order[:0]
    for low in range(0, len(order), _BLOCK):
        block = order[low : low + _BLOCK]
        block = block[~_at_most(costs[front], costs[block]).any(axis=0)]
        dominated = np.triu(_at_most(costs[block], costs[block]), 1).any(axis=0)
        front = np.concatenate([front, block[~dominated]])
        if len(front) > MAX_OPTIONS:
            break
    return front


def _at_most(rows: Ints, references: Ints) -> Bools:
    """Whether a row is at most a reference in every column: `[row, reference]`."""
    columns = (
        row[:, None] <= reference for row, reference in zip(rows.T, references.T, strict=True)
    )
    return reduce(np.logical_and, columns)
