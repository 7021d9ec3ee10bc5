"""The operations of the schedules of a claim and the rules between them, from the verifier's rows.

Microbatches in order. Take the operations of one kind, stage and slice on one route. They have one
length and do not overlap: rename them so that the k-th belongs to the k-th microbatch. A rule that
says "an operation of microbatch j ends some time before another operation of j starts", for every
j, still holds. When the k-th of the later operations starts, k of them have started, and before
these k of the earlier ones have ended. Devices, times and memory do not change. If microbatches
differ, they run in their stated order.

Mixed backwards: B and BW are two rows and one operation, as long as either; W runs only after a B.
An absent W takes no time at the end of the previous one, or at 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np

from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.operation import AuxiliaryKind, OpKind, TransferKind
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.equal_microbatches import of_smallest
from ppopt.rechecker.pair_times import shortest
from ppopt.rechecker.quantities import live_weights
from ppopt.verifier.expected import OF_STEP
from ppopt.verifier.measure import memory_of_rows
from ppopt.verifier.operation_rules import pair_ticks
from ppopt.verifier.order import edges_of
from ppopt.verifier.rows import ABSENT, Rows, required

Edge = tuple[int, int, int]
"""(earlier, later, lag): `later` starts `lag` or more after the end of `earlier`."""
Place = tuple[int, int, int, int]
"""Kind, stage, slice and route."""
MODES = {
    BackwardKind.SPLIT: ((OpKind.BW,),),
    BackwardKind.WHOLE: ((OpKind.B, OpKind.W),),
    BackwardKind.MIXED: ((OpKind.BW,), (OpKind.B, OpKind.W)),
}
"""The kinds that a backward does not run, in each of its modes."""
PER_MICROBATCH = (*OpKind, *TransferKind, AuxiliaryKind.OFFLOAD, AuxiliaryKind.RELOAD)
HOLDING = (
    (AuxiliaryKind.UNSHARD, AuxiliaryKind.GRADIENT_SYNC),
    (OpKind.F, AuxiliaryKind.OFFLOAD, AuxiliaryKind.RELOAD, OpKind.B, OpKind.BW, OpKind.W),
)
"""Kinds of one stage, in order, that together free what they allocate."""


class Required:
    """Required by number, with the rules that choose no order on any resource."""

    def __init__(self, claim: Claim, rows: Rows) -> None:
        """`rows` are the verifier's for the pipeline of the claim, all or some."""
        self.claim = claim
        self.mixed = claim.backward_kind is BackwardKind.MIXED
        unused = set.intersection(*map(set, MODES[claim.backward_kind]))
        self.rows = rows = rows.take(~np.isin(rows.kind, sorted(unused)))
        self.modes: list[Bools] = [
            ~np.isin(rows.kind, absent) for absent in MODES[claim.backward_kind]
        ]
        """Rows of the backwards of each mode, and all other rows."""
        self.number: Ints = np.arange(len(rows))
        """Number of the operation of every row: B and BW share that of the B."""
        split, whole = map(rows.index, (OpKind.B, OpKind.BW))
        both = (split != ABSENT) & (whole != ABSENT)
        self.number[whole[both]] = split[both]
        self.optional: Bools = (rows.kind == OpKind.W) & self.mixed
        """Rows of the W that follow only a B."""
        self.shortest = self._shortest()
        self.edges: list[Edge] = [*dict.fromkeys(self._edges())]

    @classmethod
    def of_claim(cls, claim: Claim) -> Required:
        """All operations."""
        return cls(claim, required(claim.pipeline, costs=claim.costs))

    @classmethod
    def of_microbatch(cls, claim: Claim) -> Required:
        """The operations of one microbatch of every route, and those once per step."""
        first = np.arange(
            0, claim.pipeline.batches, claim.pipeline.batches // claim.pipeline.routes
        )
        return cls(claim, required(claim.pipeline, first, claim.costs))

    def places(self) -> list[Place]:
        """The place of every row."""
        rows = self.rows
        columns = (rows.kind, rows.stage, rows.slice, rows.route)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def row(self, place: Place) -> list[int]:
        """Numbers of the operations of compute of all microbatches at a place, in order."""
        kind, stage, slice_index, route = place
        lanes = self.rows.expected.lanes_of_routes[route]
        numbers: list[int] = self.number[self.rows.index(kind)[stage, lanes, slice_index]].tolist()
        return numbers

    def _shortest(self) -> Ints:
        """Minimum time of every row in any mode, alone or in a pair, of the smallest microbatch."""
        rows, times = self.rows, shortest(of_smallest(self.claim).costs)
        if self.mixed:
            times[[OpKind.B, OpKind.BW]] = times[[OpKind.B, OpKind.BW]].min(axis=0)
            times[OpKind.W] = 0
        return np.where(rows.computes, times[rows.kind, rows.stage], rows.end)

    def _edges(self) -> Iterator[Edge]:
        """The rules of the verifier, the order of microbatches, and memory by counting."""
        for mode in self.modes:
            rows, numbers = self.rows.take(mode), self.number[mode]
            arrays = [(*edges[1:4],) for edges in edges_of(rows, _by_microbatch)]
            arrays += [*_in_order(rows), *self._by_memory(rows)]
            for earlier, later, lag in arrays:
                columns = np.broadcast_arrays(earlier, later, lag)
                exist = (columns[0] != ABSENT) & (columns[1] != ABSENT)
                before, after, ticks = (column[exist] for column in columns)
                yield from zip(
                    numbers[before].tolist(), numbers[after].tolist(), ticks.tolist(), strict=True
                )

    def _by_memory(self, rows: Rows) -> Iterator[tuple[Ints, Ints, int]]:
        """The headroom of a stage limits the live microbatches; one ends before another starts.

        From the start of F to the end of a later operation, the minimum that is live between them
        is held. Microbatches are in order: if `many` fit and F(j) starts, one of 0 .. j-1 has
        ended, hence j - many has.
        """
        headroom, change = self._headroom, np.subtract(*memory_of_rows(rows))
        if headroom is None or (self.mixed and OpKind.W in rows.kind):
            return
        for lanes in rows.expected.lanes_of_routes:
            tables = [rows.index(kind)[:, lanes] for kind in HOLDING[1] if kind in rows.kind]
            for chain in zip(*tables, strict=True):
                existing = [row for row in chain if (row != ABSENT).all()]
                if not existing:
                    continue
                forward, *later = existing
                live = minimum = change[forward]
                for operation in later:
                    amount = int(minimum.min())
                    many = int(headroom[rows.device[forward[0, 0]]]) // amount if amount > 0 else 0
                    if many > 0:
                        yield operation[:-many], forward[many:], 0
                    live = live + change[operation]
                    minimum = np.minimum(minimum, live)

    @cached_property
    def _headroom(self) -> Ints | None:
        ticks, devices = self.claim.pipeline.ticks, range(self.claim.pipeline.num_devices)
        if ticks.limits is None:
            return None
        weights = [0 if self.mixed else live_weights(self.claim, device) for device in devices]
        return np.asarray(np.array(ticks.limits) - np.array(ticks.static) - np.array(weights))

    def live(self) -> list[tuple[int, int, int]]:
        """Live memory, in each mode: (allocating row, freeing row, amount).

        Memory is live from the start of the allocating row to the end of the freeing one, first in,
        first out. What rows of both modes hold is the same in both, and listed once.
        """
        return [*dict.fromkeys(self._live())]

    def _live(self) -> Iterator[tuple[int, int, int]]:
        allocated, freed = (column.tolist() for column in memory_of_rows(self.rows))
        for mode in self.modes:
            rows, numbers = self.rows.take(mode), np.flatnonzero(mode)
            for kinds in HOLDING:
                existing = [rows.index(kind) for kind in kinds if kind in rows.kind]
                for chain in (
                    np.stack(existing, axis=-1).reshape(-1, len(existing)) if existing else ()
                ):
                    own = numbers[chain[chain != ABSENT]].tolist()
                    yield from _spans(own, allocated, freed)

    def pairs(self, devices: Iterable[int]) -> Iterator[Edge]:
        """F and backwards of different microbatches that save time as one: (F, backward, ticks).

        A pair that saves none is not needed: the backward followed by the F can replace it, which
        start no earlier, end no later and need no more memory. On one route, with microbatches in
        order, the F is of the later microbatch: that of the earlier one has ended.
        """
        rows = self.rows
        if self.claim.pipeline.overlap is None:
            return
        whole = np.isin(rows.kind, (OpKind.B, OpKind.BW))
        for device in devices:
            first, then = np.meshgrid(
                np.flatnonzero((rows.kind == OpKind.F) & (rows.device == device)),
                np.flatnonzero(whole & (rows.device == device)),
                indexing="ij",
            )
            apart = rows.route[first] != rows.route[then]
            apart |= rows.microbatch[first] > rows.microbatch[then]
            first, then = first[apart], then[apart]
            ticks = pair_ticks(rows, first, then)
            saves = ticks < rows.end[first] + rows.end[then]
            columns = (column[saves].tolist() for column in (first, then, ticks))
            yield from zip(*columns, strict=True)

    @property
    def counted(self) -> Bools:
        """Rows whose work between two operations is counted: compute, and work once per step."""
        return (self.rows.computes | np.isin(self.rows.kind, OF_STEP)) & ~self.optional


def _in_order(rows: Rows) -> Iterator[tuple[Ints, Ints, int]]:
    """The k-th operation of its kind, stage, slice and route is that of the k-th microbatch."""
    for kind in PER_MICROBATCH:
        if kind in rows.kind:
            for lanes in rows.expected.lanes_of_routes:
                table = rows.index(kind)[:, lanes]
                yield table[:, :-1], table[:, 1:], 0


def _by_microbatch(rows: Rows, kinds: tuple[OpKind, ...], last: bool) -> Ints:
    """Rows of the first or last microbatch, of all kinds and slices."""
    tables = np.concatenate([rows.index(kind) for kind in kinds], axis=2)
    lanes = rows.expected.lanes_of_routes
    return np.stack([tables[:, own][:, -1 if last else 0] for own in lanes], axis=1)


def _spans(
    chain: list[int], allocated: list[int], freed: list[int]
) -> Iterator[tuple[int, int, int]]:
    """What the rows of a chain hold, first in, first out."""
    live: list[tuple[int, int]] = []
    for row in chain:
        live.append((row, allocated[row]))
        to_free = freed[row]
        while to_free and live:
            first, amount = live.pop(0)
            if amount > to_free:
                live.insert(0, (first, amount - to_free))
            part = min(amount, to_free)
            to_free -= part
            if part:
                yield first, row, part
