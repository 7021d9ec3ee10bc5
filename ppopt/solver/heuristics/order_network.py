"""The network of the orders of a schedule: devices and links as machines of one job shop.

Nodes are the positions of the operations (the two of an overlapped pair share one), and the
transfers where links are resources. Every machine runs its nodes in its own order, and nodes wait
for others besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ppopt.problem.objective import Objective
from ppopt.problem.operation import Op, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule import timing
from ppopt.schedule.link_queues import Queues, queues_of_orders, queues_of_schedule
from ppopt.schedule.orders import Orders
from ppopt.schedule.schedule import Schedule

Links = list[list[tuple[int, int]]]
Sequences = list[list[int]]
"""Nodes of every machine in order: devices, then links."""


class OrderNetwork:
    """What a schedule leaves as it is when the orders of its devices and links change."""

    def __init__(self, pipeline: Pipeline, orders: Orders, queues: Queues | None) -> None:
        """`queues`: the orders of the links where these are resources."""
        self.pipeline = pipeline
        self._queues = queues
        self._entries: list[list[int]] = []
        """Entries of the orders at every position."""
        for entry in np.concatenate(list(orders)).tolist():
            if entry < 0:
                self._entries[-1].append(entry)
            else:
                self._entries.append([entry])
        self.computed = len(self._entries)
        self._carried: list[int] = [] if queues is None else queues.carried.tolist()
        listed = timing.listed_orders(self.pipeline, orders, queues)
        self.start: Sequences = [[*range(*ends)] for ends in pairwise(listed.starts.tolist())]
        """The orders of the schedule."""
        self.duration: list[int] = listed.duration.tolist()
        self.size = len(self.duration)
        self.after: Links = [[] for _ in self.duration]
        """Per node: (one that waits for it, lag in ticks)."""
        self.before: Links = [[] for _ in self.duration]
        """Per node: (one that it waits for, lag in ticks)."""
        for first, second, lag in zip(*(part.tolist() for part in listed.flow), strict=True):
            self.after[first].append((second, lag))
            self.before[second].append((first, lag))
        self._takes, self._gives = self._memory()

    @classmethod
    def of(cls, schedule: Schedule) -> OrderNetwork:
        """The network of a schedule."""
        queues = queues_of_schedule(schedule) if schedule.pipeline.has_links else None
        return cls(schedule.pipeline, schedule.orders, queues)

    def _ops(self, node: int) -> list[Op]:
        """The operation at a position, or the two of a pair; none of a transfer."""
        entries = self._entries[node] if node < self.computed else []
        return [self.pipeline.op(entry if entry >= 0 else ~entry) for entry in entries]

    def _memory(self) -> tuple[list[int], list[int]]:
        """What every position takes at its start and gives at its end."""
        takes, gives, ticks = [], [], self.pipeline.ticks
        for ops in map(self._ops, range(self.computed)):
            if len(ops) == 1:
                both = ticks.held_alone(ops[0].kind, ops[0].stage)
            else:
                tables = (ticks.takes, ticks.gives)
                one, two = (sum(table[op.kind][op.stage] for op in ops) for table in tables)
                both = one, two
            takes.append(both[0])
            gives.append(both[1])
        return takes, gives

    def fits(self, device: int, sequence: Sequence[int]) -> bool:
        """Whether a device keeps its memory limit in this order."""
        room = self.pipeline.ticks.room(device)
        if room is None:
            return True
        held = 0
        for node in sequence:
            held += self._takes[node]
            if held > room:
                return False
            held -= self._gives[node]
        return True

    def ends(self, sequences: Sequences) -> list[int] | None:
        """Earliest end of every node, in ticks; None where orders wait in a circle."""
        missing = [len(nodes) for nodes in self.before]
        following = [-1] * self.size
        for sequence in sequences:
            for one, other in pairwise(sequence):
                following[one] = other
                missing[other] += 1
        end = [0] * self.size
        ready = [node for node in range(self.size) if not missing[node]]
        left = self.size
        while ready:
            node = ready.pop()
            left -= 1
            end[node] += self.duration[node]
            reached, then = end[node], following[node]
            if then >= 0:
                if end[then] < reached:  # noqa: PLR1730  max() takes as long as all the rest
                    end[then] = reached
                missing[then] -= 1
                if not missing[then]:
                    ready.append(then)
            for other, lag in self.after[node]:
                end[other] = max(end[other], reached + lag)
                missing[other] -= 1
                if not missing[other]:
                    ready.append(other)
        return None if left else end

    def backward(self, node: int) -> Op | None:
        """The B or BW at a position, alone or in a pair; None: there is none."""
        return next((op for op in self._ops(node) if op.kind in (OpKind.B, OpKind.BW)), None)

    def with_flip(self, sequences: Sequences, node: int) -> OrderNetwork:
        """The network of these orders where the backward at a position has the other mode.

        W of a backward that becomes a split one comes right after it.
        """
        backward = self.backward(node)
        assert backward is not None
        partial, weight, full = (
            self.pipeline.code(kind, *backward[1:]) for kind in (OpKind.B, OpKind.W, OpKind.BW)
        )
        flip = {partial: full, full: partial, ~partial: ~full, ~full: ~partial}
        entries = [[] if mine == [weight] else mine for mine in self._entries]
        entries[node] = [flip.get(entry, entry) for entry in self._entries[node]]
        if backward.kind is OpKind.BW:
            entries[node].append(weight)
        return OrderNetwork(self.pipeline, *self._orders(sequences, entries))

    def schedule(self, sequences: Sequences, objective: Objective) -> Schedule:
        """The schedule of these orders."""
        orders, queues = self._orders(sequences, self._entries)
        return timing.schedule(self.pipeline, orders, objective, queues=queues)

    def _orders(
        self, sequences: Sequences, entries: list[list[int]]
    ) -> tuple[Orders, Queues | None]:
        """The orders of devices, with these entries at every position, and of links."""
        devices = self.pipeline.num_devices
        orders = [
            np.array([entry for node in sequence for entry in entries[node]], dtype=np.int64)
            for sequence in sequences[:devices]
        ]
        if self._queues is None:
            return orders, None
        order = [
            np.array([self._carried[node - self.computed] for node in sequence], dtype=np.int64)
            for sequence in sequences[devices:]
        ]
        return orders, queues_of_orders(self._queues.links, order)
