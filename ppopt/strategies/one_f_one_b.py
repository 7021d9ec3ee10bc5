"""1F1B: after a warm-up, one forward and one backward in turn, or both run as one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.orders import Orders
from ppopt.strategies.base import (
    Options,
    alternating,
    at_least_stages,
    by_stage,
    overlapping,
    register,
    stream,
)


@register(
    name="1f1b",
    summary="one forward, one backward in turn; p - i activations on device i",
    source="PipeDream-Flush, arXiv 2006.09503; Megatron-LM, arXiv 2104.04473, section 2.2.1",
    fused=True,
    pytorch_name="1F1B",
    pytorch_options=at_least_stages,
)
def build(pipeline: Pipeline, _: Options) -> Orders:
    """Stage i: min(m, p - 1 - i) F; then F, BW in turn; then the BW left.

    Makespan (m + p - 1)(F + BW) on equal stages without link delay; memory min(m, p - i)
    activations (Megatron-LM, arXiv 2104.04473, section 2.2.1).
    """
    return within(pipeline, [pipeline.num_stages] * pipeline.num_stages)


def within(pipeline: Pipeline, activations: Sequence[int]) -> Orders:
    """1F1B with at most this many activations per stage, at least 1.

    All stages have the same share of their activations of 1F1B. Then few neighbours have equal
    warm-ups, which wait for each other.
    """
    usual = np.arange(pipeline.num_stages, 0, -1)
    scaled = -(-np.outer(usual, activations) // usual)
    live = np.minimum(usual, scaled.min(axis=1)).tolist()

    def order(stage: int) -> Ints:
        warm_up = min(pipeline.batches, live[stage] - 1)
        forward = stream(pipeline, OpKind.F, stage)
        backward = stream(pipeline, OpKind.BW, stage)
        return alternating(forward, backward, warm_up)

    return by_stage(pipeline, order)


@register(
    name="1f1b-overlap",
    summary="1F1B with each steady F and BW run as one (--overlap-times)",
    source="pairs after DeepSeek-V3, arXiv 2412.19437, section 3.2.1, in the order of 1F1B",
    fused=True,
)
def build_overlapped(pipeline: Pipeline, _: Options) -> Orders:
    """Stage i: min(m, 2(p - 1 - i) + 1) F; then the next F and BW as one; then the BW left.

    The two of a pair need nothing of each other, so a microbatch's BW comes one step later than in
    1F1B at every stage it passes: the warm-up is twice as deep, and one more. With O the time of a
    pair, equal stages and no delay, m >= 2p - 1: makespan p(F + BW) + (m - 1) O, since the last
    device never waits after its first F. Memory min(m, 2(p - i)) activations.
    """

    def order(stage: int) -> Ints:
        warm_up = min(pipeline.batches, 2 * (pipeline.num_stages - 1 - stage) + 1)
        forward = stream(pipeline, OpKind.F, stage)
        backward = stream(pipeline, OpKind.BW, stage)
        return overlapping(forward, backward, warm_up)

    return by_stage(pipeline, order)
