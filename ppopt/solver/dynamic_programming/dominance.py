"""Dominance between states with the same counts.

A state dominates another state if none of its times is later and each of its flags is set in the
other state too. Every extension of the other state is then an extension of the dominating one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ppopt.solver.dynamic_programming.states import Mask, Matrix, Places

MAX_COMPARISONS = 16
"""Largest number of states that one state is compared with."""
_SUM_BITS = 24
"""Number of the lowest bits of a key, which hold the sum of the times."""
Hashes = npt.NDArray[np.uint64]
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)


def non_dominated(counts: Matrix, flags: Matrix, times: Matrix) -> Places:
    """Indices of the columns to keep: every other column is dominated by one of them.

    Columns with equal counts form a group, by a hash. In each group all columns are compared with
    the first one, that of least sum of times, which no column of larger sum can dominate. Columns
    that it dominates are left out, and the rest forms a group again. After `MAX_COMPARISONS`
    rounds all remaining columns are kept. The counts are compared too, so that columns with
    different counts and the same hash are kept.
    """
    keys = _keys(counts, times)
    order = np.argsort(keys)
    group = (keys >> np.uint64(_SUM_BITS))[order]
    rows = [row[order] for row in times if row.any()]
    flags = flags[order]
    found: list[Places] = []
    left = np.arange(order.size)
    for _ in range(MAX_COMPARISONS):
        mine = group[left]
        leads = np.ones(left.size, dtype=bool)
        leads[1:] = mine[1:] != mine[:-1]
        leaders = left[leads]
        found.append(leaders)
        which = np.cumsum(leads) - 1
        followers = ~leads
        left, against = left[followers], leaders[which[followers]]
        if not left.size:
            break
        out = _dominated_by(rows, flags, left, against)
        out[out] = (counts[:, order[left[out]]] == counts[:, order[against[out]]]).all(axis=0)
        left = left[~out]
        if not left.size:
            break
    else:
        found.append(left)
    return order[np.concatenate(found)]


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
    found = np.zeros(counts.shape[1], dtype=np.uint64)
    for row in counts:
        found += row.astype(np.uint64)
        found *= _ODD
        found ^= found >> np.uint64(32)
    found *= _MIX
    return found


def _dominated_by(
    rows: list[Matrix], flags: Matrix, columns: Places, other_columns: Places
) -> Mask:
    """Whether each column has no earlier time than the other column, and all of its flags."""
    found = np.zeros(columns.size, dtype=bool)
    left = np.arange(columns.size)
    for row in rows:
        fits = row[columns] >= row[other_columns]
        left, columns, other_columns = left[fits], columns[fits], other_columns[fits]
        if not left.size:
            return found
    found[left[flags[other_columns] & ~flags[columns] == 0]] = True
    return found
