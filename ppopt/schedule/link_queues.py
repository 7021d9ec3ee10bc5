"""The order in which links carry their transfers, where links are streams.

The rules are in `ppopt.problem.link_mode`. `Links` numbers the transfers of a pipeline. `Queues`
say in which order every link carries its own and behind which operations they are posted; together
with the orders of the devices they fix all times (`ppopt.schedule.timing`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.transfers import Transfer, Transfers

NOWHERE = -1
"""Link of a transfer that does not exist: between stages of one device, or past the ends."""
_STEP = {OpKind.F: 1, OpKind.B: -1}
"""Activations go to the next stage, gradients to the one before."""


def receiving_stage(kind: OpKind, stage: int) -> int:
    """The stage that gets what a stage hands on; past the ends it is none."""
    return stage + _STEP[kind]


def sending_stage(kind: OpKind, stage: int) -> int:
    """The stage that hands on what a stage gets; past the ends it is none."""
    return stage - _STEP[kind]


class LinkQueues:
    """The transfers of a pipeline of one route, numbered; and the links that carry them.

    Transfer (way x stages + stage) x batches + microbatch is what `stage` sends: way 0 its
    activation to the next stage, way 1 its gradient to the one before.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        (hosts,), (down,), (up,) = pipeline.hosts, pipeline.ticks.down, pipeline.ticks.up
        last = len(hosts) - 1
        crossing = [here != there for here, there in pairwise(hosts)]
        self.pairs: list[tuple[int, int]] = sorted(
            {(min(pair), max(pair)) for pair in pairwise(hosts) if pair[0] != pair[1]}
        )
        """Devices of every link, the smaller first."""
        number = {pair: link for link, pair in enumerate(self.pairs)}
        link, duration = np.full((2, last + 1), NOWHERE), np.zeros((2, last + 1), dtype=np.int64)
        for stage, (here, there) in enumerate(pairwise(hosts)):
            if crossing[stage]:
                link[0, stage] = link[1, stage + 1] = number[min(here, there), max(here, there)]
                duration[0, stage], duration[1, stage + 1] = down[stage], up[stage]
        self.link: Ints = np.repeat(link.ravel(), pipeline.batches)
        """Link of every transfer; NOWHERE: it does not exist."""
        self.duration: Ints = np.repeat(duration.ravel(), pipeline.batches)
        """Time of every transfer, in ticks."""
        self.numbers: Ints = np.flatnonzero(self.link != NOWHERE)
        """The transfers that exist."""

    def number(self, kind: OpKind, stage: int, microbatch: int) -> int:
        """Number of what a stage sends."""
        way = 0 if kind is OpKind.F else 1
        return (way * self.pipeline.num_stages + stage) * self.pipeline.batches + microbatch

    def transfer(self, number: int) -> Transfer:
        """The transfer of this number."""
        rest, microbatch = divmod(int(number), self.pipeline.batches)
        way, stage = divmod(rest, self.pipeline.num_stages)
        return Transfer(OpKind.B if way else OpKind.F, stage, microbatch)

    @cached_property
    def parts(self) -> tuple[Ints, Ints, Ints]:
        """Way, sending stage and microbatch of every transfer."""
        rest, microbatch = np.divmod(np.arange(len(self.link)), self.pipeline.batches)
        way, stage = np.divmod(rest, self.pipeline.num_stages)
        return way, stage, microbatch

    @cached_property
    def sender(self) -> Ints:
        """Device that sends, of every transfer."""
        return np.array(self.pipeline.hosts[0], dtype=np.int64)[self.parts[1]]

    @cached_property
    def receiving_stage(self) -> Ints:
        """Stage that receives, of every transfer; a number of no stage past the ends."""
        way, stage, _ = self.parts
        return stage + 1 - 2 * way

    @cached_property
    def receiver(self) -> Ints:
        """Device that receives, of every transfer that exists."""
        hosts = np.array(self.pipeline.hosts[0], dtype=np.int64)
        return hosts[np.clip(self.receiving_stage, 0, self.pipeline.num_stages - 1)]

    def numbers_of(self, carried: Transfers) -> Ints:
        """Number of every transfer of a schedule."""
        way = np.where(carried.kind == OpKind.F, 0, 1)
        stages, batches = self.pipeline.num_stages, self.pipeline.batches
        return np.asarray((way * stages + carried.stage) * batches + carried.microbatch)

    def producers(self, split: Bools) -> Ints:
        """Number of the operation whose result every transfer carries.

        `split` says for every [stage, microbatch, slice] whether its backward is split.
        """
        return self._operations(self.parts[1], split)

    def consumers(self, split: Bools) -> Ints:
        """Number of the operation that every transfer brings its input."""
        stages = self.pipeline.num_stages
        return self._operations(np.clip(self.receiving_stage, 0, stages - 1), split)

    def _operations(self, stage: Ints, split: Bools) -> Ints:
        way, _, microbatch = self.parts
        backward = np.where(split[stage, microbatch, 0], int(OpKind.B), int(OpKind.BW))
        kind = np.where(way == 0, int(OpKind.F), backward)
        return np.asarray(self.pipeline.code(kind, stage, microbatch), dtype=np.int64)


class Queues(NamedTuple):
    """What every link carries, in order, and what has to end before."""

    links: LinkQueues
    order: tuple[Ints, ...]
    """Transfers of every link, by number, in the order in which it carries them."""
    before: Ints
    """Numbers of operations that end before a transfer starts: those before its two posts."""
    after: Ints
    """Numbers of these transfers."""


def posted_early(links: LinkQueues, order: Iterable[Ints], split: Bools) -> Queues:
    """Queues in which everything is posted as early as their order lets."""
    return Queues(links, tuple(order), links.producers(split)[links.numbers], links.numbers)


class QueuedOrder(NamedTuple):
    """An order of every device, as positions; the two of an overlapped pair share one."""

    sequences: Sequence[Sequence[int]]
    """Positions of every device, in order."""
    duration: Sequence[int]
    """Ticks of every position."""
    produced: Sequence[int]
    """Position at whose end each transfer is there to be sent, by number of transfer."""
    consumed: Sequence[int]
    """Position that needs each transfer, by number of transfer."""


def dispatch(
    links: LinkQueues, job: QueuedOrder, priority: Sequence[int] | None = None
) -> list[list[int]]:
    """Serve every link by events: whenever it is free it takes one of the transfers that wait.

    The one of the least `priority`, or without priorities the one that has waited longest. Devices
    run their orders, each operation as early as it can. Returns the transfers of every link, in
    order; those of orders that deadlock are left out.
    """
    return _Dispatch(links, job, priority).run()


class _Dispatch:
    """One run of `dispatch`: events are ends of operations and transfers, and free links."""

    def __init__(self, links: LinkQueues, job: QueuedOrder, priority: Sequence[int] | None) -> None:
        self.job, self.priority = job, priority
        self.link, self.duration = links.link.tolist(), links.duration.tolist()
        self.device = _device_of(job)
        self.missing = [0] * len(job.duration)
        self.results: list[list[int]] = [[] for _ in job.duration]
        for number in links.numbers.tolist():
            self.missing[job.consumed[number]] += 1
            self.results[job.produced[number]].append(number)
        self.next = [0] * len(job.sequences)
        self.waiting: list[list[tuple[int, int]]] = [[] for _ in links.pairs]
        self.busy = [False] * len(links.pairs)
        self.carried: list[list[int]] = [[] for _ in links.pairs]
        self.events: list[tuple[int, int, int]] = []

    def run(self) -> list[list[int]]:
        steps = (self._operation_ended, self._transfer_ended, self._link_free)
        for device in range(len(self.next)):
            self._start(0, device)
        while self.events:
            now, what, subject = heapq.heappop(self.events)
            steps[what](now, subject)
        return self.carried

    def _start(self, now: int, device: int) -> None:
        """Start the next operation of a device that is idle, if its inputs are there."""
        sequence, place = self.job.sequences[device], self.next[device]
        if place < len(sequence) and not self.missing[sequence[place]]:
            position = sequence[place]
            self.missing[position] = -1  # it runs
            heapq.heappush(self.events, (now + self.job.duration[position], 0, position))

    def _operation_ended(self, now: int, position: int) -> None:
        for number in self.results[position]:
            key = now if self.priority is None else self.priority[number]
            heapq.heappush(self.waiting[self.link[number]], (key, number))
            heapq.heappush(self.events, (now, 2, self.link[number]))
        device = self.device[position]
        self.next[device] += 1
        self._start(now, device)

    def _transfer_ended(self, now: int, number: int) -> None:
        self.busy[self.link[number]] = False
        heapq.heappush(self.events, (now, 2, self.link[number]))
        position = self.job.consumed[number]
        self.missing[position] -= 1
        device = self.device[position]
        sequence = self.job.sequences[device]
        if sequence[self.next[device]] == position:
            self._start(now, device)

    def _link_free(self, now: int, link: int) -> None:
        if not self.busy[link] and self.waiting[link]:
            self.busy[link] = True
            _, number = heapq.heappop(self.waiting[link])
            self.carried[link].append(number)
            heapq.heappush(self.events, (now + self.duration[number], 1, number))


def _device_of(job: QueuedOrder) -> list[int]:
    device = [0] * len(job.duration)
    for here, sequence in enumerate(job.sequences):
        for position in sequence:
            device[position] = here
    return device
