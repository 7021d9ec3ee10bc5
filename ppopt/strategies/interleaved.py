"""Interleaved 1F1B, in the order of Megatron-LM."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ppopt.errors import InputError
from ppopt.op import OpKind
from ppopt.pipeline import Pipeline
from ppopt.precedence import Orders
from ppopt.schedule import Ints
from ppopt.strategies.base import Options, Strategy, in_steps, register


def build(pipeline: Pipeline, options: Options) -> Orders:
    """Device i: 2(p - 1 - i) + (v - 1)g F; then F, BW in turn; then the BW left.

    Microbatches go in groups of g: a group runs all its microbatches on chunk 0, then on chunk 1,
    and so on; backwards in the same pattern with the chunks reversed (Megatron-LM, arXiv
    2104.04473, section 2.2.2; `--microbatch-group-size-per-virtual-pipeline-stage`). On equal
    stages with p dividing m: bubble (p - 1)(F + BW) / v, memory (v - 1)p + 2(p - i - 1) + 1 chunks
    on device i. Raises InputError where the group size would deadlock.
    """
    orders = []
    for forward, backward, warm_up in streams(pipeline, options):
        steady = in_steps((forward[warm_up:], 0), (backward, 0))
        orders.append(np.concatenate([forward[:warm_up], steady]))
    return orders


def streams(pipeline: Pipeline, options: Options) -> Iterator[tuple[Ints, Ints, int]]:
    """Forwards, backwards, each in order, and the number of warm-up forwards, device by device."""
    devices, batches = pipeline.num_devices, pipeline.batches
    group = devices if options.group_size is None else options.group_size
    _check(group, devices, batches)
    chunks = pipeline.num_stages // devices
    chunk, microbatch = _sequence(batches, chunks, group)
    for device in range(devices):
        forward = pipeline.code(OpKind.F, chunk * devices + device, microbatch)
        mirrored = (chunks - 1 - chunk) * devices + device
        backward = pipeline.code(OpKind.BW, mirrored, microbatch)
        warm_up = min(2 * (devices - 1 - device) + (chunks - 1) * group, len(forward))
        yield forward, backward, warm_up


def _check(group: int, devices: int, batches: int) -> None:
    if group < 1:
        raise InputError(f"group_size: {group} is below 1")
    rest = batches % group
    if batches > group and (group < devices or 0 < rest < devices):
        raise InputError(
            f"group_size: {group} deadlocks on {devices} devices with {batches} batches: it must "
            f"be at least the devices and leave no remainder of batches, or one of {devices} or "
            f"more; --group-size {batches} always works"
        )


def _sequence(batches: int, chunks: int, group: int) -> tuple[Ints, Ints]:
    """Chunk and microbatch of every virtual microbatch, in forward order."""
    grid = np.arange(batches)
    starts = np.arange(0, batches, group)
    members = [grid[start : start + group] for start in starts]
    chunk = np.concatenate([np.repeat(np.arange(chunks), len(part)) for part in members])
    return chunk, np.concatenate([np.tile(part, chunks) for part in members])


register(
    Strategy(
        name="interleaved",
        summary="1F1B over several chunks per device, Megatron order (--group-size)",
        source="Megatron-LM, arXiv 2104.04473, section 2.2.2",
        build=build,
        placement="interleaved",
        chunks=None,
        fused=True,
        takes=("group_size",),
    )
)
