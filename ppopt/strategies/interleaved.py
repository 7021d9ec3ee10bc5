"""Interleaved 1F1B, in the order of Megatron-LM, also with steady F and BW run as one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from ppopt.errors import NotApplicableError
from ppopt.problem.arrays import Ints
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.orders import Orders
from ppopt.strategies.base import Options, alternating, overlapping, register


def defaults(pipeline: Pipeline) -> Options:
    """The smallest valid group size."""
    return Options(group_size=min_group_size(pipeline.num_devices, pipeline.batches))


def pytorch_group_size(pipeline: Pipeline) -> Options:
    """Microbatches per round in PyTorch: m / r, of r = max(1, m // p) rounds.

    `ScheduleInterleaved1F1B` and `ScheduleInterleavedZeroBubble` (torch 2.13, torch/distributed/
    pipelining/schedules.py). Raises NotApplicableError if r does not divide m.
    """
    devices, batches = pipeline.num_devices, pipeline.batches
    rounds = max(1, batches // devices)
    group, rest = divmod(batches, rounds)
    if rest:
        raise NotApplicableError(
            f"batches: {batches} do not divide into the {rounds} rounds that PyTorch's interleaved "
            f"schedules have on {devices} devices; a multiple of {devices} works"
        )
    return Options(group_size=group)


@register(
    name="interleaved",
    summary="1F1B over several chunks per device, Megatron order (--group-size)",
    source="Megatron-LM, arXiv 2104.04473, section 2.2.2",
    placement="interleaved",
    chunks=None,
    fused=True,
    option_names=("group_size",),
    defaults=defaults,
    pytorch_name="Interleaved1F1B",
    pytorch_options=pytorch_group_size,
)
def build(pipeline: Pipeline, options: Options) -> Orders:
    """Device i: 2(p - 1 - i) + (v - 1)g F; then F, BW in turn; then the BW left.

    Microbatches go in groups of g: a group runs all its microbatches on chunk 0, then on chunk 1,
    and so on; backwards in the same pattern with the chunks reversed (Megatron-LM, arXiv
    2104.04473, section 2.2.2; `--microbatch-group-size-per-virtual-pipeline-stage`). On equal
    stages with p dividing m: bubble (p - 1)(F + BW) / v, memory (v - 1)p + 2(p - i - 1) + 1 chunks
    on device i. The default group size is `min_group_size`. Raises NotApplicableError if it would
    deadlock.
    """
    return [alternating(*stream) for stream in streams(pipeline, options)]


@register(
    name="interleaved-overlap",
    summary="interleaved 1F1B with each steady F and BW run as one (--overlap-times)",
    source="Megatron-LM's combined 1F1B, in the order of arXiv 2104.04473, section 2.2.2",
    placement="interleaved",
    chunks=None,
    fused=True,
    option_names=("group_size",),
    defaults=defaults,
)
def build_overlapped(pipeline: Pipeline, options: Options) -> Orders:
    """Interleaved 1F1B with one more F of warm-up; then the next F and BW as one; then the BW left.

    Megatron-LM hides the exchanges of a mixture of experts so: one more warm-up F on every device
    makes the two of a pair independent (megatron/core/pipeline_parallel/schedules.py and
    combined_1f1b.py). With O the time of a pair of chunks, F and BW those of a chunk, equal stages,
    no delay, p dividing m, w = (v - 1) p + 1: makespan (p - 1 + w)(F + BW) + (m v - w) O, since
    the last device never waits after its first F. The default group size is that of
    `interleaved`; raises NotApplicableError if it would deadlock.
    """
    return [
        overlapping(forward, backward, min(warm_up + 1, len(forward)))
        for forward, backward, warm_up in streams(pipeline, options)
    ]


def streams(pipeline: Pipeline, options: Options) -> Iterator[tuple[Ints, Ints, int]]:
    """Forwards, backwards, each in order, and the number of warm-up forwards, device by device."""
    devices, batches = pipeline.num_devices, pipeline.batches
    group_size = options.group_size
    group = min_group_size(devices, batches) if group_size is None else group_size
    if not _works(group, devices, batches):
        min_size = min_group_size(devices, batches)
        raise NotApplicableError(
            f"group_size: {group} deadlocks on {devices} devices with {batches} batches: it must "
            f"be at least the devices and leave no remainder of batches, or one of {devices} or "
            f"more; the least that works is {min_size}, taken without --group-size"
        )
    chunks = pipeline.num_stages // devices
    chunk, microbatch = sequence(batches, chunks, group)
    for device in range(devices):
        forward = pipeline.code(OpKind.F, chunk * devices + device, microbatch)
        mirrored = (chunks - 1 - chunk) * devices + device
        backward = pipeline.code(OpKind.BW, mirrored, microbatch)
        warm_up = min(2 * (devices - 1 - device) + (chunks - 1) * group, len(forward))
        yield forward, backward, warm_up


def min_group_size(devices: int, batches: int) -> int:
    """Minimum number of microbatches per group, p or more, with which no device deadlocks.

    Megatron-LM's own default, p, if p divides m or m < p. Otherwise Megatron-LM refuses to run
    without a group size, by the rule that the last group must have p microbatches as well
    (`--microbatch-group-size-per-virtual-pipeline-stage`, megatron/core/model_parallel_config.py
    and pipeline_parallel/schedules.py). Every further microbatch costs v - 1 chunks of memory.
    """
    return next(group for group in count(devices) if _works(group, devices, batches))


def _works(group: int, devices: int, batches: int) -> bool:
    """Whether every group, the last one included, keeps all devices busy in turn."""
    rest = batches % group
    return batches <= group or (group >= devices and not 0 < rest < devices)


def sequence(batches: int, chunks: int, group: int) -> tuple[Ints, Ints]:
    """Chunk and microbatch of every virtual microbatch, in forward order."""
    grid = np.arange(batches)
    starts = np.arange(0, batches, group)
    members = [grid[start : start + group] for start in starts]
    chunk = np.concatenate(
        [np.repeat(np.arange(chunks), len(microbatches)) for microbatches in members]
    )
    return chunk, np.concatenate([np.tile(microbatches, chunks) for microbatches in members])
