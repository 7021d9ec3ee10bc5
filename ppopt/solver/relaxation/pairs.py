"""Overlapped pairs: which operations may run as one, and how much time that can save.

Only pairs that save time are considered. A pair that saves no time can be replaced by its backward
and then its F: both fit into the time of the pair, and no memory is live for longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from ppopt.problem.instance import Instance
from ppopt.problem.operation import OpKind
from ppopt.problem.traits import Trait


class Pair(NamedTuple):
    """Two operation numbers that may run as one."""

    forward: int
    backward: int
    time: int
    """Duration of the pair in ticks."""


def pair_count_bound(instance: Instance) -> int:
    """Upper bound on the number of pairs that `candidate_pairs` yields for all devices."""
    if Trait.PAIRS not in instance.traits:
        return 0
    pipeline = instance.pipeline
    pieces = pipeline.batches // pipeline.routes * pipeline.num_slices
    return sum(
        (pieces * sum(len(hosted[device]) for hosted in pipeline.hosted)) ** 2
        for device in range(pipeline.num_devices)
    )


def _gains(instance: Instance, device: int) -> dict[tuple[int, int], int]:
    """Ticks (above 0) that a pair saves, by the stages of its F and its backward."""
    pipeline, kinds = instance.pipeline, (OpKind.F, instance.backward)
    stages = {stage for hosted in pipeline.hosted for stage in hosted[device]}
    gains = {
        both: _gain(instance, *(pipeline.code(*of, 0) for of in zip(kinds, both, strict=True)))
        for both in instance.short_pairs.stage_pairs
        if stages.issuperset(both)
    }
    return {stages: gain for stages, gain in gains.items() if gain > 0}


def _gain(instance: Instance, forward: int, backward: int) -> int:
    """Ticks that two operation numbers save if they run as one."""
    apart = instance.durations[[forward, backward]].sum()
    return int(apart) - instance.pair_time(forward, backward)


def max_saved(instance: Instance, device: int) -> int:
    """Upper bound on the time that pairs save on a device, in ticks.

    An operation is in at most one pair. So the savings are at most the sum over all F of the saving
    with the best backward, and at most the sum over all backwards of the saving with the best F.
    The first F of the device is never in a pair, because all backwards of the device come after it;
    neither is the last backward.
    """
    pipeline, gains = instance.pipeline, _gains(instance, device)
    share = instance.batches * pipeline.num_slices
    stages = [stage for hosted in pipeline.hosted for stage in hosted[device]]
    bounds = []
    for side in (0, 1):
        best = [max((g for key, g in gains.items() if key[side] == s), default=0) for s in stages]
        bounds.append(share * sum(best) - min(best, default=0))
    return min(bounds)


def candidate_pairs(instance: Instance, devices: frozenset[int]) -> Iterator[Pair]:
    """Pairs that save time on some devices, for microbatches in canonical order.

    F of microbatch j never pairs with the backward of a later microbatch k of the same route,
    because F of k precedes that backward and comes after F of j.
    """
    pipeline, slices = instance.pipeline, range(instance.pipeline.num_slices)
    codes = [row.tolist() for row in instance.codes] if Trait.PAIRS in instance.traits else []
    for device in sorted(devices):
        gains = _gains(instance, device)
        stages = [(route, s) for route, row in enumerate(pipeline.hosted) for s in row[device]]
        for (route, forward_stage), (facing, backward_stage) in product(stages, stages):
            if (forward_stage, backward_stage) not in gains:
                continue
            forwards, backwards = (
                [codes[instance.class_id(kind, stage, way, slice_index)] for slice_index in slices]
                for kind, stage, way in (
                    (OpKind.F, forward_stage, route),
                    (instance.backward, backward_stage, facing),
                )
            )
            time = (
                instance.pair_time(forwards[0][0], backwards[0][0])
                if instance.has_uniform_classes
                else None
            )
            for position in range(instance.batches):
                for partner in range(instance.batches if facing != route else position):
                    for f, b in product(forwards, backwards):
                        both = f[position], b[partner]
                        yield Pair(*both, instance.pair_time(*both) if time is None else time)
