"""Priority rules of list scheduling that give good schedules on most pipelines.

There are three families of rules, which differ in their caps. The first has caps by the round trip
until the first backward: with forwards first they give the best schedule most often. Caps of the
second divide the memory of a device among its chunks. Those of the third fall along the stages, as
in 1F1B.
`ppopt.solver.parameters.PriorityRuleParams` holds the styles of each family.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, product

from ppopt.problem.instance import Instance
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.list_scheduling import PriorityRule, uniform_rule
from ppopt.solver.parameters import PriorityRuleParams
from ppopt.solver.relaxation.delays import Delays


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
    """Reset ineffective fields of a rule: those on W without W, on memory without limits."""
    devices = len(rule.reserve)
    none, never = (0,) * devices, (False,) * devices
    if instance.fused:
        return rule._replace(patience=none, reserve=none, prompt=never, memory_first=never)
    limited = instance.headroom(0) is not None
    return rule if limited else rule._replace(memory_first=never)


def _families(instance: Instance, params: PriorityRuleParams) -> Iterator[PriorityRule]:
    pipeline = instance.pipeline
    yield from _round_trip_caps(Delays(instance), params)
    if pipeline.num_chunks > 1 and pipeline.routes == 1 and instance.headroom(0) is not None:
        yield from _shared_memory_caps(instance, params)
    yield from _falling_caps(pipeline, params)


def _round_trip_caps(delays: Delays, params: PriorityRuleParams) -> Iterator[PriorityRule]:
    """Caps by the number of microbatches that arrive until the first backward.

    The rate of arrival is that of the slowest forward up to the stage, or that of all forwards of
    the slowest device up to it.
    """
    pipeline, forward = delays.instance.pipeline, delays.forward
    work = [sum(forward[stage] for stage in stages) for stages in pipeline.hosted[0]]
    trips = [time + delays.round_trip(stage) for stage, time in enumerate(forward)]
    stages = accumulate(forward, max)
    devices = accumulate((work[host] for host in delays.host), max)
    fewest = [trip // slowest for trip, slowest in zip(trips, stages, strict=True)]
    others = [trip // slowest + 1 for trip, slowest in zip(trips, devices, strict=True)]
    for style, caps in product(params.round_trip_styles, (fewest, others)):
        yield uniform_rule(pipeline, caps, style)


def _falling_caps(pipeline: Pipeline, params: PriorityRuleParams) -> Iterator[PriorityRule]:
    """Caps that fall along the stages: those of 1F1B and larger ones."""
    devices = pipeline.num_devices
    for extra in dict.fromkeys((0, 1, devices - 1, pipeline.batches)):
        caps = [devices - host + extra for host in pipeline.hosts[0]]
        for style in params.falling_styles:
            yield uniform_rule(pipeline, caps, style)


def _shared_memory_caps(instance: Instance, params: PriorityRuleParams) -> Iterator[PriorityRule]:
    """Caps that divide the memory of a device among its chunks, with most for the first chunk.

    A forward of the first chunk wastes memory if its successors find no room.
    """
    pipeline = instance.pipeline
    devices, chunks = pipeline.num_devices, pipeline.num_chunks
    rooms = [_activations_that_fit(instance, device) for device in range(devices)]
    most = min(max(rooms), pipeline.batches * chunks)
    place = [pipeline.hosted[0][host].index(stage) for stage, host in enumerate(pipeline.hosts[0])]
    for first in _spread(-(-most // chunks), most, params.max_share_steps):
        for total in (most, most + 1):
            last = max(1, 2 * total // chunks - first)
            caps = [first + (last - first) * chunk // (chunks - 1) for chunk in place]
            shares = [
                cap * rooms[host] // max(rooms)
                for cap, host in zip(caps, pipeline.hosts[0], strict=True)
            ]
            for style in params.shared_memory_styles:
                yield uniform_rule(pipeline, shares, style)


def _activations_that_fit(instance: Instance, device: int) -> int:
    """Activations of a stage that fit on a device, on average; at least 1."""
    forwards = [
        amount
        for number in instance.hosted[device]
        if instance.classes[number].kind is OpKind.F
        for amount in instance.allocated(number)
    ]
    room, total, everything = instance.headroom(device), sum(forwards), len(forwards)
    assert room is not None
    return max(1, min(room * everything // total, everything) if total else everything)


def _spread(low: int, high: int, most_steps: int) -> list[int]:
    """Whole numbers from low to high, inclusive, in at most `most_steps` even steps."""
    steps = min(high - low, most_steps)
    return sorted({low + (high - low) * step // max(1, steps) for step in range(steps + 1)})
