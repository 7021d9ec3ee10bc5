"""Dominance between states with the same counts, and merging of the rest.

A state dominates another state if none of its times is later and each of its flags is also set in
the other state. Then every extension of the dominated state is an extension of the dominating one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ppopt.cancellation import checkpoint
from ppopt.solver.dynamic_programming.states import Indices, Mask, Matrix

ROUNDS = 16
"""Number of states of every group with which all others are compared first."""
BLOCK = 256
"""Maximum number of states of one group with which the others are compared at once."""
MAX_PAIRS = 1 << 24
"""Maximum number of pairs that are compared at once."""
MAX_COMPARISONS = 1024
"""Maximum number of states that a state is compared with, if none are merged. Of one device with
two chunks (1.5b, 8 devices, 32 microbatches, memory for 10 chunks) 9,000 states of a layer are
non-dominated; more than 5 million remain after 16 comparisons."""
_SUM_BITS = 24
"""Number of low bits of a key that contain the sum of the times."""
Hashes = npt.NDArray[np.uint64]
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)


class Representatives(NamedTuple):
    """The columns that remain of a matrix, in their new order."""

    columns: Indices
    """Columns of the matrix."""
    merged: Indices
    """Positions in `columns` that represent several columns by their minimum."""
    minima: Matrix
    """These minima."""


class _Sorted(NamedTuple):
    """The columns in groups of equal counts, each by increasing sum of times."""

    group: Indices
    times: Matrix
    flags: Matrix


def reduced(
    states: Matrix,
    counts: slice,
    flags: int,
    times: slice,
    width: int | None = None,
) -> Representatives:
    """The columns to keep: every other column is dominated by one of them, or merged.

    Columns with equal counts form a group. No column with a larger sum of times dominates one with
    a smaller sum. In every group the first columns are compared with all later ones, and those
    that they dominate are removed.

    At most `width` columns of a group are kept (None: no limit). Those with the largest sums become
    one column: the minimum of each time, and the flags that all of them have. Its extensions end no
    later than theirs. So the minimum makespan is then a lower bound (relaxed decision diagrams:
    Andersen, Hadzic, Hooker, Tiedemann, CP 2007).
    """
    keys = _keys(states[counts], states[times])
    order = np.argsort(keys, kind="stable")
    own, hashes = states[counts].take(order, axis=1), keys[order] >> np.uint64(_SUM_BITS)
    begins = np.ones(order.size, dtype=bool)
    begins[1:] = (hashes[1:] != hashes[:-1]) | (own[:, 1:] != own[:, :-1]).any(axis=0)
    rows = states[times][states[times].any(axis=1)]
    columns = _Sorted(np.cumsum(begins), rows.take(order, axis=1), states[flags][order])
    first, remaining = _compared_with_first(columns, width)
    limit = (MAX_COMPARISONS if width is None else width - 1) - ROUNDS
    if limit > 0:
        leaders, remaining = _compared_in_blocks(columns, remaining, limit)
        first += leaders
    unmerged = np.concatenate([*first, remaining[:0]])
    if width is None or not remaining.size:
        no_column = np.empty(0, dtype=np.intp)
        return Representatives(
            order[np.concatenate([unmerged, remaining])], no_column, states[:, :0]
        )
    leads = np.flatnonzero(_leads(columns.group[remaining]))
    several = np.diff(np.append(leads, remaining.size)) > 1
    merged = order[remaining]
    minima = states.take(merged[leads], axis=1)
    minima[times] = np.minimum.reduceat(states[times].take(merged, axis=1), leads, axis=1)
    minima[flags] = np.bitwise_and.reduceat(states[flags][merged], leads)
    chosen = order[np.concatenate([unmerged, remaining[leads]])]
    return Representatives(chosen, unmerged.size + np.flatnonzero(several), minima[:, several])


def _leads(groups: Indices) -> Mask:
    """Whether each position is the first one of its group."""
    leads = np.ones(groups.size, dtype=bool)
    leads[1:] = groups[1:] != groups[:-1]
    return leads


def _compared_with_first(columns: _Sorted, width: int | None) -> tuple[list[Indices], Indices]:
    """Compare all columns with the first one of their group, up to `ROUNDS` times.

    Returns the columns that led a group, and those that remain.
    """
    leaders: list[Indices] = []
    remaining = np.arange(columns.group.size)
    for _ in range(ROUNDS if width is None else min(ROUNDS, width - 1)):
        if not remaining.size:
            break
        leads = _leads(columns.group[remaining])
        leaders.append(remaining[leads])
        against = leaders[-1][np.cumsum(leads) - 1][~leads]
        remaining = remaining[~leads]
        remaining = remaining[~_dominated_by(columns, remaining, against)]
    return leaders, remaining


def _compared_in_blocks(
    columns: _Sorted, remaining: Indices, limit: int
) -> tuple[list[Indices], Indices]:
    """Compare the columns of every group with its first `limit` ones that are not dominated.

    Returns these columns, and those that remain.
    """
    leaders: list[Indices] = []
    rest: list[Indices] = []
    begins = np.flatnonzero(_leads(columns.group[remaining]))[1:]
    for group in np.split(remaining, begins):
        left, members = limit, group
        while members.size and left > 0:
            checkpoint()
            size = max(1, min(BLOCK, left, MAX_PAIRS // members.size))
            undominated = ~_dominated_by_earlier(columns, members, size)
            leaders.append(members[:size][undominated[:size]])
            left -= leaders[-1].size
            members = members[size:][undominated[size:]]
        rest.append(members)
    return leaders, np.concatenate(rest)


def _dominated_by_earlier(columns: _Sorted, members: Indices, size: int) -> Mask:
    """Whether one of the first `size` members, before it, dominates each member."""
    block = members[:size]
    dominated = np.arange(block.size)[:, None] < np.arange(members.size)
    for row in columns.times:
        dominated &= row[block][:, None] <= row[members]
    dominated &= columns.flags[block][:, None] & ~columns.flags[members] == 0
    return np.asarray(dominated.any(axis=0))


def _keys(counts: Matrix, times: Matrix) -> Hashes:
    """Sort keys: a hash of the counts in the upper bits, the sum of the times in the lower."""
    total = times.sum(axis=0, dtype=np.int64)
    total -= total.min(initial=2**62)
    excess = max(0, int(total.max(initial=0)).bit_length() - _SUM_BITS)
    keys = hashed(counts) & ~np.uint64((1 << _SUM_BITS) - 1)
    keys |= (total >> excess).astype(np.uint64)
    return keys


def hashed(counts: Matrix) -> Hashes:
    """Hash of every column."""
    hashes = np.zeros(counts.shape[1], dtype=np.uint64)
    for row in counts:
        hashes += row.astype(np.uint64)
        hashes *= _ODD
        hashes ^= hashes >> np.uint64(32)
    hashes *= _MIX
    return hashes


def _dominated_by(columns: _Sorted, indices: Indices, leaders: Indices) -> Mask:
    """Whether each column has no earlier time than the other column, and all of its flags."""
    dominated = np.zeros(indices.size, dtype=bool)
    positions = np.arange(indices.size)
    for row in columns.times:
        fits = row[indices] >= row[leaders]
        positions, indices, leaders = positions[fits], indices[fits], leaders[fits]
        if not positions.size:
            return dominated
    dominated[positions[columns.flags[leaders] & ~columns.flags[indices] == 0]] = True
    return dominated
