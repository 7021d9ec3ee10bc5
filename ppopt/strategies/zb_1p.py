"""ZB-1P as a fixed rule: split backward, weight passes from the p-th forward on."""

from __future__ import annotations

from ppopt.problem.arrays import Ints
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.orders import Orders
from ppopt.strategies.base import Options, alternating, by_stage, register, stream


@register(
    name="zb-1p",
    summary="split backward, W as soon as p activations would be exceeded",
    source="fixed-rule form of ZB-1p, Zero Bubble, arXiv 2401.10241, section 4.2",
)
def build(pipeline: Pipeline, _: Options) -> Orders:
    """Stage i: min(m, p - 1 - i) F; steady F, B and W; cool-down B, W in turn; then the W left.

    Steady W come once p - 1 forwards are ahead of the weight passes. "Forwards ahead" does not
    count the forward of the step itself, so the first W comes at steady step p - 1 - warm-up and
    one follows in every step after. At most p activations on a device.
    """

    def order(stage: int) -> Ints:
        batches, last = pipeline.batches, pipeline.num_stages - 1
        warm_up = min(batches, last - stage)
        forward, backward, weight = (
            stream(pipeline, kind, stage) for kind in (OpKind.F, OpKind.B, OpKind.W)
        )
        first_weight = min(last - warm_up, batches - warm_up)
        return alternating(forward, backward, warm_up, (weight, first_weight))

    return by_stage(pipeline, order)
