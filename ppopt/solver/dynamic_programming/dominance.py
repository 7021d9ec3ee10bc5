"""Dominance between states with the same counts.

A state dominates another state if none of its times is later and each of its flags is also set in
the other state. Then every extension of the dominated state is an extension of the dominating one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ppopt.solver.dynamic_programming.states import Indices, Mask, Matrix

MAX_COMPARISONS = 16
"""Maximum number of states that a state is compared with."""
_SUM_BITS = 24
"""Number of low bits of a key that contain the sum of the times."""
Hashes = npt.NDArray[np.uint64]
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)


def non_dominated(counts: Matrix, flags: Matrix, times: Matrix) -> Indices:
    """Indices of the columns to keep: every other column is dominated by one of them.

    Columns with equal counts form a group, by a hash. In each group all columns are compared with
    the first one, which has the smallest sum of times: no column with a larger sum dominates it.
    The columns that it dominates are removed, and the others form a group again. After
    `MAX_COMPARISONS` rounds all remaining columns are kept. The counts are compared as well, so
    that columns with different counts and the same hash are kept.
    """
    keys = _keys(counts, times)
    order = np.argsort(keys, kind="stable")
    group = (keys >> np.uint64(_SUM_BITS))[order]
    rows = [row[order] for row in times if row.any()]
    flags = flags[order]
    undominated: list[Indices] = []
    remaining = np.arange(order.size)
    for _ in range(MAX_COMPARISONS):
        groups = group[remaining]
        leads = np.ones(remaining.size, dtype=bool)
        leads[1:] = groups[1:] != groups[:-1]
        leaders = remaining[leads]
        undominated.append(leaders)
        which = np.cumsum(leads) - 1
        followers = ~leads
        remaining, against = remaining[followers], leaders[which[followers]]
        if not remaining.size:
            break
        out = _dominated_by(rows, flags, remaining, against)
        out[out] = (counts[:, order[remaining[out]]] == counts[:, order[against[out]]]).all(axis=0)
        remaining = remaining[~out]
        if not remaining.size:
            break
    else:
        undominated.append(remaining)
    return order[np.concatenate(undominated)]


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


def _dominated_by(rows: list[Matrix], flags: Matrix, columns: Indices, leaders: Indices) -> Mask:
    """Whether each column has no earlier time than the other column, and all of its flags."""
    dominated = np.zeros(columns.size, dtype=bool)
    indices = np.arange(columns.size)
    for row in rows:
        fits = row[columns] >= row[leaders]
        indices, columns, leaders = indices[fits], columns[fits], leaders[fits]
        if not indices.size:
            return dominated
    dominated[indices[flags[leaders] & ~flags[columns] == 0]] = True
    return dominated
