"""Priority rules of list scheduling that produce good schedules on most pipelines.

There are three families of rules, which differ in their caps. The first has caps by the round trip
until the first backward: with forwards first, these rules are most often the best. Caps of the
second family divide the memory of a device among its chunks. Caps of the third family decrease
along the stages, as in 1F1B. `ppopt.solver.parameters.PriorityRuleParams` holds the styles of each
family.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, product

from ppopt.problem.instance import Instance
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.list_scheduling import PriorityRule, RuleStyle
from ppopt.solver.parameters import PriorityRuleParams
from ppopt.solver.relaxation.route_times import RouteTimes


def priority_rules(
    instance: Instance, params: PriorityRuleParams = PriorityRuleParams()
) -> Iterator[PriorityRule]:
    """Rules to try, each once, the best on most pipelines first."""
    met = set[PriorityRule]()
    for rule in _families(instance, params):
        effective = _without_idle_fields(rule, instance)
        if effective not in met:
            met.add(effective)
            yield effective


def _without_idle_fields(rule: PriorityRule, instance: Instance) -> PriorityRule:
    """Reset fields of a rule that have no effect: on W if there is no W, on memory if unlimited."""
    if instance.fused:
        return rule._replace(style=RuleStyle(rule.style.forward_first))
    if instance.headroom(0) is None:
        return rule._replace(style=rule.style._replace(memory_first=False))
    return rule


def _families(instance: Instance, params: PriorityRuleParams) -> Iterator[PriorityRule]:
    pipeline = instance.pipeline
    yield from _round_trip_caps(RouteTimes(instance), params)
    if pipeline.num_chunks > 1 and pipeline.routes == 1 and instance.headroom(0) is not None:
        yield from _shared_memory_caps(instance, params)
    yield from _falling_caps(pipeline, params)


def _round_trip_caps(times: RouteTimes, params: PriorityRuleParams) -> Iterator[PriorityRule]:
    """Caps by the number of microbatches that arrive until the first backward.

    The rate of arrival is that of the slowest forward up to the stage, or that of all forwards of
    the slowest device up to it.
    """
    pipeline, forward = times.instance.pipeline, times.forward
    work = [sum(forward[stage] for stage in stages) for stages in pipeline.hosted[0]]
    trips = [time + times.round_trip(stage) for stage, time in enumerate(forward)]
    stages = accumulate(forward, max)
    devices = accumulate((work[host] for host in times.host), max)
    caps_by_stage = [trip // slowest for trip, slowest in zip(trips, stages, strict=True)]
    caps_by_device = [trip // slowest + 1 for trip, slowest in zip(trips, devices, strict=True)]
    for style, caps in product(params.round_trip_styles, (caps_by_stage, caps_by_device)):
        yield PriorityRule.of(caps, style)


def _falling_caps(pipeline: Pipeline, params: PriorityRuleParams) -> Iterator[PriorityRule]:
    """Caps that fall along the stages: those of 1F1B and larger ones."""
    devices = pipeline.num_devices
    for extra in dict.fromkeys((0, 1, devices - 1, pipeline.batches)):
        caps = [devices - host + extra for host in pipeline.hosts[0]]
        for style in params.falling_styles:
            yield PriorityRule.of(caps, style)


def _shared_memory_caps(instance: Instance, params: PriorityRuleParams) -> Iterator[PriorityRule]:
    """Caps that divide the memory of a device among its chunks, the largest for the first chunk.

    A forward of the first chunk wastes memory if its successors do not fit.
    """
    pipeline = instance.pipeline
    devices, chunks = pipeline.num_devices, pipeline.num_chunks
    activations = [_activations_that_fit(instance, device) for device in range(devices)]
    max_activations = min(max(activations), pipeline.batches * chunks)
    chunk_of_stage = [
        pipeline.hosted[0][host].index(stage) for stage, host in enumerate(pipeline.hosts[0])
    ]
    for first in _spread(-(-max_activations // chunks), max_activations, params.max_share_steps):
        for total in (max_activations, max_activations + 1):
            last = max(1, 2 * total // chunks - first)
            caps = [first + (last - first) * chunk // (chunks - 1) for chunk in chunk_of_stage]
            shares = [
                cap * activations[host] // max(activations)
                for cap, host in zip(caps, pipeline.hosts[0], strict=True)
            ]
            for style in params.shared_memory_styles:
                yield PriorityRule.of(shares, style)


def _activations_that_fit(instance: Instance, device: int) -> int:
    """Activations of a stage that fit on a device, on average; at least 1."""
    forwards = [
        amount
        for class_id in instance.hosted[device]
        if instance.classes[class_id].kind is OpKind.F
        for amount in instance.allocated(class_id)
    ]
    headroom, total, everything = instance.headroom(device), sum(forwards), len(forwards)
    assert headroom is not None
    return max(1, min(headroom * everything // total, everything) if total else everything)


def _spread(low: int, high: int, max_steps: int) -> list[int]:
    """Whole numbers from low to high, inclusive, in at most `max_steps` even steps."""
    steps = min(high - low, max_steps)
    return sorted({low + (high - low) * step // max(1, steps) for step in range(steps + 1)})
