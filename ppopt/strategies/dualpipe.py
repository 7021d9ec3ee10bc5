"""DualPipe: microbatches from both ends of the pipeline, forwards and backwards overlapped."""

from __future__ import annotations

import numpy as np

from ppopt.errors import NotApplicableError
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.orders import Orders
from ppopt.strategies.base import Options, register
from ppopt.strategies.eight_steps import Phase, order


@register(
    name="dualpipe",
    summary="both directions at once, F and BW run as one (--overlap-times); two copies",
    source="DeepSeek-V3, arXiv 2412.19437, section 3.2.1; github.com/deepseek-ai/DualPipe",
    routes=2,
)
def build(pipeline: Pipeline, _: Options) -> Orders:
    """The eight steps of DualPipe; phase 0 enters at a device's own half of the pipeline.

    With O the time of an F and a BW as one, equal stages and no delay, the largest idle time of a
    device is (p/2 - 1)(O + BW - 3 W) (DeepSeek-V3, arXiv 2412.19437, table 2): exactly so where
    F = B, less where B is longer. No device holds more than p + 1 activations, and static memory
    is there twice. Raises NotApplicableError unless the number of devices p is even
    and there are at least 2p microbatches.
    """
    devices, share = pipeline.num_devices, pipeline.batches // 2
    if devices % 2:
        raise NotApplicableError(
            f"stages: {devices} devices are odd; strategy dualpipe needs an even number, whose "
            "halves mirror each other"
        )
    if pipeline.batches < 2 * devices:
        raise NotApplicableError(
            f"batches: {pipeline.batches} do not fill strategy dualpipe on {devices} devices; "
            f"give at least {2 * devices}"
        )
    orders = []
    for device in range(devices):
        phases = [
            Phase(stage, route * share + np.arange(share))
            for route, stage in enumerate((device, devices - 1 - device))
        ]
        own, other = phases if device < devices // 2 else phases[::-1]
        rank = min(device, devices - 1 - device)
        orders.append(order(pipeline, (own, other), rank, devices // 2))
    return orders
