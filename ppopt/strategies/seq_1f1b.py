"""Seq1F1B: 1F1B over slices of microbatches along the sequence."""

from __future__ import annotations

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.orders import Orders
from ppopt.strategies.base import Options, alternating, by_stage, register


@register(
    name="seq-1f1b",
    summary="1F1B over slices of microbatches along the sequence (--slices)",
    source="Seq1F1B, arXiv 2406.03488, section 3.2",
    slices=2,
    fused=True,
)
def build(pipeline: Pipeline, _: Options) -> Orders:
    """Stage i: min(m k, p - 1 - i + k - 1) F; then F, BW in turn; then the BW left, k slices each.

    Forwards go by microbatch and slice, backwards by microbatch and, within it, from the last slice
    to the first: causal attention needs the slices before it, its gradient those after it (Seq1F1B,
    arXiv 2406.03488, section 3.2). The paper's slices differ in length so that all take the same
    time; here they are equal. With F and BW the times of a slice, equal stages and no delay:
    makespan (m k + p - 1)(F + BW); memory min(m k, p - 1 - i + k) slices, of 1/k activation each.
    """
    batches, slices = pipeline.batches, pipeline.num_slices
    microbatch = np.repeat(np.arange(batches), slices)
    slice_index = np.tile(np.arange(slices), batches)

    def order(stage: int) -> Ints:
        forward = pipeline.code(OpKind.F, stage, microbatch, slice_index)
        backward = pipeline.code(OpKind.BW, stage, microbatch, slices - 1 - slice_index)
        warm_up = min(len(forward), pipeline.num_stages - 1 - stage + slices - 1)
        return alternating(forward, backward, warm_up)

    return by_stage(pipeline, order)
