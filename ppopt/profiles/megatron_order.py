"""The order in which Megatron-LM's schedules run the passes of a rank, for records without names.

The k-th forward of a rank with one chunk is of microbatch k. Interleaved forwards go in groups of
as many microbatches per chunk as there are ranks, backwards from the last chunk to the first
(megatron/core/pipeline_parallel/schedules.py, get_model_chunk_id).
"""

from __future__ import annotations

from collections.abc import Sequence

from ppopt.errors import InputError


def megatron_order(
    ranks: int, chunks: int, batches: int, *, forward: bool
) -> Sequence[tuple[int, int]]:
    """Microbatch and chunk of the k-th forward, or backward, of a rank.

    Raises InputError if the order is unknown: several chunks, and batches that are no multiple of
    the ranks.
    """
    if chunks == 1:
        return [(index, 0) for index in range(batches)]
    if batches % ranks:
        raise InputError(
            f"{batches} microbatches are no multiple of {ranks} ranks: which chunk ran when is not "
            "recorded"
        )
    positions = []
    for index in range(batches * chunks):
        group, position = divmod(index, ranks * chunks)
        chunk, within_group = divmod(position, ranks)
        positions.append((group * ranks + within_group, chunk if forward else chunks - 1 - chunk))
    return positions
