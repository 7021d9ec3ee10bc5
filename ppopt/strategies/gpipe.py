"""GPipe: every forward, then every backward."""

from __future__ import annotations

import numpy as np

from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.orders import Orders
from ppopt.strategies.base import Options, by_stage, register, stream


@register(
    name="gpipe",
    summary="all forwards, then all backwards",
    source="GPipe, arXiv 1811.06965, figure 2",
    fused=True,
    pytorch_name="GPipe",
)
def build(pipeline: Pipeline, _: Options) -> Orders:
    """Every device: F of all microbatches, then BW of all, both in microbatch order.

    Makespan (m + p - 1)(F + BW) on equal stages without link delay (arXiv 1811.06965, section 2.3:
    bubble (p - 1) / (m + p - 1)); memory min(m, m) = m activations.
    """
    return by_stage(
        pipeline,
        lambda stage: np.concatenate(
            [stream(pipeline, OpKind.F, stage), stream(pipeline, OpKind.BW, stage)]
        ),
    )
