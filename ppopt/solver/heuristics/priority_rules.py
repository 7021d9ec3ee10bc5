"""The portfolio: policies of list scheduling that lead to good schedules on most pipelines.

Which ones was chosen by what they reach together on half of the smaller instances of the benchmark
suite, every policy of a wider choice measured on each: caps by the time until a first backward is
back, with forwards first wherever the cap allows one, lead to the best schedule most often.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, product

from ppopt.problem.instance import Instance
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.list_scheduling import Policy, Style, alike
from ppopt.solver.cp_sat.delays import Delays

MOST_SHARES = 16
"""Most ways, less one, to share out a device's room to its chunks."""
HASTY = Style(True, 50, room_first=True, prompt=True)
RETURNING = (
    HASTY,
    Style(True, 99, prompt=True),
    Style(True, 50),
    Style(False, 99),
    Style(True, 99, room_first=True, prompt=True),
)
FALLING = (Style(False, 99), HASTY, Style(False, 0))
SHARED = (
    Style(True, 0, room_first=True),
    Style(False, 50, prompt=True),
    Style(True, 50),
    Style(False, 0, room_first=True),
)


def policies(pipeline: Pipeline, *, fused: bool = False) -> Iterator[Policy]:
    """Policies worth trying, those first that are best on most pipelines; none twice."""
    met = set[Policy]()
    for policy in _everything(pipeline, fused=fused):
        bare = _bare(policy, fused=fused, limited=pipeline.ticks.limits is not None)
        if bare not in met:
            met.add(bare)
            yield bare


def _bare(policy: Policy, *, fused: bool, limited: bool) -> Policy:
    """The policy without what changes nothing: what is about W or about limits, where none are."""
    devices = len(policy.reserve)
    none, never = (0,) * devices, (False,) * devices
    if fused:
        return policy._replace(patience=none, reserve=none, prompt=never, room_first=never)
    return policy if limited else policy._replace(room_first=never)


def _everything(pipeline: Pipeline, *, fused: bool) -> Iterator[Policy]:
    yield from _returning(Delays(Instance.uniform(pipeline, fused=fused)))
    if pipeline.num_chunks > 1 and pipeline.routes == 1 and pipeline.ticks.limits is not None:
        yield from _shared_out(pipeline)
    yield from _falling(pipeline)


def _returning(delays: Delays) -> Iterator[Policy]:
    """Caps of as many microbatches as come until the first one is back.

    They come as often as the slowest forward on the way, or the forwards of the slowest device on
    it, lets them.
    """
    pipeline, forward = delays.instance.pipeline, delays.forward
    work = [sum(forward[stage] for stage in stages) for stages in pipeline.hosted[0]]
    trips = [time + delays.round_trip(stage) for stage, time in enumerate(forward)]
    stages = accumulate(forward, max)
    devices = accumulate((work[host] for host in delays.host), max)
    fewest = [trip // slowest for trip, slowest in zip(trips, stages, strict=True)]
    others = [trip // slowest + 1 for trip, slowest in zip(trips, devices, strict=True)]
    for style, caps in product(RETURNING, (fewest, others)):
        yield alike(pipeline, caps, style)


def _falling(pipeline: Pipeline) -> Iterator[Policy]:
    """Caps that fall along the chain: those of 1F1B and more."""
    devices = pipeline.num_devices
    for extra in dict.fromkeys((0, 1, devices - 1, pipeline.batches)):
        for style in FALLING:
            yield alike(pipeline, [devices - host + extra for host in pipeline.hosts[0]], style)


def _shared_out(pipeline: Pipeline) -> Iterator[Policy]:
    """Caps that share out the room of a device to its chunks, the first ones more than the last.

    A forward of a first chunk without room for what follows it is held for nothing.
    """
    devices, chunks = pipeline.num_devices, pipeline.num_chunks
    rooms = [_room(pipeline, device) for device in range(devices)]
    most = min(max(rooms), pipeline.batches * chunks)
    place = [pipeline.hosted[0][host].index(stage) for stage, host in enumerate(pipeline.hosts[0])]
    for first in _spread(-(-most // chunks), most):
        for total in (most, most + 1):
            last = max(1, 2 * total // chunks - first)
            caps = [first + (last - first) * chunk // (chunks - 1) for chunk in place]
            shares = [
                cap * rooms[host] // max(rooms)
                for cap, host in zip(caps, pipeline.hosts[0], strict=True)
            ]
            for style in SHARED:
                yield alike(pipeline, shares, style)


def _room(pipeline: Pipeline, device: int) -> int:
    """Activations of a stage that fit on a device, on average; at least 1."""
    ticks, mine = pipeline.ticks, pipeline.hosted[0][device]
    room, each = ticks.room(device), sum(ticks.activation[stage] for stage in mine)
    assert room is not None
    everything = pipeline.batches * len(mine)
    return max(1, min(room * len(mine) // each, everything) if each else everything)


def _spread(low: int, high: int) -> list[int]:
    """A few whole numbers from low to high, both included."""
    steps = min(high - low, MOST_SHARES)
    return sorted({low + (high - low) * step // max(1, steps) for step in range(steps + 1)})
