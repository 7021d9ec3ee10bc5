"""Moves of activations to the host and back, for a given order of compute.

Both directions follow the order of compute: OFFLOAD that of the F, RELOAD that of the backwards. If
memory is limited, compute waits for some OFFLOADs, and a RELOAD waits until there is headroom for
it. These waits follow from the orders alone, by counting memory: at every position of a device,
some number of OFFLOADs must have ended, and some number of RELOADs may have started. This holds at
any times that keep the order.

If every OFFLOAD before a position has ended, and every RELOAD starts only for the next one, a
device has the live memory that it has when moves take no time. So an order that fits then gets a
schedule here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.instance import Instance
from ppopt.problem.kinds import ResourceKind
from ppopt.problem.link_mode import HostLink
from ppopt.problem.operation import AuxiliaryKind, OpKind
from ppopt.schedule.operations import Operations, split_codes
from ppopt.schedule.orders import Orders, codes
from ppopt.schedule.schedule import Schedule

NEAR = 2
"""Positions of a device after which an OFFLOAD is assumed to have ended without a wait."""


class Prefetch(Enum):
    """How early a RELOAD may start. Of the schedules of a baseline's order the best one counts."""

    LATE = "late"
    """When its backward comes next: memory has the most microbatches."""
    EARLY = "early"
    """As soon as memory allows, without a wait of compute for another OFFLOAD."""


class HostOrders(NamedTuple):
    """The moves of all devices, and the waits between them and compute besides data flow."""

    order: list[Ints]
    """Numbers of the moves of every host link, or way of one, in order."""
    before: Ints
    """Numbers of operations that end before others start."""
    after: Ints


class _Move(NamedTuple):
    """A move of a device."""

    code: int
    position: int
    """Of the F or backward on the device."""
    memory: int
    of: tuple[int, int, int]
    """Stage, microbatch and slice."""


def host_orders(instance: Instance, orders: Orders, prefetch: Prefetch) -> HostOrders:
    """The moves for the orders of compute; `instance` has all resources."""
    queues: list[Ints] = []
    waits: list[tuple[int, int]] = []
    for device, order in enumerate(orders):
        moves = _DeviceMoves(instance, device, order, prefetch)
        queues += moves.queues()
        waits += moves.waits()
    before, after = np.array(waits, dtype=np.int64).reshape(-1, 2).T
    return HostOrders(queues, before, after)


class _DeviceMoves:
    """The moves of a device, for the order of its compute."""

    def __init__(self, instance: Instance, device: int, order: Ints, prefetch: Prefetch) -> None:
        self.instance, self.prefetch = instance, prefetch
        self.pipeline = pipeline = instance.pipeline
        self.code: Ints = codes(order)
        self.position: Ints = np.cumsum(order >= 0) - 1
        self.kind, self.stage, self.microbatch, self.slice_index = split_codes(pipeline, self.code)
        self.first = np.flatnonzero(order >= 0)
        """Row of the first operation of every position."""
        self.out = self._moves(AuxiliaryKind.OFFLOAD)
        self.back = self._moves(AuxiliaryKind.RELOAD)
        self.offloaded = list(accumulate((move.memory for move in self.out), initial=0))
        self.reloaded = list(accumulate((move.memory for move in self.back), initial=0))
        headroom = pipeline.ticks.headroom(device)
        gathered = pipeline.ticks.costs.unshard_memory
        hosted = [stage for route in pipeline.hosted for stage in route[device]]
        self.headroom = (
            None if headroom is None else headroom - sum(gathered[stage] for stage in hosted)
        )
        self.over = [self._count(self.out, position) for position in range(len(self.first))]
        """Per position, how many OFFLOAD may be over before it."""
        self.gate = self._gates()
        self.needed = self._needed()

    def _moves(self, kind: AuxiliaryKind) -> list[_Move]:
        """The moves of a kind, in the order of what they follow or precede."""
        forward = kind is AuxiliaryKind.OFFLOAD
        rows = (self.kind == OpKind.F) if forward else np.isin(self.kind, (OpKind.B, OpKind.BW))
        of = [column[rows] for column in (self.stage, self.microbatch, self.slice_index)]
        code = self.pipeline.code(kind, *of)
        memory = (self.instance.frees if forward else self.instance.allocations)[code]
        columns = (column.tolist() for column in (code, self.position[rows], memory, *of))
        return [
            _Move(op_code, position, amount, (stage, microbatch, slice_index))
            for op_code, position, amount, stage, microbatch, slice_index in zip(
                *columns, strict=True
            )
            if amount
        ]

    @staticmethod
    def _count(moves: list[_Move], position: int) -> int:
        """Number of moves that belong to earlier positions."""
        return bisect_left(moves, position, key=lambda move: move.position)

    def _live_without_moves(self) -> list[int]:
        """Live memory of the device at every position, without moves."""
        instance, paired = self.instance, np.bincount(self.position)[self.position] > 1
        workspace = np.where(paired, instance.pair_workspaces[self.code], 0)
        allocated, freed = np.zeros((2, len(self.first)), dtype=np.int64)
        np.add.at(allocated, self.position, instance.allocations[self.code] + workspace)
        np.add.at(freed, self.position, instance.frees[self.code] + workspace)
        live: list[int] = (np.cumsum(allocated - freed) + freed).tolist()
        return live

    def _gates(self) -> list[int]:
        """Position after which every RELOAD may start: its F, or a later one."""
        forward_positions = {move.of: move.position for move in self.out}
        if self.headroom is None:
            return list(accumulate((forward_positions[move.of] for move in self.back), max))
        self.live = self._live_without_moves()
        gates: list[int] = []
        last = 0
        for index, move in enumerate(self.back):
            gate, last = move.position - 1, max(last, forward_positions[move.of])
            while self.prefetch is Prefetch.EARLY and gate > last and self._fits(gate, index):
                gate -= 1
            last = max(last, gate)
            gates.append(last)
        return gates

    def _fits(self, position: int, index: int) -> bool:
        """Whether a RELOAD, and those before it, may have started at a position."""
        over = max(self._count(self.out, position - NEAR + 1), self._min_over(position))
        headroom = self.headroom
        return (
            headroom is None
            or self.live[position] + self.reloaded[index + 1] - self.offloaded[over] <= headroom
        )

    def _min_over(self, position: int, begun: int | None = None) -> int:
        """Minimum number of OFFLOADs that have ended at a position after `begun` RELOADs.

        None: the RELOADs of its own backwards and of earlier ones.
        """
        begun = self._count(self.back, position + 1) if begun is None else begun
        assert self.headroom is not None
        need = self.live[position] + self.reloaded[begun] - self.headroom
        return min(self.over[position], bisect_left(self.offloaded, need))

    def _needed(self) -> list[int]:
        """Number of OFFLOADs for which compute waits at every position."""
        if self.headroom is None:
            return [0] * len(self.first)
        begun = (bisect_left(self.gate, position) for position in range(len(self.first)))
        needed = (self._min_over(position, many) for position, many in enumerate(begun))
        return list(accumulate(needed, max))

    def waits(self) -> Iterator[tuple[int, int]]:
        """Waits of compute and RELOADs besides data flow: (number, number that waits)."""
        for position, (before, needed) in enumerate(
            zip([0, *self.needed], self.needed, strict=False)
        ):
            if needed > before:
                yield self.out[needed - 1].code, int(self.code[self.first[position]])
        if self.headroom is None:
            return
        for move, gate in zip(self.back, self.gate, strict=True):
            yield int(self.code[self.first[gate]]), move.code
            if self.needed[gate + 1]:
                yield self.out[self.needed[gate + 1] - 1].code, move.code

    def queues(self) -> list[Ints]:
        """Numbers of the moves of each direction, or of both together."""
        ways: list[Sequence[_Move]] = [self.out, self.back]
        if self.pipeline.host_link is HostLink.SHARED:
            ways = [self._merged()]
        return [np.array([move.code for move in way], dtype=np.int64) for way in ways if way]

    def _merged(self) -> list[_Move]:
        """Moves of both directions by the last position that they wait for, OFFLOAD first."""
        keys = [((move.position, 0), move) for move in self.out]
        last = 0
        for move, gate in zip(self.back, self.gate, strict=True):
            over = self.needed[gate + 1] if self.headroom is not None else 0
            last = max(last, gate, self.out[over - 1].position if over else 0)
            keys.append(((last, 1), move))
        return [move for _, move in sorted(keys, key=lambda key: key[0])]


def own_moves(schedule: Schedule) -> HostOrders:
    """The moves of a schedule in its own order, with their waits at its own times.

    Under a memory limit a RELOAD waits for the last operation of its device that has ended when it
    starts, and an operation waits for an OFFLOAD that ends when it starts.
    """
    table, pipeline = schedule.operations, schedule.pipeline
    moves = table.where(table.on(ResourceKind.HOST))
    order = [moves.numbers[moves.resource == resource] for resource in np.unique(moves.resource)]
    waits = [
        _own_waits(schedule, moves.where(moves.device == device), device)
        for device in range(pipeline.num_devices)
        if pipeline.ticks.headroom(device) is not None
    ]
    before, after = np.concatenate([np.zeros((2, 0), dtype=np.int64), *waits], axis=1)
    return HostOrders(order, before, after)


def _own_waits(schedule: Schedule, moves: Operations, device: int) -> Ints:
    """Numbers of what ends before others start on a device: [before, after]; see `own_moves`."""
    computed = schedule.compute.where(schedule.device == device)
    computed = computed.where(np.argsort(computed.end, kind="stable"))
    reloads = moves.kind == AuxiliaryKind.RELOAD
    out, back = moves.where(~reloads), moves.where(reloads)
    last = np.searchsorted(computed.end, back.start, side="right") - 1
    awaited, last = last >= 0, last[last >= 0]
    gone, following = np.nonzero(out.end[:, None] == computed.start)
    before = np.append(computed.numbers[last], out.numbers[gone])
    return np.stack([before, np.append(back.numbers[awaited], computed.numbers[following])])


def start_reloads_late(schedule: Schedule) -> Schedule:
    """The same schedule with every RELOAD as late as delays nothing: live memory falls."""
    table = schedule.operations
    start = table.start.copy()
    needed = np.isin(table.kind, (OpKind.B, OpKind.BW))
    reloads = table.kind == AuxiliaryKind.RELOAD
    keys = np.stack((table.stage, table.microbatch, table.slice), axis=1)
    need = dict(zip(map(tuple, keys[needed].tolist()), start[needed].tolist(), strict=True))
    following: dict[int, int] = {}
    rows = np.flatnonzero(table.on(ResourceKind.HOST))
    for row in rows[np.argsort(start[rows], kind="stable")][::-1].tolist():
        resource = int(table.resource[row])
        if reloads[row]:
            until = need[tuple(keys[row].tolist())]
            until = min(until, following.get(resource, until))
            start[row] = until - (table.end[row] - table.start[row])
        following[resource] = int(start[row])
    return schedule.with_starts(start)
