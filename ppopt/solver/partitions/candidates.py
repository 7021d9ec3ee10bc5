"""Partitions worth trying first, and those next to one."""

from __future__ import annotations

from collections.abc import Iterator

from ppopt.solver.partitions.cut_program import Counts

def one_layer_moves(counts: Counts) -> Iterator[Counts]:
    """Partitions that move one layer over one cut."""
    for stage in range(len(counts) - 1):
        for here, there in ((stage, stage + 1), (stage + 1, stage)):
            if counts[here] > 1:
                moved = list(counts)
                moved[here] -= 1
                moved[there] += 1
                yield tuple(moved)
