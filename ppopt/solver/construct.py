"""Constructive search: event-driven list scheduling under a portfolio of rules.

Greedy list scheduling as in the heuristic of the zero-bubble paper (arXiv 2401.10241, section
3.1): backwards first, forwards up to a cap, weight passes in the gaps or when memory forces them.
Rules differ in the cap, in which chunk goes first and in how long a weight pass may delay others.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ppopt.op import OpKind
from ppopt.pipeline import Pipeline
from ppopt.precedence import Orders
from ppopt.schedule import Ints

NEVER = 2**62


class Rule(NamedTuple):
    """One way of making choices."""

    extra: int | None
    """Microbatches in flight on device d: at most devices - d + extra; None: no cap."""
    deep_first: bool
    """Among forwards, and among backwards, prefer those nearer to their end of the way."""
    patience: int
    """Percent of a weight pass by which it may delay what arrives while it runs."""


def rules(pipeline: Pipeline) -> Iterator[Rule]:
    """The portfolio, most promising first."""
    devices = pipeline.num_devices
    deep_choices = (True,) if pipeline.num_stages == devices else (True, False)
    extras = dict.fromkeys((0, 1, 2, devices // 2, devices - 1, 2 * devices))
    for extra in (*extras, None):
        for deep_first in deep_choices:
            for patience in (0, 50, 99):
                yield Rule(extra, deep_first, patience)


class _Slot:
    """A stage of one route on its device: how far each kind has come, and what has arrived."""

    __slots__ = (
        "activation", "arrived_b", "arrived_f", "back", "base", "code", "done_b", "done_f",
        "done_w", "forth", "memory_b", "memory_w", "stage", "time_b", "time_f", "time_w", "total",
    )  # fmt: skip

    def __init__(self, pipeline: Pipeline, route: int, stage: int, *, fused: bool) -> None:
        ticks = pipeline.ticks
        backward = OpKind.BW if fused else OpKind.B
        self.stage = stage
        self.total = pipeline.batches // pipeline.routes
        self.base = route * self.total
        self.code = tuple(
            pipeline.code(kind, stage, self.base) for kind in (OpKind.F, backward, OpKind.W)
        )
        self.time_f, self.time_b, self.time_w = (
            ticks.durations[kind][stage] for kind in (OpKind.F, backward, OpKind.W)
        )
        self.activation, self.memory_b, self.memory_w = (
            ticks.memory_change(kind, stage) for kind in (OpKind.F, backward, OpKind.W)
        )
        self.done_f = self.done_b = 0
        self.done_w = self.total if fused else 0
        self.arrived_f: list[int] = [0] * self.total if stage == 0 else []
        self.arrived_b: list[int] = []
        self.forth: tuple[_Slot, int, int] | None = None
        self.back: tuple[_Slot, int, int] | None = None


class _Device:
    """A device: its slots, clock and memory."""

    __slots__ = ("backward", "busy", "cap", "forward", "held", "limit", "needs", "order", "slots")

    def __init__(self, slots: list[_Slot], limit: int, held: int, cap: int) -> None:
        self.slots = slots
        self.forward = slots
        self.backward = slots
        self.limit = limit
        self.held = held
        self.cap = cap
        self.busy = 0
        self.order: list[int] = []
        self.needs = max(
            sum(slot.activation for slot in slots) + max(0, *(slot.memory_b for slot in slots)), 0
        )

    def finished(self) -> bool:
        return all(slot.done_w == slot.total == slot.done_b for slot in self.slots)


def construct(pipeline: Pipeline, rule: Rule, *, fused: bool = False) -> Orders | None:
    """Orders found by one rule within the pipeline's limits, or None where the rule gets stuck."""
    devices = _devices(pipeline, rule, fused=fused)
    events = [(0, device) for device in range(len(devices))]
    while events:
        now, index = heapq.heappop(events)
        device = devices[index]
        if device.busy > now:
            continue
        while events and events[0] == (now, index):
            heapq.heappop(events)
        _dispatch(device, index, now, rule, events)
    if not all(device.finished() for device in devices):
        return None
    return [np.array(device.order, dtype=np.int64) for device in devices]


def _devices(pipeline: Pipeline, rule: Rule, *, fused: bool) -> list[_Device]:
    ticks, size = pipeline.ticks, pipeline.num_devices
    slots = [
        [_Slot(pipeline, route, stage, fused=fused) for stage in range(pipeline.num_stages)]
        for route in range(pipeline.routes)
    ]
    for row, hosts in zip(slots, pipeline.hosts, strict=True):
        for first, second in pairwise(row):
            here, there = hosts[first.stage], hosts[second.stage]
            first.forth = (second, there, ticks.p2p[here][there])
            second.back = (first, here, ticks.p2p[there][here])
    devices = []
    for index in range(size):
        mine = [
            slots[route][stage]
            for route in range(pipeline.routes)
            for stage in pipeline.hosted[route][index]
        ]
        cap = NEVER if rule.extra is None else max(1, size - index + rule.extra)
        limit = NEVER if ticks.limits is None else ticks.limits[index]
        device = _Device(mine, limit, ticks.static[index], cap)
        by_depth = sorted(mine, key=lambda slot: slot.stage)
        device.forward = by_depth[::-1] if rule.deep_first else by_depth
        device.backward = by_depth if rule.deep_first else by_depth[::-1]
        devices.append(device)
    return devices


def _dispatch(
    device: _Device, index: int, now: int, rule: Rule, events: list[tuple[int, int]]
) -> None:
    """Start the operation the rule prefers, if any may start now."""
    if slot := _pick_backward(device, now):
        _run_backward(device, slot, index, now, events)
    elif slot := _pick_forward(device, now):
        _run_forward(device, slot, index, now, events)
    elif slot := _pick_weight(device, now, rule):
        _run_weight(device, slot, index, now, events)


def _pick_backward(device: _Device, now: int) -> _Slot | None:
    for slot in device.backward:
        done = slot.done_b
        arrived = done < len(slot.arrived_b) and slot.arrived_b[done] <= now
        if arrived and _fits(device, slot.memory_b, done):
            return slot
    return None


def _pick_forward(device: _Device, now: int) -> _Slot | None:
    for slot in device.forward:
        done = slot.done_f
        arrived = done < len(slot.arrived_f) and slot.arrived_f[done] <= now
        if arrived and done - slot.done_b < device.cap and _fits(device, slot.activation, done):
            return slot
    return None


def _fits(device: _Device, increase: int, number: int) -> bool:
    """Whether memory allows an increase and the oldest microbatch here can still be finished."""
    if increase <= 0:
        return True
    room = device.limit - device.held - increase
    if room >= device.needs:
        return True
    if room < 0:
        return False
    oldest = min(min(slot.done_w, slot.done_b) for slot in device.slots)
    if number == oldest:
        return True
    missing = sum(other.activation for other in device.slots if other.done_f <= oldest)
    return room >= missing + max(0, *(other.memory_b for other in device.slots))


def _pick_weight(device: _Device, now: int, rule: Rule) -> _Slot | None:
    """A pending weight pass, if it fits before the next arrival or memory holds others up."""
    ready = [slot for slot in device.slots if slot.done_w < slot.done_b]
    if not ready:
        return None
    slot = max(ready, key=lambda slot: slot.done_b - slot.done_w)
    following, blocked = _next_arrival(device, now)
    if blocked or now + slot.time_w * (100 - rule.patience) // 100 <= following:
        return slot
    return None


def _next_arrival(device: _Device, now: int) -> tuple[int, bool]:
    """When the next operation known to come may start, and whether one waits for memory now."""
    following, blocked = NEVER, False
    for slot in device.slots:
        for arrived, done, capped in (
            (slot.arrived_b, slot.done_b, False),
            (slot.arrived_f, slot.done_f, slot.done_f - slot.done_b >= device.cap),
        ):
            if done < len(arrived) and not capped:
                if arrived[done] > now:
                    following = min(following, arrived[done])
                else:
                    blocked = True
    return following, blocked


def _run_forward(
    device: _Device, slot: _Slot, index: int, now: int, events: list[tuple[int, int]]
) -> None:
    device.order.append(slot.code[0] + slot.done_f)
    slot.done_f += 1
    device.held += slot.activation
    device.busy = end = now + slot.time_f
    heapq.heappush(events, (end, index))
    if slot.forth is None:
        slot.arrived_b.append(end)
    else:
        target, where, lag = slot.forth
        target.arrived_f.append(end + lag)
        heapq.heappush(events, (end + lag, where))


def _run_backward(
    device: _Device, slot: _Slot, index: int, now: int, events: list[tuple[int, int]]
) -> None:
    device.order.append(slot.code[1] + slot.done_b)
    slot.done_b += 1
    device.held += slot.memory_b
    device.busy = end = now + slot.time_b
    heapq.heappush(events, (end, index))
    if slot.back is not None:
        target, where, lag = slot.back
        target.arrived_b.append(end + lag)
        heapq.heappush(events, (end + lag, where))


def _run_weight(
    device: _Device, slot: _Slot, index: int, now: int, events: list[tuple[int, int]]
) -> None:
    device.order.append(slot.code[2] + slot.done_w)
    slot.done_w += 1
    device.held += slot.memory_w
    device.busy = now + slot.time_w
    heapq.heappush(events, (device.busy, index))


def one_at_a_time(pipeline: Pipeline, *, fused: bool = False) -> Orders:
    """One microbatch through the whole pipeline after another, W at once: least memory."""
    orders: list[list[Ints]] = [[] for _ in range(pipeline.num_devices)]
    stages = range(pipeline.num_stages)
    for microbatch in range(pipeline.batches):
        for stage in stages:
            orders[pipeline.device(stage, microbatch)].append(
                pipeline.code(OpKind.F, stage, microbatch)
            )
        for stage in reversed(stages):
            for kind in (OpKind.BW,) if fused else (OpKind.B, OpKind.W):
                orders[pipeline.device(stage, microbatch)].append(
                    pipeline.code(kind, stage, microbatch)
                )
    return [np.array(order, dtype=np.int64) for order in orders]
