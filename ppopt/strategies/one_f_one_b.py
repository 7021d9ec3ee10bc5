"""1F1B: after a warm-up, one forward and one backward in turn."""

from __future__ import annotations

from ppopt.problem.arrays import Ints
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.orders import Orders
from ppopt.strategies.base import Options, alternating, by_stage, register, stream


@register(
    name="1f1b",
    summary="one forward, one backward in turn; p - i activations on device i",
    source="PipeDream-Flush, arXiv 2006.09503; Megatron-LM, arXiv 2104.04473, section 2.2.1",
    fused=True,
    pytorch_name="1F1B",
)
def build(pipeline: Pipeline, _: Options) -> Orders:
    """Stage i: min(m, p - 1 - i) F; then F, BW in turn; then the BW left.

    Makespan (m + p - 1)(F + BW) on equal stages without link delay; memory min(m, p - i)
    activations (Megatron-LM, arXiv 2104.04473, section 2.2.1).
    """

    def order(stage: int) -> Ints:
        warm_up = min(pipeline.batches, pipeline.num_stages - 1 - stage)
        forward = stream(pipeline, OpKind.F, stage)
        backward = stream(pipeline, OpKind.BW, stage)
        return alternating(forward, backward, warm_up)

    return by_stage(pipeline, order)
