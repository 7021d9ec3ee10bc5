"""Interleaved 1F1B whose steady F and BW run as one."""

from __future__ import annotations

from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.orders import Orders
from ppopt.strategies.base import Options, overlapping, register
from ppopt.strategies.interleaved import defaults, streams


@register(
    name="interleaved-overlap",
    summary="interleaved 1F1B with each steady F and BW run as one (--overlap-times)",
    source="Megatron-LM's combined 1F1B, in the order of arXiv 2104.04473, section 2.2.2",
    placement="interleaved",
    chunks=None,
    fused=True,
    takes=("group_size",),
    defaults=defaults,
)
def build(pipeline: Pipeline, options: Options) -> Orders:
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
