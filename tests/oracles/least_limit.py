"""The least memory limit under which a device can run at all, in closed form.

DESIGN section 7 gives static + max over hosted stages k of (activations of the hosted stages up
to k + max(0, memory_b[k])): one microbatch at a time, every W at once. With the fused backward
nothing grows after the last F, so it is static + all hosted activations. Both are exact as long
as no B of length 0 takes memory; such a B may fall into the same instant as what gives memory
back (its own W of length 0, or operations of length 0 below it), and ends come before starts.
"""

from __future__ import annotations

from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline


def least_limit(pipeline: Pipeline, device: int, fused: bool) -> int:
    """Least limit of a device, in ticks of memory, whatever the other devices' limits allow."""
    needs = []
    for route, hosted in enumerate(pipeline.hosted):
        stages = hosted[device]
        needs.append(sum(pipeline.ticks.costs.activation[stage] for stage in stages))
        if not fused:
            needs.append(_backward_peak(pipeline, route, stages))
    return pipeline.ticks.static[device] + max(needs)


def design_limit(pipeline: Pipeline, device: int) -> int:
    """The formula of DESIGN section 7, for the split backward: never below `least_limit`."""
    ticks = pipeline.ticks
    needs = []
    for hosted in pipeline.hosted:
        held = 0
        for stage in hosted[device]:
            held += ticks.costs.activation[stage]
            needs.append(held + max(ticks.costs.memory_b[stage], 0))
    return ticks.static[device] + max(needs)


def _backward_peak(pipeline: Pipeline, route: int, stages: tuple[int, ...]) -> int:
    """Least peak of one microbatch's split backward: the best way to cut the device's stages,
    last to first, into groups whose B share an instant."""
    if not stages:
        return 0
    peaks = []
    for low in reversed(range(len(stages))):
        if low < len(stages) - 1 and not _instant(pipeline, route, stages[low], stages[low + 1]):
            break
        group = sum(_at_backward(pipeline, stage) for stage in stages[low:])
        below = sum(pipeline.ticks.costs.activation[stage] for stage in stages[:low])
        peaks.append(max(below + group, _backward_peak(pipeline, route, stages[:low])))
    return min(peaks)


def _instant(pipeline: Pipeline, route: int, low: int, high: int) -> bool:
    """Whether B of `low` can end at the instant at which B of `high` starts."""
    times, lags = pipeline.ticks.durations[OpKind.B], pipeline.ticks.up[route]
    return not any(times[low : high + 1]) and not any(lags[low:high])


def _at_backward(pipeline: Pipeline, stage: int) -> int:
    """Memory of a stage from the instant at which its B starts."""
    ticks = pipeline.ticks
    taken, at_b = ticks.costs.activation[stage], ticks.costs.memory_b[stage]
    if ticks.durations[OpKind.B][stage]:
        return taken + max(at_b, 0)
    return taken + at_b if ticks.durations[OpKind.W][stage] else 0
