"""Looped breadth-first: all microbatches through one chunk before the next chunk."""

from __future__ import annotations

import numpy as np

from ppopt.errors import NotApplicableError
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.orders import Orders
from ppopt.strategies.base import Options, register, stream


def circular_rule(pipeline: Pipeline) -> Options:
    """The rule of MaxText's circular pipeline: the devices divide the microbatches.

    `num_pipeline_microbatches` is a multiple of the stages there. Raises NotApplicableError if it
    is not. (Its backward reverses the microbatches, too, with the same times and memory.)
    """
    if pipeline.batches % pipeline.num_devices:
        raise NotApplicableError(
            f"batches: MaxText's circular pipeline needs a multiple of {pipeline.num_devices} "
            f"devices, and got {pipeline.batches}; looped-bfs runs"
        )
    return Options()


@register(
    name="looped-bfs",
    summary="all microbatches through one chunk before the next, forwards before backwards",
    source="Breadth-First Pipeline Parallelism, arXiv 2211.05953, section 4",
    placement="interleaved",
    chunks=None,
    fused=True,
    pytorch_name="LoopedBFS",
    alias="circular",
    alias_options=circular_rule,
)
def build(pipeline: Pipeline, _: Options) -> Orders:
    """Every device: F of all microbatches on its first chunk, then on its second, and so on.

    Then BW in the same way, from its last chunk to its first. On equal stages without link delay
    and m >= p: bubble (p - 1)(F + BW) / v, and m activations on every device (Breadth-First
    Pipeline Parallelism, arXiv 2211.05953, section 4).
    """
    return [
        np.concatenate(
            [stream(pipeline, OpKind.F, stage) for stage in hosted]
            + [stream(pipeline, OpKind.BW, stage) for stage in reversed(hosted)]
        )
        for hosted in pipeline.hosted[0]
    ]
