"""The non-dominated options of a stage, enumerated run of equal layers by run, in whole ticks.

A row of costs is time, moving, stashed, resident, workspace and peak of a `StageOption`. The first
four add up over the runs of a stage; the workspace is a maximum. While BW runs the layers of a run,
the activations of all runs before it are live.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from math import comb

import numpy as np

from ppopt.problem.arrays import Bools, Ints

MAX_OPTIONS = 512
"""Maximum number of non-dominated options of a stage that are enumerated."""
MAX_CANDIDATES = 1 << 16
"""Maximum number of options that are compared at a time."""
_BLOCK = 256
"""Rows that are compared at once: the comparisons of a block are a few megabytes."""
_SUMS = slice(0, 4)
_STASHED, _WORKSPACE, _PEAK = 2, 4, 5


@dataclass(frozen=True, eq=False)
class Run:
    """Equal layers in a row: how many of them have each option."""

    counts: Ints
    """Number of layers: `[choice, option]`."""
    costs: Ints
    """Costs: `[choice, cost]`."""

    @classmethod
    def of(cls, options: Ints, activation: int, count: int, *, at_once: bool) -> Run | None:
        """All choices for `count` layers whose options have these costs; None: too many.

        `options[option, cost]` has the costs of a layer, its last two the workspaces of B and BW.
        Layers have their options in this order. `at_once`: BW recomputes all layers together, and
        its peak is counted without their activation.
        """
        kinds = len(options)
        choices = comb(count + kinds - 1, count)
        if choices > MAX_CANDIDATES:
            return None
        bars = np.array(list(combinations(range(count + kinds - 1), kinds - 1)), dtype=np.int64)
        bars = bars.reshape(choices, kinds - 1)
        ends = np.pad(bars, ((0, 0), (1, 1)), constant_values=-1)
        ends[:, -1] = count + kinds - 1
        counts = np.diff(ends, axis=1) - 1
        present, workspaces = counts > 0, options[:, 4:]
        retained = counts * options[:, _STASHED]
        before = np.cumsum(retained, axis=1) - options[:, _STASHED]
        largest = np.where(present[..., None], workspaces, 0).max(axis=1)
        during = np.where(present, before + activation + workspaces[:, 1], 0).max(axis=1)
        peak = largest[:, 1] if at_once else np.maximum(during, retained.sum(axis=1))
        costs = np.column_stack([counts @ options[:, _SUMS], largest[:, 0], peak])
        return cls(counts, costs)


class OptionFront:
    """Non-dominated options of the first runs of a stage, the shortest first."""

    def __init__(
        self, costs: Ints | None = None, picks: Ints | None = None, *, at_once: bool = False
    ) -> None:
        """Without costs and picks: the one option of a stage without layers."""
        self.costs = np.zeros((1, 6), np.int64) if costs is None else costs
        """Costs: `[option, cost]`."""
        self.picks = np.zeros((1, 0), np.int64) if picks is None else picks
        """Index of the choice of every run: `[option, run]`."""
        self._at_once = at_once

    def followed_by(self, run: Ints) -> OptionFront | None:
        """Options of a stage that has one more run, whose options have these costs.

        None if there are too many.
        """
        count, choices = len(self.costs), len(run)
        if count * choices > MAX_CANDIDATES:
            return None
        costs = self.costs[:, None] + run
        stashed = 0 if self._at_once else self.costs[:, None, _STASHED]
        costs[..., _PEAK] = np.maximum(self.costs[:, None, _PEAK], stashed + run[:, _PEAK])
        costs[..., _WORKSPACE] = np.maximum(self.costs[:, None, _WORKSPACE], run[:, _WORKSPACE])
        costs = costs.reshape(count * choices, -1)
        front = non_dominated(costs)
        if len(front) > MAX_OPTIONS:
            return None
        parents, own = np.divmod(front, choices)
        picks = np.column_stack([self.picks[parents], own])
        return OptionFront(costs[front], picks, at_once=self._at_once)


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
