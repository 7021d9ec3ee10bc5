"""Least makespan and device span of tiny pipelines with overlapped pairs and slices, by trying all.

A second opinion that shares nothing with the search but the problem: every order of every device,
pairs included, is written down, and each combination is timed. Makespans are worked out here; least
spans of an order are those of `ppopt.schedule.timing`, which tests hold against CP-SAT. No
operation may have no length, so that memory follows from the order of a device alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.objective import Objective
from ppopt.problem.operation import Op, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule import timing
from tests.factories.schedules import allocated, duration_of, freed, lag_of, may_pair, operations

F, B, W, BW = OpKind
Slot = tuple[Op, ...]
"""One operation, or the two of a pair."""
Orders = tuple[tuple[Slot, ...], ...]
"""Slots of every device, in order."""


class Best(NamedTuple):
    """Least values in ticks; None where no order keeps the memory limits."""

    makespan: int | None
    device_span: int | None
    """None too where it was not asked for."""


def best(pipeline: Pipeline, *, fused: bool | None, spans: bool = False) -> Best:
    """Try every combination of orders of the devices; spans only where asked for.

    `fused`: whether backwards are whole; None: each is whole or split.
    """
    devices = range(pipeline.num_devices)
    choices = [list(orders(pipeline, device, fused)) for device in devices]
    times = {slot: duration_of(pipeline, slot) for choice in choices for o in choice for slot in o}
    ends, device_spans = [], []
    for chosen in product(*choices):
        end = makespan(pipeline, chosen, times)
        if end is not None:
            ends.append(end)
            if spans:
                schedule = timing.schedule(
                    pipeline, _codes(pipeline, chosen), Objective.DEVICE_SPAN
                )
                device_spans.append(schedule.metrics.device_span_ticks)
    return Best(min(ends, default=None), min(device_spans, default=None))


def _codes(pipeline: Pipeline, chosen: Orders) -> list[Ints]:
    return [
        np.array(
            [c for first, *rest in order for c in _slot(pipeline, first, rest)], dtype=np.int64
        )
        for order in chosen
    ]


def _slot(pipeline: Pipeline, first: Op, rest: list[Op]) -> list[int]:
    return [pipeline.code(*first), *(~pipeline.code(*partner) for partner in rest)]


def orders(pipeline: Pipeline, device: int, fused: bool | None) -> Iterator[tuple[Slot, ...]]:
    """Every order of a device that its own data flow and memory allow, with every pairing."""
    places = [
        (stage, microbatch, slice_index)
        for stage, microbatch, slice_index in product(
            range(pipeline.num_stages), range(pipeline.batches), range(pipeline.slices or 1)
        )
        if pipeline.device(stage, microbatch) == device
    ]
    ways = {True: [False], False: [True], None: [False, True]}[fused]
    for chosen in product(ways, repeat=len(places)):
        both = zip(places, chosen, strict=True)
        ops = frozenset(op for slot, split in both for op in operations(pipeline, slot, split))
        yield from _orders(pipeline, device, ops, pipeline.ticks.static[device])


def _orders(
    pipeline: Pipeline, device: int, left: frozenset[Op], live: int
) -> Iterator[tuple[Slot, ...]]:
    if not left:
        yield ()
    ready = [op for op in sorted(left) if not (waits_for(pipeline, op) & left)]
    slots: list[Slot] = [(op,) for op in ready]
    slots += [(f, b) for f in ready for b in ready if f.kind is F and may_pair(pipeline, f, b)]
    for slot in slots:
        limits = pipeline.ticks.limits
        peak = live + sum(allocated(pipeline, *op[:3]) for op in slot)
        if limits and peak > limits[device]:
            continue
        after = peak - sum(freed(pipeline, *op[:3]) for op in slot)
        rest = _orders(pipeline, device, left - set(slot), after)
        for later in rest:
            yield (slot, *later)


@cache
def waits_for(pipeline: Pipeline, op: Op) -> frozenset[Op]:
    """What an operation waits for, where it is there: of the next backward, either kind."""
    kind, stage, _, slice_index = op
    if kind is W:
        return frozenset({op._replace(kind=B)})
    step = -1 if kind is F else 1
    neighbours = {op._replace(stage=stage + step), op._replace(slice=slice_index + step)}
    inputs = {
        source
        for source in neighbours
        if 0 <= source.stage < pipeline.num_stages and 0 <= source.slice < (pipeline.slices or 1)
    }
    if kind is F:
        return frozenset(inputs)
    either = {source._replace(kind=kind) for source in inputs for kind in (B, BW)}
    return frozenset({op._replace(kind=F), *either})


def makespan(pipeline: Pipeline, chosen: Orders, times: dict[Slot, int]) -> int | None:
    """End of the last slot at earliest starts; None: a deadlock."""
    left = [list(order) for order in chosen]
    members = {op for order in chosen for slot in order for op in slot}
    done: dict[Op, int] = {}
    free = [0] * len(left)
    progressed = True
    while progressed:
        progressed = False
        for device, order in enumerate(left):
            while order:
                slot = order[0]
                waits = [
                    (source, op) for op in slot for source in waits_for(pipeline, op) & members
                ]
                if not all(cause in done for cause, _ in waits):
                    break
                arrivals = [done[cause] + lag_of(pipeline, cause, op) for cause, op in waits]
                order.pop(0)
                free[device] = max([free[device], *arrivals]) + times[slot]
                done.update(dict.fromkeys(slot, free[device]))
                progressed = True
    return None if any(left) else max(free)
