"""The instance: what is to be scheduled, once, as arrays.

An instance has a class of operations for every kind, stage, route and slice. A class has one
operation per microbatch of its route, all with one device, duration and memory. What an operation
waits for is the operation of the same microbatch in the classes before it:

    F(s-1, j) -> F(s, j)      activations arrive, after the link's delay
    X(s+1, j) -> X(s, j)      gradients arrive, after the link's delay; X is B or BW
    F(s, j)   -> X(s, j)
    B(s, j)   -> W(s, j)

These are the rules of synchronous pipeline training (zero-bubble paper, arXiv 2401.10241, section
2). Slices of a microbatch along the sequence keep causal order at every stage (Seq1F1B, arXiv
2406.03488, section 3.2): F of slice q after F of slice q - 1, X of slice q after X of slice q + 1.

Memory: an operation takes an amount at its start and gives an amount at its end. F takes the
activation; B takes or gives its own change; W gives the rest; BW gives the activation. With
recompute F takes only what it keeps, and B or BW takes the rest. Every operation also takes its
workspace and gives it back; one of no length holds none.

Strategies, timing, heuristics, bounds and exact methods read the instance. The verifier and the
re-checker do not: they state the rules a second time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.operation import NUM_KINDS, OpKind
from ppopt.problem.pipeline import Pipeline

SPLIT = (OpKind.F, OpKind.B, OpKind.W)
"""Kinds of an instance whose backwards are all split."""
WHOLE = (OpKind.F, OpKind.BW)
"""Kinds of an instance whose backwards are all whole."""
EVERY = tuple(OpKind)
"""Kinds of an instance whose backwards may be either."""


class Constraints(NamedTuple):
    """start[after[i]] >= end[before[i]] + lag[i], lag in ticks."""

    before: Ints
    after: Ints
    lag: Ints


class OperationClass(NamedTuple):
    """Operations of one kind, stage, route and slice, one per microbatch of the route."""

    kind: OpKind
    stage: int
    route: int
    slice: int
    device: int
    duration: int
    """In ticks."""
    takes: int
    """Memory taken at the start, in ticks of memory."""
    gives: int
    """Memory given back at the end, in ticks of memory."""

    @property
    def change(self) -> int:
        """Net change of memory."""
        return self.takes - self.gives


class Holding(NamedTuple):
    """Memory held from the start of one operation to the end of another, per microbatch."""

    taker: int
    """Class that takes it."""
    giver: int
    """Class that gives it back."""
    amount: int
    """In ticks of memory."""


@dataclass(frozen=True, eq=False)
class Instance:
    """The classes of operations of a pipeline, their precedence and their memory.

    Classes are numbered 0, 1, ... by kind, then route, slice and stage.
    """

    pipeline: Pipeline
    kinds: tuple[OpKind, ...]
    """The kinds of operations there are: `SPLIT`, `WHOLE`, or `EVERY` where orders choose."""

    @classmethod
    def uniform(cls, pipeline: Pipeline, *, fused: bool) -> Instance:
        """The instance whose backwards are all whole (`fused`), or all split."""
        return cls(pipeline, WHOLE if fused else SPLIT)

    @property
    def batches(self) -> int:
        """Operations of a class: the microbatches of a route."""
        return self.pipeline.batches // self.pipeline.routes

    @property
    def operations(self) -> int:
        """Operations of a schedule; the most of any where its backwards may be split or whole."""
        pieces = self.pipeline.batches * self.pipeline.num_slices
        return (2 if self.fused else 3) * self.pipeline.num_stages * pieces

    @property
    def backward(self) -> OpKind:
        """Kind of the backwards that go from stage to stage: BW where all are whole, else B."""
        return OpKind.B if OpKind.B in self.kinds else OpKind.BW

    @property
    def closing(self) -> OpKind:
        """Kind that comes last for a stage and microbatch: W, or BW where all are whole."""
        return OpKind.W if OpKind.W in self.kinds else OpKind.BW

    @property
    def fused(self) -> bool:
        """Whether all backwards are whole."""
        return OpKind.B not in self.kinds

    @cached_property
    def classes(self) -> tuple[OperationClass, ...]:
        """All classes, by number."""
        pipeline, ticks = self.pipeline, self.pipeline.ticks
        return tuple(
            OperationClass(
                *(kind, stage, route, part, pipeline.hosts[route][stage]),
                ticks.durations[kind][stage],
                *ticks.held_alone(kind, stage),
            )
            for kind in self.kinds
            for route in range(pipeline.routes)
            for part in range(pipeline.num_slices)
            for stage in range(pipeline.num_stages)
        )

    def number(self, kind: OpKind, stage: int, route: int = 0, slice: int = 0) -> int:  # noqa: A002
        """Number of a class."""
        pipeline = self.pipeline
        place = self.kinds.index(kind) * pipeline.routes + route
        return (place * pipeline.num_slices + slice) * pipeline.num_stages + stage

    @cached_property
    def hosted(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the classes of every device."""
        found: list[list[int]] = [[] for _ in range(self.pipeline.num_devices)]
        for number, one in enumerate(self.classes):
            found[one.device].append(number)
        return tuple(map(tuple, found))

    @cached_property
    def flow(self) -> Constraints:
        """Precedence between classes, by number: of the same microbatch, with its lag in ticks."""
        edges = sorted(set(self._edges()))
        return Constraints(*np.array(edges, dtype=np.int64).reshape(-1, 3).T)

    def _edges(self) -> Iterator[tuple[int, int, int]]:
        forward_kinds = [kind for kind in self.kinds if kind is OpKind.F]
        backward_kinds = [kind for kind in self.kinds if kind in (OpKind.B, OpKind.BW)]
        last, ticks = self.pipeline.num_stages - 1, self.pipeline.ticks
        for number, (kind, stage, route, part, *_) in enumerate(self.classes):
            if kind is OpKind.W:
                yield self.number(OpKind.B, stage, route, part), number, 0
                continue
            forward = kind is OpKind.F
            source = stage - 1 if forward else stage + 1
            sources = forward_kinds if forward else backward_kinds
            if 0 <= source <= last:
                lag = ticks.down[route][source] if forward else ticks.up[route][stage]
                for other in sources:
                    yield self.number(other, source, route, part), number, lag
            earlier = part - 1 if forward else part + 1
            if 0 <= earlier < self.pipeline.num_slices:
                for other in sources:
                    yield self.number(other, stage, route, earlier), number, 0
            if not forward:
                yield self.number(OpKind.F, stage, route, part), number, 0

    @cached_property
    def predecessors(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Per class: (class that it waits for, lag in ticks)."""
        found: list[list[tuple[int, int]]] = [[] for _ in self.classes]
        for before, after, lag in zip(*(column.tolist() for column in self.flow), strict=True):
            found[after].append((before, lag))
        return tuple(map(tuple, found))

    @cached_property
    def successors(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Per class: (class that waits for it, lag in ticks)."""
        found: list[list[tuple[int, int]]] = [[] for _ in self.classes]
        for before, after, lag in zip(*(column.tolist() for column in self.flow), strict=True):
            found[before].append((after, lag))
        return tuple(map(tuple, found))

    @cached_property
    def codes(self) -> Ints:
        """Number of every operation (`Pipeline.code`), [class, microbatch of its route]."""
        columns = np.array([one[:4] for one in self.classes], dtype=np.int64).T[:, :, None]
        kind, stage, route, part = columns
        microbatch = route * self.batches + np.arange(self.batches)
        return np.asarray(self.pipeline.code(kind, stage, microbatch, part), dtype=np.int64)

    @property
    def operation_flow(self) -> Constraints:
        """Precedence between operations, by their numbers."""
        before, after, lag = self.flow
        lags = np.repeat(lag, self.batches)
        return Constraints(self.codes[before].ravel(), self.codes[after].ravel(), lags)

    @cached_property
    def holdings(self) -> tuple[Holding, ...]:
        """What every microbatch holds, from which class to which, where all are given back.

        What is given back is what was taken last.
        """
        found: list[Holding] = []
        per_kind = len(self.classes) // len(self.kinds)
        for place in range(per_kind):
            held: list[Holding] = []
            mine: list[Holding] = []
            for number in range(place, len(self.classes), per_kind):
                one = self.classes[number]
                if one.takes:
                    held.append(Holding(number, number, one.takes))
                mine += _given_back(held, number, one.gives)
            found += sorted(mine)
        return tuple(found)

    def room(self, device: int) -> int | None:
        """Memory limit of a device less its static memory; None: unlimited."""
        return self.pipeline.ticks.room(device)


def _given_back(held: list[Holding], giver: int, amount: int) -> Iterator[Holding]:
    """Take an amount off what is held, the last first, and say from whom it was."""
    while amount:
        taker, _, most = held.pop()
        part = min(amount, most)
        if part < most:
            held.append(Holding(taker, taker, most - part))
        amount -= part
        yield Holding(taker, giver, part)


def data_flow(pipeline: Pipeline, split: Bools) -> Constraints:
    """Precedence between the operations of a schedule, by number.

    `split` says for every [stage, microbatch, slice] whether its backward is split.
    """
    if split.all():
        return Instance(pipeline, SPLIT).operation_flow
    if not split.any():
        return Instance(pipeline, WHOLE).operation_flow
    present = np.empty((NUM_KINDS, *split.shape), dtype=bool)
    present[OpKind.F] = True
    present[OpKind.B] = present[OpKind.W] = split
    present[OpKind.BW] = ~split
    there = present.ravel()
    flow = Instance(pipeline, EVERY).operation_flow
    kept = there[flow.before] & there[flow.after]
    return Constraints(*(column[kept] for column in flow))


def devices(pipeline: Pipeline) -> Ints:
    """Device of every [stage, microbatch]."""
    route = np.arange(pipeline.batches) * pipeline.routes // pipeline.batches
    return np.array(pipeline.hosts, dtype=np.int64)[route].T


def durations(pipeline: Pipeline) -> Ints:
    """Time of every operation number, in ticks."""
    table = np.array(pipeline.ticks.durations, dtype=np.int64)
    pieces = pipeline.batches * pipeline.num_slices
    return np.repeat(table.reshape(NUM_KINDS * pipeline.num_stages), pieces)
