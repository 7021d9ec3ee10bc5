"""ZB-H1, ZB-H2 and ZB-1P: zero-bubble schedules by fixed rules."""

from __future__ import annotations

from functools import partial

from ppopt.problem.arrays import Ints
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.orders import Orders
from ppopt.strategies.base import Options, alternating, by_stage, register, stream


def build(depth: int, pipeline: Pipeline, _: Options) -> Orders:
    """Stage i: h(p - 1 - i) F; then steps of the next F, B and W; then the W left (h = `depth`).

    Step k runs B(k) and, once k >= h i, W(k - h i). Idle time of a device on equal stages with
    2c <= W <= min(F, B) (arXiv 2401.10241, table 2, at c = 0): H1 (p - 1)(F + B - W) + 4(p - 1)c
    for m >= p + 1; H2, on device span, (p - 1)(F + B - 2W) + 2(p - 1)c for m >= 2p - 1.
    """

    def order(stage: int) -> Ints:
        warm_up = min(pipeline.batches, depth * (pipeline.num_stages - 1 - stage))
        return _order(pipeline, stage, warm_up, depth * stage)

    return by_stage(pipeline, order)


def _order(pipeline: Pipeline, stage: int, warm_up: int, first_weight: int) -> Ints:
    """Warm-up F, then F, B and W in turn; W begin at a step."""
    forward, backward, weight = (
        stream(pipeline, kind, stage) for kind in (OpKind.F, OpKind.B, OpKind.W)
    )
    return alternating(forward, backward, warm_up, (weight, first_weight))


for _depth, _memory in ((1, "the memory of 1F1B"), (2, "2p - 1 activations")):
    register(
        name=f"zb-h{_depth}",
        summary=f"handcrafted zero bubble H{_depth}, within {_memory}",
        source=f"Zero Bubble, arXiv 2401.10241, section 2.{_depth}, figure {_depth + 1}",
    )(partial(build, _depth))


@register(
    name="zb-1p",
    summary="split backward, W as soon as p activations would be exceeded",
    source="fixed-rule form of ZB-1p, Zero Bubble, arXiv 2401.10241, section 4.2",
)
def build_1p(pipeline: Pipeline, _: Options) -> Orders:
    """Stage i: min(m, p - 1 - i) F; steady F, B and W; cool-down B, W in turn; then the W left.

    Steady W come once p - 1 forwards are ahead of the weight passes. "Forwards ahead" does not
    count the forward of the step itself, so the first W comes at steady step p - 1 - warm-up and
    one follows in every step after. At most p activations on a device.
    """

    def order(stage: int) -> Ints:
        batches, last = pipeline.batches, pipeline.num_stages - 1
        warm_up = min(batches, last - stage)
        return _order(pipeline, stage, warm_up, min(last, batches) - warm_up)

    return by_stage(pipeline, order)
