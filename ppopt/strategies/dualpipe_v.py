"""DualPipe-V: DualPipe cut in half, on one copy of the model in V placement."""

from __future__ import annotations

import numpy as np

from ppopt.errors import NotApplicableError
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.orders import Orders
from ppopt.strategies.base import Options, register
from ppopt.strategies.eight_steps import Phase, order


@register(
    name="dualpipe-v",
    summary="DualPipe cut in half: one copy of the model in V placement (--overlap-times)",
    source="github.com/deepseek-ai/DualPipe (dualpipev.py), after arXiv 2412.19437",
    placement="v",
    chunks=2,
    pytorch_name="DualPipeV",
)
def build(pipeline: Pipeline, _: Options) -> Orders:
    """The eight steps of DualPipe; phase 0 is a device's stage on the way down, phase 1 the other.

    DualPipe on 2p devices does the same on both halves; one of them does for a V of p devices.
    With F = B, W and O the times of a chunk, equal stages and no delay, the largest idle time of a
    device is (p - 1)(O + BW - 3 W); no device holds more than 2p + 1 chunks. Raises
    NotApplicableError if there are fewer than 2p microbatches.
    """
    devices = pipeline.num_devices
    if pipeline.batches < 2 * devices:
        raise NotApplicableError(
            f"batches: {pipeline.batches} do not fill strategy dualpipe-v on {devices} devices; "
            f"give at least {2 * devices}"
        )
    microbatch = np.arange(pipeline.batches)
    return [
        order(
            pipeline,
            (Phase(device, microbatch), Phase(2 * devices - 1 - device, microbatch)),
            device,
            devices,
        )
        for device in range(devices)
    ]
