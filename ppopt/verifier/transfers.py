"""The rules of transfers, where links carry one at a time (`ppopt.problem.link_mode`).

Any schedule over streams that keeps them can be posted: let every device post the transfers of a
pair in the order in which the link carries them, each as early as that order and its own operation
let. By the times given, everything before a post has ended when its transfer starts, and a receive
stands before the operation that needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ppopt.problem.link_mode import LinkMode
from ppopt.problem.operation import Op, OpKind, TransferKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.timetable import Timetable
from ppopt.schedule.transfers import Transfer, Transfers
from ppopt.verifier.rows import ABSENT, LATEST, Bools, Ints, Places, Rows, columns, existing_kinds
from ppopt.verifier.violation import MOST_LISTED, Rule, Violation, more

_FIELDS = ("stage", "microbatch", "device", "target", "start", "end", "slice")


def of_transfers(schedule: Timetable, rows: Rows) -> Iterator[Violation]:
    """Check all transfers of a schedule; where links are delays there must be none."""
    table = _read(schedule)
    if not schedule.pipeline.has_links:
        if len(table):
            words = f"{len(table)} transfers are given, but the links are delays"
            yield Violation(Rule.TRANSFER, (), None, None, words)
        return
    yield from _Check(rows.take(rows.named), table).violations()


def _read(schedule: Timetable) -> Transfers:
    given = columns(schedule)
    forward, backward = (given["kind"] == kind for kind in TransferKind)
    here = forward | backward
    kind = np.where(forward, int(OpKind.F), int(OpKind.B))
    return Transfers(kind[here], *(given[field][here] for field in _FIELDS))


@dataclass(frozen=True)
class _Check:
    """The transfers of a schedule beside its operations that have a name."""

    named: Rows
    given: Transfers

    @property
    def pipeline(self) -> Pipeline:
        return self.named.pipeline

    def violations(self) -> Iterator[Violation]:
        yield from self._unknown()
        yield from self._repeated()
        yield from self._missing()
        yield from self._lengths()
        yield from self._sent()
        yield from self._received()
        yield from self._at_once()

    @cached_property
    def places(self) -> Places:
        """Devices and delays of every microbatch."""
        return Places(self.pipeline, np.arange(self.pipeline.batches))

    @cached_property
    def gets_gradient(self) -> Bools:
        """Whether a gradient is handed back to a stage: whether it has a backward."""
        return np.asarray(existing_kinds(self.pipeline)[OpKind.B])

    @cached_property
    def known(self) -> Bools:
        """Whether a row is a transfer of the pipeline, between its two devices."""
        given, pipeline, host = self.given, self.pipeline, self.places.host
        forward = given.kind == OpKind.F
        right = (forward | (given.kind == OpKind.B)) & _within(given.stage, pipeline.num_stages)
        right &= _within(given.microbatch, pipeline.batches)
        right &= _within(given.slice, pipeline.num_slices)
        stage, microbatch = (
            np.where(right, column, 0) for column in (given.stage, given.microbatch)
        )
        other = np.where(forward, stage + 1, stage - 1)
        right &= _within(other, pipeline.num_stages)
        right &= forward | self.gets_gradient[np.where(right, other, 0)]
        there = host[np.where(right, other, 0), microbatch]
        right &= (given.source == host[stage, microbatch]) & (given.target == there)
        return np.asarray(right & (given.source != given.target))

    @cached_property
    def other(self) -> Ints:
        """Stage that receives, of every known row."""
        return np.where(self.given.kind == OpKind.F, self.given.stage + 1, self.given.stage - 1)

    @cached_property
    def timed(self) -> Bools:
        """Whether a known row has times that can be computed with."""
        fine = self.known.copy()
        for column in (self.given.start, self.given.end):
            fine &= (column >= -LATEST) & (column <= LATEST)
        return fine

    @cached_property
    def first(self) -> Ints:
        """Rows with times that are the first of their transfer: the ones that count."""
        rows = np.flatnonzero(self.timed)
        return np.asarray(rows[self.row[self._place(rows)] == rows])

    @cached_property
    def row(self) -> Ints:
        """First row of every transfer, [way, sending stage, microbatch, slice]; ABSENT: none."""
        pipeline = self.pipeline
        shape = (2, pipeline.num_stages, pipeline.batches, pipeline.num_slices)
        table = np.full(shape, ABSENT)
        rows = np.flatnonzero(self.known)[::-1]
        table[self._place(rows)] = rows
        return table

    def _place(self, rows: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        given = self.given
        way = np.where(given.kind[rows] == OpKind.F, 0, 1)
        return way, given.stage[rows], given.microbatch[rows], given.slice[rows]

    def _transfer(self, row: int) -> Transfer:
        given = self.given
        place = (given.stage[row], given.microbatch[row], given.slice[row])
        return Transfer(OpKind(int(given.kind[row])), *map(int, place))

    def _at(self, rule: Rule, row: int, words: str, *ops: Op) -> Violation:
        given = self.given
        where = f"{self._transfer(row)} {self._span(row)}"
        device, start = int(given.source[row]), int(given.start[row])
        return Violation(rule, ops, device, start, f"{where} {words}")

    def _span(self, row: int) -> str:
        given, clock = self.given, self.named.clock
        devices = f"from device {given.source[row]} to {given.target[row]}"
        return f"{devices} at {clock(given.start[row])}..{clock(given.end[row])}"

    def _unknown(self) -> Iterator[Violation]:
        sliced = self.pipeline.num_slices > 1 or self.given.slice.any()
        names = ("kind", "stage", "microbatch", "source", "target", *(("slice",) if sliced else ()))
        for row in np.flatnonzero(~self.known).tolist():
            fields = ", ".join(f"{name} {getattr(self.given, name)[row]}" for name in names)
            words = f"a transfer of {fields} is none of this pipeline"
            yield Violation(Rule.TRANSFER, (), None, None, words)

    def _repeated(self) -> Iterator[Violation]:
        rows = np.flatnonzero(self.known)
        for row in rows[self.row[self._place(rows)] != rows].tolist():
            yield self._at(Rule.TRANSFER, row, "is there twice")

    def _missing(self) -> Iterator[Violation]:
        host = self.places.host
        crossing = (host[1:] != host[:-1])[..., None]
        needed = np.zeros_like(self.row, dtype=bool)
        needed[0, :-1] = crossing
        needed[1, 1:] = crossing & self.gets_gradient[:-1, None, None]
        lacking = np.argwhere(needed & (self.row == ABSENT)).tolist()
        for way, stage, microbatch, part in lacking[:MOST_LISTED]:
            name = Transfer(OpKind.B if way else OpKind.F, stage, microbatch, part)
            device = int(host[stage, microbatch])
            yield Violation(Rule.TRANSFER, (), device, None, f"{name} is missing")
        yield from more(Rule.TRANSFER, len(lacking) - MOST_LISTED)

    def _lengths(self) -> Iterator[Violation]:
        """A transfer takes the p2p time of its boundary and way, and starts at 0 or later."""
        down, up = self.places.forward[..., 0], self.places.backward[..., 0]
        rows, given = np.flatnonzero(self.known), self.given
        boundary = np.minimum(given.stage[rows], self.other[rows]), given.microbatch[rows]
        wanted = np.where(given.kind[rows] == OpKind.F, down[boundary], up[boundary])
        start, end = given.start[rows], given.end[rows]
        right = self.timed[rows] & (end - start == wanted) & (start >= 0)
        for row, ticks in zip(rows[~right].tolist(), wanted[~right].tolist(), strict=True):
            words = f"is not {self.named.clock(ticks)} long from 0 or later on"
            yield self._at(Rule.TRANSFER_TIME, row, words)

    def _operations(self, stage: Ints, rows: Ints) -> Ints:
        """Row of the F, or of the B or BW, of a stage and the data that each transfer carries."""
        named, given = self.named, self.given
        forward, b, _, full = named.index
        backward = np.where(b != ABSENT, b, full)
        slot = np.searchsorted(named.present, given.microbatch[rows])
        found = np.full(len(rows), ABSENT)
        there = np.isin(given.microbatch[rows], named.present)
        at = stage[there], slot[there], given.slice[rows[there]]
        found[there] = np.where(given.kind[rows][there] == OpKind.F, forward[at], backward[at])
        return found

    def _sent(self) -> Iterator[Violation]:
        rows = self.first
        maker = self._operations(self.given.stage[rows], rows)
        early = self.given.start[rows] < self.named.ends[maker]
        for row, op in zip(rows[early].tolist(), maker[early].tolist(), strict=True):
            words = (
                f"starts before {self.named.op(op)} ends at {self.named.clock(self.named.end[op])}"
            )
            yield self._at(Rule.SEND, row, words, self.named.op(op))

    def _received(self) -> Iterator[Violation]:
        rows = self.first
        user = self._operations(self.other[rows], rows)
        late = self.named.starts[user] < self.given.end[rows]
        for row, op in zip(rows[late].tolist(), user[late].tolist(), strict=True):
            start = self.named.clock(self.named.start[op])
            yield self._at(
                Rule.RECEIVE,
                row,
                f"ends after {self.named.op(op)} starts at {start}",
                self.named.op(op),
            )

    def _at_once(self) -> Iterator[Violation]:
        """Every transfer that starts while its link carries another one."""
        rows, given = np.flatnonzero(self.timed & (self.given.end >= self.given.start)), self.given
        link = self._link(rows)
        order = np.lexsort((given.end[rows], given.start[rows], *link))
        rows, link = rows[order], link[:, order]
        until, running = 0, ABSENT
        for place, row in enumerate(rows.tolist()):
            if place == 0 or (link[:, place] != link[:, place - 1]).any():
                until, running = -LATEST - 1, ABSENT
            if given.start[row] < until:
                words = f"runs beside {self._transfer(running)} {self._span(running)}"
                yield self._at(Rule.LINK, row, words)
            if given.end[row] > until:
                until, running = int(given.end[row]), row

    def _link(self, rows: Ints) -> Ints:
        """What transfers of one link have in common, shape [2, row].

        The sending and the receiving device; where a link goes both ways, their smaller and their
        larger number.
        """
        ends = np.stack((self.given.source[rows], self.given.target[rows]))
        return ends if self.pipeline.link_mode is LinkMode.EXCLUSIVE else np.sort(ends, axis=0)


def _within(column: Ints, size: int) -> Bools:
    return np.asarray((column >= 0) & (column < size))
