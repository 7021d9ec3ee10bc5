"""Timing of a fixed order: earliest starts by longest path through the precedence constraints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ppopt import precedence
from ppopt.errors import DeadlockError, InputError
from ppopt.metrics import Objective
from ppopt.op import NUM_KINDS, Op
from ppopt.pipeline import Pipeline
from ppopt.precedence import Orders
from ppopt.schedule import Ints, Schedule, split_codes

FREE = -1
SEVERAL = -2


@dataclass(frozen=True)
class Network:
    """An order per device with its constraints, by position in the concatenated orders.

    An operation waits for the one before it on its device and, besides, for the operations of
    `wait`: FREE none, SEVERAL those of `waits`, else the one at that position.
    """

    pipeline: Pipeline
    ops: Ints
    """Number of the operation at each position."""
    bounds: list[int]
    """First position of every device, and the end."""
    duration: Ints
    wait: list[int]
    lag: list[int]
    waits: dict[int, list[tuple[int, int]]]

    @cached_property
    def device(self) -> Ints:
        """Device of every position."""
        return np.repeat(np.arange(len(self.bounds) - 1), np.diff(self.bounds))

    @cached_property
    def duration_list(self) -> list[int]:
        """Durations as plain integers, for loops."""
        return self.duration.tolist()

    def op(self, position: int) -> Op:
        """Operation at a position."""
        return self.pipeline.op(self.ops[position])


def durations(pipeline: Pipeline) -> Ints:
    """Time of every operation number, in ticks."""
    table = np.array(pipeline.ticks.durations, dtype=np.int64)
    return np.repeat(table.reshape(NUM_KINDS * pipeline.num_stages), pipeline.batches)


def network(pipeline: Pipeline, orders: Orders) -> Network:
    """Join orders and data flow; raises InputError where the orders are not complete."""
    if len(orders) != pipeline.num_devices:
        raise InputError(f"{len(orders)} orders for {pipeline.num_devices} devices; give one each")
    flow = precedence.data_flow(pipeline, precedence.split_of(pipeline, orders))
    ops = np.concatenate(list(orders))
    bounds = np.cumsum([0, *map(len, orders)])
    device = np.repeat(np.arange(len(orders)), np.diff(bounds))
    position = np.full(pipeline.num_codes, -1, dtype=np.int64)
    position[ops] = np.arange(len(ops))
    before, after = position[flow.before], position[flow.after]
    implied = (device[before] == device[after]) & (before < after) & (flow.lag == 0)
    wait, lag, waits = _waits(len(ops), before[~implied], after[~implied], flow.lag[~implied])
    return Network(
        pipeline, ops, bounds.tolist(), durations(pipeline)[ops], wait, lag, waits
    )


def _waits(
    size: int, before: Ints, after: Ints, lag: Ints
) -> tuple[list[int], list[int], dict[int, list[tuple[int, int]]]]:
    wait = np.full(size, FREE, dtype=np.int64)
    delay = np.zeros(size, dtype=np.int64)
    wait[after] = before
    delay[after] = lag
    waits: dict[int, list[tuple[int, int]]] = {}
    crowded = np.bincount(after, minlength=size) > 1
    for index in np.flatnonzero(crowded[after]):
        waits.setdefault(int(after[index]), []).append((int(before[index]), int(lag[index])))
    wait[crowded] = SEVERAL
    return wait.tolist(), delay.tolist(), waits


@dataclass
class _Run:
    """State of one longest-path pass: how far every device has come."""

    net: Network
    at: list[int]
    clock: list[int]
    end: list[int | None]
    sequence: list[int]
    """Positions in an order in which every operation follows what it waits for."""


def run(net: Network, release: Sequence[int] | None = None) -> tuple[Ints, list[int]]:
    """Earliest end of every position in ticks, and a topological sequence of the positions.

    Device d starts at `release[d]` or later (default 0). Demand-driven longest path: a device
    runs until it waits for another one, which then runs; linear in operations. Raises
    DeadlockError, naming the cycle, when the constraints hold one.
    """
    count = len(net.bounds) - 1
    clock = list(release) if release is not None else [0] * count
    state = _Run(net, net.bounds[:-1], clock, [None] * len(net.ops), [])
    host = net.device.tolist()
    for device in range(count):
        _finish(state, device, host)
    return np.array(state.end, dtype=np.int64), state.sequence


def _finish(state: _Run, device: int, host: list[int]) -> None:
    """Run a device to its end, and others as far as it needs them."""
    stack = [(device, state.net.bounds[device + 1] - 1)]
    waiting = {device}
    while stack:
        device, target = stack[-1]
        needed = _advance(state, device)
        if state.at[device] > target:
            stack.pop()
            waiting.remove(device)
            continue
        other = host[needed]
        if other in waiting:
            raise DeadlockError(_cycle(state, [waiter for waiter, _ in stack], host))
        stack.append((other, needed))
        waiting.add(other)


def _advance(state: _Run, device: int) -> int:
    """Run a device until it must wait; returns the position it waits for (or FREE)."""
    net, end = state.net, state.end
    wait, lag, duration = net.wait, net.lag, net.duration_list
    first = position = state.at[device]
    stop = net.bounds[device + 1]
    clock = state.clock[device]
    needed = FREE
    while position < stop:
        needed = wait[position]
        if needed != FREE:
            if needed == SEVERAL:
                needed, ready = _several(net.waits[position], end)
            else:
                ready = end[needed]
                if ready is not None:
                    ready += lag[position]
            if ready is None:
                break
            if ready > clock:
                clock = ready
        clock += duration[position]
        end[position] = clock
        position += 1
    state.at[device] = position
    state.clock[device] = clock
    state.sequence.extend(range(first, position))
    return needed


def _several(waits: list[tuple[int, int]], end: list[int | None]) -> tuple[int, int | None]:
    latest: int | None = None
    for needed, lag in waits:
        ready = end[needed]
        if ready is None:
            return needed, None
        latest = ready + lag if latest is None else max(latest, ready + lag)
    return FREE, latest


def _cycle(state: _Run, stack: list[int], host: list[int]) -> tuple[Op, ...]:
    """Operations of the cycle closed by the last device of the stack, first to last."""
    blocked = [state.at[device] for device in stack]
    needs = [_missing(state, position) for position in blocked]
    first = stack.index(host[needs[-1]])
    cycle: list[int] = []
    for index in range(len(stack) - 1, first - 1, -1):
        cycle += [needs[index], blocked[index]]
    cycle = [p for i, p in enumerate(cycle) if p != cycle[i - 1]]
    return tuple(state.net.op(position) for position in cycle)


def _missing(state: _Run, position: int) -> int:
    needed = state.net.wait[position]
    if needed == SEVERAL:
        needed, _ = _several(state.net.waits[position], state.end)
    return needed


def schedule(
    pipeline: Pipeline,
    orders: Orders,
    objective: Objective = Objective.MAKESPAN,
    origin: dict[str, object] | None = None,
) -> Schedule:
    """Time an order: earliest starts from 0, or the starts of least device span.

    Raises InputError where the orders are not complete, DeadlockError where they wait in a circle.
    """
    net = network(pipeline, orders)
    end, sequence = run(net)
    if objective is Objective.DEVICE_SPAN:
        end, _ = run(net, _least_span_release(net, end, sequence))
    columns = split_codes(pipeline, net.ops)
    return Schedule(pipeline, *columns, net.device, end - net.duration, end, origin or {})


def _least_span_release(net: Network, end: Ints, sequence: list[int]) -> list[int]:
    """Start of every device's first operation such that the largest device span is least.

    With x[d] the start of device d's first operation, the end of device e's last one is
    max over d of x[d] + reach[d][e] (every path starts at some device's first operation). Span V
    is possible exactly if x[e] >= x[d] + max(lead[d][e], reach[d][e] - V) has a solution, that is
    if these difference constraints hold no positive cycle (Bellman-Ford); the least V is found
    by bisection and the least solution x is returned, in ticks.
    """
    lead, reach = _path_lengths(net, sequence)
    first, last = np.array(net.bounds[:-1]), np.array(net.bounds[1:]) - 1
    high = int((end[last] - end[first] + net.duration[first]).max())
    low = int(np.diagonal(reach).max())
    while low < high:
        middle = (low + high) // 2
        if _release(np.maximum(lead, reach - middle)) is None:
            low = middle + 1
        else:
            high = middle
    release = _release(np.maximum(lead, reach - high))
    assert release is not None, "the starts from 0 meet their own largest span"
    return [int(time) for time in release]


def _release(gap: Ints) -> Ints | None:
    """Least x >= 0 with x[e] >= x[d] + gap[d][e], or None where there is a positive cycle."""
    x = np.zeros(len(gap), dtype=np.int64)
    for _ in range(len(gap) + 1):
        later = np.maximum(x, (x[:, None] + gap).max(axis=0))
        if (later == x).all():
            return x
        x = later
    return None


UNREACHED = -(2**60)


def _path_lengths(net: Network, sequence: list[int]) -> tuple[Ints, Ints]:
    """Longest paths from the start of device d's first operation, in ticks, [d][e]: to the start
    of device e's first operation, and to the end of its last one."""
    count = len(net.bounds) - 1
    ends = np.empty((len(net.ops), count), dtype=np.int64)
    heads = {position: device for device, position in enumerate(net.bounds[:-1])}
    lead = np.empty((count, count), dtype=np.int64)
    for position in sequence:
        head = heads.get(position)
        if head is None:
            latest = ends[position - 1]
        else:
            latest = np.full(count, UNREACHED)
            latest[head] = 0
        for needed, lag in _waits_of(net, position):
            latest = np.maximum(latest, ends[needed] + lag)
        if head is not None:
            lead[:, head] = latest
        np.add(latest, net.duration_list[position], out=ends[position])
    return lead, ends[np.array(net.bounds[1:]) - 1].T


def _waits_of(net: Network, position: int) -> list[tuple[int, int]]:
    needed = net.wait[position]
    if needed == FREE:
        return []
    return net.waits[position] if needed == SEVERAL else [(needed, net.lag[position])]
