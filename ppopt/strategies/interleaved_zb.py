"""Interleaved zero bubble, in the order of PyTorch."""

from __future__ import annotations

from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.orders import Orders
from ppopt.strategies.base import Options, alternating, register
from ppopt.strategies.interleaved import pytorch_group_size, sequence


@register(
    name="interleaved-zb",
    summary="interleaved 1F1B with split backward, W as in ZB-H1",
    source="PyTorch 2.13, `ScheduleInterleavedZeroBubble`, after Zero Bubble, arXiv 2401.10241",
    placement="interleaved",
    chunks=None,
    pytorch_name="InterleavedZeroBubble",
)
def build(pipeline: Pipeline, _: Options) -> Orders:
    """Device i: (v - 1)g + p - 1 - i F; then F, B and W in turn; then B and W; then the W left.

    F and B run in the groups of interleaved 1F1B, in r = max(1, m // p) groups of g = m / r
    microbatches. W follow in the order of B, the first one i steps after the first B
    (`ScheduleInterleavedZeroBubble` and `_get_1f1b_rank_ops`, torch 2.13,
    torch/distributed/pipelining/schedules.py). One chunk per device is ZB-H1. On equal stages with
    W <= min(F, B), p dividing m and no delay: bubble (p - 1)(F + B - W) / v. Memory:
    (v - 1)g + p chunks on every device, of m v at most. Raises NotApplicableError if r does not
    divide m.
    """
    devices, batches = pipeline.num_devices, pipeline.batches
    group = pytorch_group_size(pipeline).group_size or batches
    chunks = pipeline.num_stages // devices
    chunk, microbatch = sequence(batches, chunks, group)
    orders = []
    for device in range(devices):
        forward = pipeline.code(OpKind.F, chunk * devices + device, microbatch)
        mirrored = (chunks - 1 - chunk) * devices + device
        backward, weight = (
            pipeline.code(kind, mirrored, microbatch) for kind in (OpKind.B, OpKind.W)
        )
        warm_up = min((chunks - 1) * group + devices - 1 - device, len(forward))
        orders.append(alternating(forward, backward, warm_up, (weight, device)))
    return orders
