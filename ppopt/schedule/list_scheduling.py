"""Constructive search: event-driven list scheduling, steered by a policy per device.

Greedy list scheduling as in the heuristic of the zero-bubble paper (arXiv 2401.10241, section 3.1):
forwards up to a cap, weight passes in the gaps or when memory forces them. A policy sets, device by
device, how far each of these goes, and what goes first; `ppopt.solver.heuristics.annealing`
searches over policies, using this module as decoder, from those of
`ppopt.solver.heuristics.priority_rules`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.orders import Orders

NEVER = 2**62
"""Later than any instant, more than any memory."""


class Policy(NamedTuple):
    """How each device chooses; one entry per device, `cap` one per stage."""

    cap: tuple[int, ...]
    """Most microbatches between F and B of a stage."""
    patience: tuple[int, ...]
    """Percent of a weight pass by which it may delay what arrives while it runs."""
    reserve: tuple[int, ...]
    """Weight passes kept back for later gaps."""
    forward_first: tuple[bool, ...]
    """Whether F goes before B when both may start."""
    room_first: tuple[bool, ...]
    """Whether W goes before B while an F that has come, or is on its way, waits for memory."""
    prompt: tuple[bool, ...]
    """Whether W may delay no F that is on its way: patience is with B alone."""
    shallow_first: tuple[bool, ...]
    """Whether, of several stages, the one farther from its end of the way goes first; the last
    field, which a climb leaves alone where every device has one stage."""


class Style(NamedTuple):
    """What all devices have in common (see `Policy`)."""

    forward_first: bool
    patience: int = 0
    reserve: int = 0
    room_first: bool = False
    prompt: bool = False


def alike(pipeline: Pipeline, caps: Sequence[int], style: Style) -> Policy:
    """The policy by which all devices choose alike, with these caps per stage, 1 at least."""
    devices = pipeline.num_devices
    return Policy(
        cap=tuple(max(1, cap) for cap in caps),
        patience=(style.patience,) * devices,
        reserve=(style.reserve,) * devices,
        forward_first=(style.forward_first,) * devices,
        room_first=(style.room_first,) * devices,
        prompt=(style.prompt,) * devices,
        shallow_first=(False,) * devices,
    )


class Built(NamedTuple):
    """What a policy leads to."""

    makespan: int
    """End of the last operation, in ticks."""
    span: int
    """Largest device span of the starts as simulated, in ticks."""
    orders: tuple[list[int], ...]
    """Numbers of the operations per device, in order."""

    def value(self, objective: Objective) -> int:
        """The figure of the objective, in ticks."""
        return self.makespan if objective is Objective.MAKESPAN else self.span

    def arrays(self) -> Orders:
        """The orders as arrays."""
        return [np.array(order, dtype=np.int64) for order in self.orders]


def built(begun: list[int], busy: list[int], orders: tuple[list[int], ...]) -> Built:
    """Measure a simulation by the first start and last end of every device."""
    span = max(end - first for end, first in zip(busy, begun, strict=True))
    return Built(max(busy), span, orders)


@dataclass(frozen=True)
class Decoder:
    """A pipeline's fixed tables for list scheduling; slot = route x stages + stage."""

    pipeline: Pipeline
    fused: bool = False

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """Every stage of every route."""
        pipeline = self.pipeline
        return tuple(
            _slot(pipeline, route, stage, fused=self.fused)
            for route in range(pipeline.routes)
            for stage in range(pipeline.num_stages)
        )

    @cached_property
    def hosted(self) -> tuple[tuple[int, ...], ...]:
        """Slots of every device, by stage ascending."""
        found: list[list[int]] = [[] for _ in range(self.pipeline.num_devices)]
        for index, slot in sorted(enumerate(self.slots), key=lambda item: item[1].stage):
            found[slot.device].append(index)
        return tuple(map(tuple, found))

    @cached_property
    def total(self) -> int:
        """Microbatches of a route."""
        return self.pipeline.batches // self.pipeline.routes

    def build(self, policy: Policy) -> Built | None:
        """Schedule by a policy within the limits; None where it gets stuck."""
        if not self.plain:
            return _Run(self, policy).result()
        done = _schedule_plain(self, policy)
        return None if done is None else built(*done)

    @cached_property
    def plain(self) -> bool:
        """Whether the short loop applies."""
        return _is_plain(self)


class Slot(NamedTuple):
    """A stage of one route: costs, codes and neighbours."""

    stage: int
    device: int
    time: tuple[int, int, int]
    """F, B (or BW), W."""
    memory: tuple[int, int, int]
    """Signed change by F, B (or BW), W."""
    code: tuple[int, int, int]
    """Number of the first microbatch's F, B (or BW), W."""
    next_lag: int
    """Delay to the next stage's device; -1: last stage."""
    back_lag: int
    """Delay to the previous stage's device; -1: first stage."""


def _slot(pipeline: Pipeline, route: int, stage: int, *, fused: bool) -> Slot:
    ticks, hosts = pipeline.ticks, pipeline.hosts[route]
    kinds = (OpKind.F, OpKind.BW if fused else OpKind.B, OpKind.W)
    base = route * (pipeline.batches // pipeline.routes)
    here, last = hosts[stage], stage == pipeline.num_stages - 1
    f, b, w = (ticks.durations[kind][stage] for kind in kinds)
    mf, mb, mw = (ticks.memory_change(kind, stage) for kind in kinds)
    cf, cb, cw = (pipeline.code(kind, stage, base) for kind in kinds)
    return Slot(
        stage=stage,
        device=here,
        time=(f, b, w),
        memory=(mf, mb, mw),
        code=(cf, cb, cw),
        next_lag=-1 if last else ticks.p2p[here][hosts[stage + 1]],
        back_lag=-1 if stage == 0 else ticks.p2p[here][hosts[stage - 1]],
    )


class _Run:
    """One simulation: how far every slot has come, what has arrived, when devices are free."""

    def __init__(self, decoder: Decoder, policy: Policy) -> None:
        ticks, slots = decoder.pipeline.ticks, decoder.slots
        devices = range(decoder.pipeline.num_devices)
        self.slots, self.policy, self.total = slots, policy, decoder.total
        self.hosted = decoder.hosted
        self.forward = [
            mine if policy.shallow_first[device] else mine[::-1]
            for device, mine in enumerate(decoder.hosted)
        ]
        self.backward = [mine[::-1] for mine in self.forward]
        self.cap = [policy.cap[slot.stage] for slot in slots]
        self.done_f, self.done_b = [0] * len(slots), [0] * len(slots)
        self.done_w = [self.total if decoder.fused else 0] * len(slots)
        self.arrived_f: list[list[int]] = [
            [0] * self.total if slot.stage == 0 else [] for slot in slots
        ]
        self.arrived_b: list[list[int]] = [[] for _ in slots]
        self.held = list(ticks.static)
        self.limit = [NEVER] * len(devices) if ticks.limits is None else list(ticks.limits)
        self.needs = [self._needs(device) for device in devices]
        self.busy, self.begun = [0] * len(devices), [-1] * len(devices)
        self.orders: tuple[list[int], ...] = tuple([] for _ in devices)
        self.events = [(0, device) for device in devices]

    def _needs(self, device: int) -> int:
        """Memory that surely lets any one microbatch finish on a device; 0 for a plain one."""
        mine = [self.slots[index] for index in self.hosted[device]]
        if len(mine) == 1 and mine[0].memory[1] <= 0:
            return 0
        return sum(slot.memory[0] for slot in mine) + max(0, *(slot.memory[1] for slot in mine))

    def result(self) -> Built | None:
        """Run to the end; None if the policy got stuck."""
        pop, events, busy = heapq.heappop, self.events, self.busy
        while events:
            now, device = pop(events)
            if busy[device] <= now:
                self._dispatch(device, now)
        if any(done != self.total for done in (*self.done_b, *self.done_w)):
            return None
        return built(self.begun, busy, self.orders)

    def _dispatch(self, device: int, now: int) -> None:
        """Start the operation the policy prefers, if any may start now."""
        if self.policy.forward_first[device]:
            index, kind = self._ready_f(device, now), 0
            if index < 0:
                index, kind = self._before_f(device, now)
        else:
            index, kind = self._before_f(device, now)
            if index < 0:
                index, kind = self._ready_f(device, now), 0
        if index < 0:
            index, kind = self._ready_w(device, now), 2
        if index >= 0:
            self._start(device, index, kind, now)

    def _ready_b(self, device: int, now: int) -> int:
        for index in self.backward[device]:
            done, arrived = self.done_b[index], self.arrived_b[index]
            if done < len(arrived) and arrived[done] <= now:
                more = self.slots[index].memory[1]
                if more <= 0 or self._fits(device, more, done):
                    return index
        return -1

    def _ready_f(self, device: int, now: int) -> int:
        for index in self.forward[device]:
            if self._coming(index) <= now and self._fits_f(device, index):
                return index
        return -1

    def _coming(self, index: int) -> int:
        """When the slot's next F that is known to come, and within its cap, comes; NEVER: none."""
        done, arrived = self.done_f[index], self.arrived_f[index]
        within = done < len(arrived) and done - self.done_b[index] < self.cap[index]
        return arrived[done] if within else NEVER

    def _fits_f(self, device: int, index: int) -> bool:
        """Whether memory allows the slot's next F."""
        return self._fits(device, self.slots[index].memory[0], self.done_f[index])

    def _fits(self, device: int, more: int, number: int) -> bool:
        """Whether memory allows an increase and the oldest microbatch here can still finish."""
        room = self.limit[device] - self.held[device] - more
        needs = self.needs[device]
        if room >= needs:
            return True
        if room < 0:
            return False
        mine = self.hosted[device]
        oldest = min(min(self.done_w[index], self.done_b[index]) for index in mine)
        if number == oldest:
            return True
        missing = sum(self.slots[i].memory[0] for i in mine if self.done_f[i] <= oldest)
        return room >= missing + max(0, *(self.slots[i].memory[1] for i in mine))

    def _before_f(self, device: int, now: int) -> tuple[int, int]:
        """A weight pass for whose memory an F waits, or the B that may start now, and its kind."""
        if self.policy.room_first[device] and self._short(device):
            index, _ = self._owed(device)
            if index >= 0:
                return index, 2
        return self._ready_b(device, now), 1

    def _short(self, device: int) -> bool:
        """Whether an F that has come, or is on its way, has no memory."""
        return any(
            self._coming(index) != NEVER and not self._fits_f(device, index)
            for index in self.hosted[device]
        )

    def _owed(self, device: int) -> tuple[int, int]:
        """The slot with the most pending weight passes (-1: none), and how many there are."""
        most, chosen, pending = 0, -1, 0
        for index in self.hosted[device]:
            waiting = self.done_b[index] - self.done_w[index]
            pending += max(0, waiting)
            if waiting > most:
                most, chosen = waiting, index
        return chosen, pending

    def _ready_w(self, device: int, now: int) -> int:
        """A pending weight pass, if it fits before the next arrival or others wait for memory."""
        chosen, pending = self._owed(device)
        if chosen < 0:
            return -1
        next_b, next_f, blocked = self._arrivals(device, now)
        if blocked:
            return chosen
        spare = pending > self.policy.reserve[device]
        if next_b == next_f == NEVER:
            over = all(self.done_b[index] == self.total for index in self.hosted[device])
            return chosen if over or spare else -1
        time = self.slots[chosen].time[2]
        lead = time * (100 - self.policy.patience[device]) // 100
        due = time if self.policy.prompt[device] else lead
        return chosen if spare and now + lead <= next_b and now + due <= next_f else -1

    def _arrivals(self, device: int, now: int) -> tuple[int, int, bool]:
        """When the next B and the next F known to come may start, and whether memory stops one."""
        next_b, next_f, blocked = NEVER, NEVER, False
        for index in self.hosted[device]:
            done, arrived = self.done_b[index], self.arrived_b[index]
            if done < len(arrived):
                blocked |= arrived[done] <= now
                next_b = min(next_b, max(arrived[done], now))
            coming = self._coming(index)
            if coming <= now:
                blocked = True
            elif self.held[device] + self.slots[index].memory[0] <= self.limit[device]:
                next_f = min(next_f, coming)
        return next_b, next_f, blocked

    def _start(self, device: int, index: int, kind: int, now: int) -> None:
        slot, push = self.slots[index], heapq.heappush
        end = now + slot.time[kind]
        if self.begun[device] < 0:
            self.begun[device] = now
        self.busy[device] = end
        self.held[device] += slot.memory[kind]
        push(self.events, (end, device))
        done = (self.done_f, self.done_b, self.done_w)[kind]
        self.orders[device].append(slot.code[kind] + done[index])
        done[index] += 1
        if kind == 0:
            self._pass_on(index + 1, end, slot.next_lag, self.arrived_f, index)
        elif kind == 1 and slot.back_lag >= 0:
            self._pass_on(index - 1, end, slot.back_lag, self.arrived_b, index)

    def _pass_on(
        self, target: int, end: int, lag: int, arrived: list[list[int]], source: int
    ) -> None:
        """Tell the neighbour stage; the last stage's forward turns round at once."""
        if lag < 0:
            self.arrived_b[source].append(end)
            return
        arrived[target].append(end + lag)
        heapq.heappush(self.events, (end + lag, self.slots[target].device))


def _is_plain(decoder: Decoder) -> bool:
    """Whether `_schedule_plain` applies."""
    one_each = all(len(mine) == 1 for mine in decoder.hosted)
    return one_each and all(slot.memory[1] <= 0 for slot in decoder.slots)


def _schedule_plain(  # noqa: C901, PLR0912, PLR0915  the hot loop of the search, kept in one piece
    decoder: Decoder, policy: Policy
) -> tuple[list[int], list[int], tuple[list[int], ...]] | None:
    """List scheduling of a plain pipeline: the loop of `_Run` with everything else left out.

    One stage on every device, one route, nothing taken by B. The result is the same to the tick,
    three times as fast; the local search lives on it. Returns first start, last end and order per
    device; None where it gets stuck.
    """
    slots = [decoder.slots[index] for (index,) in decoder.hosted]
    ahead = {slot.stage: device for device, slot in enumerate(slots)}
    after = [ahead.get(slot.stage + 1, -1) for slot in slots]
    back = [ahead.get(slot.stage - 1, -1) for slot in slots]
    total, size = decoder.total, len(slots)
    ticks = decoder.pipeline.ticks
    limit = [NEVER] * size if ticks.limits is None else ticks.limits
    held = list(ticks.static)
    cap = [policy.cap[slot.stage] for slot in slots]
    lead = [
        slot.time[2] * (100 - patience) // 100
        for slot, patience in zip(slots, policy.patience, strict=True)
    ]
    due = [
        slot.time[2] if prompt else least
        for slot, prompt, least in zip(slots, policy.prompt, lead, strict=True)
    ]
    eager, reserve, room_first = policy.forward_first, policy.reserve, policy.room_first
    came_f: list[list[int]] = [[0] * total if slot.stage == 0 else [] for slot in slots]
    came_b: list[list[int]] = [[] for _ in slots]
    did_f, did_b = [0] * size, [0] * size
    did_w = [total if decoder.fused else 0] * size
    busy, begun = [0] * size, [-1] * size
    orders: tuple[list[int], ...] = tuple([] for _ in slots)
    events = [(0, device) for device in range(size)]
    pop, push = heapq.heappop, heapq.heappush
    while events:
        now, d = pop(events)
        if busy[d] > now:
            continue
        slot = slots[d]
        f, b, w = did_f[d], did_b[d], did_w[d]
        next_b = came_b[d][b] if b < len(came_b[d]) else NEVER
        next_f = came_f[d][f] if f < len(came_f[d]) and f - b < cap[d] else NEVER
        roomy = held[d] + slot.memory[0] <= limit[d]
        may_b, may_f = next_b <= now, roomy and next_f <= now
        if w < b and not roomy and next_f != NEVER and room_first[d]:
            kind, number = 2, w
            did_w[d] = w + 1
        elif may_b and not (may_f and eager[d]):
            kind, number = 1, b
            did_b[d] = b + 1
        elif may_f:
            kind, number = 0, f
            did_f[d] = f + 1
        elif w < b:
            if next_f > now:
                coming = next_f if roomy else NEVER
                if next_b == coming == NEVER:
                    if b - w <= reserve[d] and b < total:
                        continue
                elif b - w <= reserve[d] or now + lead[d] > next_b or now + due[d] > coming:
                    continue
            kind, number = 2, w
            did_w[d] = w + 1
        else:
            continue
        end = now + slot.time[kind]
        if begun[d] < 0:
            begun[d] = now
        busy[d] = end
        held[d] += slot.memory[kind]
        orders[d].append(slot.code[kind] + number)
        push(events, (end, d))
        if kind == 0:
            target = after[d]
            if target < 0:
                came_b[d].append(end)
            else:
                came_f[target].append(end + slot.next_lag)
                push(events, (end + slot.next_lag, target))
        elif kind == 1 and back[d] >= 0:
            came_b[back[d]].append(end + slot.back_lag)
            push(events, (end + slot.back_lag, back[d]))
    if any(done != total for done in (*did_b, *did_w)):
        return None
    return begun, busy, orders


def one_at_a_time(pipeline: Pipeline, *, fused: bool = False) -> Orders:
    """One microbatch through the whole pipeline after another, W at once: least memory."""
    kinds = (OpKind.BW,) if fused else (OpKind.B, OpKind.W)
    share = np.arange(pipeline.batches // pipeline.routes)
    slices = range(pipeline.num_slices)
    orders = []
    for device in range(pipeline.num_devices):
        parts = []
        for route, hosted in enumerate(pipeline.hosted):
            stages = hosted[device]
            codes = [pipeline.code(OpKind.F, stage, 0, part) for stage in stages for part in slices]
            codes += [
                pipeline.code(kind, stage, 0, part)
                for stage in stages[::-1]
                for part in reversed(slices)
                for kind in kinds
            ]
            microbatch = (route * len(share) + share) * len(slices)
            parts.append((microbatch[:, None] + np.array(codes, dtype=np.int64)).ravel())
        orders.append(np.concatenate(parts))
    return orders
