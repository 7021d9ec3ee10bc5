"""Hanayo: waves down and up the devices, whole backwards."""

from __future__ import annotations

from collections.abc import Iterator

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.list_scheduling import (
    ListSchedule,
    ListScheduler,
    PriorityRule,
    RuleStyle,
)
from ppopt.schedule.orders import Orders
from ppopt.strategies.base import Options, register

WAVES = 2
SAMPLE = 4
"""Microbatches per device on which rules are compared."""


def chunks(options: Options) -> int:
    """Two chunks per wave: one on the way down, one on the way up."""
    return 2 * (WAVES if options.waves is None else options.waves)


@register(
    name="hanayo",
    summary="waves down and up the devices, 1F1B-like, whole backwards (--waves)",
    source="Hanayo, arXiv 2308.15762, section 3",
    placement="v",
    chunks=chunks,
    fused=True,
    option_names=("waves",),
    defaults=lambda _: Options(waves=WAVES),
)
def build(pipeline: Pipeline, _: Options) -> Orders:
    """The shortest list schedule for equal stages, BW = 2 F, within p activations per device.

    Hanayo (arXiv 2308.15762, section 3) forms its order by such a simulation: backwards before
    forwards, and of several forwards the one farthest on its way; a device waits for none. Rules
    that the paper leaves open are tried: how many microbatches go between F and B of a stage, and
    whether a forward may go first. On equal stages without link delay one wave of m = p idles
    4 (p - 1) F of a chunk.
    """
    sample = _equal(pipeline, min(pipeline.batches, SAMPLE * pipeline.num_devices))
    built = [
        (policy, ListScheduler(Instance(sample, BackwardKind.WHOLE)).build(policy))
        for policy in _policies(sample)
    ]
    policy, schedule = min(((p, b) for p, b in built if b), key=lambda pair: pair[1].makespan)
    if sample.batches < pipeline.batches:
        longer = ListScheduler(
            Instance(_equal(pipeline, pipeline.batches), BackwardKind.WHOLE)
        ).build(policy)
        schedule = longer or _surely(pipeline)
    return schedule.arrays()


def _equal(pipeline: Pipeline, batches: int) -> Pipeline:
    """The pipeline of equal stages for which the order is built, with memory for p activations."""
    return Pipeline(
        stages=pipeline.num_devices,
        batches=batches,
        placement="v",
        chunks=pipeline.num_stages // pipeline.num_devices,
        mem_limit=pipeline.num_devices,
    )


def _surely(pipeline: Pipeline) -> ListSchedule:
    """The schedule of a rule that no memory limit blocks: at most p microbatches at a stage."""
    whole = _equal(pipeline, pipeline.batches)
    built = ListScheduler(Instance(whole.unlimited, BackwardKind.WHOLE)).build(
        next(_policies(whole))
    )
    assert built is not None, "without a limit nothing waits in a circle"
    return built


def _policies(pipeline: Pipeline) -> Iterator[PriorityRule]:
    devices = pipeline.num_devices
    for cap in dict.fromkeys((devices, devices + 1, 3 * devices // 2, 2 * devices)):
        for forward_first in (False, True):
            yield PriorityRule.of([cap] * pipeline.num_stages, RuleStyle(forward_first))
