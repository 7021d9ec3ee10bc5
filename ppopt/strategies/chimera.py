"""Chimera: two pipelines of 1F1B in opposite directions, merged."""

from __future__ import annotations

import numpy as np

from ppopt.errors import NotApplicableError
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.orders import Orders
from ppopt.strategies.base import Options, register


@register(
    name="chimera",
    summary="two 1F1B pipelines in opposite directions, merged; two copies of the model",
    source="Chimera, arXiv 2107.06925, sections 3.1 and 3.5",
    routes=2,
    fused=True,
)
def build(pipeline: Pipeline, _: Options) -> Orders:
    """Every device: its operations by the slot they have where F and BW take one slot each.

    Units of p/2 microbatches on either route (Chimera, arXiv 2107.06925, sections 3.1 and 3.5,
    direct concatenation). Within a unit the r-th one runs F of stage s in slot s + 2r and BW in
    slot 2p - 1 - s + 2r. Each unit begins 2p slots after the one before, its forwards in the gaps
    that the other leaves. Slots of the two routes have unlike parity on a device, so none is taken
    twice. For p dividing m, equal stages and no delay: makespan (2m + p - 2) F where BW = F, and p
    F + (2p - 2) BW where m = p; at m >= p a device holds between p/2 + 1 and p activations (table
    2), and static memory twice. Raises NotApplicableError if the number of devices is odd.
    """
    devices, share = pipeline.num_devices, pipeline.batches // 2
    if devices % 2:
        raise NotApplicableError(
            f"stages: {devices} devices are odd; strategy chimera needs an even number, so that "
            "the slots of its two routes do not meet"
        )
    unit, index = np.divmod(np.arange(share), devices // 2)
    first = 2 * devices * unit + 2 * index
    orders = []
    for device in range(devices):
        slots, codes = [], []
        for route, stage in enumerate((device, devices - 1 - device)):
            microbatch = route * share + np.arange(share)
            slots += [first + stage, first + 2 * devices - 1 - stage]
            codes += [pipeline.code(kind, stage, microbatch) for kind in (OpKind.F, OpKind.BW)]
        orders.append(np.concatenate(codes)[np.argsort(np.concatenate(slots))])
    return orders
