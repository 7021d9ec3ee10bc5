"""Looped breadth-first: all microbatches through one chunk before the next chunk."""

from __future__ import annotations

import numpy as np

from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.orders import Orders
from ppopt.strategies.base import Options, register, stream


@register(
    name="looped-bfs",
    summary="all microbatches through one chunk before the next, forwards before backwards",
    source="Breadth-First Pipeline Parallelism, arXiv 2211.05953, section 4",
    placement="interleaved",
    chunks=None,
    fused=True,
    pytorch_name="LoopedBFS",
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
